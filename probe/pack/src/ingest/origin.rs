//! Where files to pack come from: a folder, tar files, or tables.

use super::shards::Shards;
use super::tables::{Columns, Tables};
use crate::error::{Error, Result};
use crate::folder::open_source;
use stallscope_folder::find;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What is packed.
#[derive(Clone, Copy, Debug)]
pub enum Origin<'a> {
    /// All files below it.
    Folder(&'a Path),
    /// The files in these tar files, as WebDataset writes them: a file `KEY.cls` has the label of the files `KEY.*`.
    Shards {
        /// In this order; of two files of one name in one of them the later one counts.
        paths: &'a [PathBuf],
        /// Whether each one's files are in a folder that is called as the tar file is.
        by_shard: bool,
    },
    /// The rows of these Parquet and Arrow files, or of those in one folder, with labels of their own.
    Tables {
        /// In any order: rows are in that of the names of files.
        paths: &'a [PathBuf],
        /// Which become files and labels.
        columns: Columns<'a>,
    },
}

impl<'a> From<&'a Path> for Origin<'a> {
    fn from(path: &'a Path) -> Origin<'a> {
        Origin::Folder(path)
    }
}

impl<'a> From<&'a PathBuf> for Origin<'a> {
    fn from(path: &'a PathBuf) -> Origin<'a> {
        Origin::Folder(path)
    }
}

impl Origin<'_> {
    /// For sentences.
    pub(super) fn shown(&self) -> String {
        match self {
            Origin::Folder(path) => path.display().to_string(),
            Origin::Shards { paths: [one], .. } | Origin::Tables { paths: [one], .. } => {
                one.display().to_string()
            }
            Origin::Shards { paths, .. } | Origin::Tables { paths, .. } => {
                let first = paths.first().map_or_else(String::new, |path| path.display().to_string());
                format!("{first} and {} more", paths.len().saturating_sub(1))
            }
        }
    }

    /// An error where it is not of its kind.
    pub(super) fn is_there(&self) -> Result<()> {
        match self {
            Origin::Folder(path) if !is_folder(path)? => Err(Error::Refused(format!(
                "{} is no folder, and only folders, tar files, Parquet and Arrow files can be packed",
                path.display()
            ))),
            Origin::Folder(_) => Ok(()),
            Origin::Tables { paths: [_], .. } => Ok(()),
            Origin::Shards { paths, .. } | Origin::Tables { paths, .. } => {
                match paths.iter().find(|path| path.is_dir()) {
                    Some(folder) => Err(Error::Refused(format!(
                        "{} is a folder: pack one folder, or files, at a time",
                        folder.display()
                    ))),
                    None => Ok(()),
                }
            }
        }
    }
}

fn is_folder(path: &Path) -> Result<bool> {
    let described = path.metadata();
    Ok(described.map_err(|source| Error::Io { doing: "open", path: path.to_owned(), source })?.is_dir())
}

/// An origin whose files are known.
#[derive(Debug)]
pub(super) enum Source<'a> {
    /// At this path, where it was opened.
    Folder(&'a Path, OwnedFd),
    Shards(Shards),
    Tables(Tables),
}

impl Source<'_> {
    /// A file as a sentence names it.
    pub(super) fn shown(&self, name: &[u8]) -> String {
        match self {
            Source::Folder(path, _) => path.join(OsStr::from_bytes(name)).display().to_string(),
            Source::Shards(shards) => shards.shown(name),
            Source::Tables(tables) => tables.shown(name),
        }
    }

    /// Its bytes and when it was changed last.
    pub(super) fn facts(&self, name: &[u8]) -> io::Result<Facts> {
        match self {
            Source::Folder(_, root) => {
                let found = find(Some(root.as_fd()), Path::new(OsStr::from_bytes(name)))?;
                Ok(Facts::of(&File::from(found).metadata()?))
            }
            Source::Shards(shards) => shards.facts(name),
            Source::Tables(tables) => tables.facts(name),
        }
    }

    pub(super) fn open(&self, name: &[u8]) -> io::Result<Item> {
        match self {
            Source::Folder(_, root) => {
                Item::whole(open_source(Some(root.as_fd()), Path::new(OsStr::from_bytes(name)))?)
            }
            Source::Shards(shards) => shards.open(name),
            Source::Tables(tables) => tables.open(name),
        }
    }
}

/// By which a file is known to be as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) bytes: u64,
    /// Nanoseconds since 1970.
    pub(super) mtime_ns: i64,
}

impl Facts {
    pub(super) fn of(described: &Metadata) -> Facts {
        let mtime_ns = described.mtime().saturating_mul(1_000_000_000).saturating_add(described.mtime_nsec());
        Facts { bytes: described.len(), mtime_ns }
    }
}

/// A file that is read: on disk, or within another one.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) facts: Facts,
    file: Arc<File>,
    /// What is on disk, as it was.
    around: Facts,
    at: u64,
    end: u64,
    read: u64,
}

impl Item {
    fn whole(file: File) -> io::Result<Item> {
        let facts = Facts::of(&file.metadata()?);
        // One more, by which a file shows that has grown.
        let end = facts.bytes.saturating_add(1);
        Ok(Item { facts, file: Arc::new(file), around: facts, at: 0, end, read: 0 })
    }

    pub(super) fn within(file: Arc<File>, around: Facts, at: u64, facts: Facts) -> Item {
        Item { facts, file, around, at, end: at.saturating_add(facts.bytes), read: 0 }
    }

    /// Whether all of it was read, of a file that is still the one that it was.
    pub(super) fn is_as_before(&self) -> io::Result<bool> {
        Ok(Facts::of(&self.file.metadata()?) == self.around && self.read == self.facts.bytes)
    }
}

impl Read for Item {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let most = self.end.saturating_sub(self.at).min(to.len() as u64) as usize;
        let read = self.file.read_at(&mut to[..most], self.at)?;
        self.at += read as u64;
        self.read += read as u64;
        Ok(read)
    }
}
