use crate::alive::is_written;
use crate::error::{Error, MORE_ROWS, one_line};
use crate::files::Files;
use crate::foreign::{self, Budget, Extent};
use crate::place::Pointer;
use crate::rows::{
    ClockAnchor, Rollup, RollupPeriod, StepRow, phase_text, read_rollup, read_step, rollup_columns,
};
use crate::rows::{signed, step_columns, unsigned};
use crate::{live, opening, place, schema};
use rusqlite::types::Value;
use rusqlite::{Connection, OpenFlags, Transaction, params_from_iter};
use serde::de::DeserializeOwned;
use stallscope_model::{Loss, Phase, RunSummary};
use std::collections::VecDeque;
use std::path::Path;
use std::time::Duration;

/// What a recording's writer is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It is being written.
    Running,
    /// Its writer finished it.
    Finished,
    /// Its writer is gone and did not finish it; everything up to its last flush is there.
    Killed,
}

/// Which steps; the default is all.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepFilter {
    pub rank: Option<u32>,
    pub loader: Option<u16>,
    pub phase: Option<Phase>,
    /// Steps that end after this moment.
    pub after_ns: Option<u64>,
    /// Steps that start before this moment.
    pub before_ns: Option<u64>,
}

/// A recording opened for reading, whether it is finished, being written or left by a killed writer.
#[derive(Debug)]
pub struct Recording {
    /// Closed before the folder, by whose descriptor it goes.
    pub(crate) connection: Connection,
    files: Files,
    format: i64,
    budget: Budget,
}

impl Recording {
    /// Opens the recording at `path`, or the one a pointer there names.
    ///
    /// # Errors
    /// One sentence each for a file that cannot be read, is none of ours, is damaged, comes from a newer version
    /// or is being written on another host.
    pub fn open(path: &Path) -> Result<Recording, Error> {
        Recording::open_to(path, Extent::Whole)
    }

    /// The same for a list of recordings, in which each is asked for a few rows, however large it is and wherever it comes from: what
    /// takes longer than that is refused.
    ///
    /// # Errors
    /// As [`Recording::open`].
    pub fn open_listed(path: &Path) -> Result<Recording, Error> {
        Recording::open_to(path, Extent::Head)
    }

    pub(crate) fn open_to(path: &Path, extent: Extent) -> Result<Recording, Error> {
        let files = Files::find(path)?;
        let Some(Pointer { host, live }) = place::follow(files.database()) else {
            return Recording::open_database(files, extent);
        };
        if host == place::host_name() && live.is_file() {
            let led = Files::find(&live)?;
            if files.may_lead_to(&led) {
                return Recording::open_database(led, extent);
            }
        }
        Err(Error::Elsewhere { path: path.to_path_buf(), host, live })
    }

    fn open_database(files: Files, extent: Extent) -> Result<Recording, Error> {
        settle(&files);
        Recording::connect(&files, false, extent).or_else(|error| match error {
            // A log without its shared memory in a directory that cannot be written to: the file alone will do.
            Error::Unreadable { .. } if !is_written(files.database()) => {
                Recording::connect(&files, true, extent).map_err(|_| error)
            }
            _ => Err(error),
        })
    }

