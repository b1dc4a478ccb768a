//! Packs a folder: what is in whole chunks already is not read again.

mod walk;

use crate::chunk::{Chunk, LEAST_CHUNK_BYTES};
use crate::error::{Doing, Error, Result};
use crate::folder::{list, lock, open_plain, read_chunk};
use crate::id::Id;
use crate::names::{class_of, compare};
use crate::record::Record;
use crate::storage::Storage;
use crate::writer::{About, Writer};
use crate::{rebuild, shown};
use stallscope_folder::Folder;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const PIECE_BYTES: u64 = 1 << 20;

/// How to pack.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// In which order records lie in chunks: None for that of names, else shuffled by this seed.
    pub shuffle: Option<u64>,
    /// A chunk is written once it has so many bytes of records. Fewer than [`LEAST_CHUNK_BYTES`] are for tests.
    pub chunk_bytes: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options { shuffle: Some(0), chunk_bytes: LEAST_CHUNK_BYTES }
    }
}

/// What a caller hears while packing goes on.
#[derive(Debug)]
pub enum Notice<'a> {
    /// So many files were found so far.
    Found(u64),
    /// So many files are done, of how many, and how many bytes were read for it.
    Done(u64, u64, u64),
    /// A sentence on what was not packed, or not as expected.
    Problem(&'a str),
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Packed {
    /// Files that were read and written.
    pub files: u64,
    /// Of these files.
    pub bytes: u64,
    /// Files that were in whole chunks already.
    pub kept: u64,
    /// Of these, files that were packed before, and again as they had changed.
    pub changed: u64,
    /// How many sentences there were.
    pub problems: u64,
    /// Chunks that the pack has now.
    pub chunks: usize,
}

/// Packs all files below `source` into the folder `into`.
pub fn pack(
    source: &Path,
    into: &Path,
    options: Options,
    storage: &dyn Storage,
    tell: &mut dyn FnMut(Notice<'_>),
) -> Result<Packed> {
    if !source.metadata().doing("open", source)?.is_dir() {
        return Err(Error::Refused(format!(
            "{} is no folder, and only folders can be packed",
            source.display()
        )));
    }
    is_apart(source, into)?;
    let names = found(source, tell)?;
    let folder = storage.folder(into).doing("make", into)?;
    let listing = list(&folder, into)?;
    if listing.has_others {
        let into = into.display();
        return Err(Error::Refused(format!(
            "{into} has files of another kind; name a new folder for the pack"
        )));
    }
    let _lock = lock(&folder)?;
    // Again: who held the lock may have ended just now.
    let before = Before::read(&folder, storage)?;
    let classes = classes(&names.names);
    before.fits(&names.names, &classes, source)?;
    let pack = before.chunks.first().map_or_else(Id::random, |chunk| chunk.pack);
    let last = before.chunks.last().map(|chunk| chunk.id);
    let mut run = Run {
        source,
        writer: Writer::new(storage, &folder, pack, last, options.chunk_bytes),
        packed: Packed { problems: names.problems, ..Packed::default() },
        all: names.names.len() as u64,
        done: 0,
        tell,
    };
    let known = before.known();
    run.gone(&known, &names.names);
    for name in in_order(names.names, options.shuffle) {
        let label = class_of(&name).and_then(|class| classes.get(class)).copied();
        run.one(&name, label, known.get(name.as_slice()).copied())?;
    }
    let Run { writer, mut packed, .. } = run;
    drop(known);
    let mut chunks = before.chunks;
    chunks.extend(writer.finish()?);
    if chunks.is_empty() {
        return Err(Error::Refused(format!("no file of {} could be packed", source.display())));
    }
    rebuild::write(&folder, &chunks, storage)?;
    packed.chunks = chunks.len();
    Ok(packed)
}

struct Names {
    names: Vec<Vec<u8>>,
    problems: u64,
}

fn found(source: &Path, tell: &mut dyn FnMut(Notice<'_>)) -> Result<Names> {
    let (mut names, mut sentences) = (Vec::new(), Vec::new());
    walk::files(source, &mut |sentence| sentences.push(sentence), &mut |name| {
        names.push(name);
        tell(Notice::Found(names.len() as u64));
    });
    sentences.iter().for_each(|sentence| tell(Notice::Problem(sentence)));
    if names.is_empty() {
        return Err(Error::Refused(format!("there is no file to pack in {}", source.display())));
    }
    Ok(Names { names, problems: sentences.len() as u64 })
}

/// A pack within its source would write to the source, and the next run would pack it.
fn is_apart(source: &Path, into: &Path) -> Result<()> {
    let source = source.canonicalize().doing("open", source)?;
    let mut place = std::path::absolute(into).doing("find", into)?;
    // As far as it is there: the rest will be made.
    let mut rest = PathBuf::new();
    let place = loop {
        match place.canonicalize() {
            Ok(found) => break found.join(rest),
            Err(_) => match (place.file_name(), place.parent()) {
                (Some(name), Some(parent)) => {
                    rest = Path::new(name).join(rest);
                    place = parent.to_owned();
                }
                _ => break place,
            },
        }
    };
    match place.starts_with(&source) {
        true => Err(Error::Refused(format!(
            "{} lies in {}, and a source is never written to; name a folder outside of it",
            into.display(),
            source.display()
        ))),
        false => Ok(()),
    }
}

/// The number of each class, as torchvision's ImageFolder counts: topmost folders, sorted.
fn classes(names: &[Vec<u8>]) -> BTreeMap<Vec<u8>, u32> {
    let mut classes: BTreeMap<Vec<u8>, u32> =
        names.iter().filter_map(|name| class_of(name)).map(|class| (class.to_vec(), 0)).collect();
    classes.values_mut().zip(0..).for_each(|(number, at)| *number = at);
    classes
}

/// Shuffled by a digest of seed and name, so that a file's place does not depend on which other files there are: a run that
/// goes on has the order of the one that was interrupted.
fn in_order(mut names: Vec<Vec<u8>>, shuffle: Option<u64>) -> Vec<Vec<u8>> {
    match shuffle {
        None => names.sort_unstable_by(|one, other| compare(one, other)),
        Some(seed) => names.sort_by_cached_key(|name| {
            let mut hasher = blake3::Hasher::new();
            hasher.update(&seed.to_le_bytes()).update(name);
            let mut key = [0; 16];
            key.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
            key
        }),
    }
    names
}

/// What is in the pack from earlier runs.
struct Before {
    chunks: Vec<Chunk>,
}

impl Before {
    fn read(folder: &Folder, storage: &dyn Storage) -> Result<Before> {
        let into = folder.path();
        let listing = list(folder, into)?;
        for name in &listing.unfinished {
            storage.remove(folder, name).doing("remove", &into.join(name))?;
        }
        let mut chunks: Vec<Chunk> = Vec::with_capacity(listing.chunks.len());
        for id in &listing.chunks {
            let (_, chunk) = read_chunk(folder, into, *id, chunks.first().map(|chunk| chunk.pack)).map_err(|error| {
                let into = into.display();
                Error::Refused(format!("{into} cannot be continued: {error}. `stallscope pack rebuild --set-aside {into}` takes such chunks out, and their files are packed again then"))
            })?;
            chunks.push(chunk);
        }
        Ok(Before { chunks })
    }

    /// By name: of two the one that was written later.
    fn known(&self) -> HashMap<&[u8], &Record> {
        self.chunks.iter().flat_map(|chunk| &chunk.records).map(|record| (&*record.name, record)).collect()
    }

    /// Whether it is of this source, with these classes.
    fn fits(&self, names: &[Vec<u8>], classes: &BTreeMap<Vec<u8>, u32>, source: &Path) -> Result<()> {
        if self.chunks.is_empty() {
            return Ok(());
        }
        let known = self.known();
        if !names.iter().any(|name| known.contains_key(name.as_slice())) {
            let source = source.display();
            return Err(Error::Refused(format!(
                "the pack has no file of {source}, and so is of another data set; name a new folder"
            )));
        }
        let moved = known.iter().find(|(name, record)| {
            let number = class_of(name).and_then(|class| classes.get(class));
            number.is_some() && number.copied() != record.label
        });
        match moved {
            Some((name, _)) => Err(Error::Refused(format!(
                "the folders of {} are other ones than when the pack was begun, so that {} would get another label; pack into a new folder",
                source.display(),
                shown(class_of(name).unwrap_or_default())
            ))),
            None => Ok(()),
        }
    }
}

struct Run<'a> {
    source: &'a Path,
    writer: Writer<'a>,
    packed: Packed,
    all: u64,
    done: u64,
    tell: &'a mut dyn FnMut(Notice<'_>),
}

/// Why a file is not packed.
enum Stop {
    /// The pack cannot be written.
    Whole(Error),
    /// The file cannot be read, in a sentence.
    File(String),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Whole(error)
    }
}

