//! The service with a model for a kernel.

use super::connections::HEAR_AGAIN_AFTER;
use crate::caller::Caller;
use crate::containers::Containers;
use crate::cpu_share::CpuShares;
use crate::service_bench::{ServiceBench, hello};
use proptest::prelude::*;
use stallscope_abi::kernel::MAX_TASKS;
use stallscope_wire::{Request, encode, frame::Tag};
use std::time::{Duration, Instant};

const MIRA: u32 = 4242;
const OTTO: u32 = 4343;

#[test]
fn who_asks_for_much_waits_and_others_do_not() {
    let mut bench = ServiceBench::default();
    let trees = 16;
    (1..=trees).for_each(|pid| bench.service.kernel.begin(pid, 0, MIRA));
    bench.service.kernel.begin(20, 0, OTTO);
    bench.service.kernel.a_watch_takes = Duration::from_millis(50);
    bench.connect(MIRA);
    bench.say(0, &hello(1, false));
    (2..=trees).for_each(|pid| bench.say(0, &encode(&Request::Watch(pid))));
    bench.connect(OTTO);
    bench.say(1, &hello(20, false));
    bench.turn(true);
    // Of 800 ms she may have 500 at once, and a fifth of the time meanwhile.
    let of_mira = bench.service.trees.keys().filter(|root| **root <= trees).count();
    assert!((1..16).contains(&of_mira), "{of_mira} trees at once");
    bench.read(1);
    assert!(bench.connections[1].answered, "he has not waited for all of hers");
    let begun = Instant::now();
    while bench.service.trees.len() < trees as usize + 1 {
        assert!(begun.elapsed() < Duration::from_secs(60), "{} trees", bench.service.trees.len());
        bench.turn(true);
    }
    bench.end();
}

#[test]
fn many_users_who_call_at_once_hold_up_no_round() {
    let mut bench = ServiceBench::default();
    let users = 16;
    bench.service.kernel.begin(1, 0, OTTO);
    bench.connect(OTTO);
    bench.say(0, &hello(1, false));
    bench.turn(true);
    bench.service.kernel.a_watch_takes = Duration::from_millis(20);
    for user in 1..=users {
        bench.service.kernel.begin(100 + user, 0, 5000 + user);
        bench.connect(5000 + user);
        bench.say(user as usize, &hello(100 + user, false));
    }
    // Each of them has time left for 25 such trees.
    bench.turn(true);
    let taken_up = bench.service.trees.len() - 1;
    assert!((1..users as usize).contains(&taken_up), "{taken_up} trees before the next round");
    let begun = Instant::now();
    while bench.service.trees.len() < users as usize + 1 {
        assert!(begun.elapsed() < Duration::from_secs(60), "{} trees", bench.service.trees.len());
        bench.turn(true);
    }
    bench.service.kernel.an_unwatch_takes = Duration::from_millis(20);
    (0..users).for_each(|_| bench.disconnect(1));
    bench.turn(true);
    assert!(bench.service.trees.len() > 1, "all trees were let go of before the next round");
    while bench.service.trees.len() > 1 {
        assert!(begun.elapsed() < Duration::from_secs(60), "{} trees", bench.service.trees.len());
        bench.turn(true);
    }
    bench.end();
}

#[test]
fn users_who_take_all_connections_that_they_may_leave_some_to_others() {
    let mut bench = ServiceBench::default();
    bench.service.places = 100;
    for (user, of_user) in [(MIRA, 50), (OTTO, 25), (5000, 13), (5001, 6)] {
        (0..70).for_each(|_| bench.connect(user));
        let found = bench.service.callers.iter().filter(|caller| caller.uid == user).count();
        assert_eq!(found, of_user, "user {user}");
    }
    (0..10).for_each(|_| bench.connect(0));
    assert_eq!(bench.service.callers.len(), 104, "root runs it");
    bench.end();
}

#[test]
fn root_of_a_container_watches_what_is_in_it_and_nothing_of_the_nodes() {
    let mut bench = ServiceBench::default();
    // The first is in the container, and the others are a daemon of the node's root and another user's job.
    for (connection, (pid, uid)) in [(1, 0), (2, 0), (4, MIRA)].into_iter().enumerate() {
        bench.service.kernel.begin(pid, 0, uid);
        bench.connect(0);
        bench.service.callers[connection].containers = Some(Containers::default());
        bench.say(connection, &hello(pid, true));
    }
    bench.turn(true);
    assert_eq!(bench.service.trees.keys().collect::<Vec<_>>(), [&1]);
    assert_eq!(bench.service.callers[0].syscalls, Some(false), "calls are hooked on all of the node");
    bench.end();
}

