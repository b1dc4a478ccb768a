//! Saves in two phases: a snapshot in the caller's time, everything else in the background.

use crate::arena::{Arenas, lock};
use crate::copy::Copiers;
use crate::deaf::StartsDeaf;
use crate::error::{Doing, Error, Result};
use crate::files::{Disk, Files};
use crate::history::History;
use crate::image::BLOCK;
use crate::interval::Account;
use crate::locking::Lock;
use crate::manifest::MOST_USER_BYTES;
use crate::measured;
use crate::names::{Ticket, folder, random_id};
use crate::pace::Pace;
use crate::persist::{Persist, Task};
use crate::retain::Retain;
use crate::reuse::Base;
use crate::snapshot::{Plan, Snapshot, Source};
use crate::store::Store;
use crate::{Checkpoint, State};
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How a saver works. The default is one rank that keeps 3 checkpoints.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which of the ranks this process is. Rank 0 commits, collects, and alone locks the folder.
    pub rank: u32,
    /// How many ranks save together, each its part. A rank may save no tensor and its user state alone (DDP).
    pub world: u32,
    /// How many verified checkpoints are kept; none for all.
    pub keep: Option<usize>,
    /// What stays besides these.
    pub retain: Retain,
    /// Snapshots that may be in memory at once, 1 or 2: with 2 a save can begin while the one before drains.
    pub arenas: usize,
    /// Threads that copy, the caller's among them.
    pub threads: usize,
    /// How long rank 0 waits for the parts of the others, and they for it, before a save is given up.
    pub patience: Duration,
}

impl Default for Options {
    fn default() -> Options {
        let threads = thread::available_parallelism().map_or(2, |cores| cores.get().clamp(2, 4));
        Options {
            rank: 0,
            world: 1,
            keep: Some(3),
            retain: Retain::default(),
            arenas: 2,
            threads,
            patience: Duration::from_secs(600),
        }
    }
}

/// How a save ended.
#[derive(Debug)]
pub struct Outcome {
    /// Which save.
    pub ticket: Ticket,
    /// What became of it. An error says that there is no such checkpoint; older ones are untouched.
    pub result: Result<Saved>,
}

/// How often it is noted that the job is alive, and what its saves have cost: what a run that is killed is believed to have
/// trained since is lost to the estimates.
const NOTED_EVERY: Duration = Duration::from_secs(5);

/// A save that succeeded.
#[derive(Clone, Copy, Debug, Default)]
pub struct Saved {
    /// Whether the whole checkpoint is committed and durable (rank 0), or only this rank's part is (others).
    pub committed: bool,
    /// Of this rank's tensors with their header.
    pub image_bytes: u64,
    /// Of these, written.
    pub written_bytes: u64,
    /// Of these, on disk already and linked.
    pub reused_bytes: u64,
    /// From the start of writing until this rank's bytes were durable.
    pub write_ns: u64,
    /// From then until the commit was: other ranks, manifest, renames.
    pub commit_ns: u64,
}

impl Saved {
    /// Bytes written a second.
    pub fn bytes_per_s(&self) -> f64 {
        self.written_bytes as f64 / (self.write_ns.max(1) as f64 / 1e9)
    }
}

/// Saves checkpoints of one rank into a folder. Its methods may be called from any thread; none of them needs the
/// caller's interpreter lock to make progress.
#[derive(Debug)]
pub struct Saver {
    shared: Arc<Shared>,
    copiers: Copiers,
    arenas: Arc<Arenas>,
    tasks: Option<Sender<Task>>,
    thread: Option<JoinHandle<()>>,
    /// Threads are not inherited by a fork.
    pid: u32,
}

/// What the saver and its thread share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) dir: PathBuf,
    pub(crate) options: Options,
    pub(crate) files: Arc<dyn Files>,
    pub(crate) pace: Pace,
    pub(crate) stop: AtomicBool,
    /// Whose checkpoints these are, and which may go.
    run: Mutex<Option<String>>,
    /// The committed checkpoints that were there when this was opened, newest first, and their runs.
    found: Vec<(String, Option<String>)>,
    names: Mutex<Names>,
    state: Mutex<Progress>,
    changed: Condvar,
    history: Mutex<History>,
    noted: AtomicBool,
    busy: AtomicUsize,
    pub(crate) lock: Option<Lock>,
}

