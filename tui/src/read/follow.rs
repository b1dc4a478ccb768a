//! One recording, read as far as it is shown and, while it grows, no more than once.

use crate::series::{Series, Sum};
use crate::snapshot::{JobState, RunView, Wanted};
use stallscope_model::{AuditEvent, CachePeriod, CheckpointEvent, RunSummary, StepDetail, WorkerPeriod};
use stallscope_store::{ClockAnchor, Error, Recording, RollupPeriod, State};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const SECOND_NS: u64 = 1_000_000_000;
/// Spans up to this are shown second by second, from the steps themselves.
const BY_STEPS_NS: u64 = 120 * SECOND_NS;
/// At most so many rows of steps are read for that; a span with more is shown from roll-ups of ten seconds.
const STEPS: i64 = 10_000;
/// Spans up to this are shown from roll-ups of ten seconds, longer ones from minutes.
const BY_TENS_NS: u64 = 40 * 60 * SECOND_NS;
/// Spans up to this show what each worker did, and what caches gave over time.
const WORKERS_NS: u64 = 30 * 60 * SECOND_NS;
/// How often steps in full are read again while the recording grows.
const DETAILS_EVERY: Duration = Duration::from_secs(2);
/// Lines of the audit that are kept; a controller writes a few a minute.
const AUDIT: usize = 10_000;
/// How often the state of a recording that does not grow is checked, to notice that its writer has ended.
const STATE_EVERY: Duration = Duration::from_secs(1);

pub(crate) struct Followed {
    asked_for: PathBuf,
    recording: Recording,
    version: Option<i64>,
    state: State,
    /// Whether the writer finished or was killed while the recording was open here.
    has_ended: bool,
    state_at: Instant,
    written_wall_ns: u64,
    summary: Arc<RunSummary>,
    anchor: Option<ClockAnchor>,
    begin_ns: u64,
    end_ns: u64,
    minutes: Series,
    /// Roll-ups of ten seconds from this moment on.
    tens: Option<(u64, Series)>,
    /// Steps from this moment on, up to this row.
    seconds: Option<(u64, i64, Series)>,
    /// Periods of workers from this moment on, while the recording grows.
    workers: Option<(u64, Vec<WorkerPeriod>)>,
    /// Periods of caches, likewise.
    caches: Option<(u64, Vec<CachePeriod>)>,
    checkpoints: Arc<Vec<CheckpointEvent>>,
    audit: Arc<Vec<AuditEvent>>,
    details: Option<Arc<Vec<StepDetail>>>,
    details_at: Option<Instant>,
}

impl Followed {
    pub(crate) fn open(path: &Path) -> Result<Followed, Error> {
        let recording = Recording::open(path)?;
        let state = recording.state()?;
        let begin_ns = recording.steps_after(0, 1)?.first().map(|(_, row)| row.step.start_ns);
        let rolled_ns =
            recording.rollups_from(RollupPeriod::Minute, 0)?.first().map(|rollup| rollup.start_ns);
        let anchor = recording.anchors()?.last().copied();
        let begin_ns = begin_ns.or(rolled_ns).or(anchor.map(|anchor| anchor.monotonic_ns)).unwrap_or(0);
        Ok(Followed {
            asked_for: path.to_path_buf(),
            recording,
            version: None,
            state,
            has_ended: false,
            state_at: Instant::now(),
            written_wall_ns: 0,
            summary: Arc::default(),
            anchor,
            begin_ns,
            end_ns: begin_ns,
            minutes: Series::new(RollupPeriod::Minute.ns()),
            tens: None,
            seconds: None,
            workers: None,
            caches: None,
            checkpoints: Arc::default(),
            audit: Arc::default(),
            details: None,
            details_at: None,
        })
    }

    pub(super) fn asked_for(&self) -> &Path {
        &self.asked_for
    }

