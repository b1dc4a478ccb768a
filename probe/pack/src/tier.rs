//! A folder on a local disk between a pack in object storage and its readers: whole chunks are kept in it as they are first read.
//!
//! It knows ranges of objects, and no network. Nothing in the folder is trusted: each sample is compared with its checksum, so that nothing
//! is synced, and what is cut, foreign or gone costs a read of the store. Processes share it by names and by locks that end with them; none is
//! held while the store is asked but those of the chunks that are fetched, for which nobody waits but threads of the same process.
//! No chunk is evicted for another one of its pack: each is used once an epoch, so that any that stay are as good as any others, and to
//! exchange them would cost reads (as MinIO has it).

mod account;
mod budget;
mod evict;
mod fetch;
mod files;
mod store;

use crate::error::Result;
use crate::id::Id;
use crate::objects::{Got, Objects, Wanted};
use budget::Limit;
use fetch::Fetch;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use store::{Claim, Medium, Store, System};

/// What is fetched together, in memory for so long; and how many chunks at most, each of which takes a descriptor.
const FETCHED_AT_ONCE_BYTES: u64 = 64 << 20;
const FETCHED_AT_ONCE: usize = 32;
/// A chunk that came damaged from the folder so often is left to the store, in this process: the disk is no good, or the store's own is damaged.
const MOST_DAMAGED: u8 = 2;
/// After a disk has failed, or was full.
const PAUSE: Duration = Duration::from_secs(60);
/// How often all files are looked at for what can be evicted, at most.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// For another thread that fetches the same chunk.
const LONGEST_WAIT: Duration = Duration::from_secs(2);
const WAIT: Duration = Duration::from_millis(1);

/// Where chunks of packs in object storage are kept.
#[derive(Clone, Debug)]
pub struct Local {
    /// The folder, which is made where it is missing.
    pub folder: PathBuf,
    /// Bytes that the chunks in it may take; without, as much as leaves a tenth of its file system free.
    pub limit: Option<u64>,
    /// Hears once in a process why nothing more is kept.
    pub warn: fn(&str),
}

/// Objects whose chunks are kept.
#[derive(Debug)]
pub(crate) struct Tier {
    objects: Arc<dyn Objects>,
    store: Store,
    /// By id, and the bytes of each.
    chunks: Vec<(Id, u64)>,
    slots: Box<[Slot]>,
    /// Milliseconds since `begun`: until then nothing more is kept, and not all files are looked at.
    begun: Instant,
    paused_until: AtomicU64,
    no_look_until: AtomicU64,
    has_warned: AtomicBool,
    warn: fn(&str),
}

/// A chunk, for the threads of this process.
#[derive(Debug, Default)]
struct Slot {
    /// The process whose thread fetches it; 0 for none. That of another one is a parent's, whose threads are not here.
    fetched_by: AtomicU32,
    damaged: AtomicU8,
}

impl Tier {
    /// `version`: of the snapshot, whose `chunks` are sorted by id.
    pub(crate) fn open(
        objects: Arc<dyn Objects>,
        local: &Local,
        version: [u8; 32],
        chunks: Vec<(Id, u64)>,
    ) -> Result<Tier> {
        Tier::open_on(objects, local, version, chunks, Box::new(System))
    }

    fn open_on(
        objects: Arc<dyn Objects>,
        local: &Local,
        version: [u8; 32],
        chunks: Vec<(Id, u64)>,
        medium: Box<dyn Medium>,
    ) -> Result<Tier> {
        let limit = local.limit.map_or(Limit::LeaveFree, Limit::Bytes);
        let store = Store::open(&local.folder, limit, medium, version, &chunks)?;
        let slots = chunks.iter().map(|_| Slot::default()).collect();
        Ok(Tier {
            objects,
            store,
            chunks,
            slots,
            begun: Instant::now(),
            paused_until: AtomicU64::new(0),
            no_look_until: AtomicU64::new(0),
            has_warned: AtomicBool::new(false),
            warn: local.warn,
        })
    }

    fn number_of(&self, name: &str) -> Option<usize> {
        let id = Id::of_file_name(name.as_bytes())?;
        self.chunks.binary_search_by_key(&id, |(id, _)| *id).ok()
    }

    /// The chunk that it is of; none where it is of another object, or a chunk that is left to the store.
    fn chunk_of(&self, wanted: &Wanted) -> Option<usize> {
        let number = self.number_of(&wanted.name)?;
        let is_within = wanted.range.start < self.chunks[number].1;
        let is_good = self.slots[number].damaged.load(Ordering::Relaxed) < MOST_DAMAGED;
        (is_within && is_good).then_some(number)
    }

    fn kept(&self, number: usize, wanted: &Wanted) -> Option<Result<Got>> {
        let (id, size) = self.chunks[number];
        let bytes = self.store.read(id, size, wanted.range.start..wanted.range.end.min(size))?;
        Some(Ok(Got { bytes, size }))
    }

