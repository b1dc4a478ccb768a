//! The holder of a job's files, as a session sees it: a process of the job's user, to which it says how much to hold and which
//! files the job has open, and which says what it has.

mod headroom;
mod kept;
mod knob;
mod looks;

use crate::knobs::Knobs;
use crate::procfs;
use anyhow::{Context, Result, bail};
use headroom::{Headroom, Memory};
use knob::BudgetKnob;
pub(crate) use knob::NAME as KNOB;
use looks::Looks;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use stallscope_hold::{READ_AGAIN, REFUSED};
use stallscope_model::HeldSummary;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// The verb by which this program is one (src/hold.rs).
const HOLD: &str = "hold-files";

/// How long it may take to say that it holds, or why not.
const SAYS_WITHIN: Duration = Duration::from_secs(10);
/// Ticks between two looks at the job's open files, once the holder knows of some; before, each tick has one.
const TICKS_A_LOOK: u32 = 4;
/// To let go of what is too much takes it less than one.
const TICKS_TO_LET_GO: u32 = 20;
/// How often it is looked at whether it has ended, and how long in between.
const LOOKS_AT_ITS_END: u32 = 100;
const BETWEEN_LOOKS: Duration = Duration::from_millis(10);
/// A longer line is none of it.
const LONGEST_LINE: usize = 4096;

#[derive(Debug)]
pub(crate) struct Holding {
    process: Child,
    orders: ChildStdin,
    /// Until it has ended.
    says: Option<ChildStdout>,
    /// Of a line that is not whole yet.
    part: Vec<u8>,
    headroom: Headroom,
    knob: Option<BudgetKnob>,
    looks: Looks,
    ticks: u32,
    /// Ticks for which it has had more than it may and let go of nothing, and how much it had then.
    over: u32,
    had_bytes: u64,
    held: HeldSummary,
    job: OwnedFd,
    noted: String,
    notices: Vec<String>,
}

impl Holding {
    /// Holds up to so many bytes of the files of process `pid`, which is user `owner`'s, and those below it.
    ///
    /// # Errors
    /// The holder's own sentence: nothing can be held for this job.
    pub(crate) fn start(pid: u32, owner: u32, budget_bytes: u64) -> Result<Holding> {
        let gone = || format!("there is no process {pid}");
        let raw = Pid::from_raw(pid as i32).with_context(gone)?;
        let job = pidfd_open(raw, PidfdFlags::NONBLOCK).with_context(gone)?;
        let start_ticks = procfs::start_ticks(pid).with_context(gone)?;
        let mut process = Command::new("/proc/self/exe")
            .arg(HOLD)
            .args(
                [u64::from(pid), start_ticks, u64::from(owner), budget_bytes]
                    .map(|number| number.to_string()),
            )
            // Nothing of root's or of the caller's surroundings is for a process of the job's user.
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start what holds files")?;
        let (Some(orders), Some(says)) = (process.stdin.take(), process.stdout.take()) else {
            bail!("what holds files cannot be spoken with")
        };
        ioctl_fionbio(&says, true)?;
        // One that is stopped is not waited for.
        ioctl_fionbio(&orders, true)?;
        let held = HeldSummary { budget_bytes, target_bytes: budget_bytes, ..HeldSummary::default() };
        let mut holding = Holding {
            process,
            orders,
            says: Some(says),
            part: Vec::new(),
            headroom: Headroom::new(budget_bytes),
            knob: None,
            looks: Looks::new(pid, owner),
            ticks: 0,
            over: 0,
            had_bytes: 0,
            held,
            job,
            noted: String::new(),
            notices: Vec::new(),
        };
        let first = holding.first_line()?;
        if let Some(sentence) = first.strip_prefix(REFUSED) {
            bail!("--cache: {sentence}");
        }
        stallscope_hold::hear(&mut holding.held, &first);
        Ok(holding)
    }

