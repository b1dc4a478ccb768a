//! Those who connect: taken up, heard and let go, with a bound for each user on what they may have.

use super::serving::Sleep;
use super::trees::{may_watch, shares_numbers};
use super::{KernelSide, ROUND, Service};
use crate::caller::Caller;
use crate::watch_audit::WatchAudit;
use anyhow::{Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{ClockId, clock_gettime};
use stallscope_wire::{Client, Hello, Reply, Request};
use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

/// Connections of one user, trees that one of them may watch, trees of a user in all, and connections that watch the same
/// tree: more is a mistake or an attack. Root is who runs the service.
const CALLERS_A_USER: usize = 64;
const TREES_A_CALLER: usize = 64;
const TREES_A_USER: usize = 256;
const CALLERS_A_TREE: usize = 4;

/// What may wait for all callers of one user that do not read, and for those of all: with what else the service has it is
/// less than its unit allows (`MemoryMax=`), or one user's callers would end it for all.
const BACKLOG_A_USER: usize = 64 << 20;
pub(super) const BACKLOG: usize = 512 << 20;

/// Connections of a user that wait to read why they are refused; beyond them the end is all that they see.
const REFUSED_A_USER: usize = 8;

/// For so long those who call are taken up in a row, as many as may wait: who hung up again keeps others out of the queue.
const ACCEPT_FOR: Duration = Duration::from_millis(20);

/// Then those who are there have their turn: at least so long, as long as that took, and four times as long as it took of a CPU. Where others
/// took the CPUs meanwhile four times of that were too much: who called among many waited for seven seconds.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(2);

/// For so long callers are heard in a row, and trees let go, until others are sent what there is: many users may have time left
/// at once.
pub(super) const TURN: Duration = Duration::from_millis(100);

/// A user's callers are read again after so long: each byte that arrives by itself would cost a turn.
pub(super) const HEAR_AGAIN_AFTER: Duration = Duration::from_millis(5);

/// How long a user's callers are not read yet.
fn rest_of(heard: &HashMap<u32, Instant>, payer: u32) -> Option<Duration> {
    let rest = HEAR_AGAIN_AFTER.saturating_sub(heard.get(&payer)?.elapsed());
    (!rest.is_zero()).then_some(rest)
}

/// What this thread has used of CPUs.
fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

impl<K: KernelSide> Service<K> {
    /// Sleeps until the next round is due (and says so), or as long as asked, or until somebody calls, speaks, hangs
    /// up, or takes more of what waits for them.
    pub(super) fn wait(&mut self, listener: Option<&UnixListener>, sleep: Sleep) -> Result<bool> {
        let ring = self.kernel.fd();
        let mut fds: Vec<PollFd> = vec![PollFd::new(&ring, PollFlags::IN)];
        let Service { callers, shares, accept_again, heard, .. } = self;
        let pause = listener.map(|_| accept_again.saturating_duration_since(Instant::now()));
        let listener = listener.filter(|_| pause == Some(Duration::ZERO));
        fds.extend(listener.map(|listener| PollFd::new(listener, PollFlags::IN)));
        // Whose user has had their turn is not listened to until the next.
        let mut rest = None;
        for caller in callers {
            let rests = rest_of(heard, caller.payer).filter(|_| caller.awaits().contains(PollFlags::IN));
            rest = rest.into_iter().chain(rests).min();
            let heard = rests.is_none() && shares.has(caller.payer);
            let awaits = if heard { caller.awaits() } else { caller.awaits() & PollFlags::OUT };
            if !awaits.is_empty() {
                fds.push(PollFd::new(caller.stream(), awaits));
            }
        }
        let left = match sleep {
            _ if self.behind => Some(Duration::ZERO),
            Sleep::UntilRound => Some(ROUND.saturating_sub(self.last_round.elapsed())),
            Sleep::AtMost(limit) => limit,
        };
        let left = left.into_iter().chain(pause.filter(|pause| !pause.is_zero())).chain(rest).min();
        let left =
            left.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
        match poll(&mut fds, left.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        // The ring wakes us when it has filled by so much that it can't wait.
        Ok(!fds[0].revents().is_empty() || self.last_round.elapsed() >= ROUND)
    }

    pub(super) fn accept(&mut self, listener: &UnixListener) {
        let (begun, used) = (Instant::now(), thread_cpu());
        if begun < self.accept_again {
            return;
        }
        let mut accepted = false;
        while begun.elapsed() < ACCEPT_FOR {
            let since = Instant::now();
            match listener.accept() {
                Ok((stream, _)) => {
                    accepted = true;
                    if let Ok(caller) = Caller::new(stream) {
                        let uid = self.kernel.payer(caller.charged());
                        // Whose user has had their turn may call again.
                        self.alarm.during(|| match self.shares.has(uid) {
                            true => self.admit(caller),
                            false => drop(caller),
                        });
                        self.shares.took(uid, since.elapsed());
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(_) => {
                    // Out of descriptors: the connection stays readable, and trying at once would spin.
                    self.accept_again = Instant::now() + ROUND;
                    return;
                }
            }
        }
        if accepted {
            let used = thread_cpu().saturating_sub(used);
            self.accept_again = Instant::now() + ACCEPT_AGAIN_AFTER.max(begun.elapsed()).max(used * 4);
        }
    }

    pub(super) fn say_who_watches(&mut self) {
        for line in self.audit.iter_mut().flat_map(WatchAudit::take) {
            // Where nobody reads any more there is nobody to tell.
            let _ = writeln!(std::io::stderr(), "stallscope: {line}");
        }
    }

    pub(crate) fn admit(&mut self, mut caller: Caller) {
        caller.payer = self.kernel.payer(caller.charged());
        let of_user = self.callers.iter().filter(|other| other.payer == caller.payer).count();
        let free = self.places.saturating_sub(self.callers.len());
        // As of slots: users who take all that they may leave some to the next. Who finds none calls again.
        if of_user >= CALLERS_A_USER + REFUSED_A_USER || !caller.is_root() && of_user >= free {
            return;
        }
        if of_user >= CALLERS_A_USER {
            caller.refuse(format!("{CALLERS_A_USER} jobs of yours are watched already"));
        }
        self.callers.push(caller);
        self.share_backlogs();
    }

    /// One user's callers share what that user may leave lying, and that is no more than is still free: users who take all that they
    /// may leave some to the next.
    pub(crate) fn share_backlogs(&mut self) {
        let mut of_user: HashMap<u32, usize> = HashMap::new();
        self.callers.iter().for_each(|caller| *of_user.entry(caller.payer).or_default() += 1);
        let held: usize = self.callers.iter().map(Caller::backlog_bytes).sum();
        let of_each = BACKLOG_A_USER.min(self.backlog_bytes.saturating_sub(held));
        self.callers.iter_mut().for_each(|caller| caller.limit_backlog(of_each / of_user[&caller.payer]));
    }

    /// Does what callers ask, or tells them why not.
    pub(crate) fn hear(&mut self) {
        self.behind = false;
        // Or who hangs up and calls anew without end would leave more and more behind.
        self.settle();
        let mut callers = std::mem::take(&mut self.callers);
        let mut trees: Vec<(u32, u32)> = Vec::new();
        for caller in &callers {
            trees.extend(caller.roots.keys().map(|root| (caller.payer, *root)));
        }
        let mut spoke = HashSet::new();
        let mut order: Vec<usize> = (0..callers.len()).collect();
        order.sort_by_cached_key(|at| self.shares.turn(callers[*at].payer));
        let turn = Instant::now();
        for at in order {
            let caller = &mut callers[at];
            if !self.shares.has(caller.payer) {
                continue;
            }
            if turn.elapsed() >= TURN {
                self.behind = true;
                break;
            }
            let begun = Instant::now();
            let rests = rest_of(&self.heard, caller.payer).is_some();
            if !rests && self.alarm.during(|| caller.listen()) {
                spoke.insert(caller.payer);
            }
            self.shares.took(caller.payer, begun.elapsed());
            // No caller has all of it.
            while begun.elapsed() < TURN / 2
                && self.shares.has(caller.payer)
                && let Some(line) = caller.next_line()
            {
                let begun = Instant::now();
                let before: HashSet<u32> = caller.roots.keys().copied().collect();
                if let Err(error) = self.obey(caller, &line, &trees) {
                    caller.refuse(format!("{error:#}"));
                }
                let new = caller.roots.keys().filter(|root| !before.contains(root));
                trees.extend(new.map(|root| (caller.payer, *root)));
                self.shares.took(caller.payer, begun.elapsed());
            }
            self.behind |= caller.has_line() && self.shares.has(caller.payer);
        }
        self.callers = callers;
        // Root, who runs the service, is always listened to.
        spoke.remove(&0);
        self.heard.retain(|_, at| at.elapsed() < HEAR_AGAIN_AFTER);
        self.heard.extend(spoke.into_iter().map(|payer| (payer, Instant::now())));
        // A hook that can't be set or taken off costs figures or time and harms nothing; the next round tries
        // again.
        let _ = self.kernel.set_syscalls(self.callers.iter().any(|caller| caller.has_syscalls()));
    }

    /// `trees`: roots that are watched, with the user of each who is charged for watching them.
    fn obey(&mut self, caller: &mut Caller, line: &[u8], trees: &[(u32, u32)]) -> Result<()> {
        let within = |root: u32| {
            let of_user = trees.iter().filter(|(payer, _)| *payer == caller.payer);
            let same = of_user.clone().filter(|(_, other)| *other == root).count();
            ensure!(
                caller.is_root() || of_user.count() < TREES_A_USER,
                "one user may watch {TREES_A_USER} trees"
            );
            ensure!(
                caller.is_root() || same < CALLERS_A_TREE,
                "{CALLERS_A_TREE} collectors of yours watch process {root} already"
            );
            Ok(())
        };
        if !caller.roots.is_empty() {
            let Request::Watch(pid) = stallscope_wire::decode(line)? else {
                bail!("the node's collector gives kernel evidence only");
            };
            ensure!(caller.roots.len() < TREES_A_CALLER, "one caller may watch {TREES_A_CALLER} trees");
            within(pid)?;
            return self.watch(caller, pid).map(drop);
        }
        let hello: Hello = stallscope_wire::decode(line)?;
        let (watch, syscalls, reader) = match hello.accept()? {
            Client::Kernel { watch, syscalls, reader } => (watch, syscalls, reader),
            Client::Confinement => {
                caller.answer(&Reply::Confinement(self.confinement.clone()));
                return Ok(());
            }
            _ => bail!("the node's collector gives kernel evidence only; start jobs with `stallscope run`"),
        };
        within(watch)?;
        caller.reads_for(reader);
        // What costs the whole node comes after whether there is anything of the caller's to watch.
        shares_numbers(&self.kernel, caller)?;
        may_watch(&self.kernel, caller, watch)?;
        let granted = caller.is_root() || self.syscalls_for_everyone;
        if syscalls && granted {
            self.kernel.set_syscalls(true)?;
        }
        caller.syscalls = syscalls.then_some(granted);
        caller.lost_before = self.losses_of(caller.uid);
        self.watch(caller, watch)
    }

    pub(super) fn forget_gone(&mut self) {
        let (gone, callers) = std::mem::take(&mut self.callers).into_iter().partition(|caller| caller.gone);
        self.callers = callers;
        let gone: Vec<Caller> = gone;
        self.dropped += gone.iter().map(|caller| caller.dropped).sum::<u64>();
        for caller in gone {
            let begun = Instant::now();
            for (root, start_ns) in caller.roots.clone() {
                if let Some(audit) = &mut self.audit {
                    audit.ends(caller.watch(root, start_ns), begun);
                }
                self.leaving.insert(root, caller.payer);
            }
            let payer = caller.payer;
            self.alarm.during(|| drop(caller));
            self.shares.took(payer, begun.elapsed());
        }
        self.settle();
    }
}
