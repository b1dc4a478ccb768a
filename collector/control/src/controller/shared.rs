//! Whether raises have what they gain from other jobs that read from the same storage.
//!
//! Storage with a bandwidth gives more to the job with more readers. To a job that adds some this looks like storage that has only a delay: it
//! is faster with them, provably so, and slower without. Only what the others read at the same time tells. That is known some seconds
//! late, so that raises are tried as fast as ever, and, where the windows were too short to tell, looked at once they are kept: where others read less since,
//! they are put back, and the next one is tried in windows that are long enough. Others change by themselves as well; that they
//! read less with the raise and more again without it is seldom chance, and what is undone for that is tried again later.

use super::seed::{Kind, Proposal};
use super::turn::Move;
use super::{Controller, audit};
use crate::Outcome;
use crate::observation::SharedStorage;
use stallscope_model::Act;
use stallscope_units::bytes_per_second;
use std::collections::VecDeque;

/// What is known of others is of the seconds before, and may be that old.
const LAG_NS: u64 = 12_000_000_000;
/// And is looked at over so long, at least.
const SPAN_NS: u64 = 10_000_000_000;
/// What is not known by then is not waited for.
const PATIENCE_NS: u64 = 60_000_000_000;
/// Of what was read is remembered.
const MEMORY_NS: u64 = 180_000_000_000;
/// Others have lost it: of what is gained, and of what they had.
const OF_GAIN: f64 = 0.5;
const OF_THEIRS: f64 = 0.1;
/// Of what others read on average: beyond, a raise is looked at even where it is not known what they read before it.
const MUCH_MORE: f64 = 1.5;

/// Bytes a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rates {
    own: f64,
    others: f64,
    jobs: u32,
}

impl Rates {
    /// How much the job reads for what the others do on average, up to which it is the job's own share.
    fn of_share(&self) -> f64 {
        self.own * f64::from(self.jobs) / self.others.max(1.0)
    }

    /// Why what is gained since `self` is others', as a sentence.
    fn taken(&self, with: &Rates) -> Option<String> {
        let (gained, lost) = (with.own - self.own, self.others - with.others);
        let is_theirs = lost > OF_GAIN * gained && lost > OF_THEIRS * self.others;
        (gained > 0.0 && is_theirs && with.of_share() > 1.0).then(|| {
            format!(
                "other jobs lose it: they read {} less from the same storage, of which this job reads {} more",
                bytes_per_second(lost),
                bytes_per_second(gained)
            )
        })
    }
}

/// What was read in the last windows of a trial, without the raise and with it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Beside([Option<Rates>; 2]);

impl Beside {
    pub(super) fn is_known(&self) -> bool {
        self.0.iter().all(Option::is_some)
    }

    pub(super) fn taken(&self) -> Option<String> {
        let [Some(without), Some(with)] = &self.0 else { return None };
        without.taken(with)
    }
}

#[derive(Debug, Default)]
pub(super) struct Shared {
    /// About one a second.
    seen: VecDeque<(u64, SharedStorage)>,
    /// Raises that were kept, and not looked at yet; the oldest first.
    kept: Vec<(u64, Proposal)>,
    /// What was read before the first of them.
    before: Option<Rates>,
    /// Others lost by one: the next is tried in long windows.
    slowly: bool,
}

impl Shared {
    pub(super) fn take(&mut self, now_ns: u64, storage: Option<SharedStorage>) {
        let Some(storage) = storage.filter(|storage| storage.others > 0) else {
            self.seen.clear();
            return;
        };
        if self.seen.back().is_some_and(|(ns, _)| *ns > now_ns) {
            self.seen.clear();
        }
        self.seen.push_back((now_ns, storage));
        while self.seen.front().is_some_and(|(ns, _)| ns + MEMORY_NS < now_ns) {
            self.seen.pop_front();
        }
    }

    /// `None` where it is not known for long enough, or others came or went meanwhile.
    fn rates(&self, from_ns: u64, to_ns: u64) -> Option<Rates> {
        let within = || self.seen.iter().filter(|(ns, _)| (from_ns..=to_ns).contains(ns));
        let ((begin_ns, first), (end_ns, last)) = (within().next()?, within().next_back()?);
        let ns = end_ns.saturating_sub(*begin_ns);
        if ns < SPAN_NS || within().any(|(_, storage)| storage.others != first.others) {
            return None;
        }
        let sum: f64 = within().map(|(_, storage)| storage.others_bytes_per_s as f64).sum();
        let own_bytes = last.own_bytes.saturating_sub(first.own_bytes);
        Some(Rates {
            own: own_bytes as f64 / ns as f64 * 1e9,
            others: sum / within().count() as f64,
            jobs: first.others,
        })
    }

    /// Whether a trial that begins now looks at others in each of its windows.
    pub(super) fn looks(&self) -> bool {
        self.slowly && !self.seen.is_empty()
    }

    /// Others lost by what was tried.
    pub(super) fn lose(&mut self) {
        self.slowly = true;
    }

    /// What is read now, before something is tried. `since_ns`: nothing was turned since.
    pub(super) fn before(&self, since_ns: u64, now_ns: u64) -> Option<Rates> {
        let from_ns = since_ns.saturating_add(LAG_NS).max(now_ns.saturating_sub(PATIENCE_NS));
        self.rates(from_ns, now_ns)
    }

