//! Records that are stored as a frame of zstd (RFC 8878); docs/packs.md says which frames those are.

use crate::error::{Error, Result};
use std::cell::RefCell;
use std::fmt::{Debug, Formatter};
use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe::get_frame_content_size;

/// No record of more bytes is compressed: who needs a part of one has to expand all of it. It also bounds the memory that is
/// taken for what a forged pack says of itself.
pub const MOST_EXPANDED_BYTES: u64 = 64 << 20;
/// A frame is stored where it saves one byte in so many.
const WORTH_ONE_IN: usize = 8;

const NOT_EXPANDED: &str = "does not expand to what was packed";

/// Makes frames.
pub(crate) struct Frames {
    level: i32,
    compressor: Compressor<'static>,
}

impl Debug for Frames {
    fn fmt(&self, to: &mut Formatter<'_>) -> std::fmt::Result {
        to.debug_struct("Frames").field("level", &self.level).finish_non_exhaustive()
    }
}

impl Frames {
    pub(crate) fn new(level: i32) -> Result<Frames> {
        let compressor = Compressor::new(level)
            .map_err(|error| Error::Refused(format!("cannot compress at level {level}: {error}")))?;
        Ok(Frames { level, compressor })
    }

    /// A frame of these bytes; none where it is not worth it.
    pub(crate) fn of(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        if bytes.len() as u64 > MOST_EXPANDED_BYTES {
            return None;
        }
        let most = bytes.len() - bytes.len().div_ceil(WORTH_ONE_IN);
        let mut frame = Vec::with_capacity(most);
        // It fails where the frame does not fit, and so is not worth it.
        let size = self.compressor.compress_to_buffer(bytes, &mut frame).ok()?;
        (size <= most && size < bytes.len()).then_some(frame)
    }
}

thread_local! {
    /// To make one takes longer than to expand a small record.
    static EXPANDER: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

/// Expands a frame into `to`, which has the size that it has to have; or why it is not that of a record.
pub(crate) fn expand(frame: &[u8], to: &mut [u8]) -> std::result::Result<(), String> {
    let has_size = matches!(get_frame_content_size(frame), Ok(Some(size)) if size == to.len() as u64);
    if !has_size {
        return Err(NOT_EXPANDED.into());
    }
    EXPANDER.with_borrow_mut(|expander| {
        let expander = match expander {
            Some(expander) => expander,
            None => {
                expander.insert(Decompressor::new().map_err(|error| format!("cannot be expanded: {error}"))?)
            }
        };
        match expander.decompress_to_buffer(frame, to) {
            Ok(size) if size == to.len() => Ok(()),
            _ => Err(NOT_EXPANDED.into()),
        }
    })
}

/// The same, into memory that is taken for it: no more than a record may have, and none where the frame says another size.
pub fn expanded(frame: &[u8], bytes: u64) -> std::result::Result<Vec<u8>, String> {
    let says = get_frame_content_size(frame).ok().flatten();
    if bytes > MOST_EXPANDED_BYTES || says != Some(bytes) {
        return Err(NOT_EXPANDED.into());
    }
    let mut to = vec![0; bytes as usize];
    expand(frame, &mut to)?;
    Ok(to)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn what_saves_little_is_no_frame() {
        let mut frames = Frames::new(3).unwrap();
        let text = b"some text, again and again; ".repeat(40);
        let frame = frames.of(&text).unwrap();
        assert!(frame.len() < text.len() / 8, "{}", frame.len());
        assert_eq!(expanded(&frame, text.len() as u64), Ok(text.clone()));
        // A frame of a frame saves nothing, nor does one of a few bytes.
        let mut noise = frame.clone();
        (1..80_u32).for_each(|at| noise.extend(crc32c::crc32c(&at.to_le_bytes()).to_le_bytes()));
        for bytes in [&noise[..], b"", b"a", b"meow"] {
            assert_eq!(frames.of(bytes), None, "{bytes:?}");
        }
        // A twelfth of it would go.
        noise.extend([0; 40]);
        assert_eq!(frames.of(&noise), None);
    }

    #[test]
    fn a_frame_of_another_size_is_refused_before_memory_is_taken() {
        let frame = Frames::new(3).unwrap().of(&[7; 5000]).unwrap();
        let refused = || Err(NOT_EXPANDED.to_owned());
        for bytes in [0, 4999, 5001, MOST_EXPANDED_BYTES, MOST_EXPANDED_BYTES + 1, u64::MAX] {
            assert_eq!(expanded(&frame, bytes), refused(), "{bytes}");
        }
        assert_eq!(expanded(&frame[..frame.len() - 1], 5000), refused());
        assert_eq!(expanded(b"", 0), refused());
        let mut forged = frame;
        // Two bytes of the header have the size, less 256.
        let at = forged.windows(2).position(|two| two == (5000_u16 - 256).to_le_bytes()).unwrap();
        forged[at..at + 2].copy_from_slice(&(60_000_u16 - 256).to_le_bytes());
        assert_eq!(expanded(&forged, 60_000), refused());
    }
}
