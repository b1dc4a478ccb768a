//! The privileged half: loads the kernel programs and gives each caller the evidence of one process tree, if
//! the tree is theirs. Writes no file and keeps no history, so that little runs with privilege.
//!
//! One thread, no async: it sleeps [`ROUND`], drains the ring buffer, hands out, and sleeps again.

use crate::caller::{Caller, TOO_SLOW};
use crate::confine::{self, Account};
use crate::cpu_share::CpuShares;
use crate::host::now_ns;
use crate::metrics::Metrics;
use crate::node::{self, NodeMetrics};
use crate::node_socket::NodeSocket;
use crate::notify::Notify;
use crate::watch_audit::WatchAudit;
use anyhow::{Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use stallscope_abi::kernel::{Record, TaskNew, TaskSlot, bytes_of};
use stallscope_ebpf::{Identity, Kernel, Options, ProgramState as Program, Still};
use stallscope_model::NodeSummary;
use stallscope_wire::{Accepted, Client, Hello, Layer, ProgramState, Reply, Request, frame, frame::Tag};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::Write;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

mod kernel_side;
mod losses;
mod watched;
pub(crate) use kernel_side::KernelSide;
use watched::{Look, Watched};

/// How often callers get what there is; the ring buffer wakes us earlier when it fills. A session waits a second for the
/// evidence of a step.
const ROUND: Duration = Duration::from_millis(500);

/// How long a collector that was started for one caller waits for it.
const FIRST_CALL: Duration = Duration::from_secs(60);

/// Connections of one user, trees that one of them may watch, trees of a user in all, and connections that watch the same
/// tree: more is a mistake or an attack. Root is who runs the service.
const CALLERS_A_USER: usize = 64;
const TREES_A_CALLER: usize = 64;
const TREES_A_USER: usize = 256;
const CALLERS_A_TREE: usize = 4;

/// Connections of a user that wait to read why they are refused; beyond them the end is all that they see.
const REFUSED_A_USER: usize = 8;

/// For so long those who call are taken up in a row, as many as may wait: who hung up again keeps others out of the queue.
const ACCEPT_FOR: Duration = Duration::from_millis(20);

/// Then those who are there have their turn: at least so long, and four times as long as that took.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(2);

/// A user's callers are read again after so long: each byte that arrives by itself would cost a turn.
const HEAR_AGAIN_AFTER: Duration = Duration::from_millis(5);

/// Why a caller that asked for system calls does without.
const FOR_ROOT: &str = "the node's collector hooks system calls for root alone; `stallscope collect --syscalls-for-everyone` does for all";

/// How often callers are sent the files that were waited for.
const FILES_EVERY: Duration = Duration::from_secs(1);

/// How the node's collector serves.
#[derive(Debug)]
pub struct ServeOptions<'a> {
    /// Unless systemd hands over a socket that it listens at.
    pub socket: &'a Path,
    /// Until the first caller and all others are gone.
    pub only_until_idle: bool,
    /// Whether users other than root may have system calls hooked, at a price for each call of every process of the node.
    pub syscalls_for_everyone: bool,
    pub metrics: Option<Metrics<NodeSummary>>,
    /// Who may connect, besides root: members of this group alone, by its name or number. Else everybody.
    pub group: Option<&'a str>,
    /// Whom root becomes: a user's name or number. Without one `stallscope`, where there is such a user, else `nobody`.
    pub user: Option<&'a str>,
}

/// The node's collector can be called.
#[derive(Debug)]
pub struct Serving {
    /// Where.
    pub socket: String,
    /// A sentence that says where metrics are served.
    pub metrics: Option<String>,
    /// A sentence that says what keeps it from doing more than it has to.
    pub confined: String,
    /// A sentence for each layer of that which could not be had.
    pub not_confined: Vec<String>,
}

