//! Which files are held: what was seen of a job's files goes in, what to hold and what to let go comes out. Knows no file and
//! no clock of its own.
//!
//! Where each file is read once a pass, in an order that a shuffle makes, one set of files is as good as another of its size, if
//! only it stays the same (MinIO's rule): so what is held stays held, whether or not it is read at the moment.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;

/// A file: its folder's number, and its name there.
pub(crate) type Name = (u32, OsString);

/// Files that are known at most; of others that are opened there is only their number.
const MOST_KNOWN: usize = 1 << 18;
/// Opens that come again, after which a job is known to read its files again and again. A few come from loaders that open a file
/// twice for one sample, while few files are known.
const AGAIN: u64 = 8;
/// An open so many other opens after the last one of that file is a further use of it, or half as many as files are known.
const APART: u64 = 64;
/// And so is one that comes so much later.
const LATER_MS: u64 = 10_000;

#[derive(Debug, Default)]
pub(crate) struct Plan {
    files: HashMap<Name, File>,
    /// Files that may be held, those first that were opened longest ago: their next use is the nearest.
    waiting: BTreeMap<u64, Name>,
    /// In order of holding.
    held: BTreeMap<u64, Name>,
    holds: u64,
    opens: u64,
    again: u64,
    unknown: u64,
}

