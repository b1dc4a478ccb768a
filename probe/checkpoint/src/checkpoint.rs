//! A committed checkpoint: opened, verified, read. Every byte on disk is foreign until its checksum fits.

use crate::arena::lock;
use crate::deaf::StartsDeaf;
use crate::error::{Doing, Error, Result};
use crate::files::Folder;
use crate::image::BLOCK;
use crate::manifest::{
    Digest, MANIFEST, MOST_PART_BYTES, Manifest, Part, StoredTensor, part_name, read_manifest, read_sealed,
};
use crate::pace::Pace;
use memmap2::MmapMut;
use rustix::fs::FileType;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

/// Of the caller's own bytes, read at a time.
const PIECE_BYTES: usize = 1 << 20;

/// Threads that read: more than a disk needs, few beside a job.
fn readers() -> usize {
    thread::available_parallelism().map_or(2, |cores| cores.get().clamp(2, 8))
}

/// A checkpoint whose manifest and parts are sound. What its chunks hold is checked when they are read.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// Who may write to a folder around it can put another one in its place at any moment: all that is read and marked is so in
    /// this one.
    pub(crate) folder: Arc<Folder>,
    /// What its manifest says.
    pub manifest: Manifest,
    pub(crate) digest: Digest,
    /// What each rank saved, by rank.
    pub parts: Vec<Part>,
    /// By rank, places of its tensors, by their names.
    by_name: Vec<Vec<u32>>,
}

/// How thoroughly chunks are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// By CRC: finds what a disk does to bytes.
    Crc,
    /// By CRC and BLAKE3: finds every change.
    Full,
}

impl Checkpoint {
    /// Opens the checkpoint in this folder: manifest, parts, and that every file is there in its length.
    pub fn open(dir: &Path) -> Result<Checkpoint> {
        Checkpoint::of(Folder::reach(dir), dir)
    }

    /// The same, where the folder around it is open. `dir`: under which it is shown.
    pub(crate) fn open_in(around: &OwnedFd, name: &str, dir: &Path) -> Result<Checkpoint> {
        Checkpoint::of(Folder::reach_in(around, name.as_ref(), dir), dir)
    }

