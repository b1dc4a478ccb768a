//! How single batches were made: a sample of them, for the model of the job.
//!
//! Which batches are looked at is chosen when they become ready, before anything is computed: by chance, so that the
//! choice falls into step with nothing, and the slow ones always, as they are few and what prefetch is there for.

use crate::Config;
use crate::at_once::span;
use crate::attribute::{asleep, blocked_in_fetch};
use crate::process::{Process, ProcessKind};
use crate::rank::{Processes, Rank, owner};
use crate::timeline::{Activity, scale};
use stallscope_abi::kernel::Blocked;
use stallscope_abi::lane::Batch;
use stallscope_model::BatchService;
use std::collections::{BTreeMap, VecDeque};

const SECOND_NS: u64 = 1_000_000_000;
/// Of one rank in a second.
const A_RANK: u64 = 20;
/// Of these, kept for the slow ones where not all batches can be kept.
const A_RANK_SLOW: u64 = 6;
/// Times the mean of the batches before.
const SLOW: f64 = 3.0;
/// Of all ranks together in a second: looking at a batch takes up to some tens of microseconds for each worker of its
/// rank.
const A_SECOND: u64 = 40;
/// Batches that wait for evidence, and services that wait to be taken.
const MAX_WAITING: usize = 4096;
/// What a worker did is remembered for a batch as long as this, as far as capacity allows.
const LONGEST_BATCH_NS: u64 = 30 * SECOND_NS;
/// Parts into which the making of a batch is cut to see who else was at work, where its samples are not distinguished,
/// and at most where they are.
const WINDOWS: u64 = 16;
const MAX_WINDOWS: usize = 32;
/// A sample that was blocked for less has come from memory.
const SHORTEST_READ_NS: f64 = 50e3;

/// A batch that was chosen.
#[derive(Clone, Copy, Debug)]
struct Due {
    pid: u32,
    start_ns: u64,
    ready_ns: u64,
    made: Made,
    weight: f64,
    slow: bool,
}

/// What is in a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Made {
    /// 0 where they were not reported.
    pub(crate) samples: u32,
    /// Of these, what its loader's cache did not have; `None` without one.
    pub(crate) missed: Option<u32>,
}

/// One that was looked at, and who made it: which worker of which loader that is may not be known yet.
#[derive(Clone, Debug)]
struct Seen {
    pid: u32,
    until_ns: u64,
    service: BatchService,
}

#[derive(Debug, Default)]
pub(crate) struct Services {
    second: u64,
    /// Batches made in this second, and in the one before.
    made: u64,
    made_before: u64,
    slow: u64,
    /// Of late, how long the making of a batch took.
    mean_ns: f64,
    /// By second and rank, of the last minute.
    taken: BTreeMap<(u64, u32), u64>,
    due: VecDeque<Due>,
    seen: VecDeque<Seen>,
}

impl Services {
    /// A process reported a batch that it made.
    pub(crate) fn batch(&mut self, pid: u32, ready_ns: u64, batch: &Batch, made: Made, ranks: usize) {
        let second = ready_ns / SECOND_NS;
        if second > self.second {
            self.made_before = if second == self.second + 1 { self.made } else { 0 };
            (self.second, self.made, self.slow) = (second, 0, 0);
            self.taken = self.taken.split_off(&(second.saturating_sub(60), 0));
        }
        self.made += 1;
        let ranks = (ranks as u64).max(1);
        let wanted = (ranks * A_RANK).min(A_SECOND);
        let of = self.made_before.max(self.made);
        let Some(taken_ns) = ready_ns.checked_sub(batch.start_ns).filter(|ns| *ns > 0) else { return };
        let mean_ns = if self.mean_ns > 0.0 { self.mean_ns } else { taken_ns as f64 };
        self.mean_ns = mean_ns + (taken_ns as f64 - mean_ns) / 64.0;
        // Where all can be kept none is special.
        let for_slow = if of > wanted { wanted * A_RANK_SLOW / A_RANK } else { 0 };
        let slow = taken_ns as f64 > SLOW * mean_ns && self.slow < for_slow;
        let weight = if slow {
            self.slow += 1;
            1.0
        } else if draw(ready_ns, pid) % of < wanted - for_slow {
            of as f64 / (wanted - for_slow).min(of) as f64
        } else {
            return;
        };
        self.due.push_back(Due { pid, start_ns: batch.start_ns, ready_ns, made, weight, slow });
        if self.due.len() > MAX_WAITING {
            self.due.pop_front();
        }
    }

