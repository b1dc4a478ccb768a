//! The importance cache's pool for Python: a thin layer over `stallscope_cache::pool`. Look-ups keep the interpreter's
//! lock, as they wait for nobody; what crosses the pool's socket releases it. After a space was made, nothing here raises
//! but for arguments of a wrong type: without a pool there are misses.

use pyo3::exceptions::{PyOSError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyDict};
use stallscope_cache::PolicyKind;
use stallscope_cache::pool::{self, Client, Error, Settings};
use std::ffi::OsString;
use std::path::PathBuf;

/// How often a copy is begun anew because the sample was moved meanwhile.
const TRIES: u32 = 3;

/// Runs the pool of a folder: returns once it is there, or another was there already.
#[pyfunction]
pub(crate) fn run_pool(runtime_dir: PathBuf) -> PyResult<()> {
    pool::run(&runtime_dir).map_err(raised)
}

fn raised(error: Error) -> PyErr {
    match error {
        Error::Wrong(why) => PyValueError::new_err(why),
        other => PyOSError::new_err(other.to_string()),
    }
}

/// A tag: any whole number, of which the lowest 64 bits count.
pub(crate) struct Tag(pub(crate) u64);

impl<'py> FromPyObject<'_, 'py> for Tag {
    type Error = PyErr;

    fn extract(number: Borrowed<'_, 'py, PyAny>) -> PyResult<Tag> {
        // SAFETY: a live object, with the interpreter's lock held.
        let value = unsafe { ffi::PyLong_AsUnsignedLongLongMask(number.as_ptr()) };
        raised_or(number.py(), value == u64::MAX, Tag(value))
    }
}

/// A sample's number: any whole number, where one that no sample can have is the largest.
struct Id(u64);

impl<'py> FromPyObject<'_, 'py> for Id {
    type Error = PyErr;

    fn extract(number: Borrowed<'_, 'py, PyAny>) -> PyResult<Id> {
        let mut overflow = 0;
        // SAFETY: as above; `overflow` is written to.
        let value = unsafe { ffi::PyLong_AsLongLongAndOverflow(number.as_ptr(), &mut overflow) };
        raised_or(number.py(), value == -1 && overflow == 0, Id(u64::try_from(value).unwrap_or(u64::MAX)))
    }
}

/// `value`, unless it stands for an exception that was set.
#[inline]
fn raised_or<T>(py: Python<'_>, maybe: bool, value: T) -> PyResult<T> {
    match if maybe { PyErr::take(py) } else { None } {
        Some(error) => Err(error),
        None => Ok(value),
    }
}

/// A data set's part of the pool.
#[pyclass(frozen, module = "stallscope._native")]
#[derive(Debug)]
pub(crate) struct Space {
    pub(crate) client: Client,
}

#[pymethods]
impl Space {
    #[new]
    fn new(
        py: Python<'_>,
        runtime_dir: PathBuf,
        start: Vec<OsString>,
        key: &[u8],
        samples: u64,
        capacity_bytes: u64,
        policy: &str,
    ) -> PyResult<Space> {
        let settings = settings(runtime_dir, start, key, samples, capacity_bytes, policy)?;
        let client = py.detach(|| Client::open(settings)).map_err(raised)?;
        Ok(Space { client })
    }

    /// What a pickled one becomes: it connects by and by, and raises nothing.
    #[staticmethod]
    fn again(
        py: Python<'_>,
        runtime_dir: PathBuf,
        start: Vec<OsString>,
        key: &[u8],
        samples: u64,
        capacity_bytes: u64,
        policy: &str,
    ) -> PyResult<Space> {
        let settings = settings(runtime_dir, start, key, samples, capacity_bytes, policy)?;
        let client = Client::lazy(settings);
        py.detach(|| client.is_alive());
        Ok(Space { client })
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
        let settings = self.client.settings();
        let again = py.get_type::<Space>().getattr("again")?;
        let arguments = (
            settings.runtime_dir.as_os_str(),
            &settings.start,
            PyBytes::new(py, &settings.key),
            settings.samples,
            settings.capacity_bytes,
            settings.policy.name(),
        );
        Ok((again, arguments.into_pyobject(py)?.into_any()))
    }

