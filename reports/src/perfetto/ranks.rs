//! The tracks of the ranks, and what is on them beside the steps.

use super::trace::{Label, Place, Trace, Track};
use crate::{Error, Run};
use stallscope_model::{Phase, Segment};
use stallscope_store::Rollup;
use std::collections::{BTreeMap, HashMap};
use std::io;

/// What a track of a rank shows; in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Kind {
    Steps(Phase, u16),
    /// What the trainer did, in the steps that were kept in full.
    Trainer,
    /// The same of the worker with this pid.
    Worker(u32),
    Checkpoints,
    /// Those the trainer did not wait for; several at a time, each on a track of its own.
    Background(u16),
}

impl Kind {
    fn name(self) -> String {
        match self {
            Kind::Steps(phase, 0) => phase.name().to_owned(),
            Kind::Steps(phase, loader) => format!("{}, loader {loader}", phase.name()),
            Kind::Trainer => "trainer, in its slowest steps".to_owned(),
            Kind::Worker(pid) => format!("worker {pid}, in the slowest steps"),
            Kind::Checkpoints => "checkpoints".to_owned(),
            Kind::Background(_) => "checkpoints in the background".to_owned(),
        }
    }

    fn order(self) -> i32 {
        match self {
            Kind::Steps(phase, _) => phase as i32,
            Kind::Trainer => 10,
            Kind::Worker(_) => 11,
            Kind::Checkpoints => 20,
            Kind::Background(_) => 21,
        }
    }
}

/// Counters come first: they are what one looks at from far away.
pub(super) const COUNTERS_ORDER: i32 = -1;

/// The tracks made so far.
pub(super) struct Ranks<'a> {
    job: Track,
    hosts: HashMap<u32, &'a str>,
    groups: HashMap<u32, Track>,
    /// With the end of the last slice: no two overlap.
    tracks: HashMap<(u32, Kind), (Track, u64)>,
}

