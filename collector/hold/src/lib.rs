//! The *holder*: a process of the job's user that keeps files of a running job in the page cache, so that the kernel's own
//! choice, which a shuffle defeats, does not decide.
//!
//! Standard input has a line for each file that the job was seen to have open, for each that it keeps open and reads again, and for each
//! number of bytes to hold, when that changes. From such files it knows the job's folders, hears from the kernel of each file that is opened or written to there
//! (folders.rs), chooses (plan.rs), and maps and locks what it chose (locked.rs), without ever waiting for the job's user (walk.rs).
//! It ends with standard input or with the job; its locks end with it.

mod apart;
mod dropper;
mod filler;
mod folders;
mod identity;
mod leases;
mod line;
mod lister;
mod locked;
mod mounts;
mod plan;
#[cfg(test)]
mod testing;
mod walk;

pub use identity::{Files, become_user_of};
pub use line::{hear, line};

use filler::Filler;
use folders::{Event, Folders};
use identity::DESCRIPTORS;
use leases::Leases;
use locked::{Headroom, LEAST_PART, Locked, Refused};
use plan::{Name, Plan};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use stallscope_model::HeldSummary;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::OsStr;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};
use walk::Onwards;

/// How often results, and a few of the files held, are looked at.
const TURN: Duration = Duration::from_millis(50);
/// Turns between two lines about itself.
const TURNS_A_LINE: u32 = 5;
/// Turns between two searches for files that the job does not read any more.
const TURNS_A_REVIEW: u32 = 400;
/// Parts of what the kernel has to tell that are taken in one turn.
const PARTS: usize = 16;
/// Files held that are compared with what their paths lead to, each turn: changes by another machine, or through a writable
/// map, come without a notice.
const COMPARED: usize = 200;
/// Of standard input that is read at once.
const READ_BYTES: usize = 64 << 10;
/// A longer line than a path and its end is none.
const LONGEST_LINE: usize = 4098;
/// Turns between two comparisons of all that is held.
const TURNS_A_COMPARISON: u32 = 20;
/// Turns for which nothing more is brought in after a file did not fit, or the kernel locked no more.
const TURNS_OF_PATIENCE: u32 = 40;

/// Which job's files are held, and how much of them.
#[derive(Clone, Copy, Debug)]
pub struct Order {
    /// The job's root process, and when it began: its number may be another's by now.
    pub pid: u32,
    pub start_ticks: u64,
    /// Whose it was found to be.
    pub uid: u32,
    /// Bytes to hold at most; standard input may ask for less.
    pub most_bytes: u64,
}

/// Before the path of a file that the job keeps open and reads again, on standard input.
pub const READ_AGAIN: &[u8] = b"=";
/// Before the sentence why nothing can be held, on standard output.
pub const REFUSED: &str = "! ";

/// Holds until standard input or the job ends; prints a [`line`] on standard output each time that something changes, or [`REFUSED`]
/// and a sentence. `false`: nothing was held.
pub fn hold(order: Order) -> bool {
    let held = Holder::new(order).and_then(|mut holder| holder.run());
    if let Err(sentence) = &held {
        // Who asked for it may be gone.
        let _ = writeln!(std::io::stdout(), "{REFUSED}{sentence}");
    }
    held.is_ok()
}

struct Holder {
    /// Becomes readable when the job ends.
    ended: OwnedFd,
    folders: Folders,
    plan: Plan,
    filler: Filler,
    held: BTreeMap<Name, Locked>,
    /// Of what is held: a file may have two names.
    inodes: HashSet<(u64, u64)>,
    /// The last file that was compared.
    compared: Option<Name>,
    /// Turns until more is brought in.
    patience: u32,
    /// The last one did not fit: the next is tried alone.
    is_full: bool,
    most_bytes: u64,
    /// What standard input asks for.
    asked_bytes: u64,
    /// The kernel locks no more than that, until something is let go.
    locks_bytes: u64,
    /// Why it does not, for people.
    locking: Option<String>,
    /// All that is held is to be compared.
    is_lost: bool,
    /// What has come of a line.
    asked: Vec<u8>,
    figures: HeldSummary,
    printed: String,
    begun: Instant,
}

