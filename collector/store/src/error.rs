use std::path::{Path, PathBuf};

/// Why a recording cannot be read; one sentence naming the file and the way out.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{} cannot be read: {reason}", path.display())]
    Unreadable { path: PathBuf, reason: String },
    #[error("{} is not a stallscope recording", path.display())]
    NotARecording { path: PathBuf },
    #[error(
        "{} was written by a newer stallscope (recording format {found}, this one knows up to {known}); update stallscope to read it",
        path.display()
    )]
    Newer { path: PathBuf, found: i64, known: i64 },
    #[error("{} is damaged ({reason}); `sqlite3 FILE .recover` may save a part of it", path.display())]
    Damaged { path: PathBuf, reason: String },
    #[error("{} is not read while {} lies beside it, which {reason}; move that away to read it", path.display(), other.display())]
    Beside { path: PathBuf, other: PathBuf, reason: &'static str },
    #[error("{} is being written on {host}, at {}; read it there, or here once the run has ended", path.display(), live.display())]
    Elsewhere { path: PathBuf, host: String, live: PathBuf },
}

impl Error {
    /// Sorts an error of SQLite by what the user can do about it.
    pub(crate) fn of_sqlite(path: &Path, error: &rusqlite::Error) -> Error {
        use rusqlite::ErrorCode::*;
        let path = path.to_path_buf();
        let reason = one_line(&error.to_string());
        match error.sqlite_error_code() {
            Some(NotADatabase) => Error::NotARecording { path },
            Some(
                CannotOpen | PermissionDenied | ReadOnly | DatabaseBusy | DatabaseLocked | SystemIoFailure,
            ) => Error::Unreadable { path, reason },
            Some(OperationInterrupted) => Error::Damaged { path, reason: MORE_ROWS.to_owned() },
            _ => Error::Damaged { path, reason },
        }
    }
}

/// What pages that lead to each other in circles look like.
pub(crate) const MORE_ROWS: &str = "its pages hold more rows than a file of its size can";

/// SQLite quotes what it stumbled over, which comes from the file.
pub(crate) fn one_line(text: &str) -> String {
    let mut line = String::new();
    for char in text.chars().take(200) {
        match char.is_control() {
            true => line.extend(char.escape_default()),
            false => line.push(char),
        }
    }
    line
}
