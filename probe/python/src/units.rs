//! The program's own words for sizes and times, so that the package reads and writes them alike.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use stallscope_units as units;

/// Bytes of "8GiB", "500MB" or "4096".
#[pyfunction]
pub(crate) fn parse_bytes(text: &str) -> PyResult<u64> {
    units::parse_bytes(text.trim()).map_err(|error| PyValueError::new_err(error.to_string()))
}

/// Nanoseconds of "6h", "1h30m" or "90s".
#[pyfunction]
pub(crate) fn parse_duration(text: &str) -> PyResult<u64> {
    let parsed = units::parse_duration(text.trim());
    parsed.map(|time| time.as_nanos() as u64).map_err(|error| PyValueError::new_err(error.to_string()))
}

/// "41 s" of nanoseconds.
#[pyfunction]
pub(crate) fn duration_in_words(ns: u64) -> String {
    units::duration(ns)
}

/// "1.2 MB".
#[pyfunction]
pub(crate) fn bytes_in_words(bytes: u64) -> String {
    units::bytes(bytes)
}

/// "2.0 GiB".
#[pyfunction]
pub(crate) fn memory_in_words(bytes: u64) -> String {
    units::memory(bytes)
}

/// "1.3GiB", as `parse_bytes` takes it: a little more than `bytes`.
#[pyfunction]
pub(crate) fn memory_to_hold(bytes: u64) -> String {
    units::memory_to_hold(bytes)
}