#[derive(Debug, Default)]
struct Names {
    taken: HashSet<String>,
    sequence: u64,
}

#[derive(Debug, Default)]
struct Progress {
    outcomes: Vec<Outcome>,
    /// Saves handed in, and ended.
    begun: u64,
    ended: u64,
}

impl Saver {
    /// Begins to save into a folder, which is made when it is not there. Rank 0 removes what killed saves left behind,
    /// so it opens before any rank persists. A new run begins, which never removes another one's checkpoints;
    /// `continue_run` takes up an earlier one.
    ///
    /// # Errors
    /// The folder cannot be made or written; another process saves into it.
    pub fn open(dir: &Path, options: Options) -> Result<Saver> {
        Saver::open_with(dir, options, Arc::new(Disk))
    }

    /// The same on other file operations, for tests of what happens when they fail.
    pub fn open_with(dir: &Path, options: Options, files: Arc<dyn Files>) -> Result<Saver> {
        if options.world == 0 || options.rank >= options.world {
            let Options { rank, world, .. } = options;
            return Err(Error::Refused(format!("there is no rank {rank} among {world}")));
        }
        std::fs::create_dir_all(dir).doing("make", dir)?;
        let store = Store::open(dir);
        let (mut names, mut history, mut taken_lock) = (Names::default(), History::default(), None);
        let mut found = Vec::new();
        if options.rank == 0 {
            taken_lock = Some(Lock::take_patiently(dir)?);
            // One that can't be removed keeps its name, and costs a suffix.
            let _ = store.remove_leftovers(&*files, false);
            let entries = store.list()?;
            (names.taken, names.sequence) = store.taken_names(&entries)?;
            found.extend(entries.into_iter().filter_map(|entry| Some((entry.name, entry.manifest?.run))));
            history = History::read(dir);
            history.begin();
            history.write(dir);
        }
        let base = newest_part(&store, options.rank);
        let shared = Arc::new(Shared {
            dir: dir.to_owned(),
            files,
            pace: Pace::new(),
            stop: AtomicBool::new(false),
            run: Mutex::new(Some(random_id())),
            found,
            names: Mutex::new(names),
            state: Mutex::default(),
            changed: Condvar::new(),
            history: Mutex::new(history),
            noted: AtomicBool::new(true),
            busy: AtomicUsize::new(0),
            lock: taken_lock,
            options,
        });
        let (tasks, received) = channel();
        let deaf = StartsDeaf::new();
        let thread = {
            let shared = shared.clone();
            let serve = move || serve(&shared, &received, base);
            thread::Builder::new()
                .name("ckpt-persist".into())
                .spawn(serve)
                .doing("start a thread for", dir)?
        };
        let copiers = Copiers::new(shared.options.threads.saturating_sub(1));
        drop(deaf);
        let arenas = Arenas::new(shared.options.arenas.clamp(1, 2));
        let (tasks, thread) = (Some(tasks), Some(thread));
        Ok(Saver { shared, copiers, arenas, tasks, thread, pid: std::process::id() })
    }

    /// What is saved from now on belongs to this run: the manifest's of the checkpoint that training goes on from. Its older
    /// checkpoints go as new ones come.
    pub fn continue_run(&self, run: Option<String>) {
        *lock(&self.shared.run) = run;
    }

    /// The checkpoints of other runs that were there when this was opened, newest first. Rank 0 alone knows.
    pub fn of_other_runs(&self) -> Vec<String> {
        let run = self.shared.run();
        self.shared.found.iter().filter(|(_, of)| *of != run).map(|(name, _)| name.clone()).collect()
    }

    /// Populates memory for the first snapshot, in the background, so that the first save costs what later ones do.
    pub fn prepare(&self, plan: &Plan) {
        self.arenas.prepare(plan.bytes().next_multiple_of(BLOCK) as usize);
    }

    /// Whether a snapshot would begin at once, rather than wait for a save that drains.
    pub fn ready(&self) -> bool {
        self.arenas.available()
    }

