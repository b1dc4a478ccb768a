//! Bits of which most are 0. What is not there takes no memory: a list of deletions may be holes but for a bit of each chunk, and
//! so many times as long as what it takes on disk.

use std::collections::BTreeMap;

/// Bytes that are kept together.
const BLOCK: usize = 64;

/// Blocks of bytes, but for those that are 0. Bit n is bit n % 8 of byte n / 8.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Bits(BTreeMap<usize, [u8; BLOCK]>);

impl Bits {
    pub(super) fn of(bytes: &[u8]) -> Bits {
        let blocks = bytes.chunks(BLOCK).enumerate().filter(|(_, bytes)| bytes.iter().any(|byte| *byte != 0));
        let whole = |bytes: &[u8]| {
            let mut block = [0; BLOCK];
            block[..bytes.len()].copy_from_slice(bytes);
            block
        };
        Bits(blocks.map(|(at, bytes)| (at, whole(bytes))).collect())
    }

    pub(super) fn has(&self, bit: usize) -> bool {
        let (byte, of_byte) = (bit / 8, bit % 8);
        self.0.get(&(byte / BLOCK)).is_some_and(|block| block[byte % BLOCK] >> of_byte & 1 == 1)
    }

    pub(super) fn set(&mut self, bit: usize) {
        let (byte, of_byte) = (bit / 8, bit % 8);
        self.0.entry(byte / BLOCK).or_insert([0; BLOCK])[byte % BLOCK] |= 1 << of_byte;
    }

    /// The highest that is 1.
    pub(super) fn last(&self) -> Option<usize> {
        let (at, block) = self.0.last_key_value()?;
        let byte = block.iter().rposition(|byte| *byte != 0)?;
        Some((at * BLOCK + byte) * 8 + block[byte].ilog2() as usize)
    }

    /// Over zeros.
    pub(super) fn write(&self, bytes: &mut [u8]) {
        for (at, block) in &self.0 {
            let rest = bytes.get_mut(at * BLOCK..).unwrap_or_default();
            rest.iter_mut().zip(block).for_each(|(byte, own)| *byte = *own);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn they_are_those_of_their_bytes(
            bytes in prop::collection::vec(prop_oneof![9 => Just(0), 1 => any::<u8>()], 0..200)
        ) {
            let bits = Bits::of(&bytes);
            let mut written = vec![0; bytes.len()];
            bits.write(&mut written);
            prop_assert_eq!(&written, &bytes);
            let mut set = Bits::default();
            let ones: Vec<usize> =
                (0..bytes.len() * 8).filter(|bit| bytes[bit / 8] >> (bit % 8) & 1 == 1).collect();
            for bit in 0..bytes.len() * 8 + 600 {
                prop_assert_eq!(bits.has(bit), ones.binary_search(&bit).is_ok());
            }
            ones.iter().for_each(|bit| set.set(*bit));
            prop_assert_eq!(&set, &bits);
            prop_assert_eq!(bits.last(), ones.last().copied());
        }
    }

    #[test]
    fn what_is_0_takes_no_memory() {
        let mut bytes = vec![0; 1 << 20];
        bytes[1 << 19] = 1;
        assert_eq!(Bits::of(&bytes).0.len(), 1);
    }
}
