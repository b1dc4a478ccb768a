//! Files that are there whole or not at all.

use crate::Error;
use crate::folder::Folder;
use crate::target::Place;
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use stallscope_folder::{Blocked, Entry, MOST_LINKS, is_ours};
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufWriter, ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

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
    let spot = Spot::named(&place.path)?;
    if !place.named {
        return spot.folder.replace(&spot.name, write);
    }
    let at = Error::at(&place.path);
    let spot = spot.led_to().map_err(|blocked| at(blocked.into()))?;
    match spot.special().map_err(&at)? {
        Some(file) => {
            let mut out = BufWriter::new(file);
            write(&mut out)?;
            out.flush().map_err(&at)
        }
        None => spot.folder.replace(&spot.name, write),
    }
}

/// A name in a folder that is open: who may write to a folder around it could lead what is written elsewhere.
struct Spot {
    folder: Folder,
    name: OsString,
}

impl Spot {
    fn named(path: &Path) -> Result<Spot, Error> {
        let at = Error::at(path);
        let name = path.file_name().filter(|_| !path.as_os_str().as_bytes().ends_with(b"/"));
        let name = name.ok_or_else(|| at(ErrorKind::NotADirectory.into()))?.to_owned();
        let folder = Folder::around(path).map_err(|blocked| at(blocked.into()))?;
        Ok(Spot { folder, name })
    }

    /// Where the links of this user and of root lead, as far as there is something.
    fn led_to(self) -> Result<Spot, Blocked> {
        let mut spot = self;
        for _ in 0..MOST_LINKS {
            let Ok(Entry::OwnLink(target)) = Entry::at(&spot.folder, Path::new(&spot.name)) else { break };
            // A descriptor's link, as behind /dev/stdout, may name a pipe, which has no path.
            let Some(next) = spot.target(&target)? else { break };
            spot = next;
        }
        Ok(spot)
    }

    /// What a link here leads to, if there is something.
    fn target(&self, target: &Path) -> Result<Option<Spot>, Blocked> {
        let Some(name) = target.file_name() else { return Ok(None) };
        let folder = match self.folder.around_target(target) {
            Err(Blocked::System(_)) => return Ok(None),
            other => other?,
        };
        let is_there = rustix::fs::statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW).is_ok();
        Ok(is_there.then(|| Spot { folder, name: name.to_owned() }))
    }

    /// What lies here, open, where it is no plain file but a device, or a pipe or a descriptor's link of this user or of root.
    fn special(&self) -> std::io::Result<Option<File>> {
        let facts = |flags| rustix::fs::statat(&self.folder, &self.name, flags);
        let Ok(entry) = facts(AtFlags::SYMLINK_NOFOLLOW) else { return Ok(None) };
        let is_device = FileType::from_raw_mode(entry.st_mode) == FileType::CharacterDevice;
        let is_plain = |mode| FileType::from_raw_mode(mode) == FileType::RegularFile;
        if !is_device && !is_ours(entry.st_uid)
            || facts(AtFlags::empty()).map_or(true, |facts| is_plain(facts.st_mode))
        {
            return Ok(None);
        }
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::openat(&self.folder, &self.name, flags, Mode::empty())?);
        let is_plain = file.metadata()?.is_file();
        Ok((!is_plain).then_some(file))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::PathBuf;

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

    /// Where the kernel does not protect links, it leads on to a file that this user runs.
    #[test]
    fn a_folder_behind_another_users_link_is_not_written_to() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let (home, link, own) =
            (folder.path().join("home"), folder.path().join("shared"), folder.path().join("own"));
        fs::create_dir(&home).unwrap();
        fs::write(home.join("profile"), "mine").unwrap();
        std::os::unix::fs::symlink(&home, &link).unwrap();
        std::os::unix::fs::lchown(&link, Some(4343), Some(4343)).unwrap();
        std::os::unix::fs::symlink("shared/profile", &own).unwrap();
        for path in [link.join("profile"), own] {
            let written = write_whole(&Place::named(path), |out| Ok(out.write_all(b"new")?));
            assert!(matches!(written, Err(Error::Unwritable { .. })), "{written:?}");
            assert_eq!(fs::read_to_string(home.join("profile")).unwrap(), "mine");
        }
    }

    #[test]
    fn links_from_folder_to_folder_lead_on() {
        let folder = tempfile::tempdir().unwrap();
        let at = |path: &str| folder.path().join(path);
        fs::create_dir_all(at("a/b")).unwrap();
        fs::write(at("a/page"), "old").unwrap();
        std::os::unix::fs::symlink("../page", at("a/b/up")).unwrap();
        std::os::unix::fs::symlink("a/b/up", at("down")).unwrap();
        write_whole(&Place::named(at("down")), |out| Ok(out.write_all(b"new")?)).unwrap();
        assert_eq!(fs::read_to_string(at("a/page")).unwrap(), "new");
        assert!(at("down").is_symlink() && at("a/b/up").is_symlink());
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
