//! Either side of a lane is killed, again and again, and what the other finds is whole and in order.
//!
//! This binary runs itself as the side to be killed: `--writer` or `--reader` before the lane's descriptor.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use rustix::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use rustix::io::FdFlags;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use stallscope_abi::lane::Record;
use stallscope_ring::{Greeting, LineReader, Reader, Received, Writer, send_greeting};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

const ROUNDS: u64 = 30;

/// Every word follows from `n`, so that a torn record shows.
fn record(n: u64) -> Record {
    Record::from_words([n, n << 16, n, !n, n ^ 0xff, n + 1])
}

fn inherit(name: &str, fd: &OwnedFd) -> Child {
    rustix::io::fcntl_setfd(fd, FdFlags::empty()).unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args([name, &fd.as_raw_fd().to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    rustix::io::fcntl_setfd(fd, FdFlags::CLOEXEC).unwrap();
    child
}

fn inherited(number: &str) -> OwnedFd {
    // SAFETY: the parent left this descriptor open for us and nobody else has it.
    unsafe { OwnedFd::from_raw_fd(number.parse().unwrap()) }
}

/// Sends its lane through `socket` and writes until it is killed.
fn write(socket: &OwnedFd) -> ! {
    let (mut writer, fd) = Writer::create(64).unwrap();
    send_greeting(socket.as_fd(), &Greeting::default(), fd.as_fd()).unwrap();
    let mut next = 0;
    loop {
        if writer.push(&record(next)) {
            next += 1;
        }
    }
}

/// Drains `lane` until it is killed.
fn read(lane: OwnedFd) -> ! {
    let mut reader = Reader::open(lane).unwrap();
    loop {
        reader.drain(u64::MAX, |found| assert_eq!(*found, record(found.time_ns())));
    }
}

fn writers_are_killed() {
    for round in 0..ROUNDS {
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
                .unwrap();
        let mut child = inherit("--writer", &theirs);
        drop(theirs);
        let mut lines = LineReader::default();
        let lane = loop {
            match lines.receive(ours.as_fd()).unwrap() {
                Received::Line(_, lane) => break lane.unwrap(),
                Received::WouldBlock => std::thread::yield_now(),
                Received::Closed => panic!("the writer died of itself"),
            }
        };
        let mut reader = Reader::open(lane).unwrap();
        let mut next = 0;
        let mut drain = |reader: &mut Reader| {
            let drained = reader.drain(u64::MAX, |found| {
                assert_eq!(*found, record(next), "round {round}");
                next += 1;
            });
            assert!(!drained.resynced);
        };
        while reader.dropped() < 1000 * (round % 3) {
            drain(&mut reader);
        }
        child.kill().unwrap();
        child.wait().unwrap();
        drain(&mut reader);
        drain(&mut reader);
    }
}

fn readers_are_killed() {
    let (mut writer, lane) = Writer::create(64).unwrap();
    let mut tried = 0;
    let mut taken = 0;
    for _ in 0..ROUNDS {
        let mut child = inherit("--reader", &lane);
        let before = taken;
        let started = Instant::now();
        // Until the reader has freed slots a few times.
        while taken < before + 1000 {
            assert!(started.elapsed() < Duration::from_secs(60), "the reader frees no slots");
            tried += 1;
            if writer.push(&record(taken)) {
                taken += 1;
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let mut reader = Reader::open(lane).unwrap();
    let mut left = Vec::new();
    reader.drain(u64::MAX, |found| left.push(found.time_ns()));
    assert!(left.iter().copied().eq(taken - left.len() as u64..taken), "{left:?} of {taken}");
    assert_eq!(reader.dropped(), tried - taken, "everything is delivered or counted");
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    match arguments.get(1).map(String::as_str) {
        Some("--writer") => write(&inherited(&arguments[2])),
        Some("--reader") => read(inherited(&arguments[2])),
        // A test runner asks for the names of the tests, and of those to be ignored.
        Some("--list") if arguments.iter().any(|argument| argument == "--ignored") => {}
        Some("--list") => println!("lanes_survive_kill: test"),
        _ => {
            writers_are_killed();
            readers_are_killed();
        }
    }
    ExitCode::SUCCESS
}