    fn connect(files: &Files, immutable: bool, extent: Extent) -> Result<Recording, Error> {
        let path = &files.named;
        let sqlite = |error: rusqlite::Error| Error::of_sqlite(path, &error);
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
            | OpenFlags::SQLITE_OPEN_NO_MUTEX
            | OpenFlags::SQLITE_OPEN_NOFOLLOW
            | OpenFlags::SQLITE_OPEN_URI;
        let mut connection = opening::connect(uri(files.database(), immutable), flags).map_err(sqlite)?;
        connection.busy_timeout(Duration::from_secs(2)).map_err(sqlite)?;
        foreign::distrust(&connection).map_err(sqlite)?;
        connection.pragma_update(None, "query_only", true).map_err(sqlite)?;
        let budget = Budget::bound(&mut connection, files.bytes(), extent).map_err(sqlite)?;
        let pragma = |name: &str| {
            connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0)).map_err(sqlite)
        };
        if pragma("application_id")? != schema::APPLICATION_ID {
            return Err(Error::NotARecording { path: path.to_path_buf() });
        }
        match pragma("user_version")? {
            found if found > schema::VERSION => {
                Err(Error::Newer { path: path.to_path_buf(), found, known: schema::VERSION })
            }
            found if found < 1 => {
                Err(Error::Damaged { path: path.to_path_buf(), reason: format!("format {found}") })
            }
            format => match foreign::suspicious(&connection).map_err(sqlite)? {
                Some(reason) => Err(Error::Damaged { path: path.to_path_buf(), reason: one_line(&reason) }),
                None => Ok(Recording { connection, files: files.clone(), format, budget }),
            },
        }
    }

    /// Where the recording is, which is not where it was asked for when that is a pointer.
    pub fn path(&self) -> &Path {
        &self.files.named
    }

    /// Version of its tables; those that an older format lacks read as empty.
    pub fn format(&self) -> i64 {
        self.format
    }

    /// # Errors
    /// When the file is damaged.
    pub fn state(&self) -> Result<State, Error> {
        // Finished is looked for after the lock, so that a writer that ends in between is not taken for killed.
        let written = is_written(self.files.database());
        let state: String = self.one("SELECT value FROM meta WHERE key = 'state'", |row| row.get(0))?;
        Ok(match (state.as_str(), written) {
            ("finished", _) => State::Finished,
            (_, true) => State::Running,
            (_, false) => State::Killed,
        })
    }

    /// The run as of the last flush, with everything that was lost. Where its writer was killed, the job ended
    /// for us at that flush, without an exit code.
    ///
    /// # Errors
    /// When the file is damaged.
    pub fn summary(&self) -> Result<RunSummary, Error> {
        let mut summary: RunSummary = self.read_summary()?;
        cut_names(&mut summary);
        summary.losses = self.losses()?;
        if summary.job.ended_wall_ns.is_none() && self.state()? == State::Killed {
            summary.job.ended_wall_ns = Some(self.written_wall_ns()?);
        }
        Ok(summary)
    }

    /// What is made of it is all that is kept of its text.
    pub(crate) fn read_summary<T: DeserializeOwned>(&self) -> Result<T, Error> {
        let read =
            || self.one("SELECT json FROM summary", |row| Ok(foreign::parse(row.get_ref(0)?.as_str()?)));
        foreign::of_summary(&self.connection, read)
            .map_err(|error| self.sqlite(&error))??
            .map_err(|reason| self.damaged(format!("its summary: {reason}")))
    }

    /// When the last flush was, on the wall clock.
    ///
    /// # Errors
    /// When the file is damaged.
    pub fn written_wall_ns(&self) -> Result<u64, Error> {
        let text: String =
            self.one("SELECT value FROM meta WHERE key = 'written_wall_ns'", |row| row.get(0))?;
        text.parse().map_err(|_| self.damaged(format!("the time of its last flush is {text:?}")))
    }

    /// # Errors
    /// When the file is damaged.
    pub fn losses(&self) -> Result<Vec<Loss>, Error> {
        self.all("SELECT reason, count FROM loss ORDER BY reason", &[], |row| {
            Ok(Loss { reason: row.get(0)?, count: unsigned(row, 1)? })
        })
    }

    /// # Errors
    /// When the file is damaged.
    pub fn anchors(&self) -> Result<Vec<ClockAnchor>, Error> {
        self.all("SELECT monotonic_ns, boottime_ns, wall_ns FROM clock_anchor ORDER BY 1", &[], |row| {
            Ok(ClockAnchor {
                monotonic_ns: unsigned(row, 0)?,
                boottime_ns: unsigned(row, 1)?,
                wall_ns: unsigned(row, 2)?,
            })
        })
    }

    /// Roll-ups of one period, by time.
    ///
    /// # Errors
    /// When the file is damaged.
    pub fn rollups(&self, period: RollupPeriod) -> Result<Vec<Rollup>, Error> {
        let sql = format!(
            "SELECT {} FROM rollup WHERE period_s = ? ORDER BY start_ns, rank, loader, phase",
            rollup_columns()
        );
        self.all(&sql, &[Value::Integer(signed(period.seconds()))], read_rollup)
    }

    /// Steps in the order they were written, as one consistent state of a recording that is still written. They
    /// are read a few thousand at a time.
    ///
    /// # Errors
    /// When the file is damaged; the iterator then ends after saying so.
    pub fn steps(&self, filter: &StepFilter) -> Result<Steps<'_>, Error> {
        let snapshot = match self.connection.is_autocommit() {
            true => Some(self.connection.unchecked_transaction().map_err(|error| self.sqlite(&error))?),
            false => None,
        };
        Ok(Steps {
            recording: self,
            _snapshot: snapshot,
            filter: *filter,
            last: 0,
            read_bytes: 0,
            page: VecDeque::new(),
            done: false,
        })
    }

    pub(crate) fn one<T>(
        &self,
        sql: &str,
        read: impl FnOnce(&rusqlite::Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, Error> {
        self.budget.ask(self.files.bytes());
        self.connection.query_row(sql, [], read).map_err(|error| self.sqlite(&error))
    }

    pub(crate) fn all<T>(
        &self,
        sql: &str,
        values: &[Value],
        read: impl FnMut(&rusqlite::Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, Error> {
        self.all_after(sql, values, read, &mut 0)
    }

    /// The same of a question that is asked a part at a time: `read_bytes` are those of the parts before.
    pub(crate) fn all_after<T>(
        &self,
        sql: &str,
        values: &[Value],
        mut read: impl FnMut(&rusqlite::Row<'_>) -> rusqlite::Result<T>,
        read_bytes: &mut u64,
    ) -> Result<Vec<T>, Error> {
        let bytes = self.files.bytes();
        self.budget.ask(bytes);
        let mut allowance = self.budget.allowance(sql, bytes, *read_bytes);
        let mut ask = || -> rusqlite::Result<Vec<T>> {
            let mut question = self.connection.prepare_cached(sql)?;
            let mut found = question.query(params_from_iter(values))?;
            let mut rows = Vec::new();
            while rows.len() <= foreign::MOST_ROWS
                && let Some(row) = found.next()?
            {
                if !allowance.takes::<T>(row)? {
                    break;
                }
                rows.push(read(row)?);
            }
            Ok(rows)
        };
        let rows = ask().map_err(|error| self.sqlite(&error))?;
        *read_bytes = allowance.read_bytes;
        if !self.budget.has_read(sql, allowance) {
            return Err(self.damaged(MORE_ROWS.to_owned()));
        }
        if rows.len() > foreign::MOST_ROWS {
            return Err(
                self.damaged(format!("one of its tables has more than {} rows to read", foreign::MOST_ROWS))
            );
        }
        Ok(rows)
    }

    /// Pages that lead in circles would bring the same rows of steps, here those after row `last`, for ever.
    pub(crate) fn demand_order(&self, last: i64, rows: &[(i64, StepRow)]) -> Result<(), Error> {
        let ids = std::iter::once(last).chain(rows.iter().map(|(id, _)| *id));
        match ids.is_sorted_by(|one, next| one < next) {
            true => Ok(()),
            false => Err(self.damaged("its steps are not in order".to_owned())),
        }
    }

    pub(crate) fn sqlite(&self, error: &rusqlite::Error) -> Error {
        Error::of_sqlite(&self.files.named, error)
    }

    pub(crate) fn damaged(&self, reason: String) -> Error {
        Error::Damaged { path: self.files.named.clone(), reason: one_line(&reason) }
    }
}

/// See [`Recording::steps`].
#[derive(Debug)]
pub struct Steps<'a> {
    recording: &'a Recording,
    _snapshot: Option<Transaction<'a>>,
    filter: StepFilter,
    last: i64,
    /// Of all pages so far.
    read_bytes: u64,
    page: VecDeque<StepRow>,
    done: bool,
}

impl Steps<'_> {
    const PAGE: i64 = 4096;

    fn fill(&mut self) -> Result<(), Error> {
        let StepFilter { rank, loader, phase, after_ns, before_ns } = self.filter;
        let mut conditions = vec!["id > ?"];
        let mut values = vec![Value::Integer(self.last)];
        for (condition, value) in [
            ("rank = ?", rank.map(|rank| Value::Integer(rank.into()))),
            ("loader = ?", loader.map(|loader| Value::Integer(loader.into()))),
            ("phase = ?", phase.map(|phase| Value::Text(phase_text(phase).to_owned()))),
            ("end_ns > ?", after_ns.map(|ns| Value::Integer(signed(ns)))),
            ("start_ns < ?", before_ns.map(|ns| Value::Integer(signed(ns)))),
        ] {
            if let Some(value) = value {
                conditions.push(condition);
                values.push(value);
            }
        }
        let sql = format!(
            "SELECT id, {} FROM step WHERE {} ORDER BY id LIMIT {}",
            step_columns(),
            conditions.join(" AND "),
            Self::PAGE
        );
        let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?, read_step(row, 1)?));
        let rows = self.recording.all_after(&sql, &values, read, &mut self.read_bytes)?;
        self.recording.demand_order(self.last, &rows)?;
        self.done = rows.len() < Self::PAGE as usize;
        if let Some((last, _)) = rows.last() {
            self.last = *last;
        }
        self.page = rows.into_iter().map(|(_, row)| row).collect();
        Ok(())
    }
}

