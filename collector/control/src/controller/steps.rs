//! One step of acting: what is under way goes on or ends, or something new begins.

use super::probe::{self, plan};
use super::seed::{Kind, Proposal, STALL, seconds};
use super::turn::{Move, Status, Turn};
use super::{Address, Controller, RELIEF_NS, STALE_NS, START_NS, Work, audit};
use crate::Outcome;
use crate::ranks;
use stallscope_model::{Act, CONTROLLED_KNOBS, KnobState, Phase};

/// Waiting for data beyond what there was when a change was kept, as a share.
const WORSE: f64 = 0.03;

impl Controller {
    pub(super) fn act(&mut self, elapsed_ns: u64, out: &mut Outcome) {
        if self.relieve(out) || self.yield_cores(out) || self.fit_caches(out) {
            return;
        }
        if self.blind().is_none() && self.job.training().all(|rank| rank.phase == Some(Phase::Training)) {
            self.trained_ns = self.trained_ns.saturating_add(elapsed_ns.min(STALE_NS));
        }
        let drifted = self.look_for_drift(out);
        self.go_on_saving(out);
        let rises = self.go_on_growing(matches!(self.work, Work::Watching), out);
        match std::mem::take(&mut self.work) {
            Work::Settling(decision, turn) => self.settle(decision, turn, out),
            Work::Probing(probe) if drifted => {
                let why = "the job does other work than when it began, so its windows cannot be compared";
                self.put_back(*probe, why.to_owned(), out);
            }
            Work::Probing(probe) if rises => {
                let why = "the larger cache is being used from now on, so its windows cannot be compared";
                self.put_back(*probe, why.to_owned(), out);
            }
            Work::Probing(probe) => {
                self.go_on(*probe, elapsed_ns, out);
                // What the probe has just asked for is enough for one second.
                let asks = matches!(self.work, Work::Probing(_)) && out.actions.is_empty();
                if asks && !self.makes_way(out) {
                    self.consider_cache(out);
                }
            }
            Work::TestingStorage(test) => self.go_on_testing_storage(*test, drifted, out),
            Work::GivingBack(giving) if drifted => {
                let why = "the job does other work than when it began, so that what it does without cannot be compared";
                self.drop_giving_back(*giving, why, out);
            }
            Work::GivingBack(giving) => self.go_on_giving_back(*giving, elapsed_ns, out),
            Work::Swapping(swap) if drifted => {
                let why = "the job does other work than when it began, so that it cannot be compared";
                self.drop_swap(*swap, why, out);
            }
            Work::Swapping(swap) => self.go_on_swapping(*swap, elapsed_ns, out),
            Work::Watching => self.watch(out),
        }
    }

    /// Why what is seen is not good enough to decide on.
    pub(super) fn blind(&self) -> Option<(&'static str, String)> {
        let Some(newest) = self.job.training().map(|rank| rank.seen_until_ns).min() else {
            let early = self.began_ns.is_none_or(|began| self.now_ns < began.saturating_add(START_NS));
            return Some((if early { "" } else { "no steps" }, "no training step was seen".to_owned()));
        };
        let late_ns = self.now_ns.saturating_sub(newest);
        if late_ns > STALE_NS {
            let late = seconds(late_ns as f64);
            return Some(("stale", format!("what the job does is known only up to {late} ago")));
        }
        let usable = |rank: &ranks::Rank| rank.knobs.iter().any(|knob| knob.state != KnobState::Unavailable);
        if !self.job.ranks.values().any(usable) {
            return Some(("no knobs", "the job has no knob that can be turned".to_owned()));
        }
        None
    }

    pub(super) fn turn_to(&mut self, decision: u64, moves: Vec<Move>, out: &mut Outcome) {
        let turn = Turn { moves, asked_ns: self.now_ns };
        out.actions.extend(turn.actions(decision));
        self.work = Work::Settling(decision, turn);
    }

    fn settle(&mut self, decision: u64, turn: Turn, out: &mut Outcome) {
        let status = turn.status(&self.job, self.now_ns);
        if let Status::Waiting(_) = status {
            self.work = Work::Settling(decision, turn);
            return;
        }
        if let Status::Refused(why) | Status::Taken(why) | Status::Gone(why) = status {
            let mut event = audit::line(Act::Refused, decision, self.now_ns);
            if let Some(first) = turn.moves.first() {
                audit::of(&mut event, first);
            }
            event.why = why;
            out.audit.push(event);
        }
        self.note_values(out);
        self.settings_changed();
    }

    /// What was measured before cannot be compared with what comes.
    pub(super) fn settings_changed(&mut self) {
        self.since_ns = self.now_ns;
        self.supply.turned(self.now_ns);
        self.settle = self.job.drain();
        self.drift.turned();
        if let Some(probation) = &mut self.probation {
            probation.kept_ns = probation.kept_ns.max(self.now_ns.saturating_sub(STALE_NS));
        }
    }

