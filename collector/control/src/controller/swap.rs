//! Memory that is full and worth more elsewhere: workers make way for a larger cache, or a part of the cache for workers.
//!
//! What gives goes first, and what takes is asked for once the memory is free. Both are one decision: they are proven together by
//! the pace before and after, or undone together. Which change is worth trying is in [`super::trade`].

use super::harm::Usual;
use super::probe::{DELTA, Why};
use super::seed::{Kind, Proposal, WORKERS};
use super::turn::{Move, Status, Turn, taken_by_another};
use super::{BLIND_NS, Controller, STALE_NS, Work, audit};
use crate::Outcome;
use crate::ranks;
use crate::stats::{self, Figure, Gain};
use stallscope_model::{Act, CacheUses, Phase};
use stallscope_units::percent_in_words;

/// What gave has so long to free its memory.
const FREE_NS: u64 = 120_000_000_000;
/// Of the rise in hits that was expected, as much as has to be there before it is judged.
const RISEN: f64 = 0.5;
/// Draws, in passes over the data, after which a larger cache must have shown.
const PASSES: f64 = 2.2;
/// Steps between two looks, and the most looks: there is no way back and forth, so that it takes many steps.
const LOOK_STEPS: u32 = 64;
const MOST_LOOKS: u32 = 16;
/// What it has cost is added up in pieces of this length, as steps are not remembered for as long as a cache may take to fill.
const PIECE_NS: u64 = 60_000_000_000;
/// Training time after which it has to be clear.
const LONGEST_NS: u64 = 1_800_000_000_000;

/// What of a larger cache is waited for before it is judged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hits {
    /// Share of the draws that saved a read, and by how much it is expected to rise.
    pub(super) before: f64,
    pub(super) rise: f64,
    /// Draws of one pass over the data.
    pub(super) pass_draws: f64,
}

/// Under way.
#[derive(Clone, Debug)]
pub(super) struct Swap {
    decision: u64,
    proposal: Proposal,
    before: Figure,
    /// `None` where workers take: what they do shows at once.
    hits: Option<Hits>,
    usual: Vec<(u32, Usual)>,
    /// Training time that it may cost until it is kept.
    most_cost_ns: f64,
    /// Since when what gave is in force.
    given_ns: u64,
    /// What training lost to it so far, and until when that is added up.
    cost_ns: f64,
    added_up: (f64, u64),
    spent_ns: u64,
    stage: Stage,
}

#[derive(Clone, Debug)]
enum Stage {
    /// What gives is on its way.
    Giving(Turn),
    /// It is in force, and its memory is not free yet.
    Freeing,
    /// What takes is on its way.
    Taking(Turn),
    /// With the cumulative uses as the cache was raised.
    Filling(Hits, CacheUses),
    Used {
        since_ns: u64,
        looks: u32,
        steps: u32,
    },
}

enum Judged {
    Open,
    Keep(Gain),
    Undo(Gain, Why),
}

/// How one that does not stay ends.
struct Ending {
    act: Act,
    gain: Option<Gain>,
    saw: String,
    why: String,
    /// What of it is put back.
    back: Vec<Move>,
}

impl Swap {
    fn gives(&self) -> Vec<Move> {
        self.proposal.moves.iter().filter(|turned| turned.to < turned.from).cloned().collect()
    }

    fn takes(&self) -> Vec<Move> {
        self.proposal.moves.iter().filter(|turned| turned.to > turned.from).cloned().collect()
    }

    /// What was asked for so far.
    fn asked(&self) -> Vec<Move> {
        match self.stage {
            Stage::Giving(_) | Stage::Freeing => self.gives(),
            _ => self.proposal.moves.clone(),
        }
    }
}

