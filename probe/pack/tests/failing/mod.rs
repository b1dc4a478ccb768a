//! A file system that fails at a chosen operation, and that a power cut finds as it may be found.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use stallscope_folder::Folder;
use stallscope_pack::{Disk, Out, Storage};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// A file's name, and what it had before; `None` where it was not there.
type Before = (PathBuf, Option<Vec<u8>>);

/// The real file system, until an operation fails: from then on nothing works.
#[derive(Clone, Debug)]
pub(crate) struct Failing {
    left: Rc<Cell<u64>>,
    synced: Rc<RefCell<BTreeSet<PathBuf>>>,
    /// Renames and removals that no sync of the folder has made durable, and what was there before.
    pending: Rc<RefCell<Vec<Before>>>,
}

/// What a power cut takes of the names that were not synced.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cut {
    /// None: the process was killed, or the disk was full.
    Nothing,
    All,
    /// A file system may keep a later one and lose an earlier one.
    Chunks,
    Snapshot,
}

impl Failing {
    pub(crate) fn after(steps: u64) -> Failing {
        let (synced, pending) = (Rc::default(), Rc::default());
        Failing { left: Rc::new(Cell::new(steps)), synced, pending }
    }

    pub(crate) fn cut(&self, cut: Cut) {
        for (path, before) in self.pending.borrow_mut().drain(..).rev() {
            let is_snapshot = path.file_name().is_some_and(|name| name == "snapshot");
            match cut {
                Cut::Nothing => continue,
                Cut::Chunks if is_snapshot => continue,
                Cut::Snapshot if !is_snapshot => continue,
                Cut::Chunks | Cut::Snapshot | Cut::All => {}
            }
            match before {
                Some(bytes) => fs::write(&path, bytes).unwrap(),
                None => drop(fs::remove_file(&path)),
            }
        }
    }

    fn step(&self) -> io::Result<()> {
        match self.left.get() {
            0 => Err(io::ErrorKind::StorageFull.into()),
            left => {
                self.left.set(left - 1);
                Ok(())
            }
        }
    }
}

#[derive(Debug)]
struct FailingOut {
    out: Box<dyn Out>,
    path: PathBuf,
    failing: Failing,
}

impl Storage for Failing {
    fn folder(&self, path: &Path) -> io::Result<Folder> {
        self.step().and_then(|()| Disk.folder(path))
    }

    fn create(&self, folder: &Folder, name: &str) -> io::Result<Box<dyn Out>> {
        self.step()?;
        let (out, path) = (Disk.create(folder, name)?, folder.path().join(name));
        Ok(Box::new(FailingOut { out, path, failing: self.clone() }))
    }

    fn rename(&self, folder: &Folder, from: &str, to: &str) -> io::Result<()> {
        self.step()?;
        let synced = self.synced.borrow_mut().remove(&folder.path().join(from));
        assert!(synced, "{from} was not synced before it got its name");
        let path = folder.path().join(to);
        let before = fs::read(&path).ok();
        self.pending.borrow_mut().push((path, before));
        Disk.rename(folder, from, to)
    }

    fn sync_dir(&self, folder: &Folder) -> io::Result<()> {
        self.step()?;
        Disk.sync_dir(folder)?;
        self.pending.borrow_mut().clear();
        Ok(())
    }

    fn remove(&self, folder: &Folder, name: &str) -> io::Result<()> {
        self.step()?;
        let path = folder.path().join(name);
        let before = fs::read(&path).ok();
        Disk.remove(folder, name)?;
        self.pending.borrow_mut().push((path, before));
        Ok(())
    }
}

impl Write for FailingOut {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // A full disk takes a part of it.
        if self.failing.step().is_err() {
            let _ = self.out.write(&bytes[..bytes.len() / 2]);
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.out.write_all(bytes).map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

impl Out for FailingOut {
    fn skip(&mut self, bytes: u64) -> io::Result<()> {
        self.failing.step()?;
        self.out.skip(bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.failing.step()?;
        self.out.sync()?;
        self.failing.synced.borrow_mut().insert(self.path.clone());
        Ok(())
    }
}
