//! Where running jobs are found: one folder a job, with a lock, a socket and a card that says whose it is.

use crate::procfs;
use crate::sudo::{Caller, caller_uid};
use anyhow::{Context, Result, bail};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::fs::{self, File, TryLockError};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(crate) mod places;
#[cfg(test)]
mod tests;
mod trusted;

/// Where the node's privileged collector listens, so that every user finds it.
pub const KERNEL_SOCKET: &str = "/run/stallscope/kernel.sock";

/// [`KERNEL_SOCKET`], or where a container has it mounted: `$STALLSCOPE_KERNEL_SOCKET`.
pub(crate) fn kernel_socket() -> PathBuf {
    std::env::var_os("STALLSCOPE_KERNEL_SOCKET").map_or_else(|| KERNEL_SOCKET.into(), PathBuf::from)
}

/// Where the node's service listens: beside the node's collector.
pub(crate) fn node_socket() -> PathBuf {
    kernel_socket().with_file_name("node.sock")
}

/// Longest part of a job's name in a path: a Unix socket's path may have 107 bytes.
const NAME_LIMIT_BYTES: usize = 32;

/// How often [`RuntimeDir::claim`] looks again, 20 ms apart.
const CLAIM_TRIES: u32 = 50;

/// The folder of this user's running jobs.
#[derive(Clone, Debug)]
pub struct RuntimeDir {
    base: PathBuf,
    jobs: PathBuf,
}

impl RuntimeDir {
    /// `$STALLSCOPE_RUNTIME_DIR`, else `/run/stallscope` for root, else the user's own runtime folder (of who
    /// called sudo, where somebody did), else the first of `/tmp/stallscope-UID`, `/var/tmp/stallscope-UID` and
    /// `~/.cache/stallscope` that nobody else took; created for this user alone.
    ///
    /// # Errors
    /// The folder can't be created, or belongs to somebody else.
    pub fn of_this_user() -> Result<RuntimeDir> {
        let caller = caller_uid();
        let uid = caller.unwrap_or_else(|| rustix::process::geteuid().as_raw());
        let variable = |name: &str| match (name, caller) {
            ("XDG_RUNTIME_DIR", Some(uid)) => Some(format!("/run/user/{uid}").into()),
            // With sudo HOME is root's.
            ("HOME", Some(_)) => Caller::find().map(|caller| caller.home.into_os_string()),
            _ => std::env::var_os(name),
        };
        RuntimeDir::first_of(places::of(uid, variable), uid)
    }

