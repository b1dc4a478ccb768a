//! Takes the terminal over, gives it back however the process ends, and translates its events.

use crate::key::Key;
use crossterm::event::{
    DisableMouseCapture, EnableMouseCapture, Event as TerminalEvent, KeyCode, KeyEvent, KeyEventKind,
    KeyModifiers, MouseButton, MouseEvent, MouseEventKind,
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

/// Whether this process has taken the terminal over and has to restore it.
static TAKEN: AtomicBool = AtomicBool::new(false);
static HOOK: Once = Once::new();

/// The terminal in raw mode on its alternate screen; dropping it restores both.
pub(crate) struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
}

impl Screen {
    pub(crate) fn take() -> io::Result<Screen> {
        HOOK.call_once(|| {
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                // The hook before this one prints the panic, which the alternate screen would hide.
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

    /// Draws one frame. Terminals with synchronized updates show it whole, never half drawn.
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

/// Restores the terminal, once. Errors are ignored: a terminal that is gone has nothing to restore.
fn give_back() {
    if TAKEN.swap(false, Ordering::SeqCst) {
        let _ = execute!(stdout(), DisableMouseCapture, LeaveAlternateScreen, cursor::Show);
        let _ = disable_raw_mode();
    }
}

/// Input that the dashboard reacts to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    Key(Key),
    Click { column: u16, line: u16 },
    WheelUp,
    WheelDown,
    Resized,
}

/// The input that an event of the terminal stands for; `None` for one that the dashboard ignores.
pub(crate) fn input_of(event: &TerminalEvent) -> Option<Input> {
    match event {
        TerminalEvent::Key(key) if key.kind != KeyEventKind::Release => of_key(key).map(Input::Key),
        TerminalEvent::Mouse(MouseEvent { kind, column, row, .. }) => match kind {
            MouseEventKind::Down(MouseButton::Left) => Some(Input::Click { column: *column, line: *row }),
            MouseEventKind::ScrollUp => Some(Input::WheelUp),
            MouseEventKind::ScrollDown => Some(Input::WheelDown),
            _ => None,
        },
        TerminalEvent::Resize(..) => Some(Input::Resized),
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
