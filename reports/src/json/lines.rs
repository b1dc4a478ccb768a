//! JSON that people can look at too.

use serde_json::ser::Formatter;
use std::io::{self, Write};

/// Levels whose entries have a line each: the document, and what is directly in it.
const OPEN: usize = 2;

#[derive(Debug, Default)]
pub(super) struct Lines {
    depth: usize,
    empty: bool,
}

impl Lines {
    fn begin<W: ?Sized + Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.empty = true;
        writer.write_all(bracket)
    }

    fn end<W: ?Sized + Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        if self.depth <= OPEN && !self.empty {
            indent(writer, self.depth - 1)?;
        }
        self.depth -= 1;
        self.empty = false;
        writer.write_all(bracket)
    }

    fn next<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.empty = false;
        if !first {
            writer.write_all(b",")?;
        }
        match self.depth <= OPEN {
            true => indent(writer, self.depth),
            false if first => Ok(()),
            false => writer.write_all(b" "),
        }
    }
}

fn indent<W: ?Sized + Write>(writer: &mut W, depth: usize) -> io::Result<()> {
    writer.write_all(b"\n")?;
    (0..depth).try_for_each(|_| writer.write_all(b"  "))
}

impl Formatter for Lines {
    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.begin(writer, b"[")
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.end(writer, b"]")
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.next(writer, first)
    }

    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.begin(writer, b"{")
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.end(writer, b"}")
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.next(writer, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }

    /// JSON itself escapes the controls of ASCII only.
    fn write_string_fragment<W: ?Sized + Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        let mut rest = fragment;
        while let Some(at) = rest.find(obeyed) {
            writer.write_all(&rest.as_bytes()[..at])?;
            let char = rest[at..].chars().next().unwrap_or_default();
            for unit in char.encode_utf16(&mut [0; 2]) {
                write!(writer, "\\u{unit:04x}")?;
            }
            rest = &rest[at + char.len_utf8()..];
        }
        writer.write_all(rest.as_bytes())
    }
}

/// Characters that a terminal acts upon, or that turn or hide what follows.
fn obeyed(char: char) -> bool {
    char.is_control()
        || matches!(char, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde::Serialize;

    fn written(value: &serde_json::Value) -> String {
        let mut bytes = Vec::new();
        let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, Lines::default());
        value.serialize(&mut serializer).unwrap();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn an_entry_is_a_line() {
        let value = serde_json::json!({"a": [{"b": 1, "c": [1, 2]}, {}], "d": {"e": []}, "f": []});
        let expected = "{\n  \"a\": [\n    {\"b\": 1, \"c\": [1, 2]},\n    {}\n  ],\n  \"d\": {\n    \"e\": []\n  },\n  \"f\": []\n}";
        assert_eq!(written(&value), expected);
    }

    proptest! {
        #[test]
        fn any_text_comes_back_and_none_is_obeyed(text in any::<String>()) {
            let value = serde_json::json!([text]);
            let written = written(&value);
            prop_assert!(!written.chars().any(|char| char != '\n' && obeyed(char)));
            prop_assert_eq!(serde_json::from_str::<serde_json::Value>(&written).unwrap(), value);
        }
    }
}
