//! Names of records: paths relative to what was packed, as bytes.

use std::cmp::Ordering;

/// The longest, in bytes: the longest path that Linux takes.
pub const MOST_NAME_BYTES: usize = 4096;

/// Each is a step on each way to the file, and a record of some bytes can name two thousand.
const MOST_FOLDERS: usize = 100;

/// The folder on the way to it, without the last `/`, and the rest.
pub fn parted(name: &[u8]) -> (&[u8], &[u8]) {
    name.iter().rposition(|byte| *byte == b'/').map_or((b"", name), |at| (&name[..at], &name[at + 1..]))
}

/// The topmost folder, which is the class of a picture; none of a file that lies in no folder.
pub fn class_of(name: &[u8]) -> Option<&[u8]> {
    name.iter().position(|byte| *byte == b'/').map(|at| &name[..at])
}

/// The order of a data set: by topmost folder, then by folder, then by file, each as bytes. torchvision's ImageFolder has
/// it.
pub fn compare(one: &[u8], other: &[u8]) -> Ordering {
    let key = |name| (class_of(name).unwrap_or_default(), parted(name));
    // Folders may be empty texts: the whole decides.
    key(one).cmp(&key(other)).then_with(|| one.cmp(other))
}

/// Why a file of this name must not be made below a folder; none where it may be.
pub fn fault_of(name: &[u8]) -> Option<&'static str> {
    if name.is_empty() {
        return Some("it is empty");
    }
    if name.len() > MOST_NAME_BYTES {
        return Some("it is longer than any path");
    }
    if name.contains(&0) {
        return Some("it has a zero byte");
    }
    if name[0] == b'/' {
        return Some("it is absolute");
    }
    let mut parts = name.split(|byte| *byte == b'/');
    if parts.clone().nth(MOST_FOLDERS + 1).is_some() {
        return Some("it lies in more than 100 folders");
    }
    parts.find_map(|part| match part {
        b".." => Some("it climbs out of the folder"),
        b"" | b"." => Some("a part of it is empty"),
        _ => None,
    })
}

/// Of a name in a sentence: a pack has ten thousand sentences, each of a record that may have the longest name.
pub(crate) const MOST_SHOWN_BYTES: usize = 300;

/// As text for a sentence, which a long one is cut for.
pub fn shown(name: &[u8]) -> String {
    match name.get(..MOST_SHOWN_BYTES) {
        // The last character may be cut.
        Some(begin) if name.len() > MOST_SHOWN_BYTES => {
            let begin = as_text(begin);
            format!("{}…", begin.trim_end_matches(char::REPLACEMENT_CHARACTER))
        }
        _ => as_text(name),
    }
}

/// As text.
pub fn as_text(name: &[u8]) -> String {
    // A copy, as bytes of a mapped file can change between being found to be text and being taken for it.
    let name = name.to_vec();
    String::from_utf8(name).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_is_by_topmost_folder_then_folder_then_file() {
        // A class's own files come before those of its folders, and all of a class before the next one.
        let sorted: [&[u8]; 7] =
            [b"readme", b"a/z.png", b"a/b/x.png", b"a-b/y.png", b"b/1", b"b/\xff", b"\xc3\xa9/1"];
        let mut names = sorted.to_vec();
        names.reverse();
        names.sort_by(|one, other| compare(one, other));
        assert_eq!(names, sorted);
    }

    #[test]
    fn names_that_lead_elsewhere_are_found() {
        for bad in
            [&b""[..], b"/etc/passwd", b"..", b"a/../../b", b"a//b", b"a/", b"./a", b"a\0b", &[b'x'; 5000]]
        {
            assert!(fault_of(bad).is_some(), "{bad:?}");
        }
        let deep = |folders| [b"a/".repeat(folders), b"x".to_vec()].concat();
        assert_eq!(fault_of(&deep(MOST_FOLDERS)), None);
        assert_eq!(fault_of(&deep(MOST_FOLDERS + 1)), Some("it lies in more than 100 folders"));
        for good in [&b"a"[..], b"a/..b", b"...", b"a/b\xff", b" "] {
            assert_eq!(fault_of(good), None, "{good:?}");
        }
    }
}
