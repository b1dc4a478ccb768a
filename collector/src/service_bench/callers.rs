//! Those who call the service. Whatever happens, in any order, [`ServiceBench::read`] and [`ServiceBench::end`] assert what
//! has to hold.

use super::{KernelModel, RING_RECORDS, SLOTS, USERS};
use crate::caller::Caller;
use crate::cpu_share::CpuShares;
use crate::kernel_service::Service;
use stallscope_abi::files::{self, FileWait, MountWait};
use stallscope_abi::kernel::{Record, TaskSlot, flags};
use stallscope_wire::frame::{Splitter, Tag, Tick};
use stallscope_wire::{Client, Hello, Request};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Instant;

/// The line by which a caller asks for the tree of `watch`.
pub(crate) fn hello(watch: u32, syscalls: bool) -> Vec<u8> {
    stallscope_wire::encode(&Hello::new(Client::Kernel { watch, syscalls, reader: None }))
}

/// One that is connected, as it sees it.
pub(crate) struct Connection {
    uid: u32,
    stream: UnixStream,
    pub(crate) answered: bool,
    /// Tasks whose end it has got a record of.
    pub(crate) ended: BTreeSet<u32>,
    line: Vec<u8>,
    frames: Splitter,
}

/// The service, its kernel and those who call it.
#[allow(missing_debug_implementations, unreachable_pub, reason = "for tests and fuzzing alone")]
pub struct ServiceBench {
    pub(crate) service: Service<KernelModel>,
    pub(crate) connections: Vec<Connection>,
}

impl Default for ServiceBench {
    fn default() -> ServiceBench {
        ServiceBench { service: Service::new(KernelModel::new(), false), connections: Vec::new() }
    }
}

impl ServiceBench {
    /// Whatever `bytes` stand for, three for each deed, and then the end of all.
    ///
    /// # Panics
    /// Something that has to hold does not.
    #[allow(unreachable_pub, reason = "for fuzzing")]
    pub fn play(mut self, bytes: &[u8]) {
        for deed in bytes.chunks_exact(3) {
            // Few numbers, so that they come again.
            let (pid, other) = (u32::from(deed[1] % 12) + 1, u32::from(deed[2] % 16));
            let (uid, connection) = (USERS[usize::from(deed[2]) % USERS.len()], usize::from(deed[1] % 6));
            let kernel = &mut self.service.kernel;
            match deed[0] % 16 {
                0 | 1 => kernel.begin(pid, other, USERS[usize::from(deed[2] / 16) % USERS.len()]),
                2 => kernel.execute(pid, uid),
                3 => (0..usize::from(deed[2]) % RING_RECORDS).for_each(|_| kernel.work(pid)),
                4 => kernel.work(pid),
                5 | 6 => kernel.exit(pid),
                7 if self.connections.len() < 6 => self.connect(uid),
                8 => self.disconnect(connection),
                9 => self.say(connection, &deed[1..]),
                10 => self.say(connection, &hello(other, deed[2] > 127)),
                11 => self.say(connection, &stallscope_wire::encode(&Request::Watch(other))),
                12 => self.turn(false),
                13 => {
                    self.read(connection);
                }
                _ => self.turn(true),
            }
        }
        self.end();
    }

    /// Connects as user `uid`.
    pub(crate) fn connect(&mut self, uid: u32) {
        let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
        theirs.set_nonblocking(true).expect("a socket that does not block");
        let mut caller = Caller::new(ours).expect("a caller");
        caller.uid = uid;
        self.service.admit(caller);
        self.connections.push(Connection {
            uid,
            stream: theirs,
            answered: false,
            ended: BTreeSet::new(),
            line: Vec::new(),
            frames: Splitter::default(),
        });
    }

    /// Says something over the connection with that number, where there is one.
    pub(crate) fn say(&mut self, connection: usize, bytes: &[u8]) {
        if let Some(connection) = self.connections.get_mut(connection) {
            // What a full socket does not take is the caller's loss.
            let _ = connection.stream.write(bytes);
        }
    }

    pub(crate) fn disconnect(&mut self, connection: usize) {
        if connection < self.connections.len() {
            self.connections.swap_remove(connection);
        }
    }

    /// The service does what there is to do; `round`: half a second has passed.
    pub(crate) fn turn(&mut self, round: bool) {
        // Time passes between two turns.
        self.service.heard.clear();
        self.service.make_up_again = Instant::now();
        self.service.hear();
        self.service.hand_out(round);
    }

    /// Reads what a connection was sent; how many records, or none where there is no such connection.
    ///
    /// # Panics
    /// It was sent what is not its user's, or no frame.
    pub(crate) fn read(&mut self, connection: usize) -> usize {
        let Some(Connection { uid, stream, answered, ended, line, frames }) =
            self.connections.get_mut(connection)
        else {
            return 0;
        };
        let (uid, owners, mut records) = (*uid, &self.service.kernel.owners, 0);
        let mut chunk = [0; 1 << 16];
        while let Ok(length @ 1..) = stream.read(&mut chunk) {
            let mut bytes = &chunk[..length];
            while !*answered && let Some((first, rest)) = bytes.split_first() {
                bytes = rest;
                line.push(*first);
                *answered = *first == b'\n';
            }
            let is_own = |of: u32, with: u32| uid == 0 || uid == of && with & flags::PRIVILEGED == 0;
            let fed = frames.feed(bytes, |tag, payload| match tag {
                Tag::Record => {
                    records += 1;
                    let record = Record::parse(payload).expect("a record");
                    let (of, with) = owners[&record.header().time_ns];
                    assert!(is_own(of, with), "user {uid} was sent a record of {of}'s: {record:?}");
                    if let Record::TaskExit(exit) = record {
                        ended.insert(exit.header.tid);
                    }
                }
                Tag::Slot => {
                    let slot = TaskSlot::parse(payload).expect("a slot");
                    assert!(is_own(slot.uid, slot.flags), "user {uid} was sent a slot of {}'s", slot.uid);
                }
                Tag::FileWait => {
                    let (key, _) = files::parse::<FileWait>(payload).expect("a file that was waited for");
                    assert!(is_own(key.uid, 0), "user {uid} was sent a file of {}'s", key.uid);
                }
                Tag::MountWait => {
                    let (key, _) = files::parse::<MountWait>(payload).expect("a mount that was waited for");
                    assert!(is_own(key.uid, 0), "user {uid} was sent a mount of {}'s", key.uid);
                }
                Tag::Tick => drop(stallscope_wire::decode::<Tick>(payload).expect("a tick")),
                _ => {}
            });
            assert!(fed.is_ok(), "not a frame");
        }
        records
    }

    /// Everybody hangs up.
    ///
    /// # Panics
    /// Something is left behind.
    pub(crate) fn end(mut self) {
        for connection in 0..self.connections.len() {
            self.read(connection);
        }
        self.connections.clear();
        // Also of a caller that asked so much that it has to wait for its turn.
        self.service.shares = CpuShares::default();
        for _ in 0..3 {
            self.turn(true);
        }
        let Service { kernel, callers, trees, .. } = &self.service;
        assert!(callers.is_empty(), "{} callers are left", callers.len());
        assert!(kernel.roots.is_empty() && trees.is_empty(), "{:?} are watched still", kernel.roots);
        assert!(!kernel.syscalls, "system calls are hooked for nobody");
        assert_eq!(kernel.free.len(), SLOTS as usize, "slots are not handed back");
    }
}
