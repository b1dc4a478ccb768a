use std::io;
use std::path::{Path, PathBuf};

/// What went wrong, as a sentence for the person at the terminal.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file system refused. Says nothing about whether what is on disk is right.
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        /// A verb in the infinitive: "write", "open".
        doing: &'static str,
        /// What it was done to.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// Bytes are there and are not what was saved.
    #[error("{} is damaged: {what}", path.display())]
    Damaged {
        /// The file, or the folder of the checkpoint.
        path: PathBuf,
        /// What does not fit.
        what: String,
    },
    /// The caller asked for what can't be; the sentence names the way out.
    #[error("{0}")]
    Refused(String),
    /// Another process saves into this folder.
    #[error("another process ({holder}) saves into {}; give this job a folder of its own", dir.display())]
    Busy {
        /// The folder of checkpoints.
        dir: PathBuf,
        /// "process 123", or what else is known of it.
        holder: String,
    },
}

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn damaged(path: &Path, what: impl Into<String>) -> Error {
        Error::Damaged { path: path.to_owned(), what: what.into() }
    }

    /// Whether the bytes on disk are known to be wrong, as against unreachable just now.
    pub fn is_damage(&self) -> bool {
        matches!(self, Error::Damaged { .. })
    }

    /// With the folder that was reached as `opened` under the name that it has for the person at the terminal.
    pub(crate) fn shown_as(self, opened: &Path, dir: &Path) -> Error {
        let renamed = |path: PathBuf| match path.strip_prefix(opened) {
            Ok(rest) => dir.join(rest),
            Err(_) => path,
        };
        match self {
            Error::Io { doing, path, source } => Error::Io { doing, path: renamed(path), source },
            Error::Damaged { path, what } => Error::Damaged { path: renamed(path), what },
            Error::Refused(sentence) => {
                Error::Refused(sentence.replace(&*opened.to_string_lossy(), &dir.to_string_lossy()))
            }
            Error::Busy { dir: busy, holder } => Error::Busy { dir: renamed(busy), holder },
        }
    }

    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Error::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }

    /// Whether there was no space on the file system, or in what the user may have of it.
    pub(crate) fn is_full(&self) -> bool {
        let full = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded];
        matches!(self, Error::Io { source, .. } if full.contains(&source.kind()))
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
