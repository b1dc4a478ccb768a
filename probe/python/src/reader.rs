use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rustix::fd::{FromRawFd, OwnedFd, RawFd};
use stallscope_abi::lane::{Event, Record, Value, wait_flags};
use stallscope_ring::{Answer, CollectorSide, Reader, RequestNumber, Standing};
use std::collections::HashMap;

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

    /// What is there now, oldest first: of each event when it was complete, its name, and its fields by name.
    fn drain<'py>(&mut self, py: Python<'py>) -> PyResult<Vec<(u64, &'static str, Bound<'py, PyDict>)>> {
        let mut records: Vec<Record> = Vec::new();
        self.0.drain(u64::MAX, |record| records.push(*record));
        let known = |record: &Record| Some((record.time_ns(), Event::decode(record)?));
        let events = records.iter().filter_map(known);
        events.map(|(time_ns, event)| Ok((time_ns, event.name(), fields(py, &event)?))).collect()
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

/// Flags are the names of those that are set.
fn fields<'py>(py: Python<'py>, event: &Event) -> PyResult<Bound<'py, PyDict>> {
    let (fields, mut set) = (PyDict::new(py), Ok(()));
    event.fields(|name, value| {
        let added = match value {
            Value::Number(flags) if name == "flags" => {
                let set = wait_flags::NAMES.iter().filter(|(flag, _)| flags & flag != 0);
                fields.set_item(name, set.map(|(_, name)| *name).collect::<Vec<_>>())
            }
            Value::Number(number) => fields.set_item(name, number),
            Value::Name(value) => fields.set_item(name, value),
        };
        if added.is_err() {
            set = added;
        }
    });
    set.map(|()| fields)
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