impl Controller {
    /// Begins to move memory from one knob to another, where that is expected to gain. True where it has begun.
    pub(super) fn swap(&mut self, out: &mut Outcome) -> bool {
        self.note_read_cost();
        let Some(trade) = self.pick_trade() else { return false };
        let (since_ns, settle) = (self.since_ns, self.settle);
        let usual = self
            .job
            .training()
            .filter_map(|rank| Some((rank.rank, Usual::of(&rank.pace.since(since_ns, settle))?)))
            .collect();
        self.decisions += 1;
        out.audit.extend(audit::asked(
            Act::Request,
            self.decisions,
            self.now_ns,
            &trade.proposal,
            &trade.saw,
        ));
        let mut swap = Swap {
            decision: self.decisions,
            proposal: trade.proposal,
            before: trade.before,
            hits: trade.hits,
            usual,
            most_cost_ns: self.affordable_ns(),
            given_ns: self.now_ns,
            cost_ns: 0.0,
            added_up: (0.0, self.now_ns),
            spent_ns: 0,
            stage: Stage::Freeing,
        };
        let turn = Turn { moves: swap.gives(), asked_ns: self.now_ns };
        out.actions.extend(turn.actions(self.decisions));
        swap.stage = Stage::Giving(turn);
        self.work = Work::Swapping(Box::new(swap));
        true
    }

    /// What became of it, once a second.
    pub(super) fn go_on_swapping(&mut self, mut swap: Swap, elapsed_ns: u64, out: &mut Outcome) {
        let moves = &swap.proposal.moves;
        if let Some(gone) = moves.iter().find(|turned| turned.find(&self.job).is_none()) {
            let why = format!("rank {} or its knob {} is gone", gone.rank, gone.knob);
            return self.undo_swap(swap, None, String::new(), why, out);
        }
        if let Some(by) = moves.iter().find_map(|turned| taken_by_another(turned, &self.job)) {
            let why = format!("{by} turned the knob meanwhile: theirs stays");
            return self.undo_swap(swap, None, String::new(), why, out);
        }
        if let Some((topic, why)) = self.blind() {
            self.hold(topic, String::new(), why.clone(), out);
            let since = *self.blind_since_ns.get_or_insert(self.now_ns);
            if self.now_ns.saturating_sub(since) > BLIND_NS {
                self.blind_since_ns = None;
                return self.undo_swap(swap, None, String::new(), why, out);
            }
            self.work = Work::Swapping(Box::new(swap));
            return;
        }
        self.blind_since_ns = None;
        if let Stage::Giving(turn) | Stage::Taking(turn) = &swap.stage {
            match turn.status(&self.job, self.now_ns) {
                Status::InForce => self.swap_in_force(&mut swap, out),
                Status::Refused(why) => return self.refused_swap(swap, why, out),
                Status::Waiting(_) | Status::Taken(_) | Status::Gone(_) => {}
            }
            self.work = Work::Swapping(Box::new(swap));
            return;
        }
        if !self.job.training().all(|rank| rank.phase == Some(Phase::Training)) {
            self.work = Work::Swapping(Box::new(swap));
            return;
        }
        swap.spent_ns = swap.spent_ns.saturating_add(elapsed_ns.min(STALE_NS));
        self.add_up(&mut swap);
        if swap.cost_ns > swap.most_cost_ns {
            let why = format!("{}, by more than what trying it may cost", audit::why(Why::Worse));
            return self.undo_swap(swap, None, String::new(), why, out);
        }
        if swap.spent_ns > LONGEST_NS {
            let why = "it took too long to see what it does".to_owned();
            return self.undo_swap(swap, None, String::new(), why, out);
        }
        match &mut swap.stage {
            Stage::Giving(_) | Stage::Taking(_) => {}
            Stage::Freeing => return self.take_what_is_free(swap, out),
            Stage::Filling(hits, begun) => {
                let reused = self.draws.recent().and_then(|recent| recent.share(recent.reuses()));
                let drawn = self.job.cache_uses().since(begun).draws() as f64;
                if reused.is_some_and(|reused| reused >= hits.before + RISEN * hits.rise) {
                    swap.stage = Stage::Used { since_ns: self.now_ns, looks: 0, steps: LOOK_STEPS };
                } else if drawn > PASSES * hits.pass_draws {
                    let why = format!(
                        "the larger cache saves the reads of {} of the samples, and the smaller one did of {}",
                        percent_in_words(reused.unwrap_or(0.0)),
                        percent_in_words(hits.before)
                    );
                    return self.undo_swap(swap, None, String::new(), why, out);
                }
            }
            Stage::Used { since_ns, .. } => {
                let since_ns = *since_ns;
                let harmed = swap.usual.iter().find_map(|(rank, usual)| {
                    usual.harmed(&self.job.ranks.get(rank)?.pace.since(since_ns, self.job.drain()), false)
                });
                if let Some(why) = harmed {
                    let why = format!("{}: {why}", audit::why(Why::Worse));
                    return self.undo_swap(swap, None, String::new(), why, out);
                }
                match self.judge_swap(&mut swap) {
                    (Judged::Open, _) => {}
                    (Judged::Keep(gain), saw) => return self.keep_swap(&swap, gain, saw, out),
                    (Judged::Undo(gain, why), saw) => {
                        let why = format!("{}: {}", audit::why(why), audit::gain(gain));
                        return self.undo_swap(swap, Some(gain), saw, why, out);
                    }
                }
            }
        }
        self.work = Work::Swapping(Box::new(swap));
    }

