//! Calls of one trainer that have a cause of their own: checkpoints and collectives.

use crate::attribute::{Call, CallKind};
use stallscope_abi::lane::{self, Checkpoint, CheckpointCost, Saver, Stage};
use stallscope_model::{
    Cause, Causes, CheckpointAccount, CheckpointEvent, CheckpointRule, Checkpoints, Phase,
};
use std::collections::VecDeque;

const MAX_CALLS: usize = 4096;
const MAX_EVENTS: usize = 1024;
/// Files of one checkpoint are saved one after the other; from a checkpoint to the next a job trains.
const APART_NS: u64 = 1_000_000_000;

#[derive(Debug, Default)]
pub(crate) struct Calls {
    /// By start, without overlap.
    calls: VecDeque<Call>,
    /// Saves that the trainer waited for, of intervals that are not closed.
    unsettled: VecDeque<Saved>,
    /// Saves in the background, counted lately, so that one that turns out to have been called by another is taken back.
    recent: VecDeque<Saved>,
    pub(crate) checkpoints: Checkpoints,
    /// Until they are taken.
    pub(crate) events: VecDeque<CheckpointEvent>,
    pub(crate) events_dropped: u64,
    pub(crate) dropped: u64,
}

/// What one record adds to the sums.
#[derive(Clone, Copy, Debug)]
struct Saved {
    /// The process that saved.
    pid: u32,
    start_ns: u64,
    end_ns: u64,
    background: bool,
    counted: bool,
    bytes: u64,
}

impl Calls {
    pub(crate) fn all(&self) -> &VecDeque<Call> {
        &self.calls
    }

    pub(crate) fn collective(&mut self, start_ns: u64, end_ns: u64) {
        self.insert(Call { start_ns, end_ns, kind: CallKind::Collective });
    }

    pub(crate) fn checkpoint_cost(&mut self, cost: &CheckpointCost) {
        self.checkpoints.failed = cost.failed;
        self.checkpoints.account = Some(CheckpointAccount {
            spent_ns: cost.spent_ns,
            trained_ns: cost.trained_ns,
            budget_ppm: Some(cost.budget_ppm).filter(|budget| *budget > 0),
            rule: self.checkpoints.account.and_then(|account| account.rule),
        });
    }

    pub(crate) fn checkpoint_rule(&mut self, rule: &lane::CheckpointRule) {
        let lane::CheckpointRule { cost_ns, persist_ns, mtbf_ns, interval_ns } = *rule;
        if let Some(account) = &mut self.checkpoints.account {
            account.rule = Some(CheckpointRule { cost_ns, persist_ns, mtbf_ns, interval_ns });
        }
    }

    /// One save may call another (`DCP` calls `torch.save`), and the inner one is reported first: the outer one
    /// then stands for both. Saves of two processes `pid` are two.
    pub(crate) fn checkpoint(&mut self, pid: u32, end_ns: u64, call: &Checkpoint, background: bool) {
        let start_ns = call.began_ns.min(end_ns);
        let mut bytes = call.bytes;
        let earlier = if background { &mut self.recent } else { &mut self.unsettled };
        earlier.retain(|inner| {
            let within = inner.pid == pid && inner.start_ns >= start_ns && inner.end_ns <= end_ns;
            if within {
                bytes = bytes.max(inner.bytes);
                if background {
                    take_back(&mut self.checkpoints, inner);
                }
            }
            !within
        });
        let asynchronous = matches!(call.saver, Saver::DcpAsyncSave | Saver::Stallscope);
        let counted = if asynchronous { !background && call.stage == Stage::Snapshot } else { true };
        let saved =
            Saved { pid, start_ns, end_ns, background, counted, bytes: if counted { bytes } else { 0 } };
        self.tell(call, &saved);
        if background {
            let sums = &mut self.checkpoints;
            sums.count += u64::from(saved.counted);
            sums.in_background += u64::from(saved.counted);
            sums.files += u64::from(saved.counted);
            sums.bytes = sums.bytes.saturating_add(saved.bytes);
            sums.background_ns = sums.background_ns.saturating_add(end_ns - start_ns);
            self.recent.push_back(saved);
            if self.recent.len() > 64 {
                self.recent.pop_front();
            }
            return;
        }
        self.unsettled.push_back(saved);
        if self.unsettled.len() > MAX_CALLS {
            self.unsettled.pop_front();
            self.dropped += 1;
        }
        let kind = match call.stage {
            Stage::Snapshot => CallKind::Snapshot,
            Stage::Persist => CallKind::Persist,
        };
        self.insert(Call { start_ns, end_ns, kind });
    }

