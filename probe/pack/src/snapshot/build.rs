//! Makes a snapshot of what chunks say of themselves.

use super::{ChunkFacts, MAGIC, hash};
use crate::chunk::{Chunk, HAS_LABELS, VERSION};
use crate::deleted::Deleted;
use crate::error::{Error, Result};
use crate::fields::sealed;
use crate::id::Id;
use crate::names::compare;
use crate::record::{NO_LABEL, Record};

/// Of the chunks of this pack, sorted by id, without what is deleted. Of two records of one name the one that was written later
/// counts. The same chunks and deletions give the same bytes.
///
/// # Errors
/// There are more than 4,294,967,295 records or chunks.
pub fn build(pack: Id, chunks: &[Chunk], deleted: &Deleted) -> Result<Vec<u8>> {
    let mut records: Vec<(u32, &Record)> =
        Vec::with_capacity(chunks.iter().map(|chunk| chunk.records.len()).sum());
    for (chunk, number) in chunks.iter().zip(0_u32..) {
        let marks = deleted.of(chunk.id);
        let is_there = |at: usize| marks.is_none_or(|marks| !marks.is(at));
        let there = chunk.records.iter().enumerate().filter(|(at, _)| is_there(*at));
        records.extend(there.map(|(_, record)| (number, record)));
    }
    // Stable: what was written later comes later.
    records.sort_by(|(_, one), (_, other)| compare(&one.name, &other.name));
    records.reverse();
    records.dedup_by(|(_, one), (_, other)| one.name == other.name);
    records.reverse();
    let (Ok(chunk_count), Ok(count)) = (u32::try_from(chunks.len()), u32::try_from(records.len())) else {
        return Err(Error::Refused("a pack has at most 4,294,967,295 files and chunks".into()));
    };
    let bucket_bits = (records.len().max(2) as u64).next_power_of_two().trailing_zeros().min(32);
    let names_bytes: u64 = records.iter().map(|(_, record)| record.name.len() as u64).sum();

    let mut body = Vec::with_capacity(chunks.len() * 32 + records.len() * 84 + names_bytes as usize);
    for chunk in chunks {
        body.extend(sealed(chunk_fields(&facts_of(chunk))));
    }
    let mut name_at = 0_u64;
    for (number, record) in &records {
        body.extend(record_fields(*number, record, name_at));
        name_at += record.name.len() as u64;
    }
    let mut slots: Vec<(u64, u32)> =
        records.iter().zip(0_u32..).map(|((_, record), number)| (hash(&record.name), number)).collect();
    slots.sort_unstable_by_key(|(hash, number)| (hash >> (64 - bucket_bits), *hash as u32, *number));
    let mut filled = 0_usize;
    for bucket in 0..=1_u64 << bucket_bits {
        while slots.get(filled).is_some_and(|(hash, _)| hash >> (64 - bucket_bits) < bucket) {
            filled += 1;
        }
        body.extend((filled as u32).to_le_bytes());
    }
    for (hash, number) in &slots {
        body.extend((*hash as u32).to_le_bytes());
        body.extend(number.to_le_bytes());
    }
    records.iter().for_each(|(_, record)| body.extend_from_slice(&record.name));

    let mut header = MAGIC.to_vec();
    header.extend(VERSION.to_le_bytes());
    header.extend(bucket_bits.to_le_bytes());
    header.extend(pack.0);
    let facts: Vec<ChunkFacts> = chunks.iter().map(facts_of).collect();
    header.extend(version(pack, &facts, deleted));
    header.extend(chunk_count.to_le_bytes());
    header.extend(count.to_le_bytes());
    header.extend(names_bytes.to_le_bytes());
    header.extend((super::HEADER_BYTES as u64 + body.len() as u64).to_le_bytes());
    let has_labels = chunks.iter().any(|chunk| chunk.has_labels);
    header.extend(if has_labels { HAS_LABELS } else { 0 }.to_le_bytes());
    let mut bytes = sealed(header);
    bytes.append(&mut body);
    Ok(bytes)
}

/// What tells this state of a data set from any other: the chunks that it is made of, sorted by id, and what of them is deleted.
pub(crate) fn version(pack: Id, chunks: &[ChunkFacts], deleted: &Deleted) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&pack.0);
    for chunk in chunks {
        hasher.update(&chunk_fields(chunk));
    }
    // Marks of a chunk that is gone say nothing.
    let is_there = |id| chunks.binary_search_by_key(&id, |chunk| chunk.id).is_ok();
    hasher.update(&deleted.only(is_there).marks());
    *hasher.finalize().as_bytes()
}

fn facts_of(chunk: &Chunk) -> ChunkFacts {
    ChunkFacts { id: chunk.id, bytes: chunk.bytes, index_crc: chunk.index_crc }
}

fn chunk_fields(chunk: &ChunkFacts) -> Vec<u8> {
    let mut fields = chunk.id.0.to_vec();
    fields.extend(chunk.bytes.to_le_bytes());
    fields.extend(chunk.index_crc.to_le_bytes());
    fields
}

fn record_fields(chunk: u32, record: &Record, name_at: u64) -> Vec<u8> {
    let mut fields = Vec::with_capacity(64);
    fields.extend(name_at.to_le_bytes());
    fields.extend(record.offset.to_le_bytes());
    fields.extend(record.stored_bytes.to_le_bytes());
    fields.extend(record.bytes.to_le_bytes());
    fields.extend(record.mtime_ns.to_le_bytes());
    fields.extend(record.crc.to_le_bytes());
    fields.extend(record.label.unwrap_or(NO_LABEL).to_le_bytes());
    fields.extend(chunk.to_le_bytes());
    fields.extend((record.name.len() as u16).to_le_bytes());
    fields.extend([record.codec, 0, 0, 0, 0, 0]);
    let seal = crc32c::crc32c_append(crc32c::crc32c(&fields), &record.name);
    fields.extend(seal.to_le_bytes());
    fields
}
