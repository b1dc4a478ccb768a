//! A job is followed through all that it starts, nothing is lost unseen, and nothing is left behind.

use std::collections::{HashMap, HashSet};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::support::{Seen, Workload, kernel};
use stallscope_abi::kernel::{Blocked, Lost, MAX_TASKS, Record, flags, state};
use stallscope_ebpf::{Error, Identity, Kernel, Options};

#[test]
fn a_thousand_forks_are_reported_and_their_slots_come_back() {
    // Fewer slots than forks: they have to be used again.
    let Some(mut kernel) = kernel(&Options { max_tasks: 200, ..Options::default() }) else { return };
    let workload = Workload::spawn(&["fork", "1000"]);
    let pid = workload.pid();
    let seen = Seen::of(&mut kernel, workload);
    let losses = kernel.losses().unwrap();
    let new_tasks = seen.joined().count() as u64;
    assert_eq!(new_tasks + losses[Lost::NoSlot as usize], 1000, "each fork is recorded or counted");
    let status: Vec<u32> =
        seen.exits().filter(|exit| exit.header.tgid != pid).map(|exit| exit.status).collect();
    assert!(status.iter().all(|&status| status == 3 << 8), "the exit status is recorded");
    assert_eq!(status.len() as u64, new_tasks);
    assert_eq!(losses[Lost::RingFull as usize], 0);
    assert!(new_tasks > 200, "slots were used again");
}

#[test]
fn more_tasks_than_slots_are_counted() {
    let Some(mut kernel) = kernel(&Options { max_tasks: 5, ..Options::default() }) else { return };
    let seen = Seen::of(&mut kernel, Workload::spawn(&["fork-at-once", "10"]));
    assert_eq!(seen.joined().count(), 4, "one slot is the parent's");
    assert_eq!(kernel.losses().unwrap()[Lost::NoSlot as usize], 6);

    let seen = Seen::of(&mut kernel, Workload::spawn(&["fork-at-once", "4"]));
    assert_eq!(seen.joined().count(), 4, "all slots came back");
}

#[test]
fn a_tree_of_more_processes_than_slots_is_no_ones_hindrance() {
    let Some(mut kernel) = kernel(&Options { max_tasks: 20, ..Options::default() }) else { return };
    let mut crowded = Workload::spawn(&["crowded", "60"]);
    let pid = crowded.pid();
    let tasks = kernel.watch(pid).unwrap();
    assert!(tasks.len() <= 20 && kernel.losses().unwrap()[Lost::NoSlot as usize] >= 41, "{tasks:?}");
    crowded.begin();
    crowded.wait();
    kernel.unwatch(pid).unwrap();
    let seen = Seen::of(&mut kernel, Workload::spawn(&["sleep"]));
    assert_eq!(seen.tasks.len(), 1);
}

#[test]
fn one_users_tasks_leave_slots_to_others() {
    let Some(mut kernel) = kernel(&Options { max_tasks: 20, ..Options::default() }) else { return };
    // As many as are still free, of which the parent has one: ten of twenty, then five of ten.
    let slots = [(4242, 10), (4343, 5)];
    for (uid, _) in slots {
        let mut workload = Workload::spawn_as(uid, &["fork-at-once", "12"]);
        kernel.watch(workload.pid()).unwrap();
        workload.begin();
        // Nothing is drained meanwhile, so that no slot comes back.
        workload.wait();
    }
    let mut new_tasks = HashMap::new();
    let count = |bytes: &[u8], of: Option<Identity>| {
        let new = matches!(Record::parse(bytes), Some(Record::TaskNew(_)));
        *new_tasks.entry(of.unwrap().uid).or_insert(0) += u64::from(new);
    };
    kernel.drain(count).unwrap();
    for (uid, slots) in slots {
        assert_eq!((new_tasks[&uid], kernel.refused(uid)), (slots - 1, 12 - (slots - 1)), "of {uid}");
    }
    assert_eq!(kernel.losses().unwrap()[Lost::UserSlots as usize], 3 + 8, "each is counted");
    assert_eq!(kernel.refused(0), 0, "and to its own user");
    // All came back: the same again finds the same.
    let seen = Seen::of(&mut kernel, Workload::spawn_as(4242, &["fork-at-once", "9"]));
    assert_eq!((seen.joined().count(), kernel.refused(4242)), (9, 3));
}

#[test]
fn tasks_that_exist_and_find_no_slot_are_counted_once() {
    let Some(mut kernel) = kernel(&Options { max_tasks: 6, ..Options::default() }) else { return };
    let sleepers = "for one in 1 2 3 4 5 6 7 8; do sleep 1000 & done; wait";
    let mut shell =
        Command::new("sh").args(["-c", sleepers]).uid(4242).gid(4242).process_group(0).spawn().unwrap();
    let pid = shell.id();
    let children = format!("/proc/{pid}/task/{pid}/children");
    while std::fs::read_to_string(&children).unwrap().split_whitespace().count() < 8 {
        std::thread::yield_now();
    }
    let found = kernel.watch(pid).unwrap();
    let refused = kernel.refused(4242);
    Command::new("kill").args(["-KILL", "--", &format!("-{pid}")]).status().unwrap();
    shell.wait().unwrap();
    assert_eq!((found.len(), refused), (3, 6), "{found:?}");
}

