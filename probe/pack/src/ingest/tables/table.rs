//! One file of a table.

use super::arrow::Stream;
use super::columns::{Chosen, Columns, Field, Kind, choose, ending};
use super::pages::{Pages, Values};
use super::parquet::{Footer, Group, Leaf};
use super::spill::{Made, Spill};
use super::{Beyond, Facts, LEAST_ROW_BYTES, Labels, Left, Place, Read, Row, fault, most_rows};
use crate::error::{Doing, Result};
use crate::record::Record;
use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::Arc;

/// Digits of a row's number in its name: as many as the largest pack needs, so that names sort as rows do.
pub(super) const DIGITS: usize = 10;
/// Of a value, by which its kind is known.
const KNOWN_BY_BYTES: usize = 16;

#[derive(Debug)]
pub(super) struct Table {
    pub(super) path: PathBuf,
    /// What its rows lie in.
    pub(super) folder: Vec<u8>,
    pub(super) file: Arc<File>,
    pub(super) facts: Facts,
    /// Of its bytes those that lie on the disk: of one that is made of holes the others cost nobody anything.
    stored_bytes: u64,
    /// Of the names of its rows, with the dot.
    ending: String,
    pub(super) rows: Vec<Row>,
    /// What is to be expanded before it can be read.
    pub(super) groups: Vec<Group>,
    leaf: Option<Leaf>,
    /// The column that is packed.
    column: String,
    has_paths: bool,
    /// What values that were not found yet may have together.
    left_of_values: Left,
    /// What pages that were not expanded yet may have together.
    left_of_pages: Left,
}

/// Some file systems in user space count no blocks at all; of others a file that has bytes has some.
pub(in crate::ingest) fn stored(described: &Metadata) -> u64 {
    match described.blocks().saturating_mul(512) {
        0 => described.len(),
        stored => stored.min(described.len()),
    }
}

impl Table {
    /// None where it cannot be packed, of which `problem` has heard.
    pub(super) fn read(
        path: PathBuf,
        folder: Vec<u8>,
        file: File,
        columns: Columns<'_>,
        labels: &mut Labels,
        beyond: &mut Beyond,
        problem: &mut dyn FnMut(String),
    ) -> Result<Option<Table>> {
        let described = file.metadata().doing("open", &path)?;
        let (facts, stored_bytes) = (Facts::of(&described), stored(&described));
        let mut table = Table {
            path,
            folder,
            file: Arc::new(file),
            facts,
            stored_bytes,
            ending: String::new(),
            rows: Vec::new(),
            groups: Vec::new(),
            leaf: None,
            column: String::new(),
            has_paths: false,
            left_of_values: Left::of(stored_bytes, &beyond.values),
            left_of_pages: Left::of(stored_bytes, &beyond.pages),
        };
        labels.unfit = 0;
        let mut begin = [0; 4];
        let is_parquet = table.file.read_at(&mut begin, 0).is_ok() && matches!(&begin, b"PAR1" | b"PARE");
        let read = match is_parquet {
            true => table.read_parquet(columns, labels, &mut beyond.rows)?,
            false => table.read_arrow(columns, labels, &mut beyond.rows)?,
        };
        if let Err(what) = read {
            let path = table.path.display();
            problem(match table.rows.is_empty() {
                true => format!("{path} is not packed: {what}"),
                false => format!("{path} is packed up to a fault alone: {what}"),
            });
            if table.rows.is_empty() {
                return Ok(None);
            }
        }
        if labels.unfit > 0 {
            let (rows, path) = (labels.unfit, table.path.display());
            problem(format!(
                "{rows} rows of {path} are packed without a label: theirs are no whole numbers from 0 on"
            ));
        }
        Ok(Some(table))
    }