    /// Looks at the batches whose evidence has arrived, or has been waited for long enough.
    pub(crate) fn advance(
        &mut self,
        processes: &Processes,
        ranks: &BTreeMap<u32, Rank>,
        config: &Config,
        now_ns: u64,
    ) {
        if self.due.is_empty() {
            return;
        }
        let workers = workers_of(processes, ranks);
        for due in std::mem::take(&mut self.due) {
            let Some(process) = processes.get(&due.pid) else { continue };
            let rank_pid = match process.facts.kind {
                ProcessKind::Worker => owner(due.pid, processes, |pid| ranks.contains_key(&pid)),
                _ => Some(due.pid),
            };
            let Some(rank) = rank_pid.and_then(|pid| ranks.get(&pid)) else { continue };
            // Those of the epoch before made no batch beside this one; one that is gone by now may have.
            let team: Vec<&Process> = workers
                .get(&rank.pid)
                .into_iter()
                .flatten()
                .copied()
                .filter(|other| overlap_ns(life(other), (due.start_ns, due.ready_ns)) > 0)
                .collect();
            let waits = now_ns.saturating_sub(due.ready_ns) < config.patience_ns;
            if waits && !team.iter().copied().chain([process]).all(|member| member.covers(due.ready_ns)) {
                self.due.push_back(due);
                continue;
            }
            let taken = self.taken.entry((due.ready_ns / SECOND_NS, rank.number)).or_default();
            // In the first second it is not known yet how many there are.
            if *taken >= A_RANK && !due.slow {
                continue;
            }
            if let Some(mut service) = look(&due, process, &team) {
                *taken += 1;
                service.rank = rank.number;
                (service.loader, service.worker) = process.place();
                let until_ns = due.ready_ns.saturating_add(10 * SECOND_NS);
                self.seen.push_back(Seen { pid: due.pid, until_ns, service });
            }
        }
        if self.seen.len() > MAX_WAITING {
            self.seen.drain(..self.seen.len() - MAX_WAITING);
        }
    }

    /// Those whose worker is known by now, or will never be better known. A batch that nobody took, of an iterator that was
    /// dropped, says nothing of any loader.
    pub(crate) fn take(&mut self, processes: &Processes, now_ns: u64, patience_ns: u64) -> Vec<BatchService> {
        let mut out = Vec::new();
        self.seen.retain_mut(|seen| {
            let process = processes.get(&seen.pid);
            if let Some(process) = process.filter(|process| process.is_placed(now_ns, patience_ns)) {
                (seen.service.loader, seen.service.worker) = process.place();
            } else if process.is_some() && now_ns < seen.until_ns {
                return true;
            }
            if seen.service.loader != u16::MAX {
                out.push(seen.service.clone());
            }
            false
        });
        out
    }

    /// From when on evidence is needed, of every process that was there, for batches that no step has asked for yet.
    pub(crate) fn needs_from_ns(&self, horizon_ns: u64) -> u64 {
        let from_ns = self.due.iter().map(|due| due.start_ns).fold(horizon_ns, u64::min);
        from_ns.max(horizon_ns.saturating_sub(LONGEST_BATCH_NS))
    }
}

/// From when on evidence of a process is needed, beyond `needed_ns`, for the batch that it makes.
pub(crate) fn makes_from_ns(process: &Process, needed_ns: u64, horizon_ns: u64) -> u64 {
    let made_ns = process.shim.last_ready_ns.filter(|_| process.facts.kind == ProcessKind::Worker);
    made_ns
        .map_or(needed_ns, |made_ns| needed_ns.min(made_ns.max(horizon_ns.saturating_sub(LONGEST_BATCH_NS))))
}

/// As good as chance: batches become ready at no certain nanosecond.
pub(crate) fn draw(time_ns: u64, pid: u32) -> u64 {
    let mixed = (time_ns ^ (u64::from(pid) << 40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 29)) >> 16
}

fn workers_of<'a>(processes: &'a Processes, ranks: &BTreeMap<u32, Rank>) -> BTreeMap<u32, Vec<&'a Process>> {
    let mut workers: BTreeMap<u32, Vec<&Process>> = BTreeMap::new();
    for (pid, process) in processes {
        if process.facts.kind == ProcessKind::Worker
            && let Some(of) = owner(*pid, processes, |pid| ranks.contains_key(&pid))
        {
            workers.entry(of).or_default().push(process);
        }
    }
    workers
}