impl<'a> Ranks<'a> {
    pub(super) fn new(run: &'a Run, job: Track) -> Ranks<'a> {
        let facts = run.summary.ranks.iter().rev().map(|known| &known.facts);
        let hosts = facts.map(|facts| (facts.rank, facts.host.as_str())).collect();
        Ranks { job, hosts, groups: HashMap::new(), tracks: HashMap::new() }
    }

    pub(super) fn group(&mut self, rank: u32, trace: &mut Trace<'_>) -> io::Result<Track> {
        if let Some(group) = self.groups.get(&rank) {
            return Ok(*group);
        }
        let mut name = format!("rank {rank}");
        if let Some(host) = self.hosts.get(&rank).filter(|host| !host.is_empty()) {
            name.push_str(&format!(" on {host}"));
        }
        let order = i32::try_from(rank).unwrap_or(i32::MAX);
        let group = trace.track(&name, Place { under: Some(self.job), order })?;
        self.groups.insert(rank, group);
        Ok(group)
    }

    /// The track for a slice of these times, and the times: cut where an earlier slice goes further, since slices that
    /// overlap would be taken for nested ones.
    pub(super) fn next(
        &mut self,
        rank: u32,
        kind: Kind,
        (start_ns, end_ns): (u64, u64),
        trace: &mut Trace<'_>,
    ) -> io::Result<(Track, u64, u64)> {
        let (track, before_ns) = match self.tracks.get(&(rank, kind)) {
            Some(known) => *known,
            None => {
                let place = Place { under: Some(self.group(rank, trace)?), order: kind.order() };
                (trace.track(&kind.name(), place)?, 0)
            }
        };
        let start_ns = start_ns.max(before_ns);
        let end_ns = end_ns.max(start_ns);
        self.tracks.insert((rank, kind), (track, end_ns));
        Ok((track, start_ns, end_ns))
    }

    fn is_free(&self, rank: u32, kind: Kind, start_ns: u64) -> bool {
        self.tracks.get(&(rank, kind)).is_none_or(|(_, before_ns)| *before_ns <= start_ns)
    }
}

/// What trainer and workers did in the steps that were kept in full.
pub(super) fn tasks(run: &Run, ranks: &mut Ranks<'_>, trace: &mut Trace<'_>) -> Result<(), Error> {
    let mut segments: BTreeMap<(u32, Kind), Vec<&Segment>> = BTreeMap::new();
    for detail in &run.details {
        for lane in &detail.lanes {
            let kind = if lane.role == "trainer" { Kind::Trainer } else { Kind::Worker(lane.pid) };
            segments.entry((detail.rank, kind)).or_default().extend(&lane.segments);
        }
    }
    for ((rank, kind), mut segments) in segments {
        segments.sort_by_key(|segment| (segment.start_ns, segment.end_ns));
        for segment in segments {
            let (track, start_ns, end_ns) =
                ranks.next(rank, kind, (segment.start_ns, segment.end_ns), trace)?;
            if start_ns < end_ns {
                trace.open(track, start_ns, Label { name: segment.doing.name(), category: "task" }, &[])?;
                trace.close(track, end_ns)?;
            }
        }
    }
    Ok(())
}

/// Tracks that a rank has for them at most: in a foreign recording all may overlap, and each is looked for in all tracks. No job
/// has as many under way at once; those beyond are on the last one, cut.
const BACKGROUND: u16 = 64;

/// Every call that saved a checkpoint.
pub(super) fn checkpoints(run: &Run, ranks: &mut Ranks<'_>, trace: &mut Trace<'_>) -> Result<(), Error> {
    for event in &run.checkpoints {
        let kind = match event.background {
            false => Kind::Checkpoints,
            true => (0..BACKGROUND)
                .map(Kind::Background)
                .find(|kind| ranks.is_free(event.rank, *kind, event.start_ns))
                .unwrap_or(Kind::Background(BACKGROUND)),
        };
        let (track, start_ns, end_ns) =
            ranks.next(event.rank, kind, (event.start_ns, event.end_ns), trace)?;
        let bytes = (event.bytes > 0).then_some(("bytes", event.bytes));
        let label =
            Label { name: &format!("{} ({})", event.saver, event.cause.name()), category: "checkpoint" };
        trace.open(track, start_ns, label, bytes.as_slice())?;
        trace.close(track, end_ns)?;
    }
    Ok(())
}

/// A figure of training over time.
struct Counter {
    name: &'static str,
    unit: &'static str,
    value: fn(&Window) -> f64,
}

const COUNTERS: [Counter; 3] = [
    Counter {
        name: "samples_per_s",
        unit: "samples/s",
        value: |window| window.samples as f64 * 1e9 / window.wall_ns.max(1) as f64,
    },
    Counter {
        name: "data_stall_share",
        unit: "share",
        value: |window| window.data_stall_ns as f64 / window.wall_ns.max(1) as f64,
    },
    Counter {
        name: "checkpoint_stall_share",
        unit: "share",
        value: |window| window.checkpoint_stall_ns as f64 / window.wall_ns.max(1) as f64,
    },
];

/// A rank's training within one roll-up period, all loaders together.
#[derive(Default)]
struct Window {
    samples: u64,
    wall_ns: u64,
    data_stall_ns: u64,
    checkpoint_stall_ns: u64,
}

impl Window {
    fn add(&mut self, rollup: &Rollup) {
        let parts = [
            (&mut self.samples, rollup.samples),
            (&mut self.wall_ns, rollup.causes.total_ns()),
            (&mut self.data_stall_ns, rollup.causes.data_stall_ns()),
            (&mut self.checkpoint_stall_ns, rollup.causes.checkpoint_stall_ns()),
        ];
        for (sum, part) in parts {
            *sum = sum.saturating_add(part);
        }
    }
}

/// Samples a second and shares of stall, a value a roll-up; 0 where there was no training.
pub(super) fn counters(run: &Run, ranks: &mut Ranks<'_>, trace: &mut Trace<'_>) -> Result<(), Error> {
    let period_ns = run.rollups.first().map_or(0, |rollup| rollup.period.ns());
    let mut by_rank: BTreeMap<u32, BTreeMap<u64, Window>> = BTreeMap::new();
    for rollup in run.rollups.iter().filter(|rollup| rollup.phase == Phase::Training) {
        by_rank.entry(rollup.rank).or_default().entry(rollup.start_ns).or_default().add(rollup);
    }
    for (rank, windows) in by_rank {
        let group = ranks.group(rank, trace)?;
        for counter in &COUNTERS {
            let place = Place { under: Some(group), order: COUNTERS_ORDER };
            let track = trace.counter_track(counter.name, counter.unit, place)?;
            let starts = windows.keys().skip(1).map(Some).chain([None]);
            for ((start_ns, window), next) in windows.iter().zip(starts) {
                trace.count(track, *start_ns, (counter.value)(window))?;
                let end_ns = start_ns.saturating_add(period_ns);
                // A clock that was slewed puts the next one a little later.
                if next.is_none_or(|next| *next > end_ns.saturating_add(period_ns / 2)) {
                    trace.count(track, end_ns, 0.0)?;
                }
            }
        }
    }
    Ok(())
}
