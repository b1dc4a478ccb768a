use std::io;
use std::path::{Path, PathBuf};

/// What went wrong, as a sentence for the person at the terminal.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file system refused.
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        /// A verb in the infinitive: "write", "open".
        doing: &'static str,
        /// What it was done to.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// Bytes are there and are not what was written.
    #[error("{} is damaged: {what}", path.display())]
    Damaged {
        /// The chunk or the snapshot.
        path: PathBuf,
        /// What does not fit.
        what: String,
    },
    /// The caller asked for what cannot be; the sentence names the way out.
    #[error("{0}")]
    Refused(String),
}

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn damaged(path: &Path, what: impl Into<String>) -> Error {
        Error::Damaged { path: path.to_owned(), what: what.into() }
    }
}

/// Adds to an error of the kernel what was being done to which path.
pub(crate) trait Doing<T> {
    fn doing(self, doing: &'static str, path: &Path) -> Result<T>;
}

impl<T, E: Into<io::Error>> Doing<T> for std::result::Result<T, E> {
    fn doing(self, doing: &'static str, path: &Path) -> Result<T> {
        self.map_err(|error| Error::Io { doing, path: path.to_owned(), source: error.into() })
    }
}
