//! A part of a cache that training would not miss goes, and comes back where training misses it.
//!
//! There is no way back and forth as for other knobs: what went has to be read again. So the batches are looked at that are made
//! without it: how many samples of each are read, what a read costs, whether training feels that, whether it waits.

use super::harm::Usual;
use super::probe::{DELTA, Why};
use super::seed::{CACHE, Kind, NO_STALL, Need, Proposal, STALL, seconds};
use super::turn::{Move, Status, Turn, taken_by_another};
use super::useless::{Useless, reads_of};
use super::{Controller, STALE_NS, Work, audit};
use crate::Outcome;
use crate::ranks;
use crate::reads::Reads;
use crate::stats::{self, Figure, Gain};
use stallscope_model::{Act, Phase};
use stallscope_units::percent_in_words;

/// Steps between two looks, and looks: at least, and at most.
const LOOK_STEPS: u32 = 48;
const FEWEST_LOOKS: u32 = 2;
const MOST_LOOKS: u32 = 16;
/// Training that does not wait may wait so much more, as a share; where reads are not seen, so much.
const WAIT: f64 = 0.01;
const HARDLY: f64 = 0.0025;
/// Training time after which it has to be clear.
const LONGEST_NS: u64 = 1_800_000_000_000;

/// Under way.
#[derive(Clone, Debug)]
pub(super) struct GivingBack {
    decision: u64,
    proposal: Proposal,
    before: Figure,
    reads_before: Option<Reads>,
    stall_before: f64,
    /// Loss that it may cost.
    allowance: f64,
    /// What the steps of each rank were like before.
    usual: Vec<(u32, Usual)>,
    stage: Stage,
    spent_ns: u64,
}

#[derive(Clone, Debug)]
enum Stage {
    Turning(Turn),
    Looking { since_ns: u64, looks: u32, steps: u32 },
}

enum Judged {
    Open,
    Keep(Gain),
    Undo(Option<Gain>, Why),
}

impl Controller {
    /// Gives a part of the cache back that training would not miss. True where it has begun.
    pub(super) fn give_back(&mut self, out: &mut Outcome) -> bool {
        self.note_read_cost();
        let mut holds = Vec::new();
        let found = self.useless_cache(&mut holds);
        holds.into_iter().for_each(|why| self.hold("useless cache", String::new(), why, out));
        let Some(Useless { proposal, saw, before, reads, stall }) = found else { return false };
        let (since_ns, settle) = (self.since_ns, self.settle);
        let usual = self
            .job
            .training()
            .filter_map(|rank| Some((rank.rank, Usual::of(&rank.pace.since(since_ns, settle))?)));
        let usual = usual.collect();
        self.decisions += 1;
        out.audit.extend(audit::asked(Act::Release, self.decisions, self.now_ns, &proposal, &saw));
        let turn = Turn { moves: proposal.moves.clone(), asked_ns: self.now_ns };
        out.actions.extend(turn.actions(self.decisions));
        self.work = Work::GivingBack(Box::new(GivingBack {
            decision: self.decisions,
            proposal,
            before,
            reads_before: reads,
            stall_before: stall,
            allowance: (DELTA / 2.0 - self.given_away).max(0.0),
            usual,
            stage: Stage::Turning(turn),
            spent_ns: 0,
        }));
        true
    }

