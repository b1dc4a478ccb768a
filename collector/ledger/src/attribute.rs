//! The causes of one interval of a trainer's time. Each function's causes add up to the length of what it was
//! given; whatever nothing explains is `unknown`.

use crate::opening::opening;
use crate::passage::Passage;
use crate::shim::Shim;
use crate::timeline::{Activity, Helped, Timeline, scale};
use stallscope_abi::kernel::{BLOCKED_KINDS, Blocked};
use stallscope_model::{Cause, Causes};
use std::collections::VecDeque;

/// What there is to know about one process: the kernel's account, and in its gaps the shim's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
    pub(crate) kernel: Option<&'a Timeline>,
    pub(crate) shim: &'a Shim,
}

/// An answer of a [`View`]; the three parts add up to the time asked for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) activity: Activity,
    pub(crate) kernel_ns: u64,
    pub(crate) shim_ns: u64,
    pub(crate) gap_ns: u64,
}

impl View<'_> {
    pub(crate) fn query(&self, a_ns: u64, b_ns: u64) -> Seen {
        let mut seen = Seen::default();
        if a_ns >= b_ns {
            return seen;
        }
        let mut gaps: Vec<(u64, u64)> = Vec::new();
        match self.kernel {
            Some(timeline) => seen.activity = timeline.query(a_ns, b_ns, |from, to| gaps.push((from, to))),
            None => gaps.push((a_ns, b_ns)),
        }
        let missed_ns: u64 = gaps.iter().map(|(from, to)| to - from).sum();
        seen.kernel_ns = b_ns - a_ns - missed_ns;
        for (from, to) in gaps {
            let filled = self.shim.timeline.query(from, to, |from, to| seen.gap_ns += to - from);
            seen.activity.add(&filled);
        }
        seen.shim_ns = missed_ns - seen.gap_ns;
        seen
    }

    /// Calls `each` for every interval of `[a_ns, b_ns)` and every gap nothing is known of, in order.
    pub(crate) fn each(&self, a_ns: u64, b_ns: u64, mut each: impl FnMut(u64, u64, Option<&Activity>)) {
        let shim = &self.shim.timeline;
        match self.kernel {
            Some(timeline) => timeline.each(a_ns, b_ns, |from, to, activity| match activity {
                Some(_) => each(from, to, activity),
                None => shim.each(from, to, &mut each),
            }),
            None => shim.each(a_ns, b_ns, &mut each),
        }
    }

    /// Start of the first interval that is remembered.
    pub(crate) fn begins_ns(&self) -> Option<u64> {
        self.kernel.unwrap_or(&self.shim.timeline).begins_ns()
    }

    pub(crate) fn covers(&self, to_ns: u64) -> bool {
        match self.kernel {
            Some(timeline) => timeline.covered_to_ns() >= to_ns,
            None => self.shim.timeline.covered_to_ns() >= to_ns,
        }
    }
}

/// Time by what the task was blocked in; the last is time nobody saw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ByKind(pub(crate) [u64; BLOCKED_KINDS + 1]);

impl ByKind {
    pub(crate) fn unseen_ns(&self) -> u64 {
        self.0[BLOCKED_KINDS]
    }

    fn note(&mut self, kind: Option<Blocked>, ns: u64) {
        let at = kind.map_or(BLOCKED_KINDS, |kind| kind as usize);
        self.0[at] = self.0[at].saturating_add(ns);
    }

    pub(crate) fn add(&mut self, other: &ByKind) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine = mine.saturating_add(theirs);
        }
    }
}

/// The outcome for an interval, and who saw it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Attributed {
    pub(crate) causes: Causes,
    /// Of `unknown`.
    pub(crate) unexplained: ByKind,
    /// Of `fetch`, where the loop reads by itself.
    pub(crate) own_reading: ByKind,
    /// Of `compute` and `preempted`, where the loop reads by itself: asleep until threads of its own were done, which may have made
    /// what it trains with.
    pub(crate) asleep_for_threads_ns: u64,
    pub(crate) kernel_ns: u64,
    pub(crate) shim_ns: u64,
    /// Part of `transfer` during which the producer was in a page fault: that holds the interpreter's lock, so
    /// the previous batch can't leave meanwhile.
    pub(crate) transfer_behind_fault_ns: u64,
    /// What the causes gain and lose where nobody sees what helper threads did in a sleep for them, as the kernel alone does.
    of_helpers: [i64; Cause::COUNT],
}

