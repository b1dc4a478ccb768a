//! The few things that packing does to the file system, as a trait: tests make each of them fail.

use crate::error::{Doing, Result};
use std::fmt::Debug;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// What packs are written to. [`Disk`] is the real one.
pub trait Storage: Debug {
    /// Makes a folder; one that is there already is no error.
    fn create_dir(&self, path: &Path) -> io::Result<()>;
    /// Makes a file, which must not be there yet.
    fn create(&self, path: &Path) -> io::Result<Box<dyn Out>>;
    /// Renames; a file of the new name is replaced in one step.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Makes what a folder lists durable.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
}

/// A file being written.
pub trait Out: Write + Debug {
    /// Makes its bytes durable.
    fn sync(&self) -> io::Result<()>;
}

/// The file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct Disk;

impl Storage for Disk {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        std::fs::create_dir_all(path)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn Out>> {
        Ok(Box::new(File::create_new(path)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        match File::open(path)?.sync_all() {
            // A file system that cannot sync folders has nothing to make durable there.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
            other => other,
        }
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }
}

impl Out for File {
    fn sync(&self) -> io::Result<()> {
        self.sync_all()
    }
}

/// The end of a name that a file has until it is whole.
pub(crate) const UNFINISHED: &str = ".tmp";

/// A file that appears whole under its name, or not at all. The caller syncs the folder.
#[derive(Debug)]
pub(crate) struct Fresh<'a> {
    storage: &'a dyn Storage,
    path: &'a Path,
    unfinished: std::path::PathBuf,
    out: Option<Box<dyn Out>>,
}

impl<'a> Fresh<'a> {
    pub(crate) fn create(storage: &'a dyn Storage, path: &'a Path) -> Result<Fresh<'a>> {
        let mut unfinished = path.as_os_str().to_owned();
        unfinished.push(UNFINISHED);
        let unfinished = std::path::PathBuf::from(unfinished);
        // What a killed process left: only who holds the pack's lock writes here.
        let _ = storage.remove(&unfinished);
        let out = Some(storage.create(&unfinished).doing("make", &unfinished)?);
        Ok(Fresh { storage, path, unfinished, out })
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        match &mut self.out {
            Some(out) => out.write_all(bytes).doing("write", &self.unfinished),
            None => Ok(()),
        }
    }

    pub(crate) fn finish(mut self) -> Result<()> {
        if let Some(out) = &mut self.out {
            out.flush().and_then(|()| out.sync()).doing("sync", &self.unfinished)?;
        }
        self.storage.rename(&self.unfinished, self.path).doing("rename to", self.path)?;
        self.out = None;
        Ok(())
    }
}

impl Drop for Fresh<'_> {
    fn drop(&mut self) {
        // Not finished: what failed is reported already.
        if self.out.is_some() {
            let _ = self.storage.remove(&self.unfinished);
        }
    }
}
