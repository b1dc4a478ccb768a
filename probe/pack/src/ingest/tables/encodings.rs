//! How Parquet encodes the values of a page.

use super::{Read, fault};
use std::ops::Range;

/// Where a value's bytes lie.
pub(super) type Span = Range<usize>;

fn varint(bytes: &[u8], at: &mut usize) -> Read<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.get(*at).ok_or("a number in it is cut")?;
        *at += 1;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    fault("a number in it has no end")
}

fn zigzag(bytes: &[u8], at: &mut usize) -> Read<i64> {
    let value = varint(bytes, at)?;
    Ok((value >> 1) as i64 ^ -((value & 1) as i64))
}

/// `width` bits from a bit on, the lowest first; bits behind the end are zero.
fn bits(bytes: &[u8], from: usize, width: u32) -> u64 {
    let (first, shift) = (from / 8, from % 8);
    // A value of 64 bits may lie in nine bytes.
    let mut window = [0; 16];
    let there = bytes.get(first..).unwrap_or_default();
    let count = there.len().min(9);
    window[..count].copy_from_slice(&there[..count]);
    let value = (u128::from_le_bytes(window) >> shift) as u64;
    match width {
        64.. => value,
        width => value & ((1 << width) - 1),
    }
}

/// Runs of one value, and values of so many bits, in turn: levels, and numbers of a dictionary's entries.
pub(super) fn hybrid(bytes: &[u8], width: u32, count: usize) -> Read<Vec<u32>> {
    if width > 32 {
        return fault("its values have too many bits");
    }
    let mut values = Vec::with_capacity(count);
    let mut at = 0;
    while values.len() < count {
        let head = varint(bytes, &mut at)?;
        let left = count - values.len();
        if head & 1 == 0 {
            let end = at + width.div_ceil(8) as usize;
            let run = bytes.get(at..end).ok_or("a run in it is cut")?;
            let value = bits(run, 0, 32) as u32;
            at = end;
            values.resize(values.len() + usize::try_from(head >> 1).unwrap_or(left).min(left), value);
        } else {
            let packed = bytes.get(at..).unwrap_or_default();
            let size = (head >> 1).saturating_mul(u64::from(width));
            // Writers may leave out the bytes of the last group that have no values.
            let few = usize::try_from((head >> 1).saturating_mul(8)).unwrap_or(left).min(left);
            if packed.len() < (few * width as usize).div_ceil(8) {
                return fault("a run in it is cut");
            }
            values.extend((0..few).map(|number| bits(packed, number * width as usize, width) as u32));
            at = at.saturating_add(usize::try_from(size).unwrap_or(usize::MAX));
        }
    }
    Ok(values)
}

/// Differences between one value and the next, in blocks; and where they end.
pub(super) fn deltas(bytes: &[u8], count: usize) -> Read<(Vec<i64>, usize)> {
    let at = &mut 0;
    let (block, parts) = (varint(bytes, at)?, varint(bytes, at)?);
    let (all, mut value) = (varint(bytes, at)?, zigzag(bytes, at)?);
    if all != count as u64 {
        return fault("it has another number of values than its head says");
    }
    if parts == 0 || block % parts != 0 || block / parts % 32 != 0 || block == 0 || block > 1 << 24 {
        return fault("its blocks have no size that there is");
    }
    let (parts, each) = (parts as usize, (block / parts) as usize);
    let mut values = Vec::with_capacity(count);
    if count > 0 {
        values.push(value);
    }
    while values.len() < count {
        let least = zigzag(bytes, at)?;
        let widths = bytes.get(*at..*at + parts).ok_or("a block in it is cut")?;
        *at += parts;
        for width in widths {
            let left = count - values.len();
            if left == 0 {
                break;
            }
            let size = each * *width as usize / 8;
            let packed = bytes.get(*at..).unwrap_or_default();
            let few = each.min(left);
            if *width > 64 || packed.len() < (few * *width as usize).div_ceil(8) {
                return fault("a block in it is cut");
            }
            for number in 0..few {
                let delta = bits(packed, number * *width as usize, u32::from(*width));
                value = value.wrapping_add(least).wrapping_add(delta as i64);
                values.push(value);
            }
            *at = (*at + size).min(bytes.len());
        }
    }
    Ok((values, *at))
}

/// Numbers of 4 or 8 bytes.
pub(super) fn plain_integers(bytes: &[u8], size: usize, count: usize) -> Read<Vec<i64>> {
    match bytes.get(..count.saturating_mul(size)) {
        Some(bytes) if size == 4 => Ok(bytes
            .chunks_exact(4)
            .map(|four| i64::from(i32::from_le_bytes(four.try_into().unwrap_or_default())))
            .collect()),
        Some(bytes) => Ok(bytes
            .chunks_exact(8)
            .map(|eight| i64::from_le_bytes(eight.try_into().unwrap_or_default()))
            .collect()),
        None => fault("it ends before its last value"),
    }
}

