//! Where the shim read its thread's clocks, an interval that the kernel reported is cut as these say.
//!
//! An interval may hold several short things, and does not say in which order. Cut in proportion, the time that a thread
//! waited for a CPU after its wake-up would reach beyond the moment at which it had the batch and went on. Both sides
//! count the same thread's time on a CPU and its time ready for one, so that what they counted up to such a moment tells.

use crate::timeline::{Activity, Interval, Timeline, scale};
use stallscope_abi::kernel::Times;
use stallscope_abi::lane::Clock;
use std::collections::VecDeque;

const MAX_DUE: usize = 1024;

/// What a thread's clocks read at a moment.
#[derive(Clone, Copy, Debug)]
struct Reading {
    time_ns: u64,
    cpu_ns: u64,
    runnable_ns: u64,
}

/// The readings of one thread at which the kernel's intervals are still to be cut, each with the one before.
#[derive(Debug, Default)]
pub(crate) struct Cuts {
    last: Option<Reading>,
    due: VecDeque<(Reading, Reading)>,
}

impl Cuts {
    pub(crate) fn note(&mut self, time_ns: u64, clock: &Clock) {
        let reading = Reading { time_ns, cpu_ns: clock.cpu_ns, runnable_ns: clock.run_delay_ns };
        if let Some(before) = self.last.replace(reading) {
            self.due.push_back((before, reading));
            if self.due.len() > MAX_DUE {
                self.due.pop_front();
            }
        }
    }

    /// Cuts what the kernel has reported by now.
    pub(crate) fn apply(&mut self, kernel: &mut Timeline) {
        let reported_to_ns = kernel.reported_to_ns();
        while let Some((before, reading)) =
            self.due.pop_front_if(|(_, reading)| reading.time_ns < reported_to_ns)
        {
            if let Some((whole, first)) = first_part(kernel, &before, &reading) {
                kernel.cut(&whole, reading.time_ns, first);
            }
        }
    }
}

/// The interval under way at a reading, and what of it came before; `None` where that is unknown.
fn first_part(kernel: &Timeline, before: &Reading, reading: &Reading) -> Option<(Interval, Activity)> {
    let whole = kernel.under_way(reading.time_ns)?;
    if before.time_ns > whole.start_ns {
        return None;
    }
    let mut gaps = false;
    let known = kernel.query(before.time_ns, whole.start_ns, |_, _| gaps = true);
    // Clocks that run backwards were read on different threads.
    let cpu_ns = reading.cpu_ns.checked_sub(before.cpu_ns)?.saturating_sub(known.times.cpu_ns);
    let runnable_ns =
        reading.runnable_ns.checked_sub(before.runnable_ns)?.saturating_sub(known.times.runnable_ns);
    (!gaps).then(|| (whole, part(&whole, reading.time_ns - whole.start_ns, cpu_ns, runnable_ns)))
}

/// `span_ns` from the beginning of `whole`, with so much of its time on a CPU and ready for one as there was of it.
fn part(whole: &Interval, span_ns: u64, cpu_ns: u64, runnable_ns: u64) -> Activity {
    let times = &whole.activity.times;
    let all_blocked_ns: u64 = times.blocked_ns.iter().sum();
    let mut cpu_ns = cpu_ns.min(times.cpu_ns).min(span_ns);
    let mut runnable_ns = runnable_ns.min(times.runnable_ns).min(span_ns - cpu_ns);
    // The clocks of both sides differ by what a wake-up takes: what is missing it was on a CPU, or else ready for one.
    let blocked_ns = (span_ns - cpu_ns - runnable_ns).min(all_blocked_ns);
    cpu_ns = (span_ns - runnable_ns - blocked_ns).min(times.cpu_ns);
    runnable_ns = span_ns - cpu_ns - blocked_ns;
    let mut part = Times {
        cpu_ns,
        cpu_read_ns: scale(times.cpu_read_ns, cpu_ns, times.cpu_ns),
        runnable_ns,
        blocked_ns: times.blocked_ns.map(|ns| scale(ns, blocked_ns, all_blocked_ns)),
    };
    // What rounding left over.
    let mut rest_ns = blocked_ns - part.blocked_ns.iter().sum::<u64>();
    for (ns, of) in part.blocked_ns.iter_mut().zip(times.blocked_ns) {
        let more_ns = rest_ns.min(of - *ns);
        *ns += more_ns;
        rest_ns -= more_ns;
    }
    let all_ns = whole.end_ns - whole.start_ns;
    let sibling_cpu_ns = scale(whole.activity.sibling_cpu_ns, span_ns, all_ns);
    // It lies in the sleep.
    let sibling_runnable_ns = scale(whole.activity.sibling_runnable_ns, blocked_ns, all_blocked_ns);
    Activity { times: part, sibling_cpu_ns, sibling_runnable_ns }
}