    /// What became of it, once a second.
    pub(super) fn go_on_giving_back(&mut self, mut giving: GivingBack, elapsed_ns: u64, out: &mut Outcome) {
        let moves = &giving.proposal.moves;
        if let Some(gone) = moves.iter().find(|turned| turned.find(&self.job).is_none()) {
            let why = format!("rank {} or its knob {} is gone", gone.rank, gone.knob);
            return self.undo_giving_back(giving, None, String::new(), why, out);
        }
        if let Some(by) = moves.iter().find_map(|turned| taken_by_another(turned, &self.job)) {
            let why = format!("{by} turned the knob meanwhile: theirs stays");
            return self.undo_giving_back(giving, None, String::new(), why, out);
        }
        if let Stage::Turning(turn) = &giving.stage {
            match turn.status(&self.job, self.now_ns) {
                Status::InForce => {
                    let mut event =
                        audit::about(Act::Applied, giving.decision, self.now_ns, &giving.proposal);
                    event.why = format!("{}; measured from here", audit::moves(&giving.proposal));
                    out.audit.push(event);
                    self.supply.turned(self.now_ns);
                    giving.stage = Stage::Looking { since_ns: self.now_ns, looks: 0, steps: LOOK_STEPS };
                }
                Status::Refused(why) => {
                    let mut event =
                        audit::about(Act::Refused, giving.decision, self.now_ns, &giving.proposal);
                    event.why = why;
                    out.audit.push(event);
                    let now_ns = self.now_ns;
                    self.patience(&giving.proposal).leave_alone(now_ns);
                    return self.put_back_into_cache(&giving, out);
                }
                Status::Waiting(_) | Status::Taken(_) | Status::Gone(_) => {}
            }
            self.work = Work::GivingBack(Box::new(giving));
            return;
        }
        let training = self.job.training().all(|rank| rank.phase == Some(Phase::Training));
        if self.blind().is_some() || !training {
            self.work = Work::GivingBack(Box::new(giving));
            return;
        }
        giving.spent_ns = giving.spent_ns.saturating_add(elapsed_ns.min(STALE_NS));
        let Stage::Looking { since_ns, .. } = giving.stage else { return };
        let harmed = giving
            .usual
            .iter()
            .find_map(|(rank, usual)| usual.harmed(&self.job.ranks.get(rank)?.pace.since(since_ns, 0), true));
        if let Some(why) = harmed {
            let why = format!("{}: {why}", audit::why(Why::Worse));
            return self.undo_giving_back(giving, None, String::new(), why, out);
        }
        match self.judge_giving_back(&mut giving) {
            (Judged::Open, _) if giving.spent_ns > LONGEST_NS => {
                let why = "it took too long to see what it does".to_owned();
                self.undo_giving_back(giving, None, String::new(), why, out);
            }
            (Judged::Open, _) => self.work = Work::GivingBack(Box::new(giving)),
            (Judged::Keep(gain), saw) => self.keep_giving_back(&giving, gain, saw, out),
            (Judged::Undo(gain, why), saw) => {
                self.undo_giving_back(giving, gain, saw, audit::why(why).to_owned(), out);
            }
        }
    }

    fn judge_giving_back(&self, giving: &mut GivingBack) -> (Judged, String) {
        let nothing = (Judged::Open, String::new());
        let Stage::Looking { since_ns, looks, steps } = &mut giving.stage else { return nothing };
        let settle = self.job.drain();
        let groups = self.job.groups(*since_ns, settle);
        let seen = groups.iter().map(|rank| crate::window::steps(rank)).min().unwrap_or(0);
        let figure = ranks::figure(&groups, u32::MAX).filter(|_| seen >= *steps);
        let rank = self.job.training().find(|rank| rank.cache().is_some());
        let (Some(figure), Some(rank)) = (figure, rank) else { return nothing };
        (*looks, *steps) = (*looks + 1, seen + LOOK_STEPS);
        let (since_ns, looks) = (*since_ns, *looks);
        let alpha = self.patience.get(&(CACHE, Kind::Release)).cloned().unwrap_or_default().alpha()
            / f64::from(MOST_LOOKS);
        let pace = stats::compare(&[giving.before, figure], self.restless, alpha);
        let stall = ranks::worst_stall(&groups);
        let now = reads_of(rank, since_ns);
        let need = Need::of(rank, since_ns, settle);
        // Were all as before, batches would take so much less.
        let felt = now.zip(giving.reads_before).and_then(|(now, before)| {
            if now.reads <= before.reads {
                return Some(Gain { value: 0.0, low: 0.0, high: 0.0 });
            }
            let longer = self.cache_worth.priced(now).longer(before.reads, None, alpha)?;
            let need = need?;
            let loss = |longer: f64| match giving.stall_before < NO_STALL {
                true => (need.step_ns(longer) / need.step_ns(0.0).max(1.0) - 1.0).min(0.0),
                false => longer.min(0.0),
            };
            Some(Gain { value: loss(longer.value), low: loss(longer.low), high: loss(longer.high) })
        });
        let saw = saw(giving, now.as_ref(), stall, &figure);
        let calm = giving.stall_before < STALL;
        let waits = calm && stall > giving.stall_before + WAIT;
        let slower = |limit: f64| pace.is_some_and(|pace| pace.high < limit);
        let alike = pace.is_none_or(|pace| pace.value >= -DELTA / 2.0);
        let judged = match felt {
            _ if waits => Judged::Undo(felt.or(pace), Why::Waits),
            _ if slower(-DELTA / 2.0) => Judged::Undo(pace, Why::Worse),
            Some(felt) if felt.high < -giving.allowance => Judged::Undo(Some(felt), Why::Worse),
            _ if looks < FEWEST_LOOKS => Judged::Open,
            Some(felt) if felt.low >= -giving.allowance && alike => Judged::Keep(felt),
            // How batches were made is not seen, or none is left that tells what a read costs.
            None if calm && stall <= giving.stall_before + HARDLY && alike => {
                Judged::Keep(Gain { value: 0.0, low: -HARDLY, high: 0.0 })
            }
            _ if looks >= MOST_LOOKS => Judged::Undo(felt.or(pace), Why::NotClear),
            _ => Judged::Open,
        };
        (judged, saw)
    }

