//! Packages of samples of low importance for Python: a thin layer over `stallscope_cache::packages`. What reads and writes
//! releases the interpreter's lock.

use crate::pool::{Space, Tag, as_bytes};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes};
use stallscope_cache::packages::{Packages, Settings};
use std::path::PathBuf;
use std::sync::OnceLock;

/// What was read of a package: its bytes, how many samples were in it, and the one that was asked for.
type Taken<'py> = (usize, usize, Option<Bound<'py, PyByteArray>>);

/// The packages of a run.
#[pyclass(frozen, name = "Packages", module = "stallscope._native")]
#[derive(Debug)]
pub(crate) struct RunPackages {
    settings: Settings,
    /// In a process that was not forked from the one that opened them: joined when they are first needed.
    packages: OnceLock<Packages>,
}

impl RunPackages {
    fn packages(&self) -> std::io::Result<&Packages> {
        if let Some(packages) = self.packages.get() {
            return Ok(packages);
        }
        let joined = Packages::join(self.settings.clone())?;
        Ok(self.packages.get_or_init(|| joined))
    }
}

fn settings(folder: PathBuf, run: &[u8], package_bytes: u64, limit: Option<u64>) -> PyResult<Settings> {
    let run = run.try_into().map_err(|_| PyValueError::new_err("a run has 16 bytes"))?;
    Ok(Settings { folder, run, package_bytes, limit })
}

#[pymethods]
impl RunPackages {
    /// Opens the run: OSError where the folder cannot be had.
    #[new]
    #[pyo3(signature = (folder, run, package_bytes, limit = None))]
    fn new(
        py: Python<'_>,
        folder: PathBuf,
        run: &[u8],
        package_bytes: u64,
        limit: Option<u64>,
    ) -> PyResult<RunPackages> {
        let settings = settings(folder, run, package_bytes, limit)?;
        let packages = py.detach(|| Packages::open(settings.clone()))?;
        Ok(RunPackages { settings, packages: OnceLock::from(packages) })
    }

    /// What a pickled one becomes, which raises nothing yet.
    #[staticmethod]
    #[pyo3(signature = (folder, run, package_bytes, limit = None))]
    fn again(folder: PathBuf, run: &[u8], package_bytes: u64, limit: Option<u64>) -> PyResult<RunPackages> {
        let settings = settings(folder, run, package_bytes, limit)?;
        Ok(RunPackages { settings, packages: OnceLock::new() })
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
        let again = py.get_type::<RunPackages>().getattr("again")?;
        let own = &self.settings;
        let arguments = (own.folder.as_os_str(), PyBytes::new(py, &own.run), own.package_bytes, own.limit);
        Ok((again, arguments.into_pyobject(py)?.into_any()))
    }

    /// Adds a sample to a package: how many bytes were written, none where there is no space. OSError where the disk fails.
    fn add(&self, py: Python<'_>, number: u64, id: u32, tag: Tag, data: &Bound<'_, PyAny>) -> PyResult<u64> {
        let bytes = as_bytes(data)?;
        let bytes = bytes.as_bytes();
        Ok(py.detach(|| self.packages()?.add(number, id, tag.0, bytes))?)
    }

    /// Reads a package, hands what it brings to the pool, and gives sample `id` if that is in it and was read from what has
    /// this tag; None where there is no package. `at`: as the pool has it of all of them. OSError where it cannot be read.
    fn take<'py>(
        &self,
        py: Python<'py>,
        number: u64,
        waiting: &Space,
        id: u32,
        tag: Tag,
        at: u64,
    ) -> PyResult<Option<Taken<'py>>> {
        let taken = py.detach(|| {
            let Some(package) = self.packages()?.take(number)? else { return Ok(None) };
            let mut count = 0;
            let mut wanted = None;
            for record in package.records() {
                count += 1;
                if record.id == id && record.tag == tag.0 {
                    wanted = Some(record.bytes.to_vec());
                } else {
                    waiting.client.fill(record.id.into(), record.tag, record.bytes, at, u64::MAX);
                }
            }
            Ok::<_, std::io::Error>(Some((package.bytes(), count, wanted)))
        })?;
        Ok(taken
            .map(|(bytes, count, wanted)| (bytes, count, wanted.map(|wanted| PyByteArray::new(py, &wanted)))))
    }

    /// Removes the packages before `number`.
    fn sweep(&self, py: Python<'_>, number: u64) -> PyResult<()> {
        Ok(py.detach(|| self.packages()?.sweep(number))?)
    }

    /// How many places a package's range has, for all processes: what the first one gave; None where that is not known now.
    fn settle(&self, py: Python<'_>, width: u64) -> PyResult<Option<u64>> {
        Ok(py.detach(|| self.packages()?.settle(width))?)
    }

    /// Removes the run, in the process that opened it, where no other one has it.
    fn close(&self, py: Python<'_>) {
        py.detach(|| {
            if let Some(packages) = self.packages.get() {
                packages.close();
            }
        });
    }
}