impl Attributed {
    fn saw(&mut self, seen: &Seen) {
        self.kernel_ns += seen.kernel_ns;
        self.shim_ns += seen.shim_ns;
        self.unknown(None, seen.gap_ns);
    }

    /// The causes as far as kernel and shim can both see them.
    pub(crate) fn seen_by_both(&self) -> Causes {
        let mut causes = self.causes;
        for (ns, moved_ns) in causes.0.iter_mut().zip(self.of_helpers) {
            *ns = ns.saturating_add_signed(moved_ns);
        }
        causes
    }

    /// The shim alone would blame `to` for time whose cause is `from`.
    fn moves(&mut self, from: Cause, to: Cause, ns: u64) {
        let ns = i64::try_from(ns).unwrap_or(i64::MAX);
        for (cause, ns) in [(from, -ns), (to, ns)] {
            let moved_ns = &mut self.of_helpers[cause as usize];
            *moved_ns = moved_ns.saturating_add(ns);
        }
    }

    fn unknown(&mut self, kind: Option<Blocked>, ns: u64) {
        self.causes[Cause::Unknown] += ns;
        self.unexplained.note(kind, ns);
    }

    pub(crate) fn join(mut self, other: &Attributed) -> Attributed {
        self.causes += &other.causes;
        self.unexplained.add(&other.unexplained);
        self.own_reading.add(&other.own_reading);
        self.asleep_for_threads_ns += other.asleep_for_threads_ns;
        self.kernel_ns += other.kernel_ns;
        self.shim_ns += other.shim_ns;
        self.transfer_behind_fault_ns += other.transfer_behind_fault_ns;
        for (mine, theirs) in self.of_helpers.iter_mut().zip(other.of_helpers) {
            *mine = mine.saturating_add(theirs);
        }
        self
    }
}

/// A call of the trainer that has a cause of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) start_ns: u64,
    pub(crate) end_ns: u64,
    pub(crate) kind: CallKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallKind {
    Snapshot,
    Persist,
    Collective,
}

/// What the own part of a trainer depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trainer<'a> {
    pub(crate) view: View<'a>,
    /// By start, without overlap.
    pub(crate) calls: &'a VecDeque<Call>,
    pub(crate) several_ranks: bool,
    pub(crate) has_device: bool,
    /// The waits come from the kernel alone, which sees them from the first sleep on: what a hand-over does
    /// before and after (one Unix socket exchange a tensor) lies in the own part.
    pub(crate) kernel_waits: bool,
    /// The loop trains without a loader: what it is blocked in to get data is its `fetch`.
    pub(crate) reads_itself: bool,
}

impl Trainer<'_> {
    /// Whether what other threads of the process do may be what this one waits for. The shim's clocks say that it was
    /// blocked, not in what: it may have slept, and the others have worked for themselves. But beside a device torch has
    /// threads of its own for the backward pass, and its caller sleeps until they are done.
    fn may_be_helped(&self) -> bool {
        self.view.kernel.is_some() || self.has_device
    }
}

/// The trainer's own part `[a_ns, b_ns)`: outside any wait for a batch.
pub(crate) fn own_part(trainer: &Trainer<'_>, a_ns: u64, b_ns: u64) -> Attributed {
    let mut out = Attributed::default();
    own_parts(trainer, a_ns, b_ns, |call, from, to| own_rule(trainer, call, from, to, &mut out));
    out
}

/// The intervals of `[a_ns, b_ns)` that each have one rule: calls and the work between them, in order.
pub(crate) fn own_parts(
    trainer: &Trainer<'_>,
    a_ns: u64,
    b_ns: u64,
    mut each: impl FnMut(Option<CallKind>, u64, u64),
) {
    let mut at_ns = a_ns;
    let first = trainer.calls.partition_point(|call| call.end_ns <= a_ns);
    for call in trainer.calls.range(first..).take_while(|call| call.start_ns < b_ns) {
        let (from_ns, to_ns) = (call.start_ns.max(at_ns), call.end_ns.min(b_ns));
        if from_ns >= to_ns {
            continue;
        }
        if at_ns < from_ns {
            each(None, at_ns, from_ns);
        }
        each(Some(call.kind), from_ns, to_ns);
        at_ns = to_ns;
    }
    if at_ns < b_ns {
        each(None, at_ns, b_ns);
    }
}

