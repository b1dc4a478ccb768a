//! Deletes files of a pack: marks their records. Their bytes stay in their chunks until these are purged.

use crate::error::{Error, Result};
use crate::folder::{lock, to_change};
use crate::names::{class_of, shown};
use crate::pack::Pack;
use crate::rebuild;
use crate::state::State;
use crate::storage::Storage;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::Path;

/// What came of deleting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gone {
    /// Files that the pack has no more.
    pub files: u64,
    /// Of these files.
    pub bytes: u64,
    /// Files that the pack still has.
    pub left: u64,
    /// How many sentences there were.
    pub problems: u64,
}

/// Deletes the files of these names, and all below the folders of these names. All of them are gone at once, for those who
/// open the pack from then on. `problem` hears a sentence for each name that the pack does not have; one that is deleted already is
/// none, so that a deletion that was interrupted can be run again.
///
/// # Errors
/// There is no pack, another user's link leads to it, another process writes to it, or others' labels would change. Nothing is deleted then, or the storage
/// failed at the last step and the next change of the pack makes it whole.
pub fn delete(
    dir: &Path,
    names: &[Vec<u8>],
    storage: &dyn Storage,
    problem: &mut dyn FnMut(&str),
) -> Result<Gone> {
    let folder = to_change(dir)?;
    Pack::open_in(&folder)?;
    let _lock = lock(&folder)?;
    let lags = Pack::open_in(&folder)?.other_deletions().is_some();
    let mut state = State::read_whole(&folder, storage, &|_| false)?;
    let mut asked: HashMap<&[u8], bool> =
        names.iter().map(|name| (name.strip_suffix(b"/").unwrap_or(name), false)).collect();
    let mut lengths: Vec<usize> = asked.keys().map(|name| name.len()).collect();
    lengths.sort_unstable();
    lengths.dedup();
    let mut gone = Gone::default();
    let mut going: HashSet<Vec<u8>> = HashSet::new();
    let live = state.live();
    for record in state.chunks.iter().flat_map(|chunk| &chunk.records) {
        let mut is_asked = false;
        for wanted in up(&record.name, &lengths) {
            if let Some(found) = asked.get_mut(wanted) {
                (*found, is_asked) = (true, true);
            }
        }
        if let Some(at) = live.get(&*record.name).filter(|_| is_asked)
            && going.insert(record.name.clone())
        {
            gone.files += 1;
            gone.bytes += state.record(*at).bytes;
        }
    }
    gone.left = live.len() as u64 - gone.files;
    let mut lacking: Vec<&[u8]> = asked.iter().filter(|(_, found)| !**found).map(|(name, _)| *name).collect();
    lacking.sort_unstable();
    for name in lacking {
        problem(&format!("{} is not in {}", shown(name), dir.display()));
        gone.problems += 1;
    }
    if !state.has_labels() {
        keeps_labels(live.keys().copied(), &going, dir)?;
    }
    drop(live);
    if gone.files == 0 && !lags {
        return Ok(gone);
    }
    // Older records of these names as well, which would count again.
    for chunk in &state.chunks {
        for (at, record) in chunk.records.iter().enumerate() {
            if going.contains(&record.name) {
                state.deleted.mark(chunk, at);
            }
        }
    }
    state.deleted.write(&folder, state.pack(), storage)?;
    rebuild::write(&folder, &state.chunks, &state.deleted, storage)?;
    Ok(gone)
}

/// A name, and the folders around it, as far as they have one of these lengths: a name of 64 bytes on disk may lie in two thousand
/// folders, and looking up each of them takes as long as it has bytes.
fn up<'a>(name: &'a [u8], lengths: &[usize]) -> impl Iterator<Item = &'a [u8]> {
    let fits = lengths.iter().map_while(|length| Some((name.get(..*length)?, name.get(*length))));
    fits.filter(|(_, next)| next.is_none_or(|next| *next == b'/')).map(|(part, _)| part)
}

/// A class's number is its place among the sorted folders: without one of them, those behind it would have other numbers.
fn keeps_labels<'a>(
    names: impl Iterator<Item = &'a [u8]>,
    going: &HashSet<Vec<u8>>,
    dir: &Path,
) -> Result<()> {
    let (mut before, mut after) = (BTreeSet::new(), BTreeSet::new());
    for name in names {
        let Some(class) = class_of(name) else { continue };
        before.insert(class);
        if !going.contains(name) {
            after.insert(class);
        }
    }
    let lost = before.iter().find(|class| !after.contains(*class));
    match lost.and_then(|lost| Some((lost, after.iter().find(|class| *class > lost)?))) {
        None => Ok(()),
        Some((lost, moved)) => Err(Error::Refused(format!(
            "nothing was deleted: {} would be left without a file, so that {} would get another label; leave one file in it, or pack what is to stay of {} into a new folder",
            shown(lost),
            shown(moved),
            dir.display()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_folders_around_a_name_those_are_looked_up_that_may_have_been_asked_for() {
        let name = b"a/bc//d";
        let found = |lengths: &[usize]| up(name, lengths).map(<[u8]>::to_vec).collect::<Vec<_>>();
        assert_eq!(found(&[1, 2, 3, 4, 5, 6, 7, 8]), [&b"a"[..], b"a/bc", b"a/bc/", b"a/bc//d"]);
        assert_eq!(found(&[4]), [b"a/bc"]);
        assert_eq!(found(&[8]), [b""; 0]);
    }
}
