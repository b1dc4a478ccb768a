//! The privileged half: loads the kernel programs and gives each caller the evidence of one process tree, if
//! the tree is theirs. Writes no file and keeps no history, so that little runs with privilege.
//!
//! One thread, no async: it sleeps [`ROUND`], drains the ring buffer, hands out, and sleeps again.

use crate::caller::{Caller, TOO_SLOW};
use crate::host::now_ns;
use crate::metrics::Metrics;
use crate::node::{self, NodeMetrics};
use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use stallscope_abi::kernel::{Lost, Record, TaskSlot, bytes_of, flags, state};
use stallscope_ebpf::{Kernel, Options, ProgramState as Program, Still};
use stallscope_model::NodeSummary;
use stallscope_wire::{Accepted, Client, Hello, ProgramState, Reply, Request, frame, frame::Tag};
use std::collections::{BTreeMap, HashMap};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

/// How often callers get what there is; the ring buffer wakes us earlier when it fills.
const ROUND: Duration = Duration::from_millis(250);

/// How long a collector that was started for one caller waits for it.
const FIRST_CALL: Duration = Duration::from_secs(60);

/// Connections of one user, and trees that one of them may watch: more is a mistake or an attack.
const CALLERS_A_USER: usize = 64;
const TREES_A_CALLER: usize = 64;

/// How often callers are told which files were waited for.
const FILES_EVERY: Duration = Duration::from_secs(1);

const LOST: [(Lost, &str); 4] = [
    (Lost::RingFull, "kernel ring full"),
    (Lost::NoSlot, "too many tasks"),
    (Lost::NoStorage, "no task storage"),
    (Lost::NoMount, "too many mounts"),
];

/// Serves everybody at `socket` until the process ends; with `only_until_idle`, until the first caller and all
/// others are gone. Calls `listening` once it can be called, with a sentence that says where metrics are served.
///
/// # Errors
/// The programs can't be loaded (no privilege, no BTF), or the socket or the metrics' address can't be bound.
pub fn serve(
    socket: &Path,
    only_until_idle: bool,
    metrics: Option<Metrics<NodeSummary>>,
    listening: impl FnOnce(Option<String>),
) -> Result<()> {
    let mut service = Service::load()?;
    let mut metrics = metrics.map(NodeMetrics::start).transpose()?;
    let listener = listen(socket)?;
    listening(metrics.as_ref().map(NodeMetrics::whereabouts));
    let mut had_a_caller = false;
    let begun = Instant::now();
    loop {
        // With nobody watched there is nothing to drain: sleep until somebody calls.
        let forever = service.callers.is_empty() && !only_until_idle;
        if let Some(metrics) = &mut metrics {
            metrics.publish(forever, || service.figures());
        }
        let due = service.wait(Some(&listener), forever)?;
        service.accept(&listener);
        service.hear();
        service.hand_out(due);
        // Whoever had us started may have died before calling.
        had_a_caller |= !service.callers.is_empty() || begun.elapsed() > FIRST_CALL;
        if only_until_idle && had_a_caller && service.callers.is_empty() {
            let _ = std::fs::remove_file(socket);
            return Ok(());
        }
    }
}

fn listen(socket: &Path) -> Result<UnixListener> {
    if let Some(dir) = socket.parent().filter(|dir| !dir.exists()) {
        std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
        // Whatever the umask: every user has to pass.
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o711))?;
    }
    if UnixStream::connect(socket).is_ok() {
        bail!("a collector already serves {}; one a node is enough", socket.display());
    }
    match std::fs::symlink_metadata(socket) {
        Ok(meta) if meta.file_type().is_socket() => std::fs::remove_file(socket)?,
        Ok(_) => bail!("{} is there and is no socket; name another place with --socket", socket.display()),
        Err(_) => {}
    }
    let listener =
        UnixListener::bind(socket).with_context(|| format!("cannot listen at {}", socket.display()))?;
    // Anybody may call; what they get is decided by who they are.
    std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o666))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Serves one caller inside this process, on a thread of its own, until that caller hangs up.
///
/// # Errors
/// As [`serve`].
pub(crate) fn serve_within() -> Result<UnixStream> {
    let mut service = Service::load()?;
    let (ours, theirs) = UnixStream::pair()?;
    service.callers.push(Caller::new(theirs)?);
    std::thread::Builder::new().name("kernel evidence".into()).spawn(move || {
        while !service.callers.is_empty()
            && let Ok(due) = service.wait(None, false)
        {
            service.hear();
            service.hand_out(due);
        }
    })?;
    Ok(ours)
}

