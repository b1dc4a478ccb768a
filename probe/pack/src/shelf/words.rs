//! The words of a shelf, which all processes read and write as atomics.

use super::memfd;
use crate::error::{Doing, Error, Result};
use crate::shuffle::Read;
use memmap2::MmapRaw;
use rustix::thread::futex;
use rustix::time::Timespec;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

/// States of a read.
pub(super) const PLANNED: u32 = 0;
pub(super) const READY: u32 = 1;
pub(super) const FAILED: u32 = 2;
/// Its memory is another's.
pub(super) const GONE: u32 = 3;

const MAGIC: u64 = u64::from_le_bytes(*b"STLSHELF");
const PAGE_BYTES: usize = 4096;
/// Beside those of chunks that are cut in two: where lanes meet.
const MORE_READS: usize = 1024;
/// A chunk is in no more reads than these: cut by the window, and by the ends of lanes.
const MOST_READS_OF_CHUNK: usize = 16;

/// The words and their file.
#[derive(Debug)]
pub(super) struct Words {
    fd: OwnedFd,
    map: MmapRaw,
    head: *const Head,
    chunks: usize,
    reads: usize,
    ring: u64,
}

// SAFETY: `head` points into `map`, which lives as long, and everything there is reached as atomics.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

#[repr(C)]
#[derive(Debug)]
pub(super) struct Head {
    magic: AtomicU64,
    token: AtomicU64,
    chunk_count: AtomicU64,
    read_count: AtomicU64,
    ring_bytes: AtomicU64,
    /// Samples of the share that are used.
    pub(super) reached: AtomicU64,
    /// Parts of chunks that were read.
    pub(super) read: AtomicU64,
    planned: AtomicU32,
    /// Whether there are threads that read.
    pub(super) running: AtomicU32,
    /// Another number once something was read, and once something was used up.
    pub(super) progress: AtomicU32,
    pub(super) freed: AtomicU32,
    /// Whether what is next has no memory; and whether that will not change by itself.
    pub(super) full: AtomicU32,
    pub(super) stuck: AtomicU32,
}

/// A read, and what is left of it.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) from: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) at: AtomicU64,
    pub(super) last: AtomicU64,
    pub(super) state: AtomicU32,
    pub(super) left: AtomicU32,
    /// One more than the number of the next read of the same chunk; 0: there is none.
    next: AtomicU32,
    _unused: AtomicU32,
}

impl std::ops::Deref for Words {
    type Target = Head;

    fn deref(&self) -> &Head {
        // SAFETY: it points to the begin of the map, which is page-aligned and has a head's bytes; atomics allow any bytes
        // and any concurrent atomic access, from other processes too, and nobody of ours cuts the file.
        unsafe { &*self.head }
    }
}

fn most_reads(chunks: usize) -> usize {
    2 * chunks + MORE_READS
}

/// Of all words, in whole pages.
fn bytes_of(chunks: usize, reads: usize) -> Option<usize> {
    let of_chunks = chunks.checked_mul(4)?.next_multiple_of(8);
    let slots = reads.checked_mul(size_of::<Slot>())?;
    size_of::<Head>().checked_add(of_chunks)?.checked_add(slots)?.checked_next_multiple_of(PAGE_BYTES)
}

impl Words {
    pub(super) fn new(chunks: usize, ring: u64) -> Result<Words> {
        let path = Path::new("memory for chunks");
        let reads = most_reads(chunks);
        let bytes = bytes_of(chunks, reads)
            .and_then(|bytes| (bytes as u64).checked_add(ring).map(|all| (bytes, all)));
        let (bytes, all) =
            bytes.ok_or_else(|| Error::Refused("the memory for chunks is too large".into()))?;
        let fd = memfd(all)?;
        let mut token = [0; 8];
        rustix::rand::getrandom(&mut token, rustix::rand::GetRandomFlags::empty()).doing("make", path)?;
        let words = Words::over(fd, bytes, chunks, reads, ring, path)?;
        words.magic.store(MAGIC, Relaxed);
        words.token.store(u64::from_ne_bytes(token), Relaxed);
        words.chunk_count.store(chunks as u64, Relaxed);
        words.read_count.store(reads as u64, Relaxed);
        words.ring_bytes.store(ring, Relaxed);
        Ok(words)
    }

