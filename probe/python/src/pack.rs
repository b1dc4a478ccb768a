//! Packs for Python: a thin layer over `stallscope_pack`. The interpreter's lock is released wherever bytes are read.

use crate::interrupts;
use pyo3::exceptions::{PyIndexError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyType};
use stallscope_pack::{Error, Images, Local, Pack, Shelf};
use stallscope_remote::Remote;
use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// What an object is made of when it is unpickled: its class, called with these.
type Reduced<'py, T> = (Bound<'py, PyType>, T);

pub(crate) fn raised(py: Python<'_>, error: &Error) -> PyErr {
    let sentence = error.to_string();
    let class = py.import("stallscope.data.pack.errors").and_then(|module| module.getattr("of"));
    match class.and_then(|class| class.call1((&sentence,))) {
        Ok(value) => PyErr::from_value(value),
        Err(_) => PyRuntimeError::new_err(sentence),
    }
}

/// The pack in a folder, or in object storage: then its chunks may be kept in a local folder.
fn opened(path: &[u8], local: Option<&Local>) -> Result<Pack, Error> {
    if !stallscope_remote::is_url(path) {
        let path = Path::new(OsStr::from_bytes(path));
        if local.is_some() {
            let shown = path.display();
            return Err(Error::Refused(format!(
                "{shown} is no pack in object storage, and has to be kept nowhere else: leave out local="
            )));
        }
        return Pack::open(path);
    }
    let url = std::str::from_utf8(path).map_err(|_| Error::Refused("a URL is text in UTF-8".into()))?;
    let remote = Remote::new(url)?;
    let mut pack = Pack::open_objects(remote.url().to_owned(), Arc::new(remote))?;
    if let Some(local) = local {
        pack.keep_in(local)?;
    }
    Ok(pack)
}

/// On stderr, if there is one: threads that read chunks ahead may outlive the interpreter and its warnings.
fn warn(sentence: &str) {
    let _ = writeln!(std::io::stderr(), "stallscope: {sentence}");
}

/// A pack that is read. Pickled it is its path and version: where it is opened again it has to be the same.
#[pyclass(frozen, module = "stallscope._native")]
#[derive(Debug)]
pub(crate) struct PackReader {
    pub(crate) pack: Arc<Pack>,
    local: Option<Local>,
    /// Where chunks are read ahead of their use, if they are. Held only with the interpreter's lock, so that no child is forked
    /// meanwhile.
    shelf: Mutex<Option<Arc<Shelf>>>,
}

/// By which a worker finds the shelf: process, descriptor and token.
type Address = (u32, i32, u64);
/// Of a reader: path, version, shelf, the local folder of its chunks and how many bytes that may take.
type Made<'py> = (Bound<'py, PyBytes>, String, Option<Address>, Option<Bound<'py, PyBytes>>, Option<u64>);

impl PackReader {
    fn path_bytes(&self) -> &[u8] {
        self.pack.dir().as_os_str().as_bytes()
    }

    fn version_hex(&self) -> String {
        self.pack.snapshot().version().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

#[pymethods]
impl PackReader {
    /// `version`: that it has to have. `local`: a folder for chunks of a pack in object storage, which may take `local_limit` bytes.
    #[new]
    #[pyo3(signature = (path, version=None, shelf=None, local=None, local_limit=None))]
    fn new(
        py: Python<'_>,
        path: &[u8],
        version: Option<&str>,
        shelf: Option<Address>,
        local: Option<&[u8]>,
        local_limit: Option<u64>,
    ) -> PyResult<PackReader> {
        let local = local.map(|folder| {
            // A worker that is spawned may begin elsewhere.
            let folder = std::path::absolute(OsStr::from_bytes(folder));
            folder.map(|folder| Local { folder, limit: local_limit, warn })
        });
        let local = local.transpose()?;
        let pack = interrupts::detached(py, || opened(path, local.as_ref()))?;
        let pack = pack.map_err(|error| raised(py, &error))?;
        if let Some(sentence) = pack.is_stale() {
            return Err(raised(py, &Error::Refused(sentence)));
        }
        // Of a process that is gone, samples are read one by one.
        let shelf = shelf.and_then(|(process, fd, token)| Shelf::of_other(process, fd, token).ok());
        let reader = PackReader { pack: Arc::new(pack), local, shelf: Mutex::new(shelf.map(Arc::new)) };
        if version.is_some_and(|version| version != reader.version_hex()) {
            let dir = reader.pack.dir().display();
            return Err(raised(
                py,
                &Error::Refused(format!(
                    "{dir} is in another state than where it was opened first; open it anew"
                )),
            ));
        }
        Ok(reader)
    }

    /// Its folder, absolute, or its URL.
    #[getter]
    fn path<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.path_bytes())
    }

