//! Errors, as sentences for the user at the terminal.

use std::io;

use stallscope_abi::kernel::MAX_USERS;

/// Why the kernel cannot be asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error(
        "the kernel programs were built for x86-64, and this is {0}; there is no kernel evidence on this machine"
    )]
    Architecture(&'static str),
    #[error(
        "this kernel has no type information at {path} ({source}); it takes one built with CONFIG_DEBUG_INFO_BTF=y"
    )]
    NoBtf { path: &'static str, source: Box<aya::BtfError> },
    #[error(
        "no privilege to load kernel programs ({0}); run this with sudo, or give the program CAP_BPF and CAP_PERFMON"
    )]
    NoPrivilege(&'static str),
    #[error(
        "the kernel programs in this build have layout {found:?}, and the loader expects {expected:?}; rebuild with `make ebpf`"
    )]
    Version { found: [u32; 4], expected: [u32; 4] },
    #[error("the kernel refused the program {name}, which nothing works without: {reason}")]
    Program { name: &'static str, reason: String },
    #[error("no process has the number {0}; `ps` shows those that run")]
    NoProcess(u32),
    #[error("process {0} ended before it could be watched")]
    ProcessGone(u32),
    #[error(
        "process {0} can't be watched: as many tasks are followed already as fit; stop watching another job first"
    )]
    TooManyTasks(u32),
    #[error("process {0} can't be watched: trees of {max} users are followed already; try again later", max = MAX_USERS - 2)]
    TooManyUsers(u32),
    #[error("process {0} is not being watched")]
    NotWatched(u32),
    #[error("the ring buffer can't be {0} bytes; it takes a power of two of at least one page")]
    RingSize(u32),
    #[error("{what} failed: {source}")]
    System { what: &'static str, source: io::Error },
    #[error("the kernel programs could not be loaded: {}", in_full(.0))]
    Load(Box<aya::EbpfError>),
    #[error("a map of the kernel programs could not be used: {}", in_full(.0))]
    Map(Box<aya::maps::MapError>),
    #[error("a kernel program could not be attached: {}", in_full(.0))]
    Attach(Box<aya::programs::ProgramError>),
}

impl From<aya::EbpfError> for Error {
    fn from(error: aya::EbpfError) -> Error {
        Error::Load(Box::new(error))
    }
}

impl From<aya::maps::MapError> for Error {
    fn from(error: aya::maps::MapError) -> Error {
        Error::Map(Box::new(error))
    }
}

impl From<aya::programs::ProgramError> for Error {
    fn from(error: aya::programs::ProgramError) -> Error {
        Error::Attach(Box::new(error))
    }
}

/// `error` with what caused it down to the kernel's own answer, each part once.
pub(crate) fn in_full(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let part = error.to_string();
        if !text.contains(&part) {
            text = format!("{text}: {part}");
        }
        cause = error.source();
    }
    text
}

impl Error {
    pub(crate) fn system(what: &'static str) -> impl Fn(io::Error) -> Error {
        move |source| Error::System { what, source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_own_answer_is_shown() {
        let refused = io::Error::from_raw_os_error(libc::EPERM);
        let map = aya::maps::MapError::CreateError { name: "events".to_owned(), io_error: refused };
        assert_eq!(
            Error::from(aya::EbpfError::from(map)).to_string(),
            "the kernel programs could not be loaded: map error: failed to create map `events`: \
             Operation not permitted (os error 1)"
        );
    }
}
