//! Every interval of a task's life is seen, to its exact length, and named.

use crate::support::{Seen, Workload, file, kernel, main_kind};
use stallscope_abi::kernel::{Blocked, Record, Times};
use stallscope_ebpf::{Kernel, Options};
use std::path::Path;
use std::time::Duration;

/// Follows `workload` from before it begins to its end, checks that nothing is missing, and returns the totals
/// of its main thread without the wait for the word to begin.
fn totals(kernel: &mut Kernel, arguments: &[&str]) -> (Seen, Times) {
    let workload = Workload::spawn(arguments);
    let pid = workload.pid();
    let seen = Seen::of(kernel, workload);
    let main = seen.tasks.iter().find(|task| task.header.tid == pid).unwrap();
    seen.assert_complete(pid, main.header.time_ns);
    for child in seen.joined().filter(|task| task.header.tid == task.header.tgid) {
        seen.assert_complete(child.header.tid, child.header.time_ns);
    }
    let mut times = seen.exit(pid).total;
    // It waits for a line in a pipe; what it blocks in there is not the deed.
    if !matches!(arguments[0], "pipe" | "poll") {
        times.blocked_ns[Blocked::Pipe as usize] = 0;
    }
    (seen, times)
}

#[track_caller]
fn assert_blocks_in(arguments: &[&str], kind: Blocked) {
    let Some(mut kernel) = kernel(&Options::default()) else { return };
    let (_, times) = totals(&mut kernel, arguments);
    assert_eq!(main_kind(&times), kind, "{times:?}");
}

#[test]
fn sleeping() {
    assert_blocks_in(&["sleep"], Blocked::Sleep);
}

#[test]
fn an_internet_socket() {
    assert_blocks_in(&["tcp"], Blocked::Net);
}

#[test]
fn a_unix_socket() {
    assert_blocks_in(&["unix"], Blocked::Unix);
}

#[test]
fn a_futex() {
    assert_blocks_in(&["futex"], Blocked::Futex);
}

#[test]
fn a_futex_whose_waker_came_from_the_network() {
    let Some(mut kernel) = kernel(&Options::default()) else { return };
    // Whether it came from there itself, or was woken by one that did.
    for threads in ["1", "2"] {
        let (seen, times) = totals(&mut kernel, &["peer", threads]);
        let [plain_ns, from_net_ns] =
            [Blocked::Futex, Blocked::FutexNet].map(|kind| times.blocked_ns[kind as usize]);
        assert!(from_net_ns > plain_ns, "{threads}: {:?}", seen.exits().collect::<Vec<_>>());
    }
}

#[test]
fn a_futex_whose_waker_has_read_a_file_meanwhile() {
    let Some(mut kernel) = kernel(&Options::default()) else { return };
    let path = file("reader");
    // Whether it read itself, or was woken by one that did.
    for threads in ["1", "2"] {
        let (seen, times) = totals(&mut kernel, &["reader", threads, path.to_str().unwrap()]);
        let of = |kind: Blocked| times.blocked_ns[kind as usize];
        let reading_ns: u64 =
            seen.exits().map(|exit| exit.total.blocked_ns[Blocked::FileRead as usize]).sum();
        assert!(
            reading_ns > 0 && of(Blocked::FutexRead) > reading_ns / 2,
            "{reading_ns} of reading: {times:?}"
        );
        // The second sleep is for a thread that only sleeps.
        assert!(of(Blocked::Futex) > 50_000_000, "{times:?}");
    }
}

/// Nor does it matter whether the switches are traced in which the two of them get their CPUs again.
#[test]
fn a_futex_whose_waker_has_read_without_a_trace_of_it() {
    let Some(mut kernel) = kernel(&Options::default()) else { return };
    let path = file("reader-untraced");
    let mut found = Vec::new();
    // Where the reader had its CPU when the tracing ended, nobody knows what it slept in.
    for _ in 0..10 {
        let mut workload = Workload::spawn(&["reader", "1", path.to_str().unwrap()]);
        let pid = workload.pid();
        let mut seen = Seen { tasks: kernel.watch(pid).unwrap(), ..Seen::default() };
        workload.begin();
        std::thread::sleep(Duration::from_millis(2));
        kernel.trace_switches(false).unwrap();
        workload.wait();
        kernel.trace_switches(true).unwrap();
        seen.drain_until_exit(&mut kernel, pid);
        let blocked_ns = seen.exit(pid).total.blocked_ns;
        found.push((blocked_ns[Blocked::FutexRead as usize], blocked_ns[Blocked::Futex as usize]));
    }
    // Of the two sleeps only the first is for who reads.
    assert!(found.iter().any(|(reading_ns, _)| *reading_ns > 0), "{found:?}");
}

