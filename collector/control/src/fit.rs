//! How reading depends on concurrent readers, from the batches that were made.
//!
//! The reading of a batch takes `L + D n` beside n readers (itself included): `L` is latency, which any number of
//! readers can wait out at the same time, `D` is what storage needs for it alone. Within a batch the readers beside
//! it come and go, so that the time its samples take, regressed on their number, gives `D` (collector/ledger,
//! services.rs); over batches it does so where the number of workers was changed.
//!
//! Which number that is depends on how storage shares itself out. Where all are served at once it is the mean while a sample
//! is read. Where one is served after the other a sample waits for those that were there before it, and one that comes later,
//! as its worker was late for a core, changes nothing: there it is the number at the beginning. Each of the two shows
//! less than there is where the other holds, so the larger effect counts, and where one of them never differs nothing is known.

use crate::profile::Profile;
use crate::random::Random;
use stallscope_model::{BatchService, Cause};
use std::cmp::Ordering;
use std::collections::VecDeque;

/// Resamples for an interval.
const RESAMPLES: usize = 200;
/// Storage that pauses all readers together and then serves all of them holds a limit over a time rather than being
/// busy: what looks like the effect of one reader more is then larger than it could be by sharing.
const LIMITED: f64 = 1.5;
/// A limit of the kernel (blk-throttle) or of a cloud's disks is held over about this long.
const CREDIT_NS: f64 = 100e6;

/// Resamples that are drawn for one that determines the fit.
const DRAWS: usize = 20;
/// Batches that a window has which is looked at by itself.
const SHORTEST: usize = 40;

/// What reading is made of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Reading {
    /// Share of reading time that is `D n`: 0 for pure latency, 1 for a pure limit.
    pub(crate) shared: f64,
    /// Whether the limit is held over a time.
    pub(crate) limited: bool,
    /// Nanoseconds that the limit needs for a batch at least, where it is held over a time.
    pub(crate) batch_ns: f64,
}

impl Reading {
    /// The ends of what may be: each read takes its time; storage serves one read after the other; or it gives no more
    /// than now, in whichever order requests come.
    pub(crate) fn extremes(profile: &Profile) -> [Reading; 3] {
        let batch_ns = limit_ns(profile);
        [(0.0, false), (1.0, false), (1.0, true)].map(|(shared, limited)| Reading {
            shared,
            limited,
            batch_ns,
        })
    }
}

/// What is known of the reading.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Fit {
    /// Of [`Reading::shared`], 95%; 0 to 1 where the evidence does not narrow it.
    pub(crate) low: f64,
    pub(crate) high: f64,
    /// One for each resample of the batches, in the order of what is shared.
    pub(crate) readings: Vec<Reading>,
}

impl Fit {
    pub(crate) fn new(profile: &Profile, random: &mut Random) -> Fit {
        let services: Vec<&BatchService> = profile.services.iter().collect();
        let telling = telling(&services);
        let (tells, services) = (telling.is_some(), telling.unwrap_or(&services));
        let batch_ns = limit_ns(profile);
        let mut readings: Vec<Reading> = (0..RESAMPLES)
            .map(|_| {
                // Without evidence anything is possible, including a limit that is enforced over a period.
                let raw = if tells { resampled(services, random) } else { 2.0 * random.unit() };
                Reading { shared: raw.clamp(0.0, 1.0), limited: raw > LIMITED, batch_ns }
            })
            .collect();
        if !reads_at_all(profile) {
            readings.iter_mut().for_each(|reading| reading.shared = 0.0);
        }
        readings.sort_by(|a, b| {
            (a.shared, a.limited).partial_cmp(&(b.shared, b.limited)).unwrap_or(Ordering::Equal)
        });
        let at = |share: f64| readings[((RESAMPLES - 1) as f64 * share).round() as usize].shared;
        let (low, high) = if tells { (at(0.025), at(0.975)) } else { (0.0, 1.0) };
        Fit { low, high, readings }
    }

