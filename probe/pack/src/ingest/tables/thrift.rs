//! Thrift's compact protocol, as far as footers and page headers of Parquet need it. Nothing is taken by a length before it was compared with
//! the bytes that are there.

const TRUE: u8 = 1;
const FALSE: u8 = 2;
const BYTE: u8 = 3;
const I16: u8 = 4;
const I32: u8 = 5;
const I64: u8 = 6;
const DOUBLE: u8 = 7;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const SET: u8 = 10;
const MAP: u8 = 11;
const STRUCT: u8 = 12;
const UUID: u8 = 13;

/// What is skipped lies no deeper.
const MOST_DEPTH: u32 = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The bytes end within it.
    Cut,
    /// It is something else.
    Malformed,
}

pub(super) type Parsed<T> = Result<T, Fault>;

/// What comes next, of a type that the field's head named.
#[derive(Debug)]
pub(super) struct Reader<'b> {
    bytes: &'b [u8],
    at: usize,
}

impl<'b> Reader<'b> {
    pub(super) fn new(bytes: &'b [u8]) -> Reader<'b> {
        Reader { bytes, at: 0 }
    }

    /// How many bytes were read.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    fn byte(&mut self) -> Parsed<u8> {
        let byte = *self.bytes.get(self.at).ok_or(Fault::Cut)?;
        self.at += 1;
        Ok(byte)
    }

