//! A run as reports show it: one recording, or several of one job.

mod clock;
mod walls;

pub use walls::StepWalls;

use crate::{Error, merge};
use clock::Clock;
use stallscope_model::{
    AuditEvent, CachePeriod, CheckpointEvent, HostFacts, Phase, RunSummary, StepDetail, WorkerPeriod,
};
use stallscope_store::{Recording, Rollup, RollupPeriod, State, StepFilter, StepRow};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::{Path, PathBuf};
use walls::Walls;

/// Roll-ups of ten seconds are shown for runs up to this long; for longer ones those of a minute.
const FINE_UP_TO_NS: u64 = 2 * 3600 * 1_000_000_000;

/// Steps that are kept in full, the slowest of each recording: a day of eight ranks has 35,000.
const DETAILS: usize = 2000;
/// Workers' periods are read an hour at a time.
const HOUR_NS: u64 = 3600 * 1_000_000_000;

/// A run as reports show it: one recording, or several of one job merged. All times, those of roll-ups, details,
/// checkpoints, workers, the audit and steps too, are on the wall clock: nanoseconds since the epoch.
#[derive(Clone, Debug)]
pub struct Run {
    pub summary: RunSummary,
    /// The recordings; empty for a running job that was asked over its socket.
    pub sources: Vec<Source>,
    /// The machines it ran on, each once.
    pub hosts: Vec<HostFacts>,
    /// What a reader should know of this report: a clock that was set, a rank that is missing, what could not be
    /// read. One sentence each.
    pub notes: Vec<String>,
    /// How long a roll-up and a period of a worker or a cache is here.
    pub period: RollupPeriod,
    /// By time.
    pub rollups: Vec<Rollup>,
    /// The slowest first, at most 2,000 of a recording.
    pub details: Vec<StepDetail>,
    /// By time.
    pub checkpoints: Vec<CheckpointEvent>,
    /// By time; of several recordings with lines and decisions numbered anew.
    pub audit: Vec<AuditEvent>,
    /// By time.
    pub workers: Vec<WorkerPeriod>,
    /// By time.
    pub caches: Vec<CachePeriod>,
    /// Training steps by wall time, in logarithmic buckets; by rank, then by time.
    pub step_walls: Vec<StepWalls>,
    pub(crate) files: Vec<StepFile>,
}

/// A recording behind a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    pub path: PathBuf,
    pub host: String,
    pub state: State,
    /// Version of the recording's tables.
    pub format: i64,
    /// When it was last written to.
    pub written_wall_ns: u64,
}

/// Where single steps are read from.
#[derive(Clone, Debug)]
pub(crate) struct StepFile {
    pub(crate) path: PathBuf,
    clock: Clock,
}

impl Run {
    /// Reads recordings: one, or several of one job, whose clocks are aligned and whose job ledger is made again
    /// over all their ranks.
    ///
    /// # Errors
    /// One cannot be read, they are of different jobs, or a rank is in two of them. What is damaged beside the
    /// summary is left out, and [`Run::notes`] says so.
    pub fn open(paths: &[PathBuf]) -> Result<Run, Error> {
        let read = |least| paths.iter().map(|path| Run::read(path, least)).collect::<Result<Vec<_>, _>>();
        let mut runs = read(RollupPeriod::TenSeconds)?;
        if runs.iter().any(|run| run.period != runs[0].period) {
            runs = read(RollupPeriod::Minute)?;
        }
        let mut run = match runs.len() {
            0 => return Err(Error::NoRecording),
            1 => runs.remove(0),
            _ => merge::all(runs)?,
        };
        run.notes.extend(merge::missing_ranks(&run.summary.ranks));
        Ok(run)
    }

    /// A running job over its socket: what is in its summary, and nothing else.
    pub fn of_summary(summary: RunSummary) -> Run {
        Run {
            sources: Vec::new(),
            hosts: vec![summary.host.clone()],
            notes: Vec::new(),
            period: RollupPeriod::TenSeconds,
            rollups: Vec::new(),
            details: Vec::new(),
            checkpoints: Vec::new(),
            audit: Vec::new(),
            workers: Vec::new(),
            caches: Vec::new(),
            step_walls: Vec::new(),
            files: Vec::new(),
            summary,
        }
    }

    /// Every step, read from the recordings once more: one recording after the other, and within it in the order in
    /// which steps were closed.
    ///
    /// # Errors
    /// A recording is damaged, or `each` failed.
    pub fn each_step(&self, mut each: impl FnMut(&StepRow) -> Result<(), Error>) -> Result<(), Error> {
        for file in &self.files {
            let recording = Recording::open(&file.path)?;
            for row in recording.steps(&StepFilter::default())? {
                each(&file.on_the_wall(row?))?;
            }
        }
        Ok(())
    }

