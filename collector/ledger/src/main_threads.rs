//! What the main threads of a job did, with or without steps.

use crate::ledger::Ledger;
use crate::process::Process;
use stallscope_abi::kernel::Blocked;
use stallscope_model::MainThreads;

/// Launchers above launchers, at most.
const GENERATIONS: usize = 8;
/// A process that works for less of its time than one part of so many, and has children that do, launched them.
const WORKS: u64 = 20;

/// Those of trainers; else of the processes next to the root that work themselves.
pub(crate) fn of(ledger: &Ledger) -> MainThreads {
    let sum = |pids: &mut dyn Iterator<Item = u32>| {
        let mut sum = MainThreads::default();
        pids.filter_map(|pid| ledger.processes.get(&pid)).for_each(|process| sum += &of_process(process));
        sum
    };
    let trainers = sum(&mut ledger.ranks.keys().copied());
    match ledger.root {
        _ if trainers.wall_ns > 0 => trainers,
        None => sum(&mut ledger.processes.keys().copied()),
        Some((root, _)) => match at_work(ledger, root, GENERATIONS) {
            pids if pids.is_empty() => sum(&mut std::iter::once(root)),
            pids => sum(&mut pids.into_iter()),
        },
    }
}

fn at_work(ledger: &Ledger, pid: u32, generations: usize) -> Vec<u32> {
    let did = ledger.processes.get(&pid).map(of_process).unwrap_or_default();
    let worked_ns = did.cpu_ns + did.runnable_ns + did.files_ns + did.faults_ns;
    if worked_ns * WORKS > did.wall_ns {
        return vec![pid];
    }
    if generations == 0 {
        return Vec::new();
    }
    let children = ledger.processes.iter().filter(|(_, process)| process.host_ppid == Some(pid));
    children.flat_map(|(child, _)| at_work(ledger, *child, generations - 1)).collect()
}

fn of_process(process: &Process) -> MainThreads {
    let did = process.so_far();
    let mut main = MainThreads {
        count: 1,
        pid: process.facts.pid,
        start_ns: process.first_seen_ns,
        cpu_ns: did.times.cpu_ns,
        runnable_ns: did.times.runnable_ns,
        ..blocked_in(|kind| did.of(kind))
    };
    main.wall_ns = main.cpu_ns + main.runnable_ns + main.blocked().iter().map(|(_, ns)| ns).sum::<u64>();
    main
}

/// `ns` of each kind.
pub(crate) fn blocked_in(ns: impl Fn(Blocked) -> u64) -> MainThreads {
    let of = |kinds: &[Blocked]| kinds.iter().map(|kind| ns(*kind)).fold(0, u64::saturating_add);
    MainThreads {
        files_ns: of(&[Blocked::FileRead]),
        faults_ns: of(&[Blocked::Fault]),
        sockets_ns: of(&[Blocked::Net, Blocked::FutexNet, Blocked::Unix, Blocked::Poll]),
        pipes_ns: of(&[Blocked::Pipe]),
        writes_ns: of(&[Blocked::FileWrite, Blocked::Sync, Blocked::Rename]),
        readers_ns: of(&[Blocked::FutexRead]),
        locks_ns: of(&[Blocked::Futex]),
        sleeps_ns: of(&[Blocked::Sleep]),
        other_ns: of(&[Blocked::Child, Blocked::Other]),
        ..MainThreads::default()
    }
}
