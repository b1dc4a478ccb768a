//! Which files are held: what was seen of a job's files goes in, what to hold and what to let go comes out. Knows no file and
//! no clock of its own.
//!
//! Where each file is read once a pass, in an order that a shuffle makes, one set of files is as good as another of its size, if
//! only it stays the same (MinIO's rule): so what is held stays held, whether or not it is read at the moment, for as long as a pass
//! may last by what was seen.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsString;

/// A file: its folder's number, and its name there.
pub(crate) type Name = (u32, OsString);

/// Files that are known at most; of others that are opened there is only their number.
const MOST_KNOWN: usize = 1 << 18;
/// Uses that come again, after which a job may be known to read its files again and again.
const AGAIN: u64 = 8;
/// So large a part of the files has to have come again as well: one that all workers read makes no data set of those beside it.
const AGAIN_PART: usize = 16;
/// An open so many other opens after the last one of that file is a further use of it, or half as many as files are known.
const APART: u64 = 64;
/// But none that comes so soon: some loaders open a file twice for one sample, and many workers do so at once.
const SAME_USE_MS: u64 = 500;
/// One that comes so much later is a further use in any case.
const LATER_MS: u64 = 10_000;
/// What was not used for twice the longest time between two uses of a file, and for so long, is not read any more.
const LEAST_UNUSED_MS: u64 = 600_000;
/// Only time in which the job opens files makes a file old; between two opens there is so much of it at most.
const MOST_BETWEEN_MS: u64 = 1_000;

#[derive(Debug, Default)]
pub(crate) struct Plan {
    files: HashMap<Name, File>,
    /// Files that may be held, those first that were opened longest ago: their next use is the nearest.
    waiting: BTreeMap<u64, Name>,
    /// Files that stay open and are read again; those that are held, or being read, among them.
    read_again: BTreeSet<Name>,
    /// In order of holding.
    held: BTreeMap<u64, Name>,
    holds: u64,
    opens: u64,
    again: u64,
    /// Of the files, those that came again.
    again_files: usize,
    /// When the last open was, and how much time there was in which the job opens files.
    last_ms: u64,
    active_ms: u64,
    /// Of that, between two uses of a file at most.
    longest_ms: u64,
    unknown: u64,
}

#[derive(Debug)]
struct File {
    /// Number of its last open, and when that was.
    last: u64,
    last_ms: u64,
    last_active_ms: u64,
    came_again: bool,
    state: State,
    /// Opens by the holder itself which are still to be seen.
    own: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Opened by the job.
    Seen,
    /// Being read by the holder.
    Ordered,
    /// By a number that grows.
    Held(u64),
    /// Never to be held: written to, or it cannot be.
    Barred,
}

impl Plan {
    /// Somebody opened a file.
    pub(crate) fn opened(&mut self, name: Name, now_ms: u64) {
        let known = self.files.len();
        if known >= MOST_KNOWN && !self.files.contains_key(&name) {
            self.unknown += 1;
            return;
        }
        let file = self.files.entry(name.clone()).or_insert(File {
            last: 0,
            last_ms: now_ms,
            last_active_ms: 0,
            came_again: false,
            state: State::Seen,
            own: 0,
        });
        if file.own > 0 {
            file.own -= 1;
            return;
        }
        self.opens += 1;
        self.active_ms += now_ms.saturating_sub(self.last_ms).min(MOST_BETWEEN_MS);
        self.last_ms = now_ms;
        if file.last > 0 {
            let apart = APART.min(known as u64 / 2).max(1);
            let since_ms = now_ms.saturating_sub(file.last_ms);
            let is_further = since_ms >= SAME_USE_MS && self.opens - file.last > apart;
            if since_ms >= LATER_MS || is_further {
                self.again += 1;
                self.again_files += usize::from(!std::mem::replace(&mut file.came_again, true));
                self.longest_ms = self.longest_ms.max(self.active_ms - file.last_active_ms);
            }
            self.waiting.remove(&file.last);
        }
        (file.last, file.last_ms, file.last_active_ms) = (self.opens, now_ms, self.active_ms);
        if file.state == State::Seen {
            self.waiting.insert(file.last, name);
        }
    }

    /// The job keeps a file open and reads it again, of which no open tells. To be repeated for as long as that is so.
    pub(crate) fn read_again(&mut self, name: Name, now_ms: u64) {
        if !self.files.contains_key(&name) {
            self.opened(name.clone(), now_ms);
        }
        if let Some(file) = self.files.get_mut(&name) {
            file.last_active_ms = self.active_ms;
            self.read_again.insert(name);
        }
    }

    /// Somebody wrote into a file: it is not held again.
    pub(crate) fn written(&mut self, name: &Name) {
        self.bar(name);
    }