    fn first_line(&mut self) -> Result<String> {
        let ended = "what holds files ended at once";
        let within = Timespec { tv_sec: SAYS_WITHIN.as_secs() as i64, tv_nsec: 0 };
        loop {
            let says = self.says.as_ref().context(ended)?;
            let mut fds = [PollFd::new(says, PollFlags::IN)];
            match poll(&mut fds, Some(&within)) {
                Ok(0) => bail!("what holds files did not answer for {} s", SAYS_WITHIN.as_secs()),
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            if let Some(line) = self.lines().into_iter().next() {
                return Ok(line);
            }
        }
    }

    /// Shows the budget among the job's knobs.
    ///
    /// # Errors
    /// The kernel refuses the memory for its page.
    pub(crate) fn show_knob(&mut self, knobs: &mut Knobs) -> Result<()> {
        self.knob = Some(BudgetKnob::new(self.held.budget_bytes, knobs)?);
        Ok(())
    }

    /// Four times a second: hears what it has, and says how much that may be and what the job has open.
    pub(crate) fn tick(&mut self, knobs: &mut Knobs) -> HeldSummary {
        if let Some(budget_bytes) = self.knob.as_mut().and_then(BudgetKnob::turned) {
            self.held.budget_bytes = budget_bytes;
            self.headroom.turn(budget_bytes);
        }
        self.lines().iter().for_each(|line| stallscope_hold::hear(&mut self.held, line));
        if self.says.is_some() {
            let target_bytes = self.headroom.bytes(crate::host::now_ns(), self.held.bytes, &Memory::read());
            let order = format!("{target_bytes}\n");
            // Where it does not listen it hears that again.
            if target_bytes != self.held.target_bytes && self.orders.write_all(order.as_bytes()).is_ok() {
                self.held.target_bytes = target_bytes;
            }
            self.end_what_keeps_too_much(target_bytes);
            self.show_open_files();
        } else if self.knob.take().is_some() {
            BudgetKnob::withdraw(knobs);
        }
        self.held.clone()
    }

    /// Its user may stop it, and what it has locked would stay.
    fn end_what_keeps_too_much(&mut self, target_bytes: u64) {
        // One that lets go may be behind for as long as memory gets shorter.
        let keeps = self.held.bytes > target_bytes && self.held.bytes >= self.had_bytes;
        self.had_bytes = self.held.bytes;
        self.over = if keeps { self.over + 1 } else { 0 };
        if self.over > TICKS_TO_LET_GO {
            // The end of what it says follows.
            let _ = self.process.kill();
        }
    }

    fn show_open_files(&mut self) {
        self.ticks = self.ticks.wrapping_add(1);
        if self.held.known_files > 0 && !self.ticks.is_multiple_of(TICKS_A_LOOK) {
            return;
        }
        for file in self.looks.next() {
            // One write for the pipe: whole, or not at all where it is full.
            let line = [file.as_bytes(), b"\n"].concat();
            if self.orders.write_all(&line).is_err() {
                break;
            }
            self.looks.was_shown(file);
        }
        for file in self.looks.read_again() {
            let line = [READ_AGAIN, file.as_bytes(), b"\n"].concat();
            if self.orders.write_all(&line).is_err() {
                break;
            }
        }
    }

    /// What the person at the terminal should know, once.
    pub(crate) fn notice(&mut self) -> Option<String> {
        if self.held.limit != self.noted && !self.held.limit.is_empty() {
            self.noted.clone_from(&self.held.limit);
            return Some(format!("--cache: {}", self.noted));
        }
        self.notices.pop()
    }

    /// The lines that are whole by now.
    fn lines(&mut self) -> Vec<String> {
        let mut bytes = [0; LONGEST_LINE];
        while let Some(says) = &mut self.says {
            match says.read(&mut bytes) {
                Ok(0) => self.has_ended(),
                Ok(read) => self.part.extend_from_slice(&bytes[..read]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(_) => self.has_ended(),
            }
            if self.part.len() > 16 * LONGEST_LINE {
                break;
            }
        }
        let whole = self.part.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let whole: Vec<u8> = self.part.drain(..whole).collect();
        if self.part.len() > LONGEST_LINE {
            self.part.clear();
        }
        String::from_utf8_lossy(&whole).lines().map(str::to_owned).collect()
    }

    fn has_ended(&mut self) {
        self.says = None;
        (self.held.bytes, self.held.files) = (0, 0);
        let _ = self.process.kill();
        let _ = self.process.wait();
        if !crate::session::has_ended(&self.job) {
            self.notices.push("what held the job's files has ended: none are held any more".into());
        }
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        let _ = self.process.kill();
        // One that storage does not answer ends later.
        for _ in 0..LOOKS_AT_ITS_END {
            if !matches!(self.process.try_wait(), Ok(None)) {
                break;
            }
            std::thread::sleep(BETWEEN_LOOKS);
        }
    }
}
