//! What a Parquet file's footer says: its columns, and where their values lie. Foreign bytes: no size of it is believed that the file does not
//! have.

use super::columns::{DESCRIPTION, Field, Kind, MOST_DESCRIPTION_BYTES};
use super::pages::Pages;
use super::thrift::{Fault, Parsed, Reader};
use super::{Left, Read, fault, io_fault, most_rows};
use std::fs::File;
use std::os::unix::fs::FileExt;

const MAGIC: &[u8; 4] = b"PAR1";
const ENCRYPTED: &[u8; 4] = b"PARE";
/// Of a footer, which is read whole.
const MOST_FOOTER_BYTES: u64 = 32 << 20;
const MOST_COLUMNS: usize = 10_000;
const MOST_NAME_BYTES: usize = 1024;
const MOST_DEPTH: usize = 32;
/// A file has no more groups of rows than one for so many of its bytes, and these: in memory a group takes more than twice what it takes in a footer.
const LEAST_GROUP_BYTES: u64 = 4096;
const GROUPS_OF_ANY: u64 = 1 << 16;

const REPEATED: i64 = 2;
const REQUIRED: i64 = 0;

/// A file whose footer was read.
#[derive(Debug)]
pub(super) struct Footer {
    bytes: Vec<u8>,
    begin: u64,
    leaves: Vec<Leaf>,
    /// As Hugging Face describes the columns.
    pub(super) description: Option<Vec<u8>>,
}

/// A column that has values.
#[derive(Clone, Debug)]
pub(super) struct Leaf {
    name: String,
    pub(super) kind: Kind,
    pub(super) physical: Physical,
    /// The level of a value that is there: how many fields around it, and itself, may be null.
    pub(super) level: u32,
    pub(super) is_unsigned: bool,
    is_repeated: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Physical {
    Four,
    Eight,
    Bytes,
    Other,
}

/// Some rows of the file.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) rows: u64,
    /// Of the column that was asked for.
    pub(super) part: Part,
}

/// Where the pages of a column lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) codec: i64,
    pub(super) begin: u64,
    pub(super) end: u64,
}

impl Footer {
    pub(super) fn read(file: &File, size: u64) -> Read<Footer> {
        let mut ends = [0; 12];
        if size < ends.len() as u64 {
            return fault("it is too short for a Parquet file");
        }
        file.read_exact_at(&mut ends[..4], 0).map_err(io_fault)?;
        file.read_exact_at(&mut ends[4..], size - 8).map_err(io_fault)?;
        if &ends[8..] == ENCRYPTED || &ends[..4] == ENCRYPTED {
            return fault("it is encrypted");
        }
        match (&ends[..4] == MAGIC, &ends[8..] == MAGIC) {
            (true, true) => {}
            (true, false) => return fault("it is cut: its footer is not there"),
            (false, _) => return fault("it is no Parquet file"),
        }
        let count = u64::from(u32::from_le_bytes([ends[4], ends[5], ends[6], ends[7]]));
        if count > MOST_FOOTER_BYTES || count > size - 12 {
            return Err(format!("its footer has {count} bytes by its word, which cannot be"));
        }
        let begin = size - 8 - count;
        let mut bytes = vec![0; count as usize];
        file.read_exact_at(&mut bytes, begin).map_err(io_fault)?;
        let mut footer = Footer { bytes, begin, leaves: Vec::new(), description: None };
        footer.describe().map_err(footer_fault)?;
        Ok(footer)
    }

    /// Reads the columns.
    fn describe(&mut self) -> Parsed<()> {
        let (mut elements, mut description) = (Vec::new(), None);
        Reader::new(&self.bytes).fields(&mut |reader, field, kind| match field {
            2 => reader.each(kind, &mut |reader, kind| {
                if elements.len() == MOST_COLUMNS {
                    return Err(Fault::Malformed);
                }
                elements.push(Element::read(reader, kind)?);
                Ok(())
            }),
            5 => reader.each(kind, &mut |reader, kind| {
                let (mut key, mut value) = (&b""[..], &b""[..]);
                reader.inside(kind, &mut |reader, field, kind| match field {
                    1 => reader.text(kind).map(|text| key = text),
                    2 => reader.text(kind).map(|text| value = text),
                    _ => reader.skip(kind),
                })?;
                if key == DESCRIPTION && value.len() <= MOST_DESCRIPTION_BYTES {
                    description = Some(value.to_vec());
                }
                Ok(())
            }),
            _ => reader.skip(kind),
        })?;
        self.leaves = leaves(&elements)?;
        self.description = description;
        Ok(())
    }

