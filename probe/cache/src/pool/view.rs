//! What a client sees of its space: the look-up.

use super::board::{self, Read};
use super::error::{Error, Result};
use super::layout::{Figure, Layout, Seen};
use super::memory::Memory;
use super::slots::Entry;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

/// How much is kept, and what came of fills.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    pub capacity_bytes: u64,
    /// In whole blocks, as they are taken from the capacity.
    pub kept_bytes: u64,
    pub kept_samples: u64,
    pub evictions: u64,
    pub fills: u64,
    /// Fills that the policy did not want.
    pub refused: u64,
    /// Processes that are connected.
    pub clients: u64,
    /// The control group that the memory is charged to: that of the job that started the pool.
    pub cgroup: String,
}

#[derive(Debug)]
pub(crate) struct View {
    layout: Layout,
    index: Memory,
    data: Memory,
    cgroup: String,
}

impl View {
    pub(crate) fn new(samples: u64, data_bytes: u64, cgroup: String, fds: &[OwnedFd]) -> Result<View> {
        let (layout, [index, data]) = match (Layout::new(samples, data_bytes), fds) {
            (Some(layout), [index, data]) => (layout, [index, data]),
            _ => return Err(Error::Refused("its memory did not come with its answer".into())),
        };
        let index = Memory::open(index, layout.index_bytes())?;
        let data = Memory::open(data, layout.data_bytes)?;
        Ok(View { layout, index, data, cgroup })
    }

    fn seen(&self) -> Seen<'_> {
        Seen { layout: self.layout, index: &self.index, data: &self.data }
    }

    /// A sample that is kept and was read from what `tag` names.
    #[inline]
    pub(crate) fn find(&self, id: u64, tag: u64) -> Option<Entry> {
        let entry = self.seen().slot(id)?.entry()?;
        (entry.tag == tag && entry.bytes <= self.layout.data_bytes as u64).then_some(entry)
    }

    /// Whether a sample is kept, whatever it was read from.
    #[inline]
    pub(crate) fn holds(&self, id: u64) -> bool {
        self.seen().slot(id).is_some_and(|slot| slot.entry().is_some())
    }

    /// Copies the bytes of what was found; false: they are not there any more, and what `to` holds is nothing.
    ///
    /// # Safety
    /// `to` is valid for writing as many bytes as the entry says.
    #[inline]
    pub(crate) unsafe fn copy(&self, id: u64, entry: Entry, to: *mut u8) -> bool {
        let seen = self.seen();
        let (Some(slot), Some(data)) = (seen.slot(id), seen.blocks()) else { return false };
        // SAFETY: as the caller says.
        let copied = unsafe { data.copy(entry.first, entry.bytes, to) };
        copied && slot.still(entry)
    }

    pub(crate) fn joint(&self, loader: u64) -> Read {
        board::find(self.seen(), loader)
    }

    pub(crate) fn has_left(&self) -> bool {
        self.figure(Figure::Left) != 0
    }

    pub(crate) fn capacity_bytes(&self) -> u64 {
        self.figure(Figure::CapacityBytes)
    }

    fn figure(&self, figure: Figure) -> u64 {
        self.seen().figure(figure).load(Ordering::Relaxed)
    }

    pub(crate) fn figures(&self) -> Figures {
        Figures {
            capacity_bytes: self.figure(Figure::CapacityBytes),
            kept_bytes: self.figure(Figure::KeptBytes),
            kept_samples: self.figure(Figure::KeptSamples),
            evictions: self.figure(Figure::Evictions),
            fills: self.figure(Figure::Fills),
            refused: self.figure(Figure::Refused),
            clients: self.figure(Figure::Clients),
            cgroup: self.cgroup.clone(),
        }
    }
}