impl Holder {
    fn new(order: Order) -> Result<Holder, String> {
        // What lies in a container may be anything, also where the kernel's own files were.
        let most_folders = folders::most();
        let leases = Leases::open().map_err(|error| format!("the kernel's locks cannot be read: {error}"))?;
        let Order { pid, start_ticks, uid, most_bytes } = order;
        let job = become_user_of(pid, start_ticks, uid, most_bytes, Files::OfJob)?;
        // A line that nobody reads is not waited for.
        let _ = rustix::io::ioctl_fionbio(std::io::stdout(), true);
        let onwards = || {
            let onwards = Onwards::new(DESCRIPTORS, job.are_users);
            onwards.map_err(|error| format!("the mounts of process {pid} cannot be read: {error}"))
        };
        let folders = Folders::new(onwards()?, most_folders, job.unseen)
            .map_err(|error| format!("the kernel gives no notice of files: {error}"))?;
        let filler = Filler::start(onwards()?, leases).map_err(|error| {
            format!("no process to drop pages in, or no thread to read files in, can be started: {error}")
        })?;
        let most_bytes = order.most_bytes.min(job.lockable_bytes);
        filler.account.target(most_bytes);
        Ok(Holder {
            ended: job.ended,
            folders,
            plan: Plan::default(),
            filler,
            held: BTreeMap::new(),
            inodes: HashSet::new(),
            compared: None,
            patience: 0,
            is_full: false,
            most_bytes,
            asked_bytes: most_bytes,
            locks_bytes: u64::MAX,
            locking: (most_bytes < order.most_bytes).then(|| locking_ends("RLIMIT_MEMLOCK")),
            is_lost: false,
            asked: Vec::new(),
            figures: HeldSummary::default(),
            printed: String::new(),
            begun: Instant::now(),
        })
    }

    fn run(&mut self) -> Result<(), String> {
        for turn in 0_u32.. {
            if self.waits()? {
                break;
            }
            self.folders.watch_beside();
            self.hear();
            self.take_what_is_done();
            self.compare(turn);
            if turn.is_multiple_of(TURNS_A_REVIEW) {
                for name in self.plan.unused() {
                    self.let_go(&name);
                }
            }
            self.give_way();
            self.patience = self.patience.saturating_sub(1);
            self.order();
            if turn.is_multiple_of(TURNS_A_LINE) && !self.print() {
                break;
            }
        }
        Ok(())
    }