    /// Whether the writer has ended meanwhile. It could not fold its log into the file while this reader had it open;
    /// opening the recording anew does that.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// The wanted view if the recording has grown, or if `news` says that the request has changed.
    pub(crate) fn look(&mut self, wanted: &Wanted, news: bool) -> Result<Option<RunView>, Error> {
        let grown = self.grow()?;
        if !grown && !news {
            return Ok(None);
        }
        self.view(wanted).map(Some)
    }

    /// Reads what was written since the last look; false when nothing was.
    fn grow(&mut self) -> Result<bool, Error> {
        // SQLite reads a removed file on without an error, so the loss would go unnoticed.
        if !self.recording.path().exists() {
            let reason = "it was moved or removed; `stallscope ls` lists recordings".to_owned();
            return Err(Error::Unreadable { path: self.recording.path().to_path_buf(), reason });
        }
        let version = self.recording.data_version()?;
        let same = self.version == Some(version);
        if same && (self.state != State::Running || self.state_at.elapsed() < STATE_EVERY) {
            return Ok(false);
        }
        let before = self.state;
        self.state_at = Instant::now();
        self.state = self.recording.state()?;
        if before == State::Running && self.state != State::Running {
            self.has_ended = true;
        } else if same {
            return Ok(false);
        }
        self.version = Some(self.recording.data_version()?);
        self.summary = Arc::new(self.recording.summary()?);
        self.written_wall_ns = self.recording.written_wall_ns()?;
        self.checkpoints = Arc::new(self.recording.checkpoints()?);
        self.load_audit()?;
        if self.anchor.is_none() {
            self.anchor = self.recording.anchors()?.last().copied();
        }
        refill(&self.recording, RollupPeriod::Minute, &mut self.minutes, 0)?;
        self.find_end()?;
        Ok(true)
    }

    fn find_end(&mut self) -> Result<(), Error> {
        let last = self.recording.last_step_id()?;
        // Rows of several ranks are a little out of order, so the last one need not be the newest.
        for (_, row) in self.recording.steps_after((last - 64).max(0), 64)? {
            if self.end_ns == 0 || self.begin_ns == 0 {
                self.begin_ns = row.step.start_ns;
            }
            self.end_ns = self.end_ns.max(row.step.end_ns);
        }
        Ok(())
    }

    /// The present moment of a running run, even if nothing was recorded of it yet; the end of another one.
    fn edge_ns(&self) -> u64 {
        let Some(anchor) = self.anchor.filter(|_| self.state == State::Running) else { return self.end_ns };
        let since_ns = wall_ns().saturating_sub(anchor.wall_ns);
        // A wall clock that was set by a day or more since the anchor cannot give the present moment.
        let edge_ns = anchor.monotonic_ns.saturating_add(since_ns);
        if edge_ns < self.end_ns.saturating_add(24 * 3600 * SECOND_NS) {
            edge_ns.max(self.end_ns)
        } else {
            self.end_ns
        }
    }

    fn view(&mut self, wanted: &Wanted) -> Result<RunView, Error> {
        let edge_ns = self.edge_ns();
        let to_ns = wanted.to_ns.unwrap_or(edge_ns).clamp(self.begin_ns, edge_ns.max(self.begin_ns));
        let from_ns =
            wanted.span_ns.map_or(self.begin_ns, |span_ns| to_ns.saturating_sub(span_ns)).max(self.begin_ns);
        let span_ns = to_ns - from_ns;
        let window = if span_ns <= BY_STEPS_NS && self.load_steps(from_ns, to_ns)? {
            self.seconds.as_ref().map(|(_, _, series)| series.window(from_ns, to_ns))
        } else if span_ns <= BY_TENS_NS {
            self.load_tens(from_ns)?;
            self.tens.as_ref().map(|(_, series)| series.window(from_ns, to_ns))
        } else {
            Some(self.minutes.window(from_ns, to_ns))
        };
        let workers = match span_ns <= WORKERS_NS {
            true => self.load_workers(from_ns, to_ns, wanted.rank)?,
            false => Vec::new(),
        };
        let caches = match span_ns <= WORKERS_NS && !self.summary.caches.is_empty() {
            true => self.load_caches(from_ns, to_ns)?,
            false => Vec::new(),
        };
        if wanted.steps {
            self.load_details()?;
        }
        Ok(RunView {
            recording: self.asked_for.clone(),
            state: match self.state {
                State::Running => JobState::Running,
                State::Finished => JobState::Finished,
                State::Killed => JobState::Killed,
            },
            format: self.recording.format(),
            written_ago_ns: wall_ns().saturating_sub(self.written_wall_ns),
            summary: self.summary.clone(),
            begin_ns: self.begin_ns,
            end_ns: edge_ns,
            window: window.unwrap_or_default(),
            workers,
            caches,
            checkpoints: self.checkpoints.clone(),
            audit: self.audit.clone(),
            steps: self.details.clone(),
            worst: self.minutes.longest(),
        })
    }

