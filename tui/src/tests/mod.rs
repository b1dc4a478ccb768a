//! The dashboard from outside: a recording, keys, screens.

mod keys;
mod sample;
mod screens;

use crate::app::App;
use crate::key::Key;
use crate::read::Followed;
use crate::render::{self, Hits};
use crate::snapshot::Update;
use crate::theme::{Colours, Theme};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use std::path::Path;
use std::sync::Arc;

pub(super) const PLAIN: Theme = Theme { colours: Colours::None, unicode: true };

/// A dashboard on a recording, read as far as it asks for.
pub(super) fn opened(recording: &Path) -> App {
    let mut app = App::new(Some(recording.to_path_buf()));
    read(&mut app);
    app
}

/// Reads what the dashboard asks for, as the reader's thread does.
pub(super) fn read(app: &mut App) {
    for _ in 0..3 {
        let Some(wanted) = app.ask().run else { return };
        let mut followed = Followed::open(&wanted.recording).expect("a recording");
        let mut view = followed.look(&wanted, true).expect("a recording").expect("news");
        view.written_ago_ns = 0;
        app.on_update(Update::Run(Arc::new(view)));
    }
}

pub(super) fn press(app: &mut App, keys: &str) {
    for char in keys.chars() {
        app.on_key(if char == '\n' { Key::Enter } else { Key::Char(char) });
        read(app);
    }
}

/// The text on the screen, line by line, and what can be clicked.
pub(super) fn screen(app: &App, theme: &Theme, width: u16, height: u16) -> (String, Hits) {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal in memory");
    let mut hits = Hits::default();
    let frame = terminal.draw(|frame| hits = render::frame(app, theme, frame.area(), frame.buffer_mut()));
    let buffer = frame.expect("a terminal in memory").buffer;
    let mut text = String::new();
    for y in 0..height {
        let line: String = (0..width).map(|x| buffer[(x, y)].symbol()).collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    (text, hits)
}
