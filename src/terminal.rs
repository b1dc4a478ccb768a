//! What kind of terminal there is, and the one line of progress at its foot.

use anyhow::Result;
use clap::ValueEnum;
use serde::Serialize;
use std::io::{BufWriter, IsTerminal, Write};
use std::time::{Duration, Instant};

/// When to use colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Colour {
    Auto,
    Always,
    Never,
}

/// How to write to a stream that may be a terminal.
pub(crate) fn style(stream: &impl IsTerminal, colour: Colour) -> stallscope_reports::Style {
    let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let terminal = stream.is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb");
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
        .into_iter()
        .find_map(|name| std::env::var(name).ok().filter(|v| !v.is_empty()));
    stallscope_reports::Style {
        width: width(),
        colour: match colour {
            Colour::Always => true,
            Colour::Never => false,
            Colour::Auto => terminal && !set("NO_COLOR"),
        },
        // Where no locale is set at all (a container), a terminal of today still speaks UTF-8.
        unicode: locale.is_none_or(|locale| locale.to_uppercase().contains("UTF")),
    }
}

/// Columns of the terminal behind stderr or stdout; 80 where there is none.
fn width() -> usize {
    let size = rustix::termios::tcgetwinsize(std::io::stderr())
        .or_else(|_| rustix::termios::tcgetwinsize(std::io::stdout()));
    match size {
        Ok(size) if size.ws_col > 0 => usize::from(size.ws_col),
        _ => 80,
    }
}

/// How often a line is printed where the output is no terminal.
const PLAIN_PERIOD: Duration = Duration::from_secs(10);

/// Progress on stderr: one line kept at the foot of a terminal, below a scroll region, so that whatever the
/// job prints scrolls above it as before; a plain line now and then elsewhere.
#[derive(Debug)]
pub(crate) struct StatusLine {
    terminal: bool,
    /// Rows of the terminal for which the scroll region was last set; 0 when it is not set.
    rows: u16,
    last_plain: Instant,
}

impl StatusLine {
    pub(crate) fn new() -> StatusLine {
        let terminal =
            std::io::stderr().is_terminal() && std::env::var_os("TERM").is_some_and(|term| term != "dumb");
        StatusLine { terminal, rows: 0, last_plain: Instant::now() }
    }

    /// Columns there are for the line.
    pub(crate) fn width(&self) -> usize {
        width()
    }

    pub(crate) fn show(&mut self, line: &str) {
        let mut err = std::io::stderr().lock();
        if !self.terminal {
            if self.last_plain.elapsed() >= PLAIN_PERIOD {
                self.last_plain = Instant::now();
                // A terminal that is gone must not take the job with it.
                let _ = writeln!(err, "stallscope: {line}");
            }
            return;
        }
        let Ok(size) = rustix::termios::tcgetwinsize(&err) else { return };
        let rows = size.ws_row;
        if rows < 4 {
            return;
        }
        if rows != self.rows {
            // A new line first, so that the lowest row is free; then the region, which moves the cursor home:
            // saved and restored around it.
            let _ = write!(err, "\n\x1b7\x1b[1;{}r\x1b8\x1b[1A", rows - 1);
            self.rows = rows;
        }
        let _ = write!(err, "\x1b7\x1b[{rows};1H\x1b[2K\x1b[2m{line}\x1b[0m\x1b8");
        let _ = err.flush();
    }

    /// Gives the terminal its lowest row back.
    pub(crate) fn clear(&mut self) {
        if self.rows > 0 {
            let mut err = std::io::stderr().lock();
            let _ = write!(err, "\x1b7\x1b[r\x1b[{};1H\x1b[2K\x1b8", self.rows);
            let _ = err.flush();
            self.rows = 0;
        }
    }
}

impl Drop for StatusLine {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Writes to stdout; a reader that has seen enough (`| head`) is no error.
pub(crate) fn print(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

/// Writes JSON to stdout as it is made, which may be of a foreign file and large.
pub(crate) fn print_json(value: &impl Serialize) -> Result<()> {
    Ok(print_as_made(|out| {
        serde_json::to_writer_pretty(Cleaned(&mut *out), value)?;
        out.write_all(b"\n")
    })?)
}

/// Writes to stdout piece by piece.
pub(crate) fn print_as_made(
    write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>,
) -> std::io::Result<()> {
    let mut out = BufWriter::new(std::io::stdout().lock());
    match write(&mut out).and_then(|()| out.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {
            // What is left goes nowhere.
            drop(out.into_parts());
            Ok(())
        }
        other => other,
    }
}

/// Of JSON: what is written at once are whole characters.
struct Cleaned<W>(W);

impl<W: Write> Write for Cleaned<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let is_plain = |byte: &u8| matches!(byte, b' '..=b'~' | b'\n');
        match bytes.iter().all(is_plain) {
            true => self.0.write_all(bytes)?,
            false => {
                self.0
                    .write_all(stallscope_reports::clean_json(&String::from_utf8_lossy(bytes)).as_bytes())?;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

/// JSON that may be printed to a terminal, whatever texts it has.
pub(crate) fn json(value: &impl Serialize) -> Result<String> {
    Ok(stallscope_reports::clean_json(&serde_json::to_string_pretty(value)?) + "\n")
}

/// One sentence of ours, on stderr. Names of files and jobs may be in it, which are anything.
pub(crate) fn say(sentence: &str) {
    write_err(&format!("stallscope: {}\n", stallscope_reports::clean(sentence, true)));
}

/// Writes to stderr, which may be gone while the job goes on.
pub(crate) fn write_err(text: &str) {
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}