    /// When the trainer first saved before `end_ns`, since what was settled last.
    pub(crate) fn first_save(&self, end_ns: u64) -> Option<u64> {
        self.unsettled.iter().map(|saved| saved.start_ns).filter(|start_ns| *start_ns < end_ns).min()
    }

    /// An interval is closed that ends at `end_ns`, with its `causes` as far as they may be a checkpoint's. All calls in it
    /// are one checkpoint: many a script saves model, optimiser and generators to files of their own. Where no steps show, the whole job is one
    /// interval, in which calls that lie [`APART_NS`] apart are checkpoints of their own.
    pub(crate) fn settle(&mut self, phase: Phase, end_ns: u64, causes: &Causes) {
        let sums = &mut self.checkpoints;
        let blocked_ns = causes[Cause::Snapshot].saturating_add(causes[Cause::Persist]);
        if blocked_ns > 0 {
            sums.blocked_ns = sums.blocked_ns.saturating_add(blocked_ns);
            let in_phase_ns = sums.blocked_in_ns.entry(phase).or_default();
            *in_phase_ns = in_phase_ns.saturating_add(blocked_ns);
        }
        let steps_show = phase != Phase::Startup;
        let (mut count, mut last_ns) = (0, 0);
        self.unsettled.retain(|saved| {
            let here = saved.start_ns < end_ns;
            if here && saved.counted {
                let apart = saved.start_ns > APART_NS.saturating_add(last_ns) && !steps_show;
                count += u64::from(count == 0 || apart);
                last_ns = last_ns.max(saved.end_ns);
                sums.files += 1;
                sums.bytes = sums.bytes.saturating_add(saved.bytes);
            }
            !here
        });
        sums.count += count;
    }

    /// The inner ones that were taken already are within it for that caller, too.
    fn tell(&mut self, call: &Checkpoint, saved: &Saved) {
        let inner = |event: &mut CheckpointEvent| {
            event.background == saved.background
                && event.start_ns >= saved.start_ns
                && event.end_ns <= saved.end_ns
        };
        while self.events.pop_back_if(inner).is_some() {}
        self.events.push_back(CheckpointEvent {
            rank: 0,
            start_ns: saved.start_ns,
            end_ns: saved.end_ns,
            saver: call.saver.name().to_owned(),
            cause: match call.stage {
                Stage::Snapshot => Cause::Snapshot,
                Stage::Persist => Cause::Persist,
            },
            background: saved.background,
            // What was written in the background, too, though it counts once.
            bytes: if saved.counted { saved.bytes } else { call.bytes },
        });
        if self.events.len() > MAX_EVENTS {
            self.events.pop_front();
            self.events_dropped += 1;
        }
    }

    /// Keeps calls apart: a call within another is part of it; where two cross, the earlier one goes first.
    fn insert(&mut self, mut call: Call) {
        let within = |inner: &mut Call| inner.start_ns >= call.start_ns && inner.end_ns <= call.end_ns;
        while self.calls.pop_back_if(within).is_some() {}
        let at = self.calls.partition_point(|known| known.start_ns < call.start_ns);
        if let Some(before) = at.checked_sub(1).map(|before| self.calls[before]) {
            call.start_ns = call.start_ns.max(before.end_ns);
        }
        if let Some(after) = self.calls.get(at) {
            call.end_ns = call.end_ns.min(after.start_ns);
        }
        if call.start_ns < call.end_ns {
            self.calls.insert(at, call);
        }
        if self.calls.len() > MAX_CALLS {
            self.calls.pop_front();
            self.dropped += 1;
        }
    }

    pub(crate) fn forget_before(&mut self, horizon_ns: u64) {
        while self.calls.pop_front_if(|call| call.end_ns <= horizon_ns).is_some() {}
    }
}

fn take_back(sums: &mut Checkpoints, inner: &Saved) {
    sums.count = sums.count.saturating_sub(u64::from(inner.counted));
    sums.in_background = sums.in_background.saturating_sub(u64::from(inner.counted));
    sums.files = sums.files.saturating_sub(u64::from(inner.counted));
    sums.bytes = sums.bytes.saturating_sub(inner.bytes);
    sums.background_ns = sums.background_ns.saturating_sub(inner.end_ns - inner.start_ns);
}