    /// Copies tensors out of the job: `Source::Now` before this returns, `Source::Late` until the snapshot's fence. Waits
    /// while all arenas are in use; the snapshot says for how long.
    ///
    /// # Errors
    /// There is no memory for an arena.
    ///
    /// # Panics
    /// When there is not one source for each tensor of the plan.
    ///
    /// # Safety
    /// Each pointer is readable for its tensor's bytes, and nobody writes there: `Now` until this returns, `Late` until
    /// `Snapshot::fence` has returned or the snapshot is dropped. The snapshot is not leaked before that.
    pub unsafe fn snapshot(&self, plan: &Plan, sources: &[Source]) -> Result<Snapshot> {
        // SAFETY: this function's contract is the other's.
        unsafe { Snapshot::take(plan, sources, &self.arenas, &self.copiers) }
    }

    /// Decides on a save of this step: its folder, never one that is there. Rank 0 alone; the others get its text form.
    /// Touches no disk.
    pub fn ticket(&self, step: u64) -> Ticket {
        let mut names = lock(&self.shared.names);
        let name = (1..).map(|attempt| folder(step, attempt)).find(|name| !names.taken.contains(name));
        let name = name.expect("attempts do not run out");
        names.taken.insert(name.clone());
        names.sequence += 1;
        Ticket { step, name, save: random_id(), sequence: names.sequence }
    }

    /// Writes a snapshot in the background; saves are written one after the other, in the order of these calls. `user` are
    /// bytes of the caller's, up to 1 GiB, empty for none. What is still to be copied is waited for there, not here.
    pub fn persist(&self, snapshot: Snapshot, ticket: Ticket, user: Vec<u8>) -> Result<()> {
        self.persist_measured(snapshot, ticket, user, BTreeMap::new())
    }

    /// The same of a state of which something was measured, such as its loss in validation; NaN is left
    /// out. Rank 0's hold.
    pub fn persist_measured(
        &self,
        snapshot: Snapshot,
        ticket: Ticket,
        user: Vec<u8>,
        mut metrics: BTreeMap<String, f64>,
    ) -> Result<()> {
        metrics.retain(|_, value| !value.is_nan());
        if user.len() as u64 > MOST_USER_BYTES {
            return Err(Error::Refused(
                "the user state is larger than 1 GiB; save its large parts as tensors".into(),
            ));
        }
        if !measured::are_few(&metrics) {
            return Err(Error::Refused(
                "a checkpoint has at most 1,000 metrics, with names of at most 200 bytes; log the others elsewhere".into(),
            ));
        }
        self.check_process()?;
        lock(&self.shared.state).begun += 1;
        let task = Task { snapshot, ticket, user, metrics, locked: self.shared.renew_lock() };
        if self.tasks.as_ref().is_none_or(|tasks| tasks.send(task).is_err()) {
            lock(&self.shared.state).ended += 1;
            return Err(Error::Refused(
                "the thread that writes checkpoints is gone; see what it printed".into(),
            ));
        }
        Ok(())
    }

    /// Whether the background writes, reads back or collects: steps meanwhile are not undisturbed ones.
    pub fn working(&self) -> bool {
        self.shared.busy.load(Ordering::Relaxed) > 0 || !self.settled()
    }

    fn settled(&self) -> bool {
        let state = lock(&self.shared.state);
        state.begun == state.ended
    }

    /// The saves that ended since this was asked last.
    pub fn outcomes(&self) -> Vec<Outcome> {
        std::mem::take(&mut lock(&self.shared.state).outcomes)
    }

