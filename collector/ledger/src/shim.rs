//! What a process's own records tell of its main thread: a timeline made from its clocks and samples, for
//! where the kernel saw nothing, and to compare with where it did.

use crate::cuts::Cuts;
use crate::handover::{Handover, Producer};
use crate::timeline::{Activity, Interval, Timeline, scale};
use stallscope_abi::kernel::{BLOCKED_KINDS, Blocked, Times};
use stallscope_abi::lane::{self, Clock, ClockAt};
use std::collections::VecDeque;

/// As many as a lane holds: what one look at it brings is kept until the next one closes its steps.
const MAX_SAMPLES: usize = 32_768;
const MAX_BATCHES: usize = 1024;
/// A batch and the clock beside it may come in different drains of the lane.
const CLOCK_LATE_NS: u64 = 100_000_000;
/// As fine as the kernel's slices.
const PIECE_NS: u64 = 1_000_000;

/// A batch that a process made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Batch {
    pub(crate) loader: u16,
    pub(crate) index: u64,
    pub(crate) start_ns: u64,
    pub(crate) ready_ns: u64,
    cpu_ns: u64,
}

/// One sample, and how much of its making was spent in wrapped opens and reads.
#[derive(Clone, Copy, Debug)]
struct Sample {
    start_ns: u64,
    end_ns: u64,
    reading_ns: u64,
}

/// The records of one process, worker or trainer.
#[derive(Debug, Default)]
pub(crate) struct Shim {
    pub(crate) timeline: Timeline,
    /// Batches made and not yet paired with the wait they ended.
    pub(crate) batches: VecDeque<Batch>,
    samples: VecDeque<Sample>,
    /// The latest, and when it was read.
    clock: Option<(u64, Clock)>,
    pub(crate) cuts: Cuts,
    /// The latest batch, until it is known whether a clock tells more of it.
    bare: Option<Batch>,
    pub(crate) batches_made: u64,
    /// When the latest batch was.
    pub(crate) last_ready_ns: Option<u64>,
    /// Samples in it, 0 where none were reported, and all up to it.
    pub(crate) last_samples: u64,
    samples_before: u64,
    /// Of the batch that is being made, what its loader's cache did not have.
    missed: Option<u32>,
    pub(crate) samples_made: u64,
    /// Loader and worker number. A worker itself may not know which loader it serves: its batches tell.
    pub(crate) last_place: Option<(u16, u32)>,
    /// A wait for one of its batches named the loader.
    pub(crate) placed: bool,
    /// Who waited, where it was another process.
    pub(crate) trainer: Option<u32>,
    pub(crate) history_dropped: u64,
}

impl Shim {
    pub(crate) fn sample(&mut self, end_ns: u64, sample: &lane::Sample) {
        self.samples_made = self.samples_made.saturating_add(u64::from(sample.count));
        let start_ns = sample.start_ns;
        if start_ns >= end_ns {
            return;
        }
        let reading_ns = sample.read_ns.min(end_ns - start_ns);
        self.samples.push_back(Sample { start_ns, end_ns, reading_ns });
        if self.samples.len() > MAX_SAMPLES {
            self.samples.pop_front();
            self.history_dropped += 1;
        }
    }

    pub(crate) fn batch(&mut self, ready_ns: u64, made: &lane::Batch) {
        self.flush(u64::MAX);
        let batch = Batch {
            loader: made.loader,
            index: made.batch,
            start_ns: made.start_ns.min(ready_ns),
            ready_ns,
            cpu_ns: made.cpu_ns,
        };
        self.batches_made += 1;
        self.last_ready_ns = Some(ready_ns);
        self.last_samples = self.samples_made - self.samples_before;
        self.samples_before = self.samples_made;
        let loader = self.last_place.map_or(made.loader, |(loader, _)| loader);
        self.last_place = Some((loader, made.worker));
        self.bare = Some(batch);
        self.batches.push_back(batch);
        if self.batches.len() > MAX_BATCHES {
            self.batches.pop_front();
            self.history_dropped += 1;
        }
    }

    /// What a cache gave for the batch that is being made: it is reported as the batch is collated.
    pub(crate) fn cache_uses(&mut self, uses: &lane::CacheUses) {
        let draws = uses.hits.saturating_add(uses.substitutions).saturating_add(uses.misses);
        if draws > 0 {
            self.missed = Some(self.missed.unwrap_or(0).saturating_add(uses.misses));
        }
    }

    /// Of the batch that was just made.
    pub(crate) fn take_missed(&mut self) -> Option<u32> {
        self.missed.take()
    }

    /// Clocks come in pairs around what they measure; two that follow each other tell of the time between.
    pub(crate) fn clock(&mut self, time_ns: u64, clock: &Clock, worker: bool) {
        self.cuts.note(time_ns, clock);
        if let Some((before_ns, before)) = self.clock.replace((time_ns, *clock)) {
            self.between((before_ns, &before), (time_ns, clock), worker);
        }
    }

