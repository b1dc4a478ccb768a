//! Where a report goes.

use crate::Error;
use crate::folder::Folder;
use rustix::fs::{Mode, OFlags};
use stallscope_folder::Blocked;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Where to write one file.
#[derive(Debug)]
pub enum Target {
    Stdout,
    File(Place),
}

/// A file of a report.
#[derive(Debug)]
pub struct Place {
    pub path: PathBuf,
    /// There is one already, whose place it takes.
    pub replaces: bool,
    /// The user wrote this very path: links of theirs there lead on.
    pub named: bool,
    /// The folder that the user named instead.
    pub(crate) folder: Option<Folder>,
}

impl Place {
    /// A file that the user named.
    pub fn named(path: PathBuf) -> Place {
        Place { replaces: path.is_file(), path, named: true, folder: None }
    }
}

/// A folder of a report.
#[derive(Debug)]
pub struct FolderPlace {
    pub path: PathBuf,
    /// There is something in it.
    pub replaces: bool,
    standing: Standing,
}

#[derive(Debug)]
enum Standing {
    There(Folder),
    /// The user named it, and it is not there yet.
    Missing,
    /// Nothing has this name, and nobody chose it.
    New,
}

impl FolderPlace {
    /// The folder that was there when this place was chosen, else one that is made now.
    ///
    /// # Errors
    /// It cannot be made, or something has come to its name since that was chosen.
    pub fn open(self) -> Result<Folder, Error> {
        match self.standing {
            Standing::There(folder) => Ok(folder),
            Standing::Missing => Folder::make(&self.path),
            Standing::New => Folder::make_new(&self.path),
        }
    }
}

/// How a format of one file is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// Of its files.
    pub ending: &'static str,
    /// People read it where they are, so it goes to stdout unless a file is named.
    pub read_at_once: bool,
    /// No terminal can show it.
    pub binary: bool,
}

/// Why a report cannot go there; one sentence with the way out.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misplaced {
    #[error("this format is binary and would do your terminal no good: name a file with -o, or pipe it")]
    BinaryOnTerminal,
    #[error("this format is several files: name a folder with -o")]
    FolderOnStdout,
    #[error("{} is a recording, which no report replaces: name another file with -o", .0.display())]
    Recording(PathBuf),
    #[error("{} leads to its folder by another user's link: name the folder itself with -o", .0.display())]
    AnothersLink(PathBuf),
    #[error("{} is a file, and this format is several: name a folder with -o", .0.display())]
    NoFolder(PathBuf),
}

/// Where a report of one file goes: to `output`, whatever report is there already, `-` being stdout. Without it, to
/// stdout or into the current folder under the run's `name`, or the first free of `NAME.2.html`, `NAME.3.html`, ….
///
/// # Errors
/// A terminal cannot show it, or a recording would be lost.
pub fn file(kind: Kind, output: Option<&Path>, name: &str, terminal: bool) -> Result<Target, Misplaced> {
    let place = match output {
        None if kind.read_at_once => return Ok(Target::Stdout),
        None => {
            let (path, replaces) = (free(name, kind.ending), false);
            return Ok(Target::File(Place { path, replaces, named: false, folder: None }));
        }
        Some(output) if output == Path::new("-") && kind.binary && terminal => {
            return Err(Misplaced::BinaryOnTerminal);
        }
        Some(output) if output == Path::new("-") => return Ok(Target::Stdout),
        Some(output) => match Folder::open(output) {
            Ok(folder) => {
                let path = output.join(format!("{}{}", file_name(name), kind.ending));
                Place { named: false, folder: Some(folder), ..Place::named(path) }
            }
            Err(Blocked::AnothersLink) if output.is_dir() => {
                return Err(Misplaced::AnothersLink(output.to_path_buf()));
            }
            // A link of theirs at the name itself is replaced.
            Err(_) if matches!(Folder::around(output), Err(Blocked::AnothersLink)) => {
                return Err(Misplaced::AnothersLink(output.to_path_buf()));
            }
            Err(_) => Place::named(output.to_path_buf()),
        },
    };
    match is_recording(&place.path) {
        true => Err(Misplaced::Recording(place.path)),
        false => Ok(Target::File(place)),
    }
}

/// The same for a report of several files: a folder, whose files of the same names are replaced.
///
/// # Errors
/// There is a file in its place, or stdout was asked for.
pub fn folder(ending: &str, output: Option<&Path>, name: &str) -> Result<FolderPlace, Misplaced> {
    let Some(output) = output else {
        return Ok(FolderPlace { path: free(name, ending), replaces: false, standing: Standing::New });
    };
    if output == Path::new("-") {
        return Err(Misplaced::FolderOnStdout);
    }
    let path = output.to_path_buf();
    match Folder::open(output) {
        Ok(folder) => {
            Ok(FolderPlace { path, replaces: !folder.is_empty(), standing: Standing::There(folder) })
        }
        Err(Blocked::AnothersLink) => Err(Misplaced::AnothersLink(path)),
        Err(_) if output.exists() && !output.is_dir() => Err(Misplaced::NoFolder(path)),
        // Why it cannot be opened is reported where it cannot be made either.
        Err(_) => Ok(FolderPlace { path, replaces: false, standing: Standing::Missing }),
    }
}

/// A name in the current folder that nothing has.
fn free(name: &str, ending: &str) -> PathBuf {
    let name = file_name(name);
    let first = PathBuf::from(format!("{name}{ending}"));
    let more = (2..100_000).map(|nth| PathBuf::from(format!("{name}.{nth}{ending}")));
    std::iter::once(first).chain(more).find(|path| !path.exists()).unwrap_or_default()
}

