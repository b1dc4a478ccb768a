//! A job's side of the pool. Nothing here but [`Client::open`] fails: without a pool there are misses.

mod joint;
mod link;

pub use self::joint::Feed;
use self::link::{Link, is_absent, lock};
use super::connection::{Connection, PATIENCE, Waited};
use super::error::{Error, Result};
use super::layout::Layout;
use super::message::{Answer, MOST_KEY_BYTES, MOST_LISTED, Request};
use super::slots::Entry;
use super::start::{Folder, finish, launch};
use super::view::{Figures, View};
use crate::policy::PolicyKind;
use std::ffi::OsString;
use std::path::PathBuf;
use std::ptr::null_mut;
use std::sync::atomic::AtomicPtr;
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

/// Until the pool's process has started, on a machine that has other things to do.
const START_LIMIT: Duration = Duration::from_secs(60);

/// How long the pool may be behind in saying that waiting was in vain.
const LATE: Duration = Duration::from_secs(1);

/// Which space of which pool.
#[derive(Clone, Debug)]
pub struct Settings {
    pub runtime_dir: PathBuf,
    /// The command that starts a pool; the folder is added to it.
    pub start: Vec<OsString>,
    /// Tells data sets apart.
    pub key: Vec<u8>,
    pub samples: u64,
    /// Of a space that is not there yet.
    pub capacity_bytes: u64,
    pub policy: PolicyKind,
}

/// A space of the pool, for all threads of a process and those forked from it.
#[derive(Debug)]
pub struct Client {
    settings: Settings,
    /// Only ever locked for as long as it takes to copy or set it, and never waited for.
    view: RwLock<Option<Arc<View>>>,
    /// Of the process that uses it; a forked child makes its own and never touches the locks of its parent's.
    link: AtomicPtr<Link>,
}

/// A sample that is kept, to be copied.
#[derive(Debug)]
pub struct Found {
    view: Arc<View>,
    id: u64,
    entry: Entry,
}

impl Found {
    pub fn bytes(&self) -> usize {
        self.entry.bytes as usize
    }

    /// Copies the sample; false: it is not there any more, and what `to` holds is nothing.
    ///
    /// # Safety
    /// `to` is valid for writing [`Found::bytes`] bytes.
    #[inline]
    pub unsafe fn copy(&self, to: *mut u8) -> bool {
        // SAFETY: as the caller says.
        unsafe { self.view.copy(self.id, self.entry, to) }
    }
}

impl Client {
    /// Connects to the pool, which is started where there is none.
    ///
    /// # Errors
    /// What is asked for cannot be, the pool refuses it or speaks another version, or cannot be started.
    pub fn open(settings: Settings) -> Result<Client> {
        if settings.key.len() > MOST_KEY_BYTES {
            return Err(Error::Wrong(format!("a data set's key may have {MOST_KEY_BYTES} bytes")));
        }
        if settings.samples > Layout::MOST_SAMPLES {
            return Err(Error::Wrong(format!(
                "a data set of {} samples is too large for a cache; {} is the most",
                settings.samples,
                Layout::MOST_SAMPLES
            )));
        }
        let client = Client::lazy(settings);
        let link = client.link();
        let mut state = lock(&link.state);
        let until = Instant::now() + START_LIMIT;
        loop {
            match client.connect(link, &mut state, PATIENCE) {
                Ok(_) => break,
                Err(error) if is_absent(&error) && Instant::now() < until => {
                    let mut starting = launch(&client.settings.start, &client.folder()?)?;
                    finish(&mut starting, until.saturating_duration_since(Instant::now()))?;
                }
                Err(error) => return Err(error),
            }
        }
        drop(state);
        Ok(client)
    }

