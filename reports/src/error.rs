use std::io;
use std::path::{Path, PathBuf};

/// Why there is no report; one sentence, with its source, that names the thing and the way out.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A recording cannot be read.
    #[error(transparent)]
    Recording(#[from] stallscope_store::Error),
    #[error("no recording was named")]
    NoRecording,
    #[error(
        "{} and {} are recordings of different jobs ({reason}); to compare them use `stallscope diff`",
        one.display(),
        other.display()
    )]
    DifferentJobs { one: PathBuf, other: PathBuf, reason: String },
    #[error(
        "rank {rank} is in both {} and {}; recordings of one job have to be of different ranks",
        one.display(),
        other.display()
    )]
    SameRank { rank: u32, one: PathBuf, other: PathBuf },
    /// A file of the report.
    #[error("{} cannot be written", path.display())]
    Unwritable { path: PathBuf, source: io::Error },
    /// The stream that the report goes to.
    #[error("the report cannot be written")]
    Output(#[from] io::Error),
}

impl Error {
    /// Says which file could not be written.
    pub(crate) fn at(path: &Path) -> impl Fn(io::Error) -> Error {
        move |source| Error::Unwritable { path: path.to_path_buf(), source }
    }
}
