//! Which blocks are free.

use std::collections::{BTreeMap, BTreeSet};

/// Blocks one behind the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) first: u32,
    pub(crate) blocks: u32,
}

impl Run {
    pub(crate) fn end(self) -> u32 {
        self.first + self.blocks
    }
}

/// The free ones of the blocks below `end`. Who takes some gets them in as few runs as the largest free ones allow.
#[derive(Clone, Debug)]
pub(crate) struct Blocks {
    end: u32,
    free: u32,
    by_first: BTreeMap<u32, u32>,
    by_length: BTreeSet<(u32, u32)>,
}

impl Blocks {
    pub(crate) fn new(end: u32) -> Blocks {
        let mut blocks = Blocks { end: 0, free: 0, by_first: BTreeMap::new(), by_length: BTreeSet::new() };
        blocks.grow(end);
        blocks
    }

    pub(crate) fn end(&self) -> u32 {
        self.end
    }

    #[cfg(test)]
    pub(crate) fn free(&self) -> u32 {
        self.free
    }

    /// `count` blocks; `None`: so many are not free.
    pub(crate) fn take(&mut self, count: u32) -> Option<Vec<Run>> {
        if count > self.free {
            return None;
        }
        let mut taken = Vec::with_capacity(1);
        let mut left = count;
        while left > 0 {
            // The smallest run that holds all of it, else the largest of all.
            let fit = self.by_length.range((left, 0)..).next().or_else(|| self.by_length.last());
            let (length, first) = *fit?;
            let run = Run { first, blocks: length.min(left) };
            self.remove(Run { first, blocks: length });
            self.insert(Run { first: run.end(), blocks: length - run.blocks });
            self.free -= run.blocks;
            left -= run.blocks;
            taken.push(run);
        }
        Some(taken)
    }

    /// What lies beyond the end is not there any more and does not come back.
    pub(crate) fn give(&mut self, run: Run) {
        let blocks = run.end().min(self.end).saturating_sub(run.first);
        if blocks == 0 {
            return;
        }
        self.free += blocks;
        let mut whole = Run { first: run.first, blocks };
        if let Some((first, blocks)) = self.by_first.range(..run.first).next_back()
            && first + blocks == run.first
        {
            let before = Run { first: *first, blocks: *blocks };
            self.remove(before);
            whole = Run { first: before.first, blocks: before.blocks + whole.blocks };
        }
        if let Some(blocks) = self.by_first.get(&whole.end()) {
            let after = Run { first: whole.end(), blocks: *blocks };
            self.remove(after);
            whole.blocks += after.blocks;
        }
        self.insert(whole);
    }

    /// More blocks, all of them free.
    pub(crate) fn grow(&mut self, end: u32) {
        if end > self.end {
            let more = Run { first: self.end, blocks: end - self.end };
            self.end = end;
            self.give(more);
        }
    }

    /// Fewer blocks. Those beyond that are taken remain so until they are given back, and then vanish.
    pub(crate) fn shrink(&mut self, end: u32) {
        self.end = self.end.min(end);
        while let Some((first, blocks)) =
            self.by_first.last_key_value().map(|(first, blocks)| (*first, *blocks))
            && first + blocks > end
        {
            self.remove(Run { first, blocks });
            let kept = end.saturating_sub(first);
            self.insert(Run { first, blocks: kept });
            self.free -= blocks - kept;
        }
    }

    fn insert(&mut self, run: Run) {
        if run.blocks > 0 {
            self.by_first.insert(run.first, run.blocks);
            self.by_length.insert((run.blocks, run.first));
        }
    }

    fn remove(&mut self, run: Run) {
        self.by_first.remove(&run.first);
        self.by_length.remove(&(run.blocks, run.first));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_block_is_given_twice_and_none_is_lost(
            steps in prop::collection::vec((0u8..10, 0u32..40), 1..200),
        ) {
            let mut blocks = Blocks::new(100);
            let mut end = 100;
            let mut taken: Vec<Vec<Run>> = Vec::new();
            let mut owner = vec![false; 400];
            for (what, amount) in steps {
                match what {
                    0..5 => match blocks.take(amount) {
                        Some(runs) => {
                            prop_assert_eq!(runs.iter().map(|run| run.blocks).sum::<u32>(), amount);
                            for block in runs.iter().flat_map(|run| run.first..run.end()) {
                                prop_assert!(block < end, "block {} of {}", block, end);
                                prop_assert!(!owner[block as usize], "block {} was given twice", block);
                                owner[block as usize] = true;
                            }
                            taken.push(runs);
                        }
                        None => prop_assert!(blocks.free() < amount),
                    },
                    5..8 if !taken.is_empty() => {
                        for run in taken.swap_remove(amount as usize % taken.len()) {
                            blocks.give(run);
                            owner[run.first as usize..run.end() as usize].fill(false);
                        }
                    }
                    8 => {
                        end = (end / 2).max(amount);
                        let before = blocks.end();
                        if end <= before { blocks.shrink(end) } else { blocks.grow(end) }
                    }
                    // Grows only when nobody holds blocks beyond the end, as the space does.
                    9 if !owner[end as usize..].contains(&true) => {
                        end += amount;
                        blocks.grow(end);
                    }
                    _ => {}
                }
                prop_assume!(end < 400);
                if what == 8 && owner[end as usize..].contains(&true) {
                    // What the space moves down, or lets go.
                    for runs in &mut taken {
                        for run in std::mem::take(runs) {
                            let kept = end.min(run.end()).saturating_sub(run.first);
                            if kept > 0 {
                                runs.push(Run { first: run.first, blocks: kept });
                            }
                            owner[run.first.max(end).min(run.end()) as usize..run.end() as usize].fill(false);
                        }
                    }
                }
                let free = owner[..end as usize].iter().filter(|taken| !**taken).count();
                prop_assert_eq!(blocks.free() as usize, free);
            }
        }
    }

    #[test]
    fn neighbours_become_one_run_again() {
        let mut blocks = Blocks::new(9);
        let all: Vec<Run> = (0..3).flat_map(|_| blocks.take(3).unwrap()).collect();
        assert_eq!(blocks.take(1), None);
        for run in [all[0], all[2], all[1]] {
            blocks.give(run);
        }
        assert_eq!(blocks.take(9), Some(vec![Run { first: 0, blocks: 9 }]));
    }

    #[test]
    fn free_blocks_that_lie_apart_hold_one_sample() {
        let mut blocks = Blocks::new(8);
        let all: Vec<Run> = (0..8).flat_map(|_| blocks.take(1).unwrap()).collect();
        for run in all.iter().step_by(2) {
            blocks.give(*run);
        }
        assert_eq!(blocks.take(4).unwrap().len(), 4);
    }
}
