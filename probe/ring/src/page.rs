//! A process's knobs in shared memory. The process makes the page and hands it to the collector; see `turn.rs` for
//! who writes what, and why nothing has to wait.

use crate::error::{Error, Result};
use crate::layout::{pair, unpair};
use crate::mapping::Mapping;
use crate::turn::{Answer, RequestNumber, Slot, Standing};
use std::os::fd::OwnedFd;

/// Knobs that a process may have at a time.
pub const SLOTS: u32 = 64;

const MAGIC: u64 = u64::from_le_bytes(*b"STLLKNOB");
/// Version of the page's layout.
pub const PAGE_VERSION: u32 = 1;

/// Offsets of the header's words.
const MAGIC_AT: usize = 0;
/// Low half: version of the layout, high half: slots.
const VERSION_AT: usize = 1;
const TURNED_AT: usize = 2;
const SLOTS_AT: usize = 8;
const SLOT_WORDS: usize = 4;
const BYTES: usize = (SLOTS_AT + SLOTS as usize * SLOT_WORDS) * 8;

/// The words of knob `slot`; `None` for a number that no page has.
#[inline]
fn words(mapping: &Mapping, slot: u32) -> Option<Slot<'_>> {
    if slot >= SLOTS {
        return None;
    }
    let at = SLOTS_AT + slot as usize * SLOT_WORDS;
    let [requested, request, applied, answer] = &mapping.words()[at..at + SLOT_WORDS] else { return None };
    Some(Slot { requested, request, applied, answer })
}

/// The side of the process whose knobs they are. One thread at a time writes.
#[derive(Debug)]
pub struct JobSide(Mapping);

impl JobSide {
    /// Makes a page without knobs and gives the descriptor to hand to the collector.
    ///
    /// # Errors
    /// [`Error::System`] when the kernel refuses the memory.
    pub fn create() -> Result<(JobSide, OwnedFd)> {
        let (mapping, fd) = Mapping::create("stallscope-knobs", BYTES)?;
        mapping.store(VERSION_AT, pair(PAGE_VERSION, SLOTS));
        mapping.store(MAGIC_AT, MAGIC);
        Ok((JobSide(mapping), fd))
    }

    /// The same in a new page, for when the descriptor was lost.
    ///
    /// # Errors
    /// As [`JobSide::create`].
    pub fn copy(&self) -> Result<(JobSide, OwnedFd)> {
        let (copy, fd) = JobSide::create()?;
        (TURNED_AT..BYTES / 8).for_each(|at| copy.0.store(at, self.0.load(at)));
        Ok((copy, fd))
    }

    /// Something else than before when a request has come; one atomic load.
    #[inline]
    pub fn turned(&self) -> u64 {
        self.0.load(TURNED_AT)
    }

    /// What was last asked of `slot`, the value in any range; of a knob that is gone perhaps.
    pub fn request(&self, slot: u32) -> (RequestNumber, u64) {
        words(&self.0, slot).map_or_else(Default::default, Slot::request)
    }

    /// `value` is in force for the knob in `slot`, and that is how request `number` stands.
    pub fn answer(&self, slot: u32, number: RequestNumber, answer: Answer, value: u64) {
        if let Some(words) = words(&self.0, slot) {
            words.answer(number, answer, value);
        }
    }
}

/// The side that turns.
#[derive(Debug)]
pub struct CollectorSide {
    mapping: Mapping,
    turned: u64,
}

impl CollectorSide {
    /// Takes over the page behind `fd` where an earlier collector left it.
    ///
    /// # Errors
    /// [`Error::NotAPage`] for anything that is not a sealed memfd of the right size and header, [`Error::System`]
    /// when it cannot be mapped.
    pub fn open(fd: &OwnedFd) -> Result<CollectorSide> {
        let (mapping, _) = Mapping::open(fd, BYTES, BYTES..=BYTES, Error::NotAPage)?;
        if mapping.load(MAGIC_AT) != MAGIC {
            return Err(Error::NotAPage("it does not begin like one"));
        }
        if unpair(mapping.load(VERSION_AT)) != (PAGE_VERSION, SLOTS) {
            return Err(Error::NotAPage("it has another layout; use the same release on both sides"));
        }
        let turned = mapping.load(TURNED_AT);
        Ok(CollectorSide { mapping, turned })
    }

    /// What the page says was last asked of `slot`, by this collector or an earlier one.
    pub fn requested(&self, slot: u32) -> (RequestNumber, u64) {
        words(&self.mapping, slot).map_or_else(Default::default, Slot::request)
    }

    /// Asks for `value` and rings.
    pub fn ask(&mut self, slot: u32, number: RequestNumber, value: u64) {
        if let Some(words) = words(&self.mapping, slot) {
            words.ask(number, value);
            self.ring();
        }
    }

    /// Lets the job look at all requests again.
    pub fn ring(&mut self) {
        self.turned = self.turned.wrapping_add(1);
        self.mapping.store(TURNED_AT, self.turned);
    }

    /// How the knob in `slot` stands, by the job's word.
    pub fn standing(&self, slot: u32) -> Standing {
        words(&self.mapping, slot).map_or_else(Default::default, Slot::standing)
    }
}
