//! One connection to the kernel service: lines in, a line and then frames out, never waiting for either.

use rustix::event::PollFlags;
use stallscope_abi::kernel::{Record, TaskSlot, bytes_of};
use stallscope_ebpf::{Still, Waits};
use stallscope_wire::{Reply, frame, frame::Tag};
use std::collections::{BTreeMap, HashSet};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// How long a caller may take to say who it is.
const HELLO: Duration = Duration::from_secs(1);

/// The longest line a caller has to send.
const LINE_LIMIT_BYTES: usize = 4096;

/// What waits for a caller that does not read; beyond it records are dropped and counted.
const BACKLOG_LIMIT_BYTES: usize = 16 << 20;

/// Why a caller lost records of its own.
pub(crate) const TOO_SLOW: &str = "kernel collector too slow";

/// Told at a time.
const FILES: usize = 200;

/// Of tids in a frame.
const STILL_BYTES: usize = 32 << 10;

pub(crate) struct Caller {
    stream: UnixStream,
    pub(crate) uid: u32,
    /// In our own pid namespace.
    pub(crate) pid: u32,
    begun: Instant,
    inbox: Vec<u8>,
    out: Vec<u8>,
    /// Roots of the trees that it watches; empty until it said what it wants.
    pub(crate) roots: Vec<u32>,
    pub(crate) syscalls: bool,
    /// Processes of these trees.
    pub(crate) processes: HashSet<u32>,
    /// Records that it was too slow to take.
    pub(crate) dropped: u64,
    /// Every slot was sent to it since the last that was dropped.
    pub(crate) knows_slots: bool,
    /// The service's losses when it came: those are not its own.
    pub(crate) lost_before: BTreeMap<&'static str, u64>,
    /// Nothing more is to be said than what waits to be sent.
    closing: bool,
    pub(crate) gone: bool,
}

impl Caller {
    /// # Errors
    /// The connection is gone already.
    pub(crate) fn new(stream: UnixStream) -> std::io::Result<Caller> {
        stream.set_nonblocking(true)?;
        let peer = rustix::net::sockopt::socket_peercred(&stream)?;
        Ok(Caller {
            stream,
            uid: peer.uid.as_raw(),
            pid: peer.pid.as_raw_nonzero().get() as u32,
            begun: Instant::now(),
            inbox: Vec::new(),
            out: Vec::new(),
            roots: Vec::new(),
            syscalls: false,
            processes: HashSet::new(),
            dropped: 0,
            knows_slots: false,
            lost_before: BTreeMap::new(),
            closing: false,
            gone: false,
        })
    }

    pub(crate) fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// What it may next be ready for.
    pub(crate) fn awaits(&self) -> PollFlags {
        if self.out.is_empty() { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT }
    }

