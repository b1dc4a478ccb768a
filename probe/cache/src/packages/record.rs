//! The bytes of a package: whose it is, and behind that samples, each with its number, its length and a checksum.
//!
//! | header | bytes | | record | bytes |
//! |---|---|---|---|---|
//! | magic | 8 | | sample | 4 |
//! | version | 4 | | length | 4 |
//! | run | 16 | | tag | 8 |
//! | number of the package | 8 | | CRC32C of these and of the sample | 4 |
//! | CRC32C of these | 4 | | the sample | length |

const MAGIC: [u8; 8] = *b"stallpkg";
const VERSION: u32 = 1;
pub(super) const HEADER_BYTES: usize = 40;
const HEAD_BYTES: usize = 20;

/// A sample in a package.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    pub id: u32,
    /// What it was read from, as the pool has it.
    pub tag: u64,
    pub bytes: &'a [u8],
}

pub(super) fn header(run: [u8; 16], number: u64) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(&MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    header[12..28].copy_from_slice(&run);
    header[28..36].copy_from_slice(&number.to_le_bytes());
    let seal = crc32c::crc32c(&header[..36]);
    header[36..].copy_from_slice(&seal.to_le_bytes());
    header
}

/// What stands before a sample. One whose length 32 bits do not have is in no package.
pub(super) fn head(id: u32, tag: u64, bytes: &[u8]) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    head[..4].copy_from_slice(&id.to_le_bytes());
    head[4..8].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
    head[8..16].copy_from_slice(&tag.to_le_bytes());
    let seal = crc32c::crc32c_append(crc32c::crc32c(&head[..16]), bytes);
    head[16..].copy_from_slice(&seal.to_le_bytes());
    head
}

/// The whole records of a package; none where it is of another run, or another one of this run.
pub(super) fn records(package: &[u8], run: [u8; 16], number: u64) -> impl Iterator<Item = Record<'_>> {
    let mut rest = package.strip_prefix(&header(run, number)).unwrap_or_default();
    std::iter::from_fn(move || {
        loop {
            let (head, behind) = rest.split_first_chunk::<HEAD_BYTES>()?;
            let (bytes, behind) = behind.split_at_checked(word(head, 4) as usize)?;
            rest = behind;
            let (id, tag) = (word(head, 0), u64::from(word(head, 8)) | u64::from(word(head, 12)) << 32);
            // Behind a damaged one others may be whole.
            if self::head(id, tag, bytes) == *head {
                return Some(Record { id, tag, bytes });
            }
        }
    })
}

fn word(head: &[u8; HEAD_BYTES], at: usize) -> u32 {
    head[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}