/// Serves everybody until the process ends, which keeps nothing of its privileges that serving does not take. Calls
/// `listening` once it can be called. The process must have one thread.
///
/// # Errors
/// The programs can't be loaded (no privilege, no BTF), the socket or the metrics' address can't be bound, or there is no
/// user to become.
pub fn serve(options: ServeOptions<'_>, listening: impl FnOnce(&Serving)) -> Result<()> {
    let ServeOptions { socket, only_until_idle, syscalls_for_everyone, metrics, group, user } = options;
    let account = Account::find(user)?;
    let mut service = Service::load(syscalls_for_everyone)?;
    // Whatever is opened, made or started comes before there is no right to any more.
    let metrics = metrics.map(Metrics::bind).transpose()?;
    let (shown, socket) = match NodeSocket::passed()? {
        Some(passed) => ("systemd's socket".to_owned(), passed),
        None => (socket.display().to_string(), NodeSocket::bind(socket, group, only_until_idle)?),
    };
    let mut notify = Notify::find();
    let mut confinement = confine::confine(account.as_ref(), &mut service.kernel, &socket)?;
    let mut metrics = metrics.map(NodeMetrics::start).transpose()?;
    confinement.push(confine::syscalls::filter_syscalls());
    let serving = Serving {
        socket: shown,
        metrics: metrics.as_ref().map(NodeMetrics::whereabouts),
        confined: confine::sentence(&confinement),
        not_confined: confine::lacking(&confinement)
            .map(|lacking| format!("not confined by {lacking}"))
            .collect(),
    };
    listening(&serving);
    if let Some(notify) = &notify {
        notify.serves(&serving.confined);
    }
    service.confinement = confinement;
    // One that serves a single job shares that job's terminal.
    service.audit = (!only_until_idle).then(WatchAudit::default);
    let mut had_a_caller = false;
    let begun = Instant::now();
    loop {
        // With nobody watched there is nothing to drain: sleep until somebody calls.
        let idle = service.callers.is_empty() && service.leaving.is_empty() && !only_until_idle;
        if let Some(metrics) = &mut metrics {
            metrics.publish(idle, || service.figures());
        }
        let limit = notify.as_ref().and_then(Notify::due_in);
        let due = service
            .wait(Some(&socket.listener), if idle { Sleep::AtMost(limit) } else { Sleep::UntilRound })?;
        if let Some(notify) = &mut notify {
            notify.is_alive();
        }
        service.accept(&socket.listener);
        // The process that had us started may have died before calling.
        had_a_caller |= !service.callers.is_empty() || begun.elapsed() > FIRST_CALL;
        service.hear();
        service.hand_out(due);
        service.say_who_watches();
        if only_until_idle && had_a_caller && service.callers.is_empty() {
            socket.remove();
            return Ok(());
        }
    }
}

/// How long to wait where nobody stirs.
enum Sleep {
    UntilRound,
    /// `None`: for ever.
    AtMost(Option<Duration>),
}

/// Serves one caller inside this process, on a thread of its own, until that caller hangs up.
///
/// # Errors
/// As [`serve`].
pub(crate) fn serve_within() -> Result<UnixStream> {
    let mut service = Service::load(true)?;
    let (ours, theirs) = UnixStream::pair()?;
    service.callers.push(Caller::new(theirs)?);
    std::thread::Builder::new().name("kernel evidence".into()).spawn(move || {
        while !service.callers.is_empty()
            && let Ok(due) = service.wait(None, Sleep::UntilRound)
        {
            service.hear();
            service.hand_out(due);
        }
    })?;
    Ok(ours)
}

