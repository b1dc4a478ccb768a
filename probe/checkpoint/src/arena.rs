//! Memory that snapshots are copied into: mapped once, populated once, used again for every save.
//!
//! The first touch of fresh memory costs ten to fifty times what its reuse costs, so it is paid before the first save
//! (`Saver::prepare`) and never again unless the tensors grow.

use crate::deaf::StartsDeaf;
use crate::error::{Doing, Result};
use crate::image::BLOCK;
use memmap2::{Advice, MmapMut, MmapRaw};
use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

/// Locks, also after a thread died holding it: everything kept under these locks is whole between statements.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Page-aligned anonymous memory, accessed through raw pointers alone: while copiers write one part, nobody holds a
/// reference to another.
#[derive(Debug)]
pub(crate) struct Arena {
    map: ManuallyDrop<MmapRaw>,
    pid: u32,
}

impl Arena {
    fn new(bytes: usize) -> Result<Arena> {
        let named = Path::new("memory for a snapshot");
        let map = MmapMut::map_anon(bytes).doing("map", named)?;
        // Each may be refused (kernels without huge pages, or before 5.14); then pages are merely small, or dearer to
        // fork. A forked loader worker must not inherit the arena: writing to a page shared with it would copy that
        // page first.
        let _ = map.advise(Advice::HugePage);
        let _ = map.advise(Advice::DontFork);
        let _ = map.advise(Advice::DontDump);
        let populated = map.advise(Advice::PopulateWrite).is_ok();
        let arena = Arena { map: ManuallyDrop::new(MmapRaw::from(map)), pid: std::process::id() };
        if !populated {
            for at in (0..bytes).step_by(BLOCK as usize) {
                // SAFETY: `at` is within the mapping, which nobody else knows of yet.
                unsafe { arena.start().add(at).write_volatile(0) };
            }
        }
        Ok(arena)
    }

    /// Valid for reads and writes of `capacity` bytes for as long as the arena lives.
    pub(crate) fn start(&self) -> *mut u8 {
        self.map.as_mut_ptr()
    }

    pub(crate) fn capacity(&self) -> usize {
        self.map.len()
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // A forked child has no such mapping (`DontFork`), but may have one of its own at the same place by now.
        if self.pid == std::process::id() {
            // SAFETY: dropped here alone, and `self.map` is not used after its owner's drop.
            unsafe { ManuallyDrop::drop(&mut self.map) };
        }
    }
}

/// The arenas of a saver: at most so many, made when first needed.
#[derive(Debug)]
pub(crate) struct Arenas {
    most: usize,
    state: Mutex<State>,
    freed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    free: VecDeque<Arena>,
    in_use: usize,
    /// Of these, being populated ahead of the first need.
    preparing: usize,
}

impl Arenas {
    pub(crate) fn new(most: usize) -> Arc<Arenas> {
        Arc::new(Arenas { most, state: Mutex::default(), freed: Condvar::new() })
    }

    /// Whether `take` would not wait.
    pub(crate) fn available(&self) -> bool {
        let state = lock(&self.state);
        !state.free.is_empty() || state.preparing == 0 && state.in_use < self.most
    }

    /// Populates one, in the background. Who takes one meanwhile waits for it: populating another takes no less.
    pub(crate) fn prepare(self: &Arc<Arenas>, bytes: usize) {
        let mut state = lock(&self.state);
        if state.in_use >= self.most {
            return;
        }
        state.preparing += 1;
        state.in_use += 1;
        let arena = state.free.pop_front();
        drop(state);
        let arenas = self.clone();
        let populate = move || {
            let mut lent = Lent { arena, arenas };
            // Whatever fails here fails again, and is reported, when an arena is taken.
            let _ = lent.reach(bytes);
            lock(&lent.arenas.state).preparing -= 1;
        };
        let _deaf = StartsDeaf::new();
        if thread::Builder::new().name("ckpt-prepare".into()).spawn(populate).is_err() {
            let mut state = lock(&self.state);
            (state.preparing, state.in_use) = (state.preparing - 1, state.in_use - 1);
        }
    }

    /// An arena of at least so many bytes; waits while all are in use.
    pub(crate) fn take(self: &Arc<Arenas>, bytes: usize) -> Result<Lent> {
        let mut state = lock(&self.state);
        let found = loop {
            if let Some(arena) = state.free.pop_front() {
                break Some(arena);
            }
            if state.preparing == 0 && state.in_use < self.most {
                break None;
            }
            state = self.freed.wait(state).unwrap_or_else(PoisonError::into_inner);
        };
        state.in_use += 1;
        drop(state);
        let mut lent = Lent { arena: found, arenas: self.clone() };
        lent.reach(bytes)?;
        Ok(lent)
    }
}

/// An arena until it is given back, which its drop does.
#[derive(Debug)]
pub(crate) struct Lent {
    arena: Option<Arena>,
    arenas: Arc<Arenas>,
}

impl Lent {
    fn reach(&mut self, bytes: usize) -> Result<()> {
        if self.arena.as_ref().is_none_or(|arena| arena.capacity() < bytes) {
            // The old one goes before the new one comes: a model fills memory but once. A little to spare, so that a
            // few tensors more do not map anew each time.
            self.arena = None;
            let roomy = (bytes + bytes / 32).max(BLOCK as usize).next_multiple_of(2 << 20);
            self.arena = Some(Arena::new(roomy)?);
        }
        Ok(())
    }

    pub(crate) fn start(&self) -> *mut u8 {
        self.arena.as_ref().map_or(std::ptr::null_mut(), Arena::start)
    }

    pub(crate) fn capacity(&self) -> usize {
        self.arena.as_ref().map_or(0, Arena::capacity)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // The lock may have been held when a child was forked, and is held for ever there.
        if self.arena.as_ref().is_some_and(|arena| arena.pid != std::process::id()) {
            return;
        }
        let mut state = lock(&self.arenas.state);
        state.in_use -= 1;
        // The one used last comes first: its pages are likeliest to be in cache, and a second is rarely needed.
        if let Some(arena) = self.arena.take() {
            state.free.push_front(arena);
        }
        drop(state);
        self.arenas.freed.notify_all();
    }
}
