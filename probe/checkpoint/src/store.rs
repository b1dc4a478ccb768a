//! A folder of checkpoints: what is in it, which of them is the newest that can be trusted, what may go.

use crate::checkpoint::{Check, Checkpoint};
use crate::error::{Doing, Error, Result};
use crate::files::{self, Disk, Files, Folder};
use crate::locking::Lock;
use crate::manifest::{Listed, MANIFEST, MOST_MANIFEST_BYTES, read_manifest};
use crate::names;
use crate::retain::Retain;
use std::collections::{BTreeMap, HashSet};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

mod aside;
mod mark;
mod removal;
#[cfg(all(test, not(loom)))]
mod tests;

pub use aside::{QUARANTINE, SetAside};
use mark::is_marked_verified;
pub use mark::mark_verified;
pub(crate) use removal::remove;

/// The file that names the newest checkpoint. Restoring never trusts it.
pub const LATEST: &str = "latest";

/// A folder of checkpoints, for reading. The folder need not exist yet.
#[derive(Clone, Debug)]
pub struct Store {
    dir: PathBuf,
}

/// A folder `step-…` in it.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Step of training, by its name.
    pub step: u64,
    /// Which attempt to save this step it is, from 1, by its name.
    pub attempt: u64,
    /// What is known of it.
    pub state: State,
    /// What commits it, where that is sound.
    pub manifest: Option<Listed>,
}

/// What is known of a checkpoint without reading all of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Committed, and read back whole since.
    Verified,
    /// Committed.
    Committed,
    /// Never committed: a save under way, or one that was killed.
    Incomplete,
    /// Committed, and not what was saved, or not readable just now: the reason.
    Bad(String),
}

/// A checkpoint that was passed over.
#[derive(Clone, Debug)]
pub struct Passed {
    /// Its folder's name.
    pub name: String,
    /// What is wrong with it.
    pub reason: String,
    /// Where it was moved to; none where it stays (it could not be read just now, or not moved).
    pub moved_to: Option<PathBuf>,
}

/// What looking for the newest good checkpoint came to.
#[derive(Clone, Debug, Default)]
pub struct Newest {
    /// The newest that verifies; none when there is none.
    pub checkpoint: Option<Checkpoint>,
    /// Those that were newer and did not.
    pub passed: Vec<Passed>,
}

/// What a collection removed, or would remove.
#[derive(Clone, Debug, Default)]
pub struct Collected {
    /// Committed checkpoints beyond those to be kept, and, as `quarantine/NAME`, those set aside before all of these.
    pub removed: Vec<String>,
    /// Remains of saves that were never committed.
    pub leftovers: Vec<String>,
}

/// A folder's last save has a number below that, or somebody made it up: numbers that come round would bring old weights back.
const MOST_SEQUENCE: u64 = 1 << 62;
/// Of the manifests of a folder: a manifest has some hundred bytes of text, and 67 for each rank. Links would make many of one
/// large one.
#[derive(Debug)]
struct Left {
    /// To be read.
    text_bytes: u64,
    /// In memory at once.
    held_bytes: u64,
}

/// Folders of checkpoints, or what has their names: each takes memory, whatever is in it.
const MOST_ENTRIES: usize = if cfg!(test) { 200 } else { 100_000 };
/// Characters of what is wrong with a checkpoint: it may quote what is in it.
const MOST_REASON: usize = 1000;

/// So many that are not good are no accident any more, and each takes time: a user who may write there can make thousands.
const MOST_PASSED: usize = 100;

const TOO_MANY: &str = "the manifests of this folder have more than 256 MiB of text together, or take more than 64 MiB of memory; move some of its checkpoints elsewhere";

impl Left {
    const ALL: Left = Left { text_bytes: 256 << 20, held_bytes: 64 << 20 };

    fn take(left: &mut u64, bytes: u64) -> bool {
        let rest = left.checked_sub(bytes);
        *left = rest.unwrap_or(*left);
        rest.is_some()
    }
}

