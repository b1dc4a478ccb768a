//! Packs a folder, tar files or tables: what is in whole chunks already is not read again.

mod origin;
mod shards;
mod tables;
mod walk;

pub use origin::Origin;
pub use tables::{Columns, is_tables};

use crate::chunk::LEAST_CHUNK_BYTES;
use crate::error::{Doing, Error, Result};
use crate::folder::{list, lock, to_change, unnamed};
use crate::names::{class_of, compare};
use crate::pack::Pack;
use crate::record::Record;
use crate::state::{At, State};
use crate::storage::Storage;
use crate::writer::{About, Writer};
use crate::{rebuild, shown};
use origin::{Item, Source};
use shards::Shards;
use stallscope_folder::{Folder, find};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::io::Read;
use std::path::{Path, PathBuf};
use tables::Tables;

const PIECE_BYTES: u64 = 1 << 20;

/// Names of a folder's files have no more bytes together than these, and so many for each: all are in memory at once, and those of
/// hard links below a long path have each some bytes on disk.
const MOST_NAMES_BYTES: usize = if cfg!(test) { 1 << 12 } else { 64 << 20 };
const MEAN_NAME_BYTES: usize = 512;

/// How to pack.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// In which order records lie in chunks: None for that of names, else shuffled by this seed.
    pub shuffle: Option<u64>,
    /// At which level of zstd files are compressed, 1 to 19, where that is worth it; None: they are stored as they are.
    pub zstd: Option<i32>,
    /// A chunk is written once it has so many bytes of records. Fewer than [`LEAST_CHUNK_BYTES`] are for tests.
    pub chunk_bytes: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options { shuffle: Some(0), zstd: None, chunk_bytes: LEAST_CHUNK_BYTES }
    }
}

/// What a caller hears while packing goes on.
#[derive(Debug)]
pub enum Notice<'a> {
    /// So many files were found so far.
    Found(u64),
    /// So many files are done, of how many, and how many bytes were read for it.
    Done(u64, u64, u64),
    /// So many rows of tables were expanded, of how many, and how many bytes were read for it.
    Unpacked(u64, u64, u64),
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
    /// Of the files that were written, those that were compressed.
    pub compressed: u64,
    /// How many bytes that saved.
    pub saved: u64,
    /// How many sentences there were.
    pub problems: u64,
    /// Chunks that the pack has now.
    pub chunks: usize,
}

/// Packs all files of `origin` into the folder `into`.
///
/// # Errors
/// There is nothing to pack, the pack is of another data set, another process writes to it, or the storage failed. The pack is
/// what it was then, and the next run goes on.
pub fn pack<'a>(
    origin: impl Into<Origin<'a>>,
    into: &Path,
    options: Options,
    storage: &dyn Storage,
    tell: &mut dyn FnMut(Notice<'_>),
) -> Result<Packed> {
    let found = Found::of(checked(origin.into(), into)?, tell)?;
    let folder = storage.folder(into).doing("make", into)?;
    if list(&folder, into)?.has_others {
        let into = into.display();
        return Err(Error::Refused(format!(
            "{into} has files of another kind; name a new folder for the pack"
        )));
    }
    let _lock = lock(&folder)?;
    // After the lock: who held it may have ended just now.
    let state = State::read(&folder, storage)?;
    let classes = classes(found.names.iter().map(Vec::as_slice));
    is_of(&state, &found)?;
    keeps_labels(&state, &found, &classes)?;
    written(Job { folder: &folder, options, storage, tell, kind: Kind::Packs }, state, found, &classes)
}

/// Adds all files of `origin` to the pack `into`, under their names there. A file that the pack has already stays as it is,
/// with a sentence if it is another one; unless it may `replace` it.
///
/// # Errors
/// As [`pack`]; and there is no pack, or a new folder would give others another label.
pub fn append<'a>(
    origin: impl Into<Origin<'a>>,
    into: &Path,
    options: Options,
    replace: bool,
    storage: &dyn Storage,
    tell: &mut dyn FnMut(Notice<'_>),
) -> Result<Packed> {
    let origin = checked(origin.into(), into)?;
    let folder = to_change(into)?;
    Pack::open_in(&folder)?;
    let found = Found::of(origin, tell)?;
    let _lock = lock(&folder)?;
    if matches!(&found.source, Source::Tables(tables) if tables.has_words()) {
        return Err(Error::Refused(format!(
            "the labels of {} are texts, which have the numbers of their order among all of a pack; pack all files into a new folder",
            found.origin.shown()
        )));
    }
    let own: HashSet<&[u8]> = found.names.iter().map(Vec::as_slice).collect();
    let state = State::read_whole(&folder, storage, &|name| own.contains(name))?;
    drop(own);
    let classes = classes(state.live().into_keys().chain(found.names.iter().map(Vec::as_slice)));
    keeps_labels(&state, &found, &classes)?;
    let kind = if replace { Kind::Replaces } else { Kind::Adds };
    written(Job { folder: &folder, options, storage, tell, kind }, state, found, &classes)
}