pub(crate) struct Service<K> {
    pub(crate) kernel: K,
    pub(crate) callers: Vec<Caller>,
    watched: Watched,
    /// That are watched, by root.
    pub(crate) trees: HashMap<u32, Tree>,
    /// Roots that nobody watches any more, with who is charged for letting go of them.
    leaving: BTreeMap<u32, u32>,
    pub(crate) shares: CpuShares,
    /// Where there is somebody to read it.
    pub(crate) audit: Option<WatchAudit>,
    syscalls_for_everyone: bool,
    confinement: Vec<Layer>,
    /// Taken from the kernel so far.
    records: u64,
    /// How many of the kernel side's were lost when it was last made up for that, and when it may be again.
    made_up_for: u64,
    pub(crate) make_up_again: Instant,
    a_root_ended: bool,
    /// Records that callers who are gone were too slow to take.
    dropped: u64,
    last_round: Instant,
    files_sent: Instant,
    /// When callers are taken up again.
    accept_again: Instant,
    /// When something last came of each user who is charged.
    pub(crate) heard: HashMap<u32, Instant>,
}

/// A process whose descendants are watched with it.
pub(crate) struct Tree {
    /// `start_boottime`: the number may be another process next.
    start_ns: u64,
    /// Of its root.
    slot: u32,
}

fn leader_of(tasks: &[TaskNew], process: u32) -> Option<&TaskNew> {
    tasks.iter().find(|task| task.header.tid == process && task.header.tgid == process)
}

/// How long a user's callers are not read yet.
fn rest_of(heard: &HashMap<u32, Instant>, payer: u32) -> Option<Duration> {
    let rest = HEAR_AGAIN_AFTER.saturating_sub(heard.get(&payer)?.elapsed());
    (!rest.is_zero()).then_some(rest)
}

impl Service<Kernel> {
    fn load(syscalls_for_everyone: bool) -> Result<Service<Kernel>> {
        Ok(Service::new(Kernel::load(&Options::default())?, syscalls_for_everyone))
    }
}

impl<K: KernelSide> Service<K> {
    pub(crate) fn new(kernel: K, syscalls_for_everyone: bool) -> Service<K> {
        Service {
            kernel,
            callers: Vec::new(),
            watched: Watched::default(),
            trees: HashMap::new(),
            leaving: BTreeMap::new(),
            shares: CpuShares::default(),
            audit: None,
            syscalls_for_everyone,
            confinement: Vec::new(),
            records: 0,
            made_up_for: 0,
            make_up_again: Instant::now(),
            a_root_ended: false,
            dropped: 0,
            last_round: Instant::now(),
            files_sent: Instant::now(),
            accept_again: Instant::now(),
            heard: HashMap::new(),
        }
    }

