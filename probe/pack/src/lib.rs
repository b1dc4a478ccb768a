//! Packed data sets: a folder of chunks, each of which says by itself what is in it, and a snapshot by which a record is
//! found. Format, guarantees and their reasons: docs/packs.md.

mod chunk;
mod delete;
mod deleted;
mod error;
mod extract;
mod fields;
mod folder;
mod frame;
mod id;
mod images;
mod ingest;
mod names;
mod objects;
mod pack;
mod purge;
mod rebuild;
mod record;
mod shelf;
mod shuffle;
mod snapshot;
mod state;
mod storage;
mod verify;
mod writer;

pub use chunk::{Bytes, CHUNK_OVERHEAD, Chunk, LEAST_CHUNK_BYTES, VERSION, seal};
pub use delete::{Gone, delete};
pub use deleted::{DELETED, Deleted, seal_deleted};
pub use error::{Error, Result};
pub use extract::{Extracted, extract, is_at_or_below};
pub use frame::{MOST_EXPANDED_BYTES, expanded};
pub use id::Id;
pub use images::Images;
pub use ingest::{Columns, Notice, Options, Origin, Packed, append, is_tables, pack};
pub use names::{MOST_NAME_BYTES, class_of, compare, fault_of, parted, shown};
pub use objects::{Got, Objects, Wanted};
pub use pack::Pack;
pub use purge::{Purged, purge};
pub use rebuild::{Rebuilt, rebuild};
pub use record::Record;
pub use shelf::{Place, Shelf};
pub use shuffle::{CHUNKS_BESIDE, Classes, Epoch, Layout, Plan, Read, Recipe, Share};
pub use snapshot::{ChunkFacts, Entry, MOST_DAMAGED, ReadOn, SNAPSHOT, Snapshot, build, seal_snapshot};
pub use storage::{Disk, Out, Storage};
pub use verify::{Fault, Verified, verify};
pub use writer::{About, Writer, chunk_compressed, chunk_of};
