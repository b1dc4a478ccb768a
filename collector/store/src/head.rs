//! What a list of recordings says of each: a few rows, however large the file is and wherever it comes from.

use crate::error::Error;
use crate::recording::{Recording, State};
use serde::Deserialize;
use stallscope_model::{JobFacts, Verdict};
use std::path::Path;

/// A recording's state, job and verdict, as of its last flush.
#[derive(Clone, Debug)]
pub struct Head {
    pub state: State,
    pub job: JobFacts,
    pub verdict: Verdict,
    /// When the last flush was, on the wall clock.
    pub written_wall_ns: u64,
}

/// Of the summary only that is made of its text.
#[derive(Deserialize)]
struct Summary {
    job: JobFacts,
    verdict: Verdict,
}

impl Head {
    /// Reads that of the recording at `path`, with less than a second of work whatever is there.
    ///
    /// # Errors
    /// As [`Recording::open`].
    pub fn read(path: &Path) -> Result<Head, Error> {
        let recording = Recording::open_listed(path)?;
        let Summary { job, verdict } = recording.read_summary()?;
        Ok(Head { state: recording.state()?, job, verdict, written_wall_ns: recording.written_wall_ns()? })
    }
}