    /// Waits until every save handed in so far has ended, well or badly; false when the time is over before.
    pub fn wait(&self, timeout: Duration) -> bool {
        let until = Instant::now().checked_add(timeout);
        let mut state = lock(&self.shared.state);
        let all = state.begun;
        while state.ended < all && self.pid == std::process::id() {
            let left = until
                .map_or(Duration::from_secs(3600), |until| until.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return false;
            }
            state = self.shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// The limit on what the background writes and reads back, to be changed at any time.
    pub fn pace(&self) -> &Pace {
        &self.shared.pace
    }

    /// What this folder tells of earlier runs of the job. Rank 0 alone knows.
    pub fn history(&self) -> History {
        lock(&self.shared.history).clone()
    }

    /// Notes what saves have cost so far, for the next run of the job; it reaches the disk within seconds. Rank 0's alone
    /// does.
    pub fn note(&self, account: Account) {
        if self.shared.options.rank == 0 && lock(&self.shared.history).note(account) {
            self.shared.noted.store(false, Ordering::Relaxed);
        }
    }

    /// The folder.
    pub fn store(&self) -> Store {
        Store::open(&self.shared.dir)
    }

    /// Finishes what was handed in, as dropping does, and gives the outcomes that nobody has asked for.
    pub fn close(self) -> Vec<Outcome> {
        let shared = self.shared.clone();
        drop(self);
        std::mem::take(&mut lock(&shared.state).outcomes)
    }

    /// Gives up saves that are not committed yet, instead of finishing them, which dropping a saver does.
    pub fn abandon(&self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.pace.limit(None);
    }

    fn check_process(&self) -> Result<()> {
        if self.pid == std::process::id() {
            return Ok(());
        }
        Err(Error::Refused("this saver belongs to the process that opened it, not to a fork of that".into()))
    }
}

impl Drop for Saver {
    /// Finishes what was handed in, as fast as the disk takes it. In a forked child it does nothing: the threads and the
    /// lock are the parent's.
    fn drop(&mut self) {
        if self.pid != std::process::id() {
            std::mem::forget(self.thread.take());
            std::mem::forget(self.tasks.take());
            // Its drop would wait for threads that this process does not have.
            std::mem::forget(std::mem::replace(&mut self.copiers, Copiers::new(0)));
            return;
        }
        self.shared.pace.limit(None);
        drop(self.tasks.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        if self.shared.options.rank == 0 {
            let mut history = lock(&self.shared.history);
            history.alive(true);
            history.write(&self.shared.dir);
        }
    }
}

impl Shared {
    /// Tells how a save ended, or that one which had ended well turned out bad.
    pub(crate) fn tell(&self, outcome: Outcome, ends: bool) {
        let mut state = lock(&self.state);
        state.ended += u64::from(ends);
        state.outcomes.push(outcome);
        drop(state);
        self.changed.notify_all();
    }

    /// In the thread that took it, whose descriptors those that write do not share.
    fn renew_lock(&self) -> Result<()> {
        self.lock.as_ref().map_or(Ok(()), Lock::renew)
    }

    pub(crate) fn run(&self) -> Option<String> {
        lock(&self.run).clone()
    }

    pub(crate) fn alive(&self) {
        let mut history = lock(&self.history);
        history.alive(false);
        history.write(&self.dir);
    }
}

fn serve(shared: &Shared, tasks: &Receiver<Task>, base: Option<Base>) {
    keep_descriptors_apart();
    let mut persist = Persist::new(shared, base);
    loop {
        match tasks.recv_timeout(NOTED_EVERY) {
            Ok(task) => {
                shared.busy.fetch_add(1, Ordering::Relaxed);
                persist.save(task);
                shared.busy.fetch_sub(1, Ordering::Relaxed);
            }
            Err(RecvTimeoutError::Timeout) if !shared.noted.swap(true, Ordering::Relaxed) => shared.alive(),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// From here on this thread, and those that it starts, have descriptors of their own, and none but the standard streams to begin with. So a job that
/// closes all but its own, as daemons do, closes none that is being written to, and what it opens next comes into the place of none. Where the
/// kernel does not do that (before Linux 5.9), descriptors stay the job's.
fn keep_descriptors_apart() {
    const BEHIND_STANDARD_STREAMS: libc::c_uint = 3;
    // SAFETY: it closes descriptors in this thread alone, which has just begun and opened none.
    unsafe {
        libc::syscall(
            libc::SYS_close_range,
            BEHIND_STANDARD_STREAMS,
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_UNSHARE as libc::c_uint,
        );
    }
}

/// What the newest checkpoint holds of a rank: chunks that are the same need not be written again.
fn newest_part(store: &Store, rank: u32) -> Option<Base> {
    let entries = store.list().ok()?;
    let newest = entries.iter().find(|entry| matches!(entry.state, State::Verified | State::Committed))?;
    let dir = store.dir().join(&newest.name);
    let part = Checkpoint::open(&dir).ok()?.parts.into_iter().nth(rank as usize)?;
    Some(Base { dir, part })
}
