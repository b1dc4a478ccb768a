//! Which column of a table is packed, and which has the labels.

use crate::error::{Error, Result};
use serde_json::value::RawValue;
use std::collections::{HashMap, HashSet};
use std::path::Path;

/// Columns that a caller names. A field within others is named as `image.bytes`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Columns<'a> {
    /// Whose values become the files of the pack; None: the one that there is of its kind.
    pub record: Option<&'a str>,
    /// Whose values are the labels; None: the one that is described as labels, or is called `label`.
    pub label: Option<&'a str>,
}

/// A column of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Field {
    /// With those of the fields around it, and dots between.
    pub(super) name: String,
    pub(super) kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Bytes,
    Text,
    Integer,
    /// Text whose values are numbers of a dictionary: a label alone.
    Words,
    /// What can be neither packed nor a label, among it lists.
    Other,
}

/// Numbers of columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chosen {
    pub(super) record: usize,
    pub(super) label: Option<usize>,
    /// Of the path that a record had as a file, beside its bytes.
    pub(super) path: Option<usize>,
}

/// The key that Hugging Face describes columns under.
pub(super) const DESCRIPTION: &[u8] = b"huggingface";
pub(super) const MOST_DESCRIPTION_BYTES: usize = 4 << 20;
/// So many columns are named in a sentence.
const MOST_NAMED: usize = 20;
/// What Hugging Face calls the bytes and the path of a picture or a sound.
const BYTES: &str = ".bytes";
const PATH: &str = ".path";
const LABEL: &str = "label";

/// `description`: of the columns, as Hugging Face writes it into a table.
pub(super) fn choose(
    fields: &[Field],
    description: Option<&[u8]>,
    columns: Columns<'_>,
    path: &Path,
) -> Result<Chosen> {
    let label = label(fields, description, columns, path)?;
    let record = record(fields, label, columns, path)?;
    let beside = fields[record].name.strip_suffix(BYTES).map(|around| format!("{around}{PATH}"));
    let path = beside
        .and_then(|beside| fields.iter().position(|field| field.kind == Kind::Text && field.name == beside));
    Ok(Chosen { record, label, path })
}

fn record(fields: &[Field], label: Option<usize>, columns: Columns<'_>, path: &Path) -> Result<usize> {
    let is_packable = |field: &Field| matches!(field.kind, Kind::Bytes | Kind::Text);
    if let Some(name) = columns.record {
        let within = format!("{name}{BYTES}");
        let found = fields.iter().position(|field| is_packable(field) && field.name == name);
        let found =
            found.or_else(|| fields.iter().position(|field| is_packable(field) && field.name == within));
        return found.ok_or_else(|| {
            refused(path, fields, &format!("has no column {name} of bytes or text"), "--column")
        });
    }
    let all = |is_one: &dyn Fn(usize, &Field) -> bool| -> Vec<usize> {
        (0..fields.len()).filter(|at| is_one(*at, &fields[*at])).collect()
    };
    let pictures = all(&|_, field| field.kind == Kind::Bytes && field.name.ends_with(BYTES));
    let bytes = all(&|_, field| field.kind == Kind::Bytes);
    let texts =
        all(&|at, field| field.kind == Kind::Text && Some(at) != label && !field.name.ends_with(PATH));
    let most_likely = [pictures, bytes, texts].into_iter().find(|found| !found.is_empty());
    match most_likely.as_deref() {
        Some([one]) => Ok(*one),
        Some(_) => Err(refused(path, fields, "has several columns that can be packed", "--column")),
        None => Err(Error::Refused(format!(
            "{} has no column of bytes or text, and nothing else can be packed; it has {}",
            path.display(),
            named(fields)
        ))),
    }
}