/// How something is to be packed.
struct Job<'a> {
    folder: &'a Folder,
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
fn written(job: Job<'_>, state: State, found: Found<'_>, classes: &BTreeMap<Vec<u8>, u32>) -> Result<Packed> {
    let Job { folder, options, storage, tell, kind } = job;
    let Found { origin, mut source, mut names, mut problems } = found;
    let live = state.live();
    if let Source::Tables(tables) = &mut source {
        let known = |name: &[u8]| live.get(name).map(|at| state.record(*at));
        problems += tables.unpack(&|| unnamed(folder), &known, tell)?;
        names.retain(|name| tables.has(name));
    }
    let has_labels = has_labels(&source);
    let writer = Writer::new(storage, folder, state.pack(), state.last(), options.chunk_bytes, has_labels);
    let mut run = Run {
        origin: &origin,
        source: &source,
        kind,
        has_labels,
        writer: writer.compressing(options.zstd)?,
        packed: Packed { problems, ..Packed::default() },
        all: names.len() as u64,
        done: 0,
        tell,
    };
    if kind == Kind::Packs {
        run.gone(live.keys().copied(), &names);
    }
    for name in in_order(names, options.shuffle) {
        let label = match &source {
            Source::Shards(shards) if has_labels => shards.label(&name),
            Source::Tables(tables) => tables.label(&name),
            _ => class_of(&name).and_then(|class| classes.get(class)).copied(),
        };
        run.one(&name, label, live.get(name.as_slice()).map(|at| state.record(*at)))?;
    }
    let Run { writer, mut packed, .. } = run;
    (packed.compressed, packed.saved) = writer.compressed();
    drop(live);
    let State { mut chunks, deleted } = state;
    chunks.extend(writer.finish()?);
    if chunks.is_empty() {
        return Err(Error::Refused(format!("no file of {} could be packed", origin.shown())));
    }
    rebuild::write(folder, &chunks, &deleted, storage)?;
    packed.chunks = chunks.len();
    Ok(packed)
}

/// What is to be packed.
struct Found<'a> {
    origin: Origin<'a>,
    source: Source<'a>,
    names: Vec<Vec<u8>>,
    problems: u64,
}

impl<'a> Found<'a> {
    /// Looks for all files of an origin.
    fn of(origin: Origin<'a>, tell: &mut dyn FnMut(Notice<'_>)) -> Result<Found<'a>> {
        // At once, and not kept: links of some bytes can have long names, and lead nowhere.
        let (tell, mut sentences) = (RefCell::new(tell), 0);
        let problem = &mut |sentence: String| {
            sentences += 1;
            (tell.borrow_mut())(Notice::Problem(&sentence));
        };
        let is_found = |files| (tell.borrow_mut())(Notice::Found(files));
        let (source, names) = match origin {
            Origin::Folder(path) => {
                let (mut names, mut bytes) = (Vec::new(), MOST_NAMES_BYTES);
                let root = find(None, path).doing("open", path)?;
                walk::files(path, &root, problem, &mut |name| {
                    let left = (bytes + MEAN_NAME_BYTES).checked_sub(name.len());
                    bytes = left.unwrap_or(0);
                    names.push(name);
                    is_found(names.len() as u64);
                    left.is_some()
                })?;
                (Source::Folder(path, root), names)
            }
            Origin::Shards { paths, by_shard } => {
                let shards = Shards::of(paths, by_shard, problem, &mut |files| is_found(files as u64))?;
                let names = shards.names();
                (Source::Shards(shards), names)
            }
            Origin::Tables { paths, columns } => {
                let tables = Tables::of(paths, columns, problem, &mut |rows| is_found(rows))?;
                let names = tables.names();
                (Source::Tables(tables), names)
            }
        };
        if names.is_empty() {
            return Err(Error::Refused(format!("there is no file to pack in {}", origin.shown())));
        }
        Ok(Found { origin, source, names, problems: sentences })
    }
}

/// An origin that can be packed into this folder.
fn checked<'a>(origin: Origin<'a>, into: &Path) -> Result<Origin<'a>> {
    origin.is_there()?;
    match origin {
        Origin::Folder(path) => is_apart(path, into)?,
        Origin::Tables { paths: [path], .. } if path.is_dir() => is_apart(path, into)?,
        Origin::Tables { .. } | Origin::Shards { .. } => {}
    }
    Ok(origin)
}

