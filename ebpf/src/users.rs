//! Who has how many slots and sums by mount and file: what the kernel side counts as taken, and what this side counts as handed back.
//!
//! The kernel side charges a task to the user whose tree it is (tasks.h says how many slots one may have). Handing a slot
//! back is this side's work, so that each word has one side that writes it.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use aya::maps::MapData;
use memmap2::{MmapOptions, MmapRaw};
use stallscope_abi::kernel::{MAX_USERS, UserSlots, user};

use crate::Error;

#[derive(Debug)]
pub(crate) struct Users {
    map: MmapRaw,
    /// Where each user's counts are. Never taken from one whose tasks have slots.
    places: BTreeMap<u32, u16>,
}

impl Users {
    pub(crate) fn map(array: &MapData) -> Result<Users, Error> {
        let map = MmapOptions::new()
            .len(MAX_USERS as usize * size_of::<UserSlots>())
            .map_raw(array.fd().as_fd().as_raw_fd())
            .map_err(Error::system("mapping the counts of slots"))?;
        Ok(Users { map, places: BTreeMap::from([(0, user::ROOT)]) })
    }

    /// The place of user `uid`, that of one without slots if all are given away; `None` where there is none. `kept`: users
    /// whose trees are watched, whether or not they have slots by now.
    pub(crate) fn place(&mut self, uid: u32, kept: &BTreeSet<u32>) -> Option<u16> {
        if let Some(place) = self.places.get(&uid) {
            return Some(*place);
        }
        let first = user::ROOT + 1;
        let next = first + self.places.len() as u16 - 1;
        let place = if u32::from(next) < MAX_USERS {
            next
        } else {
            let idle = |(other, place): (&u32, &u16)| {
                let counts = self.counts(*place);
                let none = counts.taken == counts.returned;
                (*other != 0 && none && !kept.contains(other)).then_some((*other, *place))
            };
            let (other, place) = self.places.iter().find_map(idle)?;
            self.places.remove(&other);
            self.clear_refusals(place);
            place
        };
        self.places.insert(uid, place);
        Some(place)
    }

    /// A slot that was charged to the user at `place` is free again.
    pub(crate) fn returned(&self, place: u16) {
        for place in [place, user::EVERYBODY] {
            if u32::from(place) < MAX_USERS {
                // SAFETY: as in `counts`; the kernel side only reads this word, and no other thread writes it.
                let word = unsafe { AtomicU64::from_ptr(&raw mut (*self.at(place)).returned) };
                word.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// So many sums by mount of trees that are charged to `uid` are gone.
    pub(crate) fn mounts_returned(&self, uid: u32, count: u64) {
        // SAFETY: as in `returned`.
        self.add(uid, count, |counts| unsafe { AtomicU64::from_ptr(&raw mut (*counts).mounts_returned) });
    }

    /// So many sums by file of trees that are charged to `uid` are gone.
    pub(crate) fn files_returned(&self, uid: u32, count: u64) {
        // SAFETY: as in `returned`.
        self.add(uid, count, |counts| unsafe { AtomicU64::from_ptr(&raw mut (*counts).files_returned) });
    }

    fn add<'a>(&'a self, uid: u32, count: u64, word: impl Fn(*mut UserSlots) -> &'a AtomicU64) {
        let Some(own) = self.places.get(&uid) else { return };
        for place in [*own, user::EVERYBODY] {
            word(self.at(place)).fetch_add(count, Ordering::Relaxed);
        }
    }

    /// Tasks of `uid`'s trees that were given no slot because that user has as many as are still free.
    pub(crate) fn refused(&self, uid: u32) -> u64 {
        self.places.get(&uid).map_or(0, |place| self.counts(*place).refused)
    }

    /// Records of `uid`'s trees that were not sent because those had sent too much.
    pub(crate) fn unsent(&self, uid: u32) -> u64 {
        self.places.get(&uid).map_or(0, |place| self.counts(*place).unsent)
    }

    fn counts(&self, place: u16) -> UserSlots {
        // SAFETY: `at` is in bounds for places that `place` gives, and aligned. The kernel side writes meanwhile, word by
        // word, hence volatile.
        unsafe { ptr::read_volatile(self.at(place)) }
    }

    fn clear_refusals(&self, place: u16) {
        let at = self.at(place);
        // SAFETY: as in `counts`; the kernel side adds to both atomically.
        let both = unsafe {
            [AtomicU64::from_ptr(&raw mut (*at).refused), AtomicU64::from_ptr(&raw mut (*at).unsent)]
        };
        both.iter().for_each(|count| count.store(0, Ordering::Relaxed));
    }

    fn at(&self, place: u16) -> *mut UserSlots {
        self.map.as_mut_ptr().cast::<UserSlots>().wrapping_add(usize::from(place))
    }
}