    fn of(reached: io::Result<Folder>, dir: &Path) -> Result<Checkpoint> {
        let folder = match reached {
            // A link as well.
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
                return Err(Error::damaged(dir, "it is no folder"));
            }
            other => other.doing("open", dir)?,
        };
        let path = dir.join(MANIFEST);
        let (manifest, digest): (Manifest, _) = read_manifest(&folder)?;
        manifest.check(&path)?;
        let mut parts = Vec::new();
        for (rank, sealed) in manifest.parts.iter().enumerate() {
            let path = dir.join(part_name(rank as u32));
            let (part, found) = missing_is_damage(&path, open_part(&folder, rank as u32))?;
            if found != *sealed || part.save != manifest.save || part.world != manifest.world() {
                return Err(Error::damaged(&path, "it belongs to another save"));
            }
            parts.push(part);
        }
        let by_name = parts.iter().map(Part::by_name).collect();
        Ok(Checkpoint { folder: Arc::new(folder), manifest, digest, parts, by_name })
    }

    /// Its folder.
    pub fn dir(&self) -> &Path {
        self.folder.path()
    }

    /// The name of its folder.
    pub fn name(&self) -> String {
        self.dir().file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// The tensor of that name that a rank saved.
    pub fn tensor(&self, rank: u32, name: &str) -> Option<&StoredTensor> {
        let (part, by_name) = (self.parts.get(rank as usize)?, self.by_name.get(rank as usize)?);
        let tensor = |at: &u32| &part.tensors[*at as usize];
        let found = by_name.binary_search_by(|at| (*tensor(at).spec.name).cmp(name)).ok()?;
        Some(tensor(&by_name[found]))
    }

    /// The caller's own bytes of a rank; none where it gave none.
    pub fn user(&self, rank: u32) -> Result<Option<Vec<u8>>> {
        let Some(length) = self.user_bytes(rank)? else { return Ok(None) };
        let mut bytes = vec![0; length];
        self.read_user(rank, &mut bytes)?;
        Ok(Some(bytes))
    }

    /// How many there are of them.
    pub fn user_bytes(&self, rank: u32) -> Result<Option<usize>> {
        Ok(self.part(rank)?.user.as_ref().map(|user| user.bytes as usize))
    }

    /// Reads them, checked, to where there is memory for all of them.
    pub fn read_user(&self, rank: u32, to: &mut [u8]) -> Result<()> {
        let mut filled = 0;
        self.pass_user(rank, &mut |bytes| {
            // More than there should be is damage, which the hash finds.
            let length = bytes.len().min(to.len() - filled);
            to[filled..filled + length].copy_from_slice(&bytes[..length]);
            filled += length;
        })
    }

    /// Hands them over piece by piece, and checks them at the end.
    fn pass_user(&self, rank: u32, take: &mut dyn FnMut(&[u8])) -> Result<()> {
        let Some(user) = self.part(rank)?.user.as_ref() else { return Ok(()) };
        let path = self.dir().join(&user.file);
        let mut hasher = blake3::Hasher::new();
        let mut read = || -> Result<()> {
            let file = self.folder.open_plain(&user.file, false).doing("open", &path)?;
            let mut left = file.take(user.bytes + 1);
            let mut piece = vec![0; PIECE_BYTES];
            loop {
                match left.read(&mut piece) {
                    Ok(0) => return Ok(()),
                    Ok(length) => {
                        hasher.update(&piece[..length]);
                        take(&piece[..length]);
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error).doing("read", &path),
                }
            }
        };
        missing_is_damage(&path, read())?;
        if hasher.finalize() != user.blake3.0 {
            return Err(Error::damaged(&path, "its hash does not fit its content"));
        }
        Ok(())
    }

    /// Reads every byte and compares it with its checksums. `progress` is given, from any thread, how many bytes of how
    /// many are done.
    pub fn verify(&self, check: Check, progress: &(dyn Fn(u64, u64) + Sync)) -> Result<()> {
        self.verify_paced(check, None, progress)
    }

    pub(crate) fn verify_paced(
        &self,
        check: Check,
        pace: Option<&Pace>,
        progress: &(dyn Fn(u64, u64) + Sync),
    ) -> Result<()> {
        let total = self.manifest_bytes();
        let done = Mutex::new(0);
        for part in &self.parts {
            self.pass_user(part.rank, &mut |_| {})?;
            // What was just written is asked of the disk, not of the page cache.
            self.chunks(part, pace, check, pace.is_some(), &part.every_chunk(), &|_, bytes| {
                let mut done = lock(&done);
                *done += bytes.len() as u64;
                progress(*done, total);
            })?;
        }
        Ok(())
    }

    fn manifest_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.image_bytes).sum()
    }

    pub(crate) fn part(&self, rank: u32) -> Result<&Part> {
        self.parts.get(rank as usize).ok_or_else(|| {
            let world = self.parts.len();
            Error::Refused(format!("{} was saved by {world} ranks and has no rank {rank}", self.name()))
        })
    }

    /// Reads the chunks that are wanted, checks each, and hands it over; in parallel and in no order.
    pub(crate) fn chunks(
        &self,
        part: &Part,
        pace: Option<&Pace>,
        check: Check,
        direct: bool,
        wanted: &[usize],
        take: &(dyn Fn(usize, &[u8]) + Sync),
    ) -> Result<()> {
        if wanted.is_empty() {
            return Ok(());
        }
        let files: Vec<(PathBuf, File)> = part
            .files
            .iter()
            .map(|stored| {
                let path = self.dir().join(&stored.name);
                let file = match self.folder.open_plain(&stored.name, direct) {
                    Err(error) if direct && error.kind() == io::ErrorKind::InvalidInput => {
                        self.folder.open_plain(&stored.name, false)
                    }
                    other => other,
                };
                let file = missing_is_damage(&path, file.doing("open", &path))?;
                Ok((path, file))
            })
            .collect::<Result<_>>()?;
        let next = AtomicUsize::new(0);
        let failed: Mutex<Option<Error>> = Mutex::new(None);
        let read_chunks = || -> Result<()> {
            // A mapping is aligned to pages, as O_DIRECT wants it.
            let mut buffer =
                MmapMut::map_anon(part.chunk_bytes as usize).doing("map memory to read", self.dir())?;
            loop {
                let Some(&at) = wanted.get(next.fetch_add(1, Ordering::Relaxed)) else { return Ok(()) };
                let chunk = &part.chunks[at];
                let bytes = part.chunk_len(at);
                if let Some(pace) = pace {
                    pace.let_through(bytes);
                }
                let (path, file) = &files[chunk.file as usize];
                let whole = bytes.next_multiple_of(BLOCK) as usize;
                let found =
                    read_up_to(file, &mut buffer[..whole], at as u64 * part.chunk_bytes, bytes as usize)
                        .doing("read", path)?;
                let bytes = &buffer[..bytes as usize];
                let fits = found
                    && crc32c::crc32c(bytes) == chunk.crc32c
                    && (check == Check::Crc || Digest::of(bytes) == chunk.blake3);
                if !fits {
                    let what = if found {
                        "does not hold what was saved"
                    } else {
                        "is missing: the file is cut short"
                    };
                    let begin = at as u64 * part.chunk_bytes;
                    return Err(Error::damaged(path, format!("the chunk at byte {begin} {what}")));
                }
                take(at, bytes);
            }
        };
        let work = || {
            if let Err(error) = read_chunks() {
                next.store(wanted.len(), Ordering::Relaxed);
                lock(&failed).get_or_insert(error);
            }
        };
        thread::scope(|scope| {
            let deaf = StartsDeaf::new();
            for _ in 1..readers().min(wanted.len()) {
                let _ = thread::Builder::new().name("ckpt-read".into()).spawn_scoped(scope, work);
            }
            drop(deaf);
            work();
        });
        lock(&failed).take().map_or(Ok(()), Err)
    }
}