impl Iterator for Steps<'_> {
    type Item = Result<StepRow, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.page.is_empty()
            && !self.done
            && let Err(error) = self.fill()
        {
            self.done = true;
            return Some(Err(error));
        }
        self.page.pop_front().map(Ok)
    }
}

/// Characters of a name that reports repeat: a job's in each line of metrics, a host's for each rank that has none of its own. Of a
/// name of megabytes a recording of 32 MB would become a terabyte of memory. A host's has 253 at most.
const NAME: usize = 255;

fn cut_names(summary: &mut RunSummary) {
    let of_ranks = summary.ranks.iter_mut().map(|rank| &mut rank.facts.host);
    let names = [&mut summary.job.name, &mut summary.job.user, &mut summary.host.host];
    for name in names.into_iter().chain(of_ranks) {
        if let Some((end, _)) = name.char_indices().nth(NAME) {
            *name = name[..end].to_owned();
        }
    }
}

/// Folds the log that a killed writer left into its recording, so that copying the one file copies everything.
/// Best effort: where it cannot be done, and where the recording is another user's, the log is read beside the file.
fn settle(files: &Files) {
    if !files.log().exists() || !files.are_ours() || is_written(files.database()) {
        return;
    }
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let Ok(mut connection) = opening::connect(files.database(), flags) else { return };
    let bounded = connection
        .busy_timeout(Duration::ZERO)
        .and_then(|()| foreign::distrust(&connection))
        .and_then(|()| Budget::bound(&mut connection, files.bytes(), Extent::Head));
    if bounded.is_err() {
        return;
    }
    let ours = connection.pragma_query_value(None, "application_id", |row| row.get::<_, i64>(0));
    if ours.is_ok_and(|id| id == schema::APPLICATION_ID) {
        let _ = live::fold(&connection);
    }
}