    /// It cannot be held.
    pub(crate) fn bar(&mut self, name: &Name) {
        if let Some(file) = self.files.get_mut(name) {
            let before = std::mem::replace(&mut file.state, State::Barred);
            self.waiting.remove(&file.last);
            if let State::Held(number) = before {
                self.held.remove(&number);
            }
        }
    }

    /// Another file may have its name by now.
    pub(crate) fn gone(&mut self, name: &Name) {
        self.bar(name);
        let file = self.files.remove(name);
        self.again_files -= usize::from(file.is_some_and(|file| file.came_again));
    }

    pub(crate) fn folder_gone(&mut self, folder: u32) {
        self.files.retain(|name, _| name.0 != folder);
        self.again_files = self.files.values().filter(|file| file.came_again).count();
        self.waiting.retain(|_, name| name.0 != folder);
        self.held.retain(|_, name| name.0 != folder);
    }

    /// Whether the job was seen to read its files again and again. What is read once is not held.
    pub(crate) fn is_reread(&self) -> bool {
        self.again >= AGAIN && self.again_files >= self.files.len() / AGAIN_PART
    }

    /// The next file to hold.
    pub(crate) fn order(&mut self) -> Option<Name> {
        let name = self.next()?;
        let file = self.files.get_mut(&name)?;
        file.state = State::Ordered;
        // The holder opens it once.
        file.own += 1;
        Some(name)
    }

    /// What comes again by opens, and then what stays open: beside others that may be what the job read once at its begin.
    fn next(&mut self) -> Option<Name> {
        if self.is_reread()
            && let Some((_, name)) = self.waiting.pop_first()
        {
            return Some(name);
        }
        while let Some(name) = self.read_again.pop_first() {
            if let Some(file) = self.files.get(&name).filter(|file| file.state == State::Seen) {
                self.waiting.remove(&file.last);
                return Some(name);
            }
        }
        None
    }

    /// It was not held for now: there was no headroom.
    pub(crate) fn not_now(&mut self, name: &Name) {
        if let Some(file) = self.files.get_mut(name).filter(|file| file.state == State::Ordered) {
            file.state = State::Seen;
            self.waiting.insert(file.last, name.clone());
        }
    }

    /// It was not held while the job uses it: it may be once it is opened again.
    pub(crate) fn later(&mut self, name: &Name) {
        if let Some(file) = self.files.get_mut(name).filter(|file| file.state == State::Ordered) {
            file.state = State::Seen;
        }
    }

    /// The same, and the holder has not opened it: the next open is the job's.
    pub(crate) fn not_opened(&mut self, name: &Name) {
        self.later(name);
        if let Some(file) = self.files.get_mut(name) {
            file.own = file.own.saturating_sub(1);
        }
    }

    /// It is held now. `false`: it was written to or replaced meanwhile, and is to be let go.
    pub(crate) fn is_held(&mut self, name: &Name) -> bool {
        let ordered = self.files.get_mut(name).filter(|file| file.state == State::Ordered);
        let Some(file) = ordered else { return false };
        self.holds += 1;
        file.state = State::Held(self.holds);
        self.held.insert(self.holds, name.clone());
        true
    }

    /// What was held last: the first to be let go for want of memory.
    pub(crate) fn held_last(&self) -> Option<&Name> {
        self.held.last_key_value().map(|(_, name)| name)
    }

    /// It is held no more, and may be again.
    pub(crate) fn let_go(&mut self, name: &Name) {
        let Some(file) = self.files.get_mut(name) else { return };
        if let State::Held(number) = file.state {
            self.held.remove(&number);
            file.state = State::Seen;
            self.waiting.insert(file.last, name.clone());
        }
    }

    /// Files held that the job does not read any more: they are in the plan no longer until they are opened again. Of those that
    /// are not held as many are forgotten where others could not be known for them.
    pub(crate) fn unused(&mut self) -> Vec<Name> {
        let lasts_ms = (2 * self.longest_ms).max(LEAST_UNUSED_MS);
        let Some(before_ms) = self.active_ms.checked_sub(lasts_ms) else { return Vec::new() };
        let is_full = self.files.len() >= MOST_KNOWN;
        let mut unused = Vec::new();
        self.files.retain(|name, file| {
            if file.last_active_ms >= before_ms || file.state == State::Ordered {
                return true;
            }
            self.waiting.remove(&file.last);
            if let State::Held(number) = file.state {
                self.held.remove(&number);
                file.state = State::Seen;
                unused.push(name.clone());
                return true;
            }
            if is_full {
                self.again_files -= usize::from(file.came_again);
            }
            !is_full
        });
        unused
    }

    /// Files that are known.
    pub(crate) fn known(&self) -> usize {
        self.files.len()
    }

    /// Opens of which no account was kept.
    pub(crate) fn unknown(&self) -> u64 {
        self.unknown
    }
}

#[cfg(test)]
mod tests;
