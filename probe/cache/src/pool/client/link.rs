//! A process's connection to the pool: made when it is first needed, made anew when it is lost, and never a parent's.

use super::super::connection::Connection;
use super::super::error::{Error, Result};
use super::super::message::Greeting;
use super::super::start::launch;
use super::Client;
use std::io::ErrorKind;
use std::process::Child;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A pool that is gone is looked for, and started anew, at most so often; one that is there and does not answer ever
/// more seldom.
const RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(64);

/// A pool that is looked for while a job waits has so long to answer.
const BRIEF: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Link {
    pid: u32,
    pub(super) state: Mutex<State>,
    /// For a child to close, without taking the lock.
    last: AtomicPtr<Connection>,
}

impl Link {
    /// Holds a reference to what a forked child is to close.
    fn remember(&self, connection: *mut Connection) {
        let before = self.last.swap(connection, Ordering::AcqRel);
        if !before.is_null() {
            // SAFETY: it came from `Arc::into_raw`, and only this process takes it back: a child has its own copy of
            // the word, and never takes anything back of its parent's.
            drop(unsafe { Arc::from_raw(before) });
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct State {
    connection: Option<Arc<Connection>>,
    next_look: Option<Instant>,
    retry: Duration,
    starting: Option<Child>,
}

impl Client {
    /// This process's side; a new one in a forked child.
    pub(super) fn link(&self) -> &Link {
        let pid = std::process::id();
        let current = self.link.load(Ordering::Acquire);
        // SAFETY: links are never freed while the client is there.
        if let Some(link) = unsafe { current.as_ref() }
            && link.pid == pid
        {
            return link;
        }
        let new =
            Box::into_raw(Box::new(Link { pid, state: Mutex::default(), last: AtomicPtr::new(null_mut()) }));
        match self.link.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                // SAFETY: the parent's link is in our copy of its memory and never freed there.
                if let Some(parents) = unsafe { current.as_ref() } {
                    close_copy(parents);
                }
                // SAFETY: as above.
                unsafe { &*new }
            }
            Err(other) => {
                // SAFETY: nobody has seen `new`; `other` is a thread of this process's.
                unsafe {
                    drop(Box::from_raw(new));
                    &*other
                }
            }
        }
    }

    pub(super) fn connect(&self, link: &Link, state: &mut State, limit: Duration) -> Result<Arc<Connection>> {
        // What somebody has changed since holds in a pool that is started anew, too.
        let capacity_bytes = self.view().map_or(self.settings.capacity_bytes, |view| view.capacity_bytes());
        let greeting = Greeting {
            samples: self.settings.samples,
            capacity_bytes,
            policy: self.settings.policy,
            key: self.settings.key.clone(),
        };
        let (connection, view) = Connection::open(&self.folder()?, &greeting, limit)?;
        let connection = Arc::new(connection);
        link.remember(Arc::into_raw(connection.clone()).cast_mut());
        state.connection = Some(connection.clone());
        if let Ok(mut current) = self.view.try_write() {
            *current = Some(Arc::new(view));
        }
        Ok(connection)
    }

    /// The connection that there is, without looking for one or waiting for who does.
    pub(super) fn connected(&self) -> Option<Arc<Connection>> {
        let state = self.link().state.try_lock().ok()?;
        state.connection.clone().filter(|connection| !connection.is_dead())
    }

    /// The connection, looked for anew at most once a second where it is lost.
    pub(super) fn connection(&self) -> Option<Arc<Connection>> {
        let link = self.link();
        let mut state = lock(&link.state);
        if let Some(connection) = &state.connection {
            if !connection.is_dead() {
                return Some(connection.clone());
            }
            state.connection = None;
        }
        let now = Instant::now();
        if state.next_look.is_some_and(|next| now < next) {
            return None;
        }
        let retry = state.retry.max(RETRY);
        state.next_look = Some(now + retry);
        if let Some(starting) = &mut state.starting
            && !matches!(starting.try_wait(), Ok(None))
        {
            state.starting = None;
        }
        match self.connect(link, &mut state, BRIEF) {
            Ok(connection) => {
                state.retry = RETRY;
                Some(connection)
            }
            Err(error) => {
                let absent = is_absent(&error);
                state.retry = if absent { RETRY } else { (retry * 2).min(LONGEST_RETRY) };
                if absent && state.starting.is_none() {
                    state.starting =
                        self.folder().and_then(|folder| launch(&self.settings.start, &folder)).ok();
                }
                None
            }
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let link = *self.link.get_mut();
        // SAFETY: links are freed here alone.
        let Some(seen) = (unsafe { link.as_ref() }) else { return };
        if seen.pid == std::process::id() {
            if let Some(starting) = &mut lock(&seen.state).starting {
                let _ = starting.try_wait();
            }
            seen.remember(null_mut());
            // SAFETY: it came from a box of this process's, and nobody else has the client any more.
            drop(unsafe { Box::from_raw(link) });
        } else {
            close_copy(seen);
        }
    }
}

/// In a forked child: closes its copy of the parent's connection. Link and connection stay: another of the parent's
/// threads may have been using them when it forked.
fn close_copy(link: &Link) {
    // SAFETY: as long as the word names a connection, a reference to it is held.
    if let Some(last) = unsafe { link.last.load(Ordering::Acquire).as_ref() } {
        last.close_copy();
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether no pool listens.
pub(super) fn is_absent(error: &Error) -> bool {
    let Error::System { source, .. } = error else { return false };
    use ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotFound};
    matches!(source.kind(), NotFound | ConnectionRefused | ConnectionReset | BrokenPipe)
}