/// Reads a rank's part, and that the files it names are there in the right length.
pub(crate) fn open_part(folder: &Folder, rank: u32) -> Result<(Part, Digest)> {
    let name = part_name(rank);
    let path = folder.path().join(&name);
    let (part, digest): (Part, _) = read_sealed(folder, &name, MOST_PART_BYTES)?;
    part.check(&path)?;
    if part.rank != rank {
        return Err(Error::damaged(&path, "it is of another rank"));
    }
    let chunked = part.files.iter().map(|file| (&file.name, part.image_bytes));
    let user = part.user.iter().map(|user| (&user.file, user.bytes));
    for (name, bytes) in chunked.chain(user) {
        let path = folder.path().join(name);
        let found = missing_is_damage(&path, folder.facts(name).doing("open", &path))?;
        let is_file = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
        if !is_file || found.st_size as u64 != bytes {
            let found = if is_file { format!("{} bytes", found.st_size) } else { "no ordinary file".into() };
            return Err(Error::damaged(&path, format!("it is {found} and was saved with {bytes} bytes")));
        }
    }
    Ok((part, digest))
}

/// In a committed checkpoint a file that is not there, or no file, is damage; anything else may be passing.
fn missing_is_damage<T>(path: &Path, result: Result<T>) -> Result<T> {
    result.map_err(|error| match &error {
        Error::Io { source, .. } => match source.kind() {
            io::ErrorKind::NotFound => Error::damaged(path, "it is missing"),
            io::ErrorKind::InvalidData | io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory => {
                Error::damaged(path, "it is no ordinary file")
            }
            // O_NOFOLLOW's word for a symbolic link.
            _ if source.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => {
                Error::damaged(path, "it is a symbolic link")
            }
            _ => error,
        },
        _ => error,
    })
}

/// Fills at least `needed` bytes; false where the file ends before.
fn read_up_to(file: &File, buffer: &mut [u8], offset: u64, needed: usize) -> io::Result<bool> {
    let mut filled = 0;
    while filled < needed {
        match file.read_at(&mut buffer[filled..], offset + filled as u64) {
            Ok(0) => return Ok(false),
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}
