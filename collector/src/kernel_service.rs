//! The privileged half: loads the kernel programs and gives each caller the evidence of one process tree, if
//! the tree is theirs. Writes no file and keeps no history, so that little runs with privilege.
//!
//! One thread, no async: it sleeps [`ROUND`], drains the ring buffer, hands out, and sleeps again.

use crate::host::now_ns;
use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use stallscope_abi::kernel::{Lost, Record, TaskSlot, bytes_of, flags};
use stallscope_ebpf::{Kernel, Options, ProgramState as Program};
use stallscope_wire::{Accepted, Client, Hello, ProgramState, Reply, frame, frame::Tag};
use std::collections::HashSet;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

/// The ring buffer holds some seconds of records, so that its readers need not be woken for each.
const ROUND: Duration = Duration::from_millis(100);

const LOST: [(Lost, &str); 3] = [
    (Lost::RingFull, "kernel ring full"),
    (Lost::NoSlot, "too many tasks"),
    (Lost::NoStorage, "no task storage"),
];

/// What waits for a caller that does not read; beyond it records are dropped and counted.
const BACKLOG_LIMIT_BYTES: usize = 16 << 20;

/// Serves everybody at `socket` until the process ends; with `only_until_idle`, until the first caller and all
/// others are gone.
///
/// # Errors
/// The programs can't be loaded (no privilege, no BTF), or the socket can't be bound.
pub fn serve(socket: &Path, only_until_idle: bool) -> Result<()> {
    let mut service = Service::load()?;
    if let Some(dir) = socket.parent() {
        std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    }
    if UnixStream::connect(socket).is_ok() {
        anyhow::bail!("a collector already serves {}; one a node is enough", socket.display());
    }
    let _ = std::fs::remove_file(socket);
    let listener =
        UnixListener::bind(socket).with_context(|| format!("cannot listen at {}", socket.display()))?;
    // Anybody may call; what they get is decided by who they are.
    std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o666))?;
    listener.set_nonblocking(true)?;
    let mut had_a_caller = false;
    loop {
        service.wait(Some(&listener))?;
        while let Ok((stream, _)) = listener.accept() {
            service.greet(stream);
        }
        service.round();
        had_a_caller |= !service.callers.is_empty();
        if only_until_idle && had_a_caller && service.callers.is_empty() {
            let _ = std::fs::remove_file(socket);
            return Ok(());
        }
    }
}

/// Serves one caller inside this process, on a thread of its own, until that caller hangs up.
///
/// # Errors
/// As [`serve`].
pub(crate) fn serve_within() -> Result<UnixStream> {
    let mut service = Service::load()?;
    let (ours, theirs) = UnixStream::pair()?;
    std::thread::Builder::new().name("kernel evidence".into()).spawn(move || {
        service.greet(theirs);
        while !service.callers.is_empty() {
            if service.wait(None).is_err() {
                return;
            }
            service.round();
        }
    })?;
    Ok(ours)
}

struct Service {
    kernel: Kernel,
    callers: Vec<Caller>,
    /// Watched tasks by slot, whose present stretch is sent each round.
    watched: HashSet<u32>,
}

struct Caller {
    stream: UnixStream,
    root: u32,
    syscalls: bool,
    /// Processes of the tree.
    processes: HashSet<u32>,
    out: Vec<u8>,
    dropped: u64,
    gone: bool,
}

impl Service {
    fn load() -> Result<Service> {
        let kernel = Kernel::load(&Options::default())?;
        Ok(Service { kernel, callers: Vec::new(), watched: HashSet::new() })
    }

