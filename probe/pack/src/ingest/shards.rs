//! The files in tar files, found without reading their bytes.

use super::origin::{Facts, Item};
use super::tables::{Left, bytes_of_all, stored};
use crate::error::{Doing, Error, Result};
use crate::folder::open_source;
use crate::names::{fault_of, parted, shown};
use std::cell::Cell;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tar::{Archive, EntryType};

/// Of headers, long names and descriptions of one member, which are read into memory.
const MOST_DESCRIPTION_BYTES: u64 = 4 << 20;
/// Of long names and descriptions of all members, beyond the bytes that the file has on the disk: holes of it can be read as well.
const MOST_DESCRIPTIONS_BYTES: u64 = 64 << 20;
const HEADER_BYTES: u64 = 512;
/// Of a label, which is a number in digits.
const MOST_LABEL_BYTES: u64 = 32;
const LABEL: &[u8] = b"cls";

/// The files of some tar files, by name.
#[derive(Debug)]
pub(super) struct Shards {
    files: Vec<Shard>,
    members: HashMap<Vec<u8>, Member>,
    /// Whether labels come with the files, and not by their folders.
    pub(super) has_labels: bool,
}

#[derive(Debug)]
struct Shard {
    path: PathBuf,
    /// Of its bytes those that lie on the disk.
    stored_bytes: u64,
    file: Arc<File>,
    facts: Facts,
}

#[derive(Clone, Copy, Debug)]
struct Member {
    shard: usize,
    at: u64,
    facts: Facts,
    label: Option<u32>,
}

/// What one tar file has.
#[derive(Default)]
struct Found {
    members: Vec<(Vec<u8>, Member)>,
    /// By key: the folder and the name up to its first dot.
    labels: HashMap<Vec<u8>, u32>,
}

impl Shards {
    /// Looks into these. `problem` hears a sentence for each member that cannot be packed, `found` how many files there are.
    ///
    /// # Errors
    /// One cannot be opened, or two have files of one name.
    pub(super) fn of(
        paths: &[PathBuf],
        by_shard: bool,
        problem: &mut dyn FnMut(String),
        found: &mut dyn FnMut(usize),
    ) -> Result<Shards> {
        let mut shards = Shards { files: Vec::new(), members: HashMap::new(), has_labels: by_shard };
        let beyond = bytes_of_all();
        for path in paths {
            let file = open_source(None, path).doing("open", path)?;
            let described = file.metadata().doing("open", path)?;
            let (facts, stored_bytes) = (Facts::of(&described), stored(&described));
            let number = shards.files.len();
            shards.files.push(Shard { path: path.clone(), stored_bytes, file: Arc::new(file), facts });
            let Found { members, labels } = look(&shards.files[number], number, &beyond, problem);
            shards.has_labels |= !labels.is_empty();
            let folder = by_shard.then(|| path.file_stem().unwrap_or_default().as_bytes().to_vec());
            for (name, mut member) in members {
                member.label = labels.get(key(&name).0).copied();
                let name = match &folder {
                    Some(folder) => [folder.as_slice(), b"/", name.as_slice()].concat(),
                    None => name,
                };
                shards.add(name, member)?;
            }
            found(shards.members.len());
        }
        Ok(shards)
    }

    fn add(&mut self, name: Vec<u8>, member: Member) -> Result<()> {
        let other = self.members.get(&name).map(|other| other.shard);
        if let Some(other) = other.filter(|other| *other != member.shard) {
            let path = |number: usize| self.files[number].path.display();
            return Err(Error::Refused(format!(
                "{} is in {} and in {}: --by-shard puts the files of each one into a folder that is called as the tar file is, without its ending",
                shown(&name),
                path(other),
                path(member.shard)
            )));
        }
        // As if the tar file were unpacked: the later one counts.
        self.members.insert(name, member);
        Ok(())
    }

    pub(super) fn names(&self) -> Vec<Vec<u8>> {
        self.members.keys().cloned().collect()
    }

