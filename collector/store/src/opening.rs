//! Opens files that another user may have put there: the folder of a recording may be writable by others, and the reader may
//! be root.
//!
//! A link in the place of the file is not followed, a pipe is not waited for, and a device is not opened, since opening one
//! may act. SQLite opens the recording and all files beside it through the same checks: a check before it opens them would
//! leave time to exchange them. Their folder is held open, and goes by its descriptor (`spot`).

use rusqlite::{Connection, OpenFlags, ffi};
use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use stallscope_folder::file_user;
use std::ffi::{CStr, c_char, c_int};
use std::fs::File;
use std::io;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::path::Path;
use std::sync::Once;

/// Opens an ordinary file for reading.
pub(crate) fn to_read(path: &Path) -> io::Result<File> {
    Ok(File::from(ordinary(path, OFlags::RDONLY, Mode::empty())?))
}

/// Opens an ordinary file for writing, of which this is the only name.
pub(crate) fn to_write(path: &Path) -> io::Result<File> {
    Ok(File::from(ordinary(path, OFlags::WRONLY, Mode::empty())?))
}

fn ordinary<P: rustix::path::Arg + Copy>(path: P, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    let written = is_written(flags);
    match rustix::fs::lstat(path) {
        Ok(facts) => demand(&facts, written)?,
        Err(Errno::NOENT) if flags.contains(OFlags::CREATE) => {}
        Err(error) => return Err(error),
    }
    let guarded = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, guarded, mode)?;
    // Something else may have come in its place.
    demand(&rustix::fs::fstat(&file)?, written)?;
    Ok(file)
}

fn is_written(flags: OFlags) -> bool {
    flags.intersects(OFlags::WRONLY | OFlags::RDWR)
}

/// SQLite sets owner and mode of what it writes, so that what has another name elsewhere is not opened for that.
fn demand(facts: &Stat, written: bool) -> Result<(), Errno> {
    match FileType::from_raw_mode(facts.st_mode) == FileType::RegularFile {
        true if written && facts.st_nlink > 1 => Err(Errno::MLINK),
        true => Ok(()),
        false => Err(Errno::LOOP),
    }
}

/// Has SQLite open the file at `path`, which leads there by a descriptor: nobody has to hear of that.
pub(crate) fn connect(path: impl AsRef<Path>, flags: OpenFlags) -> rusqlite::Result<Connection> {
    guard_sqlite();
    Connection::open_with_flags(path, flags).map_err(|error| match error {
        rusqlite::Error::SqliteFailure(code, Some(text)) => {
            let text = text.split(": ").next().map(str::to_owned);
            rusqlite::Error::SqliteFailure(code, text)
        }
        other => other,
    })
}

/// Has SQLite open files as [`to_read`] does, in all of this process. To be called before a connection is made.
fn guard_sqlite() {
    static GUARDED: Once = Once::new();
    GUARDED.call_once(|| {
        // SAFETY: null asks for the default file system layer, which lives as long as the process. The functions have the
        // signatures that SQLite calls "open" and "lstat" with; they are passed as the untyped pointers that the layer keeps them as.
        unsafe {
            let layer = ffi::sqlite3_vfs_find(std::ptr::null());
            if let Some(set) = layer.as_ref().and_then(|layer| layer.xSetSystemCall) {
                let open = std::mem::transmute::<Open, Untyped>(open_for_sqlite);
                let lstat = std::mem::transmute::<Lstat, Untyped>(lstat_for_sqlite);
                for (name, function) in [(c"open", open), (c"lstat", lstat)] {
                    let done = set(layer, name.as_ptr(), Some(function));
                    debug_assert_eq!(done, ffi::SQLITE_OK);
                }
            }
        }
    });
}

/// As SQLite calls it.
type Open = unsafe extern "C" fn(*const c_char, c_int, c_int) -> c_int;
type Lstat = unsafe extern "C" fn(*const c_char, *mut libc::stat) -> c_int;
type Untyped = unsafe extern "C" fn();

