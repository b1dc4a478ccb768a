//! How a rank's tensors lie in one contiguous image: byte for byte a safetensors file.

use crate::error::{Error, Result};
use crate::manifest::MOST_TENSORS;
use crate::tensor::{TensorSpec, short};
use serde_json::{Map, Value, json};
use std::collections::HashSet;

/// Unit of checksums, of reuse and of a single write, in bytes.
pub const CHUNK_BYTES: u64 = 4 << 20;
/// Tensors of up to so many bytes lie together.
const SMALL_BYTES: u64 = 4096;
/// What O_DIRECT wants addresses, offsets and sizes to be multiples of: the largest block there is in practice.
pub(crate) const BLOCK: u64 = 4096;

/// Where every tensor lies in the image. The same tensors give the same image layout, save after save.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    /// As given, and where its bytes begin in the image.
    pub(crate) tensors: Vec<(TensorSpec, u64)>,
    /// What the image begins with.
    pub(crate) header: Vec<u8>,
    /// Of the image.
    pub(crate) bytes: u64,
    /// By chunk: whether all of it is expected to stay as it is.
    pub(crate) still: Vec<bool>,
}

impl Layout {
    /// Larger elements come first, so that each tensor is aligned for its type without gaps, which safetensors forbids.
    /// `still` are the places of those tensors that are not expected to change: they lie together. So do small ones, such
    /// as an optimiser's counts of steps: to read all of them few chunks are read.
    pub(crate) fn of(specs: Vec<TensorSpec>, still: &[usize]) -> Result<Layout> {
        if specs.len() > MOST_TENSORS {
            return Err(Error::Refused(format!(
                "these are {} tensors, and a checkpoint has at most {MOST_TENSORS} a rank: save small ones together, as one",
                specs.len()
            )));
        }
        let stays: HashSet<usize> = still.iter().copied().collect();
        let mut order: Vec<usize> = (0..specs.len()).collect();
        let is_large: Vec<bool> =
            specs.iter().map(|spec| Ok(spec.bytes()? > SMALL_BYTES)).collect::<Result<_>>()?;
        order.sort_by_key(|at| {
            (std::cmp::Reverse(specs[*at].dtype.bytes()), !stays.contains(at), is_large[*at])
        });
        let mut names = HashSet::new();
        let mut begins = vec![0; specs.len()];
        let mut data_bytes = 0_u64;
        let mut entries = Map::new();
        for at in order {
            let spec = &specs[at];
            let bytes = spec.bytes()?;
            if !names.insert(&spec.name) {
                let name = short(&spec.name);
                return Err(Error::Refused(format!(
                    "two tensors are called {name:?}; give each its own name"
                )));
            }
            begins[at] = data_bytes;
            data_bytes = data_bytes
                .checked_add(bytes)
                .filter(|sum| *sum <= i64::MAX as u64 / 2)
                .ok_or_else(|| Error::Refused("the tensors together are larger than any memory".into()))?;
            let offsets = [begins[at], data_bytes];
            let entry = json!({ "dtype": spec.dtype.name(), "shape": spec.shape, "data_offsets": offsets });
            entries.insert(spec.name.clone(), entry);
        }
        let header = header(&entries);
        let data_at = header.len() as u64;
        let bytes = data_at + data_bytes;
        let tensors: Vec<_> =
            specs.into_iter().zip(begins).map(|(spec, begin)| (spec, data_at + begin)).collect();
        let mut still = vec![!stays.is_empty(); chunks(bytes) as usize];
        for (at, (spec, begin)) in tensors.iter().enumerate().filter(|(at, _)| !stays.contains(at)) {
            let end = tensors[at].1 + spec.bytes()?;
            for chunk in begin / CHUNK_BYTES..end.div_ceil(CHUNK_BYTES) {
                still[chunk as usize] = false;
            }
        }
        Ok(Layout { tensors, header, bytes, still })
    }

    pub(crate) fn is_of(&self, specs: &[TensorSpec]) -> bool {
        self.tensors.len() == specs.len()
            && self.tensors.iter().zip(specs).all(|((own, _), spec)| own == spec)
    }
}

/// A safetensors header with its length before it, padded so that the data begin at a block.
pub(crate) fn header(entries: &Map<String, Value>) -> Vec<u8> {
    let text = Value::Object(entries.clone()).to_string();
    let whole = (8 + text.len() as u64).next_multiple_of(BLOCK);
    let mut header = (whole - 8).to_le_bytes().to_vec();
    header.extend_from_slice(text.as_bytes());
    header.resize(whole as usize, b' ');
    header
}

/// How many chunks an image has.
pub(crate) fn chunks(image_bytes: u64) -> u64 {
    image_bytes.div_ceil(CHUNK_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::Dtype;

    fn spec(name: &str, dtype: Dtype, shape: &[u64]) -> TensorSpec {
        TensorSpec { name: name.into(), dtype, shape: shape.to_vec() }
    }

    #[test]
    fn tensors_lie_densely_and_aligned_behind_the_header() {
        let layout = Layout::of(
            vec![
                spec("flag", Dtype::BOOL, &[3]),
                spec("half", Dtype::BF16, &[5]),
                spec("weight", Dtype::F32, &[7, 3]),
                spec("nothing", Dtype::F64, &[0, 9]),
                spec("steps", Dtype::I64, &[]),
            ],
            &[],
        )
        .unwrap();
        for (spec, begin) in &layout.tensors {
            assert_eq!(begin % spec.dtype.bytes(), 0, "{}", spec.name);
        }
        assert_eq!(layout.header.len() % BLOCK as usize, 0);
        assert_eq!(layout.bytes, layout.header.len() as u64 + 3 + 10 + 84 + 8);
    }

    #[test]
    fn chunks_are_still_where_nothing_in_them_is_expected_to_change() {
        let tensors =
            ["frozen", "trained", "frozen too"].map(|name| spec(name, Dtype::U8, &[2 * CHUNK_BYTES]));
        let layout = Layout::of(tensors.to_vec(), &[0, 2]).unwrap();
        // Behind the header, so the trained one begins in the midst of the fifth.
        assert_eq!(layout.still, [true, true, true, true, false, false, false]);
        assert!(!Layout::of(tensors.to_vec(), &[]).unwrap().still.contains(&true));
    }

    #[test]
    fn names_given_twice_and_absurd_sizes_are_refused() {
        let twice = Layout::of(vec![spec("a", Dtype::U8, &[1]), spec("a", Dtype::U8, &[1])], &[]);
        assert!(twice.unwrap_err().to_string().contains("\"a\""));
        assert!(Layout::of(vec![spec("a", Dtype::F32, &[u64::MAX, 2])], &[]).is_err());
        assert!(Layout::of(vec![spec("a", Dtype::F32, &[u64::MAX, 2, 0])], &[]).is_ok());
        assert!(
            Layout::of(vec![spec("a", Dtype::U8, &[1 << 62]), spec("b", Dtype::U8, &[1 << 62])], &[])
                .is_err()
        );
    }
}