    fn read_arrow(
        &mut self,
        columns: Columns<'_>,
        labels: &mut Labels,
        left_rows: &mut u64,
    ) -> Result<Read<()>> {
        let (file, size) = (self.file.clone(), self.facts.bytes);
        let mut stream = match Stream::open(&file, size, self.stored_bytes) {
            Ok(stream) => stream,
            Err(what) => return Ok(Err(what)),
        };
        let fields = stream.fields();
        let chosen = choose(&fields, stream.description.as_deref(), columns, &self.path)?;
        let most = most_rows(self.stored_bytes).min(self.own_rows().saturating_add(*left_rows));
        let (mut read, path) = stream.rows(chosen, most, labels, &mut self.rows);
        if let Some(at) = self.rows.iter().position(|row| !self.left_of_values.take(row.bytes)) {
            self.rows.truncate(at);
            read = Err("its values have more bytes than so many on the disk can have".into());
        }
        *left_rows = left_rows.saturating_sub((self.rows.len() as u64).saturating_sub(self.own_rows()));
        self.describe(&fields, chosen);
        if fields[chosen.record].kind == Kind::Bytes {
            let first = self.rows.iter().find_map(|row| match row.place {
                Place::InFile(at) => Some((at, row.bytes)),
                _ => None,
            });
            let mut begin = vec![0; first.map_or(0, |(_, bytes)| KNOWN_BY_BYTES.min(bytes as usize))];
            if let Some((at, _)) = first {
                file.read_exact_at(&mut begin, at).doing("read", &self.path)?;
            }
            self.end_in(&ending(&begin, path.as_deref()));
        }
        Ok(read)
    }

    fn read_parquet(
        &mut self,
        columns: Columns<'_>,
        labels: &mut Labels,
        left_rows: &mut u64,
    ) -> Result<Read<()>> {
        let (file, size) = (self.file.clone(), self.facts.bytes);
        let footer = match Footer::read(&file, size) {
            Ok(footer) => footer,
            Err(what) => return Ok(Err(what)),
        };
        let fields = footer.fields();
        let chosen = choose(&fields, footer.description.as_deref(), columns, &self.path)?;
        self.describe(&fields, chosen);
        Ok(self.read_groups(&file, &footer, chosen, labels, left_rows).map(|()| {
            if fields[chosen.record].kind == Kind::Bytes {
                // A fault has a sentence when the row is packed.
                let mut first = |column| footer.first(&file, column, &mut self.left_of_pages).ok().flatten();
                let path = chosen.path.and_then(&mut first);
                let ending = ending(&first(chosen.record).unwrap_or_default(), path.as_deref());
                self.end_in(&ending);
            }
        }))
    }

    /// As many as its bytes can have.
    fn own_rows(&self) -> u64 {
        self.stored_bytes / LEAST_ROW_BYTES
    }

    /// `left_rows`: of those that all files may have beyond their bytes.
    fn read_groups(
        &mut self,
        file: &File,
        footer: &Footer,
        chosen: Chosen,
        labels: &mut Labels,
        left_rows: &mut u64,
    ) -> Read<()> {
        self.groups = footer.groups(chosen.record)?;
        self.leaf = Some(footer.leaf(chosen.record).clone());
        let rows = self.groups.iter().map(|group| group.rows).sum::<u64>();
        let left = left_rows.checked_sub(rows.saturating_sub(self.own_rows()));
        *left_rows = left.ok_or("it and files before it have more rows than so many bytes can have")?;
        let mut found = vec![Row { place: Place::Unread, bytes: 0, label: u32::MAX }; rows as usize];
        if let Some(label) = chosen.label {
            self.read_labels(file, footer, label, labels, &mut found)?;
        }
        self.rows = found;
        Ok(())
    }

    fn read_labels(
        &mut self,
        file: &File,
        footer: &Footer,
        column: usize,
        labels: &mut Labels,
        rows: &mut [Row],
    ) -> Read<()> {
        let (leaf, mut at) = (footer.leaf(column), 0);
        for group in footer.groups(column)? {
            let mut pages = Pages::new(file, &group, leaf, &mut self.left_of_pages);
            let mut known = HashMap::new();
            while let Some(page) = pages.next()? {
                let numbers: Vec<u32> = match &page.values {
                    Values::Integers(numbers) => {
                        numbers.iter().map(|number| labels.number(*number)).collect::<Read<_>>()?
                    }
                    Values::Bytes(..) => labels.words(&page, &mut known)?,
                };
                let mut numbers = numbers.into_iter();
                for is_there in &page.present {
                    if *is_there {
                        rows[at].label = numbers.next().unwrap_or(u32::MAX);
                    }
                    at += 1;
                }
            }
        }
        Ok(())
    }

