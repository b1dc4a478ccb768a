//! Names in the folder, and how its files are opened: plain ones alone, and through no link.

use crate::error::{Doing, Error, Result};
use crate::id::Id;
use stallscope_folder::{Folder, NotOwn};
pub(super) use stallscope_folder::{ask_for, open_plain as open};
use std::path::Path;

const UNFINISHED: &str = ".tmp";
const CHUNK: &str = ".chunk";
const LOCK: &str = ".lock";
/// Of a version, in hexadecimal digits.
const VERSION_DIGITS: usize = 64;

/// What a file in the folder is: of which state of which pack, and what of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Named<'a> {
    Chunk(&'a str, Id),
    /// A chunk that is being fetched.
    Unfinished(&'a str, Id),
    /// Held, shared, by each process that has the pack open.
    Lock(&'a str),
}

/// None of a file that is not ours.
pub(super) fn named(name: &str) -> Option<Named<'_>> {
    let (state, rest) = name.split_at_checked(VERSION_DIGITS)?;
    if !state.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')) {
        return None;
    }
    if rest == LOCK {
        return Some(Named::Lock(state));
    }
    let rest = rest.strip_prefix('-')?;
    match rest.strip_suffix(UNFINISHED) {
        Some(id) => Some(Named::Unfinished(state, Id::of_file_name(format!("{id}{CHUNK}").as_bytes())?)),
        None => Some(Named::Chunk(state, Id::of_file_name(rest.as_bytes())?)),
    }
}

pub(super) fn state_of(version: [u8; 32]) -> String {
    version.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(super) fn chunk_name(state: &str, id: Id) -> String {
    format!("{state}-{id}{CHUNK}")
}

pub(super) fn unfinished_name(state: &str, id: Id) -> String {
    format!("{state}-{id}{UNFINISHED}")
}

pub(super) fn lock_name(state: &str) -> String {
    format!("{state}{LOCK}")
}

/// Opens the folder that the user named, and makes it where it is missing.
pub(super) fn folder_at(path: &Path) -> Result<Folder> {
    let shown = path.display();
    match Folder::own(path) {
        Ok(folder) => Ok(folder),
        Err(NotOwn::Blocked(blocked)) => Err(blocked).doing("keep chunks in", path),
        Err(NotOwn::AnothersFolder) => Err(Error::Refused(format!(
            "cannot keep chunks in {shown}: it belongs to another user; name a folder of your own"
        ))),
        Err(NotOwn::WritableByOthers) => Err(Error::Refused(format!(
            "cannot keep chunks in {shown}: other users may write to it; `chmod go-w {shown}`, or name a folder in it that is made then"
        ))),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

    use super::*;

    #[test]
    fn only_what_is_ours_has_a_name() {
        let (state, id) = (state_of([0xa7; 32]), Id([0x3f; 16]));
        assert_eq!(named(&chunk_name(&state, id)), Some(Named::Chunk(&state, id)));
        assert_eq!(named(&unfinished_name(&state, id)), Some(Named::Unfinished(&state, id)));
        assert_eq!(named(&lock_name(&state)), Some(Named::Lock(&state)));
        let upper = chunk_name(&state, id).to_uppercase();
        let long = format!("{}x", lock_name(&state));
        let short = &chunk_name(&state, id)[1..];
        let own = id.file_name();
        for name in
            ["account", "", "snapshot", &own, &upper, &long, short, &"é".repeat(40), &format!("{state}-.tmp")]
        {
            assert_eq!(named(name), None, "{name}");
        }
    }
}
