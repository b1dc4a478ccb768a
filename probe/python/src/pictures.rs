//! Pictures of a pack, decoded in threads of ours with the interpreter's lock released: a thin layer over `stallscope_decode`.

use crate::interrupts;
use crate::pack::{PackReader, raised};
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyType};
use stallscope_decode::{Cut, Decoder, Form, Spare, header, in_threads};
use stallscope_pack::Error;
use std::sync::{Mutex, PoisonError};

/// Left, top, width and height of what is resized; to which width and height; left and top of the sample in that; whether it is
/// mirrored.
type CutOf = (u32, u32, u32, u32, u32, u32, u32, u32, bool);

/// Makes samples of one form.
#[pyclass(frozen, module = "stallscope._native")]
#[derive(Debug)]
pub(crate) struct PictureDecoder {
    form: Form,
    /// Held only with the interpreter's lock, so that no child is forked meanwhile.
    spare: Mutex<Spare>,
}

#[pymethods]
impl PictureDecoder {
    #[new]
    fn new(width: u32, height: u32, scaled: bool, most_pixels: u64) -> PictureDecoder {
        let form = Form { width, height, scaled, most_pixels };
        PictureDecoder { form, spare: Mutex::default() }
    }

    /// Reads records and the headers of their pictures.
    fn read(
        &self,
        py: Python<'_>,
        pack: &PackReader,
        records: Vec<usize>,
        threads: usize,
    ) -> PyResult<Pictures> {
        let mut found: Vec<Result<Encoded, Error>> = Vec::new();
        let shelf = pack.shelf();
        if pack.pack.is_in_store() {
            let read = interrupts::detached(py, || pack.bytes_of_each(&records, shelf.as_deref()))?;
            let found: Result<Vec<_>, _> = read.into_iter().map(|bytes| bytes.map(with_size)).collect();
            return Ok(Pictures { found: found.map_err(|error| raised(py, &error))? });
        }
        found.resize_with(records.len(), || Ok((Vec::new(), None)));
        self.with(py, threads.min(records.len()), |decoders| {
            let items: Vec<_> = records.iter().zip(&mut found).collect();
            in_threads(decoders, items, |_, (record, to)| {
                *to = pack.bytes_of(*record, shelf.as_deref()).map(with_size);
            });
        });
        let found: Result<Vec<_>, _> = found.into_iter().collect();
        Ok(Pictures { found: found.map_err(|error| raised(py, &error))? })
    }

    /// As `read`, of bytes that were read before.
    #[staticmethod]
    fn of(data: Vec<Bound<'_, PyBytes>>) -> Pictures {
        Pictures { found: data.into_iter().map(|bytes| with_size(bytes.as_bytes().to_vec())).collect() }
    }

    /// Decodes some of the pictures into memory at `address`, which holds a sample for each of all, one after the other.
    /// Which could not be, and why.
    fn decode(
        &self,
        py: Python<'_>,
        pictures: &Pictures,
        cuts: Vec<(usize, CutOf)>,
        address: usize,
        bytes: usize,
        threads: usize,
    ) -> PyResult<Vec<(usize, String)>> {
        let each = self.form.sample_bytes();
        if address == 0 || each.checked_mul(pictures.found.len()) != Some(bytes) {
            return Err(PyValueError::new_err("the memory is of another size than the samples"));
        }
        // SAFETY: pictures.py gives the address of a dense tensor of that many bytes, which it has just made, has given to nobody
        // and holds until this returns.
        let memory = unsafe { std::slice::from_raw_parts_mut(address as *mut u8, bytes) };
        let mut places: Vec<_> = memory.chunks_exact_mut(each.max(1)).map(Some).collect();
        let mut items = Vec::with_capacity(cuts.len());
        for (number, cut) in cuts {
            let place = places.get_mut(number).and_then(Option::take);
            let place = place.ok_or_else(|| PyIndexError::new_err("no such picture, or one twice"))?;
            items.push((number, cut_of(cut), place));
        }
        let failed = Mutex::new(Vec::new());
        self.with(py, threads.min(items.len()), |decoders| {
            in_threads(decoders, items, |decoder, (number, cut, place)| {
                let (data, _) = &pictures.found[number];
                if let Err(reason) = decoder.decode(data, &cut, &self.form, place) {
                    failed.lock().unwrap_or_else(PoisonError::into_inner).push((number, reason));
                }
            });
        });
        let mut failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
        failed.sort_unstable();
        Ok(failed)
    }

    /// Elsewhere it has memory of its own.
    fn __reduce__<'py>(&self, py: Python<'py>) -> (Bound<'py, PyType>, (u32, u32, bool, u64)) {
        let Form { width, height, scaled, most_pixels } = self.form;
        (py.get_type::<PictureDecoder>(), (width, height, scaled, most_pixels))
    }
}

impl PictureDecoder {
    /// Does `work` without the interpreter's lock, with so many decoders, at least one.
    fn with(&self, py: Python<'_>, count: usize, work: impl FnOnce(&mut [Decoder]) + Send) {
        let spare = || self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        let mut decoders = spare().take(count.max(1));
        py.detach(|| work(&mut decoders));
        spare().put(decoders);
    }
}

fn with_size(bytes: Vec<u8>) -> Encoded {
    let size = header(&bytes).ok().map(|header| (header.width, header.height));
    (bytes, size)
}

fn cut_of((left, top, width, height, to_width, to_height, at_left, at_top, flip): CutOf) -> Cut {
    Cut { left, top, width, height, to_width, to_height, at_left, at_top, flip }
}

/// The bytes of a picture, and its width and height; None of what is no JPEG, or one that is not decoded here.
type Encoded = (Vec<u8>, Option<(u32, u32)>);

/// Encoded pictures.
#[pyclass(frozen, module = "stallscope._native")]
#[derive(Debug)]
pub(crate) struct Pictures {
    found: Vec<Encoded>,
}

#[pymethods]
impl Pictures {
    fn sizes(&self) -> Vec<Option<(u32, u32)>> {
        self.found.iter().map(|(_, size)| *size).collect()
    }

    /// The bytes of one of them.
    fn encoded<'py>(&self, py: Python<'py>, number: usize) -> PyResult<Bound<'py, PyBytes>> {
        let found = self.found.get(number);
        let (bytes, _) = found.ok_or_else(|| PyIndexError::new_err("no such picture"))?;
        Ok(PyBytes::new(py, bytes))
    }
}
