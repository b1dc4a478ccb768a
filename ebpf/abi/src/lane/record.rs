//! An event on its way: 48 bytes that say nothing unless [`Event`](super::Event) decodes them.

use super::values::Value;

/// Words of a record.
pub const WORDS: usize = 6;

/// One event of a training process, as 48 little-endian bytes: when what it reports was complete, in nanoseconds, at 0;
/// the event's number, at 8; from 10 on the event's fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record([u64; WORDS]);

impl Record {
    const KIND_AT: usize = 8;

    /// Any words make a record: the writer is not trusted.
    #[inline]
    pub const fn from_words(words: [u64; WORDS]) -> Record {
        Record(words)
    }

    #[inline]
    pub const fn words(&self) -> [u64; WORDS] {
        self.0
    }

    #[inline]
    pub const fn time_ns(&self) -> u64 {
        self.0[0]
    }

    #[inline]
    pub(super) fn new(kind: u16, time_ns: u64) -> Record {
        let mut record = Record([time_ns, 0, 0, 0, 0, 0]);
        record.put(Record::KIND_AT, kind);
        record
    }

    #[inline]
    pub(super) fn kind(&self) -> u16 {
        self.get(Record::KIND_AT)
    }

    /// Writes a field that is still 0. `offset`: of its first byte; it lies within one word.
    #[inline]
    pub(super) fn put<T: Field>(&mut self, offset: usize, field: T) {
        self.0[offset / 8] |= field.to_bits() << (offset % 8 * 8);
    }

    #[inline]
    pub(super) fn get<T: Field>(&self, offset: usize) -> T {
        T::from_bits(self.0[offset / 8] >> (offset % 8 * 8))
    }
}

/// What a field may be.
pub(super) trait Field: Copy {
    const BYTES: usize;

    fn to_bits(self) -> u64;

    /// From the low bits: those above belong to other fields.
    fn from_bits(bits: u64) -> Self;

    fn value(self) -> Value;
}

macro_rules! number_fields {
    ($($number:ty)*) => {$(
        impl Field for $number {
            const BYTES: usize = size_of::<$number>();

            #[inline]
            fn to_bits(self) -> u64 {
                u64::from(self)
            }

            #[inline]
            fn from_bits(bits: u64) -> $number {
                bits as $number
            }

            fn value(self) -> Value {
                Value::Number(u64::from(self))
            }
        }
    )*};
}

number_fields!(u8 u16 u32 u64);