#[test]
fn a_lock_that_a_reader_gives_up_is_no_wait_for_what_it_reads() {
    let Some(mut kernel) = kernel(&Options::default()) else { return };
    let path = file("reader-lock");
    let (_, times) = totals(&mut kernel, &["reader-lock", "1", path.to_str().unwrap()]);
    assert_eq!(times.blocked_ns[Blocked::FutexRead as usize], 0, "{times:?}");
    assert_eq!(main_kind(&times), Blocked::Futex, "{times:?}");
}

#[test]
fn children() {
    assert_blocks_in(&["fork-at-once", "4"], Blocked::Child);
}

#[test]
fn reading_a_file_from_the_disk() {
    let path = file("disk-read");
    assert_blocks_in(&["read", "1", path.to_str().unwrap()], Blocked::FileRead);
}

#[test]
fn faulting_on_a_cold_mapped_file() {
    let path = file("cold-map");
    assert_blocks_in(&["fault", "1", path.to_str().unwrap()], Blocked::Fault);
}

#[test]
fn syncing_what_was_written() {
    let path = file("synced");
    assert_blocks_in(&["write-sync", "1", path.to_str().unwrap()], Blocked::Sync);
}

#[test]
fn a_pipe_that_another_process_of_the_job_fills_is_a_wait() {
    let Some(mut kernel) = kernel(&Options::default()) else { return };
    for deed in ["pipe", "poll"] {
        let (seen, times) = totals(&mut kernel, &[deed]);
        assert_eq!(main_kind(&times), Blocked::Pipe, "{deed}: {times:?}");
        let child = seen.joined().next().unwrap();
        let waits: Vec<_> = seen
            .records
            .iter()
            .filter_map(|record| match record {
                Record::Wait(wait) if wait.waker_tid == child.header.tid => Some(wait),
                _ => None,
            })
            .collect();
        assert_eq!(waits.len(), 1, "{deed}: {:?}", seen.records);
        assert_eq!(waits[0].blocked_in, Blocked::Pipe as u32);
        assert!(waits[0].start_ns < waits[0].header.time_ns);
    }
}

#[test]
fn burning_is_time_on_the_cpu() {
    let Some(mut kernel) = kernel(&Options::default()) else { return };
    let (_, times) = totals(&mut kernel, &["burn"]);
    let blocked_ns: u64 = times.blocked_ns.iter().sum();
    assert!(times.cpu_ns > blocked_ns, "{times:?}");
    assert_eq!(times.cpu_read_ns, 0, "unknown without system call hooks");
}

/// The scheduler's decision that a task has to go comes that much before the task leaves its CPU, at most.
const A_SWITCH_NS: u64 = 100_000;

/// A line of a file: nanoseconds on a CPU, nanoseconds on run queues, how often the task got a CPU.
fn schedstat(path: &Path) -> Vec<[u64; 3]> {
    let text = std::fs::read_to_string(path).unwrap();
    let numbers = |line: &str| line.split(' ').map(|number| number.parse().unwrap()).collect::<Vec<u64>>();
    text.lines().map(|line| numbers(line).try_into().unwrap()).collect()
}

/// The same of what came between the two lines of a file.
fn between(path: &Path) -> [u64; 3] {
    let [before, after] = schedstat(path)[..] else { panic!("two lines") };
    std::array::from_fn(|i| after[i] - before[i])
}

/// What the host has taken of all CPUs so far, which the scheduler leaves out of its sums: `steal` of /proc/stat.
fn stolen_ns() -> u64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap();
    let ticks = stat.split_whitespace().nth(8).map_or(0, |ticks| ticks.parse().unwrap());
    // SAFETY: plain call without memory.
    ticks * 1_000_000_000 / unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.cast_unsigned()
}