struct Service {
    kernel: Kernel,
    callers: Vec<Caller>,
    /// Watched tasks, whose present stretch is sent each round, by slot.
    watched: HashMap<u32, Watched>,
    /// Taken from the kernel so far.
    records: u64,
    /// Records that callers who are gone were too slow to take.
    dropped: u64,
    last_round: Instant,
    files_told: Instant,
}

struct Watched {
    tid: u32,
    /// What it was, and still may be, when its slot was last sent to all callers.
    still: Option<Still>,
}

impl Watched {
    fn new(tid: u32) -> Watched {
        Watched { tid, still: None }
    }
}

impl Service {
    fn load() -> Result<Service> {
        let kernel = Kernel::load(&Options::default())?;
        Ok(Service {
            kernel,
            callers: Vec::new(),
            watched: HashMap::new(),
            records: 0,
            dropped: 0,
            last_round: Instant::now(),
            files_told: Instant::now(),
        })
    }

    /// Sleeps until the next round is due (and says so), for ever if asked, or until somebody calls, speaks, hangs
    /// up, or takes more of what waits for them.
    fn wait(&self, listener: Option<&UnixListener>, forever: bool) -> Result<bool> {
        let ring = self.kernel.fd();
        let mut fds: Vec<PollFd> = vec![PollFd::new(&ring, PollFlags::IN)];
        fds.extend(listener.map(|listener| PollFd::new(listener, PollFlags::IN)));
        fds.extend(self.callers.iter().map(|caller| PollFd::new(caller.stream(), caller.awaits())));
        let left = ROUND.saturating_sub(self.last_round.elapsed());
        let left = Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut fds, if forever { None } else { Some(&left) }) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        // The ring wakes us when it has filled by so much that it can't wait.
        Ok(!fds[0].revents().is_empty() || self.last_round.elapsed() >= ROUND)
    }

    /// Sends what waits to be sent, after a round if one is due, and forgets who is gone.
    fn hand_out(&mut self, round_is_due: bool) {
        if round_is_due {
            self.last_round = Instant::now();
            self.round();
        }
        self.callers.iter_mut().for_each(Caller::flush);
        self.forget_gone();
    }

    fn accept(&mut self, listener: &UnixListener) {
        loop {
            match listener.accept() {
                Ok((stream, _)) => {
                    let Ok(mut caller) = Caller::new(stream) else { continue };
                    if self.callers.iter().filter(|other| other.uid == caller.uid).count() >= CALLERS_A_USER {
                        caller.refuse(format!("{CALLERS_A_USER} jobs of yours are watched already"));
                    }
                    self.callers.push(caller);
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    // Out of descriptors: the connection stays readable, and trying at once would spin.
                    std::thread::sleep(ROUND);
                    return;
                }
            }
        }
    }

    /// Does what callers ask, or tells them why not.
    fn hear(&mut self) {
        let mut callers = std::mem::take(&mut self.callers);
        for caller in &mut callers {
            for line in caller.lines() {
                if let Err(error) = self.obey(caller, &line) {
                    caller.refuse(format!("{error:#}"));
                }
            }
        }
        self.callers = callers;
        // A hook that can't be set or taken off costs figures or time and harms nothing; the next round tries
        // again.
        let _ = self.kernel.set_syscalls(self.callers.iter().any(|caller| caller.syscalls && !caller.gone));
    }

    fn obey(&mut self, caller: &mut Caller, line: &[u8]) -> Result<()> {
        if !caller.roots.is_empty() {
            let Request::Watch(pid) = stallscope_wire::decode(line)? else {
                bail!("the node's collector gives kernel evidence only");
            };
            ensure!(caller.roots.len() < TREES_A_CALLER, "one caller may watch {TREES_A_CALLER} trees");
            return self.watch(caller, pid).map(drop);
        }
        let hello: Hello = stallscope_wire::decode(line)?;
        let Client::Kernel { watch, syscalls } = hello.accept()? else {
            bail!("the node's collector gives kernel evidence only; start jobs with `stallscope run`");
        };
        if syscalls {
            self.kernel.set_syscalls(true)?;
        }
        caller.syscalls = syscalls;
        caller.lost_before = self.losses();
        self.watch(caller, watch)
    }

    /// Takes up the process tree of `root` for `caller`, if it is theirs.
    fn watch(&mut self, caller: &mut Caller, root: u32) -> Result<()> {
        let owner = std::fs::metadata(format!("/proc/{root}")).map(|meta| meta.uid());
        let owner = owner.map_err(|_| anyhow::anyhow!("there is no process {root}"))?;
        ensure!(
            caller.uid == 0 || caller.uid == owner,
            "process {root} belongs to another user; ask them, or root, to profile it"
        );
        // Its numbers would mean other processes to us, and ours to it.
        ensure!(
            same_pid_namespace(caller.pid),
            "your stallscope runs in a pid namespace of its own; start the container with the host's"
        );
        let tasks = self.kernel.watch(root)?;
        if caller.roots.is_empty() {
            caller.say(&Reply::Watching(Accepted { tasks: tasks.len() as u32, programs: self.programs() }));
        }
        caller.roots.push(root);
        caller.processes.insert(root);
        caller.knows_slots = false;
        for task in &tasks {
            if task.flags & flags::WATCHED != 0 {
                self.watched.insert(task.header.slot, Watched::new(task.header.tid));
            }
            caller.offer(&Record::TaskNew(*task), bytes_of(task));
        }
        Ok(())
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

    fn losses(&self) -> BTreeMap<&'static str, u64> {
        let counts = self.kernel.losses().unwrap_or_default();
        LOST.iter().map(|(reason, name)| (*name, counts[*reason as usize])).collect()
    }

    /// Puts together what there is for every caller.
    fn round(&mut self) {
        let Service { kernel, callers, watched, records, .. } = self;
        let mut a_root_ended = false;
        let drained = kernel.drain(|bytes| {
            *records += 1;
            let Some(record) = Record::parse(bytes) else { return };
            let header = record.header();
            match &record {
                Record::TaskNew(new) if new.flags & flags::WATCHED != 0 => {
                    watched.insert(header.slot, Watched::new(header.tid));
                }
                Record::TaskExit(_) => {
                    watched.remove(&header.slot);
                    a_root_ended |= callers.iter().any(|caller| caller.roots.contains(&header.tid));
                }
                _ => {}
            }
            callers.iter_mut().for_each(|caller| caller.offer(&record, bytes));
        });
        // A slot that could not be handed back is one task fewer that can be tracked: counted as such later.
        drop(drained);
        let now_ns = now_ns();
        let (mut slots, mut stills): (Vec<TaskSlot>, Vec<Still>) = (Vec::new(), Vec::new());
        let all_know = callers.iter().all(|caller| caller.roots.is_empty() || caller.knows_slots);
        watched.retain(|slot, task| {
            let still = kernel.still(*slot, now_ns).filter(|still| still.tid == task.tid);
            if let (true, Some(still), true) = (all_know, still, still == task.still) {
                stills.push(still);
                return true;
            }
            task.still = still;
            // A task whose end was lost in a full ring has left its slot all the same.
            let gone = |copy: &TaskSlot| {
                copy.tid != task.tid || copy.state == state::EXITED || copy.state == state::FREE
            };
            let copy = kernel.slot(*slot).filter(|copy| !gone(copy));
            slots.extend(copy);
            copy.is_some()
        });
        // What a job waited for last is told while its collector still listens.
        if a_root_ended || self.files_told.elapsed() >= FILES_EVERY {
            self.files_told = Instant::now();
            // Sums: what can't be read now is in the next ones.
            let waits = self.kernel.waits().unwrap_or_default();
            self.callers.iter_mut().for_each(|caller| caller.tell_waits(&waits));
        }
        let lost = self.losses();
        let run_time_ns = self.kernel.run_time().ok().map(|time| time.as_nanos() as u64).filter(|ns| *ns > 0);
        for caller in &mut self.callers {
            if !caller.roots.is_empty() {
                caller.present(&slots, &stills);
                let tick = frame::Tick { now_ns, lost: caller.lost(&lost), run_time_ns };
                caller.push(Tag::Tick, &stallscope_wire::encode(&tick));
            }
        }
    }

    fn forget_gone(&mut self) {
        let (gone, callers) = std::mem::take(&mut self.callers).into_iter().partition(|caller| caller.gone);
        self.callers = callers;
        let gone: Vec<Caller> = gone;
        self.dropped += gone.iter().map(|caller| caller.dropped).sum::<u64>();
        let roots: Vec<u32> = gone.into_iter().flat_map(|caller| caller.roots).collect();
        for root in &roots {
            if self.callers.iter().all(|caller| !caller.roots.contains(root)) {
                // The process may be long gone, and its tasks with it.
                let _ = self.kernel.unwatch(*root);
            }
        }
        if roots.is_empty() {
            return;
        }
        // A tree within the one that was let go was followed as part of it: take it up again.
        for caller in &mut self.callers {
            for root in caller.roots.clone() {
                for task in self.kernel.watch(root).unwrap_or_default() {
                    if task.flags & flags::WATCHED != 0 {
                        self.watched.insert(task.header.slot, Watched::new(task.header.tid));
                    }
                    caller.offer(&Record::TaskNew(task), bytes_of(&task));
                }
            }
        }
    }
}

fn same_pid_namespace(pid: u32) -> bool {
    let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/pid")).ok();
    // Of a process that is gone already nothing is told to anybody.
    namespace(&pid.to_string()) == namespace("self")
}