#[test]
fn users_who_read_nothing_leave_others_memory_for_what_waits() {
    let mut bench = ServiceBench::default();
    bench.service.backlog_bytes = 8 << 20;
    (0..16).for_each(|user| bench.connect(5000 + user));
    let frame = vec![0; 8 << 10];
    for _ in 0..300 {
        bench.service.share_backlogs();
        bench.service.callers.iter_mut().for_each(|caller| caller.push(Tag::Record, &frame));
    }
    let held: usize = bench.service.callers.iter().map(Caller::backlog_bytes).sum();
    assert!(held < 9 << 20, "{held} bytes");
    bench.connect(MIRA);
    bench.service.share_backlogs();
    let caller = bench.service.callers.last_mut().unwrap();
    (0..7).for_each(|_| caller.push(Tag::Record, &frame));
    assert_eq!(caller.dropped, 0);
    bench.end();
}

#[test]
fn who_leaves_many_trees_at_once_holds_up_nobody() {
    let mut bench = ServiceBench::default();
    let trees = 16;
    (1..=trees).for_each(|pid| bench.service.kernel.begin(pid, 0, MIRA));
    bench.service.kernel.begin(20, 0, OTTO);
    for (connection, (uid, pid)) in [(MIRA, 1), (OTTO, 20)].into_iter().enumerate() {
        bench.connect(uid);
        bench.say(connection, &hello(pid, false));
    }
    (2..=trees).for_each(|pid| bench.say(0, &encode(&Request::Watch(pid))));
    bench.turn(true);
    assert_eq!(bench.service.trees.len(), trees as usize + 1);
    bench.service.kernel.an_unwatch_takes = Duration::from_millis(50);
    // He has her place.
    bench.disconnect(0);
    bench.turn(true);
    let of_mira = bench.service.trees.len() - 1;
    assert!(of_mira > 0, "all trees were let go of in one turn");
    bench.service.kernel.work(20);
    bench.turn(true);
    assert!(bench.read(0) > 1, "he has not waited for all of hers");
    let begun = Instant::now();
    while bench.service.trees.len() > 1 {
        assert!(begun.elapsed() < Duration::from_secs(60), "{} trees", bench.service.trees.len());
        bench.turn(true);
    }
    bench.end();
}

#[test]
fn trees_within_one_whose_user_has_no_time_go_on() {
    let mut bench = ServiceBench::default();
    for (pid, parent, uid) in [(1, 0, MIRA), (2, 1, MIRA), (3, 0, MIRA)] {
        bench.service.kernel.begin(pid, parent, uid);
    }
    for (connection, (uid, pid)) in [(MIRA, 1), (MIRA, 3), (0, 2)].into_iter().enumerate() {
        bench.connect(uid);
        bench.say(connection, &hello(pid, false));
        bench.turn(true);
    }
    bench.service.shares.took(MIRA, Duration::from_secs(3600));
    bench.disconnect(0);
    for may_let_go in [false, true] {
        if may_let_go {
            bench.service.shares = CpuShares::default();
        }
        bench.turn(true);
        assert_eq!(bench.service.trees.contains_key(&1), !may_let_go, "as she has time for it");
        // The one that is last has taken its place.
        bench.read(0);
        bench.service.kernel.work(2);
        bench.turn(true);
        assert_eq!(bench.read(0), 1, "root's goes on");
    }
    bench.end();
}

#[test]
fn who_hangs_up_has_trees_taken_up_again_only_within_theirs() {
    let mut bench = ServiceBench::default();
    for (pid, parent, uid) in [(1, 0, MIRA), (2, 1, MIRA), (3, 0, MIRA), (4, 0, OTTO)] {
        bench.service.kernel.begin(pid, parent, uid);
    }
    for (connection, (uid, pid)) in [(MIRA, 1), (MIRA, 2), (MIRA, 3), (OTTO, 4)].into_iter().enumerate() {
        bench.connect(uid);
        bench.say(connection, &hello(pid, false));
        bench.turn(true);
    }
    let before = bench.service.kernel.watches;
    bench.disconnect(0);
    bench.turn(true);
    assert_eq!(bench.service.kernel.watches - before, 1, "the one that was a part of it");
    // The one that is last has taken its place.
    bench.service.kernel.work(2);
    bench.turn(true);
    assert!(bench.read(1) > 1, "and goes on");
    bench.end();
}

#[test]
fn who_may_not_watch_a_process_ends_nobodys_watch_of_it() {
    let mut bench = ServiceBench::default();
    bench.service.kernel.begin(1, 0, MIRA);
    bench.connect(0);
    bench.say(0, &hello(1, false));
    bench.turn(true);
    // It was another user's meanwhile, so that she may not know of it any more.
    [OTTO, MIRA].iter().for_each(|uid| bench.service.kernel.execute(1, *uid));
    bench.turn(true);
    bench.read(0);
    bench.connect(MIRA);
    bench.say(1, &hello(1, false));
    bench.turn(true);
    bench.read(0);
    bench.service.kernel.work(1);
    bench.turn(true);
    assert_eq!(bench.read(0), 1, "root's goes on");
    bench.end();
}

