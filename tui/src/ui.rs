//! Runs the dashboard: threads for what blocks, one loop for state and screen.

use crate::app::{Action, App, View};
use crate::command::Command;
use crate::read::{self, Ask, Places};
use crate::render::{self, Hits};
use crate::rows;
use crate::snapshot::Update;
use crate::terminal::{Input, Screen, input_of};
use crate::theme::Theme;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

/// How often a replay moves on.
const TICK: Duration = Duration::from_millis(250);
/// How long the first frame waits for something to show.
const FIRST: Duration = Duration::from_millis(60);
/// Lines that the wheel moves by.
const WHEEL: usize = 3;

/// Why the dashboard could not be shown, or not any longer.
#[derive(Debug)]
pub enum Error {
    /// The terminal cannot be written to or read from.
    Terminal(io::Error),
    /// No thread can be made.
    Thread(io::Error),
    /// A thread of the dashboard panicked; the panic hook has printed why.
    Fault,
}

impl std::fmt::Display for Error {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Error::Terminal(error) => write!(out, "the terminal cannot be used: {error}"),
            Error::Thread(error) => write!(out, "top needs three threads, and one cannot be made: {error}"),
            Error::Fault => out.write_str("top ended by a fault of its own; the job runs on"),
        }
    }
}

impl std::error::Error for Error {}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Error {
        Error::Terminal(error)
    }
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    ByUser,
    /// By this signal; the terminal has been restored.
    BySignal(i32),
}

enum Event {
    Input(Input),
    Update(Update),
    Signal(i32),
    /// A thread of the dashboard has ended.
    Gone,
}

/// Changes knobs of the job with this recording to settings such as "workers=6 --rank 2" and returns the outcome as a
/// sentence. May block for seconds.
pub type Turn = Arc<dyn Fn(&Path, &str) -> String + Send + Sync>;

/// Shows all jobs, or the recording of one, until the user quits or a signal arrives.
///
/// # Errors
/// The terminal cannot be used.
pub fn show(
    recording: Option<PathBuf>,
    places: Box<dyn Places>,
    turn: Turn,
    theme: Theme,
) -> Result<Ended, Error> {
    let (sender, events) = mpsc::channel();
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP, SIGQUIT])?;
    let signal_sender = sender.clone();
    spawn(move || signals.forever().all(|signal| signal_sender.send(Event::Signal(signal)).is_ok()))?;
    let asks = reader(places, sender.clone())?;
    let mut app = App::new(recording);
    let mut asked = app.ask();
    // A reader that has ended sends `Event::Gone`, so a failed send needs no handling here.
    let _ = asks.send(asked.clone());
    let mut screen = Screen::take()?;
    let input_sender = sender.clone();
    spawn(move || read_input(&input_sender))?;

    let mut hits = Hits::default();
    let mut dirty = true;
    let mut wait = FIRST;
    let mut ticked = Instant::now();
    loop {
        let mut next = match events.recv_timeout(wait) {
            Ok(event) => Some(event),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return Err(Error::Fault),
        };
        wait = TICK;
        while let Some(event) = next {
            dirty = true;
            match event {
                Event::Signal(signal) => return Ok(Ended::BySignal(signal)),
                Event::Gone => return Err(Error::Fault),
                Event::Update(update) => app.on_update(update),
                Event::Input(input) => match on_input(&mut app, input, &hits) {
                    Some(Action::Quit) => return Ok(Ended::ByUser),
                    Some(Action::Turn { recording, settings }) => {
                        let (turn, sender) = (turn.clone(), sender.clone());
                        // The send fails only once the dashboard has closed and nothing can show the answer.
                        let answer = sender.clone();
                        let asked = spawn(move || {
                            answer.send(Event::Update(Update::Answer(turn(&recording, &settings))))
                        });
                        if let Err(Error::Thread(error)) = asked {
                            let sentence = format!("not asked, as no thread can be made: {error}");
                            let _ = sender.send(Event::Update(Update::Answer(sentence)));
                        }
                    }
                    Some(Action::Redraw) | None => {}
                },
            }
            next = events.try_recv().ok();
        }
        dirty |= app.on_tick(ticked.elapsed().as_nanos() as u64);
        ticked = Instant::now();
        if std::mem::take(&mut dirty) {
            hits = screen.draw(|area, buffer| render::frame(&app, &theme, area, buffer))?;
            settle(&mut app, &hits);
        }
        let ask = app.ask();
        if ask != asked {
            asked = ask;
            let _ = asks.send(asked.clone());
        }
    }
}

/// Takes over what drawing the last frame has found out: lines per page, and the last line of a view.
fn settle(app: &mut App, hits: &Hits) {
    app.page = hits.page.max(1);
    if app.view == View::Health {
        let line = &mut app.line_at[app.view as usize];
        *line = (*line).min(hits.last_line);
    }
}

fn on_input(app: &mut App, input: Input, hits: &Hits) -> Option<Action> {
    match input {
        Input::Key(key) => app.on_key(key),
        Input::Resized => Some(Action::Redraw),
        Input::WheelDown => {
            rows::go(app, |at| at + WHEEL);
            Some(Action::Redraw)
        }
        Input::WheelUp => {
            rows::go(app, |at| at.saturating_sub(WHEEL));
            Some(Action::Redraw)
        }
        Input::Click { column, line } => Some(click(app, column, line, hits)),
    }
}

/// A click on a view's name shows it; on a line, chooses that; on the line that is chosen, opens it.
pub(crate) fn click(app: &mut App, column: u16, line: u16, hits: &Hits) -> Action {
    if line == 1
        && let Some((_, view)) = hits.tabs.iter().find(|(columns, _)| columns.contains(&column))
    {
        let commands = [
            Command::Jobs,
            Command::Job,
            Command::Step,
            Command::Knobs,
            Command::Audit,
            Command::Diagnoses,
            Command::Health,
            Command::Help,
        ];
        return app.execute(commands[*view as usize]);
    }
    if let Some((_, place)) = hits.rows.iter().find(|(row, _)| *row == line) {
        let at = match app.view {
            View::Jobs => rows::job_place(app),
            View::Job => rows::rank_place(app),
            View::Step => rows::step_place(app),
            View::Audit => rows::audit_place(app),
            _ => app.line_at[app.view as usize],
        };
        if at == *place && app.view != View::Help {
            return app.execute(Command::Open);
        }
        rows::go(app, |_| *place);
    }
    Action::Redraw
}

/// Starts the thread that reads recordings; the last request sent to it is what it reads next.
fn reader(mut places: Box<dyn Places>, sender: Sender<Event>) -> Result<Sender<Ask>, Error> {
    let (asks, asked) = mpsc::channel();
    spawn(move || {
        let _gone = Gone(sender.clone());
        read::serve(places.as_mut(), &asked, |update| sender.send(Event::Update(update)).is_ok());
    })?;
    Ok(asks)
}

fn spawn<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> Result<(), Error> {
    thread::Builder::new().spawn(act).map(drop).map_err(Error::Thread)
}

/// Reads keys and mouse; blocks in the terminal.
fn read_input(sender: &Sender<Event>) {
    let _gone = Gone(sender.clone());
    while let Ok(event) = crossterm::event::read() {
        if let Some(input) = input_of(&event)
            && sender.send(Event::Input(input)).is_err()
        {
            return;
        }
    }
}

/// Sends `Event::Gone` when its thread ends, after a panic too.
struct Gone(Sender<Event>);

impl Drop for Gone {
    fn drop(&mut self) {
        let _ = self.0.send(Event::Gone);
    }
}