    fn between(&mut self, (start_ns, before): (u64, &Clock), (end_ns, after): (u64, &Clock), worker: bool) {
        let Some(span_ns) = end_ns.checked_sub(start_ns).filter(|span| *span > 0) else {
            return;
        };
        let making = (before.at, after.at) == (ClockAt::BatchStart, ClockAt::BatchReady);
        let waiting = before.at != ClockAt::WaitExit && after.at != ClockAt::WaitEnter;
        let stepping = [before.at, after.at].contains(&ClockAt::Step);
        let own = (before.at, after.at) == (ClockAt::WaitExit, ClockAt::WaitEnter);
        let idle = (before.at, after.at) == (ClockAt::BatchReady, ClockAt::BatchStart);
        let deltas = (|| {
            Some((
                after.cpu_ns.checked_sub(before.cpu_ns)?,
                after.run_delay_ns.checked_sub(before.run_delay_ns)?,
                after.process_cpu_ns.saturating_sub(before.process_cpu_ns),
            ))
        })();
        // Clocks that run backwards were read on different threads: they tell nothing.
        let Some((cpu_ns, delay_ns, process_cpu_ns)) = deltas else {
            self.push(start_ns, end_ns, Activity::blocked(Blocked::Other, span_ns));
            return;
        };
        let cpu_ns = cpu_ns.min(span_ns);
        let runnable_ns = delay_ns.min(span_ns - cpu_ns);
        let rest_ns = span_ns - cpu_ns - runnable_ns;
        let sibling_cpu_ns = process_cpu_ns.saturating_sub(cpu_ns);
        let mut activity = Activity {
            times: Times { cpu_ns, runnable_ns, ..Times::default() },
            sibling_cpu_ns,
            ..Activity::default()
        };
        let mut blocked = |kind: Blocked, ns: u64| activity.times.blocked_ns[kind as usize] += ns;
        if stepping {
            // What blocks a loop that reads by itself nobody saw here, other threads at work aside: that stays a gap.
            let helped_ns = rest_ns.min(sibling_cpu_ns);
            blocked(Blocked::Futex, helped_ns);
            self.push(start_ns, end_ns - (rest_ns - helped_ns), activity);
            return;
        }
        if making {
            // What other threads do meanwhile (carry batches, or something of their own) says nothing of it.
            blocked(Blocked::FileRead, rest_ns);
        } else if worker && idle {
            blocked(Blocked::Pipe, rest_ns);
        } else if own {
            blocked(Blocked::Futex, rest_ns);
        } else if !worker && waiting {
            blocked(Blocked::FileRead, rest_ns);
        } else {
            blocked(Blocked::Other, rest_ns);
        }
        let wrapped_ns = after.read_ns.saturating_sub(before.read_ns);
        let in_samples = self.reading(start_ns, end_ns);
        if in_samples == 0 && wrapped_ns > 0 {
            let reading_ns = wrapped_ns.min(span_ns);
            self.samples.push_back(Sample { start_ns, end_ns, reading_ns });
        }
        if (before.at, after.at) == (ClockAt::WaitEnter, ClockAt::WaitExit) {
            self.woken(start_ns, end_ns, activity);
        } else {
            self.refine(start_ns, end_ns, &activity);
        }
    }

    /// A wait for a batch that another process made: who is woken waits for a CPU, and runs, at its end.
    fn woken(&mut self, start_ns: u64, end_ns: u64, activity: Activity) {
        let (mut asleep, mut awake) = (activity, activity);
        (asleep.times.cpu_ns, asleep.times.runnable_ns) = (0, 0);
        (awake.times.blocked_ns, awake.sibling_cpu_ns) = ([0; BLOCKED_KINDS], 0);
        let woken_ns = end_ns - activity.times.cpu_ns - activity.times.runnable_ns;
        self.push(start_ns, woken_ns, asleep);
        self.push(woken_ns, end_ns, awake);
    }

    /// Spreads an interval's reading over the samples made in it, so that a wait that begins in the middle of a
    /// batch is not charged for a slow sample before it. Short samples share a piece.
    fn refine(&mut self, start_ns: u64, end_ns: u64, activity: &Activity) {
        let reading_ns = activity.of(Blocked::FileRead);
        let mut spans: Vec<Sample> = Vec::new();
        for sample in self.samples.iter().rev().take_while(|sample| sample.end_ns > start_ns) {
            let end = spans.last().map_or(end_ns, |later| later.start_ns).min(sample.end_ns);
            let start = sample.start_ns.max(start_ns);
            if start >= end {
                continue;
            }
            let reading_ns = sample.reading_ns.min(end - start);
            match spans.last_mut() {
                Some(later) if later.end_ns - start < PIECE_NS => {
                    later.start_ns = start;
                    later.reading_ns += reading_ns;
                }
                _ => spans.push(Sample { start_ns: start, end_ns: end, reading_ns }),
            }
        }
        let wrapped: u64 = spans.iter().map(|span| span.reading_ns).sum();
        let length: u64 = spans.iter().map(|span| span.end_ns - span.start_ns).sum();
        if spans.len() < 2 || reading_ns == 0 {
            self.push(start_ns, end_ns, *activity);
            return;
        }
        let mut rest = *activity;
        let mut pieces: Vec<(u64, u64, u64)> = Vec::with_capacity(2 * spans.len() + 1);
        let mut at_ns = start_ns;
        for span in spans.iter().rev() {
            pieces.push((at_ns, span.start_ns, 0));
            let span_ns = span.end_ns - span.start_ns;
            let share = if wrapped > 0 {
                scale(reading_ns, span.reading_ns, wrapped)
            } else {
                scale(reading_ns, span_ns, length)
            };
            let share = share.min(span_ns);
            rest.times.blocked_ns[Blocked::FileRead as usize] -= share;
            pieces.push((span.start_ns, span.end_ns, share));
            at_ns = span.end_ns;
        }
        pieces.push((at_ns, end_ns, 0));
        for (from_ns, to_ns, read_ns) in pieces {
            let mut piece = rest.fit(to_ns - from_ns - read_ns);
            piece.times.blocked_ns[Blocked::FileRead as usize] += read_ns;
            self.push(from_ns, to_ns, piece);
        }
    }