    fn add_up(&self, swap: &mut Swap) {
        let (before, until_ns) = swap.added_up;
        let cost = |(rank, usual): &(u32, Usual)| {
            Some(usual.cost_ns(&self.job.ranks.get(rank)?.pace.since(until_ns, 0)))
        };
        swap.cost_ns = before + swap.usual.iter().filter_map(cost).reduce(f64::max).unwrap_or(0.0);
        if self.now_ns > until_ns.saturating_add(PIECE_NS) {
            swap.added_up = (swap.cost_ns, self.now_ns);
        }
    }

    fn swap_in_force(&mut self, swap: &mut Swap, out: &mut Outcome) {
        self.supply.turned(self.now_ns);
        self.drift.cache_turned();
        if let Stage::Giving(_) = swap.stage {
            (swap.given_ns, swap.added_up) = (self.now_ns, (0.0, self.now_ns));
            swap.stage = Stage::Freeing;
            return;
        }
        let mut event = audit::about(Act::Applied, swap.decision, self.now_ns, &swap.proposal);
        event.why = format!("{}; one for the other", audit::moves(&swap.proposal));
        out.audit.push(event);
        swap.stage = match swap.hits {
            Some(hits) => Stage::Filling(hits, self.job.cache_uses()),
            None => Stage::Used { since_ns: self.now_ns, looks: 0, steps: LOOK_STEPS },
        };
    }

    /// Asks for what takes, once there is the memory for it.
    fn take_what_is_free(&mut self, mut swap: Swap, out: &mut Outcome) {
        let moves = swap.takes();
        let taking = Proposal { moves: moves.clone(), ..swap.proposal.clone() };
        let within = |turned: &Move| {
            turned.find(&self.job).is_some_and(|knob| (knob.min..=knob.max).contains(&turned.to))
        };
        if !moves.iter().all(within) {
            let why = "the knob may no longer be turned as far".to_owned();
            return self.undo_swap(swap, None, String::new(), why, out);
        }
        match self.headroom.fits(&self.job, &taking.deltas()) {
            Ok(()) => {
                let turn = Turn { moves, asked_ns: self.now_ns };
                out.actions.extend(turn.actions(swap.decision));
                swap.stage = Stage::Taking(turn);
                self.work = Work::Swapping(Box::new(swap));
            }
            Err(_) if self.now_ns <= swap.given_ns.saturating_add(FREE_NS) => {
                self.work = Work::Swapping(Box::new(swap));
            }
            Err(why) => self.undo_swap(swap, None, String::new(), why, out),
        }
    }