    /// The label that came with a file.
    pub(super) fn label(&self, name: &[u8]) -> Option<u32> {
        self.members.get(name).and_then(|member| member.label)
    }

    pub(super) fn shown(&self, name: &[u8]) -> String {
        match self.members.get(name) {
            Some(member) => format!("{} in {}", shown(name), self.files[member.shard].path.display()),
            None => shown(name),
        }
    }

    pub(super) fn facts(&self, name: &[u8]) -> io::Result<Facts> {
        self.members.get(name).map(|member| member.facts).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    pub(super) fn open(&self, name: &[u8]) -> io::Result<Item> {
        let member = self.members.get(name).ok_or(io::ErrorKind::NotFound)?;
        let shard = &self.files[member.shard];
        Ok(Item::within(shard.file.clone(), shard.facts, member.at, member.facts))
    }
}

/// The folder and name up to its first dot, by which WebDataset knows what belongs together, and what is behind the dot.
fn key(name: &[u8]) -> (&[u8], &[u8]) {
    let (folder, file) = parted(name);
    let begin = if folder.len() < name.len() - file.len() { folder.len() + 1 } else { 0 };
    match file.iter().position(|byte| *byte == b'.') {
        Some(dot) => (&name[..begin + dot], &file[dot + 1..]),
        None => (name, b""),
    }
}

fn look(shard: &Shard, number: usize, beyond: &Arc<AtomicU64>, problem: &mut dyn FnMut(String)) -> Found {
    let mut found = Found::default();
    let path = &shard.path;
    let ended = check(shard).and_then(|()| members(shard, number, beyond, &mut found, problem));
    if let Err(error) = ended {
        let path = path.display();
        problem(match found.members.is_empty() {
            true => format!("{path} is not packed: {error}"),
            false => format!("{path} is packed up to a fault alone: {error}"),
        });
    }
    found
}

/// Whether it may be a tar file.
fn check(shard: &Shard) -> io::Result<()> {
    let mut begin = [0; 4];
    let read = shard.file.read_at(&mut begin, 0)?;
    let is_packed = begin.starts_with(&[0x1f, 0x8b]) || begin == [0x28, 0xb5, 0x2f, 0xfd];
    if is_packed {
        return Err(io::Error::other("it is compressed; unpack it first (gunzip or unzstd)"));
    }
    if read == 0 {
        return Err(io::Error::other("it is empty"));
    }
    Ok(())
}

/// A tar file of which no more is read for one member than `left`. To look at sizes first and read then is not enough: who may
/// write the file could change them between.
struct Bounded<'a> {
    file: &'a File,
    left: &'a Cell<u64>,
}

impl Read for Bounded<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let most = (to.len() as u64).min(self.left.get()) as usize;
        if most == 0 && !to.is_empty() {
            let most = MOST_DESCRIPTION_BYTES >> 20;
            return Err(io::Error::other(format!("a name or description in it has more than {most} MiB")));
        }
        let read = self.file.read(&mut to[..most])?;
        self.left.set(self.left.get() - read as u64);
        Ok(read)
    }
}

impl Seek for Bounded<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}

