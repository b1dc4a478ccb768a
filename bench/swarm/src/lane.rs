//! A process's lane and its connection to the collector.

use crate::{Shape, Totals};
use anyhow::{Context, Result};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::time::{ClockId, clock_gettime};
use stallscope_abi::lane::{Clock, ClockAt, Record};
use stallscope_ring::{Fact, Greeting, PROTOCOL_VERSION, ProcessKind, RankFact, Writer};
use std::os::fd::{AsFd, OwnedFd};

/// As in the Python package.
const LANE_RECORDS: u32 = 32768;

pub(crate) struct Lane {
    writer: Writer,
    // The collector takes a closed connection for the end of the process.
    socket: OwnedFd,
    totals: Totals,
}

impl Lane {
    /// # Errors
    /// No collector listens at STALLSCOPE_SOCKET.
    pub(crate) fn open(shape: Shape, kind: ProcessKind, rank: u32) -> Result<Lane> {
        let path = std::env::var("STALLSCOPE_SOCKET")
            .context("STALLSCOPE_SOCKET is not set; start this with `stallscope run -- swarm`")?;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(&path)?).context("cannot reach the collector")?;
        let (writer, fd) = Writer::create(LANE_RECORDS)?;
        let greeting = Greeting {
            stallscope: PROTOCOL_VERSION,
            role: "shim".into(),
            lane_version: stallscope_abi::lane::VERSION,
            shim_version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            ppid: std::os::unix::process::parent_id(),
            kind,
            rank: RankFact { rank, world_size: shape.ranks, local_rank: rank },
            argv: vec!["swarm".into()],
            ..Greeting::default()
        };
        stallscope_ring::send_greeting(socket.as_fd(), &greeting, fd.as_fd())?;
        Ok(Lane { writer, socket, totals: Totals { processes: 1, ..Totals::default() } })
    }

    pub(crate) fn tell(&self, fact: &Fact) -> Result<()> {
        Ok(stallscope_ring::send_line(self.socket.as_fd(), fact)?)
    }

    pub(crate) fn push(&mut self, record: &Record) {
        if self.writer.push(record) {
            self.totals.pushed += 1;
        } else {
            self.totals.refused += 1;
        }
    }

    /// Gives the thread's CPU time.
    pub(crate) fn push_clock(&mut self, at: ClockAt, time_ns: u64) -> u64 {
        let cpu_ns = read_ns(ClockId::ThreadCPUTime);
        let process_cpu_ns = read_ns(ClockId::ProcessCPUTime);
        let clock = Clock { loader: 0, at, cpu_ns, run_delay_ns: 0, process_cpu_ns, read_ns: 0 };
        self.push(&clock.encode(time_ns));
        cpu_ns
    }

    pub(crate) fn totals(&self) -> Totals {
        self.totals
    }
}

pub(crate) fn now_ns() -> u64 {
    read_ns(ClockId::Monotonic)
}

fn read_ns(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Uses the CPU until `end_ns`.
pub(crate) fn compute_until(end_ns: u64) {
    while now_ns() < end_ns {
        std::hint::spin_loop();
    }
}