/// `None` where more than a tenth of the batch's time is not accounted for any more, or next to nothing of who read
/// beside it.
fn look(due: &Due, process: &Process, team: &[&Process]) -> Option<BatchService> {
    let (start_ns, ready_ns) = (due.start_ns, due.ready_ns);
    let seen = process.view().query(start_ns, ready_ns);
    if seen.gap_ns > (ready_ns - start_ns) / 10 {
        return None;
    }
    let samples = process.shim.sample_starts(start_ns, ready_ns);
    let by_sample = samples.len() > 1;
    let edges = if by_sample { thinned(samples) } else { Vec::new() };
    let edges = if edges.is_empty() { even(start_ns, ready_ns) } else { edges };
    let own = windows(process, &edges, ready_ns);
    let others: Vec<Vec<Window>> = team
        .iter()
        .filter(|other| other.facts.pid != due.pid)
        .map(|other| windows(other, &edges, ready_ns))
        .collect();
    // Unknown where one of them is.
    let beside = |share: fn(&Window) -> Option<f64>, at: usize| {
        others.iter().map(|other| share(&other[at])).try_fold(1.0, |sum, share| Some(sum + share?))
    };
    let readers: Vec<Option<f64>> = (0..own.len()).map(|at| beside(Window::reading, at)).collect();
    let length_ns =
        |at: usize| edges.get(at + 1).copied().unwrap_or(ready_ns).saturating_sub(edges[at]) as f64;
    let with_readers = mean((0..own.len()).map(|at| (own[at].reading_ns, readers[at])));
    let with_makers = mean((0..own.len()).map(|at| (length_ns(at), beside(Window::busy, at))));
    if with_readers.is_none() && own.iter().any(|window| window.reading_ns > 0.0) {
        return None;
    }
    let times = &seen.activity.times;
    let mut service = BatchService {
        start_ns,
        ready_ns,
        samples: due.made.samples,
        missed: due.made.missed,
        weight: due.weight,
        fetch_ns: reading(&seen.activity),
        cpu_ns: times.cpu_ns,
        runnable_ns: times.runnable_ns,
        read_bytes: process.bytes_read(start_ns, ready_ns).filter(|_| is_counted(process, team)),
        readers: with_readers.unwrap_or(0.0),
        makers: with_makers.unwrap_or(1.0),
        cpu_read_ns: times.cpu_read_ns.min(times.cpu_ns),
        ..BatchService::default()
    };
    if by_sample {
        let read = |at: usize| {
            let ahead = beside(|window| window.reading_at_start, at)?;
            Some(Read { ns: own[at].reading_ns, readers: readers[at]?, ahead })
        };
        let reads: Vec<Read> =
            (0..own.len()).filter_map(read).filter(|read| read.ns >= SHORTEST_READ_NS).collect();
        service.reads = u32::try_from(reads.len()).unwrap_or(u32::MAX);
        (service.readers_spread, service.readers_effect_ns) = regress(&reads, |read| read.readers);
        (service.ahead_spread, service.ahead_effect_ns) = regress(&reads, |read| read.ahead);
    }
    Some(service)
}

/// Whether storage counts most of what it gives to those who make batches, as FUSE does not. Of all of them together: what one has
/// begun to read ahead, and others wait for, is counted with that one alone.
fn is_counted(process: &Process, team: &[&Process]) -> bool {
    let others = team.iter().copied().filter(|other| other.facts.pid != process.facts.pid);
    let (counted, uncounted) = others.chain([process]).map(Process::counted_and_not).fold(
        (0_u64, 0_u64),
        |(counted, uncounted), (more, more_uncounted)| {
            (counted.saturating_add(more), uncounted.saturating_add(more_uncounted))
        },
    );
    uncounted <= counted
}

/// A sample that was blocked in a read, and the readers beside it, itself included: on average, and when it began.
#[derive(Clone, Copy, Debug)]
struct Read {
    ns: f64,
    readers: f64,
    ahead: f64,
}

/// What the samples of one batch tell of how readers hold each other up: spread and effect, 0 for fewer than three samples.
/// Within a batch, so that what differs from batch to batch plays no part.
fn regress(reads: &[Read], readers: fn(&Read) -> f64) -> (f64, f64) {
    if reads.len() < 3 {
        return (0.0, 0.0);
    }
    let count = reads.len() as f64;
    let mean = |of: &dyn Fn(&Read) -> f64| reads.iter().map(of).sum::<f64>() / count;
    let (mean_ns, mean_readers) = (mean(&|read| read.ns), mean(&readers));
    let spread = reads.iter().map(|read| (readers(read) - mean_readers).powi(2)).sum();
    let effect_ns =
        reads.iter().map(|read| (readers(read) - mean_readers) * (read.ns - mean_ns) * count).sum();
    (spread, effect_ns)
}