    fn describe(&mut self, fields: &[Field], chosen: Chosen) {
        let field = &fields[chosen.record];
        self.column = field.name.clone();
        self.has_paths = chosen.path.is_some();
        if field.kind == Kind::Text {
            self.end_in("txt");
        }
    }

    fn end_in(&mut self, ending: &str) {
        self.ending = if ending.is_empty() { String::new() } else { format!(".{ending}") };
    }

    pub(super) fn name(&self, row: usize) -> Vec<u8> {
        let number = format!("/{row:0DIGITS$}{}", self.ending);
        [self.folder.as_slice(), number.as_bytes()].concat()
    }

    /// Whether the pack has all of these rows, of this file as it is; they are not read again then.
    pub(super) fn is_packed<'r>(
        &mut self,
        rows: Range<usize>,
        known: &dyn Fn(&[u8]) -> Option<&'r Record>,
    ) -> bool {
        let packed: Option<Vec<u64>> = rows
            .clone()
            .map(|row| {
                let record = known(&self.name(row))?;
                let label = record.label.unwrap_or(u32::MAX);
                let is_same = record.mtime_ns == self.facts.mtime_ns && label == self.rows[row].label;
                is_same.then_some(record.bytes)
            })
            .collect();
        let Some(packed) = packed else { return false };
        for (row, bytes) in self.rows[rows].iter_mut().zip(packed) {
            (row.place, row.bytes) = (Place::Packed, bytes);
        }
        true
    }

    /// A sentence if the file is not the one any more whose footer was read.
    pub(super) fn changed(&mut self) -> Result<Option<String>> {
        if Facts::of(&self.file.metadata().doing("read", &self.path)?) == self.facts {
            return Ok(None);
        }
        let others = self.rows.iter_mut().filter(|row| row.place != Place::Packed);
        others.for_each(|row| row.place = Place::Gone);
        Ok(Some(format!("{} is not packed: it was changed while it was read", self.path.display())))
    }

    /// A sentence on rows without bytes.
    pub(super) fn nulls(&self) -> Option<String> {
        let mut nulls = (0..self.rows.len()).filter(|row| self.rows[*row].place == Place::Null);
        let first = nulls.next()?;
        let (path, column, more) = (self.path.display(), &self.column, nulls.count());
        let elsewhere = match self.has_paths {
            true => "; if they are paths to files, pack the folder of those",
            false => "",
        };
        Some(match more {
            0 => format!("row {first} of {path} is not packed: its {column} is null{elsewhere}"),
            more => format!(
                "{} rows of {path} are not packed, the first is row {first}: their {column} is null{elsewhere}",
                more + 1
            ),
        })
    }

    /// Finds the bytes of a group's rows, up to a fault.
    pub(super) fn unpack(
        &mut self,
        group: &Group,
        first: usize,
        make: &dyn Fn() -> Result<Made>,
        spill: &mut Spill,
    ) -> Result<Read<()>> {
        let (file, Some(leaf)) = (self.file.clone(), self.leaf.clone()) else { return Ok(Ok(())) };
        let mut pages = Pages::new(&file, group, &leaf, &mut self.left_of_pages);
        let mut at = first;
        loop {
            let page = match pages.next() {
                Ok(Some(page)) => page,
                Ok(None) => break,
                Err(what) => return Ok(Err(what)),
            };
            let Values::Bytes(spans, held) = &page.values else {
                return Ok(fault("it has numbers where it should have bytes"));
            };
            let bytes = spans.iter().map(|span| span.len() as u64).sum();
            if !self.left_of_values.take(bytes) {
                return Ok(fault("its values have more bytes than such a file can have"));
            }
            let place = match held.at {
                Some(at) => Place::InFile(at),
                None => Place::InSpill(spill.put(held, make)?),
            };
            let mut spans = spans.iter();
            for is_there in &page.present {
                let row = &mut self.rows[at];
                at += 1;
                match if *is_there { spans.next() } else { None } {
                    None => row.place = Place::Null,
                    Some(span) => {
                        row.bytes = span.len() as u64;
                        row.place = match place {
                            Place::InFile(begin) => Place::InFile(begin + span.start as u64),
                            Place::InSpill(begin) => Place::InSpill(begin + span.start as u64),
                            other => other,
                        };
                    }
                }
            }
        }
        Ok(Ok(()))
    }
}