    /// A copy of a sample's bytes; None where they are not kept, or were read from what has another tag.
    fn get<'py>(&self, py: Python<'py>, id: Id, tag: Tag) -> Option<Bound<'py, PyByteArray>> {
        for _ in 0..TRIES {
            let found = self.client.find(id.0, tag.0)?;
            let bytes = uninitialised(py, found.bytes())?;
            // SAFETY: it has so many bytes, and nobody else has seen it yet.
            if unsafe { found.copy(ffi::PyByteArray_AsString(bytes.as_ptr()).cast()) } {
                return Some(bytes);
            }
        }
        None
    }

    /// Whether `get` would find the sample now; copies nothing, and waits for nobody.
    fn has(&self, id: Id, tag: Tag) -> bool {
        self.client.find(id.0, tag.0).is_some()
    }

    /// Whether the caller is to read the sample, and to say `fill` or `give_up` then. False: it is there now, or waiting
    /// was in vain. With a tag, bytes that are kept under another count as none.
    #[pyo3(signature = (id, limit_ms, tag = None))]
    fn claim(&self, py: Python<'_>, id: Id, limit_ms: u32, tag: Option<Tag>) -> bool {
        py.detach(|| self.client.claim(id.0, tag.map(|tag| tag.0), limit_ms))
    }

    /// Hands over a sample that was read: whether it is kept.
    #[pyo3(signature = (id, tag, data, at = u64::MAX, next_at = u64::MAX))]
    fn fill(
        &self,
        py: Python<'_>,
        id: Id,
        tag: Tag,
        data: &Bound<'_, PyAny>,
        at: u64,
        next_at: u64,
    ) -> PyResult<bool> {
        let bytes = as_bytes(data)?;
        let data = bytes.as_bytes();
        Ok(py.detach(|| self.client.fill(id.0, tag.0, data, at, next_at)))
    }

    /// A claimed sample is not going to be filled.
    fn give_up(&self, py: Python<'_>, id: Id) {
        py.detach(|| self.client.give_up(id.0));
    }

    /// Samples that were got and used: id, place of the use, place of the next.
    fn used(&self, py: Python<'_>, uses: Vec<(u32, u64, u64)>) {
        py.detach(|| self.client.used(&uses));
    }

    /// Next uses that became known: id and place.
    fn planned(&self, py: Python<'_>, planned: Vec<(u32, u64)>) {
        py.detach(|| self.client.planned(&planned));
    }

    /// How important samples are from now on: id and score.
    fn scored(&self, py: Python<'_>, scored: Vec<(u32, f64)>) {
        py.detach(|| self.client.scored(&scored));
    }

    /// An epoch is over. To be called once an epoch, by one process.
    fn epoch(&self, py: Python<'_>) {
        py.detach(|| self.client.epoch());
    }

    /// Another capacity, up or down: whether it is in force.
    fn resize(&self, py: Python<'_>, capacity_bytes: u64) -> bool {
        py.detach(|| self.client.resize(capacity_bytes))
    }

    fn figures<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let figures = self.client.figures();
        let dict = PyDict::new(py);
        dict.set_item("capacity_bytes", figures.capacity_bytes)?;
        dict.set_item("kept_bytes", figures.kept_bytes)?;
        dict.set_item("kept_samples", figures.kept_samples)?;
        dict.set_item("evictions", figures.evictions)?;
        dict.set_item("fills", figures.fills)?;
        dict.set_item("refused", figures.refused)?;
        dict.set_item("clients", figures.clients)?;
        dict.set_item("cgroup", figures.cgroup)?;
        Ok(dict)
    }

    /// Whether there is a pool that takes fills.
    #[getter]
    fn alive(&self, py: Python<'_>) -> bool {
        py.detach(|| self.client.is_alive())
    }
}

fn settings(
    runtime_dir: PathBuf,
    start: Vec<OsString>,
    key: &[u8],
    samples: u64,
    capacity_bytes: u64,
    policy: &str,
) -> PyResult<Settings> {
    let policy = self::policy(policy)?;
    Ok(Settings { runtime_dir, start, key: key.to_vec(), samples, capacity_bytes, policy })
}

/// ValueError where there is no policy of this name.
pub(crate) fn policy(name: &str) -> PyResult<PolicyKind> {
    let known = PolicyKind::ALL.into_iter().find(|kind| kind.name() == name);
    known.ok_or_else(|| {
        let names: Vec<&str> = PolicyKind::ALL.iter().map(|kind| kind.name()).collect();
        PyValueError::new_err(format!("there is no policy {name:?}; there are {}", names.join(", ")))
    })
}

/// A bytearray whose bytes are anything; None where there is no memory for it.
fn uninitialised(py: Python<'_>, bytes: usize) -> Option<Bound<'_, PyByteArray>> {
    let bytes = isize::try_from(bytes).ok()?;
    // SAFETY: without bytes to copy, memory is made and left as it is.
    let array = unsafe { ffi::PyByteArray_FromStringAndSize(std::ptr::null(), bytes) };
    // SAFETY: a new reference, or null with an exception set.
    match unsafe { Bound::from_owned_ptr_or_err(py, array) } {
        // SAFETY: it is a bytearray.
        Ok(array) => Some(unsafe { array.cast_into_unchecked() }),
        Err(_) => None,
    }
}

/// A sample's data, which is bytes-like.
pub(crate) fn as_bytes<'py>(data: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    match data.cast::<PyBytes>() {
        Ok(bytes) => Ok(bytes.clone()),
        // The buffers of other types are not to be had on Python 3.9.
        Err(_) if is_buffer(data) => {
            Ok(data.py().get_type::<PyBytes>().call1((data,))?.cast_into::<PyBytes>()?)
        }
        Err(_) => Err(PyTypeError::new_err("a sample's data must be bytes-like")),
    }
}

fn is_buffer(data: &Bound<'_, PyAny>) -> bool {
    data.is_instance_of::<PyByteArray>() || data.is_instance_of::<pyo3::types::PyMemoryView>()
}
