//! Files that are there whole or not at all.

use crate::Error;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;

/// Writes `path` by way of a file beside it, which then takes its place. Something that is no plain file, like a
/// pipe, is written to as it is.
///
/// # Errors
/// The folder or the file cannot be written to, or `write` failed; then what was at `path` is still there.
pub fn write_whole(
    path: &Path,
    write: impl FnOnce(&mut (dyn Write + Send)) -> Result<(), Error>,
) -> Result<(), Error> {
    // What a link leads to is replaced, not the link.
    let resolved = fs::canonicalize(path);
    let path = resolved.as_deref().unwrap_or(path);
    let at = Error::at(path);
    if fs::metadata(path).is_ok_and(|facts| !facts.is_file()) {
        let mut out = BufWriter::new(File::options().write(true).open(path).map_err(&at)?);
        write(&mut out)?;
        return out.flush().map_err(&at);
    }
    replace(path, write)
}

/// Writes `path` by way of a file beside it, which then takes its place, also that of a link: nobody has named it, and who may write into
/// its folder is to choose no other file.
///
/// # Errors
/// As [`write_whole`].
pub(crate) fn replace(
    path: &Path,
    write: impl FnOnce(&mut (dyn Write + Send)) -> Result<(), Error>,
) -> Result<(), Error> {
    let at = Error::at(path);
    // Its name is no longer than any that the file may have.
    let part = path.with_file_name(format!(".stallscope.{}.part", std::process::id()));
    let written = (|| {
        let mut out = BufWriter::new(File::options().write(true).create_new(true).open(&part).map_err(&at)?);
        write(&mut out)?;
        out.flush().map_err(&at)?;
        drop(out);
        fs::rename(&part, path).map_err(&at)
    })();
    if written.is_err() {
        let _ = fs::remove_file(&part);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_leaves_what_was_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.html");
        fs::write(&path, "old").unwrap();
        let error = write_whole(&path, |out| {
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
        replace(&link, |out| Ok(out.write_all(b"new")?)).unwrap();
        assert_eq!(fs::read_to_string(&theirs).unwrap(), "mine");
        assert!(!link.is_symlink());
        assert_eq!(fs::read_to_string(&link).unwrap(), "new");
    }

    #[test]
    fn a_link_stays_one() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("a.html"), folder.path().join("latest.html"));
        fs::write(&path, "old").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        write_whole(&link, |out| Ok(out.write_all(b"new")?)).unwrap();
        assert!(link.is_symlink());
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
    }
}
