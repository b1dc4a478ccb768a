//! Pages by gzip.

use flate2::bufread::MultiGzDecoder;
use std::io::Read;

/// `None` unless these are `expanded` bytes, in one member or several, with the right checksums.
pub(super) fn expand(bytes: &[u8], expanded: usize) -> Option<Vec<u8>> {
    let mut from = MultiGzDecoder::new(bytes);
    let mut to = vec![0; expanded];
    from.read_exact(&mut to).ok()?;
    // The last checksum is compared as the end is read.
    matches!(from.read(&mut [0]), Ok(0)).then_some(to)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// "stallscope " four times, as Python compresses it.
    const MEMBER: [u8; 34] = [
        0x1f, 0x8b, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02, 0x03, 0x2b, 0x2e, 0x49, 0xcc, 0xc9, 0x29, 0x4e,
        0xce, 0x2f, 0x48, 0x55, 0x28, 0x26, 0xc4, 0x04, 0x00, 0x1e, 0xc2, 0x9f, 0x7c, 0x2c, 0x00, 0x00, 0x00,
    ];

    #[test]
    fn pages_are_what_was_compressed_or_nothing() {
        let page = b"stallscope ".repeat(4);
        assert_eq!(expand(&MEMBER, page.len()), Some(page.clone()));
        assert_eq!(expand(&[MEMBER, MEMBER].concat(), 2 * page.len()), Some(page.repeat(2)));
        for size in [0, 1, page.len() - 1, page.len() + 1, 4096] {
            assert_eq!(expand(&MEMBER, size), None, "{size}");
        }
        for end in 0..MEMBER.len() {
            assert_eq!(expand(&MEMBER[..end], page.len()), None, "{end}");
        }
        // Some bits mean nothing; none makes another page.
        for bit in 0..8 * MEMBER.len() {
            let mut damaged = MEMBER;
            damaged[bit / 8] ^= 1 << (bit % 8);
            let found = expand(&damaged, page.len());
            assert!(found.is_none() || bit / 8 < MEMBER.len() - 8 && found.as_ref() == Some(&page), "{bit}");
        }
    }
}
