//! What a pack has on disk when it is about to be changed: all of its chunks, and what was deleted.

use crate::chunk::Chunk;
use crate::deleted::Deleted;
use crate::error::{Doing, Error, Result};
use crate::folder::{SET_ASIDE, list, read_chunk};
use crate::id::Id;
use crate::names::shown;
use crate::pack::Pack;
use crate::record::Record;
use crate::storage::Storage;
use stallscope_folder::Folder;
use std::collections::HashMap;

/// Which record: the number of its chunk, and its own within it.
pub(crate) type At = (usize, usize);

/// What is in a pack whose lock the caller holds.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// Sorted by id.
    pub(crate) chunks: Vec<Chunk>,
    pub(crate) deleted: Deleted,
}

impl State {
    /// Reads it, and removes what writing left unfinished.
    pub(crate) fn read(folder: &Folder, storage: &dyn Storage) -> Result<State> {
        let dir = folder.path();
        let listing = list(folder, dir)?;
        for name in &listing.unfinished {
            storage.remove(folder, name).doing("remove", &dir.join(name))?;
        }
        let refused = |error: Error| {
            let dir = dir.display();
            Error::Refused(format!(
                "{dir} cannot be changed: {error}. `stallscope pack rebuild --set-aside {dir}` renames what is damaged to *{SET_ASIDE} and makes a snapshot without it; files of such chunks can be packed again then"
            ))
        };
        let mut chunks: Vec<Chunk> = Vec::with_capacity(listing.chunks.len());
        for id in &listing.chunks {
            let pack = chunks.first().map(|chunk| chunk.pack);
            chunks.push(read_chunk(folder, dir, *id, pack).map_err(refused)?.1);
        }
        let deleted =
            Deleted::read_of(folder, dir, chunks.first().map(|chunk| chunk.pack)).map_err(refused)?;
        chunks.iter().try_for_each(|chunk| deleted.fits(chunk, dir)).map_err(refused)?;
        Ok(State { chunks, deleted })
    }

    /// As `read`, of a pack that is there: an error where its snapshot does not show what its chunks have, as a change would make
    /// that visible; unless all of it `is_own`, which an earlier run of the same change left.
    pub(crate) fn read_whole(
        folder: &Folder,
        storage: &dyn Storage,
        is_own: &dyn Fn(&[u8]) -> bool,
    ) -> Result<State> {
        let pack = Pack::open_in(folder)?;
        if let Some(sentence) = pack.is_stale() {
            return Err(Error::Refused(sentence));
        }
        let state = State::read(folder, storage)?;
        match state.unseen(&pack, is_own)? {
            None => Ok(state),
            Some(name) => {
                let (name, dir) = (shown(name), folder.path().display());
                Err(Error::Refused(format!(
                    "{dir} has files that its snapshot does not show, as {name}: packing was interrupted. Run it again to its end, or `stallscope pack rebuild {dir}` to show what is there"
                )))
            }
        }
    }

    /// The name of a record that counts and is not as the snapshot has it.
    fn unseen(&self, pack: &Pack, is_own: &dyn Fn(&[u8]) -> bool) -> Result<Option<&[u8]>> {
        let shown = (0..pack.snapshot().chunks())
            .map(|number| pack.snapshot().chunk(number).map(|chunk| chunk.id))
            .collect::<Result<Vec<_>>>()?;
        let hidden = |at: &At| shown.binary_search(&self.chunks[at.0].id).is_err();
        for at in self.live().into_values().filter(hidden) {
            let record = self.record(at);
            if is_own(&record.name) {
                continue;
            }
            let seen = pack.snapshot().find(&record.name)?;
            let seen = seen.map(|number| pack.snapshot().entry(number)).transpose()?;
            // Purging writes the same record once more.
            if seen.is_none_or(|seen| {
                (seen.crc, seen.bytes, seen.mtime_ns) != (record.crc, record.bytes, record.mtime_ns)
            }) {
                return Ok(Some(&record.name));
            }
        }
        Ok(None)
    }

    /// The pack's id; a new one where there is no chunk yet.
    pub(crate) fn pack(&self) -> Id {
        self.chunks.first().map_or_else(Id::random, |chunk| chunk.pack)
    }

    /// Whether labels came with the files, and not by their folders.
    pub(crate) fn has_labels(&self) -> bool {
        self.chunks.iter().any(|chunk| chunk.has_labels)
    }

    /// The id that is the latest.
    pub(crate) fn last(&self) -> Option<Id> {
        self.chunks.last().map(|chunk| chunk.id)
    }

    pub(crate) fn record(&self, (chunk, record): At) -> &Record {
        &self.chunks[chunk].records[record]
    }

    /// By name the record that counts: of those that are not deleted the one that was written last.
    pub(crate) fn live(&self) -> HashMap<&[u8], At> {
        let mut live = HashMap::new();
        for (number, chunk) in self.chunks.iter().enumerate() {
            let marks = self.deleted.of(chunk.id);
            for (at, record) in chunk.records.iter().enumerate() {
                if marks.is_none_or(|marks| !marks.is(at)) {
                    live.insert(&*record.name, (number, at));
                }
            }
        }
        live
    }
}
