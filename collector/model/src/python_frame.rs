//! A function that a Python program is in.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Written as "load.py:31 Pictures.__getitem__".
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PythonFrame {
    /// As the interpreter has it; "<string>" and the like where there is none.
    pub file: String,
    /// 0 where it is not known.
    pub line: u32,
    pub function: String,
}

impl PythonFrame {
    /// Where it is, in a sentence: the file's name and the line.
    pub fn place(&self) -> String {
        let name = self.file.rsplit('/').next().unwrap_or_default();
        match self.line {
            0 => name.to_owned(),
            line => format!("{name}:{line}"),
        }
    }
}

impl fmt::Display for PythonFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.place(), self.function)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_names_file_line_and_function() {
        let frame = PythonFrame { file: "/home/a/load.py".into(), line: 31, function: "Set.get".into() };
        assert_eq!(frame.to_string(), "load.py:31 Set.get");
        let frame = PythonFrame { file: "<string>".into(), line: 0, function: "<module>".into() };
        assert_eq!(frame.to_string(), "<string> <module>");
    }
}
