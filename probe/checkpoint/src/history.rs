//! How long a job has run in this folder and how often it was cut off: what its mean time between failures is estimated
//! from. Kept in `runs.json`; losing it costs the estimate alone.

use crate::files::{Disk, Files, open_plain, write_all};
use crate::interval::Account;
use serde::{Deserialize, Serialize};
use std::io::{self, Read};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const NAME: &str = "runs.json";
/// Later runs say more of the machine as it is now.
const MOST_RUNS: usize = 1000;

/// Runs of a job, by what they left in its folder.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct History {
    runs: Vec<Run>,
    #[serde(default)]
    account: Option<Account>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Run {
    began_wall_s: u64,
    /// When it was last known to run.
    alive_wall_s: u64,
    /// Whether it ended by itself.
    ended: bool,
}

/// Before anything is known: a failure a day, as strong as one day's observation.
const PRIOR: Duration = Duration::from_secs(86_400);

impl History {
    /// What the folder says; nothing where it says nothing that makes sense.
    pub fn read(dir: &Path) -> History {
        let read = || -> io::Result<History> {
            let mut bytes = Vec::new();
            open_plain(&dir.join(NAME), false)?.take(1 << 20).read_to_end(&mut bytes)?;
            Ok(serde_json::from_slice(&bytes)?)
        };
        read().unwrap_or_default()
    }

    /// Runs that were cut off, the one under way not counted.
    pub fn failures(&self) -> u64 {
        self.before().filter(|run| !run.ended).count() as u64
    }

    /// How long the job ran altogether.
    pub fn ran(&self) -> Duration {
        let seconds = |run: &Run| run.alive_wall_s.saturating_sub(run.began_wall_s);
        Duration::from_secs(self.runs.iter().map(seconds).fold(0, u64::saturating_add))
    }

    /// Mean time between failures: time observed over failures seen, each with a day's prior of one failure, so that a
    /// first failure after ten minutes does not make it ten minutes, and none seen does not make it endless.
    pub fn mtbf(&self) -> Duration {
        Duration::from_secs_f64((self.ran() + PRIOR).as_secs_f64() / (self.failures() + 1) as f64)
    }

    /// What the job's saves have cost in all runs, as far as that was noted.
    pub fn account(&self) -> Option<&Account> {
        self.account.as_ref()
    }

    /// How many runs there were, the one under way counted.
    pub fn runs(&self) -> usize {
        self.runs.len()
    }

    pub(crate) fn note(&mut self, account: Account) -> bool {
        let changed = self.account.as_ref() != Some(&account);
        self.account = Some(account);
        changed
    }

    fn before(&self) -> impl Iterator<Item = &Run> {
        self.runs.iter().rev().skip(1)
    }

    pub(crate) fn begin(&mut self) {
        let now = wall_s();
        self.runs.push(Run { began_wall_s: now, alive_wall_s: now, ended: false });
        let surplus = self.runs.len().saturating_sub(MOST_RUNS);
        self.runs.drain(..surplus);
    }

    pub(crate) fn alive(&mut self, ended: bool) {
        if let Some(run) = self.runs.last_mut() {
            run.alive_wall_s = wall_s();
            run.ended = ended;
        }
    }

    /// Best effort.
    pub(crate) fn write(&self, dir: &Path) {
        let fresh = dir.join(format!("{NAME}.tmp"));
        let _ = Disk.remove_file(&fresh);
        let written = serde_json::to_vec(self).map_err(io::Error::from).and_then(|bytes| {
            write_all(&*Disk.create(&fresh, false)?, &bytes, 0)?;
            Disk.rename(&fresh, &dir.join(NAME))
        });
        if written.is_err() {
            let _ = Disk.remove_file(&fresh);
        }
    }
}

fn wall_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(runs: &[(u64, bool)]) -> History {
        let run = |&(hours, ended): &(u64, bool)| Run { began_wall_s: 0, alive_wall_s: hours * 3600, ended };
        History { runs: runs.iter().map(run).collect(), account: None }
    }

    #[test]
    fn the_estimate_follows_what_happened_and_begins_with_a_day() {
        assert_eq!(History::default().mtbf(), PRIOR);
        assert_eq!(runs(&[(0, false)]).failures(), 0, "the run under way has not failed");
        assert_eq!(runs(&[(10, true), (10, true), (0, false)]).failures(), 0);
        let often = runs(&[(6, false); 101]);
        assert_eq!(often.failures(), 100);
        let hours = often.mtbf().as_secs_f64() / 3600.0;
        assert!((5.9..6.5).contains(&hours), "{hours}");
    }

    #[test]
    fn nonsense_in_the_folder_is_no_history() {
        let dir = tempfile::tempdir().unwrap();
        for text in ["", "{", "[]", "{\"runs\": 7}", "{\"runs\": [{\"began_wall_s\": -1}]}"] {
            std::fs::write(dir.path().join(NAME), text).unwrap();
            assert_eq!(History::read(dir.path()).mtbf(), PRIOR, "{text}");
        }
        let mut history = History::default();
        history.begin();
        history.write(dir.path());
        assert_eq!(History::read(dir.path()).runs.len(), 1);
    }
}
