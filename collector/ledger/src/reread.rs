//! Whether a job reads the same data from storage in every epoch, so that memory could keep it.

use stallscope_model::{LoaderEpochs, RankSummary};
use stallscope_units::percent_in_words;
use std::collections::{BTreeMap, HashSet};

/// Less is not worth a word.
const LEAST_BYTES: u64 = 1 << 20;

/// Of what the first epoch read: less is none.
const NEXT_TO_NOTHING: f64 = 0.05;
/// A data set of which less than this is read again has most of it in memory.
const MUCH_LESS: f64 = 0.5;

/// A data set that is read again in every epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reread {
    pub loader: u16,
    /// About the size of the data set: what an epoch reads in all ranks together, of which each draws from all of it.
    pub bytes: u64,
    /// Whole epochs of the rank that had fewest.
    pub epochs: u64,
}

/// The largest such data set. That takes two whole epochs of every rank that iterates the loader, counted bytes, a data
/// set with a length, as a stream need not be the same again, and a later epoch that read at least half of what the
/// first one did: else the page cache has most of it.
pub fn reread(epochs: &[LoaderEpochs], ranks: &[RankSummary]) -> Option<Reread> {
    let mut loaders: BTreeMap<u16, Vec<&LoaderEpochs>> = BTreeMap::new();
    epochs.iter().for_each(|of| loaders.entry(of.loader).or_default().push(of));
    let has_length: HashSet<(u32, u16)> = ranks
        .iter()
        .flat_map(|rank| rank.facts.loaders.iter().map(move |facts| (rank.facts.rank, facts)))
        .filter(|(_, facts)| facts.dataset_len.is_some())
        .map(|(rank, facts)| (rank, facts.loader))
        .collect();
    // Ranks elsewhere read a part of each epoch too.
    let all = ranks.iter().map(|rank| u64::from(rank.facts.world_size)).max().unwrap_or(1).max(1);
    let found = loaders
        .into_iter()
        .filter(|(loader, mine)| mine.iter().all(|of| has_length.contains(&(of.rank, *loader))));
    found.filter_map(|(loader, mine)| of_loader(loader, &mine, all)).max_by_key(|found| found.bytes)
}

/// What the last epochs read from storage, as a share of what the first ones did, of all loaders in training; `None` where that is
/// not known or less than a mebibyte.
fn last_of_first(epochs: &[LoaderEpochs]) -> Option<f64> {
    let sum = |of: fn(&LoaderEpochs) -> u64| epochs.iter().map(of).fold(0, u64::saturating_add);
    let (first, last) = (sum(|of| of.first_read_bytes), sum(|of| of.last_read_bytes));
    (epochs.iter().all(|of| of.whole >= 2) && first >= LEAST_BYTES).then(|| last as f64 / first as f64)
}

/// Whether the first epochs read from storage and the last ones next to nothing, of all loaders in training: the waits of the first do
/// not come again for as long as memory keeps what it has.
pub(crate) fn only_at_first(epochs: &[LoaderEpochs]) -> bool {
    last_of_first(epochs).is_some_and(|share| share < NEXT_TO_NOTHING)
}

/// Behind what [`last_read`] says of such a job.
pub(crate) const WAITS_ARE_OVER: &str =
    ", so that the waits of the first one are over for as long as memory keeps the data";

/// Says so where the last epochs read much less than the first ones, as memory has most of the data by then.
pub(crate) fn last_read(epochs: &[LoaderEpochs]) -> Option<String> {
    match last_of_first(epochs)? {
        ..NEXT_TO_NOTHING => Some("the last epoch read next to nothing from storage".to_owned()),
        share @ NEXT_TO_NOTHING..MUCH_LESS => Some(format!(
            "the last epoch read {} of what the first one did from storage",
            percent_in_words(share)
        )),
        _ => None,
    }
}