#[test]
fn being_preempted_is_runnable() {
    let Some(mut kernel) = kernel(&Options::default()) else { return };
    let path = file("compete");
    let (_, times) = totals(&mut kernel, &["compete", "3", path.to_str().unwrap()]);
    let blocked_ns: u64 = times.blocked_ns.iter().sum();
    assert!(times.runnable_ns > 0 && times.runnable_ns > blocked_ns / 2, "{times:?}");
    // A switch that was not traced would have a whole turn of the others count as this task's.
    let [_, delay_ns, turns] = between(&path);
    let least_ns = delay_ns.saturating_sub((turns + 1) * A_SWITCH_NS);
    assert!(times.runnable_ns >= least_ns, "{delay_ns} ns in {turns} turns by schedstat: {times:?}");
}

#[test]
fn time_without_a_cpu_before_it_is_watched_is_not_counted() {
    let Some(mut kernel) = kernel(&Options::default()) else { return };
    let path = file("competed");
    let mut workload = Workload::spawn(&["sleep-after-competing", "3", path.to_str().unwrap()]);
    let pid = workload.pid();
    let mut seen = Seen { tasks: kernel.watch(pid).unwrap(), ..Seen::default() };
    // It waits meanwhile: its first sleep is long enough for all that it was ever without a CPU.
    std::thread::sleep(Duration::from_millis(300));
    workload.begin();
    seen.drain_until_exit(&mut kernel, pid);
    workload.wait();
    let times = seen.exit(pid).total;
    let [_, delay_ns, _] = between(&path);
    assert!(times.runnable_ns < delay_ns / 2, "{delay_ns} ns by schedstat before: {times:?}");
}

/// Some hypervisors leave a CPU without tracepoints for a while: the scheduler's own sums say what came meanwhile.
#[test]
fn switches_that_are_not_traced_are_made_up_for() {
    const TURNS: u64 = 150;
    let Some(mut kernel) = kernel(&Options::default()) else { return };
    let path = file("untraced");
    let mut workload = Workload::spawn(&["works-and-naps", &TURNS.to_string(), path.to_str().unwrap()]);
    let pid = workload.pid();
    let mut seen = Seen { tasks: kernel.watch(pid).unwrap(), ..Seen::default() };
    let stolen_before_ns = stolen_ns();
    workload.begin();
    for turn in 0..40 {
        kernel.trace_switches(turn % 4 == 3).unwrap();
        std::thread::sleep(Duration::from_millis(7));
    }
    kernel.trace_switches(true).unwrap();
    seen.drain_until_exit(&mut kernel, pid);
    workload.wait();
    let stolen_ns = stolen_ns() - stolen_before_ns;
    let main = seen.tasks.iter().find(|task| task.header.tid == pid).unwrap();
    seen.assert_complete(pid, main.header.time_ns);
    let (times, [cpu_ns, delay_ns, _]) = (seen.exit(pid).total, between(&path));
    let slept_ns = times.blocked_ns[Blocked::Sleep as usize];
    // The scheduler brings its sums up to date by the tick; what came before and after the turns is no more than that.
    let tick_ns = 10_000_000;
    // On busy CPUs the order of runs and waits that nobody traced matters more: 10% was missing once.
    assert!(
        times.cpu_ns + tick_ns + cpu_ns / 5 > cpu_ns
            && times.cpu_ns < cpu_ns + stolen_ns + tick_ns + cpu_ns / 20,
        "{cpu_ns} ns of CPU by schedstat, {stolen_ns} ns stolen: {times:?}"
    );
    assert!(
        times.runnable_ns < delay_ns + stolen_ns + tick_ns + delay_ns / 20,
        "{delay_ns} ns without a CPU by schedstat, {stolen_ns} ns stolen: {times:?}"
    );
    assert!(slept_ns > TURNS * 3_000_000 * 9 / 10, "{times:?}");
}

/// A sleeper that is woken on an idle CPU waits for that CPU to leave its idle state, and for no task that runs there.
#[test]
fn a_wake_up_that_is_under_way_is_no_time_on_a_run_queue() {
    const NAPS: u64 = 1000;
    let Some(mut kernel) = kernel(&Options::default()) else { return };
    let path = file("schedstat");
    let (_, times) = totals(&mut kernel, &["naps", &NAPS.to_string(), path.to_str().unwrap()]);
    let delay_ns = schedstat(&path)[0][1];
    // Each queue that is left is booked by a clock read some hundred ns after the scheduler's own.
    assert!(times.runnable_ns < delay_ns + NAPS * 5000, "{delay_ns} ns by schedstat: {times:?}");
}

