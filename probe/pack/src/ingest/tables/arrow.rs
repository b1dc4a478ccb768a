//! Arrow's stream format, as Hugging Face's data sets have it on disk. Values lie in the file as they are, so that no more is read of them
//! than where they are. Foreign bytes: no size of it is believed that the file does not have.

mod batch;

use super::columns::{Chosen, DESCRIPTION, Field, Kind, MOST_DESCRIPTION_BYTES};
use super::flat::Table;
use super::{Labels, Place, Read, Row, fault, io_fault};
use batch::Batch;
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// What the other form, which has a footer, begins with; its messages are the same.
const WITH_FOOTER: &[u8; 8] = b"ARROW1\0\0";
const GOES_ON: u32 = u32::MAX;
/// Of a message, without the values.
const MOST_MESSAGE_BYTES: u32 = 64 << 20;
/// Of what is read of a column at a time: where values lie, which are there, and labels.
const MOST_BUFFER_BYTES: u64 = if cfg!(fuzzing) { 16 << 20 } else { 512 << 20 };
const MOST_FIELDS: usize = 10_000;
const MOST_DEPTH: usize = 32;
const MOST_NAME_BYTES: usize = 1024;
/// Of the path that a record had.
const MOST_PATH_BYTES: u64 = 4096;

const SCHEMA: u8 = 1;
const DICTIONARY: u8 = 2;
const BATCH: u8 = 3;

const NULL: u8 = 1;
const INT: u8 = 2;
const BINARY: u8 = 4;
const TEXT: u8 = 5;
const STRUCT: u8 = 13;
const UNION: u8 = 14;
const FIXED_LIST: u8 = 16;
const LARGE_BINARY: u8 = 19;
const LARGE_TEXT: u8 = 20;
const RUN_ENDS: u8 = 22;
const BINARY_VIEW: u8 = 23;
const TEXT_VIEW: u8 = 24;
const LIST_VIEW: u8 = 25;
const LARGE_LIST_VIEW: u8 = 26;

/// A file whose columns are known.
#[derive(Debug)]
pub(super) struct Stream<'f> {
    file: &'f File,
    size: u64,
    /// Where the next message begins.
    at: u64,
    /// What messages, without the values of rows, may yet have together.
    left_of_messages: u64,
    leaves: Vec<Leaf>,
    nodes: Vec<Node>,
    pub(super) description: Option<Vec<u8>>,
}

/// What a field has in each batch, in the order of fields.
#[derive(Clone, Copy, Debug)]
struct Node {
    buffers: usize,
    /// Whether it has as many more as the batch says.
    has_more: bool,
}

/// A column that may be chosen, or is named alone.
#[derive(Clone, Debug)]
struct Leaf {
    field: Field,
    /// Its node, behind those of the fields around it.
    nodes: Vec<usize>,
    layout: Layout,
    /// The dictionary that has its values, which are numbers of entries then.
    dictionary: Option<(i64, Layout)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    /// Bytes or text: of so many bytes are the places of its values.
    Places(u64),
    /// Numbers of so many bytes, with a sign or without.
    Numbers(u64, bool),
    Other,
}

/// The place of a message's own bytes, and of the values that belong to it.
struct Message {
    bytes: Vec<u8>,
    body: u64,
}

