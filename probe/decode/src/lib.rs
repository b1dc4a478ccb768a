//! Decodes JPEG pictures into the memory of a batch, in threads that need no interpreter: the part of a picture that becomes a
//! sample, resized with the pixels that Pillow has. What this offers to whom, and how near to Pillow it is: docs/packs.md.

mod batch;
mod decoder;
mod jpeg;
mod resize;

pub use batch::{Spare, in_threads};
pub use decoder::{Cut, Decoder, Form, header};
pub use jpeg::{Header, Reason};
