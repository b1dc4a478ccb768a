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

/// For how long recordings are read for that list: in between, what is asked for is heard.
const LIST_WITHIN: Duration = Duration::from_millis(500);

/// Finds the running jobs and the recordings.
pub trait Places: Send {
    fn places(&mut self) -> Vec<Place>;
}

/// What the terminal shows, and so what has to be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ask {
    pub jobs: bool,
    pub run: Option<Wanted>,
}

/// Reads what is asked for until the dashboard has closed its end of the channel.
pub(crate) fn serve(places: &mut dyn Places, asks: &Receiver<Ask>, mut send: impl FnMut(Update) -> bool) {
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
        // Only the last of several waiting requests matters.
        while let Ok(next) = asks.try_recv() {
            ask = next;
            news = true;
        }
        // A recording that is not shown is closed: SQLite folds the log into the file when its last reader leaves.
        if ask.run.is_none() {
            followed = None;
        }
        if !ask.jobs {
            jobs.close();
            listed = None;
        }
        if let Some(wanted) = &ask.run
            && !show(&mut followed, &mut lost, wanted, news, &mut send)
        {
            return;
        }
        if ask.jobs && listed.is_none_or(|at| at.elapsed() >= LIST_EVERY) {
            listed = Some(Instant::now());
            if let Some(rows) = jobs.look(&places.places(), LIST_WITHIN)
                && !send(Update::Jobs(Arc::new(rows)))
            {
                return;
            }
        }
    }
}

/// Sends the run if it has changed; false once the dashboard has closed.
fn show(
    followed: &mut Option<Followed>,
    was_lost: &mut bool,
    wanted: &Wanted,
    news: bool,
    send: &mut impl FnMut(Update) -> bool,
) -> bool {
    let is_it = |followed: &Followed, path: &Path| followed.asked_for() == path;
    let lost = |reason: String| Update::Lost { recording: wanted.recording.clone(), reason };
    if !followed.as_ref().is_some_and(|followed| is_it(followed, &wanted.recording)) {
        *followed = match Followed::open(&wanted.recording) {
            Ok(opened) => Some(opened),
            // A recording that comes back is opened on a later look; its loss is reported once.
            Err(error) => {
                let reported = std::mem::replace(was_lost, true);
                return (reported && !news) || send(lost(error.to_string()));
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
            view.is_none_or(|view| send(Update::Run(Arc::new(view))))
        }
        Err(error) => {
            *followed = None;
            *was_lost = true;
            send(lost(error.to_string()))
        }
    }
}