/// An interval that is one call, or work between calls.
pub(crate) fn own_rule(
    trainer: &Trainer<'_>,
    call: Option<CallKind>,
    a_ns: u64,
    b_ns: u64,
    out: &mut Attributed,
) {
    match call {
        Some(kind) => in_call(trainer, kind, a_ns, b_ns, out),
        None => own_work(trainer, a_ns, b_ns, out),
    }
}

fn in_call(trainer: &Trainer<'_>, kind: CallKind, a_ns: u64, b_ns: u64, out: &mut Attributed) {
    if kind == CallKind::Collective && !trainer.several_ranks {
        return own_work(trainer, a_ns, b_ns, out);
    }
    let span_ns = b_ns - a_ns;
    let seen = trainer.view.query(a_ns, b_ns);
    out.kernel_ns += seen.kernel_ns;
    out.shim_ns += seen.shim_ns;
    match kind {
        CallKind::Snapshot => out.causes[Cause::Snapshot] += span_ns,
        CallKind::Persist => out.causes[Cause::Persist] += span_ns,
        // On a CPU it carries the others' data or spins until they come: no work of its own either way.
        CallKind::Collective => {
            let runnable_ns = seen.activity.times.runnable_ns;
            out.causes[Cause::Preempted] += runnable_ns;
            out.causes[Cause::Peer] += span_ns - runnable_ns;
        }
    }
}

fn own_work(trainer: &Trainer<'_>, a_ns: u64, b_ns: u64, out: &mut Attributed) {
    let seen = trainer.view.query(a_ns, b_ns);
    out.saw(&seen);
    let activity = &seen.activity;
    out.causes[Cause::Compute] += activity.times.cpu_ns;
    out.causes[Cause::Preempted] += activity.times.runnable_ns;
    for kind in Blocked::ALL {
        let ns = activity.of(kind);
        match kind {
            _ if trainer.reads_itself && brings_data(trainer, kind) => {
                out.causes[Cause::Fetch] += ns;
                out.own_reading.note(Some(kind), ns);
            }
            Blocked::Futex => in_futex(trainer, activity, out),
            Blocked::FutexRead => {}
            Blocked::FutexNet | Blocked::Net => peer_or_unknown(trainer, kind, ns, out),
            // Written by hand, without a saver that is hooked.
            Blocked::FileWrite | Blocked::Sync | Blocked::Rename => out.causes[Cause::Persist] += ns,
            // A pipe outside any wait for a batch is one that closes as a worker ends, for which a dropped iterator waits.
            Blocked::Unix if trainer.kernel_waits => out.causes[Cause::Transfer] += ns,
            // A driver that lets its caller sleep until the device is done.
            Blocked::Other | Blocked::Poll if trainer.has_device => out.causes[Cause::Compute] += ns,
            _ => out.unknown(Some(kind), ns),
        }
    }
}