/// A job's name as a part of a file's, of which a file system takes 255 bytes.
fn file_name(name: &str) -> String {
    let safe = |char: char| if char.is_alphanumeric() || "-_. ".contains(char) { char } else { '_' };
    let name: String = name.chars().map(safe).take(50).collect();
    match name.trim_matches(['.', ' ']) {
        "" => "run".to_owned(),
        name => name.to_owned(),
    }
}

/// By its ending, or because it begins like every SQLite file.
fn is_recording(path: &Path) -> bool {
    let mut head = [0; 16];
    // A pipe may have come in its place.
    let mut head_of = || {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        std::fs::File::from(rustix::fs::open(path, flags, Mode::empty())?).read_exact(&mut head)
    };
    path.extension().is_some_and(|extension| extension == "stall")
        || path.is_file() && head_of().is_ok() && &head == b"SQLite format 3\0"
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: Kind = Kind { ending: ".txt", read_at_once: true, binary: false };
    const HTML: Kind = Kind { ending: ".html", read_at_once: false, binary: false };
    const TRACE: Kind = Kind { ending: ".perfetto-trace", read_at_once: false, binary: true };

    /// The file that is chosen, and whether it replaces one; nothing for stdout.
    fn chosen(target: Result<Target, Misplaced>) -> Result<Option<(PathBuf, bool)>, Misplaced> {
        target.map(|target| match target {
            Target::Stdout => None,
            Target::File(place) => Some((place.path, place.replaces)),
        })
    }

    /// The folder, whether it replaces one, and whether it is there.
    fn chosen_folder(place: Result<FolderPlace, Misplaced>) -> Result<(PathBuf, bool, bool), Misplaced> {
        place.map(|place| (place.path, place.replaces, matches!(place.standing, Standing::There(_))))
    }

    #[test]
    fn texts_are_read_and_the_rest_is_kept() {
        assert_eq!(chosen(file(TEXT, None, "a", true)), Ok(None));
        let page = Some(("no such_run.html".into(), false));
        assert_eq!(chosen(file(HTML, None, "no such/run", true)), Ok(page));
        let tables = ("no such_run-csv".into(), false, false);
        assert_eq!(chosen_folder(folder("-csv", None, "no such/run")), Ok(tables));
    }

    #[test]
    fn a_folder_that_nobody_chose_is_a_new_one() {
        let directory = tempfile::tempdir().unwrap();
        let theirs = directory.path().join("theirs");
        std::fs::create_dir(&theirs).unwrap();
        let link = directory.path().join("run-csv");
        std::os::unix::fs::symlink(&theirs, &link).unwrap();
        let new = |path: &Path| FolderPlace { path: path.into(), replaces: false, standing: Standing::New };
        assert!(new(&link).open().is_err());
        new(&directory.path().join("run.2-csv")).open().unwrap();
        FolderPlace { standing: Standing::Missing, ..new(&link) }.open().unwrap();
    }

    #[test]
    fn what_makes_no_sense_is_reported() {
        let stdout = Some(Path::new("-"));
        assert_eq!(chosen_folder(folder("-csv", stdout, "a")), Err(Misplaced::FolderOnStdout));
        assert_eq!(chosen(file(TRACE, stdout, "a", true)), Err(Misplaced::BinaryOnTerminal));
        assert_eq!(chosen(file(TRACE, stdout, "a", false)), Ok(None));
        assert_eq!(chosen(file(HTML, stdout, "a", true)), Ok(None));
        assert_eq!(
            chosen(file(HTML, Some(Path::new("a.stall")), "a", true)),
            Err(Misplaced::Recording("a.stall".into()))
        );
    }

    /// All may write to /tmp, and a link there may lead to any folder of this user's.
    #[test]
    fn a_folder_behind_another_users_link_is_none() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let (theirs, own) = (directory.path().join("theirs"), directory.path().join("own"));
        std::os::unix::fs::symlink(directory.path(), &theirs).unwrap();
        std::os::unix::fs::lchown(&theirs, Some(4343), Some(4343)).unwrap();
        std::os::unix::fs::symlink(&theirs, &own).unwrap();
        for link in [theirs, own] {
            let refused = || Misplaced::AnothersLink(link.clone());
            assert_eq!(chosen_folder(folder("-csv", Some(&link), "a")), Err(refused()));
            assert_eq!(chosen(file(HTML, Some(&link), "a", false)), Err(refused()));
            let page = link.join("a.html");
            assert_eq!(chosen(file(HTML, Some(&page), "a", false)), Err(Misplaced::AnothersLink(page)));
        }
    }

    #[test]
    fn what_is_there_is_replaced_only_when_it_was_named() {
        let directory = tempfile::tempdir().unwrap();
        let page = directory.path().join("a.html");
        std::fs::write(&page, "old").unwrap();
        assert_eq!(chosen(file(HTML, Some(directory.path()), "a", false)), Ok(Some((page.clone(), true))));
        assert_eq!(chosen_folder(folder("-csv", Some(&page), "a")), Err(Misplaced::NoFolder(page)));
        assert_eq!(
            chosen_folder(folder("-csv", Some(directory.path()), "a")),
            Ok((directory.path().into(), true, true))
        );
        // `src` is there wherever this runs.
        assert_eq!(chosen_folder(folder("", None, "src")), Ok(("src.2".into(), false, false)));
        let database = directory.path().join("kept");
        std::fs::write(&database, b"SQLite format 3\0...").unwrap();
        assert_eq!(chosen(file(HTML, Some(&database), "a", false)), Err(Misplaced::Recording(database)));
    }
}
