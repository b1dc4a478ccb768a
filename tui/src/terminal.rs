//! The terminal itself: taken over, given back whatever happens, and what comes from it.

use crate::key::Key;
use crossterm::event::{
    DisableMouseCapture, EnableMouseCapture, Event as Input, KeyCode, KeyEvent, KeyEventKind, KeyModifiers,
    MouseButton, MouseEvent, MouseEventKind,
};
use crossterm::terminal::{
    BeginSynchronizedUpdate, EndSynchronizedUpdate, EnterAlternateScreen, LeaveAlternateScreen,
    disable_raw_mode, enable_raw_mode,
};
use crossterm::{cursor, execute};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use std::io::{self, Stdout, stdout};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether there is a terminal to be given back.
static TAKEN: AtomicBool = AtomicBool::new(false);
static HOOK: Once = Once::new();

/// The terminal while it is ours; dropped, it is as it was.
pub(crate) struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
}

impl Screen {
    pub(crate) fn take() -> io::Result<Screen> {
        HOOK.call_once(|| {
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                // First, so that what is said of the panic can be read.
                give_back();
                before(panic);
            }));
        });
        enable_raw_mode()?;
        TAKEN.store(true, Ordering::SeqCst);
        let screen = || -> io::Result<Screen> {
            execute!(stdout(), EnterAlternateScreen, EnableMouseCapture, cursor::Hide)?;
            Ok(Screen { terminal: Terminal::new(CrosstermBackend::new(stdout()))? })
        };
        screen().inspect_err(|_| give_back())
    }

    /// Shows what `draw` makes; it is seen at once or not at all where the terminal can do that.
    pub(crate) fn draw<T: Default>(&mut self, draw: impl FnOnce(Rect, &mut Buffer) -> T) -> io::Result<T> {
        let mut drawn = T::default();
        execute!(stdout(), BeginSynchronizedUpdate)?;
        self.terminal.draw(|frame| drawn = draw(frame.area(), frame.buffer_mut()))?;
        execute!(stdout(), EndSynchronizedUpdate)?;
        Ok(drawn)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

/// Gives the terminal back, once. A terminal that is gone needs no answer.
fn give_back() {
    if TAKEN.swap(false, Ordering::SeqCst) {
        let _ = execute!(stdout(), DisableMouseCapture, LeaveAlternateScreen, cursor::Show);
        let _ = disable_raw_mode();
    }
}

/// What a person does at a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    Key(Key),
    Click { column: u16, line: u16 },
    WheelUp,
    WheelDown,
    Resized,
}

/// What an event of the terminal means to us.
pub(crate) fn told(input: &Input) -> Option<Told> {
    match input {
        Input::Key(key) if key.kind != KeyEventKind::Release => of_key(key).map(Told::Key),
        Input::Mouse(MouseEvent { kind, column, row, .. }) => match kind {
            MouseEventKind::Down(MouseButton::Left) => Some(Told::Click { column: *column, line: *row }),
            MouseEventKind::ScrollUp => Some(Told::WheelUp),
            MouseEventKind::ScrollDown => Some(Told::WheelDown),
            _ => None,
        },
        Input::Resize(..) => Some(Told::Resized),
        _ => None,
    }
}

fn of_key(key: &KeyEvent) -> Option<Key> {
    let ctrl = key.modifiers.contains(KeyModifiers::CONTROL);
    Some(match key.code {
        KeyCode::Char(char) if ctrl => Key::Ctrl(char.to_ascii_lowercase()),
        KeyCode::Char(_) if key.modifiers.contains(KeyModifiers::ALT) => return None,
        KeyCode::Char(char) => Key::Char(char),
        KeyCode::F(number) => Key::Function(number),
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Esc,
        KeyCode::Backspace => Key::Backspace,
        KeyCode::Tab => Key::Tab,
        KeyCode::BackTab => Key::BackTab,
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::Left => Key::Left,
        KeyCode::Right => Key::Right,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        _ => return None,
    })
}
