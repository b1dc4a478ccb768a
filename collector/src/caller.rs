//! One connection to the kernel service: lines in, a line and then frames out, never waiting for either.

use crate::containers::{Containers, THEIR_ROOT};
use crate::outbox::Outbox;
use crate::watch_audit::Watch;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::event::PollFlags;
use stallscope_abi::files::FileKey;
use stallscope_abi::kernel::{MAX_TASKS, Record, TaskSlot, bytes_of};
use stallscope_ebpf::{Identity, Still, Waits};
use stallscope_wire::{Reply, frame, frame::Tag};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io::{ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// How long a caller may take to introduce itself.
const HELLO: Duration = Duration::from_secs(1);

/// How long a connection lasts at most where it is refused.
const GOODBYE: Duration = Duration::from_secs(5);

/// The longest line a caller has to send.
const LINE_LIMIT_BYTES: usize = 4096;

/// Lines of a connection: a hello, and a process to watch each. More is a mistake or an attack.
const MOST_LINES: u32 = 256;

/// What waits for a caller that does not read, at least and at most; beyond it records are dropped and counted.
const BACKLOG_BYTES: (usize, usize) = (64 << 10, 16 << 20);

/// What a socket may hold besides.
const SOCKET_BYTES: usize = 256 << 10;

/// Why a caller lost records of its own.
pub(crate) const TOO_SLOW: &str = "kernel collector too slow";

/// Most files in one report.
const FILES: usize = 200;

/// Of tids in a frame.
const STILL_BYTES: usize = 32 << 10;

pub(crate) struct Caller {
    stream: UnixStream,
    pub(crate) uid: u32,
    /// Where it is root, and not the node's: those that it is root of.
    pub(crate) containers: Option<Containers>,
    /// The user who is charged for what it takes.
    pub(crate) payer: u32,
    /// The user who reads what it is sent: its own, unless root asks for another, as with sudo.
    reader: u32,
    /// In our own pid namespace.
    pub(crate) pid: u32,
    begun: Instant,
    inbox: Vec<u8>,
    lines: u32,
    out: Outbox,
    backlog_limit_bytes: usize,
    /// Roots of the trees that it watches, with the `start_boottime` of each; empty until its request has come.
    pub(crate) roots: HashMap<u32, u64>,
    /// Those of them that were followed as part of a tree that was let go, and are to be taken up again.
    pub(crate) orphans: BTreeSet<u32>,
    /// Whether it asked for system calls to be hooked, and if so, may have it.
    pub(crate) syscalls: Option<bool>,
    /// Processes of these trees, with the `start_boottime` of each; a number may be another process next.
    processes: HashMap<u32, u64>,
    /// Records that it was too slow to take.
    pub(crate) dropped: u64,
    /// Every slot was sent to it since the last that was dropped.
    pub(crate) knows_slots: bool,
    /// The service's losses when it came: those are not its own.
    pub(crate) lost_before: BTreeMap<&'static str, u64>,
    /// Nothing follows what waits to be sent.
    closing: bool,
    pub(crate) gone: bool,
}

impl Caller {
    /// # Errors
    /// The connection is gone already.
    pub(crate) fn new(stream: UnixStream) -> std::io::Result<Caller> {
        stream.set_nonblocking(true)?;
        // 0 where it has no number here, which rustix has no value for.
        let peer = getsockopt(&stream, PeerCredentials)?;
        let (uid, pid) = (peer.uid(), u32::try_from(peer.pid()).unwrap_or(0));
        let containers = (uid == 0).then(|| Containers::around(&stream, Some(pid)));
        Ok(Caller {
            stream,
            uid,
            containers: containers.filter(|containers| !containers.have(std::process::id())),
            payer: uid,
            reader: uid,
            pid,
            begun: Instant::now(),
            inbox: Vec::new(),
            lines: 0,
            out: Outbox::default(),
            backlog_limit_bytes: BACKLOG_BYTES.1,
            roots: HashMap::new(),
            orphans: BTreeSet::new(),
            syscalls: None,
            processes: HashMap::new(),
            dropped: 0,
            knows_slots: false,
            lost_before: BTreeMap::new(),
            closing: false,
            gone: false,
        })
    }

    /// Root of the node, who has no bounds.
    pub(crate) fn is_root(&self) -> bool {
        self.uid == 0 && self.containers.is_none()
    }

    /// Who is charged for it, if not the owner of a range of ids that this is in.
    pub(crate) fn charged(&self) -> u32 {
        if self.containers.is_some() { THEIR_ROOT } else { self.uid }
    }

    /// What it is sent goes to `reader`. Only root may read for others, of whom each may know less than root.
    pub(crate) fn reads_for(&mut self, reader: Option<u32>) {
        self.reader = reader.filter(|_| self.is_root()).unwrap_or(self.uid);
    }

    /// Whether system calls are hooked for it: while it watches something.
    pub(crate) fn has_syscalls(&self) -> bool {
        self.syscalls == Some(true) && !self.roots.is_empty() && !self.gone
    }

    pub(crate) fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// What it may next be ready for.
    pub(crate) fn awaits(&self) -> PollFlags {
        match (self.closing, self.out.is_empty()) {
            // What it still says is not read, and must not wake us.
            (true, _) => PollFlags::OUT,
            (false, true) => PollFlags::IN,
            (false, false) => PollFlags::IN | PollFlags::OUT,
        }
    }

    /// Takes what has arrived, unless there are lines that were not heard yet; whether that was anything. Notices a caller
    /// that hung up, says nothing, or too much.
    pub(crate) fn listen(&mut self) -> bool {
        if self.closing || self.inbox.contains(&b'\n') {
            return false;
        }
        let mut chunk = [0; LINE_LIMIT_BYTES];
        let arrived = match self.stream.read(&mut chunk) {
            Ok(length) => {
                self.gone |= length == 0;
                length
            }
            Err(error) => {
                self.gone |= !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted);
                0
            }
        };
        self.inbox.extend_from_slice(&chunk[..arrived]);
        let has_line = self.inbox.contains(&b'\n');
        let silent = self.roots.is_empty() && !has_line && self.begun.elapsed() > HELLO;
        self.gone |= silent || !has_line && self.inbox.len() > LINE_LIMIT_BYTES;
        arrived > 0
    }

    /// The next line that has arrived whole.
    pub(crate) fn next_line(&mut self) -> Option<Vec<u8>> {
        if self.closing || self.gone {
            return None;
        }
        let end = self.inbox.iter().position(|byte| *byte == b'\n')?;
        let rest = self.inbox.split_off(end + 1);
        self.inbox.pop();
        self.lines += 1;
        self.gone |= self.lines > MOST_LINES;
        Some(std::mem::replace(&mut self.inbox, rest)).filter(|_| !self.gone)
    }

    /// Whether [`Caller::next_line`] gives one.
    pub(crate) fn has_line(&self) -> bool {
        !self.closing && !self.gone && self.inbox.contains(&b'\n')
    }

    pub(crate) fn say(&mut self, reply: &Reply) {
        self.out.end().extend_from_slice(&stallscope_wire::encode(reply));
    }

    /// Tells why there is nothing to be had, and hangs up.
    pub(crate) fn refuse(&mut self, why: String) {
        if self.roots.is_empty() {
            self.answer(&Reply::Error(why));
        }
    }

    /// Says it, and hangs up.
    pub(crate) fn answer(&mut self, reply: &Reply) {
        self.say(reply);
        self.closing = true;
    }

    /// Watches the tree of a process from now on.
    pub(crate) fn take_up(&mut self, root: u32, start_ns: u64) {
        self.roots.insert(root, start_ns);
        self.processes.insert(root, start_ns);
        self.knows_slots = false;
    }

    /// One of its trees, as the audit has it.
    pub(crate) fn watch(&self, root: u32, root_start_ns: u64) -> Watch {
        Watch { uid: self.uid, payer: self.payer, pid: self.pid, root, root_start_ns }
    }

    /// Sends a record of its trees. `of`: the task whose record it is.
    pub(crate) fn offer(&mut self, record: &Record, bytes: &[u8], of: &Identity) {
        let header = record.header();
        if let Record::TaskNew(new) = record
            && header.tid == header.tgid
        {
            // Also where the end of the process that had this number before was lost.
            if self.processes.get(&header.tgid).is_some_and(|start_ns| *start_ns != new.start_boottime_ns) {
                self.processes.remove(&header.tgid);
            }
            if self.processes.contains_key(&new.ppid) {
                self.processes.insert(header.tgid, new.start_boottime_ns);
            }
        }
        // Records of a process that had the number before may still come.
        let start_ns = self.processes.get(&header.tgid);
        let leads = header.tid == header.tgid;
        if start_ns.is_none_or(|start_ns| leads && *start_ns != of.start_boottime_ns) {
            return;
        }
        // Whatever its numbers say: asked of the kernel side for each record.
        if of.is_known_to(self.reader) {
            self.push(Tag::Record, bytes);
        }
        if leads && matches!(record, Record::TaskExit(_)) {
            self.processes.remove(&header.tgid);
        }
    }

    /// What is kept in memory until it reads.
    pub(crate) fn backlog_bytes(&self) -> usize {
        if self.out.is_empty() { 0 } else { self.out.len() + SOCKET_BYTES }
    }

    pub(crate) fn limit_backlog(&mut self, bytes: usize) {
        let (least, most) = BACKLOG_BYTES;
        self.backlog_limit_bytes = bytes.clamp(least, most);
    }

    pub(crate) fn push(&mut self, tag: Tag, payload: &[u8]) {
        if self.out.len() + payload.len() > self.backlog_limit_bytes {
            self.dropped += 1;
            self.knows_slots = false;
        } else {
            frame::push(self.out.end(), tag, payload);
        }
    }

    /// Sends what its processes are doing now.
    pub(crate) fn present(&mut self, changed: &[(Identity, TaskSlot)], still: &[(Identity, Still)]) {
        self.knows_slots = true;
        for (of, slot) in changed {
            if self.follows(of) {
                self.push(Tag::Slot, bytes_of(slot));
            }
        }
        let own = still.iter().filter(|(of, _)| self.follows(of));
        let tids: Vec<u8> = own.flat_map(|(_, still)| still.tid.to_ne_bytes()).collect();
        tids.chunks(STILL_BYTES).for_each(|tids| self.push(Tag::Still, tids));
    }

    /// `there`: the number and `start_boottime` of each process that may be there still. Records of ends were lost: where it
    /// has more processes than there can be at once, the others go. Not before, as what was recorded of them may still come.
    pub(crate) fn forget_all_but(&mut self, there: &HashSet<(u32, u64)>) {
        let Caller { processes, roots, .. } = self;
        if processes.len() > MAX_TASKS as usize {
            processes.retain(|pid, start_ns| roots.contains_key(pid) || there.contains(&(*pid, *start_ns)));
        }
    }

    pub(crate) fn follows_process(&self, pid: u32) -> bool {
        self.processes.contains_key(&pid)
    }

    #[cfg(test)]
    pub(crate) fn processes(&self) -> usize {
        self.processes.len()
    }

    fn follows(&self, task: &Identity) -> bool {
        self.processes.contains_key(&task.tgid) && task.is_known_to(self.reader)
    }

    /// Sends what tasks of its user waited for in its trees: all mounts, and the files with the longest waits.
    pub(crate) fn tell_waits(&mut self, waits: &Waits) {
        let is_watched = |root: &u32| self.processes.contains_key(root) || self.roots.contains_key(root);
        let may_know = |key: &FileKey| self.reader == 0 || key.uid == self.reader;
        let is_own = |key: &FileKey| may_know(key) && is_watched(&key.root);
        let mounts: Vec<_> = waits.mounts.iter().filter(|(key, _)| is_own(key)).collect();
        let mut files: Vec<_> = waits.files.iter().filter(|(key, _)| is_own(key)).collect();
        for (key, wait) in mounts {
            self.push(Tag::MountWait, &[bytes_of(key), bytes_of(wait)].concat());
        }
        files.sort_unstable_by_key(|(_, wait)| std::cmp::Reverse(wait.wait_ns));
        for (key, wait) in files.into_iter().take(FILES) {
            self.push(Tag::FileWait, &[bytes_of(key), bytes_of(wait)].concat());
        }
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
        self.gone |= !self.out.flush(&self.stream);
        self.gone |= self.closing && (self.out.is_empty() || self.begun.elapsed() > GOODBYE);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use stallscope_abi::kernel::{Header, Kind, TaskExit, TaskNew, flags};

    const MIRA: u32 = 4242;

    fn caller() -> Caller {
        let (ours, _) = UnixStream::pair().unwrap();
        let mut caller = Caller::new(ours).unwrap();
        (caller.uid, caller.reader) = (MIRA, MIRA);
        caller
    }

    fn of(pid: u32, start_boottime_ns: u64, uid: u32) -> Identity {
        Identity { tgid: pid, start_boottime_ns, flags: 0, uid }
    }

    fn begins(caller: &mut Caller, pid: u32, ppid: u32, of: Identity) {
        let header = Header { kind: Kind::TaskNew as u16, tid: pid, tgid: pid, ..Header::default() };
        let start_boottime_ns = of.start_boottime_ns;
        let new = TaskNew { header, ppid, start_boottime_ns, ..TaskNew::default() };
        caller.offer(&Record::TaskNew(new), bytes_of(&new), &of);
    }

    fn ends(caller: &mut Caller, pid: u32, of: Identity) {
        let header = Header { kind: Kind::TaskExit as u16, tid: pid, tgid: pid, ..Header::default() };
        let exit = TaskExit { header, ..TaskExit::default() };
        caller.offer(&Record::TaskExit(exit), bytes_of(&exit), &of);
    }

    /// How many bytes more it is sent.
    fn sent(caller: &mut Caller, does: impl FnOnce(&mut Caller)) -> usize {
        let before = caller.out.len();
        does(caller);
        caller.out.len() - before
    }

    #[test]
    fn the_end_of_an_earlier_process_of_the_number_ends_nothing() {
        let mut caller = caller();
        caller.take_up(7, 200);
        assert_eq!(sent(&mut caller, |caller| ends(caller, 7, of(7, 100, MIRA))), 0);
        assert!(
            sent(&mut caller, |caller| begins(caller, 8, 7, of(8, 300, MIRA))) > 0,
            "its child is followed"
        );
        assert!(sent(&mut caller, |caller| ends(caller, 7, of(7, 200, MIRA))) > 0);
        assert_eq!(sent(&mut caller, |caller| begins(caller, 9, 7, of(9, 400, MIRA))), 0);
    }

    #[test]
    fn where_the_record_of_an_end_was_lost_the_next_of_that_number_is_another() {
        let mut caller = caller();
        caller.take_up(7, 100);
        begins(&mut caller, 8, 7, of(8, 110, MIRA));
        assert_eq!(sent(&mut caller, |caller| begins(caller, 8, 1, of(8, 500, MIRA))), 0, "of another tree");
        assert_eq!(sent(&mut caller, |caller| begins(caller, 9, 8, of(9, 600, MIRA))), 0);
    }

    #[test]
    fn processes_whose_ends_were_lost_are_forgotten() {
        let mut caller = caller();
        caller.take_up(7, 100);
        (8..=10 + MAX_TASKS).for_each(|pid| begins(&mut caller, pid, 7, of(pid, 200, MIRA)));
        caller.forget_all_but(&HashSet::from([(8, 200), (9, 999)]));
        for (pid, is_there) in [(7, true), (8, true), (9, false), (10, false)] {
            let child = 1_000_000 + pid;
            let is_sent = sent(&mut caller, |caller| begins(caller, child, pid, of(child, 300, MIRA))) > 0;
            assert_eq!(is_sent, is_there, "{pid}");
        }
    }

    #[test]
    fn a_task_with_other_rights_is_for_root_alone() {
        let mut caller = caller();
        caller.take_up(7, 100);
        let privileged = Identity { flags: flags::PRIVILEGED, ..of(8, 110, MIRA) };
        assert_eq!(sent(&mut caller, |caller| begins(caller, 8, 7, privileged)), 0);
        assert_eq!(sent(&mut caller, |caller| begins(caller, 9, 7, of(9, 120, 0))), 0);
        (caller.uid, caller.reader) = (0, 0);
        let sees_all =
            |caller: &mut Caller, pid| sent(caller, |caller| begins(caller, pid, 7, of(pid, 130, 0))) > 0;
        assert!(sees_all(&mut caller, 10));
        caller.reads_for(Some(MIRA));
        assert!(!sees_all(&mut caller, 11), "as with sudo");
        assert!(sent(&mut caller, |caller| begins(caller, 12, 7, of(12, 140, MIRA))) > 0);
        caller.uid = MIRA;
        caller.reads_for(Some(0));
        assert!(!sees_all(&mut caller, 13), "she asks for root");
    }
}
