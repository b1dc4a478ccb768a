use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use rustix::fd::{FromRawFd, OwnedFd, RawFd};
use stallscope_ring::{Answer, CollectorSide, Reader, RequestNumber, Standing};
use std::collections::HashMap;

/// `(time_ns, kind, loader, id, a, b, c, d)`
type Fields = (u64, u16, u16, u32, u64, u64, u64, u64);

fn owned(fd: RawFd) -> PyResult<OwnedFd> {
    if fd < 0 {
        return Err(PyOSError::new_err("a descriptor is not negative"));
    }
    // SAFETY: not -1, and the caller gives it away.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The reading end of a lane, for tests and for looking into one by hand.
#[pyclass(module = "stallscope._native")]
#[derive(Debug)]
pub(crate) struct LaneReader(Reader);

#[pymethods]
impl LaneReader {
    /// Takes the descriptor over.
    #[new]
    fn new(fd: RawFd) -> PyResult<LaneReader> {
        Reader::open(owned(fd)?).map(LaneReader).map_err(|error| PyOSError::new_err(error.to_string()))
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

/// The collector's side of a page of knobs, for the same.
#[pyclass(module = "stallscope._native")]
#[derive(Debug)]
pub(crate) struct KnobTurner {
    page: CollectorSide,
    /// What was last asked for, by slot and generation.
    asked: HashMap<(u32, u32), RequestNumber>,
}

#[pymethods]
impl KnobTurner {
    /// Takes the descriptor over.
    #[new]
    fn new(fd: RawFd) -> PyResult<KnobTurner> {
        let page = CollectorSide::open(&owned(fd)?).map_err(|error| PyOSError::new_err(error.to_string()))?;
        Ok(KnobTurner { page, asked: HashMap::new() })
    }

    /// Asks for `value`; slot and generation are the knob's fact's.
    fn ask(&mut self, slot: u32, generation: u32, value: u64) {
        let (last, _) = self.page.requested(slot);
        let none = RequestNumber::none(generation);
        let number = if last.same_knob(none) { last.next() } else { none.next() };
        self.asked.insert((slot, generation), number);
        self.page.ask(slot, number, value);
    }

    /// The value in force, and how the last request of ours stands: "own", "applied", "pending", "refused", or
    /// "waiting" while it is not answered.
    fn standing(&self, slot: u32, generation: u32) -> (u64, &'static str) {
        let Standing { value, answered } = self.page.standing(slot);
        let asked = self.asked.get(&(slot, generation));
        let state = match answered {
            Some((number, answer)) if asked.is_none_or(|asked| *asked == number) => match answer {
                Answer::Own => "own",
                Answer::Applied => "applied",
                Answer::Pending => "pending",
                Answer::Refused => "refused",
            },
            _ => "waiting",
        };
        (value, state)
    }
}