    /// One that connects when it is first needed, and never fails.
    pub fn lazy(settings: Settings) -> Client {
        Client { settings, view: RwLock::new(None), link: AtomicPtr::new(null_mut()) }
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    fn folder(&self) -> Result<Folder> {
        Folder::open(&self.settings.runtime_dir)
    }

    fn view(&self) -> Option<Arc<View>> {
        self.view.try_read().ok()?.clone()
    }

    /// A sample that is kept and was read from what `tag` names. Waits for nobody.
    #[inline]
    pub fn find(&self, id: u64, tag: u64) -> Option<Found> {
        let view = self.view()?;
        let entry = view.find(id, tag)?;
        Some(Found { view, id, entry })
    }

    /// Whether a sample is kept, whatever it was read from. Waits for nobody.
    #[inline]
    pub fn holds(&self, id: u64) -> bool {
        self.view().is_some_and(|view| view.holds(id))
    }

    /// Whether the caller is to read sample `id`, and to say [`Client::fill`] or [`Client::give_up`] then. False:
    /// it is there by now, or waiting for who reads it was in vain.
    pub fn claim(&self, id: u64, tag: Option<u64>, limit_ms: u32) -> bool {
        let (Some(id), Some(connection)) = (self.known(id), self.connection()) else { return false };
        let request = connection.number();
        if !send(&connection, &Request::Claim { request, id, limit_ms, tag }) {
            return false;
        }
        let limit = Duration::from_millis(u64::from(limit_ms)) + LATE;
        match connection.wait(request, limit, true) {
            Waited::Answered(Answer::Yes) => {
                connection.grant(id, request);
                true
            }
            Waited::Answered(_) | Waited::Dead => false,
            Waited::Interrupted => {
                send(&connection, &Request::GiveUp { request, id });
                false
            }
        }
    }

    /// Hands over a sample that was read; whether it is kept. `at` and `next_at` are the places of this use and of the
    /// next one.
    pub fn fill(&self, id: u64, tag: u64, bytes: &[u8], at: u64, next_at: u64) -> bool {
        let (Some(id), Some(connection)) = (self.known(id), self.connection()) else { return false };
        let request = match connection.granted(id) {
            Some(request) => {
                connection.again(request);
                request
            }
            None => connection.number(),
        };
        let fill = Request::Fill { request, id, tag, bytes: bytes.len() as u64, at, next_at };
        if !send(&connection, &fill) {
            return false;
        }
        match connection.wait(request, PATIENCE, false) {
            Waited::Answered(Answer::Send) => {}
            Waited::Answered(answer) => return answer == Answer::Yes,
            Waited::Interrupted | Waited::Dead => return false,
        }
        connection.again(request);
        let mut message = Vec::new();
        Request::Bytes { request, id, bytes: bytes.len() as u64 }.encode(&mut message);
        connection.send(&[&message, bytes])
            && connection.wait(request, PATIENCE, false) == Waited::Answered(Answer::Yes)
    }

    /// A claimed sample is not going to be filled.
    pub fn give_up(&self, id: u64) {
        let (Some(id), Some(connection)) = (self.known(id), self.connection()) else { return };
        if let Some(request) = connection.granted(id) {
            send(&connection, &Request::GiveUp { request, id });
        }
    }

    /// Samples that were found and used: id, place of the use, place of the next.
    pub fn used(&self, uses: &[(u32, u64, u64)]) {
        self.tell(uses, Request::Used);
    }

    /// Next uses that became known.
    pub fn planned(&self, planned: &[(u32, u64)]) {
        self.tell(planned, Request::Planned);
    }

    /// How important samples are from now on.
    pub fn scored(&self, scored: &[(u32, f64)]) {
        self.tell(scored, Request::Scored);
    }

    /// An epoch is over.
    pub fn epoch(&self) {
        if let Some(connection) = self.connection() {
            send(&connection, &Request::Epoch);
        }
    }

    fn tell<T: Clone>(&self, all: &[T], request: impl Fn(Vec<T>) -> Request) {
        let Some(connection) = self.connection() else { return };
        for some in all.chunks(MOST_LISTED) {
            if !send(&connection, &request(some.to_vec())) {
                return;
            }
        }
    }

    /// Another capacity, up or down; whether it is in force.
    pub fn resize(&self, capacity_bytes: u64) -> bool {
        let Some(connection) = self.connection() else { return false };
        let request = connection.number();
        send(&connection, &Request::Resize { request, capacity_bytes })
            && connection.wait(request, START_LIMIT, false) == Waited::Answered(Answer::Yes)
    }

    /// As the pool has left them; zeros where there never was one.
    pub fn figures(&self) -> Figures {
        self.view().map(|view| view.figures()).unwrap_or_default()
    }

    /// Whether there is a pool that takes fills.
    pub fn is_alive(&self) -> bool {
        self.connection().is_some_and(|connection| connection.looks_alive())
            && self.view().is_some_and(|view| !view.has_left())
    }

    fn known(&self, id: u64) -> Option<u32> {
        u32::try_from(id).ok().filter(|_| id < self.settings.samples)
    }
}

fn send(connection: &Connection, request: &Request) -> bool {
    let mut message = Vec::new();
    request.encode(&mut message);
    connection.send(&[&message])
}
