//! What the main threads of a job did, with or without steps.

use crate::ledger::Ledger;
use crate::own_cpu::Used;
use crate::process::Process;
use stallscope_abi::kernel::Blocked;
use stallscope_model::MainThreads;

/// Launchers above launchers, at most.
const GENERATIONS: usize = 8;
/// A process that works for less of its time than one part of so many, and has children that do, launched them.
const WORKS: u64 = 20;

/// Those of trainers; else of the processes next to the root that work themselves.
pub(crate) fn of(ledger: &Ledger) -> MainThreads {
    sum(ledger, &pids(ledger))
}

/// CPUs that the job uses while these main threads are watched, and that their processes use at once; for a job of which no
/// step shows.
pub(crate) fn own_cpu(ledger: &Ledger) -> (Option<f64>, Option<f64>) {
    let pids = pids(ledger);
    let main = sum(ledger, &pids);
    let wall_ns = main.wall_ns / u64::from(main.count.max(1));
    let (mut all, mut of_mains) = (Used::default(), Used::default());
    ledger.processes.values().for_each(|process| all.add(Used::of(process)));
    pids.iter()
        .filter_map(|pid| ledger.processes.get(pid))
        .for_each(|process| of_mains.add(Used::of(process)));
    ((wall_ns > 0).then(|| all.all_ns as f64 / wall_ns as f64), of_mains.threads())
}

fn sum(ledger: &Ledger, pids: &[u32]) -> MainThreads {
    let mut sum = MainThreads::default();
    pids.iter().filter_map(|pid| ledger.processes.get(pid)).for_each(|process| sum += &of_process(process));
    sum
}

fn pids(ledger: &Ledger) -> Vec<u32> {
    let trainers: Vec<u32> = ledger.ranks.keys().copied().collect();
    match ledger.root {
        _ if sum(ledger, &trainers).wall_ns > 0 => trainers,
        None => ledger.processes.keys().copied().collect(),
        Some((root, _)) => match at_work(ledger, root, GENERATIONS) {
            pids if pids.is_empty() => vec![root],
            pids => pids,
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