    /// Neither latency nor limit, by more than a half.
    pub(crate) fn is_unknown(&self) -> bool {
        self.high - self.low > 0.5
    }
}

/// The share of a resample. One that has left out all the batches with other readers says nothing, so that it is drawn
/// again.
fn resampled(services: &[&BatchService], random: &mut Random) -> f64 {
    for _ in 0..DRAWS {
        let drawn: Vec<&BatchService> =
            blocks(services.len(), services.len(), random).into_iter().map(|at| services[at]).collect();
        if tells(&drawn) {
            return raw_share(&drawn);
        }
    }
    raw_share(services)
}

/// Whether there were readers enough beside others, and not always as many.
fn tells(services: &[&BatchService]) -> bool {
    let within = |spread: fn(&BatchService) -> f64| services.iter().map(|one| spread(one)).sum::<f64>() > 1.0;
    services.iter().filter(|service| service.reads > 2).count() >= 10
        && within(|service| service.readers_spread)
        && within(|service| service.ahead_spread)
        || between(services).0 > 0.1 * services.len() as f64
}

/// All of them, where they determine the fit; else a window that does, the newest first: one worker fewer for a few batches is lost in all the
/// others, and shows beside its neighbours.
fn telling<'a, 'b>(services: &'a [&'b BatchService]) -> Option<&'a [&'b BatchService]> {
    let mut length = services.len();
    loop {
        let starts = (0..=services.len() - length).rev().step_by((length / 2).max(1));
        let found = starts.map(|start| &services[start..start + length]).find(|window| tells(window));
        if found.is_some() || length / 2 < SHORTEST {
            return found;
        }
        length /= 2;
    }
}

/// Whether reading is a twentieth of the making of batches.
pub(crate) fn reads_at_all(profile: &Profile) -> bool {
    let sum =
        |of: fn(&BatchService) -> u64| profile.services.iter().map(of).fold(0, u64::saturating_add) as f64;
    sum(|service| service.fetch_ns) > 0.05 * sum(|service| service.ready_ns - service.start_ns)
}

/// The time that a batch has at the pace of workers that never pause: a limit that training waits for is reached, but in the
/// time for which they have nothing to do it is not.
fn limit_ns(profile: &Profile) -> f64 {
    let wall_ns: f64 = profile.steps.iter().map(|step| step.wall_ns).sum();
    let fetch_ns: u64 = profile.steps.iter().map(|step| step.causes[Cause::Fetch]).sum();
    let waits = fetch_ns as f64 > 0.05 * wall_ns;
    if !waits {
        return 0.0;
    }
    let steps = profile.steps.len() as f64;
    // Those of the setting of now: a step takes one.
    let (mut batches, mut making_ns) = (0.0, 0.0);
    for service in profile.services.iter().rev() {
        if batches >= steps {
            break;
        }
        batches += weight(service);
        making_ns += weight(service) * (service.ready_ns - service.start_ns) as f64;
    }
    let step_ns = wall_ns / steps;
    match profile.workers {
        0 => step_ns,
        workers => step_ns.min(making_ns / batches.max(1.0) / f64::from(workers)),
    }
}

/// `D n / (L + D n)` at the mean number of readers, as the regression has it: noise and limits may take it beyond 0
/// and 1.
fn raw_share(services: &[&BatchService]) -> f64 {
    let (spread, effect_ns) = between(services);
    let sum = |of: fn(&BatchService) -> f64| services.iter().map(|service| of(service)).sum::<f64>();
    let slope = |within: f64, within_effect_ns: f64| match spread + within {
        all if all > 0.0 => (effect_ns + within_effect_ns) / all,
        _ => 0.0,
    };
    let slope_ns = slope(sum(|one| one.readers_spread), sum(|one| one.readers_effect_ns))
        .max(slope(sum(|one| one.ahead_spread), sum(|one| one.ahead_effect_ns)));
    let fetch_ns: f64 = services.iter().map(|service| service.fetch_ns as f64).sum();
    let with_readers: f64 = services.iter().map(|service| service.fetch_ns as f64 * service.readers).sum();
    let mean_ns = fetch_ns / services.len().max(1) as f64;
    if mean_ns > 0.0 { slope_ns * (with_readers / fetch_ns) / mean_ns } else { 0.0 }
}