    /// The data set's version, in hexadecimal digits.
    #[getter]
    fn version(&self) -> String {
        self.version_hex()
    }

    /// Whether it lies in object storage, where samples that are read at once take the time of one.
    #[getter]
    fn is_in_store(&self) -> bool {
        self.pack.is_in_store()
    }

    /// How many chunks are there that it does not have yet.
    #[getter]
    fn newer(&self) -> usize {
        self.pack.newer().len()
    }

    /// Why it has files that were deleted, or lacks some that were not; None where it has those of the pack.
    #[getter]
    fn other_deletions(&self) -> Option<&str> {
        self.pack.other_deletions()
    }

    fn __len__(&self) -> usize {
        self.pack.snapshot().records()
    }

    /// The name of a record.
    fn name<'py>(&self, py: Python<'py>, number: usize) -> PyResult<Bound<'py, PyBytes>> {
        let entry = self.pack.snapshot().entry(self.within(number)?).map_err(|error| raised(py, &error))?;
        Ok(PyBytes::new(py, entry.name))
    }

    /// The number of a record's class; None where it has none.
    fn label(&self, py: Python<'_>, number: usize) -> PyResult<Option<u32>> {
        let entry = self.pack.snapshot().entry(self.within(number)?).map_err(|error| raised(py, &error))?;
        Ok(entry.label)
    }

    /// The number of the record of this name; None where there is none.
    fn find(&self, py: Python<'_>, name: &[u8]) -> PyResult<Option<usize>> {
        self.pack.snapshot().find(name).map_err(|error| raised(py, &error))
    }

    /// The numbers of all records in the order in which they lie in chunks.
    fn as_they_lie(&self, py: Python<'_>) -> PyResult<Vec<usize>> {
        py.detach(|| self.pack.as_they_lie()).map_err(|error| raised(py, &error))
    }

    /// A record's bytes, checked, behind `prefix`.
    fn read<'py>(&self, py: Python<'py>, number: usize, prefix: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
        let entry = self.pack.snapshot().entry(self.within(number)?).map_err(|error| raised(py, &error))?;
        let shelf = self.shelf();
        let found = py.detach(|| {
            let shelf = shelf?;
            let place = self.pack.shelved(&shelf, &entry)?;
            Some((shelf, place))
        });
        // What was read into memory is in its chunk.
        let size = match found {
            Some(_) => Ok(entry.bytes as usize),
            // Which a store may have to be asked for.
            None if self.pack.is_in_store() => interrupts::detached(py, || self.pack.size_of(&entry))?,
            None => self.pack.size_of(&entry),
        };
        let size = size.map_err(|error| raised(py, &error))?;
        let all = size.checked_add(prefix.len()).ok_or_else(|| PyValueError::new_err("too large"))?;
        PyBytes::new_with(py, all, |to| {
            let (before, record) = to.split_at_mut(prefix.len());
            before.copy_from_slice(prefix);
            let read = interrupts::detached(py, || match &found {
                Some((shelf, place)) => self.pack.take(shelf, *place, &entry, record),
                None => self.pack.read(&entry, record),
            })?;
            read.map_err(|error| raised(py, &error))
        })
    }

    /// The bytes of several records, checked.
    fn read_each<'py>(&self, py: Python<'py>, numbers: Vec<usize>) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        numbers.iter().try_for_each(|number| self.within(*number).map(drop))?;
        let shelf = self.shelf();
        let found = interrupts::detached(py, || self.bytes_of_each(&numbers, shelf.as_deref()))?;
        found
            .into_iter()
            .map(|bytes| bytes.map(|bytes| PyBytes::new(py, &bytes)).map_err(|error| raised(py, &error)))
            .collect()
    }

    /// A record's bytes were had from elsewhere: what was read ahead for it is used.
    fn pass_by(&self, py: Python<'_>, number: usize) -> PyResult<()> {
        let entry = self.pack.snapshot().entry(self.within(number)?).map_err(|error| raised(py, &error))?;
        if let Some(shelf) = self.shelf() {
            shelf.pass_by(entry.chunk, entry.offset, entry.stored_bytes);
        }
        Ok(())
    }

    /// A worker that is spawned finds its trainer's shelf; any other copy has none.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Reduced<'py, Made<'py>>> {
        let spawning = py.import("multiprocessing.context")?.call_method0("get_spawning_popen")?;
        let shelf = if spawning.is_none() { None } else { self.shelf().map(|shelf| shelf.address()) };
        let local = self.local.as_ref();
        let folder = local.map(|local| PyBytes::new(py, local.folder.as_os_str().as_bytes()));
        let limit = local.and_then(|local| local.limit);
        Ok((py.get_type::<PackReader>(), (self.path(py), self.version_hex(), shelf, folder, limit)))
    }
}