    /// Anybody may have made a folder of that name where all may make some. Once it is ours it stays ours, so that all
    /// our processes come to the same.
    fn first_of(places: Vec<PathBuf>, uid: u32) -> Result<RuntimeDir> {
        let mut refused = None;
        for place in places {
            match RuntimeDir::make(place, uid) {
                Ok(made) => return Ok(made),
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        Err(refused.unwrap_or_else(|| anyhow::anyhow!("there is no place for a runtime folder")))
    }

    fn make(base: PathBuf, uid: u32) -> Result<RuntimeDir> {
        // The node's collector listens in root's folder: passable, not listable.
        let mode = if uid == 0 { 0o711 } else { 0o700 };
        for dir in [base.clone(), base.join("jobs")] {
            fs::DirBuilder::new().recursive(true).mode(mode).create(&dir).with_context(|| {
                format!("cannot create {}; set STALLSCOPE_RUNTIME_DIR to a folder of yours", dir.display())
            })?;
            let owner = fs::symlink_metadata(&dir)?;
            if owner.uid() != uid || !owner.is_dir() {
                bail!(
                    "{} belongs to another user; set STALLSCOPE_RUNTIME_DIR to a folder of yours",
                    dir.display()
                );
            }
        }
        Ok(RuntimeDir { jobs: base.join("jobs"), base })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.base
    }

    /// Becomes the collector of job `key`, or says where the one that already is listens.
    pub fn claim(&self, key: &str) -> Result<Claim> {
        claim(self.jobs.join(shorten(key)))
    }

    /// The running job that `job` means: a pid, a name, or a prefix of one name. Gives its socket and card.
    ///
    /// # Errors
    /// None or several are called so.
    pub fn find(&self, job: &str) -> Result<(PathBuf, Card)> {
        let pid: Option<u32> = job.parse().ok();
        let mut found = self.running();
        let exact = found.iter().any(|(_, card)| card.name == job);
        found.retain(|(_, card)| match pid {
            Some(pid) => card.pid == pid,
            None if exact => card.name == job,
            None => card.name.starts_with(job),
        });
        // Launched by one session and attached to by another: the first sees most of it.
        if found.windows(2).all(|pair| pair[0].1.pid == pair[1].1.pid) {
            found.truncate(1);
        }
        match found.len() {
            1 => Ok(found.remove(0)),
            0 => match self.abandoned(job) {
                Some(Card { name, pid, .. }) => bail!(
                    "{name} runs on, but its collector is gone; `stallscope attach {pid}` takes its place"
                ),
                None => bail!("no running job is called {job}; `stallscope ls` lists them"),
            },
            several => bail!("{several} running jobs are called {job}…; say more of the name, or a pid"),
        }
    }

    /// The job that `job` means, a pid or a name, among those whose collector is dead while they live on.
    pub(crate) fn abandoned(&self, job: &str) -> Option<Card> {
        let mut cards =
            self.folders().into_iter().filter(|folder| !folder.watched).filter_map(|folder| folder.card);
        cards.rfind(|card| card.name == job || card.pid.to_string() == job)
    }

    /// Jobs that run here now; folders that killed collectors left behind are removed on the way, unless their job
    /// lives on.
    pub fn running(&self) -> Vec<(PathBuf, Card)> {
        let mut jobs: Vec<(PathBuf, Card)> = self
            .folders()
            .into_iter()
            .filter(|folder| folder.watched)
            .filter_map(|folder| Some((folder.socket, folder.card?)))
            .collect();
        jobs.sort_by_key(|(_, card)| card.started_wall_ns);
        jobs
    }

    fn folders(&self) -> Vec<Folder> {
        let Ok(entries) = fs::read_dir(&self.jobs) else { return Vec::new() };
        let mut folders = Vec::new();
        for path in entries.flatten().map(|entry| entry.path()) {
            let Ok(lock) = File::options().write(true).open(path.join("lock")) else { continue };
            let (socket, card) = (path.join("sock"), read_card(&path));
            let lives_on = card.as_ref().is_some_and(|card| socket_of(card.pid).as_ref() == Some(&socket));
            // The lock of a job that lives on is for its next collector alone: one that comes while somebody looks would
            // take it for watched, and leave it.
            let watched = if lives_on { listens(&socket) } else { lock.try_lock().is_err() };
            if !watched && !lives_on {
                remove(&path);
                continue;
            }
            folders.push(Folder { socket, card, watched });
        }
        folders
    }
}

struct Folder {
    socket: PathBuf,
    card: Option<Card>,
    /// Whether its collector lives.
    watched: bool,
}

/// Becomes the collector of the job whose folder is `path`.
fn claim(path: PathBuf) -> Result<Claim> {
    for _ in 0..CLAIM_TRIES {
        if let Some(claim) = try_claim(&path)? {
            return Ok(claim);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    bail!("{} stays locked and nobody listens there; remove it and try again", path.display())
}

/// As [`claim`]; `None` where another attempt may end otherwise.
fn try_claim(path: &Path) -> Result<Option<Claim>> {
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(error).with_context(|| format!("cannot create {}", path.display()));
        }
        _ => {}
    }
    let (lock_path, socket) = (path.join("lock"), path.join("sock"));
    // Somebody who tidies up may have removed the folder meanwhile: then it is made again.
    let Ok(lock) = File::options().create(true).truncate(false).write(true).open(&lock_path) else {
        return Ok(None);
    };
    match lock.try_lock() {
        Ok(()) if is_still_at(&lock, &lock_path) => {
            // A socket that a killed collector left behind would make bind fail.
            let _ = fs::remove_file(socket);
            Ok(Some(Claim::Mine(JobDir { path: path.to_owned(), _lock: lock, stays: false })))
        }
        // A socket alone says nothing: a killed collector leaves one behind.
        Err(TryLockError::WouldBlock) if listens(&socket) => Ok(Some(Claim::Taken(socket))),
        Err(TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("cannot lock {}", path.display()))
        }
        // Locked by one that tidies up, or by a collector that does not listen yet.
        Ok(()) | Err(TryLockError::WouldBlock) => Ok(None),
    }
}

/// Whether a process listens at `socket`, also one that is too busy to answer. Never waits; the listener sees somebody come
/// and go.
fn listens(socket: &Path) -> bool {
    let connected = || {
        let address = SocketAddrUnix::new(socket)?;
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let client = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::connect(&client, &address)
    };
    matches!(connected(), Ok(()) | Err(Errno::AGAIN))
}

/// The place of a dead collector: the folder whose socket process `pid` keeps calling, with its card of the job.
/// `None` where the process calls nobody, is another user's, or has a collector that lives.
pub(crate) fn take_over(pid: u32) -> Option<(JobDir, Option<Card>)> {
    let uid = this_user();
    if !trusted::is_wholly_of(pid, uid) {
        return None;
    }
    let socket = socket_of(pid)?;
    let path = socket.parent().filter(|_| socket.is_absolute() && socket.ends_with("sock"))?;
    let path = trusted::folder_of(path, uid)?;
    let card = read_card(&path).filter(|card| socket_of(card.pid).as_ref() == Some(&socket));
    match claim(path) {
        Ok(Claim::Mine(dir)) => Some((dir, card)),
        Ok(Claim::Taken(_)) | Err(_) => None,
    }
}

/// Where the shim of process `pid` calls, where we may know that.
pub(crate) fn socket_of(pid: u32) -> Option<PathBuf> {
    let environment = procfs::environment(pid)?;
    match procfs::variable(&environment, "STALLSCOPE_SOCKET") {
        Some(named) => Some(PathBuf::from(OsStr::from_bytes(named))),
        None => places::socket_of_its_own(pid, &environment),
    }
}

fn read_card(folder: &Path) -> Option<Card> {
    serde_json::from_slice(&fs::read(folder.join("job.json")).ok()?).ok()
}

/// The user who called sudo, if one did.
fn this_user() -> u32 {
    caller_uid().unwrap_or_else(|| rustix::process::geteuid().as_raw())
}

/// What a running job's folder says of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Card {
    pub name: String,
    /// Root of the job's process tree.
    pub pid: u32,
    pub recording: PathBuf,
    pub started_wall_ns: u64,
}

