//! FlatBuffers, as far as Arrow's messages need them: tables of numbered fields that lie anywhere in the bytes. What would lie
//! beyond them is not there.

/// A table, or nothing.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Table<'b> {
    bytes: &'b [u8],
    at: usize,
    /// Where its fields lie from it on, two bytes each.
    slots: &'b [u8],
}

/// A list, of which elements are read one by one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct List<'b> {
    bytes: &'b [u8],
    at: usize,
    pub(super) count: usize,
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// Where the offset at `at` leads.
fn led(bytes: &[u8], at: usize) -> Option<usize> {
    at.checked_add(u32::from_le_bytes(array(bytes, at)?) as usize)
}

impl<'b> Table<'b> {
    /// The one that the bytes begin with the place of.
    pub(super) fn root(bytes: &'b [u8]) -> Option<Table<'b>> {
        Table::at(bytes, led(bytes, 0)?)
    }

    fn at(bytes: &'b [u8], at: usize) -> Option<Table<'b>> {
        let back = i64::from(i32::from_le_bytes(array(bytes, at)?));
        let slots_at = usize::try_from(i64::try_from(at).ok()? - back).ok()?;
        let size = usize::from(u16::from_le_bytes(array(bytes, slots_at)?));
        let slots = bytes.get(slots_at.checked_add(4)?..slots_at.checked_add(size)?)?;
        Some(Table { bytes, at, slots })
    }

    fn field(&self, number: usize) -> Option<usize> {
        match u16::from_le_bytes(array(self.slots, number * 2)?) {
            0 => None,
            offset => Some(self.at + usize::from(offset)),
        }
    }

    pub(super) fn u8(&self, number: usize) -> Option<u8> {
        self.bytes.get(self.field(number)?).copied()
    }

    pub(super) fn i16(&self, number: usize) -> Option<i16> {
        Some(i16::from_le_bytes(array(self.bytes, self.field(number)?)?))
    }

    pub(super) fn i32(&self, number: usize) -> Option<i32> {
        Some(i32::from_le_bytes(array(self.bytes, self.field(number)?)?))
    }

    pub(super) fn i64(&self, number: usize) -> Option<i64> {
        Some(i64::from_le_bytes(array(self.bytes, self.field(number)?)?))
    }

    pub(super) fn table(&self, number: usize) -> Option<Table<'b>> {
        Table::at(self.bytes, led(self.bytes, self.field(number)?)?)
    }

    /// Of elements of so many bytes; empty where it is not there, none where it lies beyond the bytes.
    pub(super) fn list(&self, number: usize, size: usize) -> Option<List<'b>> {
        let Some(field) = self.field(number) else { return Some(List::default()) };
        let begin = led(self.bytes, field)?;
        let count = u32::from_le_bytes(array(self.bytes, begin)?) as usize;
        let at = begin.checked_add(4)?;
        let end = at.checked_add(count.checked_mul(size)?)?;
        (end <= self.bytes.len()).then_some(List { bytes: self.bytes, at, count })
    }

    pub(super) fn text(&self, number: usize) -> Option<&'b [u8]> {
        let list = self.list(number, 1)?;
        list.bytes.get(list.at..list.at + list.count)
    }
}

impl<'b> List<'b> {
    /// An element that is a table, of four bytes in the list.
    pub(super) fn table(&self, number: usize) -> Option<Table<'b>> {
        let at = self.at.checked_add(number.checked_mul(4)?)?;
        Table::at(self.bytes, led(self.bytes, at)?)
    }

    /// A number at so many bytes from the list's begin.
    pub(super) fn i64_at(&self, offset: usize) -> Option<i64> {
        Some(i64::from_le_bytes(array(self.bytes, self.at.checked_add(offset)?)?))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    /// A table with 7 as field 0, none as field 1, and the text "ab" as field 2.
    const BYTES: [u8; 36] = [
        16, 0, 0, 0, // where the table is
        10, 0, 12, 0, 4, 0, 0, 0, 8, 0, // its slots: of ten bytes
        0, 0, // the gap before the table
        12, 0, 0, 0, // how far back its slots are
        7, 0, 0, 0, 4, 0, 0, 0, // its fields: 7, and where the text is
        2, 0, 0, 0, b'a', b'b', 0, 0, // the text
    ];

    #[test]
    fn fields_are_found_or_are_not_there() {
        let table = Table::root(&BYTES).unwrap();
        assert_eq!(
            (table.i32(0), table.i32(1), table.i32(3), table.i64(0)),
            (Some(7), None, None, Some(7 + (4 << 32)))
        );
        assert_eq!((table.text(2), table.text(1)), (Some(&b"ab"[..]), Some(&b""[..])));
        assert!(table.table(2).is_none_or(|table| table.i64(0).is_none()));
    }

    #[test]
    fn what_lies_beyond_is_not_there() {
        for end in 0..34 {
            let found = Table::root(&BYTES[..end]).and_then(|table| table.text(2));
            assert_eq!(found, None, "{end}");
        }
        for (at, value) in [(0, 0xff), (4, 0xff), (8, 0xff), (16, 0xff), (24, 0xff), (28, 0xff)] {
            let mut bytes = BYTES;
            bytes[at] = value;
            bytes[at + 1] = value;
            let table = Table::root(&bytes);
            assert!(table.is_none_or(|table| table.i32(0).is_none() || table.text(2).is_none()), "{at}");
        }
    }
}