    fn push(&mut self, start_ns: u64, end_ns: u64, activity: Activity) {
        if let Some(interval) = Interval::new(start_ns, end_ns, activity) {
            self.timeline.push(interval);
        }
    }

    /// Takes up the latest batch if no clock reported it by `now_ns`: its CPU time is known, and of the rest only
    /// that it was off the CPU.
    pub(crate) fn flush(&mut self, now_ns: u64) {
        let due = |batch: &mut Batch| now_ns.saturating_sub(batch.ready_ns) >= CLOCK_LATE_NS;
        if let Some(batch) = self.bare.take_if(due)
            && self.timeline.covered_to_ns() < batch.ready_ns
        {
            let span_ns = batch.ready_ns - batch.start_ns;
            let cpu_ns = batch.cpu_ns.min(span_ns);
            let mut activity = Activity::blocked(Blocked::Other, span_ns - cpu_ns);
            activity.times.cpu_ns = cpu_ns;
            self.push(batch.start_ns, batch.ready_ns, activity);
        }
    }

    /// Nanoseconds of `[a_ns, b_ns)` inside wrapped opens and reads; a sample that is cut gives in proportion.
    pub(crate) fn reading(&self, a_ns: u64, b_ns: u64) -> u64 {
        let mut sum_ns = 0u64;
        let first = self.samples.partition_point(|sample| sample.end_ns <= a_ns);
        for sample in self.samples.range(first..).take_while(|sample| sample.start_ns < b_ns) {
            let overlap_ns = sample.end_ns.min(b_ns).saturating_sub(sample.start_ns.max(a_ns));
            sum_ns =
                sum_ns.saturating_add(scale(sample.reading_ns, overlap_ns, sample.end_ns - sample.start_ns));
        }
        sum_ns.min(b_ns.saturating_sub(a_ns))
    }

    /// When the sample was begun that was being made at `at_ns`. Short samples share a record: then the first of them.
    pub(crate) fn sample_begun(&self, at_ns: u64) -> Option<u64> {
        let sample = self.samples.get(self.samples.partition_point(|sample| sample.end_ns <= at_ns))?;
        (sample.start_ns <= at_ns).then_some(sample.start_ns)
    }

    /// When each sample of `[a_ns, b_ns)` was begun, in order.
    pub(crate) fn sample_starts(&self, a_ns: u64, b_ns: u64) -> Vec<u64> {
        let first = self.samples.partition_point(|sample| sample.end_ns <= a_ns);
        let within = self.samples.range(first..).take_while(|sample| sample.start_ns < b_ns);
        within.map(|sample| sample.start_ns.max(a_ns)).collect()
    }

    /// The batch of a wait that ended at `exit_ns`. Indices begin again with every iterator, so the latest batch
    /// of that index that was ready by then is the one; `loader` is `None` for workers, which have one each.
    pub(crate) fn find(&self, loader: Option<u16>, index: u64, exit_ns: u64) -> Option<Batch> {
        self.batches
            .iter()
            .rev()
            .find(|batch| {
                batch.index == index
                    && batch.ready_ns <= exit_ns
                    && loader.is_none_or(|loader| loader == batch.loader)
            })
            .copied()
    }

    /// Drops a batch that was found to have been waited for by `wait`, and what an earlier iterator left under the same
    /// index.
    pub(crate) fn paired(&mut self, paired: &Batch, wait: &Handover) {
        if let Some((of, _)) = &mut self.last_place {
            *of = wait.loader;
        }
        self.placed = true;
        if wait.producer != Producer::Trainer {
            self.trainer = Some(wait.pid);
        }
        self.batches.retain(|batch| {
            batch.index != paired.index || batch.loader != paired.loader || batch.ready_ns > paired.ready_ns
        });
    }

    pub(crate) fn forget_before(&mut self, horizon_ns: u64) {
        self.timeline.forget_before(horizon_ns);
        while self.samples.front().is_some_and(|sample| sample.end_ns <= horizon_ns) {
            self.samples.pop_front();
        }
    }
}