#[test]
fn what_a_full_ring_loses_is_counted_and_its_slots_come_back() {
    let Some(mut kernel) = kernel(&Options { max_tasks: 200, ring_bytes: 4096, ..Options::default() }) else {
        return;
    };
    let mut workload = Workload::spawn(&["fork", "150"]);
    let pid = workload.pid();
    kernel.watch(pid).unwrap();
    workload.begin();
    workload.wait();
    let losses = kernel.losses().unwrap();
    assert!(losses[Lost::RingFull as usize] > 0 && losses[Lost::NoSlot as usize] == 0, "{losses:?}");
    kernel.drain(|_, _| {}).unwrap();
    kernel.unwatch(pid).unwrap();

    let mut workload = Workload::spawn(&["fork", "150"]);
    let pid = workload.pid();
    kernel.watch(pid).unwrap();
    workload.begin();
    workload.wait();
    assert_eq!(kernel.losses().unwrap()[Lost::NoSlot as usize], 0, "all slots came back");
    kernel.unwatch(pid).unwrap();
}

#[test]
fn one_users_records_leave_the_ring_to_others() {
    let options = Options { ring_bytes: 131_072, user_bytes: 32_768, ..Options::default() };
    let Some(mut kernel) = kernel(&options) else { return };
    for (uid, deed, count) in [(4242, "rename", "3000"), (4343, "fork", "10")] {
        let mut workload = Workload::spawn_as(uid, &[deed, count]);
        kernel.watch(workload.pid()).unwrap();
        workload.begin();
        workload.wait();
    }
    let losses = kernel.losses().unwrap();
    assert_eq!(losses[Lost::RingFull as usize], 0, "{losses:?}");
    assert_eq!(losses[Lost::UserRing as usize], kernel.unsent(4242), "counted, and to its own user");
    assert!(kernel.unsent(4242) > 1000 && kernel.unsent(4343) == 0, "{losses:?}");
    let mut joined = 0;
    let count = |bytes: &[u8], of: Option<Identity>| {
        let new = matches!(Record::parse(bytes), Some(Record::TaskNew(_)));
        joined += u32::from(new && of.unwrap().uid == 4343);
    };
    kernel.drain(count).unwrap();
    assert_eq!(joined, 10, "each of the other's");
}

#[test]
fn what_a_users_tasks_do_keeps_out_none_of_their_beginnings_and_ends() {
    let Some(mut kernel) = kernel(&Options { ring_bytes: 65536, user_bytes: 8192, ..Options::default() })
    else {
        return;
    };
    let mut workload = Workload::spawn_as(4242, &["rename-and-fork", "3"]);
    let pid = workload.pid();
    kernel.watch(pid).unwrap();
    workload.begin();
    workload.wait();
    assert!(kernel.unsent(4242) > 1000);
    let (mut begun, mut ended) = (0, 0);
    let count = |bytes: &[u8], _: Option<Identity>| match Record::parse(bytes) {
        Some(Record::TaskNew(_)) => begun += 1,
        Some(Record::TaskExit(_)) => ended += 1,
        _ => {}
    };
    kernel.drain(count).unwrap();
    assert_eq!((begun, ended), (3, 4), "three children, and their parent's end");
}

