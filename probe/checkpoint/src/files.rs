//! The few things that a save does to the file system, as a trait: tests make each of them fail.

use crate::error::{Doing, Result};
use crate::names;
use rustix::fs::{self, AtFlags, CWD, FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fmt::Debug;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// What writes checkpoints. [`Disk`] is the real one.
pub trait Files: Send + Sync + Debug {
    /// Makes a folder, which must not be there yet.
    fn create_dir(&self, path: &Path) -> io::Result<()>;
    /// Makes a file, which must not be there yet, and opens it for writing past the page cache where that is
    /// wanted and the file system can.
    fn create(&self, path: &Path, direct: bool) -> io::Result<Box<dyn Out>>;
    /// Renames; a file of the new name is replaced in one step.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Gives a file a second name.
    fn link(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Makes what a folder lists durable.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove_file(&self, path: &Path) -> io::Result<()>;
    /// Removes a file of an open folder.
    fn remove_in(&self, folder: &Folder, name: &OsStr) -> io::Result<()>;
    /// Removes an empty folder.
    fn remove_dir(&self, path: &Path) -> io::Result<()>;
}

/// A file being written.
pub trait Out: Send + Sync + Debug {
    /// Writes some of the bytes and says how many, as `pwrite` does. Where `direct`, address, length and offset are
    /// multiples of 4096.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize>;
    /// Whether it writes past the page cache.
    fn direct(&self) -> bool;
    /// From now on through the page cache.
    fn go_buffered(&self) -> io::Result<()>;
    /// Allocates space for bytes to come, in blocks of 4096. Only a hint: an error says that there will be none.
    fn reserve(&self, offset: u64, bytes: u64) -> io::Result<()>;
    /// Gives space back in which nothing was written.
    fn release(&self, offset: u64, bytes: u64) -> io::Result<()>;
    /// Sets its length.
    fn set_len(&self, bytes: u64) -> io::Result<()>;
    /// Makes its bytes durable.
    fn sync(&self) -> io::Result<()>;
}

/// The file system.
///
/// Another user who may write into a folder of checkpoints can put a link in the place of one of them at any moment: so what is made,
/// renamed or removed in one is so in the folder itself, which is opened without following a link.
#[derive(Clone, Copy, Debug, Default)]
pub struct Disk;

/// A folder that was opened without following a link: this one it stays, whatever comes in its place.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    opened: OwnedFd,
}

impl Folder {
    pub(crate) fn open(path: &Path) -> io::Result<Folder> {
        let opened = fs::open(path, FOLDER_ITSELF | OFlags::RDONLY, Mode::empty())?;
        Ok(Folder { path: path.to_owned(), opened })
    }

    /// Where it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// By what name it is reached wherever it is now.
    pub(crate) fn itself(&self) -> PathBuf {
        itself(&self.opened)
    }

    /// To read and mark what is in it by its descriptor; nothing of it is listed.
    pub(crate) fn reach(path: &Path) -> io::Result<Folder> {
        Folder::reach_in(CWD, path, path)
    }

    /// The same, of a folder in another one. `path`: under which it is shown.
    pub(crate) fn reach_in(around: impl AsFd, name: &Path, path: &Path) -> io::Result<Folder> {
        let opened = fs::openat(around, name, FOLDER_ITSELF | OFlags::PATH, Mode::empty())?;
        Ok(Folder { path: path.to_owned(), opened })
    }

    /// Opens its ordinary file `name`: no link, device or pipe.
    pub(crate) fn open_plain(&self, name: &str, direct: bool) -> io::Result<File> {
        plain(fs::openat(&self.opened, name, to_read(direct), Mode::empty())?)
    }

    /// What it has under that name, be it a link.
    pub(crate) fn facts(&self, name: &str) -> io::Result<fs::Stat> {
        Ok(fs::statat(&self.opened, name, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Puts a small file at that name, in the place of what was there, and makes it durable.
    pub(crate) fn put_small(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let _ = fs::unlinkat(&self.opened, name, AtFlags::empty());
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = File::from(fs::openat(&self.opened, name, flags, Mode::from_raw_mode(0o666))?);
        write_all(&file, bytes, 0)?;
        file.sync_all()
    }

    pub(crate) fn modified(&self) -> io::Result<SystemTime> {
        File::from(self.opened.try_clone()?).metadata()?.modified()
    }
}

/// Opens the folder to which `path` leads now, by links too: this one it stays.
pub(crate) fn open_dir(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC;
    Ok(fs::open(path, flags, Mode::empty())?)
}

/// By what name a folder is reached wherever it is now.
pub(crate) fn itself(folder: &OwnedFd) -> PathBuf {
    // The thread that writes checkpoints has descriptors of its own.
    format!("/proc/thread-self/fd/{}", folder.as_raw_fd()).into()
}

/// Does `act` with the folder and name by which `path` is to be reached.
fn reached<T>(
    path: &Path,
    act: impl FnOnce(BorrowedFd<'_>, &Path) -> std::result::Result<T, Errno>,
) -> io::Result<T> {
    let in_checkpoint = path.parent().filter(|folder| names::is_of_checkpoint(folder));
    let (Some(folder), Some(name)) = (in_checkpoint, path.file_name()) else { return Ok(act(CWD, path)?) };
    let folder = fs::open(folder, FOLDER_ITSELF | OFlags::PATH, Mode::empty())?;
    Ok(act(folder.as_fd(), Path::new(name))?)
}

const FOLDER_ITSELF: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

impl Files for Disk {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        reached(path, |folder, name| fs::mkdirat(folder, name, Mode::from_raw_mode(0o777)))
    }

    fn create(&self, path: &Path, direct: bool) -> io::Result<Box<dyn Out>> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let mode = Mode::from_raw_mode(0o666);
        let file = reached(path, |folder, name| match direct {
            false => fs::openat(folder, name, flags, mode),
            true => match fs::openat(folder, name, flags | OFlags::DIRECT, mode) {
                // Refused by tmpfs and some FUSE file systems, some of them after they have made the file.
                Err(Errno::INVAL | Errno::OPNOTSUPP) => {
                    let _ = fs::unlinkat(folder, name, AtFlags::empty());
                    fs::openat(folder, name, flags, mode)
                }
                other => other,
            },
        })?;
        Ok(Box::new(File::from(file)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        reached(to, |to_folder, to| {
            reached(from, |from_folder, from| fs::renameat(from_folder, from, to_folder, to)).map_err(errno)
        })
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        reached(to, |to_folder, to| {
            reached(from, |from_folder, from| fs::linkat(from_folder, from, to_folder, to, AtFlags::empty()))
                .map_err(errno)
        })
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let opened = match names::is_of_checkpoint(path) {
            true => File::from(fs::open(path, FOLDER_ITSELF | OFlags::RDONLY, Mode::empty())?),
            false => File::open(path)?,
        };
        match opened.sync_all() {
            // A file system that cannot sync folders has nothing to make durable there.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
            other => other,
        }
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        reached(path, |folder, name| fs::unlinkat(folder, name, AtFlags::empty()))
    }

    fn remove_in(&self, folder: &Folder, name: &OsStr) -> io::Result<()> {
        Ok(fs::unlinkat(&folder.opened, name, AtFlags::empty())?)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        reached(path, |folder, name| fs::unlinkat(folder, name, AtFlags::REMOVEDIR))
    }
}

fn errno(error: io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

impl Out for File {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        FileExt::write_at(self, bytes, offset)
    }

    fn direct(&self) -> bool {
        fs::fcntl_getfl(self).is_ok_and(|flags| flags.contains(OFlags::DIRECT))
    }

    fn go_buffered(&self) -> io::Result<()> {
        let flags = fs::fcntl_getfl(self)?;
        Ok(fs::fcntl_setfl(self, flags - OFlags::DIRECT)?)
    }

    fn reserve(&self, offset: u64, bytes: u64) -> io::Result<()> {
        Ok(fs::fallocate(self, FallocateFlags::empty(), offset, bytes)?)
    }

    fn release(&self, offset: u64, bytes: u64) -> io::Result<()> {
        Ok(fs::fallocate(self, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, bytes)?)
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        File::set_len(self, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_all()
    }
}

/// Writes all of it, however little a call takes. What O_DIRECT refuses (the odd end of a short write, a file system
/// that accepts the flag and no write) goes through the page cache.
pub(crate) fn write_all(out: &dyn Out, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    // Asked before: another thread that writes the same file may find out first.
    let mut direct = out.direct();
    while !bytes.is_empty() {
        match out.write_at(bytes, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                bytes = bytes.get(written..).unwrap_or_default();
                offset += written as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::InvalidInput && direct => {
                direct = false;
                out.go_buffered()?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Makes a small file and makes it durable.
pub(crate) fn write_small(files: &dyn Files, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let out = files.create(path, false)?;
    write_all(&*out, bytes, 0)?;
    out.sync()
}

/// A file that appears whole, durably, under a name that was free or is replaced in one step.
pub(crate) fn put(files: &dyn Files, dir: &Path, name: &str, bytes: &[u8]) -> Result<()> {
    let (fresh, path) = (dir.join(format!("{name}.tmp")), dir.join(name));
    // What a killed process left is in nobody's way: only who holds the lock writes here, or the one rank.
    let _ = files.remove_file(&fresh);
    let out = files.create(&fresh, false).doing("make", &fresh)?;
    write_all(&*out, bytes, 0).doing("write", &fresh)?;
    out.sync().doing("sync", &fresh)?;
    files.rename(&fresh, &path).doing("rename to", &path)?;
    files.sync_dir(dir).doing("sync", dir)
}

/// Opens an ordinary file for reading that lies where it says: no link, device or pipe.
pub(crate) fn open_plain(path: &Path, direct: bool) -> io::Result<File> {
    plain(fs::open(path, to_read(direct), Mode::empty())?)
}

fn to_read(direct: bool) -> OFlags {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    if direct { flags | OFlags::DIRECT } else { flags }
}

fn plain(opened: OwnedFd) -> io::Result<File> {
    let file = File::from(opened);
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidData, "this is no ordinary file")),
    }
}
