//! The pages of a column of a Parquet file, read one after the other.

use super::encodings::{Span, deltas, hybrid, length_spans, plain_integers, plain_spans, repeating};
use super::gzip;
use super::lz4;
use super::parquet::{Group, Leaf, Part, Physical};
use super::thrift::{Fault, Parsed, Reader};
use super::{Left, ROWS_OF_ANY, Read, fault, io_fault};
use std::cell::Cell;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::rc::Rc;

/// Of a page, as it is stored and once expanded. Rows that are written a thousand at a time have pages of as many pictures.
const MOST_PAGE_BYTES: usize = if cfg!(fuzzing) { 16 << 20 } else { 512 << 20 };
/// Of a page's header, with the least and the largest value.
const MOST_HEADER_BYTES: u64 = 16 << 20;
const USUAL_HEADER_BYTES: u64 = 4 << 10;
/// No copy of snappy makes more of a byte than 64.
const MOST_OF_SNAPPY: usize = 64;

const UNCOMPRESSED: i64 = 0;
const SNAPPY: i64 = 1;
const GZIP: i64 = 2;
const ZSTD: i64 = 6;
const LZ4: i64 = 7;

const DATA: i64 = 0;
const DICTIONARY: i64 = 2;
const DATA_V2: i64 = 3;

const PLAIN: i64 = 0;
const OLD_DICTIONARY: i64 = 2;
const RLE: i64 = 3;
const DELTA: i64 = 5;
const DELTA_LENGTHS: i64 = 6;
const DELTA_BYTES: i64 = 7;
const NEW_DICTIONARY: i64 = 8;

/// Values of some rows.
#[derive(Debug)]
pub(super) struct Page {
    /// Of each row whether its value is there.
    pub(super) present: Vec<bool>,
    /// Of those that are.
    pub(super) values: Values,
    /// Which entries of the column's dictionary they are, if they are any.
    pub(super) entries: Vec<u32>,
}

#[derive(Debug)]
pub(super) enum Values {
    Integers(Vec<i64>),
    Bytes(Vec<Span>, Rc<Held>),
}

/// Bytes in which values lie.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) bytes: Vec<u8>,
    /// Where the same bytes lie in the file, unless they were compressed.
    pub(super) at: Option<u64>,
    /// Where they were written to.
    pub(super) spilt_at: Cell<Option<u64>>,
}

impl Held {
    fn new(bytes: Vec<u8>, at: Option<u64>) -> Rc<Held> {
        Rc::new(Held { bytes, at, spilt_at: Cell::new(None) })
    }
}

impl Page {
    /// The values of a column of bytes.
    pub(super) fn bytes(&self) -> Read<impl Iterator<Item = &[u8]>> {
        match &self.values {
            Values::Bytes(spans, held) => Ok(spans.iter().map(|span| &held.bytes[span.clone()])),
            Values::Integers(_) => fault("it has numbers where it should have bytes"),
        }
    }
}

/// Reads the pages of a column.
#[derive(Debug)]
pub(super) struct Pages<'f> {
    file: &'f File,
    leaf: &'f Leaf,
    codec: i64,
    at: u64,
    end: u64,
    /// Rows that no page had yet.
    left: u64,
    /// What all pages of the file that are still to come may have together, expanded.
    left_bytes: &'f mut Left,
    dictionary: Option<Values>,
    /// Before all others alone.
    may_be_dictionary: bool,
}