    /// Reads the new lines of the audit.
    fn load_audit(&mut self) -> Result<(), Error> {
        let from_line = self.audit.last().map_or(0, |event| event.line.saturating_add(1));
        let new = self.recording.audit(from_line)?;
        if !new.is_empty() {
            let audit = Arc::make_mut(&mut self.audit);
            audit.extend(new);
            audit.drain(..audit.len().saturating_sub(AUDIT));
        }
        Ok(())
    }

    fn load_tens(&mut self, from_ns: u64) -> Result<(), Error> {
        let (loaded_ns, series) = match self.tens.take() {
            Some((loaded_ns, series)) if loaded_ns <= from_ns => (loaded_ns, series),
            _ => (
                from_ns - from_ns % RollupPeriod::TenSeconds.ns(),
                Series::new(RollupPeriod::TenSeconds.ns()),
            ),
        };
        let (_, series) = self.tens.insert((loaded_ns, series));
        refill(&self.recording, RollupPeriod::TenSeconds, series, loaded_ns)
    }

    /// The periods of a rank's workers; from a growing recording only new ones are read.
    fn load_workers(
        &mut self,
        from_ns: u64,
        to_ns: u64,
        rank: Option<u32>,
    ) -> Result<Vec<WorkerPeriod>, Error> {
        let from_ns = from_ns - from_ns % WorkerPeriod::LENGTH_NS;
        let mut periods = if self.state == State::Running {
            let (loaded_ns, mut known) = match self.workers.take() {
                Some((loaded_ns, known)) if loaded_ns <= from_ns => (loaded_ns, known),
                _ => (from_ns, Vec::new()),
            };
            // The newest period grows, and evidence of the one before may come late.
            let newest_ns = known.last().map_or(loaded_ns, |period: &WorkerPeriod| period.start_ns);
            let again_ns = newest_ns.saturating_sub(WorkerPeriod::LENGTH_NS).max(loaded_ns);
            known.truncate(known.partition_point(|period| period.start_ns < again_ns));
            known.extend(self.recording.worker_periods_from(again_ns)?);
            let of_rank = known.iter().filter(|period| Some(period.rank) == rank).cloned().collect();
            self.workers = Some((loaded_ns, known));
            of_rank
        } else {
            self.recording.worker_periods_between(from_ns, to_ns)?
        };
        let shown = |start_ns: u64| start_ns >= from_ns && start_ns < to_ns;
        periods.retain(|period| Some(period.rank) == rank && shown(period.start_ns));
        Ok(periods)
    }