impl Store {
    /// The checkpoints in this folder.
    pub fn open(dir: impl Into<PathBuf>) -> Store {
        Store { dir: dir.into() }
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The same folder by way of its descriptor, for as long as that is open. Who may write to a folder around it can put
    /// another folder, or a link to one, in its place at any moment: what was found in one must not be moved in the other.
    fn opened(&self) -> std::io::Result<(Store, OwnedFd)> {
        let folder = files::open_dir(&self.dir)?;
        Ok((Store { dir: files::itself(&folder) }, folder))
    }

    /// What is there, newest first: in the order in which they were committed, then those never committed.
    pub fn list(&self) -> Result<Vec<Entry>> {
        let (mut entries, mut left) = (Vec::new(), Left::ALL);
        for (name, is_folder) in self.folders()? {
            let Some((step, attempt)) = names::parse(&name) else { continue };
            let (mut state, manifest) = match is_folder {
                true => self.state(&name, &mut left),
                false => (State::Bad("it is no folder".into()), None),
            };
            if let State::Bad(reason) = &mut state {
                *reason = short(reason);
                if !Left::take(&mut left.held_bytes, reason.len() as u64) {
                    *reason = TOO_MANY.into();
                }
            }
            entries.push(Entry { name, step, attempt, state, manifest });
        }
        entries.sort_by_key(|entry| {
            let committed = entry.manifest.as_ref().map(|manifest| manifest.sequence);
            // Unreadable ones are tried by their step, before what is older by both.
            std::cmp::Reverse((
                entry.state != State::Incomplete,
                committed.is_none(),
                committed,
                entry.step,
                entry.attempt,
            ))
        });
        Ok(entries)
    }

    /// What has the name of a checkpoint, and whether it is a folder: never through a link, as what it leads to is not ours to read or
    /// remove.
    fn folders(&self) -> Result<Vec<(String, bool)>> {
        let listed = match std::fs::read_dir(&self.dir) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.doing("list", &self.dir)?,
        };
        let mut found = Vec::new();
        for entry in listed {
            let entry = entry.doing("list", &self.dir)?;
            let name = entry.file_name().into_string().ok().filter(|name| names::parse(name).is_some());
            found.extend(name.map(|name| (name, entry.file_type().is_ok_and(|kind| kind.is_dir()))));
            if found.len() > MOST_ENTRIES {
                return Err(Error::Refused(format!(
                    "{} has more than {MOST_ENTRIES} checkpoints; move some of them elsewhere",
                    self.dir.display()
                )));
            }
        }
        Ok(found)
    }

    fn state(&self, name: &str, left: &mut Left) -> (State, Option<Listed>) {
        let path = self.dir.join(name).join(MANIFEST);
        let too_many = || (State::Bad(TOO_MANY.into()), None);
        let bytes = std::fs::symlink_metadata(&path).map_or(0, |file| file.len());
        if !Left::take(&mut left.text_bytes, bytes.min(MOST_MANIFEST_BYTES)) {
            return too_many();
        }
        let dir = self.dir.join(name);
        let folder = match Folder::reach(&dir) {
            Err(error) => return (State::Bad(format!("cannot open {}: {error}", dir.display())), None),
            Ok(folder) => folder,
        };
        match read_manifest(&folder) {
            Ok((manifest, _)) if !Left::take(&mut left.held_bytes, manifest.bytes()) => too_many(),
            Ok((manifest, digest)) => {
                let verified = is_marked_verified(&folder, &digest);
                (if verified { State::Verified } else { State::Committed }, Some(manifest))
            }
            Err(error) if error.is_not_found() => (State::Incomplete, None),
            Err(error) => (State::Bad(error.to_string()), None),
        }
    }

    /// The checkpoint of that folder name, or of that step (its newest): "step-000000123", "123", "latest"; "best" by the metric
    /// that the newest one's run goes by.
    pub fn checkpoint(&self, which: &str) -> Result<Checkpoint> {
        // Without a list of all: who goes through a folder by names reads each manifest once.
        if names::parse(which).is_some() {
            match Checkpoint::open(&self.dir.join(which)) {
                Err(error) if error.is_not_found() => {}
                found => return found,
            }
        }
        let entries = self.list()?;
        let committed = || entries.iter().filter(|entry| entry.state != State::Incomplete);
        let found = match (which, which.parse::<u64>()) {
            ("latest", _) => committed().next(),
            ("best", _) => self.best(&entries)?,
            (_, Ok(step)) => committed().find(|entry| entry.step == step),
            (name, _) => committed().find(|entry| entry.name == name),
        };
        let Some(found) = found else {
            let there: Vec<&str> = committed().map(|entry| &*entry.name).take(8).collect();
            let there = if there.is_empty() { "no checkpoint".into() } else { there.join(", ") };
            let dir = self.dir.display();
            return Err(Error::Refused(format!("{dir} has no checkpoint {which:?}; there is {there}")));
        };
        Checkpoint::open(&self.dir.join(&found.name))
    }

