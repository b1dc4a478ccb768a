//! The list of jobs, one row per job. A row is read again only when its recording has changed.

use crate::snapshot::{JobRow, JobState, Place, waiting_share};
use stallscope_model::{Causes, Phase, RunSummary};
use stallscope_store::{Error, Recording, RollupPeriod, State};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// Number of 10 s periods in the trend of a job.
const TREND: usize = 24;
/// Characters of a name and of a sentence that a row keeps: a foreign recording may have some of 32 MiB, and a folder many of those.
const TEXT: usize = 500;
/// Length of such a period.
const TEN_SECONDS_NS: u64 = 10_000_000_000;

#[derive(Default)]
pub(super) struct Jobs {
    known: HashMap<PathBuf, Known>,
    /// Whether the rows were sent once, even if there are none.
    sent: bool,
    /// Among the places of recordings that do not grow: with which the next look begins.
    next: usize,
}

struct Known {
    /// The recording and its version when it was read, kept open while it grows.
    recording: Option<(Recording, i64)>,
    /// Modification time of the file, for recordings that do not grow.
    changed: Option<SystemTime>,
    row: JobRow,
}

impl Jobs {
    /// All rows, as far as they are known, if one has changed since the last look. What runs is always read. Other recordings are read
    /// `within` that time, one at least, and the rest in the next looks in turn: in a folder there may be thousands, of others, that
    /// each take long, and that change all the time.
    pub(super) fn look(&mut self, places: &[Place], within: Duration) -> Option<Vec<JobRow>> {
        let there: HashSet<&Path> = places.iter().map(|place| place.recording.as_path()).collect();
        let before = self.known.len();
        self.known.retain(|path, _| there.contains(path.as_path()));
        let mut changed = !self.sent || self.known.len() < before;
        let (running, others): (Vec<&Place>, Vec<&Place>) = places.iter().partition(|place| place.running);
        for place in running {
            changed |= self.read_if_stale(place);
        }
        let until = Instant::now() + within;
        let first = if self.next < others.len() { self.next } else { 0 };
        self.next = 0;
        for nth in (first..others.len()).chain(0..first) {
            let is_new = self.read_if_stale(others[nth]);
            changed |= is_new;
            if is_new && Instant::now() >= until {
                self.next = nth + 1;
                break;
            }
        }
        self.sent = true;
        changed.then(|| self.known.values().map(|known| known.row.clone()).collect())
    }

    /// Whether it was read.
    fn read_if_stale(&mut self, place: &Place) -> bool {
        let known = self.known.get_mut(&place.recording);
        if known.as_ref().is_some_and(|known| !known.is_stale(place)) {
            return false;
        }
        let open = known.and_then(|known| known.recording.take());
        self.known.insert(place.recording.clone(), Known::read(place, open));
        true
    }
}

/// A new text, as one that is cut in place keeps its memory.
fn beginning(text: &str) -> String {
    text.chars().take(TEXT).collect()
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
                    verdict: beginning(&reason),
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
        name: beginning(if place.name.is_empty() { &summary.job.name } else { &place.name }),
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
            beginning(&summary.verdict.sentence)
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

#[cfg(test)]
mod tests {
    use super::*;
    use stallscope_model::{JobFacts, Verdict};
    use stallscope_store::{Options, Recorder};

    fn recorded(folder: &Path, number: u32, sentence: &str) -> Place {
        let path = folder.join(format!("{number:03}.stall"));
        let job = JobFacts::default();
        let verdict = Verdict { sentence: sentence.to_owned(), ..Verdict::default() };
        let summary = RunSummary { job: job.clone(), verdict, ..RunSummary::default() };
        let options = Options { spool: Some(folder.to_owned()), ..Options::default() };
        let _ = Recorder::create(&path, &job, options).finish(&summary);
        Place { recording: path, ..Place::default() }
    }

    #[test]
    fn a_folder_full_of_recordings_is_read_piece_by_piece_and_no_text_of_it_is_kept_whole() {
        let folder = tempfile::tempdir().expect("a folder");
        let places: Vec<Place> =
            (0..5).map(|number| recorded(folder.path(), number, &"long ".repeat(1 << 18))).collect();
        let mut jobs = Jobs::default();
        let mut counts = Vec::new();
        while let Some(rows) = jobs.look(&places, Duration::ZERO) {
            assert!(
                rows.iter().all(|row| row.state == JobState::Finished),
                "{:?}",
                rows[0].verdict.get(..80)
            );
            assert!(rows.iter().all(|row| row.verdict.len() == TEXT && row.verdict.capacity() < 2 * TEXT));
            counts.push(rows.len());
        }
        assert_eq!(counts, [1, 2, 3, 4, 5]);
        assert_eq!(jobs.look(&places[1..], Duration::ZERO).expect("one is gone").len(), 4);
    }
}
