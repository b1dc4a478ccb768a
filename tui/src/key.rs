//! Keys by their own name, so that what they do can be decided and tested without a terminal.

use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    Char(char),
    Ctrl(char),
    Function(u8),
    Enter,
    Esc,
    Backspace,
    Tab,
    BackTab,
    Up,
    Down,
    Left,
    Right,
    PageUp,
    PageDown,
    Home,
    End,
}

impl fmt::Display for Key {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Char(' ') => out.write_str("Space"),
            Key::Char(char) => write!(out, "{char}"),
            Key::Ctrl(char) => write!(out, "Ctrl-{}", char.to_ascii_uppercase()),
            Key::Function(number) => write!(out, "F{number}"),
            Key::BackTab => out.write_str("Shift-Tab"),
            Key::PageUp => out.write_str("PgUp"),
            Key::PageDown => out.write_str("PgDn"),
            other => write!(out, "{other:?}"),
        }
    }
}
