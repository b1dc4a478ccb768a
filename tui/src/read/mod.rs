//! The thread that reads recordings, so that the terminal never waits for a disk. Live and replay are the same:
//! a recording that still grows is looked at four times a second.

mod follow;
mod jobs;

use crate::snapshot::{Place, Update, Wanted};
pub(crate) use follow::Followed;
use jobs::Jobs;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// How often a recording is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How often the list of jobs is made anew.
const LIST_EVERY: Duration = Duration::from_secs(1);

/// Who knows which jobs run and which recordings there are.
pub trait Places: Send {
    fn places(&mut self) -> Vec<Place>;
}

/// What the terminal shows, and so what has to be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ask {
    pub jobs: bool,
    pub run: Option<Wanted>,
}

/// Reads what is asked for until nobody asks any more.
pub(crate) fn serve(places: &mut dyn Places, asks: &Receiver<Ask>, mut tell: impl FnMut(Update) -> bool) {
    let mut ask = Ask::default();
    let mut jobs = Jobs::default();
    let mut followed: Option<Followed> = None;
    let mut lost = false;
    let mut listed: Option<Instant> = None;
    loop {
        let mut news = match asks.recv_timeout(LOOK_EVERY) {
            Ok(next) => {
                ask = next;
                true
            }
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        // Of several that have piled up only the last one matters.
        while let Ok(next) = asks.try_recv() {
            ask = next;
            news = true;
        }
        // What is not shown is not held open: the last reader to go lets a recording become one plain file.
        if ask.run.is_none() {
            followed = None;
        }
        if !ask.jobs {
            jobs.close();
            listed = None;
        }
        if let Some(wanted) = &ask.run
            && !show(&mut followed, &mut lost, wanted, news, &mut tell)
        {
            return;
        }
        if ask.jobs && listed.is_none_or(|at| at.elapsed() >= LIST_EVERY) {
            listed = Some(Instant::now());
            if let Some(rows) = jobs.look(&places.places())
                && !tell(Update::Jobs(Arc::new(rows)))
            {
                return;
            }
        }
    }
}

/// Tells what has changed of a run; false when nobody listens any more.
fn show(
    followed: &mut Option<Followed>,
    was_lost: &mut bool,
    wanted: &Wanted,
    news: bool,
    tell: &mut impl FnMut(Update) -> bool,
) -> bool {
    let is_it = |followed: &Followed, path: &Path| followed.asked_for() == path;
    let lost = |reason: String| Update::Lost { recording: wanted.recording.clone(), reason };
    if !followed.as_ref().is_some_and(|followed| is_it(followed, &wanted.recording)) {
        *followed = match Followed::open(&wanted.recording) {
            Ok(opened) => Some(opened),
            // It may come back, but is said to be lost once only.
            Err(error) => {
                let said = std::mem::replace(was_lost, true);
                return (said && !news) || tell(lost(error.to_string()));
            }
        };
    }
    let Some(run) = followed else { return true };
    match run.look(wanted, news) {
        Ok(view) => {
            *was_lost = false;
            if run.has_ended() {
                *followed = None;
            }
            view.is_none_or(|view| tell(Update::Run(Arc::new(view))))
        }
        Err(error) => {
            *followed = None;
            *was_lost = true;
            tell(lost(error.to_string()))
        }
    }
}
