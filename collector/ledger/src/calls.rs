//! Calls of one trainer that have a cause of their own: checkpoints and collectives.

use crate::attribute::{Call, CallKind};
use stallscope_abi::lane::{Record, Saver};
use stallscope_model::{Cause, Causes, CheckpointAccount, CheckpointEvent, Checkpoints, Phase};
use std::collections::VecDeque;

const MAX_CALLS: usize = 4096;
const MAX_EVENTS: usize = 1024;

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

    pub(crate) fn collective(&mut self, record: &Record) {
        self.insert(Call { start_ns: record.a, end_ns: record.time_ns, kind: CallKind::Collective });
    }

    pub(crate) fn checkpoint_cost(&mut self, record: &Record) {
        self.checkpoints.failed = record.d;
        self.checkpoints.account = Some(CheckpointAccount {
            spent_ns: record.a,
            trained_ns: record.b,
            budget_ppm: Some(record.c).filter(|budget| *budget > 0),
        });
    }

    /// One save may call another (`DCP` calls `torch.save`), and the inner one is reported first: the outer one
    /// then stands for both. Saves of two processes `pid` are two.
    pub(crate) fn checkpoint(&mut self, pid: u32, record: &Record) {
        let background = record.d != 0;
        let (start_ns, end_ns) = (record.a.min(record.time_ns), record.time_ns);
        let mut bytes = record.c;
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
        let asynchronous =
            [Saver::DcpAsyncSave, Saver::Stallscope].iter().any(|saver| record.id == *saver as u32);
        let counted = if asynchronous { !background && record.b == 0 } else { true };
        let saved =
            Saved { pid, start_ns, end_ns, background, counted, bytes: if counted { bytes } else { 0 } };
        self.tell(record, &saved);
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
        let kind = if record.b == 0 { CallKind::Snapshot } else { CallKind::Persist };
        self.insert(Call { start_ns, end_ns, kind });
    }

    /// When the trainer first saved before `end_ns`, since what was settled last.
    pub(crate) fn first_save(&self, end_ns: u64) -> Option<u64> {
        self.unsettled.iter().map(|saved| saved.start_ns).filter(|start_ns| *start_ns < end_ns).min()
    }

    /// An interval is closed that ends at `end_ns`, with its `causes` as far as they may be a checkpoint's. All calls in it
    /// are one checkpoint: many a script saves model, optimiser and generators to files of their own.
    pub(crate) fn settle(&mut self, phase: Phase, end_ns: u64, causes: &Causes) {
        let sums = &mut self.checkpoints;
        let blocked_ns = causes[Cause::Snapshot].saturating_add(causes[Cause::Persist]);
        if blocked_ns > 0 {
            sums.blocked_ns = sums.blocked_ns.saturating_add(blocked_ns);
            let in_phase_ns = sums.blocked_in_ns.entry(phase).or_default();
            *in_phase_ns = in_phase_ns.saturating_add(blocked_ns);
        }
        let mut files = 0;
        self.unsettled.retain(|saved| {
            let here = saved.start_ns < end_ns;
            if here {
                files += u64::from(saved.counted);
                sums.bytes = sums.bytes.saturating_add(saved.bytes);
            }
            !here
        });
        sums.files += files;
        sums.count += files.min(1);
    }

    /// The inner ones that were taken already are within it for that caller, too.
    fn tell(&mut self, record: &Record, saved: &Saved) {
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
            saver: saver(record.id).to_owned(),
            cause: if record.b == 0 { Cause::Snapshot } else { Cause::Persist },
            background: saved.background,
            // What was written in the background, too, though it counts once.
            bytes: if saved.counted { saved.bytes } else { record.c },
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

fn saver(id: u32) -> &'static str {
    let is = |saver: Saver| id == saver as u32;
    match () {
        _ if is(Saver::TorchSave) => "torch.save",
        _ if is(Saver::DcpSave) => "dcp.save",
        _ if is(Saver::DcpAsyncSave) => "dcp.async_save",
        _ if is(Saver::Safetensors) => "safetensors",
        _ if is(Saver::Stallscope) => "stallscope",
        _ => "other",
    }
}

fn take_back(sums: &mut Checkpoints, inner: &Saved) {
    sums.count = sums.count.saturating_sub(u64::from(inner.counted));
    sums.in_background = sums.in_background.saturating_sub(u64::from(inner.counted));
    sums.files = sums.files.saturating_sub(u64::from(inner.counted));
    sums.bytes = sums.bytes.saturating_sub(inner.bytes);
    sums.background_ns = sums.background_ns.saturating_sub(inner.end_ns - inner.start_ns);
}