    /// Sleeps a round, or until somebody calls or hangs up.
    fn wait(&self, listener: Option<&UnixListener>) -> Result<()> {
        let mut fds: Vec<PollFd> = Vec::with_capacity(self.callers.len() + 1);
        fds.extend(listener.map(|listener| PollFd::new(listener, PollFlags::IN)));
        fds.extend(self.callers.iter().map(|caller| PollFd::new(&caller.stream, PollFlags::HUP)));
        let round = Timespec { tv_sec: 0, tv_nsec: ROUND.subsec_nanos().into() };
        // With nobody watched there is nothing to drain: sleep until somebody calls.
        let timeout = if self.callers.is_empty() && listener.is_some() { None } else { Some(&round) };
        match poll(&mut fds, timeout) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Hears who calls and takes them in, or tells them why not.
    fn greet(&mut self, mut stream: UnixStream) {
        let reply = match self.take_in(&mut stream) {
            Ok((caller, accepted)) => {
                self.callers.push(caller);
                Reply::Watching(accepted)
            }
            Err(error) => Reply::Error(format!("{error:#}")),
        };
        let line = stallscope_wire::encode(&reply);
        match self.callers.last_mut() {
            Some(caller) if matches!(reply, Reply::Watching(_)) => {
                caller.out.splice(0..0, line).for_each(drop)
            }
            _ => drop(stream.write_all(&line)),
        }
    }

    fn take_in(&mut self, stream: &mut UnixStream) -> Result<(Caller, Accepted)> {
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        let hello: Hello = stallscope_wire::decode(&read_line(stream)?)?;
        let Client::Kernel { watch, syscalls } = hello.accept()? else {
            anyhow::bail!(
                "the node's collector gives kernel evidence only; start jobs with `stallscope run`"
            );
        };
        let caller_uid = rustix::net::sockopt::socket_peercred(&*stream)?.uid.as_raw();
        let owner = std::fs::metadata(format!("/proc/{watch}")).map(|meta| meta.uid());
        let owner = owner.map_err(|_| anyhow::anyhow!("there is no process {watch}"))?;
        anyhow::ensure!(
            caller_uid == 0 || caller_uid == owner,
            "process {watch} belongs to another user; ask them, or root, to profile it"
        );
        let mut caller = Caller {
            stream: stream.try_clone()?,
            root: watch,
            syscalls,
            processes: HashSet::from([watch]),
            out: Vec::new(),
            dropped: 0,
            gone: false,
        };
        caller.stream.set_nonblocking(true)?;
        let tasks = self.kernel.watch(watch)?;
        for task in &tasks {
            if task.flags & flags::WATCHED != 0 {
                self.watched.insert(task.header.slot);
            }
            caller.offer(&Record::TaskNew(*task), bytes_of(task));
        }
        self.choose_hooks(syscalls)?;
        let programs = self.kernel.programs().into_iter().filter_map(|program| {
            let reason = match program.state {
                Program::Attached => String::new(),
                // Only what was asked for and is not there is worth a word.
                Program::Off => return None,
                Program::Missing(reason) => reason,
                Program::Broken(reason) => format!("broken: {reason}"),
            };
            Some(ProgramState { program: program.name.into(), attached: reason.is_empty(), reason })
        });
        let accepted = Accepted { tasks: tasks.len() as u32, programs: programs.collect() };
        Ok((caller, accepted))
    }

    /// Syscall hooks are on as long as one caller wants them.
    fn choose_hooks(&mut self, also: bool) -> Result<()> {
        let wanted = also || self.callers.iter().any(|caller| caller.syscalls);
        Ok(self.kernel.set_syscalls(wanted)?)
    }

    fn round(&mut self) {
        let Service { kernel, callers, watched } = self;
        let drained = kernel.drain(|bytes| {
            let Some(record) = Record::parse(bytes) else { return };
            let header = *record.header();
            match &record {
                Record::TaskNew(new) if new.flags & flags::WATCHED != 0 => {
                    watched.insert(header.slot);
                }
                Record::TaskExit(_) => drop(watched.remove(&header.slot)),
                _ => {}
            }
            for caller in callers.iter_mut() {
                caller.offer(&record, bytes);
            }
        });
        // A slot that could not be handed back is one task fewer that can be tracked: counted as such later.
        drop(drained);
        let slots: Vec<TaskSlot> = watched.iter().filter_map(|slot| kernel.slot(*slot)).collect();
        let now_ns = now_ns();
        let losses = kernel.losses().unwrap_or_default();
        let losses: Vec<(String, u64)> = LOST
            .iter()
            .map(|(reason, name)| ((*name).to_string(), losses[*reason as usize]))
            .filter(|(_, count)| *count > 0)
            .collect();
        let run_time_ns = kernel.run_time().ok().map(|time| time.as_nanos() as u64).filter(|ns| *ns > 0);
        for caller in callers.iter_mut() {
            for slot in &slots {
                if caller.processes.contains(&slot.tgid) {
                    caller.push(Tag::Slot, bytes_of(slot));
                }
            }
            let mut lost = losses.clone();
            if caller.dropped > 0 {
                lost.push(("collector too slow".into(), caller.dropped));
            }
            let tick = frame::Tick { now_ns, lost, run_time_ns };
            caller.push(Tag::Tick, &stallscope_wire::encode(&tick));
            caller.flush();
        }
        let before = callers.len();
        let mut left = Vec::new();
        callers.retain(|caller| {
            if caller.gone {
                left.push(caller.root);
            }
            !caller.gone
        });
        for root in left {
            if callers.iter().all(|caller| caller.root != root) {
                // The process may be long gone, and its tasks with it.
                let _ = kernel.unwatch(root);
            }
        }
        if callers.len() < before {
            // A hook that can't be taken off costs time and harms nothing; the next change tries again.
            let _ = self.choose_hooks(false);
        }
    }
}

impl Caller {
    fn offer(&mut self, record: &Record, bytes: &[u8]) {
        let header = record.header();
        if let Record::TaskNew(new) = record
            && self.processes.contains(&new.ppid)
        {
            self.processes.insert(header.tgid);
        }
        if self.processes.contains(&header.tgid) {
            self.push(Tag::Record, bytes);
        }
        if matches!(record, Record::TaskExit(_)) && header.tid == header.tgid && header.tid != self.root {
            self.processes.remove(&header.tgid);
        }
    }

    fn push(&mut self, tag: Tag, payload: &[u8]) {
        if self.out.len() + payload.len() > BACKLOG_LIMIT_BYTES {
            self.dropped += 1;
        } else {
            frame::push(&mut self.out, tag, payload);
        }
    }

    fn flush(&mut self) {
        while !self.out.is_empty() && !self.gone {
            match self.stream.write(&self.out) {
                Ok(0) => self.gone = true,
                Ok(written) => drop(self.out.drain(..written)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => self.gone = true,
            }
        }
    }
}

fn read_line(stream: &mut UnixStream) -> Result<Vec<u8>> {
    let mut line = Vec::new();
    let mut byte = [0];
    while line.len() < 4096 {
        anyhow::ensure!(stream.read(&mut byte)? == 1, "the caller hung up");
        if byte[0] == b'\n' {
            return Ok(line);
        }
        line.push(byte[0]);
    }
    anyhow::bail!("the caller's first line does not end")
}