fn members(
    shard: &Shard,
    number: usize,
    beyond: &Arc<AtomicU64>,
    found: &mut Found,
    problem: &mut dyn FnMut(String),
) -> io::Result<()> {
    let mut file: &File = &shard.file;
    file.rewind()?;
    let left = Cell::new(MOST_DESCRIPTION_BYTES);
    // Its holes would fill a disk, as those of a table.
    let mut left_of_members = Left::of(shard.stored_bytes, beyond);
    let mut left_of_descriptions = shard.stored_bytes.saturating_add(MOST_DESCRIPTIONS_BYTES);
    let mut archive = Archive::new(Bounded { file, left: &left });
    for entry in archive.entries_with_seek()? {
        let entry = entry?;
        let described = MOST_DESCRIPTION_BYTES - left.replace(MOST_DESCRIPTION_BYTES);
        let rest = left_of_descriptions.checked_sub(described.saturating_sub(HEADER_BYTES));
        left_of_descriptions = rest.ok_or_else(|| {
            io::Error::other("its names and descriptions have more bytes than so many on the disk can have")
        })?;
        let raw = entry.path_bytes();
        let mut name = &*raw;
        while let Some(rest) = name.strip_prefix(b"./") {
            name = rest;
        }
        let called = || shown(&raw);
        let mut skipped =
            |why: &str| problem(format!("{} in {} is not packed: {why}", called(), shard.path.display()));
        match entry.header().entry_type() {
            // Folders, which old tar files have as files whose names end in a slash.
            EntryType::Directory | EntryType::XGlobalHeader => continue,
            EntryType::Regular | EntryType::Continuous if raw.ends_with(b"/") => continue,
            EntryType::Regular | EntryType::Continuous => {}
            EntryType::Link | EntryType::Symlink => {
                skipped("it is a link");
                continue;
            }
            EntryType::GNUSparse => {
                skipped("it is stored without its gaps (sparse)");
                continue;
            }
            _ => {
                skipped("it is neither a file nor a folder");
                continue;
            }
        }
        let (at, bytes) = (entry.raw_file_position(), entry.size());
        if at.checked_add(bytes).is_none_or(|end| end > shard.facts.bytes) {
            let (name, all) = (called(), shard.facts.bytes);
            return Err(io::Error::other(format!(
                "it is cut: {name} should have {bytes} bytes, and it ends at {all}"
            )));
        }
        if let Some(fault) = fault_of(name) {
            skipped(fault);
            continue;
        }
        let (key, kind) = key(name);
        if kind == LABEL {
            match label(shard, at, bytes)? {
                Some(label) => drop(found.labels.insert(key.to_vec(), label)),
                None => skipped("it is no label, which is a whole number"),
            }
            continue;
        }
        if !left_of_members.take(bytes) {
            return Err(io::Error::other("its files have more bytes than so many on the disk can have"));
        }
        let mtime_ns = i64::try_from(entry.header().mtime().unwrap_or(0)).unwrap_or(i64::MAX);
        let facts = Facts { bytes, mtime_ns: mtime_ns.saturating_mul(1_000_000_000) };
        found.members.push((name.to_vec(), Member { shard: number, at, facts, label: None }));
    }
    Ok(())
}