    /// Of another process.
    pub(super) fn open(fd: OwnedFd, path: &Path) -> Result<Words> {
        let count = rustix::fs::fstat(&fd).doing("open", path)?.st_size as u64;
        let other = || Error::damaged(path, "it is no memory for chunks");
        if count < PAGE_BYTES as u64 {
            return Err(other());
        }
        let head = Words::over(fd, PAGE_BYTES, 0, 0, 0, path)?;
        let sizes = (
            usize::try_from(head.chunk_count.load(Relaxed)).ok(),
            usize::try_from(head.read_count.load(Relaxed)).ok(),
            head.ring_bytes.load(Relaxed),
        );
        let (Some(chunks), Some(reads), ring) = sizes else { return Err(other()) };
        let bytes = bytes_of(chunks, reads).filter(|bytes| {
            head.magic.load(Relaxed) == MAGIC && (*bytes as u64).checked_add(ring) == Some(count)
        });
        let bytes = bytes.ok_or_else(other)?;
        Words::over(head.fd, bytes, chunks, reads, ring, path)
    }

    fn over(fd: OwnedFd, bytes: usize, chunks: usize, reads: usize, ring: u64, path: &Path) -> Result<Words> {
        let map = memmap2::MmapOptions::new().len(bytes).map_raw(&fd).doing("map", path)?;
        let head = map.as_ptr().cast();
        Ok(Words { fd, map, head, chunks, reads, ring })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(super) fn token(&self) -> u64 {
        self.token.load(Relaxed)
    }

    pub(super) fn ring(&self) -> u64 {
        self.ring
    }

    /// Where in the file the ring begins.
    pub(super) fn ring_at(&self) -> u64 {
        self.map.len() as u64
    }

    /// By chunk: one more than the number of its first read; 0: there is none.
    fn firsts(&self) -> &[AtomicU32] {
        // SAFETY: the map has so many bytes by `bytes_of`, aligned to 8 behind the head; for the rest see `deref`.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().add(size_of::<Head>()).cast(), self.chunks) }
    }

    fn slots(&self) -> &[Slot] {
        let at = size_of::<Head>() + (self.chunks * 4).next_multiple_of(8);
        // SAFETY: as in `firsts`.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().add(at).cast(), self.reads) }
    }

    pub(super) fn slot(&self, read: usize) -> Option<&Slot> {
        self.slots().get(read)
    }

    /// Puts down what will be read. Nobody reads then.
    pub(super) fn plan(&self, reads: &[Read]) {
        self.planned.store(0, Release);
        self.firsts().iter().for_each(|first| first.store(0, Relaxed));
        self.reached.store(0, Relaxed);
        self.full.store(0, Relaxed);
        self.stuck.store(0, Relaxed);
        for (number, (read, slot)) in reads.iter().zip(self.slots()).enumerate() {
            slot.from.store(read.from, Relaxed);
            slot.bytes.store(read.bytes, Relaxed);
            slot.at.store(read.at, Relaxed);
            slot.last.store(read.last, Relaxed);
            slot.left.store(read.uses, Relaxed);
            slot.state.store(PLANNED, Relaxed);
            if let Some(first) = self.firsts().get(read.chunk as usize) {
                slot.next.store(first.swap(number as u32 + 1, Relaxed), Relaxed);
            }
        }
        self.planned.store(reads.len().min(self.reads) as u32, Release);
    }

    /// The read that has these bytes of a chunk.
    pub(super) fn find(&self, chunk: usize, offset: u64, end: u64) -> Option<(usize, &Slot)> {
        let planned = self.planned.load(Acquire) as usize;
        let mut next = self.firsts().get(chunk)?.load(Acquire);
        for _ in 0..MOST_READS_OF_CHUNK {
            let number = (next as usize).checked_sub(1).filter(|number| *number < planned)?;
            let slot = self.slots().get(number)?;
            let from = slot.from.load(Relaxed);
            if from <= offset && end <= from.saturating_add(slot.bytes.load(Relaxed)) {
                return Some((number, slot));
            }
            next = slot.next.load(Relaxed);
        }
        None
    }

    /// One more sample of it is used.
    pub(super) fn used(&self, slot: &Slot) {
        let before = slot.left.fetch_update(AcqRel, Relaxed, |left| left.checked_sub(1));
        if before == Ok(1) {
            self.wake(&self.freed);
        }
    }

    /// Wakes all who sleep for another number here.
    pub(super) fn wake(&self, word: &AtomicU32) {
        word.fetch_add(1, AcqRel);
        // There is nobody who could not be woken.
        let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
    }

    /// Until the word is another one, or for so long.
    pub(super) fn sleep(&self, word: &AtomicU32, seen: u32, most: Duration) {
        let most = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: most.subsec_nanos().into() };
        // It ends early, too, and who sleeps looks again.
        let _ = futex::wait(word, futex::Flags::empty(), seen, Some(&most));
    }
}