    /// Reads one recording, its roll-ups not finer than `least`.
    fn read(path: &Path, least: RollupPeriod) -> Result<Run, Error> {
        let recording = Recording::open(path)?;
        let mut summary = recording.summary()?;
        let source = Source {
            path: path.to_path_buf(),
            host: summary.host.host.clone(),
            state: recording.state()?,
            format: recording.format(),
            written_wall_ns: recording.written_wall_ns()?,
        };
        let mut notes = Vec::new();
        let mut part = |what: &str, error: stallscope_store::Error| {
            notes.push(format!("{what} are missing: {error}"));
        };
        let anchors = recording.anchors().unwrap_or_else(|error| {
            part("its clocks", error);
            Vec::new()
        });
        let mut rollups = rollups(&recording, least).unwrap_or_else(|error| {
            part("its roll-ups", error);
            Vec::new()
        });
        let mut details = recording.slowest_steps(DETAILS).unwrap_or_else(|error| {
            part("its single steps", error);
            Vec::new()
        });
        let mut checkpoints = recording.checkpoints().unwrap_or_else(|error| {
            part("its checkpoints", error);
            Vec::new()
        });
        let mut audit = recording.audit(0).unwrap_or_else(|error| {
            part("its audit", error);
            Vec::new()
        });
        let period = rollups.first().map_or(least, |rollup| rollup.period);
        let mut workers = workers(&recording, period).unwrap_or_else(|error| {
            part("its workers over time", error);
            Vec::new()
        });
        let mut caches = caches(&recording, period).unwrap_or_else(|error| {
            part("its caches over time", error);
            Vec::new()
        });
        let step_walls = step_walls(&recording).unwrap_or_else(|error| {
            part("its step times", error);
            Vec::new()
        });
        let (mut clock, clock_notes) = Clock::new(&anchors, &source.host);
        notes.extend(clock_notes);
        if !clock.was_read() {
            let first_ns = rollups.iter().map(|rollup| rollup.start_ns).min();
            clock = Clock::guess(first_ns.unwrap_or(0), summary.job.started_wall_ns);
            if first_ns.is_some() {
                notes.push(format!("the clocks of {} were never read: its times are a guess", name(path)));
            }
        }
        summary.job.started_wall_ns = clock.corrected(summary.job.started_wall_ns);
        for rollup in &mut rollups {
            rollup.start_ns = clock.wall_ns(rollup.start_ns);
        }
        for detail in &mut details {
            on_the_wall(detail, &clock);
        }
        details.sort_by_key(|step| (std::cmp::Reverse(step.end_ns - step.start_ns), step.rank, step.index));
        for event in &mut checkpoints {
            (event.start_ns, event.end_ns) = clock.moved(event.start_ns, event.end_ns);
        }
        checkpoints.sort_by_key(|event| (event.start_ns, event.rank));
        for event in &mut audit {
            event.time_ns = clock.wall_ns(event.time_ns);
        }
        for period in &mut workers {
            period.start_ns = clock.wall_ns(period.start_ns);
        }
        workers.sort_by_key(|period| (period.start_ns, period.rank, period.loader, period.worker));
        for period in &mut caches {
            period.start_ns = clock.wall_ns(period.start_ns);
        }
        caches.sort_by_key(|period| (period.start_ns, period.rank, period.loader, period.phase));
        for rank in &mut summary.ranks {
            if rank.facts.host.is_empty() {
                rank.facts.host.clone_from(&source.host);
            }
        }
        Ok(Run {
            hosts: vec![summary.host.clone()],
            notes,
            period,
            rollups,
            details,
            checkpoints,
            audit,
            workers,
            caches,
            step_walls,
            files: vec![StepFile { path: path.to_path_buf(), clock }],
            sources: vec![source],
            summary,
        })
    }
}

impl StepFile {
    /// A row of this file with its times on the wall clock.
    pub(crate) fn on_the_wall(&self, mut row: StepRow) -> StepRow {
        (row.step.start_ns, row.step.end_ns) = self.clock.moved(row.step.start_ns, row.step.end_ns);
        row
    }
}