/// Asleep in futexes of both kinds, for threads of the trainer's own. Where the loop reads by itself, one that has read makes
/// its batches: what it computes is their preparation.
fn in_futex(trainer: &Trainer<'_>, activity: &Activity, out: &mut Attributed) {
    let asleep_ns = activity.in_futex_ns();
    let reader_ns = if trainer.reads_itself { activity.of(Blocked::FutexRead) } else { 0 };
    let helped = if trainer.may_be_helped() { activity.helped() } else { Helped::default() };
    let idle_ns = asleep_ns - helped.cpu_ns - helped.runnable_ns;
    let [prep_ns, fetch_ns] = [helped.cpu_ns, idle_ns].map(|ns| scale(ns, reader_ns, asleep_ns));
    out.causes[Cause::Prep] += prep_ns;
    out.causes[Cause::Fetch] += fetch_ns;
    out.causes[Cause::Compute] += helped.cpu_ns - prep_ns;
    out.causes[Cause::Preempted] += helped.runnable_ns;
    out.own_reading.note(Some(Blocked::FutexRead), fetch_ns);
    if trainer.reads_itself {
        out.asleep_for_threads_ns += helped.cpu_ns - prep_ns + helped.runnable_ns;
    }
    // Beside a device the shim takes a helper that has no CPU for one that has, and all for the loop's own work.
    let on_cpu_ns = asleep_ns.min(activity.sibling_cpu_ns).saturating_sub(helped.cpu_ns);
    let on_cpu_ns = on_cpu_ns.min(helped.runnable_ns);
    let asleep = if trainer.several_ranks { Cause::Peer } else { Cause::Unknown };
    out.moves(Cause::Preempted, Cause::Compute, on_cpu_ns);
    out.moves(Cause::Preempted, asleep, helped.runnable_ns - on_cpu_ns);
    out.moves(Cause::Prep, Cause::Compute, prep_ns);
    out.moves(Cause::Fetch, asleep, fetch_ns);
    peer_or_unknown(trainer, Blocked::Futex, idle_ns - fetch_ns, out);
}

/// Whether a loop that reads by itself gets data from what it is blocked in. Among several ranks a socket may as well
/// be another rank's, and beside a device `poll` may be the driver's.
fn brings_data(trainer: &Trainer<'_>, kind: Blocked) -> bool {
    match kind {
        Blocked::FileRead | Blocked::Fault | Blocked::Pipe | Blocked::Unix => true,
        Blocked::Net | Blocked::FutexNet => !trainer.several_ranks,
        Blocked::Poll => !trainer.has_device,
        _ => false,
    }
}

fn peer_or_unknown(trainer: &Trainer<'_>, kind: Blocked, ns: u64, out: &mut Attributed) {
    if trainer.several_ranks {
        out.causes[Cause::Peer] += ns;
    } else {
        out.unknown(Some(kind), ns);
    }
}

/// A wait `[enter_ns, exit_ns)` for a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait<'a> {
    pub(crate) enter_ns: u64,
    pub(crate) exit_ns: u64,
    /// When the batch was begun; `None` when nobody saw it.
    pub(crate) start_ns: Option<u64>,
    pub(crate) ready_ns: Option<u64>,
    /// `None` when the producer is not known.
    pub(crate) producer: Option<View<'a>>,
    pub(crate) passage: Passage<'a>,
    pub(crate) in_process: bool,
    /// Shortest interval that the kernel tells apart from its neighbours.
    pub(crate) slice_ns: u64,
}

/// How far the awaited batch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Its producer still makes another one: that is what stands in the way.
    Before,
    Making,
    Ready,
}

/// Cuts a wait where the producer of the awaited batch changed what it was doing, and after the batch was ready
/// by what the threads did that had to hand it over.
pub(crate) fn wait_part(wait: &Wait<'_>) -> Attributed {
    let mut out = Attributed::default();
    wait_parts(wait, |stage, from, to| wait_rule(wait, stage, from, to, &mut out));
    out
}

/// The intervals of a wait that each have one rule, in order.
pub(crate) fn wait_parts(wait: &Wait<'_>, mut each: impl FnMut(Stage, u64, u64)) {
    let ready_ns = wait.ready_ns.map_or(wait.exit_ns, |ready| ready.clamp(wait.enter_ns, wait.exit_ns));
    let start_ns = wait.start_ns.map_or(ready_ns, |start| start.clamp(wait.enter_ns, ready_ns));
    for (stage, from_ns, to_ns) in [
        (Stage::Before, wait.enter_ns, start_ns),
        (Stage::Making, start_ns, ready_ns),
        (Stage::Ready, ready_ns, wait.exit_ns),
    ] {
        if from_ns < to_ns {
            each(stage, from_ns, to_ns);
        }
    }
}