/// `all`: ranks of the whole job.
fn of_loader(loader: u16, mine: &[&LoaderEpochs], all: u64) -> Option<Reread> {
    let whole = mine.iter().map(|of| of.whole).min().filter(|whole| *whole >= 2)?;
    let sum = |of: fn(&LoaderEpochs) -> u64| mine.iter().map(|one| of(one)).fold(0, u64::saturating_add);
    let (first, last) = (sum(|of| of.first_read_bytes), sum(|of| of.last_read_bytes));
    if last < LEAST_BYTES || (last as f64) < first as f64 * MUCH_LESS {
        return None;
    }
    let elsewhere = all.max(mine.len() as u64) as f64 / mine.len() as f64;
    let bytes = (first.max(last) as f64 * elsewhere) as u64;
    Some(Reread { loader, bytes, epochs: whole })
}

#[cfg(test)]
mod tests {
    use super::*;
    use stallscope_model::{Checkpoints, LoaderFacts, RankFacts};

    fn rank(rank: u32, world_size: u32, dataset_len: Option<u64>) -> RankSummary {
        let loaders = vec![LoaderFacts { dataset_len, ..LoaderFacts::default() }];
        RankSummary {
            facts: RankFacts { rank, world_size, loaders, ..RankFacts::default() },
            phases: Vec::new(),
            workers: Vec::new(),
            checkpoints: Checkpoints::default(),
        }
    }

    fn epochs(rank: u32, whole: u64, first: u64, last: u64) -> LoaderEpochs {
        LoaderEpochs {
            rank,
            whole,
            first_read_bytes: first << 20,
            last_read_bytes: last << 20,
            ..LoaderEpochs::default()
        }
    }

    fn mebibytes(epochs: &[LoaderEpochs], ranks: &[RankSummary]) -> Option<u64> {
        reread(epochs, ranks).map(|found| found.bytes >> 20)
    }

    #[test]
    fn only_what_later_epochs_read_again_is_found() {
        let alone = [rank(0, 1, Some(1000))];
        assert_eq!(mebibytes(&[epochs(0, 3, 100, 90)], &alone), Some(100));
        assert_eq!(mebibytes(&[epochs(0, 1, 100, 100)], &alone), None, "one epoch says nothing of the next");
        assert_eq!(mebibytes(&[epochs(0, 3, 100, 40)], &alone), None, "the page cache has most of it");
        assert_eq!(mebibytes(&[epochs(0, 3, 0, 0)], &alone), None, "nobody counts");
        assert_eq!(mebibytes(&[epochs(0, 3, 100, 90)], &[rank(0, 1, None)]), None, "a stream");
    }

    #[test]
    fn epochs_after_which_memory_has_the_data_are_found() {
        assert!(only_at_first(&[epochs(0, 2, 100, 4)]));
        assert!(!only_at_first(&[epochs(0, 2, 100, 6)]), "a part is read again");
        assert!(!only_at_first(&[epochs(0, 1, 100, 0)]), "the next epoch is not over");
        assert!(!only_at_first(&[epochs(0, 3, 0, 0)]), "nothing was read, or nobody counts");
        assert!(!only_at_first(&[epochs(0, 3, 100, 0), epochs(1, 3, 100, 90)]));
        assert!(!only_at_first(&[]));
    }

    #[test]
    fn what_the_last_epoch_read_is_named_where_it_is_much_less() {
        let named = |last| last_read(&[epochs(0, 2, 100, last)]);
        assert_eq!(named(4).as_deref(), Some("the last epoch read next to nothing from storage"));
        assert_eq!(
            named(8).as_deref(),
            Some("the last epoch read 8.0% of what the first one did from storage")
        );
        assert_eq!(named(60), None);
    }

    #[test]
    fn ranks_read_a_part_of_an_epoch_each() {
        let here = [epochs(0, 2, 100, 100), epochs(1, 2, 100, 100)];
        assert_eq!(mebibytes(&here, &[rank(0, 2, Some(9)), rank(1, 2, Some(9))]), Some(200));
        assert_eq!(mebibytes(&here, &[rank(0, 8, Some(9)), rank(1, 8, Some(9))]), Some(800));
    }
}
