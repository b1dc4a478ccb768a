//! The *holder*: a process of the job's user that keeps files of a running job in the page cache, so that the kernel's own
//! choice, which a shuffle defeats, does not decide.
//!
//! It finds the job's folders by what its processes have open (looks.rs), hears from the kernel of each file that is opened or
//! written to there (folders.rs), chooses (plan.rs), and maps and locks what it chose (locked.rs). It takes the number of bytes
//! to hold from its standard input, a line each, and ends with that or with the job; its locks end with it.

mod figures;
mod filler;
mod folders;
mod identity;
mod locked;
mod looks;
mod plan;

pub use figures::Figures;
pub use identity::{Job, become_user_of};

use filler::Filler;
use folders::{Event, Folders};
use locked::{Headroom, Locked, Refused};
use plan::{Name, Plan};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// How often results, and a few of the files held, are looked at.
const TURN: Duration = Duration::from_millis(50);
/// Turns between two looks at the job's open files, once its folders are known; before, each turn has one.
const TURNS_A_LOOK: u32 = 20;
/// Turns between two walks over the job's processes.
const TURNS_A_WALK: u32 = 20;
/// Turns between two lines about itself.
const TURNS_A_LINE: u32 = 5;
/// Parts of what the kernel has to tell that are taken in one turn.
const PARTS: usize = 16;
/// Files held that are compared with what their paths lead to, each turn: changes by another machine, or through a writable
/// map, come without a notice.
const COMPARED: usize = 200;
/// Turns for which nothing more is brought in after a file did not fit, or the kernel locked no more.
const TURNS_OF_PATIENCE: u32 = 40;

/// Which job's files are held, and how much of them.
#[derive(Clone, Copy, Debug)]
pub struct Order {
    /// The job's root process, and when it began: its number may be another's by now.
    pub pid: u32,
    pub start_ticks: u64,
    /// Bytes to hold at most; standard input may ask for less.
    pub most_bytes: u64,
}

/// Before the sentence why nothing can be held, on standard output.
pub const REFUSED: &str = "! ";

/// Holds until standard input or the job ends; says [`Figures`] on standard output, or [`REFUSED`] and a sentence. `false`:
/// nothing was held.
pub fn hold(order: Order) -> bool {
    let held = Holder::new(order).and_then(|mut holder| holder.run());
    if let Err(sentence) = &held {
        // Who asked for it may be gone.
        let _ = writeln!(std::io::stdout(), "{REFUSED}{sentence}");
    }
    held.is_ok()
}

struct Holder {
    job: Job,
    folders: Folders,
    plan: Plan,
    filler: Filler,
    held: BTreeMap<Name, Locked>,
    /// The last file that was compared.
    compared: Option<Name>,
    processes: Vec<u32>,
    /// Turns until more is brought in.
    patience: u32,
    /// The last one did not fit: the next is tried alone.
    is_full: bool,
    most_bytes: u64,
    /// What has come of a line.
    asked: Vec<u8>,
    figures: Figures,
    printed: Option<Figures>,
    /// File systems of which nothing can be held.
    skipped: BTreeSet<&'static str>,
    begun: Instant,
}

impl Holder {
    fn new(order: Order) -> Result<Holder, String> {
        let job = identity::become_user_of(order.pid, order.start_ticks, order.most_bytes)?;
        let folders =
            Folders::new().map_err(|error| format!("the kernel gives no notice of files: {error}"))?;
        let filler = Filler::start();
        filler.account.target(order.most_bytes);
        Ok(Holder {
            job,
            folders,
            plan: Plan::default(),
            filler,
            held: BTreeMap::new(),
            compared: None,
            processes: Vec::new(),
            patience: 0,
            is_full: false,
            most_bytes: order.most_bytes,
            asked: Vec::new(),
            figures: Figures::default(),
            printed: None,
            skipped: BTreeSet::new(),
            begun: Instant::now(),
        })
    }

    fn run(&mut self) -> Result<(), String> {
        for turn in 0_u32.. {
            if self.waits()? {
                break;
            }
            self.hear();
            self.take_what_is_done();
            if turn.is_multiple_of(TURNS_A_WALK) {
                self.processes = looks::tree(self.job.pid);
            }
            if self.folders.count() == 0 || turn.is_multiple_of(TURNS_A_LOOK) {
                self.look();
            }
            self.compare();
            while self.filler.account.exceeds()
                && let Some(name) = self.plan.let_one_go()
            {
                self.let_go(&name);
                self.figures.released_files += 1;
            }
            self.patience = self.patience.saturating_sub(1);
            self.order();
            if turn.is_multiple_of(TURNS_A_LINE) && self.print().is_err() {
                break;
            }
        }
        Ok(())
    }