    fn best<'a>(&self, entries: &'a [Entry]) -> Result<Option<&'a Entry>> {
        let runs = runs(entries);
        let newest = entries.iter().find_map(|entry| entry.manifest.as_ref());
        let run = newest.and_then(|newest| runs.iter().find(|run| has_run(run[0], &newest.run)));
        let found = run.and_then(|run| {
            let best = latest_retain(run).best?;
            best.ranked(run).first().copied()
        });
        if found.is_none() {
            return Err(Error::Refused(format!(
                "{} has no best checkpoint: its newest run saved none with the metric that it goes by",
                self.dir.display()
            )));
        }
        Ok(found)
    }

    /// Verifies from the newest to the oldest until one is good. Those found damaged on the way are moved to the folder
    /// `quarantine`, with a file `reason.txt`; those that can't be read just now are passed over. `progress` is given the
    /// name, the bytes done and all bytes, from any thread. `goes_on` is asked between two of them whether to look at another.
    ///
    /// One process at a time: with several ranks, rank 0 looks and tells the others the name.
    ///
    /// # Errors
    /// The folder cannot be read, it has too many that are not good, or `goes_on` returned false.
    pub fn newest_verified(
        &self,
        progress: &(dyn Fn(&str, u64, u64) + Sync),
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Newest> {
        let mut newest = Newest::default();
        let (opened, folder) = match self.opened() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(newest),
            other => other.doing("open", &self.dir)?,
        };
        // Their names alone: where one is moved, what is left is listed anew.
        let listed = opened.list().map_err(|error| error.shown_as(&opened.dir, &self.dir))?;
        let committed = listed.into_iter().filter(|entry| entry.state != State::Incomplete);
        let names: Vec<String> = committed.map(|entry| entry.name).collect();
        let looked = self.look(&opened, &folder, names, progress, goes_on, &mut newest);
        // Once, and not for each: it takes a list of the whole folder, and waits for a device.
        if newest.passed.iter().any(|passed| passed.moved_to.is_some()) {
            opened.note_moved();
        }
        looked.map(|()| newest)
    }

    fn look(
        &self,
        opened: &Store,
        folder: &OwnedFd,
        names: Vec<String>,
        progress: &(dyn Fn(&str, u64, u64) + Sync),
        goes_on: &dyn Fn() -> bool,
        newest: &mut Newest,
    ) -> Result<()> {
        for name in names {
            if !goes_on() {
                return Err(Error::Refused("looking for the newest checkpoint was interrupted".into()));
            }
            if newest.passed.len() == MOST_PASSED {
                return Err(too_many_passed(&self.dir, &newest.passed));
            }
            let dir = self.dir.join(&name);
            let verified = Checkpoint::open_in(folder, &name, &dir).and_then(|checkpoint| {
                checkpoint.verify(Check::Full, &|done, all| progress(&name, done, all))?;
                Ok(checkpoint)
            });
            match verified {
                Ok(checkpoint) => {
                    mark_verified(&checkpoint);
                    newest.checkpoint = Some(checkpoint);
                    break;
                }
                // Collected by the job that saves here.
                Err(_) if !opened.dir.join(&name).exists() => {}
                Err(error) => {
                    let reason = error.to_string();
                    let moved_to = error
                        .is_damage()
                        .then(|| opened.set_aside(&name, &reason).ok())
                        .flatten()
                        .map(|moved_to| self.dir.join(QUARANTINE).join(moved_to));
                    newest.passed.push(Passed { name, reason, moved_to });
                }
            }
        }
        Ok(())
    }

    /// Removes committed checkpoints of whatever runs that are older than the `keep` newest verified ones, and, where no
    /// job saves here, what saves that were killed left behind. What a run's `Retain` names stays. Nothing goes before
    /// `keep` newer ones have been read back whole: run `verify` first. With `dry_run` it only says what it would remove.
    pub fn collect(&self, keep: usize, dry_run: bool) -> Result<Collected> {
        self.collect_with(&Disk, keep, dry_run)
    }

    fn collect_with(&self, files: &dyn Files, keep: usize, dry_run: bool) -> Result<Collected> {
        let folder: OwnedFd = match stallscope_folder::Folder::open(&self.dir).map_err(std::io::Error::from) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Collected::default()),
            other => other.doing("open", &self.dir)?.into(),
        };
        let opened = Store { dir: files::itself(&folder) };
        opened.collect_here(files, keep, dry_run).map_err(|error| error.shown_as(&opened.dir, &self.dir))
    }

    fn collect_here(&self, files: &dyn Files, keep: usize, dry_run: bool) -> Result<Collected> {
        let entries = self.list()?;
        let stays = runs(&entries).iter().flat_map(|run| latest_retain(run).stays(run)).collect();
        let mut collected = self.collect_entries(files, entries, keep, &stays, dry_run)?;
        if let Ok(_lock) = Lock::take(&self.dir) {
            collected.leftovers = self.remove_leftovers(files, dry_run)?;
        }
        Ok(collected)
    }

    /// Removes what a run no longer needs; other runs' checkpoints are not its to remove.
    pub(crate) fn collect_run(
        &self,
        files: &dyn Files,
        run: &Option<String>,
        keep: usize,
        retain: &Retain,
    ) -> Result<Collected> {
        let mut entries = self.list()?;
        entries.retain(|entry| has_run(entry, run));
        let stays = retain.stays(&entries.iter().collect::<Vec<_>>());
        self.collect_entries(files, entries, keep, &stays, false)
    }

    fn collect_entries(
        &self,
        files: &dyn Files,
        entries: Vec<Entry>,
        keep: usize,
        stays: &HashSet<String>,
        dry_run: bool,
    ) -> Result<Collected> {
        let mut collected = Collected::default();
        let (mut verified, mut kept_since_ns) = (0, None);
        for entry in entries {
            match entry.state {
                State::Verified if verified < keep.max(1) => {
                    verified += 1;
                    if verified == keep.max(1) {
                        kept_since_ns = entry.manifest.map(|manifest| manifest.saved_wall_ns);
                    }
                }
                State::Verified | State::Committed
                    if verified >= keep.max(1) && !stays.contains(&entry.name) =>
                {
                    if !dry_run {
                        let save = entry.manifest.map(|manifest| manifest.save);
                        let is_it = |found: Option<&Listed>| found.map(|found| &found.save) == save.as_ref();
                        remove(files, &self.dir.join(&entry.name), &is_it)?;
                    }
                    collected.removed.push(entry.name);
                }
                _ => {}
            }
        }
        if let Some(since_ns) = kept_since_ns {
            collected.removed.extend(self.collect_quarantined(files, since_ns, dry_run));
        }
        Ok(collected)
    }

    /// Only under the lock: else it would take the folder of a save under way.
    pub(crate) fn remove_leftovers(&self, files: &dyn Files, dry_run: bool) -> Result<Vec<String>> {
        let is_incomplete = |name: &str| {
            let found = std::fs::symlink_metadata(self.dir.join(name).join(MANIFEST));
            found.is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
        };
        let found = self.folders()?.into_iter();
        let incomplete = found.filter(|(name, is_folder)| *is_folder && is_incomplete(name));
        let names: Vec<String> = incomplete.map(|(name, _)| name).collect();
        if !dry_run {
            // What was removed that committed them is gone for good before the rest goes. All of them first: a sync of one waits
            // for the removal of those before it, and there may be thousands.
            let dirs: Vec<PathBuf> = names.iter().map(|name| self.dir.join(name)).collect();
            removal::sync_each(files, &dirs)?;
            for name in &names {
                remove(files, &self.dir.join(name), &|manifest| manifest.is_none())?;
            }
        }
        Ok(names)
    }

    pub(crate) fn taken_names(&self, entries: &[Entry]) -> Result<(HashSet<String>, u64)> {
        let sequences =
            entries.iter().filter_map(|entry| Some((entry.manifest.as_ref()?.sequence, &entry.name)));
        let (sequence, last) = sequences.max().map_or((0, ""), |(sequence, name)| (sequence, name));
        if sequence > MOST_SEQUENCE {
            return Err(Error::Refused(format!(
                "{}/{last} says that it is save number {sequence} of its folder, after which none can come; move it away",
                self.dir.display()
            )));
        }
        Ok((entries.iter().map(|entry| entry.name.clone()).collect(), sequence))
    }
}

