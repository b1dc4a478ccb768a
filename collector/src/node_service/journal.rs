//! Lines of JSON that are only ever added, in two files: when one is full the older one is emptied and goes on. Both are opened by
//! root, before the service gives that up, which so can write into them and into nothing else.

use anyhow::{Context, Result, ensure};
use rustix::fs::{Mode, OFlags};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use stallscope_wire::LogPlace;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

/// What is read in one go, for a page, unless a line may be longer.
const PAGE_BYTES: usize = 256 << 10;

/// First line of a file. Files are numbered from 1 in the order in which they were begun.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Head {
    stallscope_node: u32,
    file: u64,
}

const FORMAT: u32 = 1;

#[derive(Debug)]
struct Part {
    file: File,
    /// 0: it has not begun.
    number: u64,
    bytes: u64,
}

#[derive(Debug)]
pub(super) struct Journal {
    parts: [Part; 2],
    /// The part that is added to.
    current: usize,
    most: Most,
}

/// In bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Most {
    /// Of a file, which then is full.
    pub(super) file: u64,
    /// Of a line: longer ones are none of ours.
    pub(super) line: usize,
}

/// Opens the service's folder, making it where it is missing: one that nobody but its owner, which is us, writes into.
///
/// # Errors
/// It can't be made or opened, or belongs to somebody else.
pub(super) fn folder(path: &Path) -> Result<File> {
    let shown = path.display();
    let otherwise = "name another with --state";
    std::fs::create_dir_all(path).with_context(|| format!("cannot make the folder {shown}; {otherwise}"))?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder: File = rustix::fs::open(path, flags, Mode::empty())
        .with_context(|| format!("cannot open the folder {shown}; {otherwise}"))?
        .into();
    let facts = folder.metadata()?;
    ensure!(
        facts.uid() == rustix::process::geteuid().as_raw() && facts.mode() & 0o022 == 0,
        "{shown} is to be a folder that root owns and alone writes into; {otherwise}"
    );
    Ok(folder)
}

impl Journal {
    /// The files `name.0.jsonl` and `name.1.jsonl` in `folder`, of which none has more than `most` or one line of it.
    ///
    /// # Errors
    /// They can't be opened.
    pub(super) fn open(folder: &File, name: &str, most: Most) -> Result<Journal> {
        let open = |which: u8| -> Result<File> {
            let name = format!("{name}.{which}.jsonl");
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = rustix::fs::openat(folder, &name, flags, Mode::RUSR | Mode::WUSR);
            Ok(file.with_context(|| format!("cannot open {name} in the service's folder"))?.into())
        };
        Ok(Journal::of([open(0)?, open(1)?], most)?)
    }

    fn of(files: [File; 2], most: Most) -> io::Result<Journal> {
        let [first, second] = files.map(|file| Part::of(file, most.line));
        let parts = [first?, second?];
        let current = usize::from(parts[1].number > parts[0].number);
        let mut journal = Journal { parts, current, most };
        if journal.parts[current].number == 0 {
            journal.begin(0, 1)?;
        }
        Ok(journal)
    }

    fn begin(&mut self, which: usize, number: u64) -> io::Result<()> {
        let part = &mut self.parts[which];
        part.file.set_len(0)?;
        (part.bytes, part.number) = (0, number);
        part.add(&line(&Head { stallscope_node: FORMAT, file: number }))?;
        self.current = which;
        Ok(())
    }

    /// # Errors
    /// The disk is full, say; nothing of it was added then.
    pub(super) fn add<T: Serialize>(&mut self, what: &T) -> io::Result<()> {
        let line = line(what);
        if line.len() > self.most.line {
            return Err(io::Error::other(format!("a line of more than {} bytes", self.most.line)));
        }
        let Part { number, bytes, .. } = &self.parts[self.current];
        let (number, bytes) = (*number, *bytes);
        if bytes + line.len() as u64 > self.most.file {
            self.begin(1 - self.current, number + 1)?;
        }
        self.parts[self.current].add(&line)
    }

    /// What was added is on the disk.
    ///
    /// # Errors
    /// It is not.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.parts[self.current].file.sync_data()
    }

    /// After the last line.
    pub(super) fn end(&self) -> LogPlace {
        let Part { number, bytes, .. } = self.parts[self.current];
        LogPlace { file: number, at: bytes }
    }

    /// The newest line that is a `T`.
    pub(super) fn last<T: DeserializeOwned>(&self) -> Option<T> {
        let (mut found, mut place) = (None, LogPlace::default());
        loop {
            let (lines, next, more) = self.page::<T>(place);
            found = lines.into_iter().next_back().or(found);
            if !more {
                return found;
            }
            place = next;
        }
    }

    /// Lines after `place`, as many as one read gives, the place after them, and whether there is more. What is no `T` is left
    /// out. A place that is no more, or that never was, is the beginning of what comes next.
    pub(super) fn page<T: DeserializeOwned>(&self, place: LogPlace) -> (Vec<T>, LogPlace, bool) {
        let mut begun: Vec<&Part> = self.parts.iter().filter(|part| part.number > 0).collect();
        begun.sort_by_key(|part| part.number);
        let Some(part) = begun.iter().find(|part| part.number >= place.file) else {
            let end = &self.parts[self.current];
            return (Vec::new(), LogPlace { file: end.number, at: end.bytes }, false);
        };
        let from = if part.number == place.file { place.at.min(part.bytes) } else { 0 };
        let mut bytes = vec![0; PAGE_BYTES.max(self.most.line).min((part.bytes - from) as usize)];
        let read = part.file.read_at(&mut bytes, from).unwrap_or(0);
        bytes.truncate(read);
        // A page ends with a line.
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let lines = bytes[..whole].split(|byte| *byte == b'\n');
        let lines = lines.filter_map(|line| serde_json::from_slice(line).ok()).collect();
        let is_last = part.number == self.parts[self.current].number;
        let next = LogPlace { file: part.number, at: from + whole as u64 };
        if whole > 0 && next.at < part.bytes {
            return (lines, next, true);
        }
        if is_last {
            return (lines, LogPlace { at: part.bytes, ..next }, false);
        }
        (lines, LogPlace { file: part.number + 1, at: 0 }, true)
    }
}

