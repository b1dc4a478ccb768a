//! Threads that read chunks into a shelf.

use super::LOOK_EVERY;
use super::words::{FAILED, GONE, READY, Slot, Words};
use crate::error::{Doing, Result};
use crate::pack::Pack;
use crate::shuffle::Read;
use memmap2::MmapRaw;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Requests in flight. Parts are read one after the other, each by all threads, so that what is needed first is there first.
const THREADS: usize = 4;
/// Of one request.
const REQUEST_BYTES: u64 = 1 << 20;
/// The same of object storage, which takes its time for each request and gives more the more are in flight.
const THREADS_IN_STORE: usize = 8;
const REQUEST_BYTES_IN_STORE: u64 = 4 << 20;
/// And where chunks are fetched whole, so that few threads wait for the same.
const REQUEST_BYTES_KEPT: u64 = 16 << 20;

/// The threads of one plan.
#[derive(Debug)]
pub(super) struct Readers {
    reading: Arc<Reading>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Reading {
    words: Arc<Words>,
    pack: Arc<Pack>,
    reads: Vec<Read>,
    /// Bytes of each read that are not there yet.
    missing: Vec<AtomicU64>,
    ring: MmapRaw,
    is_ended: AtomicBool,
    next: Mutex<Next>,
}

/// What the next request is of.
#[derive(Debug, Default)]
struct Next {
    read: usize,
    begin: u64,
    /// So many of the first reads are used up.
    used_up: usize,
}

impl Readers {
    pub(super) fn start(words: Arc<Words>, pack: Arc<Pack>, reads: Vec<Read>) -> Result<Readers> {
        let path = Path::new("memory for chunks");
        let (offset, bytes) = (words.ring_at(), words.ring().max(1) as usize);
        let ring =
            memmap2::MmapOptions::new().offset(offset).len(bytes).map_raw(&words.fd()).doing("map", path)?;
        let missing = reads.iter().map(|read| AtomicU64::new(read.bytes)).collect();
        let (is_ended, next) = (AtomicBool::new(false), Mutex::default());
        let reading = Arc::new(Reading { words, pack, reads, missing, ring, is_ended, next });
        reading.words.running.store(1, Release);
        let mut readers = Readers { reading, threads: Vec::new() };
        let threads = if readers.reading.pack.is_in_store() { THREADS_IN_STORE } else { THREADS };
        for _ in 0..threads {
            let reading = readers.reading.clone();
            let thread = std::thread::Builder::new().name("stallscope-read".into());
            match thread.spawn(move || {
                let _at_panic = AtPanic(&reading.words);
                reading.run();
            }) {
                Ok(thread) => readers.threads.push(thread),
                // Fewer are slower.
                Err(_) if !readers.threads.is_empty() => break,
                Err(error) => {
                    readers.reading.words.running.store(0, Release);
                    return Err(error).doing("start a thread for", path);
                }
            }
        }
        Ok(readers)
    }

    /// Ends them and waits for the request that each is in.
    pub(super) fn stop(self, words: &Words) {
        self.end(words);
        for thread in self.threads {
            // One that panicked is over as well.
            let _ = thread.join();
        }
    }

    /// Ends them without waiting.
    pub(super) fn let_go(self, words: &Words) {
        self.end(words);
    }

    fn end(&self, words: &Words) {
        words.running.store(0, Release);
        self.reading.is_ended.store(true, Release);
        words.wake(&words.freed);
        words.wake(&words.progress);
    }
}

/// Lets nobody wait for a thread that panicked.
struct AtPanic<'a>(&'a Words);

impl Drop for AtPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.running.store(0, Release);
        }
    }
}

impl Reading {
    fn run(&self) {
        while let Some((number, begin, bytes)) = self.request() {
            let (read, Some(slot)) = (&self.reads[number], self.words.slot(number)) else { return };
            let at = (read.at + begin) as usize;
            // SAFETY: a plan's reads lie within the ring, and those at one place one after the other: the one before is used
            // up, and this request is this thread's alone. Who copies out of it does so by the kernel, and not by this map.
            let to =
                unsafe { std::slice::from_raw_parts_mut(self.ring.as_mut_ptr().add(at), bytes as usize) };
            if self.pack.read_chunk(read.chunk as usize, read.from + begin, to).is_err() {
                // Who needs a sample of it reads it from the chunk, and has the error if there is one.
                slot.state.store(FAILED, Release);
            }
            if self.missing[number].fetch_sub(bytes, AcqRel) == bytes {
                if slot.state.load(Acquire) != FAILED {
                    slot.state.store(READY, Release);
                }
                self.words.read.fetch_add(1, Relaxed);
                self.words.stuck.store(0, Release);
                self.words.wake(&self.words.progress);
            }
        }
    }

    /// The next request: of which read, where it begins in it and its bytes. None at the end.
    fn request(&self) -> Option<(usize, u64, u64)> {
        // Those that wait for it want to read behind what it waits for.
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let number = next.read;
        let read = self.reads.get(number)?;
        if next.begin == 0 {
            self.wait_for_memory(&mut next, read)?;
        }
        if self.is_ended.load(Acquire) {
            return None;
        }
        let begin = next.begin;
        let most = match self.pack.is_in_store() {
            true if self.pack.is_kept() => REQUEST_BYTES_KEPT,
            true => REQUEST_BYTES_IN_STORE,
            false => REQUEST_BYTES,
        };
        let bytes = (read.bytes - begin).min(most);
        (next.read, next.begin) =
            if begin + bytes == read.bytes { (number + 1, 0) } else { (number, begin + bytes) };
        Some((number, begin, bytes))
    }

    /// Until all that lay at this place is used up. None if reading ends.
    fn wait_for_memory(&self, next: &mut Next, read: &Read) -> Option<()> {
        while next.used_up < read.after {
            let seen = self.words.freed.load(Acquire);
            let slot = self.words.slot(next.used_up)?;
            if self.is_used_up(slot) && self.missing[next.used_up].load(Acquire) == 0 {
                slot.state.store(GONE, Release);
                next.used_up += 1;
                continue;
            }
            if self.is_ended.load(Acquire) {
                return None;
            }
            self.words.full.store(1, Release);
            self.words.sleep(&self.words.freed, seen, LOOK_EVERY);
        }
        self.words.full.store(0, Release);
        Some(())
    }

    fn is_used_up(&self, slot: &Slot) -> bool {
        slot.left.load(Acquire) == 0
            || slot.state.load(Acquire) == FAILED
            || slot.last.load(Relaxed) < self.words.reached.load(Acquire)
    }
}