/// Whether labels come with the files, and not by their folders.
fn has_labels(source: &Source<'_>) -> bool {
    match source {
        Source::Folder(..) => false,
        Source::Shards(shards) => shards.has_labels,
        Source::Tables(_) => true,
    }
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

/// Whether the pack is of this origin, and not of another data set.
fn is_of(state: &State, found: &Found<'_>) -> Result<()> {
    let live = state.live();
    match live.is_empty() || found.names.iter().any(|name| live.contains_key(name.as_slice())) {
        true => Ok(()),
        false => Err(Error::Refused(format!(
            "the pack has no file of {}, and so is of another data set; name a new folder, or add the files by `stallscope pack append`",
            found.origin.shown()
        ))),
    }
}

/// Whether the files of the pack keep their labels.
fn keeps_labels(state: &State, found: &Found<'_>, classes: &BTreeMap<Vec<u8>, u32>) -> Result<()> {
    let (live, origin) = (state.live(), found.origin.shown());
    let has_labels = has_labels(&found.source);
    if !state.chunks.is_empty() && state.has_labels() != has_labels {
        let (own, others) = match has_labels {
            true => ("labels of their own", "by folders"),
            false => ("labels by folders", "of their own"),
        };
        return Err(Error::Refused(format!(
            "the files of {origin} have {own}, and those of the pack {others}; pack into a new folder"
        )));
    }
    if has_labels {
        return Ok(());
    }
    let is_moved = |(name, at): &(&&[u8], &At)| {
        let number = class_of(name).and_then(|class| classes.get(class));
        number.is_some() && number.copied() != state.record(**at).label
    };
    // The first, so that it is the same each time.
    match live.iter().filter(is_moved).map(|(name, _)| *name).min() {
        Some(name) => Err(Error::Refused(format!(
            "the folders of {origin} are other ones than when the pack was begun, so that {} would get another label; pack into a new folder",
            shown(class_of(name).unwrap_or_default())
        ))),
        None => Ok(()),
    }
}

struct Run<'a> {
    origin: &'a Origin<'a>,
    source: &'a Source<'a>,
    kind: Kind,
    has_labels: bool,
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
            let source = self.origin.shown();
            self.problem(&format!(
                "{} stays in the pack, though {source} has it no more; `stallscope pack delete` takes it out",
                shown(name)
            ));
        }
    }

    fn one(&mut self, name: &[u8], label: Option<u32>, known: Option<&Record>) -> Result<()> {
        match self.packed(name, label, known) {
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
        name: &[u8],
        label: Option<u32>,
        known: Option<&Record>,
    ) -> std::result::Result<(), Stop> {
        let shown_name = || self.source.shown(name);
        let unread = |error| Stop::File(format!("{} cannot be read: {error}", shown_name()));
        if let Some(record) = known {
            let facts = self.source.facts(name).map_err(unread)?;
            let has_label = !self.has_labels || record.label == label;
            if (facts.bytes, facts.mtime_ns) == (record.bytes, record.mtime_ns) && has_label {
                self.packed.kept += 1;
                return Ok(());
            }
            if self.kind == Kind::Adds {
                return Err(Stop::File(format!(
                    "the pack has {} already, and {} is another file: --replace packs it in its place",
                    shown(name),
                    shown_name()
                )));
            }
        }
        let mut item = self.source.open(name).map_err(unread)?;
        let bytes = item.facts.bytes;
        let about = About { mtime_ns: item.facts.mtime_ns, label };
        let is_as_before = |item: &Item| match item.is_as_before() {
            Ok(true) => Ok(about),
            Ok(false) => {
                Err(Stop::File(format!("{} is not packed: it was changed while it was read", shown_name())))
            }
            Err(error) => Err(unread(error)),
        };
        if self.writer.is_large(bytes) {
            let item = RefCell::new(item);
            let piece = || {
                let mut piece = Vec::new();
                (&mut *item.borrow_mut()).take(PIECE_BYTES).read_to_end(&mut piece).map_err(unread)?;
                Ok((!piece.is_empty()).then_some(piece))
            };
            // Once all of it was read.
            self.writer.add_large(name, piece, || is_as_before(&item.borrow()))?;
        } else {
            let mut content = Vec::with_capacity(bytes as usize + 1);
            item.read_to_end(&mut content).map_err(unread)?;
            let about = is_as_before(&item)?;
            self.writer.add(name, &content, about)?;
        }
        self.packed.files += 1;
        self.packed.bytes += bytes;
        self.packed.changed += u64::from(known.is_some());
        Ok(())
    }
}
