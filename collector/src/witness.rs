//! How many signals went to the whole of our process group: the job is in it, and has them already.
//!
//! Nothing about a signal says so. A further process in the group gets what the group gets, and only that, unless somebody sends to processes by
//! their name or program (`pidof`, `pkill -f`), which is then as much the further one's as ours, and not the job's. So there is one more outside of the group, which gets
//! the latter alone. The kernel signals a group from its youngest process to its oldest, in one go: what we have by then, the one inside has too.

use crate::signals;
use crate::socket_remover::keep_open;
use nix::sys::signal::{SigSet, SigmaskHow};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::{ForkResult, fork};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, setpgid, waitpid};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::time::Duration;
use tokio::signal::unix::SignalKind;

/// They answer at once unless somebody has stopped them.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// Asks them to count from now on; no signal has this number.
const BEGIN: u8 = 0;
/// The signals' numbers are below.
const NUMBERS: usize = 65;

pub(crate) struct Witnesses {
    outside: Option<Witness>,
    inside: Option<Witness>,
    /// By the signal's number: how many are known to have come to the one outside, and to have gone to the group.
    known: [(u32, u32); NUMBERS],
}

impl Witnesses {
    /// Of whatever they cannot tell they say that it came to us alone: a signal that comes twice does less harm than one that is lost.
    pub(crate) fn start() -> Witnesses {
        // The one outside is the older: who sends to processes one by one comes to it before the other, or to both before us.
        let outside = Witness::start(true).ok();
        Witnesses { outside, inside: Witness::start(false).ok(), known: [(0, 0); NUMBERS] }
    }

    /// Has them begin with `job`, which is about to be started: what came to the group before that has it is not the job's.
    pub(crate) fn begin_with(&self, job: &mut std::process::Command) {
        let each = [&self.outside, &self.inside].into_iter().flatten();
        let sockets: Vec<UnixStream> = each.filter_map(|witness| witness.socket.try_clone().ok()).collect();
        let begin = move || {
            // From here on what comes does to this process what it does to the job.
            signals::no_longer_handled();
            for mut socket in &sockets {
                let asked = rustix::net::send(socket, &[BEGIN], rustix::net::SendFlags::NOSIGNAL);
                if asked.is_err() || socket.read_exact(&mut [0; 4]).is_err() {
                    // Nor is it asked later on: its answer to this would be taken for another one.
                    let _ = socket.shutdown(Shutdown::Both);
                }
            }
            Ok(())
        };
        // SAFETY: it makes nothing but system calls.
        unsafe { job.pre_exec(begin) };
    }

    /// How many of this kind went to the group since the last question.
    pub(crate) fn of_group(&mut self, kind: SignalKind) -> u32 {
        let inside = ask(&mut self.inside, kind);
        let outside = ask(&mut self.outside, kind);
        let (Some((inside, outside)), Some((to_others, to_group))) =
            (inside.zip(outside), self.known.get_mut(kind.as_raw_value() as usize))
        else {
            return 0;
        };
        // Of those that go to one after the other, one may have come to the first of them only, and two may have become one.
        let fresh = inside.saturating_sub(outside).saturating_sub(*to_group);
        let is_sure = outside == *to_others;
        *to_others = outside;
        *to_group += fresh;
        if is_sure { fresh } else { 0 }
    }
}

/// An answer that comes too late would be the next question's: who has not given one in time is not asked again.
fn ask(witness: &mut Option<Witness>, kind: SignalKind) -> Option<u32> {
    let answer = witness.as_mut()?.ask(kind);
    if answer.is_err() {
        *witness = None;
    }
    answer.ok()
}

struct Witness {
    process: Pid,
    socket: UnixStream,
}

impl Witness {
    fn start(is_outside: bool) -> std::io::Result<Witness> {
        let (socket, theirs) = UnixStream::pair()?;
        socket.set_read_timeout(Some(ANSWER_WITHIN))?;
        let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
        // SAFETY: the copy makes nothing but system calls, which need no lock that another thread of ours may have had.
        let child = match unsafe { fork() } {
            Ok(ForkResult::Child) => {
                // Else it would not hear of our end where the kernel closes no ranges (before Linux 5.9).
                drop(socket);
                note(theirs);
                // SAFETY: ends that process and nothing of ours: no destructor or exit handler runs.
                unsafe { libc::_exit(0) }
            }
            Ok(ForkResult::Parent { child }) => Ok(child.as_raw()),
            Err(error) => Err(error),
        };
        before.thread_set_mask()?;
        let process = Pid::from_raw(child?).ok_or(std::io::ErrorKind::NotFound)?;
        let witness = Witness { process, socket };
        if is_outside {
            setpgid(Some(process), Some(process))?;
        }
        Ok(witness)
    }

    fn ask(&mut self, kind: SignalKind) -> std::io::Result<u32> {
        let mut answer = [0; 4];
        self.socket.write_all(&[kind.as_raw_value() as u8])?;
        self.socket.read_exact(&mut answer)?;
        Ok(u32::from_ne_bytes(answer))
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        // Also where it is stopped.
        let _ = kill_process(self.process, Signal::KILL);
        let _ = waitpid(Some(self.process), WaitOptions::empty());
    }
}

/// What it does, with all signals blocked, until we have ended: it counts them. `None`: it cannot go on.
fn note(mut asked: UnixStream) -> Option<()> {
    // For `killall` and `pkill`, which mean us.
    let _ = rustix::thread::set_name(c"signal-witness");
    let signals = SignalFd::with_flags(&SigSet::all(), SfdFlags::SFD_NONBLOCK).ok()?;
    keep_open([asked.as_raw_fd(), signals.as_raw_fd()]);
    let mut times = [0_u32; NUMBERS];
    loop {
        let mut ready = [PollFd::new(&asked, PollFlags::IN), PollFd::new(&signals, PollFlags::IN)];
        poll(&mut ready, None).ok()?;
        let is_asked = !ready[0].revents().is_empty();
        // Before it answers: what came before it was asked counts.
        while let Some(signal) = signals.read_signal().ok()? {
            *times.get_mut(signal.ssi_signo as usize)? += 1;
        }
        if is_asked {
            let mut kind = [0];
            asked.read_exact(&mut kind).ok()?;
            if kind == [BEGIN] {
                times.fill(0);
            }
            asked.write_all(&times.get(usize::from(kind[0]))?.to_ne_bytes()).ok()?;
        }
    }
}