#[test]
fn cpu_time_inside_reads_is_known_with_system_call_hooks() {
    let Some(mut kernel) = kernel(&Options::default()) else { return };
    let path = file("warm-read");
    let arguments = ["read-warm", "4", path.to_str().unwrap()];
    kernel.set_syscalls(true).unwrap();
    let (_, with_hooks) = totals(&mut kernel, &arguments);
    assert!(with_hooks.cpu_read_ns > with_hooks.cpu_ns / 2, "{with_hooks:?}");
    kernel.set_syscalls(false).unwrap();
    let (_, without) = totals(&mut kernel, &arguments);
    assert_eq!(without.cpu_read_ns, 0);
}

#[test]
fn a_message_header_read_from_a_pipe_is_reported_with_system_call_hooks() {
    let Some(mut kernel) = kernel(&Options::default()) else { return };
    kernel.set_syscalls(true).unwrap();
    let (seen, _) = totals(&mut kernel, &["pipe"]);
    let reads = seen.records.iter().filter(|record| matches!(record, Record::BatchRead(_))).count();
    assert_eq!(reads, 1);
}

#[test]
fn the_leader_waking_a_thread_in_an_untimed_lock_is_a_wake() {
    let Some(mut kernel) = kernel(&Options::default()) else { return };
    let (seen, _) = totals(&mut kernel, &["hand-over", "5"]);
    let thread = seen.joined().next().unwrap().header.tid;
    let cpu_ns: Vec<u64> = seen
        .records
        .iter()
        .filter_map(|record| match record {
            Record::Wake(wake) if wake.woken_tid == thread => Some(wake.cpu_ns),
            _ => None,
        })
        .collect();
    // The last may find the thread awake, or about to join.
    assert!((4..=6).contains(&cpu_ns.len()), "{cpu_ns:?}");
    assert!(cpu_ns.is_sorted() && cpu_ns[0] > 0, "{cpu_ns:?}");
}

#[test]
fn being_woken_by_the_pin_memory_thread_is_a_wait() {
    let Some(mut kernel) = kernel(&Options::default()) else { return };
    let (seen, _) = totals(&mut kernel, &["pin"]);
    let pin = seen.joined().next().unwrap().header.tid;
    let renamed = seen.records.iter().any(
        |record| matches!(record, Record::TaskExec(task) if task.header.tid == pin && task.comm.starts_with(b"pt_data_pin\0")),
    );
    assert!(renamed, "its name is recorded");
    assert!(waits_for(&seen, pin) >= 1);
    assert!(seen.slices(pin).count() > 0, "it is watched itself");
}

#[test]
fn the_interpreters_lock_is_no_wait_for_the_pin_memory_thread() {
    let Some(mut kernel) = kernel(&Options::default()) else { return };
    let (seen, times) = totals(&mut kernel, &["pin-lock"]);
    let pin = seen.joined().next().unwrap().header.tid;
    assert_eq!(main_kind(&times), Blocked::Futex, "{times:?}");
    assert_eq!(waits_for(&seen, pin), 0);
}

fn waits_for(seen: &Seen, waker_tid: u32) -> usize {
    let is_wait = |record: &&Record| matches!(record, Record::Wait(wait) if wait.waker_tid == waker_tid && wait.blocked_in == Blocked::Futex as u32);
    seen.records.iter().filter(is_wait).count()
}

#[test]
fn siblings_on_a_cpu_are_added_up_at_their_leader() {
    let Some(mut kernel) = kernel(&Options::default()) else { return };
    let workload = Workload::spawn(&["threads", "3"]);
    let pid = workload.pid();
    let seen = Seen::of(&mut kernel, workload);
    let sibling_ns: u64 = seen.slices(pid).map(|slice| slice.sibling_cpu_ns).sum();
    let used_ns: u64 =
        seen.exits().filter(|e| e.header.tgid == pid && e.header.tid != pid).map(|e| e.total.cpu_ns).sum();
    // What a thread does after it has woken its leader for the last time may come too late.
    assert!(sibling_ns <= used_ns && sibling_ns > used_ns / 2, "{sibling_ns} of {used_ns}");
}
