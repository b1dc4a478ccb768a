//! What the terminal can show, and how things look there. No background is ever set, so that text stays readable
//! on whatever background the person has chosen.

use ratatui::style::{Color, Modifier, Style};
use stallscope_look::{clean, palette};
use stallscope_model::{Cause, Doing};

/// How many colours there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colours {
    None,
    Sixteen,
    Millions,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Theme {
    pub colours: Colours,
    /// Whether the terminal shows UTF-8; otherwise everything is ASCII.
    pub unicode: bool,
}

impl Theme {
    fn ink(&self, index: u8, (red, green, blue): (u8, u8, u8)) -> Style {
        match self.colours {
            Colours::None => Style::new(),
            Colours::Sixteen => Style::new().fg(SIXTEEN[usize::from(index) % SIXTEEN.len()]),
            Colours::Millions => Style::new().fg(Color::Rgb(red, green, blue)),
        }
    }

    pub(crate) fn cause(&self, cause: Cause) -> Style {
        self.ink(palette::index(cause), palette::rgb(cause))
    }

    /// The character that fills a cause's part of a bar.
    pub(crate) fn fill(&self, cause: Cause) -> char {
        match (self.colours, self.unicode) {
            (Colours::None, _) | (_, false) => palette::pattern(cause, self.unicode),
            _ if cause == Cause::Unknown => '░',
            _ if cause == Cause::Peer => '▒',
            _ => '█',
        }
    }

    pub(crate) fn bold(&self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    pub(crate) fn dim(&self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    /// Style of the line under the cursor.
    pub(crate) fn chosen(&self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    /// Style of losses and failures.
    pub(crate) fn alarm(&self) -> Style {
        self.cause(Cause::Fetch).add_modifier(Modifier::BOLD)
    }

    pub(crate) fn good(&self) -> Style {
        self.cause(Cause::Compute)
    }

    /// The first of two texts where the terminal speaks UTF-8, else the second.
    pub(crate) fn either<T>(&self, unicode: T, ascii: T) -> T {
        if self.unicode { unicode } else { ascii }
    }

    pub(crate) fn dot(&self) -> &'static str {
        self.either(" · ", " - ")
    }

    /// A text of foreign origin without anything that steers a terminal.
    pub(crate) fn clean(&self, text: &str) -> String {
        clean(text, self.unicode)
    }

    /// Characters for a height within one cell, lowest first.
    pub(crate) fn heights(&self) -> &'static [char] {
        self.either(&['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'][..], &['_', '.', '-', '=', '+', '*', '#'][..])
    }
}

const SIXTEEN: [Color; 16] = [
    Color::Black,
    Color::Red,
    Color::Green,
    Color::Yellow,
    Color::Blue,
    Color::Magenta,
    Color::Cyan,
    Color::Gray,
    Color::DarkGray,
    Color::LightRed,
    Color::LightGreen,
    Color::LightYellow,
    Color::LightBlue,
    Color::LightMagenta,
    Color::LightCyan,
    Color::White,
];

/// The cause that a wait for a task becomes while it does this; `trainer` is the one that waits.
pub(crate) const fn cause_of(doing: Doing, trainer: bool) -> Option<Cause> {
    match doing {
        Doing::Computing if trainer => Some(Cause::Compute),
        Doing::Computing => Some(Cause::Prep),
        Doing::Runnable if trainer => Some(Cause::Preempted),
        Doing::Runnable => Some(Cause::Starved),
        Doing::Reading | Doing::Network => Some(Cause::Fetch),
        Doing::Writing => Some(Cause::Persist),
        Doing::Waiting => None,
        Doing::Other => Some(Cause::Unknown),
    }
}