    fn varint(&mut self) -> Parsed<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Fault::Malformed)
    }

    fn zigzag(&mut self) -> Parsed<i64> {
        let value = self.varint()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    fn take(&mut self, count: u64) -> Parsed<&'b [u8]> {
        let count = usize::try_from(count).map_err(|_| Fault::Malformed)?;
        let end = self.at.checked_add(count).ok_or(Fault::Malformed)?;
        let taken = self.bytes.get(self.at..end).ok_or(Fault::Cut)?;
        self.at = end;
        Ok(taken)
    }

    /// A struct's fields, by number and type. `each` reads or skips the field's value.
    pub(super) fn fields(&mut self, each: &mut dyn FnMut(&mut Self, i64, u8) -> Parsed<()>) -> Parsed<()> {
        let mut field = 0_i64;
        loop {
            let head = self.byte()?;
            let kind = head & 0x0f;
            if kind == 0 {
                return Ok(());
            }
            field = match head >> 4 {
                0 => self.zigzag()?,
                more => field.saturating_add(i64::from(more)),
            };
            each(self, field, kind)?;
        }
    }

    /// The fields of a struct within one.
    pub(super) fn inside(
        &mut self,
        kind: u8,
        each: &mut dyn FnMut(&mut Self, i64, u8) -> Parsed<()>,
    ) -> Parsed<()> {
        if kind != STRUCT {
            return Err(Fault::Malformed);
        }
        self.fields(each)
    }

    /// The structs of a list.
    pub(super) fn each(&mut self, kind: u8, each: &mut dyn FnMut(&mut Self, u8) -> Parsed<()>) -> Parsed<()> {
        if kind != LIST && kind != SET {
            return Err(Fault::Malformed);
        }
        let (kind, count) = self.list()?;
        // Truths, as all but structs, could be skipped as if they had no bytes, and so without end.
        if count > 0 && kind != STRUCT {
            return Err(Fault::Malformed);
        }
        for _ in 0..count {
            each(self, kind)?;
        }
        Ok(())
    }

    fn list(&mut self) -> Parsed<(u8, u64)> {
        let head = self.byte()?;
        let count = match head >> 4 {
            15 => self.varint()?,
            few => u64::from(few),
        };
        // Each element has a byte at least.
        match count <= (self.bytes.len() - self.at) as u64 {
            true => Ok((head & 0x0f, count)),
            false => Err(Fault::Cut),
        }
    }

    pub(super) fn integer(&mut self, kind: u8) -> Parsed<i64> {
        match kind {
            BYTE => Ok(i64::from(self.byte()? as i8)),
            I16 | I32 | I64 => self.zigzag(),
            _ => Err(Fault::Malformed),
        }
    }

    pub(super) fn truth(&mut self, kind: u8) -> Parsed<bool> {
        match kind {
            TRUE => Ok(true),
            FALSE => Ok(false),
            _ => Err(Fault::Malformed),
        }
    }

    pub(super) fn text(&mut self, kind: u8) -> Parsed<&'b [u8]> {
        if kind != BINARY {
            return Err(Fault::Malformed);
        }
        let count = self.varint()?;
        self.take(count)
    }

    pub(super) fn skip(&mut self, kind: u8) -> Parsed<()> {
        self.skip_at(kind, 0)
    }

    fn skip_at(&mut self, kind: u8, depth: u32) -> Parsed<()> {
        if depth > MOST_DEPTH {
            return Err(Fault::Malformed);
        }
        // In a struct a truth is in the field's head.
        let element = |reader: &mut Self, kind| match kind {
            TRUE | FALSE => reader.byte().map(drop),
            kind => reader.skip_at(kind, depth + 1),
        };
        match kind {
            TRUE | FALSE => Ok(()),
            BYTE => self.byte().map(drop),
            I16 | I32 | I64 => self.varint().map(drop),
            DOUBLE => self.take(8).map(drop),
            UUID => self.take(16).map(drop),
            BINARY => self.text(kind).map(drop),
            LIST | SET => {
                let (kind, count) = self.list()?;
                (0..count).try_for_each(|_| element(self, kind))
            }
            MAP => {
                let count = self.varint()?;
                if count == 0 {
                    return Ok(());
                }
                let kinds = self.byte()?;
                (0..count).try_for_each(|_| {
                    element(self, kinds >> 4)?;
                    element(self, kinds & 0x0f)
                })
            }
            STRUCT => self.fields(&mut |reader, _, kind| reader.skip_at(kind, depth + 1)),
            _ => Err(Fault::Malformed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_and_what_is_not_known_is_skipped() {
        // 1: -3, 2: "ab", 3: a list of two structs {1: true} and {}, 20: a map of one text to a byte, 21: 7
        let bytes = [
            0x15, 5, 0x18, 2, b'a', b'b', 0x19, 0x2c, 0x11, 0, 0, 0x0b, 40, 1, 0x83, 1, b'k', 9, 0x15, 14, 0,
        ];
        let mut reader = Reader::new(&bytes);
        let (mut found, mut inside) = (Vec::new(), 0);
        let parsed = reader.fields(&mut |reader, field, kind| {
            match field {
                1 | 21 => found.push((field, reader.integer(kind)?.to_string())),
                2 => found.push((field, String::from_utf8_lossy(reader.text(kind)?).into_owned())),
                3 => reader.each(kind, &mut |reader, kind| {
                    inside += 1;
                    reader.skip(kind)
                })?,
                _ => reader.skip(kind)?,
            }
            Ok(())
        });
        assert_eq!(parsed, Ok(()));
        assert_eq!(found, [(1, "-3".to_owned()), (2, "ab".to_owned()), (21, "7".to_owned())]);
        assert_eq!((inside, reader.at()), (2, bytes.len()));
        for end in 0..bytes.len() {
            let parsed = Reader::new(&bytes[..end]).fields(&mut |reader, _, kind| reader.skip(kind));
            assert_eq!(parsed, Err(Fault::Cut), "{end}");
        }
    }

    #[test]
    fn a_list_is_gone_through_if_it_is_of_structs() {
        // 1: a list of 100 truths without their bytes, of which each would be skipped by none.
        let bytes = [&[0x19, 0xf1, 100][..], &[0; 200]].concat();
        let mut heard = 0;
        let parsed = Reader::new(&bytes).fields(&mut |reader, _, kind| {
            reader.each(kind, &mut |reader, kind| {
                heard += 1;
                reader.skip(kind)
            })
        });
        assert_eq!((parsed, heard), (Err(Fault::Malformed), 0));
        // Writers give an empty list another type.
        let parsed = Reader::new(&[0x19, 0x05, 0])
            .fields(&mut |reader, _, kind| reader.each(kind, &mut |_, _| Err(Fault::Malformed)));
        assert_eq!(parsed, Ok(()));
    }

    #[test]
    fn what_is_deep_or_long_by_its_word_alone_is_refused() {
        let deep = [0x1c; 100];
        assert_eq!(
            Reader::new(&deep).fields(&mut |reader, _, kind| reader.skip(kind)),
            Err(Fault::Malformed)
        );
        // A list of 2^40 truths; a text of 2^60 bytes; a varint without end.
        for bytes in [
            &[0x19, 0xf1, 0x80, 0x80, 0x80, 0x80, 0x80, 0x20][..],
            &[0x18, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x10],
            &[0x16, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
        ] {
            let parsed = Reader::new(bytes).fields(&mut |reader, _, kind| reader.skip(kind));
            assert!(parsed.is_err(), "{bytes:?}");
        }
    }
}
