//! Packs a folder: what is in whole chunks already is not read again.

mod walk;

use crate::chunk::LEAST_CHUNK_BYTES;
use crate::error::{Doing, Error, Result};
use crate::folder::{list, lock, open_plain};
use crate::names::{class_of, compare};
use crate::pack::Pack;
use crate::record::Record;
use crate::state::State;
use crate::storage::Storage;
use crate::writer::{About, Writer};
use crate::{rebuild, shown};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
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
///
/// # Errors
/// There is nothing to pack, the pack is of another data set, another process writes to it, or the storage failed. The pack is
/// what it was then, and the next run goes on.
pub fn pack(
    source: &Path,
    into: &Path,
    options: Options,
    storage: &dyn Storage,
    tell: &mut dyn FnMut(Notice<'_>),
) -> Result<Packed> {
    is_folder(source)?;
    is_apart(source, into)?;
    let names = found(source, tell)?;
    storage.create_dir(into).doing("make", into)?;
    if list(into)?.has_others {
        let into = into.display();
        return Err(Error::Refused(format!(
            "{into} has files of another kind; name a new folder for the pack"
        )));
    }
    let _lock = lock(into)?;
    // After the lock: who held it may have ended just now.
    let state = State::read(into, storage)?;
    let classes = classes(names.names.iter().map(Vec::as_slice));
    fits(&state, &names.names, &classes, source)?;
    written(Job { source, into, options, storage, tell, kind: Kind::Packs }, state, names, &classes)
}

/// Adds all files below `source` to the pack `into`, under their names there. A file that the pack has already stays as it is,
/// with a sentence if it is another one; unless it may `replace` it.
///
/// # Errors
/// As [`pack`]; and there is no pack, or a new folder would give others another label.
pub fn append(
    source: &Path,
    into: &Path,
    options: Options,
    replace: bool,
    storage: &dyn Storage,
    tell: &mut dyn FnMut(Notice<'_>),
) -> Result<Packed> {
    is_folder(source)?;
    is_apart(source, into)?;
    Pack::open(into)?;
    let names = found(source, tell)?;
    let _lock = lock(into)?;
    let own: HashSet<&[u8]> = names.names.iter().map(Vec::as_slice).collect();
    let state = State::read_whole(into, storage, &|name| own.contains(name))?;
    drop(own);
    let classes = classes(state.live().into_keys().chain(names.names.iter().map(Vec::as_slice)));
    keeps_labels(&state, &classes, source)?;
    let kind = if replace { Kind::Replaces } else { Kind::Adds };
    written(Job { source, into, options, storage, tell, kind }, state, names, &classes)
}

/// What is to be packed, and how.
struct Job<'a> {
    source: &'a Path,
    into: &'a Path,
    options: Options,
    storage: &'a dyn Storage,
    tell: &'a mut dyn FnMut(Notice<'_>),
    kind: Kind,
}

/// What becomes of a file that the pack has under the same name, and that is another one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// It is packed again: the pack follows its source.
    Packs,
    /// It stays as it is.
    Adds,
    /// It is packed again.
    Replaces,
}

/// Writes what the pack does not have yet, and the snapshot.
fn written(job: Job<'_>, state: State, names: Names, classes: &BTreeMap<Vec<u8>, u32>) -> Result<Packed> {
    let Job { source, into, options, storage, tell, kind } = job;
    let mut run = Run {
        source,
        kind,
        writer: Writer::new(storage, into, state.pack(), state.last(), options.chunk_bytes),
        packed: Packed { problems: names.problems, ..Packed::default() },
        all: names.names.len() as u64,
        done: 0,
        tell,
    };
    let live = state.live();
    if kind == Kind::Packs {
        run.gone(live.keys().copied(), &names.names);
    }
    for name in in_order(names.names, options.shuffle) {
        let label = class_of(&name).and_then(|class| classes.get(class)).copied();
        run.one(&name, label, live.get(name.as_slice()).map(|at| state.record(*at)))?;
    }
    let Run { writer, mut packed, .. } = run;
    drop(live);
    let State { mut chunks, deleted } = state;
    chunks.extend(writer.finish()?);
    if chunks.is_empty() {
        return Err(Error::Refused(format!("no file of {} could be packed", source.display())));
    }
    rebuild::write(into, &chunks, &deleted, storage)?;
    packed.chunks = chunks.len();
    Ok(packed)
}

fn is_folder(source: &Path) -> Result<()> {
    match source.metadata().doing("open", source)?.is_dir() {
        true => Ok(()),
        false => {
            Err(Error::Refused(format!("{} is no folder, and only folders can be packed", source.display())))
        }
    }
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
fn classes<'a>(names: impl Iterator<Item = &'a [u8]>) -> BTreeMap<Vec<u8>, u32> {
    let mut classes: BTreeMap<Vec<u8>, u32> =
        names.filter_map(class_of).map(|class| (class.to_vec(), 0)).collect();
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

/// Whether the pack is of this source, and its files keep their labels.
fn fits(state: &State, names: &[Vec<u8>], classes: &BTreeMap<Vec<u8>, u32>, source: &Path) -> Result<()> {
    let live = state.live();
    if !live.is_empty() && !names.iter().any(|name| live.contains_key(name.as_slice())) {
        let source = source.display();
        return Err(Error::Refused(format!(
            "the pack has no file of {source}, and so is of another data set; name a new folder, or add the files by `stallscope pack append`"
        )));
    }
    keeps_labels(state, classes, source)
}

fn keeps_labels(state: &State, classes: &BTreeMap<Vec<u8>, u32>, source: &Path) -> Result<()> {
    let live = state.live();
    let moved = live.iter().find(|(name, at)| {
        let number = class_of(name).and_then(|class| classes.get(class));
        number.is_some() && number.copied() != state.record(**at).label
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

struct Run<'a> {
    source: &'a Path,
    kind: Kind,
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

    /// Files of the pack that the source has no more: they stay, as files may be gone by mistake.
    fn gone<'n>(&mut self, known: impl Iterator<Item = &'n [u8]>, names: &[Vec<u8>]) {
        let there: HashSet<&[u8]> = names.iter().map(Vec::as_slice).collect();
        let mut gone: Vec<&[u8]> = known.filter(|name| !there.contains(name)).collect();
        gone.sort_unstable_by(|one, other| compare(one, other));
        for name in gone {
            let source = self.source.display();
            self.problem(&format!(
                "{} stays in the pack, though {source} has it no more; `stallscope pack delete` takes it out",
                shown(name)
            ));
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
            if self.kind == Kind::Adds {
                let (name, path) = (shown(name), path.display());
                return Err(Stop::File(format!(
                    "the pack has {name} already, and {path} is another file: --replace packs it in its place"
                )));
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
