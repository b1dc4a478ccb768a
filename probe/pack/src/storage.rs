//! The few things that packing does to the file system, as a trait: tests make each of them fail.

use crate::error::{Doing, Result};
use stallscope_folder::Folder;
use std::ffi::OsStr;
use std::fmt::Debug;
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// What packs are written to. [`Disk`] is the real one.
///
/// A pack's folder is opened once: who owns a folder around it could have root write elsewhere, by a link in its place.
pub trait Storage: Debug {
    /// Opens a folder, and makes it where it is missing.
    fn folder(&self, path: &Path) -> io::Result<Folder>;
    /// Makes a file, which must not be there yet.
    fn create(&self, folder: &Folder, name: &str) -> io::Result<Box<dyn Out>>;
    /// Renames; a file of the new name is replaced in one step.
    fn rename(&self, folder: &Folder, from: &str, to: &str) -> io::Result<()>;
    /// Makes what a folder lists durable.
    fn sync_dir(&self, folder: &Folder) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, folder: &Folder, name: &str) -> io::Result<()>;
}

/// A file being written.
pub trait Out: Write + Debug {
    /// Leaves out so many bytes, which are zeros then. More is written behind them.
    fn skip(&mut self, bytes: u64) -> io::Result<()>;
    /// Makes its bytes durable.
    fn sync(&self) -> io::Result<()>;
}

/// The file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct Disk;

impl Storage for Disk {
    fn folder(&self, path: &Path) -> io::Result<Folder> {
        Ok(Folder::make(path)?)
    }

    fn create(&self, folder: &Folder, name: &str) -> io::Result<Box<dyn Out>> {
        Ok(Box::new(folder.create_new(OsStr::new(name))?))
    }

    fn rename(&self, folder: &Folder, from: &str, to: &str) -> io::Result<()> {
        folder.rename(OsStr::new(from), OsStr::new(to))
    }

    fn sync_dir(&self, folder: &Folder) -> io::Result<()> {
        folder.sync()
    }

    fn remove(&self, folder: &Folder, name: &str) -> io::Result<()> {
        folder.remove(OsStr::new(name))
    }
}

impl Out for File {
    fn skip(&mut self, bytes: u64) -> io::Result<()> {
        self.seek(SeekFrom::Current(bytes as i64)).map(drop)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_all()
    }
}

const BLOCK_BYTES: usize = 64 << 10;
static ZEROS: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];

/// The end of a name that a file has until it is whole.
pub(crate) const UNFINISHED: &str = ".tmp";

/// A file that appears whole under its name, or not at all. The caller syncs the folder.
#[derive(Debug)]
pub(crate) struct Fresh<'a> {
    storage: &'a dyn Storage,
    folder: &'a Folder,
    name: String,
    unfinished: String,
    /// Of the unfinished file, for errors.
    path: PathBuf,
    out: Option<Box<dyn Out>>,
}

impl<'a> Fresh<'a> {
    pub(crate) fn create(storage: &'a dyn Storage, folder: &'a Folder, name: &str) -> Result<Fresh<'a>> {
        let unfinished = format!("{name}{UNFINISHED}");
        let path = folder.path().join(&unfinished);
        // What a killed process left: only who holds the pack's lock writes here.
        let _ = storage.remove(folder, &unfinished);
        let out = Some(storage.create(folder, &unfinished).doing("make", &path)?);
        Ok(Fresh { storage, folder, name: name.to_owned(), unfinished, path, out })
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        match &mut self.out {
            Some(out) => out.write_all(bytes).doing("write", &self.path),
            None => Ok(()),
        }
    }

    /// The same, with zeros as holes. Bytes that are no zeros have to follow.
    pub(crate) fn write_sparse(&mut self, bytes: &[u8]) -> Result<()> {
        let is_zeros = |block: &[u8]| *block == ZEROS[..block.len()];
        for block in bytes.chunks(BLOCK_BYTES) {
            match &mut self.out {
                Some(out) if is_zeros(block) => out.skip(block.len() as u64).doing("write", &self.path)?,
                _ => self.write(block)?,
            }
        }
        Ok(())
    }

    pub(crate) fn finish(mut self) -> Result<()> {
        if let Some(out) = &mut self.out {
            out.flush().and_then(|()| out.sync()).doing("sync", &self.path)?;
        }
        let renamed = self.storage.rename(self.folder, &self.unfinished, &self.name);
        renamed.doing("rename to", &self.folder.path().join(&self.name))?;
        self.out = None;
        Ok(())
    }
}

impl Drop for Fresh<'_> {
    fn drop(&mut self) {
        // Not finished: what failed is reported already.
        if self.out.is_some() {
            let _ = self.storage.remove(self.folder, &self.unfinished);
        }
    }
}
