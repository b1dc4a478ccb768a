//! Numbers in bytes from elsewhere: little-endian, and none where the bytes end before.

pub(crate) fn bytes_at<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes_at(bytes, at).map(u16::from_le_bytes)
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes_at(bytes, at).map(u32::from_le_bytes)
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes_at(bytes, at).map(u64::from_le_bytes)
}

/// Whether the last four of these bytes are the CRC32C of those before.
pub(crate) fn is_sealed(bytes: &[u8]) -> bool {
    let Some((content, seal)) = bytes.split_last_chunk::<4>() else { return false };
    crc32c::crc32c(content) == u32::from_le_bytes(*seal)
}

/// Appends the CRC32C of these bytes.
pub(crate) fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let seal = crc32c::crc32c(&bytes);
    bytes.extend(seal.to_le_bytes());
    bytes
}
