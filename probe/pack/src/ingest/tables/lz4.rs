//! LZ4's blocks, as Parquet has them (`LZ4_RAW`).

/// What these bytes expand to, which is so many; none where it is not.
pub(super) fn expand(bytes: &[u8], expanded: usize) -> Option<Vec<u8>> {
    // A byte of a length stands for 255.
    if expanded > bytes.len().saturating_mul(256) {
        return None;
    }
    let mut to = Vec::with_capacity(expanded);
    let mut left = bytes;
    while let Some(token) = next(&mut left) {
        let literals = length(token >> 4, &mut left)?;
        if literals > expanded - to.len() {
            return None;
        }
        let (own, rest) = left.split_at_checked(literals)?;
        to.extend_from_slice(own);
        left = rest;
        // The last ones have nothing to repeat behind them.
        let Some(low) = next(&mut left) else { break };
        let back = usize::from(u16::from_le_bytes([low, next(&mut left)?]));
        let count = length(token & 15, &mut left)?.checked_add(4)?;
        let from = to.len().checked_sub(back).filter(|_| back > 0)?;
        if count > expanded - to.len() {
            return None;
        }
        // It may repeat what it has just written.
        (from..from + count).for_each(|at| to.push(to[at]));
    }
    (to.len() == expanded).then_some(to)
}

fn next(left: &mut &[u8]) -> Option<u8> {
    let (first, rest) = left.split_first()?;
    *left = rest;
    Some(*first)
}

fn length(half: u8, left: &mut &[u8]) -> Option<usize> {
    let mut length = usize::from(half);
    if half == 15 {
        loop {
            let more = next(left)?;
            length = length.checked_add(usize::from(more))?;
            if more != 255 {
                break;
            }
        }
    }
    Some(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_and_what_repeats_them_are_put_together() {
        // "ab", of which 15 + 4 + 4 bytes repeat the last two, then "c" alone.
        let bytes = [0x2f, b'a', b'b', 2, 0, 4, 0x10, b'c'];
        let expected = [&b"ab".repeat(12)[..], b"ac"].concat();
        assert_eq!(expand(&bytes, 26), Some(expected));
        for size in [0, 25, 27, 1 << 30] {
            assert_eq!(expand(&bytes, size), None, "{size}");
        }
        for end in 0..bytes.len() {
            assert_eq!(expand(&bytes[..end], 26), None, "{end}");
        }
        // What lies before the begin, and no distance at all.
        for back in [3, 0] {
            assert_eq!(expand(&[0x2f, b'a', b'b', back, 0, 4, 0x10, b'c'], 26), None);
        }
    }
}
