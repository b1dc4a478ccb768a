//! What was expanded of compressed tables, until it is packed: in a file beside the pack, as it may be larger than memory.

use super::super::origin::{Facts, Item};
use super::pages::Held;
use crate::error::{Doing, Result};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

/// A file, and what it is called in a sentence.
pub(super) type Made = (File, PathBuf);

#[derive(Debug, Default)]
pub(super) struct Spill {
    file: Option<(Arc<File>, PathBuf)>,
    bytes: u64,
    /// Once all was written.
    facts: Option<Facts>,
}

impl Spill {
    /// Where the bytes of a page lie now.
    pub(super) fn put(&mut self, held: &Held, make: &dyn Fn() -> Result<Made>) -> Result<u64> {
        if let Some(at) = held.spilt_at.get() {
            return Ok(at);
        }
        if self.file.is_none() {
            let (file, path) = make()?;
            self.file = Some((Arc::new(file), path));
        }
        let at = self.bytes;
        if let Some((file, path)) = &self.file {
            file.write_all_at(&held.bytes, at).doing("write", path)?;
        }
        self.bytes += held.bytes.len() as u64;
        held.spilt_at.set(Some(at));
        Ok(at)
    }

    pub(super) fn is_written(&mut self) -> Result<()> {
        if let Some((file, path)) = &self.file {
            self.facts = Some(Facts::of(&file.metadata().doing("write", path)?));
        }
        Ok(())
    }

    pub(super) fn open(&self, at: u64, facts: Facts) -> io::Result<Item> {
        let ((file, _), around) = self.file.as_ref().zip(self.facts).ok_or(io::ErrorKind::NotFound)?;
        Ok(Item::within(file.clone(), around, at, facts))
    }
}