/// `path` as SQLite takes it with parameters.
fn uri(path: &Path, immutable: bool) -> String {
    use std::os::unix::ffi::OsStrExt;
    let mut uri = String::from("file:");
    if path.is_relative() {
        uri.push_str("./");
    }
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'-' | b'_' => uri.push(*byte as char),
            other => uri.push_str(&format!("%{other:02x}")),
        }
    }
    uri.push_str(if immutable { "?mode=ro&immutable=1" } else { "?mode=ro" });
    uri
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Options, Recorder};
    use stallscope_model::JobFacts;
    use std::fs;

    /// Seen: root's report of another user's recording was of a private one of root's, to whose folder that user had led.
    #[test]
    fn what_is_read_is_what_was_looked_at() {
        let directory = tempfile::tempdir().unwrap();
        let (theirs, own) = (directory.path().join("theirs"), directory.path().join("own"));
        for (folder, name) in [(&theirs, "theirs"), (&own, "own")] {
            fs::create_dir(folder).unwrap();
            let options = Options { spool: Some(directory.path().join("spool")), ..Options::default() };
            let job = JobFacts { name: name.into(), ..JobFacts::default() };
            let recorder = Recorder::create(&folder.join("x.stall"), &job, options);
            recorder.finish(&RunSummary { job, ..RunSummary::default() });
        }
        let files = Files::find(&theirs.join("x.stall")).unwrap();
        fs::rename(&theirs, directory.path().join("was")).unwrap();
        fs::rename(&own, &theirs).unwrap();
        let recording = Recording::open_database(files, Extent::Whole).unwrap();
        assert_eq!(recording.summary().unwrap().job.name, "theirs");
    }
}
