use std::io;
use std::path::PathBuf;

/// Why there is no pool to be had.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0}")]
    Wrong(String),
    #[error("the cache's pool refuses: {0}")]
    Refused(String),
    #[error(
        "the cache's pool in {dir} speaks version {found}, this job {expected}; end the jobs that use it, or set \
             STALLSCOPE_RUNTIME_DIR to another folder"
    )]
    Version { dir: PathBuf, found: u32, expected: u32 },
    #[error("what listens in {0} is no pool of a cache; set STALLSCOPE_RUNTIME_DIR to another folder")]
    NotAPool(PathBuf),
    #[error("what listens in {0} is of another user; set STALLSCOPE_RUNTIME_DIR to a folder of yours")]
    AnotherUsers(PathBuf),
    #[error("the cache's pool did not start: {0}")]
    Start(String),
    #[error("{call} failed for the cache's pool: {source}")]
    System { call: &'static str, source: io::Error },
}

pub type Result<T> = std::result::Result<T, Error>;

/// Names the system call that failed.
pub(crate) fn system<E: Into<io::Error>>(call: &'static str) -> impl FnOnce(E) -> Error {
    move |error| Error::System { call, source: error.into() }
}