    /// Fetches chunks of which these are wanted, as far as there is space for them and nobody else fetches them.
    fn fetch(&self, missing: Vec<(usize, Vec<usize>)>, wanted: &[Wanted], found: &mut [Option<Result<Got>>]) {
        let (mut under_way, mut bytes) = (Vec::new(), 0);
        let (mut kept, mut awaited) = (Vec::new(), Vec::new());
        for (number, of) in missing {
            match self.begin(number) {
                Begun::Fetch(unfinished) => {
                    bytes += self.chunks[number].1;
                    under_way.push(Fetch::new(self, number, unfinished, of, wanted));
                }
                Begun::Kept => kept.push((number, of)),
                Begun::Awaited => awaited.push((number, of)),
                Begun::No => {}
            }
            if bytes >= FETCHED_AT_ONCE_BYTES || under_way.len() >= FETCHED_AT_ONCE {
                fetch::fetch(self, &mut under_way, found);
                bytes = 0;
            }
        }
        fetch::fetch(self, &mut under_way, found);
        // Behind what this thread fetches itself, for which the other one may wait.
        for (number, _) in &awaited {
            self.wait_for(*number);
        }
        for (number, of) in kept.into_iter().chain(awaited) {
            for one in of {
                found[one] = self.kept(number, &wanted[one]);
            }
        }
    }

    fn begin(&self, number: usize) -> Begun {
        if self.now() < self.paused_until.load(Ordering::Relaxed) {
            return Begun::No;
        }
        let own = std::process::id();
        let fetched_by = &self.slots[number].fetched_by;
        let known = fetched_by.load(Ordering::Acquire);
        if known == own
            || fetched_by.compare_exchange(known, own, Ordering::AcqRel, Ordering::Acquire).is_err()
        {
            return Begun::Awaited;
        }
        let (id, bytes) = self.chunks[number];
        let claimed = self.store.claim(id, bytes, &|| self.may_look());
        if let Ok(Claim::Own(unfinished)) = claimed {
            // Where there was space there may be more.
            self.no_look_until.store(0, Ordering::Relaxed);
            return Begun::Fetch(unfinished);
        }
        self.over(number);
        match claimed {
            Ok(Claim::Kept) => Begun::Kept,
            Err(error) => {
                self.pause(&error);
                Begun::No
            }
            _ => Begun::No,
        }
    }

    /// No thread of this process fetches it any more.
    fn over(&self, number: usize) {
        self.slots[number].fetched_by.store(0, Ordering::Release);
    }

    fn wait_for(&self, number: usize) {
        let (own, end) = (std::process::id(), Instant::now() + LONGEST_WAIT);
        while self.slots[number].fetched_by.load(Ordering::Acquire) == own && Instant::now() < end {
            std::thread::sleep(WAIT);
        }
    }

    fn now(&self) -> u64 {
        self.begun.elapsed().as_millis() as u64
    }

    fn may_look(&self) -> bool {
        let (now, until) = (self.now(), self.no_look_until.load(Ordering::Relaxed));
        let next = now.saturating_add(LOOK_EVERY.as_millis() as u64);
        now >= until
            && self.no_look_until.compare_exchange(until, next, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// What the disk does not do now it may do later.
    fn pause(&self, error: &std::io::Error) {
        self.paused_until.store(self.now().saturating_add(PAUSE.as_millis() as u64), Ordering::Relaxed);
        if !self.has_warned.swap(true, Ordering::Relaxed) {
            let folder = self.store.path().display();
            (self.warn)(&format!(
                "{folder} takes no more chunks for now, and what is not there is read from object storage: {error}"
            ));
        }
    }
}

/// What becomes of a chunk that is missing.
#[derive(Debug)]
enum Begun {
    Fetch(store::Unfinished),
    Kept,
    /// Another thread of this process fetches it.
    Awaited,
    No,
}

impl Objects for Tier {
    fn read(&self, wanted: &[Wanted]) -> Vec<Result<Got>> {
        let mut found: Vec<Option<Result<Got>>> = wanted.iter().map(|_| None).collect();
        // In the order in which they are wanted.
        let mut missing: Vec<(usize, Vec<usize>)> = Vec::new();
        let mut places = std::collections::HashMap::new();
        for (one, wanted) in wanted.iter().enumerate() {
            let Some(number) = self.chunk_of(wanted) else { continue };
            found[one] = self.kept(number, wanted);
            if found[one].is_none() {
                let place = *places.entry(number).or_insert_with(|| {
                    missing.push((number, Vec::new()));
                    missing.len() - 1
                });
                missing[place].1.push(one);
            }
        }
        self.fetch(missing, wanted, &mut found);
        let rest: Vec<Wanted> = wanted
            .iter()
            .zip(&found)
            .filter(|(_, found)| found.is_none())
            .map(|(one, _)| one.clone())
            .collect();
        let mut rest = if rest.is_empty() { Vec::new() } else { self.objects.read(&rest) }.into_iter();
        let none = || Err(crate::error::Error::Refused("no answer of the store".into()));
        found.into_iter().map(|one| one.or_else(|| rest.next()).unwrap_or_else(none)).collect()
    }

    fn whole(&self, name: &str, most_bytes: u64) -> Result<Option<Vec<u8>>> {
        self.objects.whole(name, most_bytes)
    }

    fn forget(&self, name: &str) {
        if let Some(number) = self.number_of(name)
            && let Some(is_gone) = self.store.forget(self.chunks[number].0)
        {
            let damaged = &self.slots[number].damaged;
            match is_gone {
                true => damaged.store(damaged.load(Ordering::Relaxed).saturating_add(1), Ordering::Relaxed),
                // It can't be read again.
                false => damaged.store(MOST_DAMAGED, Ordering::Relaxed),
            }
        }
        self.objects.forget(name);
    }
}

#[cfg(test)]
mod tests;