/// See [`RuntimeDir::claim`].
#[derive(Debug)]
pub enum Claim {
    Mine(JobDir),
    /// Another collector has the job and listens there.
    Taken(PathBuf),
}

/// The folder of a job whose collector we are, as long as this lives.
#[derive(Debug)]
pub struct JobDir {
    path: PathBuf,
    _lock: File,
    /// Whether the folder outlives this.
    stays: bool,
}

impl JobDir {
    pub fn socket(&self) -> PathBuf {
        self.path.join("sock")
    }

    pub fn write_card(&self, card: &Card) -> Result<()> {
        let bytes = serde_json::to_vec_pretty(card)?;
        fs::write(self.path.join("job.json"), bytes)
            .with_context(|| format!("cannot write into {}", self.path.display()))
    }
}

impl JobDir {
    /// Keeps what the node has granted the job's caches for a later collector.
    pub(crate) fn keep_granted(&self, bytes: u64) {
        // Without it a successor asks as for a job that has just begun.
        let _ = fs::write(self.path.join("granted"), bytes.to_string());
    }

    /// What the node had granted the job's caches when it had an earlier collector.
    pub(crate) fn granted_bytes(&self) -> Option<u64> {
        fs::read_to_string(self.path.join("granted")).ok()?.parse().ok()
    }

    /// Leaves the job, which lives on and keeps calling here, to a later collector.
    pub(crate) fn leave(mut self) {
        self.stays = true;
    }
}

impl Drop for JobDir {
    fn drop(&mut self) {
        match self.stays {
            true => drop(fs::remove_file(self.socket())),
            false => remove(&self.path),
        }
    }
}

fn remove(path: &Path) {
    // File by file, so that a folder of another kind is never emptied by mistake.
    for file in ["sock", "job.json", "granted", "lock"] {
        let _ = fs::remove_file(path.join(file));
    }
    let _ = fs::remove_dir(path);
}

/// Whether `path` still names the file that was opened.
fn is_still_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::metadata(path)) {
        (Ok(opened), Ok(named)) => (opened.dev(), opened.ino()) == (named.dev(), named.ino()),
        _ => false,
    }
}

/// A name that is safe as one part of a short path.
fn shorten(key: &str) -> String {
    let safe = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' };
    // The end carries the pid or the Slurm step, which keeps two jobs of one name apart.
    let name: String = key.chars().map(safe).collect();
    let name = name[name.len().saturating_sub(NAME_LIMIT_BYTES)..].trim_start_matches('.');
    if name.is_empty() { "job".into() } else { name.into() }
}
