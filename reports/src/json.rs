//! A run as JSON, for programs; schema/run-2.json says what is in it.

mod document;
mod lines;

use crate::{Error, Run};
use document::Document;
use lines::Lines;
use serde::Serialize;
use std::io::Write;

/// Says what the fields are and mean; changes when one of them does, or goes.
pub const SCHEMA: u32 = 2;

/// Writes the whole run except for what is too long for a document, its single steps and its workers over time: a
/// line an entry, and nothing in it that a terminal would obey.
///
/// # Errors
/// `out` cannot be written to.
pub fn write(run: &Run, out: &mut dyn Write) -> Result<(), Error> {
    let mut serializer = serde_json::Serializer::with_formatter(&mut *out, Lines::default());
    Document::of(run).serialize(&mut serializer).map_err(|error| Error::Output(error.into()))?;
    Ok(out.write_all(b"\n")?)
}
