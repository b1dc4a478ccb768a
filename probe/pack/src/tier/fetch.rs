//! Chunks that this process fetches, several at once: what comes is handed over from memory, and written to the folder beside.

use super::store::Unfinished;
use super::{FETCHED_AT_ONCE_BYTES, MOST_DAMAGED, Tier};
use crate::error::{Error, Result};
use crate::objects::{Got, Wanted};
use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// One of them. While it is there its chunk is this thread's to fetch.
#[derive(Debug)]
pub(super) struct Fetch<'a> {
    tier: &'a Tier,
    number: usize,
    /// None where it will not be kept.
    unfinished: Option<Unfinished>,
    /// So much of the chunk came; all of it where it is of no more use.
    at: u64,
    parts: Vec<Part>,
}

/// What is wanted of a chunk.
#[derive(Debug)]
struct Part {
    one: usize,
    range: Range<u64>,
    bytes: Vec<u8>,
}

impl<'a> Fetch<'a> {
    /// `of`: which of what is `wanted` is of this chunk.
    pub(super) fn new(
        tier: &'a Tier,
        number: usize,
        unfinished: Unfinished,
        of: Vec<usize>,
        wanted: &[Wanted],
    ) -> Fetch<'a> {
        let end = tier.chunks[number].1;
        let part = |one: usize| {
            let range = &wanted[one].range;
            Part { one, range: range.start..range.end.min(end), bytes: Vec::new() }
        };
        let parts = of.into_iter().map(part).collect();
        Fetch { tier, number, unfinished: Some(unfinished), at: 0, parts }
    }

    fn end(&self) -> u64 {
        self.tier.chunks[self.number].1
    }

    /// The next piece came, or did not.
    fn take(&mut self, piece: Range<u64>, got: Result<Got>, found: &mut [Option<Result<Got>>]) {
        let end = self.end();
        let got = match got {
            Ok(got) if got.size >= end && got.bytes.len() as u64 == piece.end - piece.start => got,
            Ok(_) => {
                // The store has another one. What is wanted of it is asked for by itself, and the error is that one's.
                self.tier.slots[self.number].damaged.store(MOST_DAMAGED, Ordering::Relaxed);
                return self.end_early();
            }
            Err(error) => {
                for part in &self.parts {
                    found[part.one] = Some(Err(same(&error)));
                }
                return self.end_early();
            }
        };
        for part in &mut self.parts {
            let (begin, end) = (part.range.start.max(piece.start), part.range.end.min(piece.end));
            if begin < end {
                let bytes = &got.bytes[(begin - piece.start) as usize..(end - piece.start) as usize];
                part.bytes.extend_from_slice(bytes);
            }
        }
        self.at = piece.end;
        if let Some(unfinished) = &self.unfinished
            && let Err(error) = self.tier.store.write(unfinished, &got.bytes, piece.start)
        {
            self.tier.pause(&error);
            self.give_up();
        }
        if self.at == end {
            for part in self.parts.drain(..) {
                found[part.one] = Some(Ok(Got { bytes: part.bytes, size: got.size }));
            }
        } else if self.unfinished.is_none() {
            // The rest is nobody's.
            self.end_early();
        }
    }

    fn end_early(&mut self) {
        self.give_up();
        self.at = self.end();
    }

    fn give_up(&mut self) {
        if let Some(unfinished) = self.unfinished.take() {
            self.tier.store.give_up(unfinished);
        }
    }

    fn finish(mut self) {
        if self.at == self.end()
            && let Some(unfinished) = self.unfinished.take()
            && let Err(error) = self.tier.store.finish(unfinished)
        {
            self.tier.pause(&error);
        }
    }
}

impl Drop for Fetch<'_> {
    fn drop(&mut self) {
        self.give_up();
        self.tier.over(self.number);
    }
}

/// Fetches them all, piece by piece where one is large.
pub(super) fn fetch(tier: &Tier, under_way: &mut Vec<Fetch<'_>>, found: &mut [Option<Result<Got>>]) {
    loop {
        let (mut pieces, mut wanted, mut left) = (Vec::new(), Vec::new(), FETCHED_AT_ONCE_BYTES);
        for (place, fetch) in under_way.iter().enumerate() {
            let end = fetch.end().min(fetch.at.saturating_add(left));
            if fetch.at < end {
                left -= end - fetch.at;
                pieces.push((place, fetch.at..end));
                wanted.push(Wanted { name: tier.chunks[fetch.number].0.file_name(), range: fetch.at..end });
            }
        }
        if wanted.is_empty() {
            break;
        }
        let mut answers = tier.objects.read(&wanted).into_iter();
        for (place, piece) in pieces {
            let none = || Err(Error::Refused("no answer of the store".into()));
            under_way[place].take(piece, answers.next().unwrap_or_else(none), found);
        }
    }
    under_way.drain(..).for_each(Fetch::finish);
}

/// The same error for another one that waited for the chunk.
fn same(error: &Error) -> Error {
    match error {
        Error::Io { doing, path, source } => {
            Error::Io { doing, path: path.clone(), source: io::Error::new(source.kind(), source.to_string()) }
        }
        Error::Damaged { path, what } => Error::Damaged { path: path.clone(), what: what.clone() },
        Error::Refused(sentence) => Error::Refused(sentence.clone()),
    }
}