fn has_run(entry: &Entry, run: &Option<String>) -> bool {
    entry.manifest.as_ref().is_some_and(|manifest| manifest.run == *run)
}

/// Committed checkpoints by the run that saved them, each newest first.
fn runs(entries: &[Entry]) -> Vec<Vec<&Entry>> {
    let mut runs: BTreeMap<&Option<String>, Vec<&Entry>> = BTreeMap::new();
    for entry in entries {
        if let Some(manifest) = &entry.manifest {
            runs.entry(&manifest.run).or_default().push(entry);
        }
    }
    runs.into_values().collect()
}

/// What the newest of these checkpoints says of what stays.
fn latest_retain(entries: &[&Entry]) -> Retain {
    entries.iter().find_map(|entry| Some(entry.manifest.as_ref()?.retain.clone())).unwrap_or_default()
}

/// Its beginning.
fn short(text: &str) -> String {
    match text.char_indices().nth(MOST_REASON) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

fn too_many_passed(dir: &Path, passed: &[Passed]) -> Error {
    let (dir, first) = (dir.display(), passed.first());
    let (name, reason) = first.map_or(("", String::new()), |first| (&*first.name, short(&first.reason)));
    Error::Refused(format!(
        "the {MOST_PASSED} newest checkpoints of {dir} are damaged or cannot be read ({name}: {reason}); mend what damages them, move those that are still there elsewhere, and restore again"
    ))
}
