//! Says on a terminal what takes its time.

use std::io::{IsTerminal, Write};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What takes less is not worth a word.
const PATIENCE: Duration = Duration::from_secs(1);

/// A line on stderr for as long as this lives, where that is a terminal.
#[derive(Debug)]
pub(crate) struct Working(Option<(Sender<()>, JoinHandle<()>)>);

impl Working {
    pub(crate) fn on(what: String) -> Working {
        if !std::io::stderr().is_terminal() {
            return Working(None);
        }
        let (stop, stopped) = channel();
        let begun = Instant::now();
        let what = stallscope_reports::clean(&what, true);
        let show = move || {
            let mut shown = false;
            while stopped.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                shown = true;
                let line = format!("\r\x1b[2Kstallscope: {what} … {} s", begun.elapsed().as_secs());
                crate::terminal::write_err(&line);
            }
            if shown {
                crate::terminal::write_err("\r\x1b[2K");
            }
            let _ = std::io::stderr().flush();
        };
        // Where there is no thread to be had it works without.
        Working(std::thread::Builder::new().spawn(show).ok().map(|thread| (stop, thread)))
    }
}

impl Working {
    /// A sentence above that line.
    pub(crate) fn say(&self, sentence: &str) {
        if self.0.is_some() {
            crate::terminal::write_err("\r\x1b[2K");
        }
        crate::terminal::say(sentence);
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.0.take() {
            drop(stop);
            // What is printed next must not be wiped away.
            let _ = thread.join();
        }
    }
}