    /// The columns, for who chooses among them.
    pub(super) fn fields(&self) -> Vec<Field> {
        let field = |leaf: &Leaf| Field {
            name: leaf.name.clone(),
            kind: if leaf.is_repeated { Kind::Other } else { leaf.kind },
        };
        self.leaves.iter().map(field).collect()
    }

    /// Where the values of a column lie. Groups without rows, which pyarrow makes of an empty batch, are left out.
    pub(super) fn groups(&self, column: usize) -> Read<Vec<Group>> {
        let size = self.begin + self.bytes.len() as u64;
        let (mut left, most) = (most_rows(size), GROUPS_OF_ANY + size / LEAST_GROUP_BYTES);
        let (mut groups, mut fault) = (Vec::new(), None);
        let parsed = Reader::new(&self.bytes).fields(&mut |reader, field, kind| match field {
            4 => reader.each(kind, &mut |reader, kind| {
                match self.group(reader, kind, column)? {
                    Ok(group) if group.rows == 0 => {}
                    Ok(group) if group.rows > left => {
                        fault = Some("it has more rows by its footer than so many bytes can have");
                    }
                    Ok(_) if groups.len() as u64 == most => {
                        fault = Some("its rows are in too many groups: write it anew with more rows in each");
                    }
                    Ok(group) => {
                        left -= group.rows;
                        groups.push(group);
                    }
                    Err(what) => fault = fault.take().or(Some(what)),
                }
                Ok(())
            }),
            _ => reader.skip(kind),
        });
        parsed.map_err(footer_fault)?;
        match fault {
            Some(fault) => Err(fault.into()),
            None if !lie_apart(&groups) => Err("its footer is damaged: rows lie where others lie".into()),
            None => Ok(groups),
        }
    }

