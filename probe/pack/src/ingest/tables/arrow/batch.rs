//! A batch of rows of an Arrow stream: which of its buffers lie where.

use super::Node;
use crate::ingest::tables::flat::Table;
use crate::ingest::tables::{Read, fault};

/// Rows of the table.
pub(super) struct Batch<'m> {
    table: Table<'m>,
    body: u64,
    body_bytes: u64,
    pub(super) rows: u64,
    /// Of each node, the number of its first buffer.
    first: Vec<usize>,
}

impl<'m> Batch<'m> {
    pub(super) fn of(
        table: Table<'m>,
        body: u64,
        body_bytes: u64,
        nodes: &[Node],
        most: u64,
    ) -> Read<Batch<'m>> {
        let damaged = "a batch is damaged";
        if table.table(3).is_some() {
            return fault(
                "its batches are compressed, which is not expanded here: write it anew without compression",
            );
        }
        let rows = u64::try_from(table.i64(0).unwrap_or(0)).map_err(|_| damaged)?;
        if rows > most {
            return fault("it has more rows than so many bytes can have");
        }
        // Otherwise a message of few bytes would take the work of all columns.
        if table.list(1, 16).is_none_or(|own| own.count < nodes.len()) {
            return fault(damaged);
        }
        let more = table.list(4, 8).ok_or(damaged)?;
        let (mut first, mut next, mut views) = (Vec::with_capacity(nodes.len()), 0_usize, 0);
        for node in nodes {
            first.push(next);
            next = next.saturating_add(node.buffers);
            if node.has_more {
                let count = if views < more.count { more.i64_at(views * 8) } else { None };
                let count = usize::try_from(count.unwrap_or(0)).map_err(|_| damaged)?;
                next = next.saturating_add(count);
                views += 1;
            }
        }
        Ok(Batch { table, body, body_bytes, rows, first })
    }

    /// How many nulls a node has, which has as many values as the batch has rows.
    pub(super) fn nulls(&self, node: usize) -> Read<i64> {
        let nodes = self.table.list(1, 16).filter(|nodes| node < nodes.count);
        let nodes = nodes.ok_or("a batch is damaged")?;
        match (nodes.i64_at(node * 16), nodes.i64_at(node * 16 + 8)) {
            (Some(rows), Some(nulls)) if rows as u64 == self.rows => Ok(nulls),
            _ => fault("a batch has columns of several lengths"),
        }
    }

    /// Where a node's buffer lies in the file, and its bytes, which are `least` at least.
    pub(super) fn buffer(&self, node: usize, number: usize, least: u64) -> Read<(u64, u64)> {
        let damaged = "a batch is damaged";
        let at = self.first.get(node).ok_or(damaged)?.saturating_add(number);
        let buffers = self.table.list(2, 16).filter(|buffers| at < buffers.count).ok_or(damaged)?;
        let offset = buffers.i64_at(at * 16).and_then(|offset| u64::try_from(offset).ok());
        let bytes = buffers.i64_at(at * 16 + 8).and_then(|bytes| u64::try_from(bytes).ok());
        let (offset, bytes) = offset.zip(bytes).ok_or(damaged)?;
        let end = offset.checked_add(bytes);
        match end.is_some_and(|end| end <= self.body_bytes) && bytes >= least {
            true => Ok((self.body + offset, bytes)),
            false => fault("values lie beyond their batch"),
        }
    }
}