    /// Until the next turn, or there is something on standard input. `true`: it is over.
    fn waits(&mut self) -> Result<bool, String> {
        let stdin = std::io::stdin();
        let mut fds = [PollFd::new(&stdin, PollFlags::IN), PollFd::new(&self.job.ended, PollFlags::IN)];
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
        let mut bytes = [0; 256];
        match rustix::io::read(stdin, &mut bytes) {
            Ok(0) => return false,
            Ok(read) => self.asked.extend_from_slice(&bytes[..read]),
            Err(Errno::INTR | Errno::AGAIN) => return true,
            Err(_) => return false,
        }
        while let Some(end) = self.asked.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.asked.drain(..=end).collect();
            let bytes = std::str::from_utf8(&line).ok().and_then(|line| line.trim().parse::<u64>().ok());
            if let Some(bytes) = bytes {
                self.filler.account.target(bytes.min(self.most_bytes));
            }
        }
        self.asked.len() < 64
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
            Event::FolderGone(folder) => {
                self.plan.folder_gone(folder);
                let names: Vec<Name> = self.held.keys().filter(|name| name.0 == folder).cloned().collect();
                names.iter().for_each(|name| self.changed(name));
            }
            Event::Lost => {
                self.figures.lost += 1;
                self.compared = None;
                self.compare_some(usize::MAX);
            }
        }
    }

    fn changed(&mut self, name: &Name) {
        if self.let_go(name) {
            self.figures.changed_files += 1;
        }
    }

    fn let_go(&mut self, name: &Name) -> bool {
        let Some(locked) = self.held.remove(name) else { return false };
        let bytes = locked.bytes;
        // Unlocked before others may take its place.
        drop(locked);
        self.filler.account.give_back(bytes);
        true
    }

    fn take_what_is_done(&mut self) {
        while let Some((name, done)) = self.filler.next_done() {
            match done {
                Ok(locked) => {
                    let bytes = locked.bytes;
                    self.is_full = false;
                    if self.plan.is_held(&name) {
                        self.held.insert(name, locked);
                    } else {
                        drop(locked);
                        self.filler.account.give_back(bytes);
                        self.figures.changed_files += 1;
                    }
                }
                Err(refused @ (Refused::Full | Refused::Limit)) => {
                    self.plan.not_now(&name);
                    (self.is_full, self.patience) = (true, TURNS_OF_PATIENCE);
                    if refused == Refused::Limit {
                        self.figures.limit = locking_ends();
                    }
                }
                Err(Refused::File) => self.plan.bar(&name),
                Err(Refused::FileSystem(which)) => {
                    self.plan.bar(&name);
                    self.skipped.insert(which);
                }
            }
        }
    }

    fn look(&mut self) {
        for pid in &self.processes {
            looks::open_files(*pid).iter().for_each(|file| self.folders.has_open(file));
        }
    }

    fn compare(&mut self) {
        self.compare_some(COMPARED);
    }

    /// Compares the next files with what their paths lead to.
    fn compare_some(&mut self, most: usize) {
        use std::ops::Bound::{Excluded, Unbounded};
        let from = self.compared.take().map_or(Unbounded, Excluded);
        let next: Vec<Name> =
            self.held.range((from, Unbounded)).map(|(name, _)| name.clone()).take(most).collect();
        // From the first on again after the last.
        self.compared = next.last().filter(|_| next.len() == most).cloned();
        for name in next {
            let same = self.folders.path(&name).is_some_and(|path| self.held[&name].is_still(&path));
            if !same {
                self.plan.written(&name);
                self.changed(&name);
            }
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

    /// A line where there is something new.
    fn print(&mut self) -> std::io::Result<()> {
        let figures = &mut self.figures;
        figures.held_files = self.held.len() as u64;
        // What is on the way is locked soon; the line has what is locked.
        figures.held_bytes = self.held.values().map(|locked| locked.bytes).sum();
        figures.known_files = self.plan.known() as u64;
        figures.brought_bytes = read_bytes();
        if figures.limit.is_empty() && self.filler.is_idle() {
            figures.limit = limit(&self.skipped, self.folders.refused).unwrap_or_default();
        }
        let mut now = figures.clone();
        now.lost = now.lost.saturating_add(self.plan.unknown());
        if self.printed.as_ref() != Some(&now) {
            let mut out = std::io::stdout().lock();
            writeln!(out, "{now}")?;
            out.flush()?;
            self.printed = Some(now);
        }
        Ok(())
    }
}

fn limit(skipped: &BTreeSet<&'static str>, refused: u64) -> Option<String> {
    if !skipped.is_empty() {
        let which: Vec<&str> = skipped.iter().copied().collect();
        return Some(format!("files are not held on {}", which.join(", nor on ")));
    }
    (refused > 0).then(|| format!("{refused} folders are not watched: see fs.inotify.max_user_watches"))
}

/// Why the kernel locks no more.
fn locking_ends() -> String {
    let allowed = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    let mib = allowed.map_or(u64::MAX, |bytes| bytes >> 20);
    format!(
        "this process may lock no more: {mib} MiB in all (RLIMIT_MEMLOCK; with sudo as much as --cache has), and one \
         mapping a file (vm.max_map_count)"
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