    /// A raise was kept. `before`: what was read before it. `looked`: it is known what others read meanwhile.
    pub(super) fn keep(&mut self, decision: u64, proposal: &Proposal, before: Option<Rates>, looked: bool) {
        if looked {
            self.slowly = false;
        } else if proposal.kind == Kind::Raise && !self.seen.is_empty() {
            if self.kept.is_empty() {
                self.before = before;
            }
            self.kept.push((decision, proposal.clone()));
        }
    }
}

impl Controller {
    /// Looks at what others read in the window of a trial that began at `since_ns`; false: it is to go on until that is known.
    pub(super) fn look_beside(&self, beside: &mut Beside, with: bool, since_ns: u64) -> bool {
        let rates = self.shared.rates(since_ns.saturating_add(LAG_NS), self.now_ns);
        beside.0[usize::from(with)] = rates;
        rates.is_some() || self.shared.seen.is_empty() || self.now_ns > since_ns.saturating_add(PATIENCE_NS)
    }

    /// Puts raises back that were kept, where others read less since; true where it does.
    pub(super) fn gives_others_theirs(&mut self, out: &mut Outcome) -> bool {
        if self.shared.seen.is_empty() {
            self.shared.kept.clear();
        }
        if self.shared.kept.is_empty() {
            return false;
        }
        let Some(with) = self.shared.rates(self.since_ns.saturating_add(LAG_NS), self.now_ns) else {
            return false;
        };
        let (kept, before) = (std::mem::take(&mut self.shared.kept), self.shared.before.take());
        let saw = match before {
            Some(before) => before.taken(&with),
            None => (with.of_share() > MUCH_MORE).then(|| {
                let others = bytes_per_second(with.others / f64::from(with.jobs));
                format!(
                    "this job reads {} and others {others} each from the same storage",
                    bytes_per_second(with.own)
                )
            }),
        };
        let (Some(saw), Some((decision, newest))) = (saw, kept.last()) else { return false };
        let moves: Vec<Move> =
            whole(&kept).iter().filter_map(|turned| turned.what_is_left(&self.job)).collect();
        if moves.is_empty() {
            return false;
        }
        let mut event = audit::about(Act::Undo, *decision, self.now_ns, newest);
        event.saw = saw;
        event.why = "put back, and tried once more in windows that show whether it is that".to_owned();
        out.audit.push(event);
        self.raised.retain(|raised| kept.iter().all(|(_, proposal)| proposal != raised));
        self.shared.lose();
        self.probation = None;
        self.turn_to(*decision, moves, out);
        true
    }
}

/// Of each knob, from what it was before all of these to what it is since.
fn whole(kept: &[(u64, Proposal)]) -> Vec<Move> {
    let mut moves: Vec<Move> = Vec::new();
    for turned in kept.iter().flat_map(|(_, proposal)| &proposal.moves) {
        let is_same =
            |one: &&mut Move| (one.rank, one.loader, &one.knob) == (turned.rank, turned.loader, &turned.knob);
        match moves.iter_mut().find(is_same) {
            Some(known) => known.to = turned.to,
            None => moves.push(turned.clone()),
        }
    }
    moves
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    fn rates(own: f64, others: f64) -> Rates {
        Rates { own, others, jobs: 2 }
    }

    #[test]
    fn what_others_lose_meanwhile_is_no_gain() {
        let taken = rates(10e6, 20e6).taken(&rates(20e6, 10.5e6)).expect("it is");
        assert!(taken.contains("9.5 MB/s less") && taken.contains("10 MB/s more"), "{taken}");
    }

    #[test]
    fn a_gain_that_costs_others_little_is_one() {
        let before = rates(10e6, 20e6);
        assert_eq!(before.taken(&rates(20e6, 20e6)), None);
        assert_eq!(before.taken(&rates(20e6, 17e6)), None);
        // Their own affair.
        assert_eq!(rates(100e6, 200e6).taken(&rates(101e6, 190e6)), None);
        // A larger cache reads less.
        assert_eq!(rates(20e6, 20e6).taken(&rates(10e6, 10e6)), None);
    }

    #[test]
    fn up_to_its_share_a_job_may_have_what_others_had() {
        assert_eq!(rates(10e6, 60e6).taken(&rates(20e6, 50e6)), None);
        assert!(rates(20e6, 60e6).taken(&rates(30e6, 50e6)).is_some());
    }

    #[test]
    fn rates_are_of_seconds_in_which_the_same_jobs_read() {
        let mut shared = Shared::default();
        for second in 0..60 {
            let others = if second < 40 { 2 } else { 3 };
            let storage =
                SharedStorage { own_bytes: second * 1000, others, others_bytes_per_s: 70 + second / 20 };
            shared.take(second * SECOND_NS, Some(storage));
        }
        let rates = |from, to| shared.rates(from * SECOND_NS, to * SECOND_NS);
        assert_eq!(rates(20, 39), Some(Rates { own: 1000.0, others: 71.0, jobs: 2 }));
        assert_eq!(rates(20, 29), None, "too short");
        assert_eq!(rates(30, 50), None, "one more came");
        assert_eq!(rates(40, 59).map(|rates| rates.jobs), Some(3));
        shared.take(60 * SECOND_NS, Some(SharedStorage::default()));
        assert!(shared.seen.is_empty(), "it is alone");
    }
}