impl PackReader {
    pub(crate) fn shelf(&self) -> Option<Arc<Shelf>> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Its samples are taken from there from now on.
    pub(crate) fn put_on(&self, shelf: Arc<Shelf>) {
        *self.shelf.lock().unwrap_or_else(PoisonError::into_inner) = Some(shelf);
    }

    /// No longer, if they are.
    pub(crate) fn take_off(&self, shelf: &Arc<Shelf>) {
        let mut own = self.shelf.lock().unwrap_or_else(PoisonError::into_inner);
        own.take_if(|own| Arc::ptr_eq(own, shelf));
    }

    /// A record's bytes, checked; from the shelf where they are there.
    pub(crate) fn bytes_of(&self, number: usize, shelf: Option<&Shelf>) -> Result<Vec<u8>, Error> {
        let entry = self.pack.snapshot().entry(number)?;
        if let Some(shelf) = shelf
            && let Some(place) = self.pack.shelved(shelf, &entry)
        {
            let mut bytes = vec![0; entry.bytes as usize];
            self.pack.take(shelf, place, &entry, &mut bytes)?;
            return Ok(bytes);
        }
        self.pack.whole(&entry)
    }

    /// The same of several, of which those in object storage are read at once.
    pub(crate) fn bytes_of_each(
        &self,
        numbers: &[usize],
        shelf: Option<&Shelf>,
    ) -> Vec<Result<Vec<u8>, Error>> {
        let entries: Vec<_> = numbers.iter().map(|number| self.pack.snapshot().entry(*number)).collect();
        let mut found: Vec<Option<Result<Vec<u8>, Error>>> = entries
            .iter()
            .map(|entry| {
                let (shelf, entry) = (shelf?, entry.as_ref().ok()?);
                let place = self.pack.shelved(shelf, entry)?;
                let mut bytes = vec![0; entry.bytes as usize];
                Some(self.pack.take(shelf, place, entry, &mut bytes).map(|()| bytes))
            })
            .collect();
        let rest: Vec<usize> =
            (0..found.len()).filter(|one| found[*one].is_none() && entries[*one].is_ok()).collect();
        let wanted: Vec<_> = rest.iter().filter_map(|one| entries[*one].as_ref().ok().cloned()).collect();
        for (one, bytes) in rest.iter().zip(self.pack.whole_of_each(&wanted)) {
            found[*one] = Some(bytes);
        }
        found
            .into_iter()
            .zip(entries)
            .map(|(found, entry)| found.unwrap_or_else(|| entry.map(|_| Vec::new())))
            .collect()
    }

    fn within(&self, number: usize) -> PyResult<usize> {
        match number < self.pack.snapshot().records() {
            true => Ok(number),
            false => Err(PyIndexError::new_err("there is no record of this number")),
        }
    }
}

/// Which records of a pack are pictures, in the order of torchvision's ImageFolder.
#[pyclass(frozen, module = "stallscope._native")]
#[derive(Debug)]
pub(crate) struct PackImages {
    pub(crate) images: Images,
    pub(crate) pack: Py<PackReader>,
    extensions: Vec<Vec<u8>>,
}

#[pymethods]
impl PackImages {
    /// `extensions`: one of which a picture's name ends in, whatever the case.
    #[new]
    fn new(py: Python<'_>, pack: Py<PackReader>, extensions: Vec<Vec<u8>>) -> PyResult<PackImages> {
        let reader = pack.get();
        let images =
            py.detach(|| Images::of(&reader.pack, &extensions)).map_err(|error| raised(py, &error))?;
        Ok(PackImages { images, pack, extensions })
    }

    /// Names of the classes, in the order of their numbers.
    fn classes<'py>(&self, py: Python<'py>) -> Vec<Bound<'py, PyBytes>> {
        self.images.classes().iter().map(|name| PyBytes::new(py, name)).collect()
    }

    fn __len__(&self) -> usize {
        self.images.count()
    }

    /// The numbers of all pictures in the order in which they lie in chunks.
    fn as_they_lie(&self, py: Python<'_>) -> PyResult<Vec<usize>> {
        let reader = self.pack.get();
        let records = py.detach(|| reader.pack.as_they_lie()).map_err(|error| raised(py, &error))?;
        Ok(records.into_iter().filter_map(|record| self.images.of_record(record)).collect())
    }

    /// The record of a picture, and the number of its class.
    fn at(&self, picture: usize) -> PyResult<(usize, usize)> {
        self.images.at(picture).ok_or_else(|| PyIndexError::new_err("there is no picture of this number"))
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> Reduced<'py, (Py<PackReader>, Vec<Bound<'py, PyBytes>>)> {
        let extensions = self.extensions.iter().map(|one| PyBytes::new(py, one)).collect();
        (py.get_type::<PackImages>(), (self.pack.clone_ref(py), extensions))
    }
}
