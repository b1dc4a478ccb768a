//! JSON that people can look at too.

use serde_json::ser::Formatter;
use stallscope_look::clean_json;
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
        writer.write_all(clean_json(fragment).as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
}
