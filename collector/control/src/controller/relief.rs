//! What is given back at once, where memory gets short or others need the cores.

use super::seed::{CACHE, Kind, Proposal, WORKERS};
use super::turn::{Move, Turn};
use super::{Controller, RELIEF_NS, RELIEF_SEEN_NS, Work, audit};
use crate::Outcome;
use crate::budget::Pressed;
use crate::stats::Gain;
use stallscope_model::Act;

impl Controller {
    /// Gives back at once what was raised, while memory is short or a budget is exceeded. True when that is all there
    /// is to do now.
    pub(super) fn relieve(&mut self, out: &mut Outcome) -> bool {
        let ours = matches!(&self.work, Work::Probing(probe) if probe.proposal.kind != Kind::Release);
        let pressed = self.headroom.pressed(&self.job);
        // These are the script's own affair where nothing was raised here.
        let raised = ours || !self.raised.is_empty();
        let outgrown = || self.headroom.outgrown(&self.job).filter(|_| raised);
        let exceeded = || self.headroom.exceeded(&self.job).filter(|_| raised);
        let is_pressed = pressed.is_some();
        let Some(Pressed { why: over, lags }) = pressed
            .or_else(|| outgrown().map(|why| Pressed { why, lags: false }))
            .or_else(|| exceeded().map(|why| Pressed { why, lags: true }))
        else {
            return false;
        };
        if ours && let Work::Probing(probe) = std::mem::take(&mut self.work) {
            self.relieved_ns = Some(self.now_ns);
            let mut probe = probe;
            probe.note_memory(&self.job);
            if is_pressed && probe.own_bytes > 0 {
                self.costs.ceiling_bytes = Some(probe.most_memory_bytes);
            }
            self.learn(&probe);
            self.give_up(&probe.proposal, 1.0);
            self.put_back(*probe, over.clone(), out);
            self.give_back_cache(!lags, &over, out);
            self.rollback(out);
            return true;
        }
        if let Work::GivingBack(giving) = &self.work {
            let giving = giving.clone();
            self.give_back_for_good(&giving, &over, "memory is short", out);
            return true;
        }
        if let Work::Swapping(swap) = &self.work {
            let swap = swap.clone();
            self.relieved_ns = Some(self.now_ns);
            self.drop_swap_for_memory(*swap, &over, out);
            self.rollback(out);
            return true;
        }
        if !matches!(self.work, Work::Watching) {
            return false;
        }
        // Again and again until it is enough; `since_ns`: when the last turn was in force.
        let (from_ns, wait_ns) =
            if lags { (self.relieved_ns, RELIEF_NS) } else { (Some(self.since_ns), RELIEF_SEEN_NS) };
        if self.relieved_ns.is_some()
            && from_ns.is_some_and(|from_ns| self.now_ns < from_ns.saturating_add(wait_ns))
        {
            return true;
        }
        let Some(last) = self.raised.pop() else {
            self.hold(
                "pressure",
                over,
                "nothing of it was raised here, so nothing can be given back".to_owned(),
                out,
            );
            return true;
        };
        self.relieved_ns = Some(self.now_ns);
        if last.knob == CACHE && !lags {
            let unproven = self.growth.as_ref().filter(|growth| growth.proposal == last);
            let decision = unproven.map_or(self.decisions + 1, |growth| growth.decision);
            self.raised.push(last);
            self.turn_to(decision, Vec::new(), out);
            self.rollback(out);
        } else {
            let decision = self.decision_of(&last);
            self.take_back(decision, &last, over.clone(), None, out);
        }
        self.give_back_cache(!lags, &over, out);
        true
    }