    /// Until the next turn, or there is something on standard input. `true`: it is over.
    fn waits(&mut self) -> Result<bool, String> {
        let stdin = std::io::stdin();
        let mut fds = [PollFd::new(&stdin, PollFlags::IN), PollFd::new(&self.ended, PollFlags::IN)];
        let turn = Timespec { tv_sec: 0, tv_nsec: TURN.as_nanos() as i64 };
        match poll(&mut fds, Some(&turn)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.to_string()),
        }
        let [asked, ended] = [0, 1].map(|at: usize| !fds[at].revents().is_empty());
        Ok(ended || asked && !self.is_asked(stdin.as_fd()))
    }

    /// Takes the lines of standard input; `false`: it has ended.
    fn is_asked(&mut self, stdin: impl AsFd) -> bool {
        let mut bytes = [0; READ_BYTES];
        match rustix::io::read(stdin, &mut bytes) {
            Ok(0) => return false,
            Ok(read) => self.asked.extend_from_slice(&bytes[..read]),
            Err(Errno::INTR | Errno::AGAIN) => return true,
            Err(_) => return false,
        }
        let asked = std::mem::take(&mut self.asked);
        let mut lines: Vec<&[u8]> = asked.split(|byte| *byte == b'\n').collect();
        let part = lines.pop().unwrap_or_default();
        lines.iter().for_each(|line| self.takes(line));
        self.asked = part.to_vec();
        self.asked.len() < LONGEST_LINE
    }

    /// A file that the job has open, and perhaps reads again, or how many bytes to hold.
    fn takes(&mut self, line: &[u8]) {
        let path = |line| Path::new(OsStr::from_bytes(line));
        if line.first() == Some(&b'/') {
            self.folders.has_open(path(line));
        } else if let Some(file) = line.strip_prefix(READ_AGAIN) {
            if let Some(name) = self.folders.reads_again(path(file)) {
                self.plan.read_again(name, self.begun.elapsed().as_millis() as u64);
            }
        } else if let Some(bytes) = std::str::from_utf8(line).ok().and_then(|line| line.parse::<u64>().ok()) {
            self.asked_bytes = bytes.min(self.most_bytes);
            self.set_target();
        }
    }

    fn set_target(&self) {
        self.filler.account.target(self.asked_bytes.min(self.locks_bytes));
    }

    fn hear(&mut self) {
        let now_ms = self.begun.elapsed().as_millis() as u64;
        for _ in 0..PARTS {
            let events = self.folders.events();
            if events.is_empty() {
                break;
            }
            events.into_iter().for_each(|event| self.heard(event, now_ms));
        }
    }

    fn heard(&mut self, event: Event, now_ms: u64) {
        match event {
            Event::Opened(name) => self.plan.opened(name, now_ms),
            Event::Written(name) => {
                self.plan.written(&name);
                self.changed(&name);
            }
            Event::Gone(name) => {
                self.plan.gone(&name);
                self.changed(&name);
            }
            Event::FolderGone(folder) => self.folder_gone(folder),
            Event::Lost => {
                self.figures.lost += 1;
                self.is_lost = true;
            }
        }
    }

    fn folder_gone(&mut self, folder: u32) {
        self.plan.folder_gone(folder);
        let names: Vec<Name> = self.held.keys().filter(|name| name.0 == folder).cloned().collect();
        names.iter().for_each(|name| self.changed(name));
    }

    fn changed(&mut self, name: &Name) {
        if self.let_go(name) {
            self.figures.changed_files += 1;
        }
    }

    fn let_go(&mut self, name: &Name) -> bool {
        let Some(locked) = self.held.remove(name) else { return false };
        self.inodes.remove(&locked.inode());
        let bytes = locked.bytes;
        // Unlocked before others may take its place.
        drop(locked);
        self.give_back(bytes);
        true
    }

    fn give_back(&mut self, bytes: u64) {
        self.filler.account.give_back(bytes);
        // The kernel may lock as much again.
        self.locks_bytes = u64::MAX;
        self.set_target();
    }

    /// Lets go what is more than may be held: of the file that was held last its end, where much of it stays.
    fn give_way(&mut self) {
        while let Some(more) = self.filler.account.exceeds_by()
            && let Some(name) = self.plan.held_last().cloned()
        {
            match self.held.get_mut(&name) {
                Some(locked) if locked.bytes >= more + LEAST_PART => {
                    let less = locked.shrink(more);
                    self.filler.account.give_back(less);
                }
                _ => {
                    self.plan.let_go(&name);
                    self.let_go(&name);
                    self.figures.released_files += 1;
                }
            }
        }
    }

    fn take_what_is_done(&mut self) {
        while let Some((name, done)) = self.filler.next_done() {
            match done {
                Ok(locked) => {
                    self.is_full = false;
                    self.hold(name, locked);
                }
                Err(Refused::Full) => {
                    self.plan.not_now(&name);
                    (self.is_full, self.patience) = (true, TURNS_OF_PATIENCE);
                }
                Err(Refused::Limit) => {
                    self.plan.not_now(&name);
                    self.locks_bytes = self.filler.account.held_bytes();
                    self.set_target();
                    self.locking = Some(locking_ends("RLIMIT_MEMLOCK or vm.max_map_count"));
                }
                Err(Refused::Used) => self.plan.later(&name),
                Err(Refused::Unknown) => self.plan.not_opened(&name),
                Err(Refused::File) => self.plan.bar(&name),
                Err(Refused::FileSystem(which)) => {
                    self.plan.bar(&name);
                    self.folders.skipped.insert(which);
                }
            }
        }
    }

    fn hold(&mut self, name: Name, locked: Locked) {
        let is_its = self.folders.path(&name).is_some_and(|path| locked.is_still(&path));
        let bytes = locked.bytes;
        if is_its && self.inodes.contains(&locked.inode()) {
            // By another name.
            self.plan.bar(&name);
        } else if is_its && self.plan.is_held(&name) {
            self.inodes.insert(locked.inode());
            self.held.insert(name, locked);
            return;
        } else {
            // Replaced or written to meanwhile.
            self.plan.later(&name);
            self.figures.changed_files += 1;
        }
        drop(locked);
        self.filler.account.give_back(bytes);
    }

    /// Compares some of the files with what their paths lead to, and all after the kernel had more to tell than it keeps.
    fn compare(&mut self, turn: u32) {
        if self.is_lost && turn.is_multiple_of(TURNS_A_COMPARISON) {
            self.is_lost = false;
            self.compared = None;
            self.compare_some(usize::MAX);
            self.look_for_replaced(self.folders.all());
        } else {
            self.compare_some(COMPARED);
            if turn.is_multiple_of(TURNS_A_COMPARISON) {
                let unknown = self.folders.take_unknown();
                self.look_for_replaced(unknown);
            }
        }
    }

    /// Compares the next files with what their paths lead to.
    fn compare_some(&mut self, most: usize) {
        use std::ops::Bound::{Excluded, Unbounded};
        let from = self.compared.take().map_or(Unbounded, Excluded);
        let next: Vec<Name> =
            self.held.range((from, Unbounded)).map(|(name, _)| name.clone()).take(most).collect();
        // From the first on again after the last.
        self.compared = next.last().filter(|_| next.len() == most).cloned();
        let mut folders = BTreeSet::new();
        for name in next {
            let same = self.folders.path(&name).is_some_and(|path| self.held[&name].is_still(&path));
            if !same {
                self.plan.written(&name);
                self.changed(&name);
                folders.insert(name.0);
            }
        }
        self.look_for_replaced(folders);
    }

    fn look_for_replaced(&mut self, folders: impl IntoIterator<Item = u32>) {
        for folder in self.folders.replaced(folders) {
            self.folder_gone(folder);
        }
    }

    fn order(&mut self) {
        while self.patience == 0
            && self.filler.takes_more(self.is_full)
            && self.filler.account.left_bytes() > 0
        {
            let Some(name) = self.plan.order() else { return };
            match self.folders.path(&name) {
                Some(path) => self.filler.order(name, path),
                None => self.plan.gone(&name),
            }
        }
    }

    /// A line where there is something new. `false`: there is nobody any more to read it.
    fn print(&mut self) -> bool {
        // What is on the way is locked soon; the line has what is locked.
        self.figures.files = self.held.len() as u64;
        self.figures.bytes = self.held.values().map(|locked| locked.bytes).sum();
        self.figures.known_files = self.plan.known() as u64;
        self.figures.brought_bytes = read_bytes();
        self.figures.limit = self.limit();
        let lost = self.figures.lost.saturating_add(self.plan.unknown());
        let now = line(&HeldSummary { lost, ..self.figures.clone() });
        if self.printed == now {
            return true;
        }
        // In one piece, as it is shorter than what a pipe takes so.
        match rustix::io::write(std::io::stdout(), now.as_bytes()) {
            Ok(_) => self.printed = now,
            // Later, when somebody reads.
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => return false,
        }
        true
    }

    /// What limits it, for people; empty: nothing.
    fn limit(&self) -> String {
        let skipped: Vec<&str> = self.folders.skipped.iter().copied().collect();
        let of_systems =
            || (!skipped.is_empty()).then(|| format!("files are not held on {}", skipped.join(", nor on ")));
        self.locking.clone().or_else(of_systems).or_else(|| self.folders.limit()).unwrap_or_default()
    }
}

/// Why the kernel locks no more.
fn locking_ends(by: &str) -> String {
    let allowed = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    let bytes = allowed.map_or("any number of".to_owned(), |bytes| (bytes >> 20).to_string());
    format!(
        "this process may lock no more ({by}): {bytes} MiB; with sudo as much as --cache has, in a mapping for each file"
    )
}

/// Of this process, from storage.
fn read_bytes() -> u64 {
    // SAFETY: all zeros is one, and the call fills it in.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: it is written to for the call alone.
    let done = unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    if done == 0 { (usage.ru_inblock as u64).saturating_mul(512) } else { 0 }
}
