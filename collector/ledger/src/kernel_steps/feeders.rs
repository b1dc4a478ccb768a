use std::collections::HashMap;

/// Beyond that, threads of earlier epochs are forgotten.
pub(super) const MAX_FEEDERS: usize = 4096;
/// A worker that waited for its index and was woken by the thread is its worker.
pub(super) const CERTAIN: u32 = 8;
/// With fewer votes nobody knows.
pub(super) const ENOUGH: u32 = 4;

/// The threads of a trainer that put indices into pipes, one a worker.
///
/// A hand-over frees a place at the worker that made the batch, so that the next index goes to the same: the thread that the
/// trainer wakes names the worker, whichever message it slept for last. Whose thread it is shows by the messages before,
/// most of which are about the batch that is handed over.
#[derive(Debug, Default)]
pub(super) struct Feeders {
    votes: HashMap<u32, HashMap<u32, u32>>,
}

impl Feeders {
    pub(super) fn contains(&self, tid: u32) -> bool {
        self.votes.contains_key(&tid)
    }

    pub(super) fn insert(&mut self, tid: u32) {
        if self.votes.len() >= MAX_FEEDERS {
            self.votes.clear();
        }
        self.votes.entry(tid).or_default();
    }

    pub(super) fn vote(&mut self, tid: u32, worker: u32, votes: u32) {
        self.insert(tid);
        let count = self.votes.entry(tid).or_default().entry(worker).or_default();
        *count = count.saturating_add(votes);
    }

    /// The worker that most votes are for.
    pub(super) fn worker(&self, tid: u32) -> Option<u32> {
        let votes = self.votes.get(&tid)?;
        let (worker, most) = votes.iter().max_by_key(|(worker, count)| (**count, **worker))?;
        let all = votes.values().fold(0, |sum: u32, count| sum.saturating_add(*count));
        (*most >= ENOUGH && *most > all - most).then_some(*worker)
    }
}