/// Spread and effect over batches; none where their readers differ by chance alone.
fn between(services: &[&BatchService]) -> (f64, f64) {
    let reading: Vec<(f64, f64)> = services
        .iter()
        .filter(|service| service.fetch_ns > 0)
        .map(|service| (service.readers, service.fetch_ns as f64))
        .collect();
    let mean = |of: fn(&(f64, f64)) -> f64| reading.iter().map(of).sum::<f64>() / reading.len().max(1) as f64;
    let (mean_readers, mean_ns) = (mean(|read| read.0), mean(|read| read.1));
    let spread: f64 = reading.iter().map(|read| (read.0 - mean_readers).powi(2)).sum();
    let effect_ns = reading.iter().map(|read| (read.0 - mean_readers) * (read.1 - mean_ns)).sum();
    if spread > 0.1 * reading.len() as f64 { (spread, effect_ns) } else { (0.0, 0.0) }
}

/// Mean of 1/n where n, which is whole, has the mean `readers`: nearly all of the time it is one of the two next to it.
pub(crate) fn mean_inverse(readers: f64) -> f64 {
    let below = readers.max(1.0).floor();
    let above_share = readers.max(1.0) - below;
    (1.0 - above_share) / below + above_share / (below + 1.0)
}

/// Nanoseconds that storage needs alone for a batch, and those of latency.
pub(crate) fn demands(service: &BatchService, reading: &Reading) -> (f64, f64) {
    let fetch_ns = service.fetch_ns as f64;
    let alone_ns = reading.shared * fetch_ns * mean_inverse(service.readers);
    let alone_ns = if reading.limited { alone_ns.max(reading.batch_ns) } else { alone_ns };
    (alone_ns, (1.0 - reading.shared) * fetch_ns)
}

pub(crate) fn credit_ns(reading: &Reading) -> f64 {
    if reading.limited { CREDIT_NS } else { 0.0 }
}

/// How many batches one stands for.
pub(crate) fn weight(service: &BatchService) -> f64 {
    service.weight.max(1.0)
}

/// `wanted` indices of batches, each as often as it stands for others. Where all of them were reported, what is correlated
/// stays so.
pub(crate) fn batches(services: &VecDeque<BatchService>, wanted: usize, random: &mut Random) -> Vec<usize> {
    let mut ends: Vec<f64> = Vec::with_capacity(services.len());
    let mut sum = 0.0;
    for service in services {
        sum += weight(service);
        ends.push(sum);
    }
    if sum <= services.len() as f64 * 1.01 {
        return blocks(services.len(), wanted, random);
    }
    let last = ends.len().saturating_sub(1);
    (0..wanted)
        .map(|_| random.unit() * sum)
        .map(|at| ends.partition_point(|end| *end <= at).min(last))
        .collect()
}

/// `wanted` indices of a series of `length`, in blocks that follow each other as they did: what is correlated stays
/// so (moving block bootstrap, Künsch 1989; blocks of the root of the length).
pub(crate) fn blocks(length: usize, wanted: usize, random: &mut Random) -> Vec<usize> {
    let block = (length as f64).sqrt().ceil() as usize;
    let mut drawn = Vec::with_capacity(wanted + block);
    while drawn.len() < wanted && length > 0 {
        let from = random.below(length);
        drawn.extend((from..from + block).map(|at| at % length));
    }
    drawn.truncate(wanted);
    drawn
}
