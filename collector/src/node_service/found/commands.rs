//! Command lines of others' processes. To read one takes the lock of that process's memory, and its user may have that held for
//! as long as they like, as by a mapping of a file that a file system of theirs has to bring. So each user's are read by a thread
//! of their own. One that does not come back costs its user's jobs to be found, and nobody else's.

use crate::procfs;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Of a command line, so much is compared.
const COMPARED_BYTES: u64 = 4096;
/// For so long one look waits for all that it asked for.
const AT_MOST: Duration = Duration::from_secs(1);
/// Threads that may be waiting: each has a descriptor, and callers are to have theirs.
const MOST_THREADS: usize = 128;
/// What such a thread calls fits into little.
const STACK_BYTES: usize = 128 << 10;

/// The threads that have not come back yet, by the user who is charged for them.
#[derive(Debug)]
pub(super) struct Readers {
    at_work: BTreeMap<u32, Reader>,
    named: BTreeSet<u32>,
    reads: fn(u32) -> Option<Vec<u8>>,
}

impl Default for Readers {
    fn default() -> Readers {
        Readers::that_read(|pid| procfs::beginning(pid, "cmdline", COMPARED_BYTES))
    }
}

#[derive(Debug)]
struct Reader {
    thread: JoinHandle<()>,
    /// The process that it reads of; 0: it has read all.
    at: Arc<AtomicU32>,
}

impl Reader {
    fn is_at_work(&self) -> bool {
        !self.thread.is_finished() && self.at.load(Ordering::Acquire) != 0
    }
}

/// A user whose processes are not looked at, as this one holds up who does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::node_service) struct HeldUp {
    pub(in crate::node_service) payer: u32,
    pub(in crate::node_service) pid: u32,
}

impl Readers {
    pub(super) fn that_read(reads: fn(u32) -> Option<Vec<u8>>) -> Readers {
        Readers { at_work: BTreeMap::new(), named: BTreeSet::new(), reads }
    }

    /// The command lines of these processes, by process, as far as they can be had.
    pub(super) fn read(&mut self, of: BTreeMap<u32, Vec<u32>>) -> BTreeMap<u32, Vec<u8>> {
        self.at_work.retain(|_, reader| reader.is_at_work());
        let (send, receive) = mpsc::channel();
        for (payer, pids) in of {
            if self.at_work.contains_key(&payer) || self.at_work.len() >= MOST_THREADS {
                continue;
            }
            let (send, at) = (send.clone(), Arc::new(AtomicU32::new(u32::MAX)));
            let (reading, read) = (Arc::clone(&at), self.reads);
            let reads = move || {
                for pid in pids {
                    reading.store(pid, Ordering::Relaxed);
                    // Nobody listens any more where it took too long.
                    if send.send((pid, read(pid))).is_err() {
                        break;
                    }
                }
                reading.store(0, Ordering::Release);
            };
            let thread = std::thread::Builder::new().name("command lines".into()).stack_size(STACK_BYTES);
            if let Ok(thread) = thread.spawn(reads) {
                self.at_work.insert(payer, Reader { thread, at });
            }
        }
        drop(send);
        let until = Instant::now() + AT_MOST;
        let mut commands = BTreeMap::new();
        while let Ok((pid, command)) = receive.recv_timeout(until.saturating_duration_since(Instant::now())) {
            commands.extend(command.map(|command| (pid, command)));
        }
        commands
    }

    /// Those who hold a thread up longer than a look waits, each once.
    pub(super) fn held_up(&mut self) -> Vec<HeldUp> {
        let Readers { at_work, named, .. } = self;
        let waiting = at_work.iter().filter(|(_, reader)| reader.is_at_work());
        let news = waiting.filter(|(payer, _)| named.insert(**payer));
        news.map(|(payer, reader)| HeldUp { payer: *payer, pid: reader.at.load(Ordering::Relaxed) }).collect()
    }
}