#[derive(Debug)]
struct File {
    /// Number of its last open, and when that was.
    last: u64,
    last_ms: u64,
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
            state: State::Seen,
            own: 0,
        });
        if file.own > 0 {
            file.own -= 1;
            return;
        }
        self.opens += 1;
        if file.last > 0 {
            let apart = APART.min(known as u64 / 2).max(1);
            let is_later = now_ms.saturating_sub(file.last_ms) >= LATER_MS;
            self.again += u64::from(is_later || self.opens - file.last > apart);
            self.waiting.remove(&file.last);
        }
        (file.last, file.last_ms) = (self.opens, now_ms);
        if file.state == State::Seen {
            self.waiting.insert(file.last, name);
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
        self.files.remove(name);
    }

    pub(crate) fn folder_gone(&mut self, folder: u32) {
        self.files.retain(|name, _| name.0 != folder);
        self.waiting.retain(|_, name| name.0 != folder);
        self.held.retain(|_, name| name.0 != folder);
    }

    /// Whether the job was seen to read its files again and again. What is read once is not held.
    pub(crate) fn is_reread(&self) -> bool {
        self.again >= AGAIN
    }

    /// The next file to hold.
    pub(crate) fn order(&mut self) -> Option<Name> {
        if !self.is_reread() {
            return None;
        }
        let (_, name) = self.waiting.pop_first()?;
        let file = self.files.get_mut(&name)?;
        file.state = State::Ordered;
        // The holder opens it once.
        file.own += 1;
        Some(name)
    }

    /// It was not held for now: there was no headroom.
    pub(crate) fn not_now(&mut self, name: &Name) {
        if let Some(file) = self.files.get_mut(name).filter(|file| file.state == State::Ordered) {
            file.state = State::Seen;
            self.waiting.insert(file.last, name.clone());
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

    /// What was held last, to be let go for want of memory.
    pub(crate) fn let_one_go(&mut self) -> Option<Name> {
        let (_, name) = self.held.pop_last()?;
        let file = self.files.get_mut(&name)?;
        file.state = State::Seen;
        self.waiting.insert(file.last, name.clone());
        Some(name)
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
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn name(number: usize) -> Name {
        (number as u32 % 3, format!("{number}.jpg").into())
    }

    /// Opens of a shuffled pass, by a multiplier that has no factor with the number of files.
    fn pass(plan: &mut Plan, files: usize, by: usize) {
        (0..files).for_each(|at| plan.opened(name(at * by % files), 0));
    }

    fn orders(plan: &mut Plan) -> Vec<Name> {
        std::iter::from_fn(|| plan.order()).collect()
    }

    #[test]
    fn files_that_are_read_once_are_not_held() {
        let mut plan = Plan::default();
        pass(&mut plan, 1000, 7);
        assert!(plan.order().is_none());
        pass(&mut plan, 1000, 11);
        assert_eq!(orders(&mut plan).into_iter().collect::<HashSet<_>>().len(), 1000);
    }

    #[test]
    fn a_loader_that_opens_each_file_twice_for_one_sample_does_not_read_again() {
        let mut plan = Plan::default();
        for at in 0..1000 {
            // Two workers at once.
            [at, at + 1, at, at + 1].into_iter().for_each(|at| plan.opened(name(at), 0));
        }
        assert!(!plan.is_reread());
    }

    #[test]
    fn few_large_files_are_read_again_when_they_are_opened_much_later() {
        let mut plan = Plan::default();
        (0..9).for_each(|at| plan.opened(name(0), at * LATER_MS));
        assert_eq!(plan.order(), Some(name(0)));
    }

    #[test]
    fn what_is_held_stays_in_the_plan_though_nothing_more_is_seen_of_it() {
        let mut plan = Plan::default();
        pass(&mut plan, 100, 7);
        pass(&mut plan, 100, 11);
        let first = plan.order().unwrap();
        assert!(plan.is_held(&first));
        // The holder's own open comes, and then others' for many passes.
        plan.opened(first.clone(), 0);
        (0..1000).for_each(|at| plan.opened(name(1 + at % 40), 0));
        assert!(!orders(&mut plan).contains(&first), "it is held already");
        assert_eq!(plan.let_one_go(), Some(first));
    }

    #[test]
    fn what_was_opened_longest_ago_comes_first() {
        let mut plan = Plan::default();
        pass(&mut plan, 100, 7);
        pass(&mut plan, 50, 3);
        let ordered = orders(&mut plan);
        let newest: HashSet<Name> = ordered[50..].iter().cloned().collect();
        assert_eq!(newest, (0..50).map(name).collect());
    }

    #[test]
    fn what_was_written_to_is_not_held_again_and_what_replaced_it_may_be() {
        let mut plan = Plan::default();
        pass(&mut plan, 100, 7);
        pass(&mut plan, 100, 11);
        let (one, other) = (plan.order().unwrap(), plan.order().unwrap());
        plan.written(&one);
        assert!(!plan.is_held(&one), "it was written to while it was read");
        assert!(plan.is_held(&other));
        plan.gone(&other);
        assert!(!plan.is_held(&other));
        plan.opened(one.clone(), 0);
        plan.opened(other.clone(), 0);
        let next = orders(&mut plan);
        assert!(!next.contains(&one) && next.contains(&other));
    }

    #[test]
    fn files_without_end_are_counted_and_not_kept() {
        let mut plan = Plan::default();
        (0..MOST_KNOWN + 10).for_each(|at| plan.opened(name(at), 0));
        assert_eq!((plan.known(), plan.unknown()), (MOST_KNOWN, 10));
    }

    proptest! {
        /// Whatever comes in whatever order, no file is held twice at once.
        #[test]
        fn no_file_is_ordered_while_it_is_held(steps in prop::collection::vec((0u8..8, 0usize..12), 0..400)) {
            let mut plan = Plan::default();
            let mut ordered: Vec<Name> = Vec::new();
            let mut held: HashSet<Name> = HashSet::new();
            for (step, number) in steps {
                let file = name(number);
                match step {
                    0..3 => plan.opened(file, 0),
                    3 => plan.order().into_iter().for_each(|name| {
                        assert!(!held.contains(&name));
                        ordered.push(name);
                    }),
                    4 => ordered.pop().into_iter().for_each(|name| {
                        if plan.is_held(&name) {
                            assert!(held.insert(name));
                        }
                    }),
                    5 => plan.let_one_go().into_iter().for_each(|name| assert!(held.remove(&name))),
                    6 => {
                        plan.written(&file);
                        held.remove(&file);
                    }
                    _ => ordered.pop().into_iter().for_each(|name| plan.not_now(&name)),
                }
            }
        }
    }
}