    /// Takes back workers that were added, the newest first, while others may wait for the cores that they have. True when that is all
    /// there is to do now. Nothing went wrong with them, so that it does not count as what had to be taken back in a hurry.
    pub(super) fn yield_cores(&mut self, out: &mut Outcome) -> bool {
        let Some(why) = self.headroom.crowds(&self.job) else { return false };
        let adds_workers = |proposal: &Proposal| proposal.knob == WORKERS && proposal.kind == Kind::Raise;
        if matches!(&self.work, Work::Probing(probe) if adds_workers(&probe.proposal))
            && let Work::Probing(mut probe) = std::mem::take(&mut self.work)
        {
            self.relieved_ns = Some(self.now_ns);
            probe.note_memory(&self.job);
            self.learn(&probe);
            self.give_up(&probe.proposal, 1.0);
            self.put_back(*probe, why, out);
            return true;
        }
        let newest = self.raised.iter().rposition(adds_workers);
        let Some(newest) = newest.filter(|_| matches!(self.work, Work::Watching)) else { return false };
        // How many are idle is a mean over seconds, too.
        if self.relieved_ns.is_some_and(|ns| self.now_ns < ns.saturating_add(RELIEF_NS)) {
            return false;
        }
        self.relieved_ns = Some(self.now_ns);
        let last = self.raised.remove(newest);
        let decision = self.decision_of(&last);
        self.revert(decision, &last, why, None, out);
        true
    }

    /// The number of the decision that `raised` is taken back by: its own while it is unproven.
    fn decision_of(&mut self, raised: &Proposal) -> u64 {
        match self.growth.take_if(|growth| growth.proposal == *raised) {
            Some(growth) => growth.decision,
            None => {
                self.decisions += 1;
                self.decisions
            }
        }
    }

    /// Together with what is given back now, so that nothing waits for workers that leave: a cache's memory is free within
    /// a second. A raise under way, and `all` that the cache was given where memory falls.
    fn give_back_cache(&mut self, all: bool, over: &str, out: &mut Outcome) {
        let unproven = self.growth.as_ref().map(|growth| growth.proposal.clone());
        let (back, stay): (Vec<_>, Vec<_>) = std::mem::take(&mut self.raised)
            .into_iter()
            .partition(|raised| raised.knob == CACHE && (all || Some(raised) == unproven.as_ref()));
        self.raised = stay;
        let mut moves: Vec<Move> = Vec::new();
        for raised in back.iter().rev() {
            let mut event = audit::about(Act::Undo, self.decision_of(raised), self.now_ns, raised);
            event.saw = over.to_owned();
            event.why = format!("put back at once: {}", audit::moves(raised));
            out.audit.push(event);
            for turned in &raised.moves {
                // An older raise ends where a newer one began.
                match moves
                    .iter_mut()
                    .find(|newer| (newer.rank, newer.loader) == (turned.rank, turned.loader))
                {
                    Some(newer) if newer.to == turned.to => newer.to = turned.from,
                    Some(_) => {}
                    None => moves.extend(turned.what_is_left(&self.job)),
                }
            }
            self.give_up(raised, 1.0);
        }
        if let Work::Settling(decision, turn) = &mut self.work {
            let more = Turn { moves, asked_ns: self.now_ns };
            out.actions.extend(more.actions(*decision));
            turn.moves.extend(more.moves);
        }
    }

    /// Asks in a hurry for what was before `proposal`.
    pub(super) fn take_back(
        &mut self,
        decision: u64,
        proposal: &Proposal,
        why: String,
        measured: Option<Gain>,
        out: &mut Outcome,
    ) {
        self.revert(decision, proposal, why, measured, out);
        self.rollback(out);
    }

    /// Asks for what was before `proposal`, where its values, or a part of them, are still in force.
    fn revert(
        &mut self,
        decision: u64,
        proposal: &Proposal,
        why: String,
        measured: Option<Gain>,
        out: &mut Outcome,
    ) {
        let mut event = audit::about(Act::Undo, decision, self.now_ns, proposal);
        event.saw = why;
        event.measured = measured.and_then(audit::measured);
        event.why = format!("put back at once: {}", audit::moves(proposal));
        out.audit.push(event);
        let moves: Vec<Move> =
            proposal.moves.iter().filter_map(|turned| turned.what_is_left(&self.job)).collect();
        self.give_up(proposal, 1.0);
        self.turn_to(decision, moves, out);
    }

    pub(super) fn rollback(&mut self, out: &mut Outcome) {
        if self.rollbacks.add(self.now_ns) {
            let mut event = audit::line(Act::Freeze, 0, self.now_ns);
            event.saw = "three changes had to be taken back at once within an hour".to_owned();
            event.why = "nothing more is tried for an hour; what was proven stays".to_owned();
            out.audit.push(event);
        }
    }
}