impl Part {
    /// A file as it was left: what a crash cut off goes.
    fn of(file: File, most_line: usize) -> io::Result<Part> {
        let bytes = file.metadata()?.len();
        let mut first = vec![0; 256];
        let read = file.read_at(&mut first, 0)?;
        let head = first[..read].split(|byte| *byte == b'\n').next().unwrap_or_default();
        let head = serde_json::from_slice::<Head>(head).ok().filter(|head| head.stallscope_node == FORMAT);
        let Some(head) = head else {
            file.set_len(0)?;
            return Ok(Part { file, number: 0, bytes: 0 });
        };
        let from = bytes.saturating_sub(most_line as u64 + 1);
        let mut end = vec![0; (bytes - from) as usize];
        file.read_exact_at(&mut end, from)?;
        let whole = end.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at as u64 + 1);
        let bytes = from + whole;
        file.set_len(bytes)?;
        Ok(Part { file, number: head.file, bytes })
    }

    fn add(&mut self, line: &[u8]) -> io::Result<()> {
        if let Err(error) = (&self.file).write_all(line) {
            // Half of a line would spoil the next.
            let _ = self.file.set_len(self.bytes);
            return Err(error);
        }
        self.bytes += line.len() as u64;
        Ok(())
    }
}

fn line<T: Serialize>(what: &T) -> Vec<u8> {
    stallscope_wire::encode(what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let path = std::env::temp_dir().join(format!("ss-journal-{name}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&path);
            std::fs::create_dir(&path).expect("a folder in the temporary folder");
            Folder(path)
        }

        fn journal(&self, limit: u64) -> Journal {
            let most = Most { file: limit, line: 16 << 10 };
            Journal::open(&folder(&self.0).expect("our own"), "audit", most).expect("it opens")
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn all(journal: &Journal) -> Vec<u64> {
        let (mut found, mut place) = (Vec::new(), LogPlace::default());
        loop {
            let (lines, next, more) = journal.page(place);
            found.extend::<Vec<u64>>(lines);
            if !more {
                return found;
            }
            place = next;
        }
    }

    #[test]
    fn lines_come_back_in_order_and_the_oldest_go() {
        let folder = Folder::new("order");
        let mut journal = folder.journal(4096);
        for number in 0..5000_u64 {
            journal.add(&number).expect("it is added");
        }
        let found = all(&journal);
        assert_eq!(found.last(), Some(&4999));
        assert!(found.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{found:?}");
        assert!((800..1640).contains(&found.len()), "{} lines", found.len());
        assert_eq!(all(&folder.journal(4096)), found, "opened again");
        let bytes: u64 = (0..2)
            .map(|which| {
                std::fs::metadata(folder.0.join(format!("audit.{which}.jsonl"))).map_or(0, |m| m.len())
            })
            .sum();
        assert!(bytes <= 2 * 4096, "{bytes}");
    }

    #[test]
    fn a_line_that_a_crash_cut_off_goes_and_the_next_is_whole() {
        let folder = Folder::new("crash");
        for number in [1_u64, 2] {
            folder.journal(4096).add(&number).expect("it is added");
        }
        let path = folder.0.join("audit.0.jsonl");
        std::fs::File::options()
            .append(true)
            .open(&path)
            .expect("it is there")
            .write_all(b"34")
            .expect("half");
        let mut journal = folder.journal(4096);
        journal.add(&3_u64).expect("it is added");
        assert_eq!((all(&journal), journal.last::<u64>()), (vec![1, 2, 3], Some(3)));
        // What is none of ours is begun anew.
        std::fs::write(&path, "\u{1}\n".repeat(9999)).expect("it is written");
        assert_eq!(all(&folder.journal(4096)), [] as [u64; 0]);
    }

    #[test]
    fn any_place_is_one_and_reading_goes_on_where_it_ended() {
        let folder = Folder::new("places");
        let mut journal = folder.journal(4096);
        (0..2000_u64).for_each(|number| journal.add(&number).expect("it is added"));
        for place in [
            LogPlace { file: 0, at: u64::MAX },
            LogPlace { file: u64::MAX, at: 9 },
            LogPlace { file: 3, at: u64::MAX },
        ] {
            let _ = journal.page::<u64>(place);
        }
        let mut place = LogPlace::default();
        while let (_, next, true) = journal.page::<u64>(place) {
            place = next;
        }
        let (_, end, _) = journal.page::<u64>(place);
        assert_eq!(journal.page::<u64>(end), (vec![], end, false));
        journal.add(&7777_u64).expect("it is added");
        assert_eq!(journal.page::<u64>(end).0, [7777]);
    }

    #[test]
    fn a_folder_that_others_write_into_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let open = Folder::new("open");
        std::fs::set_permissions(&open.0, std::fs::Permissions::from_mode(0o777)).expect("it is ours");
        assert!(folder(&open.0).expect_err("others write").to_string().contains("--state"));
        std::os::unix::fs::symlink("/tmp", open.0.join("link")).expect("a link");
        assert!(folder(&open.0.join("link")).is_err());
    }
}
