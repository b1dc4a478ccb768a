//! Packs in object storage: ranges of objects over HTTP, through the crate object_store.
//!
//! Only the Python module is made with it: nothing that has a privilege, and no other verb of the program, speaks to a store.
//! Decisions (what is tried again and when, when a request is sent twice) are in `patience`, which knows no network; what an answer
//! means is in `trouble`; `client` is what one process has, and is never used across a fork.

mod client;
mod fetch;
mod fork;
mod http;
mod location;
mod patience;
mod service;
mod trouble;

use client::Client;
pub use client::interrupt_by;
use fetch::Part;
use location::Location;
pub use location::is_url;
use stallscope_pack::{Error, Got, Objects, Result, Wanted};
use std::io;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::Duration;
use trouble::Trouble;

/// How long one read may take with all that is tried again, unless the environment names another time.
const LONGEST: Duration = Duration::from_secs(60);
/// By which it does, in seconds.
const LONGEST_BY: &str = "STALLSCOPE_STORE_TIMEOUT";
const LONGEST_SECONDS: std::ops::RangeInclusive<f64> = 0.1..=86_400.0;

/// A folder of objects.
#[derive(Debug)]
pub struct Remote {
    location: Location,
    longest: Duration,
    /// That of the process that made it last. A child that was forked makes its own: its parent's connections are its parent's, and threads
    /// that held a lock of it are not there. No lock is taken for the place, for the same reason.
    client: AtomicPtr<Client>,
}

impl Remote {
    /// Of a URL for which `is_url` is true. Nothing is asked of the store for it.
    ///
    /// # Errors
    /// It is no URL of a folder in a store, or the environment names no time.
    pub fn new(url: &str) -> Result<Remote> {
        let location = Location::of(url).map_err(Error::Refused)?;
        // Before any thread may be forked in the midst of it.
        fork::generation();
        client::prepare();
        Ok(Remote { location, longest: longest()?, client: AtomicPtr::new(ptr::null_mut()) })
    }

    /// Its URL, without a slash at the end.
    pub fn url(&self) -> &Path {
        Path::new(self.location.url())
    }

    fn path_of(&self, name: &str) -> PathBuf {
        self.url().join(name)
    }

    fn client(&self) -> Result<&Client> {
        let now = fork::generation();
        let known = self.client.load(Ordering::Acquire);
        // SAFETY: what was put there is given back only when `self` is dropped.
        if let Some(client) = unsafe { known.as_ref() }.filter(|client| client.generation == now) {
            return Ok(client);
        }
        let made = Client::new(&self.location, self.longest, now)
            .map_err(|trouble| trouble.about(&self.location, self.url(), self.longest))?;
        let made = Box::into_raw(Box::new(made));
        match self.client.compare_exchange(known, made, Ordering::AcqRel, Ordering::Acquire) {
            // A parent's stays in memory: to close it would end what the parent is in the midst of.
            // SAFETY: as above.
            Ok(_) => Ok(unsafe { &*made }),
            Err(other) => {
                // SAFETY: nobody else has seen it.
                drop(unsafe { Box::from_raw(made) });
                // SAFETY: as above. Another thread of this process was first.
                Ok(unsafe { &*other })
            }
        }
    }

    fn about(&self, name: &str, trouble: Trouble) -> Error {
        trouble.about(&self.location, &self.path_of(name), self.longest)
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        let known = *self.client.get_mut();
        // SAFETY: it was made by `client`, and nobody has it any more.
        let own = unsafe { known.as_ref() }.is_some_and(|client| client.generation == fork::generation());
        if own {
            // SAFETY: as above; a parent's is left alone.
            drop(unsafe { Box::from_raw(known) });
        }
    }
}

impl Objects for Remote {
    fn read(&self, wanted: &[Wanted]) -> Vec<Result<Got>> {
        let client = match self.client() {
            Ok(client) => client,
            Err(error) => {
                let sentence = error.to_string();
                return wanted.iter().map(|_| Err(Error::Refused(sentence.clone()))).collect();
            }
        };
        let parts =
            wanted.iter().map(|one| Part { name: one.name.clone(), range: one.range.clone() }).collect();
        let found = client.read(parts);
        wanted
            .iter()
            .zip(found)
            .map(|(one, found)| found.map_err(|trouble| self.about(&one.name, trouble)))
            .collect()
    }

    fn whole(&self, name: &str, most_bytes: u64) -> Result<Option<Vec<u8>>> {
        match self.client()?.whole(name, most_bytes) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(Trouble::Gone) => Ok(None),
            Err(trouble) => Err(self.about(name, trouble)),
        }
    }
}

fn longest() -> Result<Duration> {
    let Some(value) = std::env::var_os(LONGEST_BY) else { return Ok(LONGEST) };
    let seconds = value.to_str().and_then(|value| value.trim().parse::<f64>().ok());
    match seconds.filter(|seconds| LONGEST_SECONDS.contains(seconds)) {
        Some(seconds) => Ok(Duration::from_secs_f64(seconds)),
        None => Err(Error::Refused(format!(
            "{LONGEST_BY}={} has to be a number of seconds, from 0.1 to 86400",
            value.to_string_lossy()
        ))),
    }
}

/// As an error of the file system: `kind` decides what the pack makes of it.
fn as_io(path: &Path, kind: io::ErrorKind, sentence: String) -> Error {
    Error::Io { doing: "read", path: path.to_owned(), source: io::Error::new(kind, sentence) }
}
