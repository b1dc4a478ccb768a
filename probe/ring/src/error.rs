use std::io;

/// What can go wrong with a lane or a page, or with the socket that hands it over.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("a lane of {0} records is not possible: the number must be a power of two up to {max}", max = crate::MAX_CAPACITY)]
    Capacity(u64),
    #[error("the descriptor is no lane: {0}")]
    NotALane(&'static str),
    #[error(
        "the lane has layout version {found}, this program reads {expected}; use the same version on both sides"
    )]
    Version { found: u32, expected: u32 },
    #[error("the descriptor is no page of knobs: {0}")]
    NotAPage(&'static str),
    #[error("{call} failed for memory shared with a shim: {source}")]
    System { call: &'static str, source: io::Error },
    #[error("the shim's socket: {0}")]
    Socket(#[source] io::Error),
    #[error("a line of more than {limit} bytes came from the shim's socket", limit = crate::MAX_LINE_BYTES)]
    LineTooLong,
    #[error("a message of the shim could not be read: {0}")]
    Message(#[from] serde_json::Error),
}

pub type Result<T> = std::result::Result<T, Error>;

/// Names the system call that failed.
pub(crate) fn system(call: &'static str) -> impl FnOnce(rustix::io::Errno) -> Error {
    move |errno| Error::System { call, source: errno.into() }
}