fn label(
    fields: &[Field],
    description: Option<&[u8]>,
    columns: Columns<'_>,
    path: &Path,
) -> Result<Option<usize>> {
    let is_label = |field: &Field| matches!(field.kind, Kind::Integer | Kind::Text | Kind::Words);
    let called = |name: &str| fields.iter().position(|field| is_label(field) && field.name == name);
    if let Some(name) = columns.label {
        let missing = format!("has no column {name} of whole numbers or text");
        return match called(name) {
            Some(at) => Ok(Some(at)),
            None => Err(refused(path, fields, &missing, "--label")),
        };
    }
    let described = described_as_labels(description.unwrap_or_default());
    let mut seen = HashSet::new();
    let described: Vec<usize> = (0..fields.len())
        .filter(|at| is_label(&fields[*at]) && described.contains(&fields[*at].name))
        .filter(|at| seen.insert(&fields[*at].name))
        .collect();
    match described.as_slice() {
        [] => Ok(called(LABEL).filter(|at| columns.record != Some(&fields[*at].name))),
        [one] => Ok(Some(*one)),
        _ => Err(refused(path, fields, "has several columns of labels", "--label")),
    }
}

/// The columns that Hugging Face's description has as classes. A part of it at a time, as a tree of all takes a hundred times its bytes.
fn described_as_labels(description: &[u8]) -> HashSet<String> {
    fn within(text: &str) -> HashMap<String, &RawValue> {
        serde_json::from_str(text).unwrap_or_default()
    }
    fn at<'d>(text: &'d str, key: &str) -> &'d str {
        within(text).get(key).map_or("", |value| value.get())
    }
    let description = str::from_utf8(description).unwrap_or_default();
    let features = within(at(at(description, "info"), "features"));
    let classes = features.into_iter().filter(|(_, feature)| at(feature.get(), "_type") == "\"ClassLabel\"");
    classes.map(|(name, _)| name).collect()
}

fn refused(path: &Path, fields: &[Field], what: &str, option: &str) -> Error {
    Error::Refused(format!("{} {what}; name one by {option}: it has {}", path.display(), named(fields)))
}

fn named(fields: &[Field]) -> String {
    let kind = |kind| match kind {
        Kind::Bytes => "bytes",
        Kind::Text => "text",
        Kind::Integer => "whole numbers",
        Kind::Words => "text in a dictionary",
        Kind::Other => "another kind",
    };
    let mut names: Vec<String> = fields
        .iter()
        .take(MOST_NAMED)
        .map(|field| format!("{} ({})", field.name, kind(field.kind)))
        .collect();
    if fields.len() > MOST_NAMED {
        names.push(format!("{} more", fields.len() - MOST_NAMED));
    }
    match names.is_empty() {
        true => "no columns".into(),
        false => names.join(", "),
    }
}