    /// Sleeps until the next round is due (and says so), or as long as asked, or until somebody calls, speaks, hangs
    /// up, or takes more of what waits for them.
    fn wait(&mut self, listener: Option<&UnixListener>, sleep: Sleep) -> Result<bool> {
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

    /// Sends what waits to be sent, after a round if one is due, and forgets who is gone.
    pub(crate) fn hand_out(&mut self, round_is_due: bool) {
        if round_is_due {
            self.last_round = Instant::now();
            self.round();
        }
        self.callers.iter_mut().for_each(Caller::flush);
        self.forget_gone();
    }

    fn accept(&mut self, listener: &UnixListener) {
        let begun = Instant::now();
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
                        let uid = self.kernel.payer(caller.uid);
                        // Whose user has had their turn may call again.
                        if self.shares.has(uid) {
                            self.admit(caller);
                        }
                        self.shares.took(uid, since.elapsed());
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(_) => {
                    // Out of descriptors: the connection stays readable, and trying at once would spin.
                    std::thread::sleep(ROUND);
                    return;
                }
            }
        }
        if accepted {
            self.accept_again = Instant::now() + ACCEPT_AGAIN_AFTER.max(begun.elapsed() * 4);
        }
    }

    fn say_who_watches(&mut self) {
        for line in self.audit.iter_mut().flat_map(WatchAudit::take) {
            // Where nobody reads any more there is nobody to tell.
            let _ = writeln!(std::io::stderr(), "stallscope: {line}");
        }
    }

    pub(crate) fn admit(&mut self, mut caller: Caller) {
        caller.payer = self.kernel.payer(caller.uid);
        let of_user = self.callers.iter().filter(|other| other.payer == caller.payer).count();
        if of_user >= CALLERS_A_USER + REFUSED_A_USER {
            return;
        }
        if of_user >= CALLERS_A_USER {
            caller.refuse(format!("{CALLERS_A_USER} jobs of yours are watched already"));
        }
        self.callers.push(caller);
        self.share_backlogs();
    }

    /// One user's callers share what that user may leave lying.
    fn share_backlogs(&mut self) {
        let mut of_user: HashMap<u32, usize> = HashMap::new();
        self.callers.iter().for_each(|caller| *of_user.entry(caller.payer).or_default() += 1);
        self.callers.iter_mut().for_each(|caller| caller.share_backlog(of_user[&caller.payer]));
    }

    /// Does what callers ask, or tells them why not.
    pub(crate) fn hear(&mut self) {
        // Or who hangs up and calls anew without end would leave more and more behind.
        self.settle();
        let mut callers = std::mem::take(&mut self.callers);
        let mut trees: Vec<(u32, u32)> = Vec::new();
        for caller in &callers {
            trees.extend(caller.roots.keys().map(|root| (caller.payer, *root)));
        }
        let mut spoke = HashSet::new();
        for caller in &mut callers {
            if !self.shares.has(caller.payer) {
                continue;
            }
            let begun = Instant::now();
            if rest_of(&self.heard, caller.payer).is_none() && caller.listen() {
                spoke.insert(caller.payer);
            }
            self.shares.took(caller.payer, begun.elapsed());
            while self.shares.has(caller.payer)
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
                caller.uid == 0 || of_user.count() < TREES_A_USER,
                "one user may watch {TREES_A_USER} trees"
            );
            ensure!(
                caller.uid == 0 || same < CALLERS_A_TREE,
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
        may_watch(&self.kernel, caller, watch)?;
        let granted = caller.uid == 0 || self.syscalls_for_everyone;
        if syscalls && granted {
            self.kernel.set_syscalls(true)?;
        }
        caller.syscalls = syscalls.then_some(granted);
        caller.lost_before = self.losses_of(caller.uid);
        self.watch(caller, watch)
    }

    /// Takes up the process tree of `root` for `caller`, if it is theirs.
    fn watch(&mut self, caller: &mut Caller, root: u32) -> Result<()> {
        may_watch(&self.kernel, caller, root)?;
        // Its numbers would mean other processes to us, and ours to it.
        ensure!(
            self.kernel.shares_pid_namespace(caller.pid),
            "your stallscope runs in a pid namespace of its own; start the container with the host's"
        );
        let mut tasks = self.kernel.watch(root)?;
        if let (Some(known), Some(found)) = (self.trees.get(&root), leader_of(&tasks, root))
            && known.start_ns != found.start_boottime_ns
        {
            // The number has come round: what was summed up by it is of the earlier process.
            self.let_go(root);
            tasks = self.kernel.watch(root)?;
        }
        let leader = leader_of(&tasks, root);
        let of = leader.and_then(|task| Some((task, self.kernel.identity(task.header.slot)?)));
        // Or it comes round between these questions.
        let Some((leader, _)) = of.filter(|(_, of)| of.is_known_to(caller.uid)) else {
            self.let_go(root);
            bail!("process {root} is not yours, or has ended; ask its owner, or root, to profile it");
        };
        self.trees.insert(root, Tree { start_ns: leader.start_boottime_ns, slot: leader.header.slot });
        if caller.roots.is_empty() {
            let mut programs = self.programs();
            if caller.syscalls == Some(false) {
                programs.push(ProgramState {
                    program: "sys_enter".into(),
                    attached: false,
                    reason: FOR_ROOT.into(),
                });
            }
            caller.say(&Reply::Watching(Accepted { tasks: tasks.len() as u32, programs }));
        }
        let before = caller.roots.get(&root).copied();
        caller.take_up(root, leader.start_boottime_ns);
        if let Some(audit) = &mut self.audit {
            let now = Instant::now();
            before.into_iter().for_each(|start_ns| audit.ends(caller.watch(root, start_ns), now));
            audit.begins(caller.watch(root, leader.start_boottime_ns), caller.syscalls == Some(true), now);
        }
        self.introduce(caller, &tasks);
        Ok(())
    }

    /// Tells a caller of the tasks that a tree has by now.
    fn introduce(&mut self, caller: &mut Caller, tasks: &[TaskNew]) {
        for task in tasks {
            if let Some(of) = self.kernel.identity(task.header.slot) {
                self.watched.begins(task, of);
                caller.offer(&Record::TaskNew(*task), bytes_of(task), &of);
            }
        }
    }

    fn let_go(&mut self, root: u32) {
        self.trees.remove(&root);
        let Service { kernel, watched, .. } = self;
        watched.forget(|slot| kernel.root(slot) == Some(root));
        // The process may be long gone, and its tasks with it.
        let _ = self.kernel.unwatch(root);
    }

    fn programs(&self) -> Vec<ProgramState> {
        let state = |program: stallscope_ebpf::ProgramStatus| {
            let reason = match program.state {
                Program::Attached => String::new(),
                // Only what was asked for and is not there is worth a word.
                Program::Off => return None,
                Program::Missing(reason) => reason,
                Program::Broken(reason) => format!("broken: {reason}"),
            };
            Some(ProgramState { program: program.name.into(), attached: reason.is_empty(), reason })
        };
        self.kernel.programs().into_iter().filter_map(state).collect()
    }

    fn figures(&self) -> NodeSummary {
        let slow = self.dropped + self.callers.iter().map(|caller| caller.dropped).sum::<u64>();
        let losses = self.losses().into_iter().chain([(TOO_SLOW, slow)]);
        node::figures(&self.kernel, &self.callers, self.watched.len(), self.records, losses)
    }

    /// Hands on what was recorded since.
    fn drain(&mut self) {
        let Service { kernel, callers, watched, records, a_root_ended, .. } = self;
        let drained = kernel.drain(|bytes, of| {
            *records += 1;
            let Some(record) = Record::parse(bytes) else { return };
            let header = record.header();
            match &record {
                Record::TaskNew(new) => of.into_iter().for_each(|of| watched.begins(new, of)),
                Record::TaskExit(_) => {
                    watched.ends(header.slot);
                    *a_root_ended |= callers.iter().any(|caller| caller.roots.contains_key(&header.tid));
                }
                _ => {}
            }
            if let Some(of) = of {
                callers.iter_mut().for_each(|caller| caller.offer(&record, bytes, &of));
            }
        });
        // A slot that could not be handed back is one task fewer that can be tracked: counted as such later.
        drop(drained);
    }

    /// Puts together what there is for every caller.
    fn round(&mut self) {
        self.drain();
        self.make_up_for_losses();
        let Service { kernel, callers, watched, .. } = self;
        let now_ns = now_ns();
        let mut slots: Vec<(Identity, TaskSlot)> = Vec::new();
        let mut stills: Vec<(Identity, Still)> = Vec::new();
        let all_know = callers.iter().all(|caller| caller.roots.is_empty() || caller.knows_slots);
        watched.look(|slot, task| {
            let Some(of) = kernel.identity(slot) else { return Look::Unknown };
            let still = kernel.still(slot, now_ns).filter(|still| still.tid == task.tid);
            if let (true, Some(still), true) = (all_know, still, still == task.still) {
                stills.push((of, still));
                return Look::There;
            }
            task.still = still;
            let Some(copy) = kernel.slot(slot) else { return Look::Unknown };
            let look = task.look(&copy);
            if look == Look::There {
                slots.push((of, copy));
            }
            look
        });
        for (exit, of) in watched.lost_ends() {
            callers.iter_mut().for_each(|caller| caller.offer(&Record::TaskExit(exit), bytes_of(&exit), &of));
        }
        // The last waits of a job are sent while its collector still listens.
        if std::mem::take(&mut self.a_root_ended) || self.files_sent.elapsed() >= FILES_EVERY {
            self.files_sent = Instant::now();
            // Sums: what can't be read now is in the next ones.
            let waits = self.kernel.waits().unwrap_or_default();
            self.callers.iter_mut().for_each(|caller| caller.tell_waits(&waits));
        }
        let lost: HashMap<u32, _> =
            self.callers.iter().map(|caller| (caller.uid, self.losses_of(caller.uid))).collect();
        let run_time_ns = self.kernel.run_time().ok().map(|time| time.as_nanos() as u64).filter(|ns| *ns > 0);
        for caller in &mut self.callers {
            if let (Some(lost), false) = (lost.get(&caller.uid), caller.roots.is_empty()) {
                caller.present(&slots, &stills);
                let tick = frame::Tick { now_ns, lost: caller.lost(lost), run_time_ns };
                caller.push(Tag::Tick, &stallscope_wire::encode(&tick));
            }
        }
    }

    fn forget_gone(&mut self) {
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
            self.shares.took(caller.payer, begun.elapsed());
        }
        self.settle();
    }

    /// Lets go of trees that nobody watches any more, and takes up again those that were a part of them, of each user what
    /// they have time left for: both walk all tasks of the node, and hundreds may come at once.
    fn settle(&mut self) {
        for (root, payer) in self.leaving.clone() {
            if !self.shares.has(payer) {
                continue;
            }
            let begun = Instant::now();
            self.leaving.remove(&root);
            if self.callers.iter().all(|other| !other.roots.contains_key(&root)) {
                let within = self.trees_within(root);
                self.let_go(root);
                for caller in &mut self.callers {
                    // Those within it, and those that it was within.
                    let is_around = caller.follows_process(root);
                    let orphans = caller.roots.keys().filter(|root| is_around || within.contains(root));
                    caller.orphans.extend(orphans.copied());
                }
            }
            self.shares.took(payer, begun.elapsed());
        }
        let mut callers = std::mem::take(&mut self.callers);
        for caller in &mut callers {
            while self.shares.has(caller.payer)
                && let Some(root) = caller.orphans.pop_first()
            {
                let begun = Instant::now();
                if let Some(start_ns) = caller.roots.get(&root).copied() {
                    self.take_up_again(caller, root, start_ns);
                }
                self.shares.took(caller.payer, begun.elapsed());
            }
        }
        self.callers = callers;
    }

    /// Watched trees that are followed as part of the tree of `root`.
    fn trees_within(&self, root: u32) -> HashSet<u32> {
        let within =
            |(other, tree): &(&u32, &Tree)| **other != root && self.kernel.root(tree.slot) == Some(root);
        self.trees.iter().filter(within).map(|(other, _)| *other).collect()
    }

    /// A root that has ended meanwhile may have left its number to a process of somebody else.
    fn take_up_again(&mut self, caller: &mut Caller, root: u32, start_ns: u64) {
        if may_watch(&self.kernel, caller, root).is_err() {
            return;
        }
        let tasks = self.kernel.watch(root).unwrap_or_default();
        match leader_of(&tasks, root).filter(|leader| leader.start_boottime_ns == start_ns) {
            Some(leader) => {
                if let Some(tree) = self.trees.get_mut(&root) {
                    tree.slot = leader.header.slot;
                }
                self.introduce(caller, &tasks);
            }
            None => self.let_go(root),
        }
    }
}

/// # Errors
/// There is no such process, or it is of another user, also where it took their rights by executing a program.
fn may_watch(kernel: &impl KernelSide, caller: &Caller, root: u32) -> Result<()> {
    let owner = kernel.owner(root).ok_or_else(|| anyhow::anyhow!("there is no process {root}"))?;
    ensure!(
        caller.uid == 0 || caller.uid == owner,
        "process {root} belongs to another user; ask them, or root, to profile it"
    );
    Ok(())
}

#[cfg(test)]
mod tests;