#[test]
fn the_ring_calls_when_it_has_filled_and_not_for_single_records() {
    let Some(mut kernel) = kernel(&Options { ring_bytes: 65536, ..Options::default() }) else { return };
    let calls = |kernel: &Kernel| {
        let mut polled = libc::pollfd { fd: kernel.fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor, which lives through the call.
        unsafe { libc::poll(&raw mut polled, 1, 0) == 1 }
    };
    for (forks, filled) in [("3", false), ("300", true), ("3", false)] {
        let mut workload = Workload::spawn(&["fork", forks]);
        let pid = workload.pid();
        kernel.watch(pid).unwrap();
        workload.begin();
        workload.wait();
        assert_eq!(calls(&kernel), filled, "after {forks} forks");
        assert!(kernel.drain(|_, _| {}).unwrap() > 3);
        assert!(!calls(&kernel), "drained after {forks} forks");
        kernel.unwatch(pid).unwrap();
    }
}

#[test]
fn tasks_that_exist_are_found_with_their_threads_and_children() {
    let Some(mut kernel) = kernel(&Options::default()) else { return };
    let mut workload = Workload::spawn(&["pipe"]);
    let pid = workload.pid();
    workload.begin();
    // Until the child is there; it sleeps for a while.
    let children = format!("/proc/{pid}/task/{pid}/children");
    while std::fs::read_to_string(&children).unwrap().is_empty() {
        std::thread::yield_now();
    }
    let tasks = kernel.watch(pid).unwrap();
    assert_eq!(tasks.len(), 2, "{tasks:?}");
    assert!(tasks.iter().all(|task| task.flags & (flags::AT_ATTACH | flags::LEADER) != 0));
    assert_eq!(tasks.iter().filter(|task| task.ppid == pid).count(), 1);
    assert!(tasks.iter().all(|task| kernel.root(task.header.slot) == Some(pid)));
    let mut seen = Seen { tasks, ..Seen::default() };
    seen.drain_until_exit(&mut kernel, pid);
    for task in &seen.tasks {
        seen.assert_complete(task.header.tid, task.header.time_ns);
    }
    workload.wait();
}

#[test]
fn threads_are_followed_and_exec_keeps_the_account() {
    let Some(mut kernel) = kernel(&Options::default()) else { return };
    let workload = Workload::spawn(&["threads", "5"]);
    let pid = workload.pid();
    let seen = Seen::of(&mut kernel, workload);
    let threads: HashSet<u32> = seen.joined().map(|task| task.header.tid).collect();
    assert_eq!(threads.len(), 5);
    assert!(seen.joined().all(|task| task.header.tgid == pid && task.flags & flags::LEADER == 0));
    assert!(threads.iter().all(|&tid| seen.slices(tid).count() == 0), "threads are not watched");

    let mut workload = Workload::spawn(&["exec"]);
    let pid = workload.pid();
    let mut seen = Seen { tasks: kernel.watch(pid).unwrap(), ..Seen::default() };
    workload.begin();
    seen.drain_until_exit(&mut kernel, pid);
    workload.wait();
    let execs = seen.records.iter().filter(|record| matches!(record, Record::TaskExec(_))).count();
    assert!(execs >= 1);
    seen.assert_complete(pid, seen.tasks[0].header.time_ns);
}

#[test]
fn a_thread_that_executes_a_program_becomes_the_leader() {
    let Some(mut kernel) = kernel(&Options::default()) else { return };
    let mut workload = Workload::spawn(&["exec-in-thread"]);
    let pid = workload.pid();
    let mut seen = Seen { tasks: kernel.watch(pid).unwrap(), ..Seen::default() };
    workload.begin();
    workload.wait();
    seen.drain_until_exit(&mut kernel, pid);
    let thread = seen.joined().next().unwrap().header.slot;
    let leads = seen.records.iter().any(|record| {
        matches!(record, Record::TaskExec(task)
            if task.header.slot == thread && task.header.tid == pid && task.flags & flags::LEADER != 0)
    });
    assert!(leads, "{:?}", seen.records);
    // The old leader, and the thread in its place.
    assert_eq!(seen.exits().filter(|exit| exit.header.tid == pid).count(), 2);
}

#[test]
fn a_slot_tells_what_its_task_does_right_now() {
    let Some(mut kernel) = kernel(&Options::default()) else { return };
    let mut workload = Workload::spawn(&["sleep"]);
    let pid = workload.pid();
    let tasks = kernel.watch(pid).unwrap();
    let number = tasks[0].header.slot;
    // It may be on its way to wait for a line.
    while kernel.slot(number).unwrap().state != state::BLOCKED {
        std::thread::yield_now();
    }
    let slot = kernel.slot(number).unwrap();
    assert_eq!((slot.tid, slot.tgid, slot.blocked_in), (pid, pid, Blocked::Pipe as u8));
    assert!(kernel.slot(MAX_TASKS).is_none());
    workload.begin();
    workload.wait();
    let slot = kernel.slot(number).unwrap();
    assert_eq!(slot.state, state::EXITED);
    assert!(slot.total.cpu_ns > 0);
    kernel.unwatch(pid).unwrap();
}

#[test]
fn processes_that_are_not_there_or_not_watched_are_named() {
    let Some(mut kernel) = kernel(&Options::default()) else { return };
    let gone = Workload::spawn(&["sleep"]);
    let pid = gone.pid();
    let mut gone = gone;
    gone.begin();
    gone.wait();
    assert!(matches!(kernel.watch(pid), Err(Error::NoProcess(p)) if p == pid));
    assert!(matches!(kernel.unwatch(pid), Err(Error::NotWatched(p)) if p == pid));

    // A process that has ended and waits for its parent has a number, and nothing to watch.
    let mut zombie = Command::new("true").spawn().unwrap();
    let pid = zombie.id();
    while !std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains(") Z ") {
        std::thread::yield_now();
    }
    assert!(matches!(kernel.watch(pid), Err(Error::ProcessGone(p)) if p == pid));
    assert!(kernel.watched().next().is_none());
    zombie.wait().unwrap();
}