/// The ending of a file's name by its first bytes, else by the path that it had.
pub(super) fn ending(bytes: &[u8], path: Option<&[u8]>) -> String {
    const KNOWN: [(&[u8], usize, &str); 14] = [
        (b"\xff\xd8\xff", 0, "jpg"),
        (b"\x89PNG\r\n\x1a\n", 0, "png"),
        (b"GIF8", 0, "gif"),
        (b"WEBP", 8, "webp"),
        (b"WAVE", 8, "wav"),
        (b"II*\0", 0, "tif"),
        (b"MM\0*", 0, "tif"),
        (b"fLaC", 0, "flac"),
        (b"OggS", 0, "ogg"),
        (b"ID3", 0, "mp3"),
        (b"\xff\xfb", 0, "mp3"),
        (b"%PDF-", 0, "pdf"),
        (b"ftyp", 4, "mp4"),
        (b"BM", 0, "bmp"),
    ];
    let known =
        KNOWN.iter().find(|(begin, at, _)| bytes.get(*at..).is_some_and(|rest| rest.starts_with(begin)));
    if let Some((.., ending)) = known {
        return (*ending).into();
    }
    let dot = path.and_then(|path| Some((path, path.iter().rposition(|byte| *byte == b'.')?)));
    match dot.map(|(path, dot)| &path[dot + 1..]) {
        Some(ending @ [_, ..]) if ending.len() <= 8 && ending.iter().all(u8::is_ascii_alphanumeric) => {
            String::from_utf8_lossy(ending).into_owned()
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use Kind::{Bytes, Integer, Other, Text};

    fn chosen(fields: &[(&str, Kind)], columns: Columns<'_>, description: &str) -> Result<Chosen, String> {
        let fields: Vec<Field> =
            fields.iter().map(|(name, kind)| Field { name: (*name).into(), kind: *kind }).collect();
        choose(&fields, Some(description.as_bytes()), columns, Path::new("x.parquet"))
            .map_err(|error| error.to_string())
    }

    const PICTURES: [(&str, Kind); 4] =
        [("image.bytes", Bytes), ("image.path", Text), ("fine", Integer), ("coarse", Integer)];

    #[test]
    fn pictures_and_the_column_that_is_described_as_labels_are_chosen() {
        let none = Columns::default();
        let found = |record, label, path| Ok(Chosen { record, label, path });
        assert_eq!(chosen(&PICTURES, none, ""), found(0, None, Some(1)));
        let described = r#"{"info": {"features": {"fine": {"names": ["a"], "_type": "ClassLabel"}, "image": {"_type": "Image"}}}}"#;
        assert_eq!(chosen(&PICTURES, none, described), found(0, Some(2), Some(1)));
        let odd = described.replace("{\"_type\": \"Image\"}", "[{\"_type\": \"ClassLabel\"}, 7]");
        assert_eq!(chosen(&PICTURES, none, &odd), found(0, Some(2), Some(1)));
        for nothing in
            [&described[..60], "[]", r#"{"info": 3}"#, r#"{"info": {"features": [{"_type": "ClassLabel"}]}}"#]
        {
            assert_eq!(chosen(&PICTURES, none, nothing), found(0, None, Some(1)));
        }
        let both = described.replace("\"Image\"", "\"Image\"}, \"coarse\": {\"_type\": \"ClassLabel\"");
        let refused = chosen(&PICTURES, none, &both).unwrap_err();
        assert_eq!(
            refused,
            "x.parquet has several columns of labels; name one by --label: it has image.bytes (bytes), image.path (text), fine (whole numbers), coarse (whole numbers)"
        );
        let named = Columns { label: Some("coarse"), ..none };
        assert_eq!(chosen(&PICTURES, named, &both), found(0, Some(3), Some(1)));
        assert_eq!(chosen(&[("text", Text), ("label", Integer)], none, ""), found(0, Some(1), None));
        assert_eq!(chosen(&[("label", Text), ("text", Text)], none, ""), found(1, Some(0), None));
        assert_eq!(chosen(&[("b", Bytes), ("text", Text), ("label", Other)], none, ""), found(0, None, None));
    }

    #[test]
    fn what_is_not_clear_is_named_with_the_way_out() {
        let none = Columns::default();
        let two = [("a", Bytes), ("b", Bytes)];
        let refused = chosen(&two, none, "").unwrap_err();
        assert_eq!(
            refused,
            "x.parquet has several columns that can be packed; name one by --column: it has a (bytes), b (bytes)"
        );
        assert_eq!(chosen(&two, Columns { record: Some("b"), ..none }, "").unwrap().record, 1);
        let image = Columns { record: Some("image"), ..none };
        assert_eq!(chosen(&PICTURES, image, "").unwrap().record, 0);
        let refused = chosen(&PICTURES, Columns { record: Some("fine"), ..none }, "").unwrap_err();
        assert!(refused.starts_with("x.parquet has no column fine of bytes or text; name one by --column: "));
        let refused = chosen(&PICTURES, Columns { label: Some("nope"), ..none }, "").unwrap_err();
        assert!(refused.contains("has no column nope of whole numbers or text; name one by --label"));
        let refused = chosen(&[("x", Integer), ("y", Other)], none, "").unwrap_err();
        assert!(refused.ends_with("nothing else can be packed; it has x (whole numbers), y (another kind)"));
    }

    #[test]
    fn endings_are_by_what_is_in_a_file_first() {
        for (bytes, path, expected) in [
            (&b"\xff\xd8\xff\xe0"[..], Some(&b"a.png"[..]), "jpg"),
            (b"RIFF....WEBPVP8 ", None, "webp"),
            (b"whatever", Some(b"some.where/a.NPY"), "NPY"),
            (b"whatever", Some(b"some.where/a"), ""),
            (b"whatever", Some(b"a."), ""),
            (b"", None, ""),
        ] {
            assert_eq!(ending(bytes, path), expected);
        }
    }
}