impl Run<'_> {
    fn problem(&mut self, sentence: &str) {
        self.packed.problems += 1;
        (self.tell)(Notice::Problem(sentence));
    }

    /// Files of the pack that the source has no more: they stay, as there is no deleting yet.
    fn gone(&mut self, known: &HashMap<&[u8], &Record>, names: &[Vec<u8>]) {
        let there: HashSet<&[u8]> = names.iter().map(Vec::as_slice).collect();
        let mut gone: Vec<&[u8]> = known.keys().copied().filter(|name| !there.contains(name)).collect();
        gone.sort_unstable_by(|one, other| compare(one, other));
        for name in gone {
            let source = self.source.display();
            self.problem(&format!("{} stays in the pack, though {source} has it no more", shown(name)));
        }
    }

    fn one(&mut self, name: &[u8], label: Option<u32>, known: Option<&Record>) -> Result<()> {
        let path = self.source.join(OsStr::from_bytes(name));
        match self.packed(&path, name, label, known) {
            Ok(()) => {}
            Err(Stop::Whole(error)) => return Err(error),
            Err(Stop::File(sentence)) => self.problem(&sentence),
        }
        self.done += 1;
        (self.tell)(Notice::Done(self.done, self.all, self.packed.bytes));
        Ok(())
    }

    fn packed(
        &mut self,
        path: &Path,
        name: &[u8],
        label: Option<u32>,
        known: Option<&Record>,
    ) -> std::result::Result<(), Stop> {
        let unread = |error| Stop::File(format!("{} cannot be read: {error}", path.display()));
        if let Some(record) = known {
            let described = path.metadata().map_err(unread)?;
            if (described.len(), changed_ns(&described)) == (record.bytes, record.mtime_ns) {
                self.packed.kept += 1;
                return Ok(());
            }
        }
        let mut file = open_plain(path).map_err(unread)?;
        let described = file.metadata().map_err(unread)?;
        let about = About { mtime_ns: changed_ns(&described), label };
        if self.writer.is_large(described.len()) {
            let source = RefCell::new((file, 0_u64));
            let piece = || {
                let (file, bytes) = &mut *source.borrow_mut();
                let mut piece = Vec::new();
                file.take(PIECE_BYTES).read_to_end(&mut piece).map_err(unread)?;
                *bytes += piece.len() as u64;
                Ok((!piece.is_empty()).then_some(piece))
            };
            // Once all of it was read.
            let about = || {
                let (file, bytes) = &*source.borrow();
                is_as_before(file, &described, *bytes, path).map(|()| about)
            };
            self.writer.add_large(name, piece, about)?;
        } else {
            let mut bytes = Vec::with_capacity(described.len() as usize + 1);
            // One more, by which a file shows that has grown.
            (&mut file).take(described.len() + 1).read_to_end(&mut bytes).map_err(unread)?;
            is_as_before(&file, &described, bytes.len() as u64, path)?;
            self.writer.add(name, &bytes, about)?;
        }
        self.packed.files += 1;
        self.packed.bytes += described.len();
        self.packed.changed += u64::from(known.is_some());
        Ok(())
    }
}

/// Whether a file that was read to its end is the one that it was when it was opened.
fn is_as_before(file: &File, before: &Metadata, read: u64, path: &Path) -> std::result::Result<(), Stop> {
    let unread = |error| Stop::File(format!("{} cannot be read: {error}", path.display()));
    let now = file.metadata().map_err(unread)?;
    let key = |described: &Metadata| (described.len(), changed_ns(described));
    match key(&now) == key(before) && read == now.len() {
        true => Ok(()),
        false => {
            Err(Stop::File(format!("{} is not packed: it was changed while it was read", path.display())))
        }
    }
}

fn changed_ns(described: &Metadata) -> i64 {
    described.mtime().saturating_mul(1_000_000_000).saturating_add(described.mtime_nsec())
}
