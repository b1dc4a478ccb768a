use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use rustix::fd::{FromRawFd, OwnedFd, RawFd};
use stallscope_ring::Reader;

/// `(time_ns, kind, loader, id, a, b, c, d)`
type Fields = (u64, u16, u16, u32, u64, u64, u64, u64);

/// The reading end of a lane, for tests and for looking into one by hand.
#[pyclass(module = "stallscope._native")]
#[derive(Debug)]
pub(crate) struct LaneReader(Reader);

#[pymethods]
impl LaneReader {
    /// Takes the descriptor over.
    #[new]
    fn new(fd: RawFd) -> PyResult<LaneReader> {
        if fd < 0 {
            return Err(PyOSError::new_err("a descriptor is not negative"));
        }
        // SAFETY: not -1, and the caller gives it away.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Reader::open(fd).map(LaneReader).map_err(|error| PyOSError::new_err(error.to_string()))
    }

    /// What is there now, oldest first.
    fn drain(&mut self) -> Vec<Fields> {
        let mut records = Vec::new();
        self.0.drain(|r| records.push((r.time_ns, r.kind, r.loader, r.id, r.a, r.b, r.c, r.d)));
        records
    }

    #[getter]
    fn dropped(&self) -> u64 {
        self.0.dropped()
    }

    #[getter]
    fn pid(&self) -> u32 {
        self.0.pid()
    }
}
