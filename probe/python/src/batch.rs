//! How many samples a batch has.

use crate::guard;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

/// Tensors looked at in a batch.
const MAX_TENSORS: usize = 8;

/// Length of a list or tuple.
pub(crate) fn list_length(index: &Bound<'_, PyAny>) -> Option<u64> {
    let length = match index.cast::<PyList>() {
        Ok(list) => list.len(),
        Err(_) => index.cast::<PyTuple>().ok()?.len(),
    };
    Some(length as u64)
}

/// Samples in `data`, of which `asked` were asked for; 0 when unknown.
///
/// What the batch itself shows counts where it has less than was asked for, as the last one of a stream has. Where
/// the data set makes whole batches and no list of indices was drawn, two tensors of the same length are believed,
/// one alone is not (it might be an image).
pub(crate) fn samples(data: &Bound<'_, PyAny>, asked: u64, whole_batches: bool) -> PyResult<u64> {
    let mut lengths = Vec::new();
    tensor_lengths(data, &mut lengths, 2)?;
    let agreed = lengths.first().copied().filter(|first| lengths.iter().all(|length| length == first));
    Ok(match (agreed, asked) {
        (Some(length), 0) if whole_batches && lengths.len() > 1 => length,
        (Some(length), asked) if 0 < length && length < asked && !whole_batches => length,
        (_, asked) => asked,
    })
}

fn tensor_lengths(data: &Bound<'_, PyAny>, lengths: &mut Vec<u64>, depth: u32) -> PyResult<()> {
    if lengths.len() >= MAX_TENSORS {
        return Ok(());
    }
    if let Ok(list) = data.cast::<PyList>() {
        list.iter()
            .take(MAX_TENSORS)
            .filter(|_| depth > 0)
            .try_for_each(|item| tensor_lengths(&item, lengths, depth - 1))
    } else if let Ok(tuple) = data.cast::<PyTuple>() {
        tuple
            .iter()
            .take(MAX_TENSORS)
            .filter(|_| depth > 0)
            .try_for_each(|item| tensor_lengths(&item, lengths, depth - 1))
    } else if let Ok(fields) = data.cast::<PyDict>() {
        fields
            .iter()
            .take(MAX_TENSORS)
            .filter(|_| depth > 0)
            .try_for_each(|(_, item)| tensor_lengths(&item, lengths, depth - 1))
    } else if data.get_type().name().is_ok_and(|name| name == "Tensor") {
        let length = data
            .getattr(intern!(data.py(), "shape"))
            .and_then(|shape| shape.get_item(0))
            .and_then(|length| length.extract::<u64>());
        lengths.extend(guard::known(data.py(), length)?);
        Ok(())
    } else {
        Ok(())
    }
}