/// What follows no links is a recording or lies beside it; the rest are folders to be synced and the system's random numbers.
///
/// Only files of this user are opened for writing: who may write into the folder can put one of their own in place of a file
/// that was just made. SQLite opens another user's for reading then.
unsafe extern "C" fn open_for_sqlite(path: *const c_char, flags: c_int, mode: c_int) -> c_int {
    // SAFETY: SQLite passes a text that ends with 0 and stays until this returns.
    let path = unsafe { CStr::from_ptr(path) };
    let (flags, mode) = (OFlags::from_bits_retain(flags as u32), Mode::from_raw_mode(mode as u32));
    let opened = match flags.contains(OFlags::NOFOLLOW) {
        true => ordinary(path, flags, mode).and_then(|file| match is_written(flags) {
            true if rustix::fs::fstat(&file)?.st_uid != file_user() => Err(Errno::PERM),
            _ => Ok(file),
        }),
        false => rustix::fs::open(path, flags, mode),
    };
    match opened {
        Ok(file) => file.into_raw_fd(),
        Err(error) => {
            // SAFETY: the address is this thread's own.
            unsafe { *libc::__errno_location() = error.raw_os_error() };
            -1
        }
    }
}

/// SQLite looks at each name of a path, and goes by what a link says. A descriptor's link says where its folder was: through that another
/// one could be led to.
unsafe extern "C" fn lstat_for_sqlite(path: *const c_char, facts: *mut libc::stat) -> c_int {
    // SAFETY: SQLite passes a text that ends with 0, and a place for what is found; both stay until this returns.
    unsafe {
        match is_of_descriptor(CStr::from_ptr(path).to_bytes()) {
            true => libc::stat(path, facts),
            false => libc::lstat(path, facts),
        }
    }
}

fn is_of_descriptor(path: &[u8]) -> bool {
    let number = path.strip_prefix(b"/proc/self/fd/");
    path == b"/proc/self" || number.is_some_and(|number| number.iter().all(u8::is_ascii_digit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, mknodat};
    use std::fs;
    use std::io::{Read, Write};
    use std::os::unix::fs::{chown, symlink};

    #[test]
    fn only_ordinary_files_are_opened() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("file"), "text").unwrap();
        symlink(at("file"), at("link")).unwrap();
        symlink("/dev/null", at("device")).unwrap();
        mknodat(CWD, at("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        let mut text = String::new();
        to_read(&at("file")).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "text");
        to_write(&at("file")).unwrap().write_all(b"more").unwrap();
        for other in ["link", "device", "pipe", ".", "missing"] {
            assert!(to_read(&at(other)).is_err() && to_write(&at(other)).is_err(), "{other}");
        }
        fs::hard_link(at("file"), at("second")).unwrap();
        assert!(to_read(&at("second")).is_ok());
        assert_eq!(to_write(&at("second")).unwrap_err().raw_os_error(), Some(libc::EMLINK));
    }

    /// Another user with write access to the folder may put a file of their own in place of a new recording, and read it.
    #[test]
    fn sqlite_writes_only_files_of_its_own_user() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        guard_sqlite();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("theirs");
        fs::write(&path, "").unwrap();
        let opened = || {
            let connection = rusqlite::Connection::open_with_flags(
                &path,
                OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NOFOLLOW,
            )?;
            connection.execute_batch("CREATE TABLE t (x)")
        };
        chown(&path, Some(4343), Some(4343)).unwrap();
        assert!(opened().is_err());
        assert_eq!(fs::metadata(&path).unwrap().len(), 0);
        chown(&path, Some(0), Some(0)).unwrap();
        opened().unwrap();
    }

    /// Each of these had SQLite wait, or open what it led to.
    #[test]
    fn sqlite_opens_ordinary_files_only() {
        guard_sqlite();
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        mknodat(CWD, at("pipe"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let opened = |name: &str| {
            rusqlite::Connection::open(at(name))?
                .query_row("PRAGMA schema_version", [], |row| row.get::<_, i64>(0))
        };
        assert!(opened("pipe").is_err());
        for suffix in ["-journal", "-wal"] {
            let name = format!("x{suffix}");
            rusqlite::Connection::open(at(&name))
                .unwrap()
                .execute_batch("PRAGMA journal_mode = wal; CREATE TABLE t (x)")
                .unwrap();
            mknodat(CWD, at(&(name.clone() + suffix)), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
            assert!(opened(&name).is_err(), "{name}");
        }
    }
}