    fn group(&self, reader: &mut Reader<'_>, kind: u8, wanted: usize) -> Parsed<Result<Group, &'static str>> {
        let (mut rows, mut part, mut fault) = (-1, None, None);
        reader.inside(kind, &mut |reader, field, kind| match field {
            1 => {
                let mut column = 0;
                reader.each(kind, &mut |reader, kind| {
                    column += 1;
                    if column - 1 != wanted {
                        return reader.skip(kind);
                    }
                    match self.part(reader, kind)? {
                        Ok(found) => part = Some(found),
                        Err(what) => fault = Some(what),
                    }
                    Ok(())
                })
            }
            3 => reader.integer(kind).map(|number| rows = number),
            _ => reader.skip(kind),
        })?;
        Ok(match (fault, u64::try_from(rows), part) {
            // Its columns may lie nowhere.
            (_, Ok(0), _) => Ok(Group { rows: 0, part: Part::default() }),
            (Some(what), ..) => Err(what),
            (None, Ok(rows), Some(part)) => Ok(Group { rows, part }),
            _ => Err("its footer is damaged: some rows have no place"),
        })
    }

    fn part(&self, reader: &mut Reader<'_>, kind: u8) -> Parsed<Result<Part, &'static str>> {
        let (mut elsewhere, mut encrypted) = (false, false);
        let (mut codec, mut bytes, mut data, mut dictionary) = (-1, -1, -1, None);
        reader.inside(kind, &mut |reader, field, kind| match field {
            1 => reader.text(kind).map(|path| elsewhere = !path.is_empty()),
            3 => reader.inside(kind, &mut |reader, field, kind| match field {
                4 => reader.integer(kind).map(|number| codec = number),
                7 => reader.integer(kind).map(|number| bytes = number),
                9 => reader.integer(kind).map(|number| data = number),
                11 => reader.integer(kind).map(|number| dictionary = Some(number).filter(|at| *at > 0)),
                _ => reader.skip(kind),
            }),
            8 | 9 => {
                encrypted = true;
                reader.skip(kind)
            }
            _ => reader.skip(kind),
        })?;
        if elsewhere {
            return Ok(Err("its columns lie in other files"));
        }
        if encrypted {
            return Ok(Err("its columns are encrypted"));
        }
        let begin = u64::try_from(dictionary.map_or(data, |at| at.min(data)));
        let end =
            begin.ok().zip(u64::try_from(bytes).ok()).and_then(|(begin, bytes)| begin.checked_add(bytes));
        Ok(match (begin, end) {
            (Ok(begin), Some(end)) if begin >= MAGIC.len() as u64 && end <= self.begin => {
                Ok(Part { codec, begin, end })
            }
            _ => Err("its footer is damaged: a column lies beyond the file"),
        })
    }

    pub(super) fn leaf(&self, column: usize) -> &Leaf {
        &self.leaves[column]
    }

    /// The first value of a column that is there.
    pub(super) fn first(&self, file: &File, column: usize, left_bytes: &mut Left) -> Read<Option<Vec<u8>>> {
        let leaf = self.leaf(column);
        for group in self.groups(column)? {
            let mut pages = Pages::new(file, &group, leaf, left_bytes);
            while let Some(page) = pages.next()? {
                if let Some(value) = page.bytes()?.next() {
                    return Ok(Some(value.to_vec()));
                }
            }
        }
        Ok(None)
    }
}

/// Whether no bytes are of two groups, for each of which they would be expanded anew.
fn lie_apart(groups: &[Group]) -> bool {
    let mut parts: Vec<Part> = groups.iter().map(|group| group.part).collect();
    parts.sort_unstable_by_key(|part| (part.begin, part.end));
    parts.windows(2).all(|two| two[0].end <= two[1].begin)
}

fn footer_fault(fault: Fault) -> String {
    match fault {
        Fault::Cut => "its footer is damaged: it ends early".into(),
        Fault::Malformed => "its footer is damaged".into(),
    }
}

/// A field of the file, or a group of fields.
#[derive(Debug, Default)]
struct Element {
    name: String,
    physical: Option<i64>,
    repetition: i64,
    children: i64,
    converted: Option<i64>,
    logical: Option<i64>,
}

impl Element {
    fn read(reader: &mut Reader<'_>, kind: u8) -> Parsed<Element> {
        let mut element = Element::default();
        reader.inside(kind, &mut |reader, field, kind| match field {
            1 => reader.integer(kind).map(|number| element.physical = Some(number)),
            3 => reader.integer(kind).map(|number| element.repetition = number),
            4 => {
                let name = reader.text(kind)?;
                if name.len() > MOST_NAME_BYTES {
                    return Err(Fault::Malformed);
                }
                element.name = String::from_utf8_lossy(name).into_owned();
                Ok(())
            }
            5 => reader.integer(kind).map(|number| element.children = number),
            6 => reader.integer(kind).map(|number| element.converted = Some(number)),
            10 => reader.inside(kind, &mut |reader, field, kind| {
                element.logical = Some(field);
                reader.skip(kind)
            }),
            _ => reader.skip(kind),
        })?;
        Ok(element)
    }

    fn physical(&self) -> Physical {
        match self.physical {
            Some(1) => Physical::Four,
            Some(2) => Physical::Eight,
            Some(6) => Physical::Bytes,
            _ => Physical::Other,
        }
    }

    fn kind(&self) -> Kind {
        match (self.physical(), self.logical, self.converted) {
            // Texts, JSON and enums; then what has no such mark, or is BSON.
            (Physical::Bytes, Some(1 | 4 | 12), _) | (Physical::Bytes, None, Some(0 | 4 | 19)) => Kind::Text,
            (Physical::Bytes, None | Some(13), None | Some(20)) => Kind::Bytes,
            // Not times and decimals.
            (Physical::Four | Physical::Eight, None | Some(10), None | Some(11..=18)) => Kind::Integer,
            _ => Kind::Other,
        }
    }
}

/// The columns of a tree that is given from the root on, each field before what is in it.
fn leaves(elements: &[Element]) -> Parsed<Vec<Leaf>> {
    struct Around {
        left: i64,
        path: String,
        level: u32,
        is_repeated: bool,
    }
    let Some((root, elements)) = elements.split_first() else { return Err(Fault::Malformed) };
    let mut around = vec![Around { left: root.children, path: String::new(), level: 0, is_repeated: false }];
    let mut leaves = Vec::new();
    for element in elements {
        while around.last().is_some_and(|last| last.left <= 0) {
            around.pop();
        }
        let depth = around.len();
        let Some(last) = around.last_mut().filter(|_| depth <= MOST_DEPTH) else {
            return Err(Fault::Malformed);
        };
        last.left -= 1;
        let name = match last.path.is_empty() {
            true => element.name.clone(),
            false => format!("{}.{}", last.path, element.name),
        };
        if name.len() > MOST_NAME_BYTES {
            return Err(Fault::Malformed);
        }
        let level = last.level + u32::from(element.repetition != REQUIRED);
        let is_repeated = last.is_repeated || element.repetition == REPEATED;
        match element.physical {
            Some(_) => leaves.push(Leaf {
                name,
                kind: element.kind(),
                physical: element.physical(),
                level,
                is_unsigned: matches!(element.converted, Some(11..=14)),
                is_repeated,
            }),
            None => around.push(Around { left: element.children, path: name, level, is_repeated }),
        }
    }
    Ok(leaves)
}