/// Every so many of them that no more are left than a batch is cut into.
fn thinned(starts: Vec<u64>) -> Vec<u64> {
    let every = starts.len().div_ceil(MAX_WINDOWS).max(1);
    starts.into_iter().step_by(every).collect()
}

fn even(start_ns: u64, ready_ns: u64) -> Vec<u64> {
    (0..WINDOWS).map(|at| start_ns + scale(ready_ns - start_ns, at, WINDOWS)).collect()
}

/// Blocked: what a read costs on a CPU is the CPU's.
fn reading(activity: &Activity) -> u64 {
    blocked_in_fetch(activity).saturating_add(asleep(activity))
}

/// What a process did in a part of a batch's time.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    length_ns: f64,
    /// For as long it was there, and for as long of that it is known what it did.
    there_ns: f64,
    known_ns: f64,
    reading_ns: f64,
    /// Everything but waiting in a pipe, where workers wait for an index.
    busy_ns: f64,
    /// Share of the time about its start; `None` where that is not known.
    reading_at_start: Option<f64>,
}

impl Window {
    /// Share of it; `None` where less than half of what it did is known.
    fn share(&self, of_ns: f64) -> Option<f64> {
        if self.there_ns <= 0.0 {
            return Some(0.0);
        }
        (self.known_ns >= self.there_ns / 2.0)
            .then(|| (of_ns / self.known_ns) * (self.there_ns / self.length_ns).min(1.0))
    }

    fn reading(&self) -> Option<f64> {
        self.share(self.reading_ns)
    }

    fn busy(&self) -> Option<f64> {
        self.share(self.busy_ns)
    }
}

/// Mean of what is known, by weight; `None` where that is less than a tenth.
fn mean(values: impl Iterator<Item = (f64, Option<f64>)>) -> Option<f64> {
    let (mut all, mut known, mut sum) = (0.0, 0.0, 0.0);
    for (weight, value) in values {
        all += weight;
        if let Some(value) = value {
            known += weight;
            sum += weight * value;
        }
    }
    (known > 0.0 && known >= all / 10.0).then(|| sum / known)
}

/// From when to when it was there, of which its first evidence comes when that ends.
fn life(process: &Process) -> (u64, u64) {
    let (from_ns, to_ns) = span(process);
    (process.view().begins_ns().map_or(from_ns, |first_ns| first_ns.min(from_ns)), to_ns)
}

fn overlap_ns(a: (u64, u64), b: (u64, u64)) -> u64 {
    a.1.min(b.1).saturating_sub(a.0.max(b.0))
}

/// One window from each edge to the next, the last to `ready_ns`.
fn windows(process: &Process, edges: &[u64], ready_ns: u64) -> Vec<Window> {
    let there = life(process);
    let window = |at: usize| {
        let (from_ns, to_ns) = (edges[at], edges.get(at + 1).copied().unwrap_or(ready_ns));
        Window {
            length_ns: to_ns.saturating_sub(from_ns) as f64,
            there_ns: overlap_ns(there, (from_ns, to_ns)) as f64,
            reading_at_start: (there.0 > from_ns || from_ns >= there.1).then_some(0.0),
            ..Window::default()
        }
    };
    let mut windows: Vec<Window> = (0..edges.len()).map(window).collect();
    let Some(first_ns) = edges.first() else { return windows };
    let mut at = 0;
    process.view().each(*first_ns, ready_ns, |from, to, activity| {
        let Some(activity) = activity else { return };
        let length_ns = (to - from) as f64;
        let reading_share = reading(activity) as f64 / length_ns;
        let busy_share = 1.0 - activity.of(Blocked::Pipe) as f64 / length_ns;
        let mut from = from;
        while from < to {
            while edges.get(at + 1).is_some_and(|edge| *edge <= from) {
                at += 1;
            }
            let end = edges.get(at + 1).map_or(to, |edge| to.min(*edge));
            let part_ns = (end - from) as f64;
            if edges[at] == from {
                windows[at].reading_at_start = Some(reading_share);
            }
            windows[at].known_ns += part_ns;
            windows[at].reading_ns += part_ns * reading_share;
            windows[at].busy_ns += part_ns * busy_share;
            from = end;
        }
    });
    windows
}