impl<'f> Pages<'f> {
    pub(super) fn new(file: &'f File, group: &Group, leaf: &'f Leaf, left_bytes: &'f mut Left) -> Pages<'f> {
        let Part { codec, begin, end } = group.part;
        let (dictionary, may_be_dictionary) = (None, true);
        Pages {
            file,
            leaf,
            codec,
            at: begin,
            end,
            left: group.rows,
            left_bytes,
            dictionary,
            may_be_dictionary,
        }
    }

    /// The next one; none once all rows were in one.
    pub(super) fn next(&mut self) -> Read<Option<Page>> {
        while self.left > 0 {
            let header = self.header()?;
            let stored_at = self.at;
            let stored = size(header.stored)?;
            let expanded = size(header.expanded)?;
            if stored as u64 > self.end - self.at {
                return fault("a page goes beyond its column");
            }
            self.at += stored as u64;
            // Nothing is read of others, nor of values of no row.
            let has_rows = matches!(header.kind, DATA | DATA_V2) && header.values != 0;
            if !has_rows && header.kind != DICTIONARY {
                continue;
            }
            if header.kind == DICTIONARY && !self.may_be_dictionary {
                return fault("a dictionary lies behind other pages of its column");
            }
            self.may_be_dictionary = false;
            self.count(stored.max(expanded))?;
            let mut bytes = vec![0; stored];
            self.file.read_exact_at(&mut bytes, stored_at).map_err(io_fault)?;
            match header.kind {
                DICTIONARY => self.take_dictionary(&header, bytes, expanded, stored_at)?,
                DATA => return self.page(&header, bytes, expanded, stored_at).map(Some),
                _ => return self.page_v2(&header, bytes, expanded, stored_at).map(Some),
            }
        }
        Ok(None)
    }

    fn count(&mut self, bytes: usize) -> Read<()> {
        match self.left_bytes.take(bytes as u64) {
            true => Ok(()),
            false => fault("its pages have more bytes than those of such a file can have"),
        }
    }

    fn header(&mut self) -> Read<Header> {
        let mut most = USUAL_HEADER_BYTES;
        loop {
            let there = (self.end - self.at).min(most);
            if there == 0 {
                return fault("a column ends before its last row");
            }
            let mut bytes = vec![0; there as usize];
            self.file.read_exact_at(&mut bytes, self.at).map_err(io_fault)?;
            let mut reader = Reader::new(&bytes);
            match Header::read(&mut reader) {
                Ok(header) => {
                    self.at += reader.at() as u64;
                    return Ok(header);
                }
                Err(Fault::Cut) if there == most && most < MOST_HEADER_BYTES => most *= 8,
                Err(_) => return fault("a page's header is damaged"),
            }
        }
    }

    /// The rows of a page, which are no more than are left.
    fn rows(&mut self, header: &Header) -> Read<usize> {
        match u64::try_from(header.values) {
            Ok(rows) if rows <= self.left => {
                self.left -= rows;
                Ok(rows as usize)
            }
            _ => fault("a page has more values than there are rows"),
        }
    }

    fn take_dictionary(&mut self, header: &Header, bytes: Vec<u8>, expanded: usize, at: u64) -> Read<()> {
        let (bytes, at) = self.expanded(bytes, expanded, at)?;
        // Of a dictionary that was one before pyarrow writes all entries for any rows.
        let most = self.left.max(ROWS_OF_ANY);
        let count = usize::try_from(header.values).ok().filter(|count| *count as u64 <= most);
        let count = count.ok_or("a dictionary has too many values for so few rows")?;
        self.dictionary = Some(match self.leaf.physical {
            Physical::Four => self.numbers(plain_integers(&bytes, 4, count)?),
            Physical::Eight => self.numbers(plain_integers(&bytes, 8, count)?),
            _ => Values::Bytes(plain_spans(&bytes, 0, count)?, Held::new(bytes, at)),
        });
        Ok(())
    }

    fn expanded(&self, bytes: Vec<u8>, expanded: usize, at: u64) -> Read<(Vec<u8>, Option<u64>)> {
        match self.codec {
            UNCOMPRESSED => Ok((bytes, Some(at))),
            codec => Ok((expand(codec, &bytes, expanded)?, None)),
        }
    }

    fn page(&mut self, header: &Header, bytes: Vec<u8>, expanded: usize, at: u64) -> Read<Page> {
        let rows = self.rows(header)?;
        let (bytes, at) = self.expanded(bytes, expanded, at)?;
        let (mut from, mut present) = (0, vec![true; rows]);
        if self.leaf.level > 0 {
            if header.levels != RLE {
                return fault("a page has its nulls in a way that is not known here");
            }
            let count = bytes.first_chunk::<4>().ok_or("a page is cut")?;
            from = 4 + u32::from_le_bytes(*count) as usize;
            let levels = bytes.get(4..from).ok_or("a page is cut")?;
            present = self.present(levels, rows)?;
        }
        self.filled(header.encoding, bytes, from, present, at)
    }

    /// Of a newer one, in which the levels are not compressed.
    fn page_v2(&mut self, header: &Header, mut bytes: Vec<u8>, expanded: usize, at: u64) -> Read<Page> {
        let rows = self.rows(header)?;
        let (repetitions, levels) = (size(header.repetition_bytes)?, size(header.level_bytes)?);
        let from = repetitions + levels;
        if from > bytes.len() || from > expanded {
            return fault("a page is cut");
        }
        let present = match self.leaf.level {
            0 => vec![true; rows],
            _ => self.present(&bytes[repetitions..from], rows)?,
        };
        if self.codec != UNCOMPRESSED && header.is_compressed {
            let values = match expanded - from {
                0 => Vec::new(),
                rest => expand(self.codec, &bytes[from..], rest)?,
            };
            return self.filled(header.encoding, values, 0, present, None);
        }
        bytes.truncate(expanded);
        self.filled(header.encoding, bytes, from, present, Some(at))
    }

    fn present(&self, levels: &[u8], rows: usize) -> Read<Vec<bool>> {
        let width = u32::BITS - self.leaf.level.leading_zeros();
        let levels = hybrid(levels, width, rows)?;
        Ok(levels.into_iter().map(|level| level == self.leaf.level).collect())
    }

    fn filled(
        &mut self,
        encoding: i64,
        bytes: Vec<u8>,
        from: usize,
        present: Vec<bool>,
        at: Option<u64>,
    ) -> Read<Page> {
        let count = present.iter().filter(|is_there| **is_there).count();
        let values = bytes.get(from..).ok_or("a page is cut")?;
        let mut entries = Vec::new();
        let values = match (self.leaf.physical, encoding) {
            // Nulls alone: what is behind them is not looked at.
            (Physical::Bytes, _) if count == 0 => Values::Bytes(Vec::new(), Held::new(Vec::new(), None)),
            (_, _) if count == 0 => Values::Integers(Vec::new()),
            (_, OLD_DICTIONARY | NEW_DICTIONARY) => {
                let (width, numbers) = values.split_first().ok_or("a page is cut")?;
                entries = hybrid(numbers, u32::from(*width), count)?;
                self.looked_up(&entries)?
            }
            (Physical::Four, PLAIN) => self.numbers(plain_integers(values, 4, count)?),
            (Physical::Eight, PLAIN) => self.numbers(plain_integers(values, 8, count)?),
            (Physical::Four | Physical::Eight, DELTA) => self.numbers(deltas(values, count)?.0),
            (Physical::Bytes, PLAIN) => {
                Values::Bytes(plain_spans(&bytes, from, count)?, Held::new(bytes, at))
            }
            (Physical::Bytes, DELTA_LENGTHS) => {
                Values::Bytes(length_spans(&bytes, from, count)?, Held::new(bytes, at))
            }
            (Physical::Bytes, DELTA_BYTES) => {
                let (made, spans) = repeating(&bytes, from, count, MOST_PAGE_BYTES)?;
                self.count(made.len())?;
                Values::Bytes(spans, Held::new(made, None))
            }
            _ => return Err(format!("its values are encoded in a way that is not known here ({encoding})")),
        };
        Ok(Page { present, values, entries })
    }

    /// As numbers of the column's size; differences between such overflow it.
    fn numbers(&self, mut numbers: Vec<i64>) -> Values {
        if self.leaf.physical == Physical::Four {
            let narrow = |number: i64| match self.leaf.is_unsigned {
                true => i64::from(number as u32),
                false => i64::from(number as i32),
            };
            numbers.iter_mut().for_each(|number| *number = narrow(*number));
        }
        Values::Integers(numbers)
    }

    fn looked_up(&self, numbers: &[u32]) -> Read<Values> {
        fn of<T: Clone>(entries: &[T], numbers: &[u32]) -> Read<Vec<T>> {
            let found = numbers.iter().map(|number| entries.get(*number as usize).cloned());
            found.collect::<Option<_>>().ok_or_else(|| "a value is not in its dictionary".into())
        }
        match &self.dictionary {
            Some(Values::Integers(entries)) => Ok(Values::Integers(of(entries, numbers)?)),
            Some(Values::Bytes(entries, held)) => Ok(Values::Bytes(of(entries, numbers)?, held.clone())),
            None => fault("its dictionary is missing"),
        }
    }
}

fn size(number: i64) -> Read<usize> {
    match usize::try_from(number) {
        Ok(size) if size <= MOST_PAGE_BYTES => Ok(size),
        Ok(size) => Err(format!("a page has {size} bytes, and is read up to {MOST_PAGE_BYTES}")),
        Err(_) => fault("a page's header is damaged"),
    }
}

fn expand(codec: i64, bytes: &[u8], expanded: usize) -> Read<Vec<u8>> {
    let damaged = "a page does not expand to what its header says";
    match codec {
        SNAPPY => {
            let says = snap::raw::decompress_len(bytes).map_err(|_| damaged)?;
            if says != expanded || expanded > bytes.len().saturating_mul(MOST_OF_SNAPPY) {
                return fault(damaged);
            }
            let mut to = vec![0; expanded];
            match snap::raw::Decoder::new().decompress(bytes, &mut to) {
                Ok(count) if count == expanded => Ok(to),
                _ => fault(damaged),
            }
        }
        ZSTD => {
            let mut to = vec![0; expanded];
            match zstd::bulk::decompress_to_buffer(bytes, &mut to[..]) {
                Ok(count) if count == expanded => Ok(to),
                _ => fault(damaged),
            }
        }
        GZIP => gzip::expand(bytes, expanded).ok_or_else(|| damaged.into()),
        LZ4 => lz4::expand(bytes, expanded).ok_or_else(|| damaged.into()),
        other => {
            let name = ["none", "snappy", "gzip", "lzo", "brotli", "lz4 of an old kind"];
            let name =
                usize::try_from(other).ok().and_then(|other| name.get(other)).unwrap_or(&"another codec");
            Err(format!(
                "it is compressed by {name}, and only snappy, zstd, lz4 and gzip are expanded here: write it anew, as by pyarrow"
            ))
        }
    }
}

#[derive(Debug)]
struct Header {
    kind: i64,
    expanded: i64,
    stored: i64,
    values: i64,
    encoding: i64,
    levels: i64,
    level_bytes: i64,
    repetition_bytes: i64,
    is_compressed: bool,
}

impl Header {
    fn read(reader: &mut Reader<'_>) -> Parsed<Header> {
        let mut header = Header {
            kind: -1,
            expanded: -1,
            stored: -1,
            values: -1,
            encoding: -1,
            levels: -1,
            level_bytes: 0,
            repetition_bytes: 0,
            is_compressed: true,
        };
        reader.fields(&mut |reader, field, kind| match field {
            1 => reader.integer(kind).map(|number| header.kind = number),
            2 => reader.integer(kind).map(|number| header.expanded = number),
            3 => reader.integer(kind).map(|number| header.stored = number),
            // Of a page of values, and of a dictionary.
            5 | 7 => reader.inside(kind, &mut |reader, field, kind| match field {
                1 => reader.integer(kind).map(|number| header.values = number),
                2 => reader.integer(kind).map(|number| header.encoding = number),
                3 if kind > 2 => reader.integer(kind).map(|number| header.levels = number),
                _ => reader.skip(kind),
            }),
            8 => reader.inside(kind, &mut |reader, field, kind| match field {
                1 => reader.integer(kind).map(|number| header.values = number),
                4 => reader.integer(kind).map(|number| header.encoding = number),
                5 => reader.integer(kind).map(|number| header.level_bytes = number),
                6 => reader.integer(kind).map(|number| header.repetition_bytes = number),
                7 => reader.truth(kind).map(|truth| header.is_compressed = truth),
                _ => reader.skip(kind),
            }),
            _ => reader.skip(kind),
        })?;
        Ok(header)
    }
}