fn label(shard: &Shard, at: u64, bytes: u64) -> io::Result<Option<u32>> {
    if bytes > MOST_LABEL_BYTES {
        return Ok(None);
    }
    let mut digits = vec![0; bytes as usize];
    shard.file.read_exact_at(&mut digits, at)?;
    let digits = digits.trim_ascii();
    let is_plain = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    let label = std::str::from_utf8(digits).ok().filter(|_| is_plain).and_then(|digits| digits.parse().ok());
    // The largest number stands for none.
    Ok(label.filter(|label| *label != u32::MAX))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn a_key_ends_at_the_first_dot_of_the_name() {
        for (name, expected) in [
            (&b"a.jpg"[..], (&b"a"[..], &b"jpg"[..])),
            (b"x.y/a.seg.png", (b"x.y/a", b"seg.png")),
            (b"x/a", (b"x/a", b"")),
            (b"x/.cls", (b"x/", b"cls")),
        ] {
            assert_eq!(key(name), expected);
        }
    }

    /// By the sizes that it had at a first look 8 GB were taken.
    #[test]
    fn a_description_that_grows_while_it_is_looked_at_takes_no_memory() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("grows.tar");
        let header = |kind, name: &str, bytes| {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(kind);
            header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
            header.set_size(bytes);
            header.set_cksum();
            header
        };
        let mut builder = tar::Builder::new(File::create(&path).unwrap());
        builder.append(&header(EntryType::Regular, "1", 0), &b""[..]).unwrap();
        builder.append(&header(EntryType::Symlink, "2", 0), &b""[..]).unwrap();
        let long_at = 1024;
        builder.append(&header(EntryType::GNULongName, "long", 2), &b"3\0"[..]).unwrap();
        builder.append(&header(EntryType::Symlink, "cut", 0), &b""[..]).unwrap();
        builder.finish().unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        file.set_len(1 << 26).unwrap();
        let mut sentences = Vec::new();
        let paths = [path.clone()];
        let found = Shards::of(
            &paths,
            false,
            &mut |sentence| {
                let grown = header(EntryType::GNULongName, "long", 1 << 25);
                file.write_all_at(grown.as_bytes(), long_at).unwrap();
                sentences.push(sentence);
            },
            &mut |_| {},
        );
        let problem = |what: &str| format!("{}{what}", path.display());
        assert_eq!(
            sentences,
            [
                format!("2 in {}", problem(" is not packed: it is a link")),
                problem(" is packed up to a fault alone: a name or description in it has more than 4 MiB"),
            ]
        );
        assert_eq!(found.unwrap().names(), [b"1"]);
    }

    /// They had been kept whole, in a sentence each.
    #[test]
    fn a_long_name_is_cut_in_its_sentence() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("long.tar");
        let mut builder = tar::Builder::new(File::create(&path).unwrap());
        let mut header = tar::Header::new_gnu();
        header.set_size(0);
        builder.append_data(&mut header, "x/x".repeat(1 << 18), &b""[..]).unwrap();
        builder.append_data(&mut header, "fine", &b""[..]).unwrap();
        builder.finish().unwrap();
        let mut sentences = Vec::new();
        let problem = &mut |sentence| sentences.push(sentence);
        let found = Shards::of(&[path], false, problem, &mut |_| {}).unwrap();
        assert_eq!(found.names(), [b"fine"]);
        assert!(sentences.len() == 1 && sentences[0].len() < 1000, "{sentences:?}");
    }

    /// Writes its header alone; where the next one is to begin.
    fn member_of_holes(file: &File, at: u64, kind: EntryType, name: &str, bytes: u64) -> u64 {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_path(name).unwrap();
        header.set_size(bytes);
        header.set_cksum();
        file.write_all_at(header.as_bytes(), at).unwrap();
        at + HEADER_BYTES + bytes
    }

    /// 11.5 MB on disk kept `pack` busy for 5 s, with a name of 4 MiB of holes for each member.
    #[test]
    fn names_of_holes_end_a_tar_file() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("names.tar");
        let (file, mut at) = (File::create(&path).unwrap(), 0);
        for _ in 0..40 {
            for (kind, bytes) in
                [(EntryType::GNULongName, MOST_DESCRIPTION_BYTES - 2048), (EntryType::Regular, 0)]
            {
                at = member_of_holes(&file, at, kind, "name", bytes);
            }
        }
        file.set_len(at + 1024).unwrap();
        let mut sentences = Vec::new();
        let problem = &mut |sentence| sentences.push(sentence);
        Shards::of(&[path], false, problem, &mut |_| {}).unwrap();
        let last = sentences.last().unwrap();
        assert!(last.contains("its names and descriptions have more bytes"), "{last}");
        assert!((16..20).contains(&sentences.len()), "{} sentences", sentences.len());
    }

    /// 8 KB on a disk had made a pack of any size.
    #[test]
    fn a_tar_file_of_holes_fills_no_disk() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("holes.tar");
        let file = File::create(&path).unwrap();
        let mut at = 0;
        for name in ["fine", "large"] {
            // In tests all files have 1 MiB beyond 16 times their own bytes.
            let bytes = if name == "large" { 2 << 20 } else { 512 };
            at = member_of_holes(&file, at, EntryType::Regular, name, bytes);
        }
        file.set_len(at + 1024).unwrap();
        let mut sentences = Vec::new();
        let problem = &mut |sentence| sentences.push(sentence);
        let found = Shards::of(&[path], false, problem, &mut |_| {}).unwrap();
        assert_eq!(found.names(), [b"fine"]);
        assert!(
            sentences.len() == 1 && sentences[0].contains("more bytes than so many on the disk"),
            "{sentences:?}"
        );
    }
}
