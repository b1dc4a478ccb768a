use serde::{Deserialize, Serialize};
use std::ops::AddAssign;

/// What main threads did, whether or not a step was seen. The parts add up to `wall_ns`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MainThreads {
    /// How many, and the process of the first.
    pub count: u32,
    pub pid: u32,
    /// Since when the first was seen, `CLOCK_MONOTONIC`; from then on without a gap.
    pub start_ns: u64,
    pub wall_ns: u64,
    pub cpu_ns: u64,
    /// Without a CPU.
    pub runnable_ns: u64,
    /// Blocked in reading files, and in page faults.
    pub files_ns: u64,
    pub faults_ns: u64,
    /// Blocked in sockets or a poll of several descriptors, and in pipes.
    pub sockets_ns: u64,
    pub pipes_ns: u64,
    /// Blocked in writing, syncing and renaming files.
    pub writes_ns: u64,
    /// Asleep until a thread of its own had read, and made of it what is waited for.
    pub readers_ns: u64,
    pub locks_ns: u64,
    pub sleeps_ns: u64,
    /// Blocked in anything else: a device, a child.
    pub other_ns: u64,
}

impl MainThreads {
    /// Blocked in what data come from.
    pub fn data_ns(&self) -> u64 {
        [self.files_ns, self.faults_ns, self.sockets_ns, self.pipes_ns, self.readers_ns]
            .into_iter()
            .fold(0, u64::saturating_add)
    }

    /// What they were blocked in, by its name in a sentence.
    pub fn blocked(&self) -> [(&'static str, u64); 9] {
        [
            ("files", self.files_ns),
            ("page faults", self.faults_ns),
            ("sockets", self.sockets_ns),
            ("pipes", self.pipes_ns),
            ("writing files", self.writes_ns),
            ("waits for reader threads", self.readers_ns),
            ("locks", self.locks_ns),
            ("sleep", self.sleeps_ns),
            ("something else", self.other_ns),
        ]
    }
}

impl AddAssign<&MainThreads> for MainThreads {
    fn add_assign(&mut self, other: &MainThreads) {
        if self.count == 0 {
            (self.pid, self.start_ns) = (other.pid, other.start_ns);
        }
        self.count = self.count.saturating_add(other.count);
        for (sum, ns) in [
            (&mut self.wall_ns, other.wall_ns),
            (&mut self.cpu_ns, other.cpu_ns),
            (&mut self.runnable_ns, other.runnable_ns),
            (&mut self.files_ns, other.files_ns),
            (&mut self.faults_ns, other.faults_ns),
            (&mut self.sockets_ns, other.sockets_ns),
            (&mut self.pipes_ns, other.pipes_ns),
            (&mut self.writes_ns, other.writes_ns),
            (&mut self.readers_ns, other.readers_ns),
            (&mut self.locks_ns, other.locks_ns),
            (&mut self.sleeps_ns, other.sleeps_ns),
            (&mut self.other_ns, other.other_ns),
        ] {
            *sum = sum.saturating_add(ns);
        }
    }
}