    /// The periods of caches; from a growing recording only new ones are read.
    fn load_caches(&mut self, from_ns: u64, to_ns: u64) -> Result<Vec<CachePeriod>, Error> {
        let from_ns = from_ns - from_ns % WorkerPeriod::LENGTH_NS;
        if self.state != State::Running {
            return self.recording.cache_periods_between(from_ns, to_ns);
        }
        let (loaded_ns, mut known) = match self.caches.take() {
            Some((loaded_ns, known)) if loaded_ns <= from_ns => (loaded_ns, known),
            _ => (from_ns, Vec::new()),
        };
        // The shim reports a batch's uses up to ten seconds late.
        let newest_ns = known.last().map_or(loaded_ns, |period: &CachePeriod| period.start_ns);
        let again_ns = newest_ns.saturating_sub(2 * WorkerPeriod::LENGTH_NS).max(loaded_ns);
        known.truncate(known.partition_point(|period| period.start_ns < again_ns));
        known.extend(self.recording.cache_periods_from(again_ns)?);
        let shown = |period: &&CachePeriod| period.start_ns >= from_ns && period.start_ns < to_ns;
        let caches = known.iter().filter(shown).copied().collect();
        self.caches = Some((loaded_ns, known));
        Ok(caches)
    }

    /// Reads the steps of this time; false when there are too many.
    fn load_steps(&mut self, from_ns: u64, to_ns: u64) -> Result<bool, Error> {
        let last = self.recording.last_step_id()?;
        let last = match to_ns.saturating_add(10 * SECOND_NS) {
            beyond_ns if beyond_ns < self.end_ns => self.row_before(beyond_ns, last)?,
            _ => last,
        };
        let first = self.row_before(from_ns, last)?;
        let (loaded_ns, mut row, mut series) = match self.seconds.take() {
            // The rows read so far reach into this time, so that none between is missing.
            Some((loaded_ns, row, series)) if loaded_ns <= from_ns && row >= first => {
                (loaded_ns, row, series)
            }
            _ => (from_ns, first, Series::new(SECOND_NS)),
        };
        if last - row > STEPS {
            return Ok(false);
        }
        while row < last {
            let rows = self.recording.steps_after(row, 4096)?;
            let Some((id, _)) = rows.last() else { break };
            row = *id;
            for (_, step) in &rows {
                let (ledger, merged) = (&step.step, step.merged);
                let longest_ns = (ledger.end_ns - ledger.start_ns.min(ledger.end_ns)) / merged.max(1);
                let sum = Sum::of(ledger.phase, &ledger.causes, merged, ledger.samples.into(), longest_ns);
                series.add(ledger.end_ns, ledger.rank, &sum);
            }
        }
        self.seconds = Some((loaded_ns, row, series));
        Ok(true)
    }

    /// A row before which no step ends after `from_ns`: rows are about in the order of their steps' ends.
    fn row_before(&self, from_ns: u64, last: i64) -> Result<i64, Error> {
        let sure_ns = from_ns.saturating_sub(5 * SECOND_NS);
        let (mut low, mut high) = (0, last);
        while low < high {
            let middle = low + (high - low) / 2;
            match self.recording.steps_after(middle, 1)?.first() {
                Some((_, row)) if row.step.end_ns < sure_ns => low = middle + 1,
                _ => high = middle,
            }
        }
        Ok(low)
    }

    fn load_details(&mut self) -> Result<(), Error> {
        let fresh =
            self.details_at.is_some_and(|at| at.elapsed() < DETAILS_EVERY || self.state != State::Running);
        if !fresh {
            self.details = Some(Arc::new(self.recording.step_details()?));
            self.details_at = Some(Instant::now());
        }
        Ok(())
    }
}

fn wall_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

/// Reads the roll-ups of a period that `series` lacks, and the newest again, which may have grown.
fn refill(
    recording: &Recording,
    period: RollupPeriod,
    series: &mut Series,
    from_ns: u64,
) -> Result<(), Error> {
    // A step that was recorded late is counted in the period before the newest.
    let again_ns = series.newest_ns().map_or(from_ns, |newest_ns| newest_ns.saturating_sub(period.ns()));
    let from_ns = series.cut(again_ns.max(from_ns));
    for rollup in recording.rollups_from(period, from_ns)? {
        let sum = Sum::of(rollup.phase, &rollup.causes, rollup.steps, rollup.samples, rollup.step_max_ns);
        series.add(rollup.start_ns, rollup.rank, &sum);
    }
    Ok(())
}
