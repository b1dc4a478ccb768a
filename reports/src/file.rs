//! Files that are there whole or not at all.

use crate::Error;
use crate::folder::{Entry, Folder, MOST_LINKS, is_ours};
use crate::target::Place;
use rustix::fs::{CWD, FileType};
use std::fs::{self, File};
use std::io::{BufWriter, ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Writes the file at `place` by way of another beside it, which then takes its place. Something that is no plain file, like a
/// pipe, is written to as it is.
///
/// Another user may write to the folder, as all may to /tmp: a link or a pipe of theirs is replaced, and so is every link where
/// the file's name is not the user's choice. To resolve links and then replace what they lead to would also circumvent the
/// kernel's own protection (fs.protected_symlinks).
///
/// # Errors
/// The folder or the file cannot be written to, or `write` failed; then what was there is still there.
pub fn write_whole(
    place: &Place,
    write: impl FnOnce(&mut (dyn Write + Send)) -> Result<(), Error>,
) -> Result<(), Error> {
    if let Some((folder, name)) = place.folder.as_ref().zip(place.path.file_name()) {
        return folder.replace(name, write);
    }
    if !place.named {
        return replace(&place.path, write);
    }
    let path = led_to(&place.path);
    match special(&path).map_err(Error::at(&path))? {
        Some(file) => {
            let mut out = BufWriter::new(file);
            write(&mut out)?;
            out.flush().map_err(Error::at(&path))
        }
        None => replace(&path, write),
    }
}

/// Where the links of this user and of root lead, as far as there is something.
fn led_to(path: &Path) -> PathBuf {
    let mut path = path.to_path_buf();
    for _ in 0..MOST_LINKS {
        let Ok(Entry::OwnLink(target)) = Entry::at(CWD, &path) else { break };
        let next = path.parent().unwrap_or(Path::new("")).join(target);
        // A descriptor's link, as behind /dev/stdout, may name a pipe, which has no path.
        if fs::symlink_metadata(&next).is_err() {
            break;
        }
        path = next;
    }
    path
}

/// What lies at `path`, open, where it is no plain file but a device, or a pipe or a descriptor's link of this user or of root.
fn special(path: &Path) -> std::io::Result<Option<File>> {
    let Ok(entry) = rustix::fs::lstat(path) else { return Ok(None) };
    let is_device = FileType::from_raw_mode(entry.st_mode) == FileType::CharacterDevice;
    if !is_device && !is_ours(entry.st_uid) || fs::metadata(path).map_or(true, |facts| facts.is_file()) {
        return Ok(None);
    }
    let file = File::options().write(true).open(path)?;
    let is_plain = file.metadata()?.is_file();
    Ok((!is_plain).then_some(file))
}

/// Writes `path` by way of a file beside it, which then takes its place, also that of a link.
fn replace(
    path: &Path,
    write: impl FnOnce(&mut (dyn Write + Send)) -> Result<(), Error>,
) -> Result<(), Error> {
    let at = Error::at(path);
    let name = path.file_name().filter(|_| !path.as_os_str().as_bytes().ends_with(b"/"));
    let name = name.ok_or_else(|| at(ErrorKind::NotADirectory.into()))?;
    Folder::around(path).map_err(|reason| at(reason.into()))?.replace(name, write)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::Mode;

    #[test]
    fn what_fails_leaves_what_was_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.html");
        fs::write(&path, "old").unwrap();
        let error = write_whole(&Place::named(path.clone()), |out| {
            out.write_all(b"half")?;
            Err(Error::NoRecording)
        });
        assert!(matches!(error, Err(Error::NoRecording)));
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    /// A folder may be another user's.
    #[test]
    fn a_link_in_a_folder_of_a_report_leads_nowhere() {
        let folder = tempfile::tempdir().unwrap();
        let (theirs, link) = (folder.path().join("profile"), folder.path().join("steps.csv"));
        fs::write(&theirs, "mine").unwrap();
        std::os::unix::fs::symlink(&theirs, &link).unwrap();
        let opened = Folder::make(folder.path()).unwrap();
        opened.replace("steps.csv".as_ref(), |out| Ok(out.write_all(b"new")?)).unwrap();
        assert_eq!(fs::read_to_string(&theirs).unwrap(), "mine");
        assert!(!link.is_symlink());
        assert_eq!(fs::read_to_string(&link).unwrap(), "new");
    }

    #[test]
    fn a_file_is_no_folder() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pages/");
        let error = write_whole(&Place::named(path), |_| panic!("there is nowhere to write to"));
        assert!(matches!(error, Err(Error::Unwritable { .. })));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_link_stays_one() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("a.html"), folder.path().join("latest.html"));
        fs::write(&path, "old").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        write_whole(&Place::named(link.clone()), |out| Ok(out.write_all(b"new")?)).unwrap();
        assert!(link.is_symlink());
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
    }

    /// All may write to /tmp, and a link there may lead to a file that this user runs.
    #[test]
    fn a_link_of_another_user_leads_nowhere() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let (theirs, link) = (folder.path().join("profile"), folder.path().join("report.md"));
        fs::write(&theirs, "mine").unwrap();
        std::os::unix::fs::symlink(&theirs, &link).unwrap();
        std::os::unix::fs::lchown(&link, Some(4343), Some(4343)).unwrap();
        write_whole(&Place::named(link.clone()), |out| Ok(out.write_all(b"new")?)).unwrap();
        assert_eq!(fs::read_to_string(&theirs).unwrap(), "mine");
        assert!(!link.is_symlink());
    }

    /// It came while the recording was read: the name was free before.
    #[test]
    fn a_link_at_a_name_that_nobody_chose_leads_nowhere() {
        let folder = tempfile::tempdir().unwrap();
        let (theirs, link) = (folder.path().join("profile"), folder.path().join("run.html"));
        fs::write(&theirs, "mine").unwrap();
        std::os::unix::fs::symlink(&theirs, &link).unwrap();
        let place = Place { named: false, ..Place::named(link.clone()) };
        write_whole(&place, |out| Ok(out.write_all(b"new")?)).unwrap();
        assert_eq!(fs::read_to_string(&theirs).unwrap(), "mine");
        assert_eq!(fs::read_to_string(&link).unwrap(), "new");
    }

    /// Its maker would read the report, or have this wait for a reader without end.
    #[test]
    fn a_pipe_of_another_user_is_replaced_and_an_own_one_written_to() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("a.html");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let reader = File::options().read(true).write(true).open(&pipe).unwrap();
        let write = || write_whole(&Place::named(pipe.clone()), |out| Ok(out.write_all(b"new")?));
        write().unwrap();
        assert!(!pipe.is_file());
        let mut read = [0; 3];
        std::io::Read::read_exact(&mut &reader, &mut read).unwrap();
        assert_eq!(&read, b"new");
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&pipe, Some(4343), Some(4343)).unwrap();
            write().unwrap();
            assert!(pipe.is_file());
            assert_eq!(fs::read_to_string(&pipe).unwrap(), "new");
        }
    }

    #[test]
    fn a_descriptor_is_written_to() {
        use std::os::fd::AsRawFd;
        let (mut reader, writer) = std::io::pipe().unwrap();
        let path = PathBuf::from(format!("/proc/self/fd/{}", writer.as_raw_fd()));
        write_whole(&Place::named(path), |out| Ok(out.write_all(b"new")?)).unwrap();
        drop(writer);
        let mut text = String::new();
        std::io::Read::read_to_string(&mut reader, &mut text).unwrap();
        assert_eq!(text, "new");
    }
}