/// An interval of a wait within one stage.
pub(crate) fn wait_rule(wait: &Wait<'_>, stage: Stage, a_ns: u64, b_ns: u64, out: &mut Attributed) {
    match (stage, &wait.producer) {
        (Stage::Ready, producer) => {
            let held = wait.passage.held(a_ns, b_ns);
            let transfer_ns = b_ns - a_ns - held.starved_ns - held.fetch_ns;
            out.causes[Cause::Starved] += held.starved_ns;
            out.causes[Cause::Fetch] += held.fetch_ns;
            out.causes[Cause::Transfer] += transfer_ns;
            if let Some(producer) = producer {
                let seen = producer.query(a_ns, b_ns);
                out.kernel_ns += seen.kernel_ns;
                out.shim_ns += seen.shim_ns;
                if !wait.in_process {
                    out.transfer_behind_fault_ns += seen.activity.of(Blocked::Fault).min(transfer_ns);
                }
            }
        }
        (_, None) => out.unknown(None, b_ns - a_ns),
        (_, Some(producer)) => produce(wait, producer, a_ns, b_ns, stage == Stage::Making, out),
    }
}

/// Blocked in storage or network. A futex that a thread ended which had itself been woken from a socket is a
/// client with threads of its own; Unix sockets and `epoll` in the midst of a batch are requests to a cache or
/// an event loop.
pub(crate) fn blocked_in_fetch(activity: &Activity) -> u64 {
    [
        Blocked::FileRead,
        Blocked::FileWrite,
        Blocked::Fault,
        Blocked::Net,
        Blocked::Unix,
        Blocked::Sync,
        Blocked::Rename,
        Blocked::FutexNet,
        Blocked::Poll,
    ]
    .iter()
    .map(|kind| activity.of(*kind))
    .sum()
}

/// Asleep in the midst of a batch for something that is neither a file nor a socket of its own (a client
/// library's lock, a service's pause, a device): the data are on their way to the producer all the same.
pub(crate) fn asleep(activity: &Activity) -> u64 {
    let helped = activity.helped();
    activity.in_futex_ns() - helped.cpu_ns - helped.runnable_ns
        + activity.of(Blocked::Sleep)
        + activity.of(Blocked::Other)
}

/// The part of a wait during which its producer was at work; `in_batch`: on the awaited batch.
fn produce(wait: &Wait<'_>, producer: &View<'_>, a_ns: u64, b_ns: u64, in_batch: bool, out: &mut Attributed) {
    let seen = producer.query(a_ns, b_ns);
    out.saw(&seen);
    let activity = &seen.activity;
    let times = &activity.times;
    let helped = activity.helped();
    let read_on_cpu_ns = (times.cpu_read_ns + opening(producer, a_ns, b_ns)).min(times.cpu_ns);
    let blocked_ns = blocked_in_fetch(activity);

    // Wrapped opens and reads also count what was read from memory on the CPU, which the kernel tells from
    // decoding only while syscalls are hooked. Their time beyond the blocked time was spent on the CPU or
    // waiting for one, in the proportion of the whole.
    let wrapped_ns = producer.shim.reading(a_ns, b_ns).saturating_sub(blocked_ns);
    let wrapped_cpu_ns = scale(wrapped_ns, times.cpu_ns, times.cpu_ns + times.runnable_ns);
    let read_on_cpu_ns = read_on_cpu_ns.max(wrapped_cpu_ns.min(times.cpu_ns));

    out.causes[Cause::Fetch] += blocked_ns + read_on_cpu_ns + asleep(activity);
    out.causes[Cause::Starved] += times.runnable_ns + helped.runnable_ns;
    out.causes[Cause::Prep] += times.cpu_ns - read_on_cpu_ns + helped.cpu_ns;
    out.moves(Cause::Starved, Cause::Fetch, helped.runnable_ns);
    out.moves(Cause::Prep, Cause::Fetch, helped.cpu_ns);

    // In a pipe a worker waits for its index; in the midst of a batch, longer than two intervals can blur,
    // it is a helper process (a decoder, say) that it waits for.
    let pipe_ns = activity.of(Blocked::Pipe);
    let helper = wait.in_process || (in_batch && wait.start_ns.is_some() && pipe_ns > 2 * wait.slice_ns);
    let cause = if helper { Cause::Prep } else { Cause::Transfer };
    out.causes[cause] += pipe_ns;
    out.causes[Cause::Prep] += activity.of(Blocked::Child);
}