    fn keep_giving_back(&mut self, giving: &GivingBack, gain: Gain, saw: String, out: &mut Outcome) {
        let mut event = audit::about(Act::Keep, giving.decision, self.now_ns, &giving.proposal);
        event.saw = saw;
        event.measured = audit::measured(gain);
        event.why = format!("the job is as fast without: {}", audit::gain(gain));
        out.audit.push(event);
        self.patience(&giving.proposal).keep(giving.proposal.step());
        self.given_away += (-gain.value).max(0.0);
        self.settle_given_back(giving, out);
    }

    /// What is gone stays gone: nothing of it can be taken back any more where memory gets short.
    fn settle_given_back(&mut self, giving: &GivingBack, out: &mut Outcome) {
        self.cache_worth.soon = true;
        let gone = |turned: &Move| {
            giving.proposal.moves.iter().any(|given| {
                (given.rank, given.loader) == (turned.rank, turned.loader) && given.to <= turned.from
            })
        };
        self.raised.retain(|raised| raised.knob != CACHE || !raised.moves.iter().all(gone));
        self.drift.cache_turned();
        self.turn_to(giving.decision, giving.proposal.moves.clone(), out);
    }

    fn undo_giving_back(
        &mut self,
        giving: GivingBack,
        gain: Option<Gain>,
        saw: String,
        why: String,
        out: &mut Outcome,
    ) {
        let mut event = audit::about(Act::Undo, giving.decision, self.now_ns, &giving.proposal);
        event.saw = saw;
        event.measured = gain.and_then(audit::measured);
        event.why = why;
        if let Stage::Looking { since_ns, .. } = giving.stage {
            let cost = |(rank, usual): &(u32, Usual)| {
                Some(usual.cost_ns(&self.job.ranks.get(rank)?.pace.since(since_ns, 0)))
            };
            let cost_ns = giving.usual.iter().filter_map(cost).fold(0.0, f64::max);
            self.count_cost(cost_ns, &mut event);
        }
        out.audit.push(event);
        let jitter = self.random.unit();
        self.give_up(&giving.proposal, jitter);
        self.cache_worth.soon = false;
        self.put_back_into_cache(&giving, out);
    }

    /// What is in force of it; a value that somebody else has set stays.
    fn put_back_into_cache(&mut self, giving: &GivingBack, out: &mut Outcome) {
        self.drift.cache_turned();
        let ours =
            giving.proposal.moves.iter().filter(|turned| taken_by_another(turned, &self.job).is_none());
        // What was asked for and is not seen yet comes into force otherwise.
        let moves = ours.filter(|turned| turned.find(&self.job).is_some()).map(Move::back).collect();
        self.turn_to(giving.decision, moves, out);
    }

    /// What is being given back ends without a verdict.
    pub(super) fn drop_giving_back(&mut self, giving: GivingBack, why: &str, out: &mut Outcome) {
        self.undo_giving_back(giving, None, String::new(), why.to_owned(), out);
    }

    /// More than that has to go while a part of the cache goes: it stays gone, proven or not. `short`: what there is too little of.
    pub(super) fn give_back_for_good(
        &mut self,
        giving: &GivingBack,
        over: &str,
        short: &str,
        out: &mut Outcome,
    ) {
        let mut event = audit::about(Act::Keep, giving.decision, self.now_ns, &giving.proposal);
        event.saw = over.to_owned();
        event.why = format!("{short}, so what was given back stays so, proven or not");
        out.audit.push(event);
        self.settle_given_back(giving, out);
    }
}

fn saw(giving: &GivingBack, now: Option<&Reads>, stall: f64, figure: &Figure) -> String {
    let pace = format!(
        "{} before and {} without; waiting for data {} before and {} without",
        audit::pace(&giving.before),
        audit::pace(figure),
        percent_in_words(giving.stall_before),
        percent_in_words(stall)
    );
    match now.zip(giving.reads_before) {
        Some((now, before)) => format!(
            "{:.1} samples of a batch were read in place of {:.1}, and a batch takes {}; {pace}",
            now.reads,
            before.reads,
            seconds(now.batch_ns)
        ),
        None => pace,
    }
}
