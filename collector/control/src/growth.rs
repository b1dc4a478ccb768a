//! What a rank's workers may take yet, as the largest of them has shown.

/// The memory of a rank's workers. All run the same code on the same kind of data, so each may become as large as the
/// largest has been: those of an epoch that begins, and those that were added, are small only because they are young.
#[derive(Clone, Debug, Default)]
pub(crate) struct Workers {
    bytes: Vec<u64>,
    /// Of any of them, in this epoch or in one before.
    largest_bytes: u64,
}

impl Workers {
    /// Bytes of each worker that there is now.
    pub(crate) fn take(&mut self, bytes: &[u64]) {
        self.bytes.clear();
        self.bytes.extend_from_slice(bytes);
        let largest = bytes.iter().copied().max().unwrap_or(0);
        self.largest_bytes = self.largest_bytes.max(largest);
    }

    /// Of one more; 0 while no worker was seen.
    pub(crate) fn of_one_more(&self) -> u64 {
        self.largest_bytes
    }

    /// What any of the `count` largest gives back if it goes; 0 where fewer were seen. Smaller ones are other processes of the
    /// loader.
    pub(crate) fn least_of(&self, count: u64) -> u64 {
        let mut bytes = self.bytes.clone();
        bytes.sort_unstable_by(|a, b| b.cmp(a));
        let last = usize::try_from(count).ok().and_then(|count| count.checked_sub(1));
        last.and_then(|last| bytes.get(last)).copied().unwrap_or(0)
    }

    /// What those that there are may grow by together.
    pub(crate) fn growth_bytes(&self) -> u64 {
        self.bytes.iter().fold(0, |sum, bytes| sum.saturating_add(self.largest_bytes - bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn young_workers_may_become_as_large_as_those_before_them() {
        let mut workers = Workers::default();
        assert_eq!((workers.of_one_more(), workers.growth_bytes()), (0, 0));
        workers.take(&[300, 280]);
        assert_eq!((workers.of_one_more(), workers.growth_bytes()), (300, 20));
        assert_eq!([0, 1, 2, 3].map(|count| workers.least_of(count)), [0, 300, 280, 0]);
        workers.take(&[10, 20, 10]);
        assert_eq!((workers.of_one_more(), workers.growth_bytes()), (300, 860));
        workers.take(&[u64::MAX, 0, 0]);
        assert_eq!(workers.growth_bytes(), u64::MAX);
        workers.take(&[]);
        assert_eq!((workers.of_one_more(), workers.growth_bytes()), (u64::MAX, 0));
    }
}