    /// The lines that have arrived whole. Notices a caller that hung up, says nothing, or too much.
    pub(crate) fn lines(&mut self) -> Vec<Vec<u8>> {
        let mut chunk = [0; LINE_LIMIT_BYTES];
        match self.stream.read(&mut chunk) {
            Ok(0) => self.gone = true,
            Ok(length) => self.inbox.extend_from_slice(&chunk[..length]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => self.gone = true,
        }
        let mut lines = Vec::new();
        while let Some(end) = self.inbox.iter().position(|byte| *byte == b'\n') {
            let rest = self.inbox.split_off(end + 1);
            self.inbox.pop();
            lines.push(std::mem::replace(&mut self.inbox, rest));
        }
        let silent = self.roots.is_empty() && self.begun.elapsed() > HELLO;
        self.gone |= silent || self.inbox.len() > LINE_LIMIT_BYTES;
        lines
    }

    pub(crate) fn say(&mut self, reply: &Reply) {
        self.out.extend_from_slice(&stallscope_wire::encode(reply));
    }

    /// Tells why there is nothing to be had, and hangs up.
    pub(crate) fn refuse(&mut self, why: String) {
        if self.roots.is_empty() {
            self.say(&Reply::Error(why));
            self.closing = true;
        }
    }

    /// Sends a record of its trees.
    pub(crate) fn offer(&mut self, record: &Record, bytes: &[u8]) {
        let header = record.header();
        if let Record::TaskNew(new) = record
            && self.processes.contains(&new.ppid)
        {
            self.processes.insert(header.tgid);
        }
        if self.processes.contains(&header.tgid) {
            self.push(Tag::Record, bytes);
        }
        // The number may be another user's process next.
        if matches!(record, Record::TaskExit(_)) && header.tid == header.tgid {
            self.processes.remove(&header.tgid);
        }
    }

    pub(crate) fn push(&mut self, tag: Tag, payload: &[u8]) {
        if self.out.len() + payload.len() > BACKLOG_LIMIT_BYTES {
            self.dropped += 1;
            self.knows_slots = false;
        } else {
            frame::push(&mut self.out, tag, payload);
        }
    }

    /// Sends what its processes are doing now.
    pub(crate) fn present(&mut self, changed: &[TaskSlot], still: &[Still]) {
        self.knows_slots = true;
        for slot in changed {
            if self.processes.contains(&slot.tgid) {
                self.push(Tag::Slot, bytes_of(slot));
            }
        }
        let own = still.iter().filter(|still| self.processes.contains(&still.tgid));
        let tids: Vec<u8> = own.flat_map(|still| still.tid.to_ne_bytes()).collect();
        tids.chunks(STILL_BYTES).for_each(|tids| self.push(Tag::Still, tids));
    }

    /// Sends what its trees waited for: all mounts, and the files with the longest waits.
    pub(crate) fn tell_waits(&mut self, waits: &Waits) {
        let roots: HashSet<u32> = waits.mounts.iter().map(|(key, _)| key.root).collect();
        let own: HashSet<u32> = roots.into_iter().filter(|root| self.may_know(*root)).collect();
        for (key, wait) in waits.mounts.iter().filter(|(key, _)| own.contains(&key.root)) {
            self.push(Tag::MountWait, &[bytes_of(key), bytes_of(wait)].concat());
        }
        let mut files: Vec<_> = waits.files.iter().filter(|(key, _)| own.contains(&key.root)).collect();
        files.sort_unstable_by_key(|(_, wait)| std::cmp::Reverse(wait.wait_ns));
        for (key, wait) in files.into_iter().take(FILES) {
            self.push(Tag::FileWait, &[bytes_of(key), bytes_of(wait)].concat());
        }
    }

    /// Whether it may be told of the tree of `root`: one of its own, or one within. A tree may outlive its root,
    /// whose number may be another user's process by then.
    fn may_know(&self, root: u32) -> bool {
        let others = || {
            let owner = std::fs::metadata(format!("/proc/{root}")).map(|meta| meta.uid());
            self.uid != 0 && owner.is_ok_and(|owner| owner != self.uid)
        };
        self.processes.contains(&root) || self.roots.contains(&root) && !others()
    }

    /// What it lost since it came, of `now`, the service's counters.
    pub(crate) fn lost(&self, now: &BTreeMap<&'static str, u64>) -> Vec<(String, u64)> {
        let since = |reason: &str, count: &u64| count - self.lost_before.get(reason).unwrap_or(&0).min(count);
        let own = now.iter().map(|(reason, count)| (*reason, since(reason, count)));
        own.chain([(TOO_SLOW, self.dropped)])
            .filter(|(_, count)| *count > 0)
            .map(|(reason, count)| (reason.to_string(), count))
            .collect()
    }

    pub(crate) fn flush(&mut self) {
        let mut sent = 0;
        while sent < self.out.len() && !self.gone {
            match self.stream.write(&self.out[sent..]) {
                Ok(0) => self.gone = true,
                Ok(written) => sent += written,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => self.gone = true,
            }
        }
        self.out.drain(..sent);
        self.gone |= self.closing && self.out.is_empty();
    }
}