#[test]
fn processes_whose_ends_are_lost_take_no_more_and_more_memory() {
    let mut bench = ServiceBench::default();
    bench.service.kernel.begin(1, 0, MIRA);
    bench.connect(MIRA);
    bench.say(0, &hello(1, false));
    bench.turn(true);
    let pids: Vec<u32> = (2..2 * MAX_TASKS).collect();
    for at_once in pids.chunks(16) {
        at_once.iter().for_each(|pid| bench.service.kernel.begin(*pid, 1, MIRA));
        bench.turn(true);
        bench.service.kernel.fill_ring(1);
        at_once.iter().for_each(|pid| bench.service.kernel.exit(*pid));
        bench.turn(true);
        bench.read(0);
        assert!(bench.service.callers[0].processes() <= MAX_TASKS as usize);
    }
    (0..2).for_each(|_| bench.turn(true));
    bench.read(0);
    bench.service.kernel.work(1);
    bench.turn(true);
    assert_eq!(bench.read(0), 1, "the tree is followed still");
    bench.end();
}

#[test]
fn processes_whose_beginning_is_lost_are_followed_all_the_same() {
    let mut bench = ServiceBench::default();
    bench.service.kernel.begin(1, 0, MIRA);
    bench.connect(MIRA);
    bench.say(0, &hello(1, false));
    bench.turn(true);
    bench.service.kernel.fill_ring(1);
    for (pid, parent) in [(3, 1), (2, 3)] {
        bench.service.kernel.begin(pid, parent, MIRA);
    }
    bench.turn(true);
    bench.read(0);
    bench.service.kernel.work(2);
    bench.turn(true);
    assert_eq!(bench.read(0), 1, "what the grandchild does is sent");
    bench.end();
}

#[test]
fn processes_whose_end_is_lost_end_for_their_callers_all_the_same() {
    let mut bench = ServiceBench::default();
    for (pid, parent) in [(1, 0), (2, 1), (3, 1)] {
        bench.service.kernel.begin(pid, parent, MIRA);
    }
    bench.connect(MIRA);
    bench.say(0, &hello(1, false));
    bench.turn(true);
    bench.service.kernel.fill_ring(1);
    bench.service.kernel.exit(2);
    bench.service.kernel.exit(3);
    bench.turn(true);
    // One of their slots is another task's by then.
    bench.service.kernel.begin(4, 1, MIRA);
    (0..2).for_each(|_| bench.turn(true));
    bench.read(0);
    assert_eq!(bench.connections[0].ended, [2, 3].into());
    bench.service.kernel.exit(4);
    (0..2).for_each(|_| bench.turn(true));
    bench.read(0);
    assert_eq!(bench.connections[0].ended, [2, 3, 4].into());
    bench.end();
}

#[test]
fn a_tree_goes_on_where_one_within_it_is_let_go() {
    let mut bench = ServiceBench::default();
    for (pid, parent, uid) in [(1, 0, MIRA), (2, 1, MIRA), (3, 2, MIRA)] {
        bench.service.kernel.begin(pid, parent, uid);
    }
    for (connection, (uid, pid)) in [(MIRA, 2), (0, 1)].into_iter().enumerate() {
        bench.connect(uid);
        bench.say(connection, &hello(pid, false));
        bench.turn(true);
    }
    bench.disconnect(0);
    // What it lacked is sent in the next turn.
    (0..2).for_each(|_| bench.turn(true));
    bench.read(0);
    bench.service.kernel.work(3);
    bench.turn(true);
    assert_eq!(bench.read(0), 1, "what the inner one's task does is sent to root");
    bench.end();
}

#[test]
fn who_sends_byte_by_byte_is_read_now_and_then() {
    let mut bench = ServiceBench::default();
    bench.service.kernel.begin(1, 0, MIRA);
    bench.connect(MIRA);
    bench.say(0, &hello(1, false));
    bench.turn(false);
    let (begun, mut heard, mut times) = (Instant::now(), None, 0);
    while begun.elapsed() < 20 * HEAR_AGAIN_AFTER {
        bench.say(0, b" ");
        bench.service.hear();
        let now = bench.service.heard.get(&MIRA).copied();
        times += u32::from(now.is_some() && now != heard);
        heard = now;
    }
    let most = begun.elapsed().as_nanos() / HEAR_AGAIN_AFTER.as_nanos() + 1;
    assert!(0 < times && u128::from(times) <= most, "{times} of {most}");
    bench.end();
}

proptest! {
    /// What fuzzing does for longer, guided by coverage.
    #[test]
    fn whatever_happens_each_hears_of_their_own_and_nothing_is_left(
        deeds in prop::collection::vec(any::<u8>(), 0..1200)
    ) {
        ServiceBench::default().play(&deeds);
    }
}
