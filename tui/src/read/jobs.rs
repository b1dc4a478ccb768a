//! The list of jobs, one row per job. A row is read again only when its recording has changed.

use crate::snapshot::{JobRow, JobState, Place, waiting_share};
use stallscope_model::{Causes, Phase, RunSummary};
use stallscope_store::{Error, Recording, RollupPeriod, State};
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Number of 10 s periods in the trend of a job.
const TREND: usize = 24;
/// Length of such a period.
const TEN_SECONDS_NS: u64 = 10_000_000_000;

#[derive(Default)]
pub(super) struct Jobs {
    known: HashMap<PathBuf, Known>,
    /// Whether the rows were sent once, even if there are none.
    sent: bool,
}

struct Known {
    /// The recording and its version when it was read, kept open while it grows.
    recording: Option<(Recording, i64)>,
    /// Modification time of the file, for recordings that do not grow.
    changed: Option<SystemTime>,
    row: JobRow,
}

impl Jobs {
    /// All rows if one has changed since the last look.
    pub(super) fn look(&mut self, places: &[Place]) -> Option<Vec<JobRow>> {
        let mut changed = !self.sent;
        let gone: Vec<PathBuf> = self
            .known
            .keys()
            .filter(|path| !places.iter().any(|place| place.recording == **path))
            .cloned()
            .collect();
        for path in gone {
            changed = true;
            self.known.remove(&path);
        }
        for place in places {
            match self.known.get_mut(&place.recording) {
                Some(known) if !known.is_stale(place) => {}
                Some(known) => {
                    changed = true;
                    *known = Known::read(place, known.recording.take());
                }
                None => {
                    changed = true;
                    self.known.insert(place.recording.clone(), Known::read(place, None));
                }
            }
        }
        self.sent = true;
        changed.then(|| self.known.values().map(|known| known.row.clone()).collect())
    }
}

impl Jobs {
    /// Closes all recordings; those that grow are opened again by the next look.
    pub(super) fn close(&mut self) {
        self.known.values_mut().for_each(|known| known.recording = None);
    }
}

impl Known {
    fn is_stale(&self, place: &Place) -> bool {
        match &self.recording {
            Some((recording, version)) => {
                !place.running || recording.data_version().ok().as_ref() != Some(version)
            }
            None => place.running || self.changed != changed(&place.recording),
        }
    }

    fn read(place: &Place, open: Option<(Recording, i64)>) -> Known {
        let found = changed(&place.recording);
        // A finished recording is opened anew: that folds its log into the file, unless another reader has it open.
        let opened = match open.filter(|_| place.running) {
            Some((recording, _)) => Ok(recording),
            None => Recording::open_listed(&place.recording),
        };
        match opened.and_then(|recording| Ok((row(place, &recording)?, recording))) {
            Ok((row, recording)) => {
                let grows = row.state == JobState::Running;
                let version = recording.data_version().unwrap_or_default();
                Known { recording: grows.then_some((recording, version)), changed: found, row }
            }
            Err(error) => {
                let reason = match (place.running, place.recording.as_os_str().is_empty()) {
                    (true, true) => {
                        "its recording could not be begun, so there is nothing to show".to_owned()
                    }
                    _ => error.to_string(),
                };
                let row = JobRow {
                    name: place.name.clone(),
                    state: if place.running { JobState::Running } else { JobState::Unreadable },
                    pid: place.pid,
                    verdict: reason,
                    recording: place.recording.clone(),
                    ..JobRow::default()
                };
                Known { recording: None, changed: found, row }
            }
        }
    }
}

fn changed(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|facts| facts.modified()).ok()
}

fn row(place: &Place, recording: &Recording) -> Result<JobRow, Error> {
    let summary = recording.summary()?;
    let state = match recording.state()? {
        State::Running => JobState::Running,
        State::Finished => JobState::Finished,
        State::Killed => JobState::Killed,
    };
    let ended_wall_ns = summary.job.ended_wall_ns.unwrap_or(recording.written_wall_ns()?);
    let (mut causes, mut steps, mut samples, mut wall_ns) = (Causes::default(), 0, 0, 0);
    for phase in summary.phases.iter().filter(|phase| phase.phase == Phase::Training) {
        causes += &phase.causes;
        steps += phase.steps;
        samples += phase.samples;
        wall_ns += phase.wall_ns;
    }
    Ok(JobRow {
        name: if place.name.is_empty() { summary.job.name.clone() } else { place.name.clone() },
        state,
        pid: Some(summary.job.pid),
        started_wall_ns: summary.job.started_wall_ns,
        took_ns: ended_wall_ns.saturating_sub(summary.job.started_wall_ns),
        ranks: summary.ranks.iter().filter(|rank| !rank.phases.is_empty()).count(),
        steps,
        step_ns: wall_ns / steps.max(1),
        samples,
        wall_ns,
        causes,
        // Of thousands of ranks it takes more than a list may.
        trend: trend(recording, &summary).unwrap_or_default(),
        verdict: if summary.verdict.sentence.is_empty() {
            "no step yet".to_owned()
        } else {
            summary.verdict.sentence.clone()
        },
        recording: place.recording.clone(),
    })
}

/// Share of each of the last periods that was not the job's own work.
fn trend(recording: &Recording, summary: &RunSummary) -> Result<Vec<f64>, Error> {
    let Some((_, last)) = recording.steps_after(recording.last_step_id()? - 1, 1)?.pop() else {
        return Ok(Vec::new());
    };
    let training = summary.phases.iter().any(|phase| phase.phase == Phase::Training);
    if !training {
        return Ok(Vec::new());
    }
    let from_ns = last.step.end_ns.saturating_sub(TREND as u64 * TEN_SECONDS_NS);
    let mut periods: BTreeMap<u64, Causes> = BTreeMap::new();
    for rollup in recording.rollups_from(RollupPeriod::TenSeconds, from_ns)? {
        if rollup.phase == Phase::Training {
            *periods.entry(rollup.start_ns).or_default() += &rollup.causes;
        }
    }
    Ok(periods.values().map(waiting_share).collect())
}