/// Values behind their lengths, from a byte on.
pub(super) fn plain_spans(bytes: &[u8], from: usize, count: usize) -> Read<Vec<Span>> {
    // Each has four bytes at least.
    if count > bytes.len().saturating_sub(from) / 4 {
        return fault("it ends before its last value");
    }
    let mut at = from;
    let mut spans = Vec::with_capacity(count);
    for _ in 0..count {
        let length = bytes.get(at..).and_then(|rest| rest.first_chunk::<4>());
        let begin = at + 4;
        let end = begin + u32::from_le_bytes(*length.ok_or("it ends before its last value")?) as usize;
        if end > bytes.len() {
            return fault("a value goes beyond its end");
        }
        spans.push(begin..end);
        at = end;
    }
    Ok(spans)
}

/// Values behind the differences of all their lengths.
pub(super) fn length_spans(bytes: &[u8], from: usize, count: usize) -> Read<Vec<Span>> {
    let (lengths, used) = deltas(bytes.get(from..).unwrap_or_default(), count)?;
    let mut at = from + used;
    lengths
        .into_iter()
        .map(|length| {
            let end = usize::try_from(length).ok().and_then(|length| at.checked_add(length));
            let end = end.filter(|end| *end <= bytes.len()).ok_or("a value goes beyond its end")?;
            let span = at..end;
            at = end;
            Ok(span)
        })
        .collect()
}

/// Values of which each repeats the begin of the one before, put together; no more than `most` bytes.
pub(super) fn repeating(bytes: &[u8], from: usize, count: usize, most: usize) -> Read<(Vec<u8>, Vec<Span>)> {
    let (shared, used) = deltas(bytes.get(from..).unwrap_or_default(), count)?;
    let rests = length_spans(bytes, from + used, count)?;
    let (mut made, mut spans): (Vec<u8>, Vec<Span>) = (Vec::new(), Vec::with_capacity(count));
    for (shared, rest) in shared.into_iter().zip(rests) {
        let last = spans.last().cloned().unwrap_or_default();
        let shared = usize::try_from(shared).ok().filter(|shared| *shared <= last.len());
        let shared = shared.ok_or("a value repeats more than the one before has")?;
        let begin = made.len();
        if begin + shared + rest.len() > most {
            return fault("its values are too large together");
        }
        made.extend_from_within(last.start..last.start + shared);
        made.extend_from_slice(&bytes[rest]);
        spans.push(begin..made.len());
    }
    Ok((made, spans))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn runs_and_packed_values_come_in_turn() {
        // Five times 3, then eight values of two bits, of which six count.
        let bytes = [10, 3, 3, 0b11_10_01_00, 0b00_01_10_11];
        assert_eq!(hybrid(&bytes, 2, 11), Ok(vec![3, 3, 3, 3, 3, 0, 1, 2, 3, 3, 2]));
        assert_eq!(hybrid(&bytes, 2, 3), Ok(vec![3, 3, 3]));
        // A dictionary of one entry needs no bits.
        assert_eq!(hybrid(&[8], 0, 4), Ok(vec![0; 4]));
        for (bytes, width) in [(&bytes[..3], 2), (&[][..], 1), (&[10][..], 9), (&[1, 2][..], 33)] {
            assert!(hybrid(bytes, width, 11).is_err(), "{bytes:?}");
        }
        // Runs without values end with the bytes.
        assert!(hybrid(&[0; 100], 0, 1).is_err());
        assert!(hybrid(&[1; 100], 8, 1).is_err());
    }

    #[test]
    fn differences_are_added_up() {
        // Parquet's own example, 7 5 3 1 2 3 4 5, in a block of 128 values and 4 parts: the least is -2, others are of two bits.
        let mut bytes = vec![0x80, 1, 4, 8, 14, 3, 2, 0, 0, 0, 0b11_00_00_00, 0b00_11_11_11];
        bytes.resize(10 + 8, 0);
        let (values, used) = deltas(&bytes, 8).unwrap();
        assert_eq!((values, used), (vec![7, 5, 3, 1, 2, 3, 4, 5], 18));
        assert!(deltas(&bytes, 7).is_err());
        assert!(deltas(&bytes[..11], 8).is_err());
        for (at, other) in [(0, 0x81), (2, 0), (2, 127), (6, 65)] {
            let mut bytes = bytes.clone();
            bytes[at] = other;
            assert!(deltas(&bytes, 8).is_err(), "{at}");
        }
    }

    #[test]
    fn what_repeats_all_before_is_bounded_once_it_is_put_together() {
        // Blocks of 128 values, all with the same difference.
        let even = |first: u8, difference: u8| {
            let blocks = [difference, 0, 0, 0, 0].repeat(8);
            [&[0x80, 1, 4, 0xe8, 7, first], blocks.as_slice()].concat()
        };
        // Each value is a byte longer than the one before, all of which it repeats.
        let mut bytes = [even(0, 2), even(2, 0)].concat();
        bytes.extend((0..1000).map(|number| number as u8));
        let (made, spans) = repeating(&bytes, 0, 1000, 600_000).unwrap();
        assert_eq!((made.len(), &made[spans[4].clone()]), (500_500, &[0, 1, 2, 3, 4][..]));
        assert_eq!(repeating(&bytes, 0, 1000, 400_000).unwrap_err(), "its values are too large together");
        assert!(repeating(&bytes[..bytes.len() - 1], 0, 1000, 600_000).is_err());
    }
}
