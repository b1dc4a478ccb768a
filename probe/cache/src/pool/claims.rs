//! Who reads a sample that is not kept, so that it is read once: the first who claims it reads, the others wait, each
//! up to a limit of its own.

use super::message::Answer;
use std::collections::{BTreeSet, HashMap, VecDeque};

/// A request of a client.
pub(crate) type Who = (u64, u32);

/// Who claims a sample later than that after the holder did is not kept waiting for it.
const LEASE_MS: u64 = 60_000;

/// Who comes later does not wait.
const MOST_WAITING: usize = 4096;

/// Where answers are left.
pub(crate) type Answers = Vec<(Who, Answer)>;

#[derive(Debug)]
struct Claim {
    holder: Who,
    since_ms: u64,
    /// In the order in which they came, with the end of their patience.
    waiting: VecDeque<(Who, u64)>,
}

#[derive(Debug, Default)]
pub(crate) struct Claims {
    by_id: HashMap<u32, Claim>,
    /// Everybody who waits, by the end of their patience: a client may hold millions of claims that nobody waits for.
    patience: BTreeSet<(u64, u32, Who)>,
    /// Samples that a client holds or waits for; perhaps some that it no longer does.
    of_client: BTreeSet<(u64, u32)>,
}

impl Claims {
    /// Who is first is answered yes; others hear when the sample is there, when it is their turn, or that they wait in
    /// vain.
    pub(crate) fn claim(&mut self, id: u32, who: Who, now_ms: u64, limit_ms: u32, answers: &mut Answers) {
        let claim = self.by_id.get_mut(&id);
        match claim {
            Some(claim) if claim.since_ms + LEASE_MS > now_ms && claim.waiting.len() >= MOST_WAITING => {
                answers.push((who, Answer::No));
                return;
            }
            Some(claim) if claim.since_ms + LEASE_MS > now_ms => {
                let end_ms = now_ms + u64::from(limit_ms);
                claim.waiting.push_back((who, end_ms));
                self.patience.insert((end_ms, id, who));
            }
            Some(claim) => {
                claim.holder = who;
                claim.since_ms = now_ms;
                answers.push((who, Answer::Yes));
            }
            None => {
                self.by_id.insert(id, Claim { holder: who, since_ms: now_ms, waiting: VecDeque::new() });
                answers.push((who, Answer::Yes));
            }
        }
        self.of_client.insert((who.0, id));
    }

    /// Whether somebody else is to fill it.
    pub(crate) fn is_of_another(&self, id: u32, who: Who) -> bool {
        self.by_id.get(&id).is_some_and(|claim| claim.holder != who)
    }

    /// The sample is there, or is not going to be: nobody has to wait any more.
    pub(crate) fn settle(&mut self, id: u32, answers: &mut Answers) {
        let Some(claim) = self.by_id.remove(&id) else { return };
        self.of_client.remove(&(claim.holder.0, id));
        for (who, end_ms) in claim.waiting {
            self.patience.remove(&(end_ms, id, who));
            self.of_client.remove(&(who.0, id));
            answers.push((who, Answer::No));
        }
    }

    /// Who holds it does not read it, or who waits does not wait any more.
    pub(crate) fn give_up(&mut self, id: u32, who: Who, now_ms: u64, answers: &mut Answers) {
        self.leave(id, |other| other == who, now_ms, answers);
    }

    /// A client is gone with all of its requests.
    pub(crate) fn gone(&mut self, client: u64, now_ms: u64, answers: &mut Answers) {
        let ids: Vec<u32> =
            self.of_client.range((client, 0)..=(client, u32::MAX)).map(|(_, id)| *id).collect();
        for id in ids {
            self.of_client.remove(&(client, id));
            self.leave(id, |(other, _)| other == client, now_ms, answers);
        }
    }

    fn leave(&mut self, id: u32, leaves: impl Fn(Who) -> bool, now_ms: u64, answers: &mut Answers) {
        let Some(claim) = self.by_id.get_mut(&id) else { return };
        claim.waiting.retain(|(who, end_ms)| {
            let stays = !leaves(*who);
            if !stays {
                self.patience.remove(&(*end_ms, id, *who));
            }
            stays
        });
        if leaves(claim.holder) {
            match claim.waiting.pop_front() {
                Some((who, end_ms)) => {
                    self.patience.remove(&(end_ms, id, who));
                    claim.holder = who;
                    claim.since_ms = now_ms;
                    answers.push((who, Answer::Yes));
                }
                None => {
                    self.of_client.remove(&(claim.holder.0, id));
                    self.by_id.remove(&id);
                }
            }
        }
    }

    /// Answers those whose patience is at its end, and says when the next one's is.
    pub(crate) fn expire(&mut self, now_ms: u64, answers: &mut Answers) -> Option<u64> {
        while let Some((end_ms, id, who)) = self.patience.first().copied() {
            if end_ms > now_ms {
                return Some(end_ms);
            }
            self.patience.pop_first();
            if let Some(claim) = self.by_id.get_mut(&id) {
                claim.waiting.retain(|(other, _)| *other != who);
            }
            answers.push((who, Answer::No));
        }
        None
    }
}

#[cfg(test)]
mod tests;