    /// A knob that somebody else turned is theirs for half an hour.
    pub(super) fn leave_to(&mut self, by: &str, address: &Address, value: u64, out: &mut Outcome) {
        let who = if by.is_empty() { "the script" } else { by };
        self.floors.insert(address.clone(), value);
        self.raised.retain(|proposal| {
            !proposal.moves.iter().any(|turned| {
                (turned.rank, turned.loader, &turned.knob) == (address.0, address.1, &address.2)
            })
        });
        self.leave_growth_to(who, address, out);
        let mut event = audit::line(Act::Hold, 0, self.now_ns);
        (event.rank, event.loader, event.to) = (Some(address.0), address.1, Some(value));
        event.knob.clone_from(&address.2);
        event.saw = format!("{who} set {} to {value}", address.2);
        event.why = format!("it is left at that, and {} is left alone for half an hour", address.2);
        out.audit.push(event);
        for ((knob, _), patience) in &mut self.patience {
            if *knob == address.2 {
                patience.leave_alone(self.now_ns);
            }
        }
        for knob in CONTROLLED_KNOBS.into_iter().filter(|knob| *knob == address.2) {
            for kind in [Kind::Raise, Kind::Ease, Kind::Shift, Kind::Release, Kind::Swap] {
                self.patience.entry((knob, kind)).or_default().leave_alone(self.now_ns);
            }
        }
    }

    pub(super) fn patience(&mut self, proposal: &Proposal) -> &mut super::Patience {
        self.patience.entry((proposal.knob, proposal.kind)).or_default()
    }

    pub(super) fn give_up(&mut self, proposal: &Proposal, jitter: f64) {
        let now_ns = self.now_ns;
        self.patience(proposal).undo(proposal.step(), now_ns, jitter);
    }

    fn watch(&mut self, out: &mut Outcome) {
        self.note_values(out);
        if !matches!(self.work, Work::Watching) {
            return;
        }
        if let Some((topic, why)) = self.blind() {
            self.hold(topic, String::new(), why, out);
            return;
        }
        let waits = |rank: &ranks::Rank| rank.recent(self.since_ns, self.settle, STALE_NS).stall_share();
        if self.job.training().map(waits).fold(0.0, f64::max) > STALL / 2.0 {
            self.waited_ns = self.now_ns;
        }
        let training = self.job.training().all(|rank| rank.phase == Some(Phase::Training));
        if !training {
            return;
        }
        // A cache fills for longer than a doubt about the last change lasts.
        let doubtful = self.fails_probation(out);
        if self.rollbacks.frozen(self.now_ns) || !matches!(self.work, Work::Watching) {
            return;
        }
        if self.gives_others_theirs(out) {
            return;
        }
        if self.relieved_ns.is_some_and(|relieved_ns| self.now_ns < relieved_ns.saturating_add(RELIEF_NS)) {
            return;
        }
        self.consider_interval(out);
        if self.judges_growth() || self.consider_cache(out) || doubtful {
            return;
        }
        let drain_now = self.job.drain();
        let seen_enough = |clear: bool| {
            plan(&self.job, self.since_ns, self.settle, [drain_now; 2], probe::AIM, clear).is_some()
        };
        if !seen_enough(false) {
            let clear = if seen_enough(true) { self.pick_clear() } else { None };
            if let Some((proposal, saw)) = clear {
                self.try_out(proposal, saw, out);
            }
            return;
        }
        match self.pick(out) {
            Some((proposal, saw)) => match self.too_dear(&proposal) {
                Some(why) => self.hold("too dear", proposal.why, why, out),
                None => self.try_out(proposal, saw, out),
            },
            None if self.swap(out) || self.give_back(out) => {}
            None => self.test_storage(out),
        }
    }

    /// A kept change that turned bad is put back: training waits much more than when it was proven, and is slower than
    /// it was without, for two windows. True, too, while it looks like that and is not sure.
    fn fails_probation(&mut self, out: &mut Outcome) -> bool {
        let Some(probation) = self.probation.take() else { return false };
        if probation.is_over(self.now_ns) {
            return false;
        }
        let groups = self.job.groups(self.since_ns.max(probation.kept_ns), self.settle);
        let seen = groups.iter().map(|rank| crate::window::steps(rank)).min().unwrap_or(0);
        let stall = ranks::worst_stall(&groups);
        let figure = ranks::figure(&groups, 2 * probation.window_steps);
        let gain = figure
            .and_then(|figure| crate::stats::compare(&[probation.before, figure], probation.restless, 0.01));
        let bad = gain.is_some_and(|gain| gain.high < -probe::DELTA);
        let (seen, doubtful) = (seen >= 2 * probation.window_steps, stall >= probation.stall_with + WORSE);
        if !seen || !doubtful || !bad {
            self.probation = Some(probation);
            // Another change on top of it would hide which of the two it was.
            return doubtful && gain.is_none_or(|gain| gain.value < 0.0);
        }
        let why = format!(
            "training waits {} now, and {} when this was kept",
            stallscope_units::percent_in_words(stall),
            stallscope_units::percent_in_words(probation.stall_with)
        );
        self.raised.retain(|raised| *raised != probation.proposal);
        self.take_back(probation.decision, &probation.proposal, why, gain, out);
        true
    }
}
