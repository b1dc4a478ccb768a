use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};

/// Types of elements, by their safetensors names.
#[allow(non_camel_case_types, reason = "these are the names in the file format")]
#[allow(missing_docs, reason = "the names say all there is to say")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Dtype {
    BOOL,
    U8,
    I8,
    F8_E5M2,
    F8_E4M3,
    I16,
    U16,
    F16,
    BF16,
    I32,
    U32,
    F32,
    I64,
    U64,
    F64,
    C64,
}

impl Dtype {
    /// Every type there is.
    pub const ALL: [Dtype; 16] = {
        use Dtype::*;
        [BOOL, U8, I8, F8_E5M2, F8_E4M3, I16, U16, F16, BF16, I32, U32, F32, I64, U64, F64, C64]
    };

    /// Bytes of an element.
    pub fn bytes(self) -> u64 {
        use Dtype::*;
        match self {
            BOOL | U8 | I8 | F8_E5M2 | F8_E4M3 => 1,
            I16 | U16 | F16 | BF16 => 2,
            I32 | U32 | F32 => 4,
            I64 | U64 | F64 | C64 => 8,
        }
    }

    /// The safetensors name: "F32", "BF16".
    pub fn name(self) -> &'static str {
        use Dtype::*;
        match self {
            BOOL => "BOOL",
            U8 => "U8",
            I8 => "I8",
            F8_E5M2 => "F8_E5M2",
            F8_E4M3 => "F8_E4M3",
            I16 => "I16",
            U16 => "U16",
            F16 => "F16",
            BF16 => "BF16",
            I32 => "I32",
            U32 => "U32",
            F32 => "F32",
            I64 => "I64",
            U64 => "U64",
            F64 => "F64",
            C64 => "C64",
        }
    }

    /// The type of that safetensors name.
    pub fn of_name(name: &str) -> Option<Dtype> {
        Dtype::ALL.into_iter().find(|dtype| dtype.name() == name)
    }
}

/// What a tensor is, apart from where it lies. Tensors are saved densely, row by row.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TensorSpec {
    /// Unique in its rank's part of a checkpoint; never used as a path.
    pub name: String,
    /// Type of its elements.
    pub dtype: Dtype,
    /// Its sizes; none for a scalar.
    pub shape: Vec<u64>,
}

/// Longest name of a tensor, in bytes.
pub(crate) const LONGEST_NAME: usize = 4096;
/// Most dimensions of a tensor.
const MOST_DIMENSIONS: usize = 64;

impl TensorSpec {
    /// Its bytes, or why there can be no such tensor.
    pub fn bytes(&self) -> Result<u64> {
        let cannot = |why: &str| Err(Error::Refused(format!("tensor {:?} {why}", short(&self.name))));
        if self.name.len() > LONGEST_NAME {
            return cannot("has a name of more than 4096 bytes");
        }
        // The name of what safetensors headers say of the whole file.
        if self.name == "__metadata__" {
            return cannot("needs another name: safetensors files mean something else by this one");
        }
        if self.shape.len() > MOST_DIMENSIONS {
            return cannot("has more than 64 dimensions");
        }
        let size = self.shape.iter().try_fold(self.dtype.bytes(), |bytes, size| bytes.checked_mul(*size));
        // A product that is zero overflows nowhere, whatever else is in it.
        match size.or_else(|| self.shape.contains(&0).then_some(0)) {
            Some(bytes) if bytes <= i64::MAX as u64 => Ok(bytes),
            _ => cannot("is larger than any memory"),
        }
    }
}

/// The beginning of a name, for messages.
pub(crate) fn short(name: &str) -> String {
    let mut chars = name.chars();
    let start: String = chars.by_ref().take(80).collect();
    if chars.next().is_some() { format!("{start}…") } else { start }
}