/// The finest roll-ups that suit the run's length and reach back to its beginning.
fn rollups(recording: &Recording, least: RollupPeriod) -> Result<Vec<Rollup>, stallscope_store::Error> {
    let minutes = recording.rollups(RollupPeriod::Minute)?;
    let (Some(first), Some(last)) = (minutes.first(), minutes.last()) else { return Ok(minutes) };
    let length_ns = last.start_ns.saturating_sub(first.start_ns);
    if least == RollupPeriod::Minute || length_ns > FINE_UP_TO_NS {
        return Ok(minutes);
    }
    let fine = recording.rollups(RollupPeriod::TenSeconds)?;
    // The oldest fine ones of very many ranks are dropped.
    let whole =
        fine.first().is_some_and(|fine| fine.start_ns < first.start_ns.saturating_add(first.period.ns()));
    Ok(if whole { fine } else { minutes })
}

/// What workers did within each period.
fn workers(
    recording: &Recording,
    period: RollupPeriod,
) -> Result<Vec<WorkerPeriod>, stallscope_store::Error> {
    if period == RollupPeriod::TenSeconds {
        return recording.worker_periods();
    }
    let mut minutes: BTreeMap<(u64, u32, u16, u32), WorkerPeriod> = BTreeMap::new();
    let bounds = recording.rollups(RollupPeriod::Minute)?;
    let (Some(first), Some(last)) = (bounds.first(), bounds.last()) else { return Ok(Vec::new()) };
    let mut hours: Vec<u64> =
        (first.start_ns..last.start_ns).step_by(HOUR_NS as usize).skip(1).take(100_000).collect();
    // What is before the first roll-up and after the last one belongs to them.
    hours.insert(0, 0);
    hours.push(u64::MAX);
    for hour in hours.windows(2) {
        for period in recording.worker_periods_between(hour[0], hour[1])? {
            let start_ns = period.start_ns - period.start_ns % RollupPeriod::Minute.ns();
            match minutes.entry((start_ns, period.rank, period.loader, period.worker)) {
                Entry::Vacant(entry) => drop(entry.insert(WorkerPeriod { start_ns, ..period })),
                Entry::Occupied(mut entry) => entry.get_mut().load += &period.load,
            }
        }
    }
    Ok(minutes.into_values().collect())
}

/// What caches gave within each period.
fn caches(recording: &Recording, period: RollupPeriod) -> Result<Vec<CachePeriod>, stallscope_store::Error> {
    let all = recording.cache_periods()?;
    if period == RollupPeriod::TenSeconds {
        return Ok(all);
    }
    let mut minutes: BTreeMap<(u64, u32, u16, Phase), CachePeriod> = BTreeMap::new();
    for period in all {
        let start_ns = period.start_ns - period.start_ns % RollupPeriod::Minute.ns();
        match minutes.entry((start_ns, period.rank, period.loader, period.phase)) {
            Entry::Vacant(entry) => drop(entry.insert(CachePeriod { start_ns, ..period })),
            Entry::Occupied(mut entry) => entry.get_mut().add(&period),
        }
    }
    Ok(minutes.into_values().collect())
}

fn step_walls(recording: &Recording) -> Result<Vec<StepWalls>, stallscope_store::Error> {
    let mut walls = Walls::default();
    for row in recording.steps(&StepFilter::default())? {
        walls.add(&row?);
    }
    Ok(walls.buckets())
}

/// Moves a step with everything in it, as a whole.
fn on_the_wall(detail: &mut StepDetail, clock: &Clock) {
    let start_ns = detail.start_ns;
    let wall_ns = clock.wall_ns(start_ns);
    let moved = |ns: u64| wall_ns.saturating_add_signed(ns.wrapping_sub(start_ns) as i64);
    for ns in [&mut detail.start_ns, &mut detail.end_ns] {
        *ns = moved(*ns);
    }
    detail.end_ns = detail.end_ns.max(detail.start_ns);
    for segment in detail.lanes.iter_mut().flat_map(|lane| &mut lane.segments) {
        (segment.start_ns, segment.end_ns) = (moved(segment.start_ns), moved(segment.end_ns));
    }
    for piece in &mut detail.critical {
        (piece.start_ns, piece.end_ns) = (moved(piece.start_ns), moved(piece.end_ns));
    }
}

/// A recording's file name.
pub(crate) fn name(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    stallscope_look::clean(&name, true)
}

/// How the state of a recording is called.
pub(crate) const fn state_name(state: State) -> &'static str {
    match state {
        State::Running => "running",
        State::Finished => "finished",
        State::Killed => "killed",
    }
}

/// How long a run took, or has gone on for.
pub(crate) fn took_ns(summary: &RunSummary) -> u64 {
    let job = &summary.job;
    match job.ended_wall_ns {
        Some(ended_ns) if !job.attached => ended_ns.saturating_sub(job.started_wall_ns),
        _ => summary.overhead.wall_ns,
    }
}