impl<'f> Stream<'f> {
    /// `stored_bytes`: of its bytes those that lie on the disk.
    pub(super) fn open(file: &'f File, size: u64, stored_bytes: u64) -> Read<Stream<'f>> {
        let mut begin = [0; 8];
        if size < begin.len() as u64 {
            return fault("it is too short for an Arrow file");
        }
        file.read_exact_at(&mut begin, 0).map_err(io_fault)?;
        let at = if &begin == WITH_FOOTER { begin.len() as u64 } else { 0 };
        let (leaves, nodes) = (Vec::new(), Vec::new());
        let left_of_messages = stored_bytes.saturating_add(u64::from(MOST_MESSAGE_BYTES));
        let mut stream = Stream { file, size, at, left_of_messages, leaves, nodes, description: None };
        let not_one = "it is neither a Parquet nor an Arrow file";
        let message = stream.message().map_err(|_| not_one)?.ok_or(not_one)?;
        let root = Table::root(&message.bytes).ok_or(not_one)?;
        match (root.u8(1), root.table(2)) {
            (Some(SCHEMA), Some(schema)) => stream.describe(schema)?,
            _ => return fault(not_one),
        }
        Ok(stream)
    }

    fn describe(&mut self, schema: Table<'_>) -> Read<()> {
        if schema.i16(0).unwrap_or(0) != 0 {
            return fault("its numbers are big-endian");
        }
        let damaged = "its columns are damaged";
        let fields = schema.list(1, 4).ok_or(damaged)?;
        for number in 0..fields.count {
            let field = fields.table(number).ok_or(damaged)?;
            self.field(field, &Around { name: String::new(), nodes: Vec::new(), is_plain: true })?;
        }
        let notes = schema.list(2, 4).ok_or(damaged)?;
        let notes = (0..notes.count).filter_map(|number| notes.table(number));
        let mut found = notes.filter(|note| note.text(0) == Some(DESCRIPTION));
        let text = found.next().and_then(|note| note.text(1));
        self.description = text.filter(|text| text.len() <= MOST_DESCRIPTION_BYTES).map(<[u8]>::to_vec);
        Ok(())
    }

    fn field(&mut self, field: Table<'_>, around: &Around) -> Read<()> {
        let damaged = "its columns are damaged";
        let own = field.text(0).ok_or(damaged)?;
        let own = String::from_utf8_lossy(own);
        let name = match around.name.is_empty() {
            true => own.into_owned(),
            false => format!("{}.{own}", around.name),
        };
        let depth = around.nodes.len();
        if depth > MOST_DEPTH || self.nodes.len() >= MOST_FIELDS || name.len() > MOST_NAME_BYTES {
            return fault("it has too many columns, too deep, or with names too long");
        }
        let nodes = [around.nodes.as_slice(), &[self.nodes.len()]].concat();
        let (kind, of) = (field.u8(2).unwrap_or(0), field.table(3).unwrap_or_default());
        let layout = Layout::of(kind, of);
        if let Some(dictionary) = field.table(4) {
            // What is in it lies elsewhere.
            self.nodes.push(Node { buffers: 2, has_more: false });
            let numbers = dictionary.table(1).map_or(Layout::Numbers(4, true), Layout::of_numbers);
            let kind = match layout {
                Layout::Places(_) => Kind::Words,
                Layout::Numbers(..) => Kind::Integer,
                Layout::Other => Kind::Other,
            };
            let dictionary = Some((dictionary.i64(0).unwrap_or(0), layout));
            self.leaf(name, kind, nodes, numbers, dictionary, around);
            return Ok(());
        }
        let is_dense = of.i16(0).unwrap_or(0) == 1;
        let buffers = match kind {
            NULL | RUN_ENDS => 0,
            STRUCT | FIXED_LIST => 1,
            UNION => 1 + usize::from(is_dense),
            BINARY | TEXT | LARGE_BINARY | LARGE_TEXT | LIST_VIEW | LARGE_LIST_VIEW => 3,
            _ => 2,
        };
        self.nodes.push(Node { buffers, has_more: matches!(kind, BINARY_VIEW | TEXT_VIEW) });
        let children = field.list(5, 4).ok_or(damaged)?;
        if children.count == 0 {
            let chosen_as = match (kind, layout) {
                (BINARY | LARGE_BINARY, _) => Kind::Bytes,
                (TEXT | LARGE_TEXT, _) => Kind::Text,
                (_, Layout::Numbers(..)) => Kind::Integer,
                _ => Kind::Other,
            };
            self.leaf(name, chosen_as, nodes, layout, None, around);
            return Ok(());
        }
        let is_plain = around.is_plain && kind == STRUCT;
        let around = Around { name, nodes, is_plain };
        for number in 0..children.count {
            self.field(children.table(number).ok_or(damaged)?, &around)?;
        }
        Ok(())
    }

    fn leaf(
        &mut self,
        name: String,
        kind: Kind,
        nodes: Vec<usize>,
        layout: Layout,
        dictionary: Option<(i64, Layout)>,
        around: &Around,
    ) {
        let kind = if around.is_plain { kind } else { Kind::Other };
        self.leaves.push(Leaf { field: Field { name, kind }, nodes, layout, dictionary });
    }

    /// The columns, for who chooses among them.
    pub(super) fn fields(&self) -> Vec<Field> {
        self.leaves.iter().map(|leaf| leaf.field.clone()).collect()
    }

    /// The next message; none behind the last one.
    fn message(&mut self) -> Read<Option<Message>> {
        let mut head = [0; 8];
        let left = self.size - self.at;
        if left < 4 {
            return fault("it is cut: its end mark is not there");
        }
        let there = left.min(8) as usize;
        self.file.read_exact_at(&mut head[..there], self.at).map_err(io_fault)?;
        let [first, second] =
            [0, 4].map(|at| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]));
        // Before version 0.15 there was no mark before the length.
        let (count, begin) = match first {
            GOES_ON if there < 8 => return fault("it is cut"),
            GOES_ON => (second, self.at + 8),
            count => (count, self.at + 4),
        };
        if count == 0 {
            return Ok(None);
        }
        if count > MOST_MESSAGE_BYTES {
            return Err(format!("a message has {count} bytes by its word, which cannot be"));
        }
        let body = begin + u64::from(count);
        if body > self.size {
            return fault("it is cut");
        }
        self.spend(u64::from(count))?;
        let mut bytes = vec![0; count as usize];
        self.file.read_exact_at(&mut bytes, begin).map_err(io_fault)?;
        let root = Table::root(&bytes).ok_or("a message is damaged")?;
        let body_bytes = u64::try_from(root.i64(3).unwrap_or(0)).map_err(|_| "a message is damaged")?;
        let end = body.checked_add(body_bytes).filter(|end| *end <= self.size);
        self.at = end.ok_or("it is cut: a message's values should end behind it")?;
        Ok(Some(Message { bytes, body }))
    }

    /// Of messages that lie in holes of the file each would take as long, and as much memory, as one that is there.
    fn spend(&mut self, bytes: u64) -> Read<()> {
        let left = self.left_of_messages.checked_sub(bytes);
        self.left_of_messages = left.ok_or("its messages have more bytes than the file has on the disk")?;
        Ok(())
    }

    /// Reads all rows; up to a fault, if there is one. Behind them: the path of the first one that is there.
    pub(super) fn rows(
        &mut self,
        chosen: Chosen,
        most: u64,
        labels: &mut Labels,
        rows: &mut Vec<Row>,
    ) -> (Read<()>, Option<Vec<u8>>) {
        let mut path = None;
        let mut words = HashMap::new();
        let read = loop {
            match self.message() {
                Ok(None) => break Ok(()),
                Err(what) => break Err(what),
                Ok(Some(message)) => {
                    let before = rows.len();
                    let taken = self.take(&message, chosen, most, labels, &mut words, rows, &mut path);
                    if let Err(what) = taken {
                        rows.truncate(before);
                        break Err(what);
                    }
                }
            }
        };
        (read, path)
    }

    #[expect(clippy::too_many_arguments, reason = "what a message changes")]
    fn take(
        &mut self,
        message: &Message,
        chosen: Chosen,
        most: u64,
        labels: &mut Labels,
        words: &mut HashMap<i64, Vec<u32>>,
        rows: &mut Vec<Row>,
        path: &mut Option<Vec<u8>>,
    ) -> Read<()> {
        let damaged = "a message is damaged";
        let root = Table::root(&message.bytes).ok_or(damaged)?;
        let table = root.table(2).ok_or(damaged)?;
        let body_bytes = root.i64(3).unwrap_or(0) as u64;
        if root.u8(1) == Some(DICTIONARY) {
            self.spend(body_bytes)?;
        }
        let label = chosen.label.map(|label| &self.leaves[label]);
        match root.u8(1) {
            Some(DICTIONARY) => {
                let Some((id, layout)) = label.and_then(|label| label.dictionary) else { return Ok(()) };
                if table.i64(0).unwrap_or(0) != id {
                    return Ok(());
                }
                let is_more = table.u8(2) == Some(1);
                let buffers = if matches!(layout, Layout::Places(_)) { 3 } else { 2 };
                let node = Node { buffers, has_more: false };
                let data = table.table(1).ok_or(damaged)?;
                // Of all that are added to it together.
                let before = if is_more { words.get(&id).map_or(0, Vec::len) } else { 0 };
                let most = most.saturating_sub(before as u64);
                let batch = Batch::of(data, message.body, body_bytes, &[node], most)?;
                let entries = self.labels(&batch, &[0], layout, labels)?;
                let known = words.entry(id).or_default();
                if !is_more {
                    known.clear();
                }
                known.extend(entries);
                Ok(())
            }
            Some(BATCH) => {
                let most = most.saturating_sub(rows.len() as u64);
                let batch = Batch::of(table, message.body, body_bytes, &self.nodes, most)?;
                let record = &self.leaves[chosen.record];
                let numbers = match label {
                    None => vec![u32::MAX; batch.rows as usize],
                    Some(Leaf { nodes, layout, dictionary: None, .. }) => {
                        self.labels(&batch, nodes, *layout, labels)?
                    }
                    Some(Leaf { nodes, layout, dictionary: Some((id, _)), .. }) => {
                        let entries = words.get(id).map_or(&[][..], Vec::as_slice);
                        let (present, numbers) = self.numbers(&batch, nodes, *layout)?;
                        let of = |number: i64| {
                            let entry = usize::try_from(number).ok().and_then(|number| entries.get(number));
                            entry.copied().ok_or("a label is not in its dictionary")
                        };
                        let found = numbers.into_iter().zip(&present);
                        found
                            .map(|(number, is_there)| if *is_there { of(number) } else { Ok(u32::MAX) })
                            .collect::<Result<_, _>>()?
                    }
                };
                let (present, places) = self.places(&batch, &record.nodes, record.layout)?;
                let values = batch.buffer(record.nodes.last().copied().unwrap_or(0), 2, 0)?.0;
                if path.is_none()
                    && let (Some(leaf), Some(row)) =
                        (chosen.path, present.iter().position(|is_there| *is_there))
                {
                    *path = Some(self.path(&batch, &self.leaves[leaf], row).unwrap_or_default());
                }
                rows.extend(present.iter().zip(places.windows(2)).zip(numbers).map(
                    |((is_there, span), label)| Row {
                        place: if *is_there { Place::InFile(values + span[0]) } else { Place::Null },
                        bytes: if *is_there { span[1] - span[0] } else { 0 },
                        label,
                    },
                ));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// So many bytes of a buffer.
    fn bytes(&self, batch: &Batch<'_>, node: usize, buffer: usize, count: u64) -> Read<Vec<u8>> {
        if count > MOST_BUFFER_BYTES {
            return fault("a batch has too many rows");
        }
        let (at, _) = batch.buffer(node, buffer, count)?;
        let mut bytes = vec![0; count as usize];
        self.file.read_exact_at(&mut bytes, at).map_err(io_fault)?;
        Ok(bytes)
    }

    /// Of each row whether its value, and all around it, is there.
    fn present(&self, batch: &Batch<'_>, nodes: &[usize]) -> Read<Vec<bool>> {
        let mut present = vec![true; batch.rows as usize];
        for node in nodes {
            // Without nulls it may have no bits.
            if batch.nulls(*node)? == 0 || batch.buffer(*node, 0, 0)?.1 == 0 {
                continue;
            }
            let bits = self.bytes(batch, *node, 0, batch.rows.div_ceil(8))?;
            for (row, is_there) in present.iter_mut().enumerate() {
                *is_there &= bits[row / 8] >> (row % 8) & 1 == 1;
            }
        }
        Ok(present)
    }

    /// Where values begin within their buffer, and where the last one ends.
    fn places(&self, batch: &Batch<'_>, nodes: &[usize], layout: Layout) -> Read<(Vec<bool>, Vec<u64>)> {
        let (Layout::Places(width), Some(node)) = (layout, nodes.last()) else {
            return fault("a column is of another kind than its values");
        };
        let present = self.present(batch, nodes)?;
        if batch.rows == 0 {
            return Ok((present, Vec::new()));
        }
        let bytes = self.bytes(batch, *node, 1, (batch.rows + 1).saturating_mul(width))?;
        let places: Vec<u64> =
            bytes.chunks_exact(width as usize).map(|place| number(place, false) as u64).collect();
        let all = batch.buffer(*node, 2, 0)?.1;
        match places.is_sorted() && places.last().is_some_and(|last| *last <= all) {
            true => Ok((present, places)),
            false => fault("values lie beyond their batch"),
        }
    }

    fn numbers(&self, batch: &Batch<'_>, nodes: &[usize], layout: Layout) -> Read<(Vec<bool>, Vec<i64>)> {
        let (Layout::Numbers(width, is_signed), Some(node)) = (layout, nodes.last()) else {
            return fault("a column is of another kind than its values");
        };
        let present = self.present(batch, nodes)?;
        let bytes = self.bytes(batch, *node, 1, batch.rows.saturating_mul(width))?;
        let numbers = bytes.chunks_exact(width as usize).map(|bytes| number(bytes, is_signed)).collect();
        Ok((present, numbers))
    }

    /// The labels of all rows.
    fn labels(
        &self,
        batch: &Batch<'_>,
        nodes: &[usize],
        layout: Layout,
        labels: &mut Labels,
    ) -> Read<Vec<u32>> {
        if let Layout::Numbers(..) = layout {
            let (present, numbers) = self.numbers(batch, nodes, layout)?;
            return numbers
                .into_iter()
                .zip(present)
                .map(|(number, is_there)| if is_there { labels.number(number) } else { Ok(u32::MAX) })
                .collect();
        }
        let (present, places) = self.places(batch, nodes, layout)?;
        let (Some(begin), Some(end)) = (places.first().copied(), places.last().copied()) else {
            return Ok(Vec::new());
        };
        if end - begin > MOST_BUFFER_BYTES {
            return fault("a batch has labels that are too long");
        }
        let at = batch.buffer(nodes.last().copied().unwrap_or(0), 2, end)?.0 + begin;
        let mut texts = vec![0; (end - begin) as usize];
        self.file.read_exact_at(&mut texts, at).map_err(io_fault)?;
        let text = |span: &[u64]| &texts[(span[0] - begin) as usize..(span[1] - begin) as usize];
        let found = present.iter().zip(places.windows(2));
        found.map(|(is_there, span)| if *is_there { labels.word(text(span)) } else { Ok(u32::MAX) }).collect()
    }

    /// The text of one row.
    fn path(&self, batch: &Batch<'_>, leaf: &Leaf, row: usize) -> Read<Vec<u8>> {
        let (present, places) = self.places(batch, &leaf.nodes, leaf.layout)?;
        let count = places[row + 1] - places[row];
        if !present[row] || count > MOST_PATH_BYTES {
            return Ok(Vec::new());
        }
        let at = batch.buffer(leaf.nodes.last().copied().unwrap_or(0), 2, 0)?.0 + places[row];
        let mut bytes = vec![0; count as usize];
        self.file.read_exact_at(&mut bytes, at).map_err(io_fault)?;
        Ok(bytes)
    }
}

/// What a field lies in.
struct Around {
    name: String,
    nodes: Vec<usize>,
    /// Whether there is one value for each row.
    is_plain: bool,
}

impl Layout {
    fn of(kind: u8, of: Table<'_>) -> Layout {
        match kind {
            BINARY | TEXT => Layout::Places(4),
            LARGE_BINARY | LARGE_TEXT => Layout::Places(8),
            INT => Layout::of_numbers(of),
            _ => Layout::Other,
        }
    }

    fn of_numbers(of: Table<'_>) -> Layout {
        match of.i32(0) {
            Some(bits @ (8 | 16 | 32 | 64)) => Layout::Numbers(bits as u64 / 8, of.u8(1) == Some(1)),
            _ => Layout::Other,
        }
    }
}

/// Of up to eight bytes.
fn number(bytes: &[u8], is_signed: bool) -> i64 {
    let is_negative = is_signed && bytes.last().is_some_and(|last| last & 0x80 != 0);
    let mut whole = [if is_negative { 0xff } else { 0 }; 8];
    whole[..bytes.len()].copy_from_slice(bytes);
    i64::from_le_bytes(whole)
}