    fn judge_swap(&self, swap: &mut Swap) -> (Judged, String) {
        let nothing = (Judged::Open, String::new());
        let Stage::Used { since_ns, looks, steps } = &mut swap.stage else { return nothing };
        let groups = self.job.groups(*since_ns, self.job.drain());
        let seen = groups.iter().map(|rank| crate::window::steps(rank)).min().unwrap_or(0);
        let Some(figure) = ranks::figure(&groups, u32::MAX).filter(|_| seen >= *steps) else {
            return nothing;
        };
        (*looks, *steps) = (*looks + 1, seen + LOOK_STEPS);
        let kind = (swap.proposal.knob, Kind::Swap);
        let alpha = self.patience.get(&kind).cloned().unwrap_or_default().alpha() / f64::from(MOST_LOOKS);
        let over = *looks >= MOST_LOOKS;
        let Some(gain) = stats::compare(&[swap.before, figure], self.restless, alpha) else { return nothing };
        let saw = format!("{} before and {} with it", audit::pace(&swap.before), audit::pace(&figure));
        let judged = match gain {
            gain if gain.low >= DELTA => Judged::Keep(gain),
            gain if gain.high < DELTA => Judged::Undo(gain, Why::TooLittle),
            gain if over => Judged::Undo(gain, Why::NotClear),
            _ => Judged::Open,
        };
        (judged, saw)
    }

    fn keep_swap(&mut self, swap: &Swap, gain: Gain, saw: String, out: &mut Outcome) {
        let mut event = audit::about(Act::Keep, swap.decision, self.now_ns, &swap.proposal);
        event.saw = saw;
        event.measured = audit::measured(gain);
        event.why = format!("the gain is proven: {}, of {}", audit::gain(gain), audit::moves(&swap.proposal));
        out.audit.push(event);
        self.patience(&swap.proposal).keep(swap.proposal.step());
        let takes = swap.takes();
        for turned in takes.iter().filter(|turned| turned.knob == WORKERS) {
            let address = (turned.rank, turned.loader, turned.knob.clone());
            self.too_few.insert(address, turned.from);
        }
        // Memory that gets short takes back what took it, and what made way for it stays away.
        self.raised.push(Proposal { kind: Kind::Raise, moves: takes, ..swap.proposal.clone() });
        self.drift.cache_turned();
        self.turn_to(swap.decision, swap.proposal.moves.clone(), out);
    }

    fn undo_swap(&mut self, swap: Swap, gain: Option<Gain>, saw: String, why: String, out: &mut Outcome) {
        let jitter = self.random.unit();
        self.give_up(&swap.proposal, jitter);
        self.end_swap(&swap, Ending { act: Act::Undo, gain, saw, why, back: swap.asked() }, out);
    }

    fn refused_swap(&mut self, swap: Swap, why: String, out: &mut Outcome) {
        let (now_ns, back) = (self.now_ns, swap.asked());
        self.patience(&swap.proposal).leave_alone(now_ns);
        self.end_swap(&swap, Ending { act: Act::Refused, gain: None, saw: String::new(), why, back }, out);
    }

    /// What is being tried ends without a verdict.
    pub(super) fn drop_swap(&mut self, swap: Swap, why: &str, out: &mut Outcome) {
        self.undo_swap(swap, None, String::new(), why.to_owned(), out);
    }

    /// Memory is short: what takes goes at once, and what gave does not come back, as it would need memory again.
    pub(super) fn drop_swap_for_memory(&mut self, swap: Swap, over: &str, out: &mut Outcome) {
        self.give_up(&swap.proposal, 1.0);
        let back = match swap.stage {
            Stage::Giving(_) | Stage::Freeing => Vec::new(),
            _ => swap.takes(),
        };
        let why = "what took the memory is put back at once, and what made way for it stays away".to_owned();
        self.end_swap(&swap, Ending { act: Act::Undo, gain: None, saw: over.to_owned(), why, back }, out);
    }

    fn end_swap(&mut self, swap: &Swap, ending: Ending, out: &mut Outcome) {
        let mut event = audit::about(ending.act, swap.decision, self.now_ns, &swap.proposal);
        event.saw = ending.saw;
        event.measured = ending.gain.and_then(audit::measured);
        event.why = ending.why;
        self.count_cost(swap.cost_ns, &mut event);
        out.audit.push(event);
        self.drift.cache_turned();
        let ours = ending.back.iter().filter(|turned| {
            turned.find(&self.job).is_some() && taken_by_another(turned, &self.job).is_none()
        });
        let moves = ours.map(Move::back).collect();
        self.turn_to(swap.decision, moves, out);
    }
}
