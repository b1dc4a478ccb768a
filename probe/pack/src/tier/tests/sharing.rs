//! Several processes, packs and states of one in a folder.

use super::*;
use rustix::fs::{FlockOperation, flock};

#[test]
fn threads_and_processes_fetch_each_chunk_once_and_keep_the_limit() {
    let mut memory = Memory::of(&chunks(0, 60));
    memory.delay = Duration::from_millis(2);
    let case = Case { dir: tempfile::tempdir().unwrap(), memory: Arc::new(memory) };
    let limit = 40 * BYTES;
    let open =
        || Tier::open(case.memory.clone(), &case.local(limit), [1; 32], sizes(&chunks(0, 60))).unwrap();
    // Two as of two processes, each with threads.
    let tiers = [open(), open()];
    std::thread::scope(|scope| {
        for thread in 0..6_u8 {
            let tier = &tiers[usize::from(thread) % 2];
            let case = &case;
            scope.spawn(move || {
                for step in 0..120_u32 {
                    let number = ((step * (2 * u32::from(thread) + 7)) % 60) as u8;
                    read_each(tier, [number, (number + 1) % 60]);
                    assert!(case.taken() <= limit);
                }
            });
        }
    });
    let mut fetched = [0; 60];
    for (number, range) in case.memory.ranges() {
        fetched[usize::from(number)] += u32::from(range == (0..BYTES));
    }
    assert!(fetched.iter().all(|times| *times <= 1), "{fetched:?}");
    assert_eq!((case.taken(), case.counted()), (limit, limit));
    assert!(case.folder().read_dir().unwrap().all(|entry| {
        let name = entry.unwrap().file_name().into_string().unwrap();
        !name.ends_with(".tmp")
    }));
}

#[test]
fn threads_of_one_process_wait_for_a_chunk_that_one_of_them_fetches() {
    let mut memory = Memory::of(&chunks(0, 10));
    memory.delay = Duration::from_millis(100);
    let case = Case { dir: tempfile::tempdir().unwrap(), memory: Arc::new(memory) };
    let tier = case.open(1, 1 << 20);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| read_each(&tier, [3]));
        }
    });
    assert_eq!(case.memory.ranges(), [(3, 0..BYTES)]);
}

#[test]
fn what_a_process_left_unfinished_is_taken_over_and_what_one_is_at_is_not() {
    let case = Case::new();
    let tier = case.open(1, 1 << 20);
    let name = |number| case.folder().join(files::unfinished_name(&files::state_of([1; 32]), id(number)));
    fs::write(name(3), b"half").unwrap();
    fs::write(name(4), b"half").unwrap();
    let held = fs::File::open(name(4)).unwrap();
    flock(&held, FlockOperation::NonBlockingLockExclusive).unwrap();
    read_each(&tier, [3, 4]);
    assert_eq!(case.memory.ranges(), [(3, 0..BYTES), (4, 100..200)], "nobody waits for another process");
    assert!(!name(3).exists() && name(4).exists() && case.file(1, 3).exists());
    fs::write(name(5), vec![0; 77]).unwrap();
    drop(case.open(1, 1 << 20));
    assert!(!name(5).exists());
    assert_eq!(case.counted(), BYTES + 4, "what another one fetches is counted");
    drop(held);
    read_each(&tier, [4]);
    assert!(!name(4).exists() && case.file(1, 4).exists());
}

#[test]
fn a_child_does_not_wait_for_what_its_parent_fetched() {
    let case = Case::new();
    let tier = case.open(1, 1 << 20);
    // As if another thread had been at it where the process was forked.
    tier.slots[3].fetched_by.store(std::process::id() + 1, Ordering::Release);
    let begun = Instant::now();
    read_each(&tier, [3]);
    assert_eq!(case.memory.ranges(), [(3, 0..BYTES)]);
    assert!(begun.elapsed() < LONGEST_WAIT);
}

/// Of chunks from `from` on, all of which are read.
fn fill(case: &Case, version: u8, from: u8, count: u8, limit: u64) -> Tier {
    let of = chunks(from, count);
    case.memory.objects.lock().unwrap().extend(of.iter().map(|(id, bytes)| (id.file_name(), bytes.clone())));
    let tier = Tier::open(case.memory.clone(), &case.local(limit), [version; 32], sizes(&of)).unwrap();
    read_each(&tier, from..from + count);
    tier
}

#[test]
fn other_packs_are_evicted_unless_they_are_in_use_and_the_oldest_first() {
    let case = Case::new();
    let limit = 30 * BYTES;
    drop(fill(&case, 1, 20, 10, limit));
    let used = fill(&case, 2, 40, 10, limit);
    drop(fill(&case, 3, 60, 10, limit));
    // Opened last.
    std::thread::sleep(Duration::from_millis(20));
    drop(fill(&case, 1, 20, 0, limit));
    let count = |version: u8| {
        let state = files::state_of([version; 32]);
        let is_of = |path: &&PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with(&state);
        case.files().iter().filter(is_of).count()
    };
    let four = fill(&case, 4, 80, 5, limit);
    assert_eq!([1, 2, 3, 4].map(count), [10, 10, 5, 5]);
    assert!(case.taken() <= limit);
    // All but what is in use.
    let five = fill(&case, 5, 100, 20, limit);
    assert_eq!([1, 2, 3, 4, 5].map(count), [0, 10, 0, 5, 15]);
    assert_eq!((case.taken(), case.counted()), (limit, limit));
    case.memory.asked();
    read_each(&used, 40..50);
    read_each(&four, 80..85);
    read_each(&five, 100..115);
    assert_eq!(case.memory.ranges(), []);
    let locks = case.folder().read_dir().unwrap();
    let locks =
        locks.filter(|entry| entry.as_ref().unwrap().file_name().to_str().unwrap().ends_with(".lock"));
    assert_eq!(locks.count(), 3, "of the states that are left");
}

#[test]
fn a_changed_pack_keeps_the_chunks_that_it_still_has() {
    let case = Case::new();
    drop(fill(&case, 1, 20, 10, 1 << 20));
    case.memory.asked();
    // Two are gone, and two have come.
    let tier = fill(&case, 2, 22, 10, 1 << 20);
    assert_eq!(case.memory.ranges(), [(30, 0..BYTES), (31, 0..BYTES)]);
    assert_eq!((case.taken(), case.counted()), (12 * BYTES, 12 * BYTES));
    drop(tier);
    // But not those that a process reads.
    let _older = fill(&case, 1, 20, 10, 1 << 20);
    assert_eq!(case.memory.ranges(), []);
    let _newer = fill(&case, 2, 22, 10, 1 << 20);
    assert_eq!(case.memory.ranges(), (22..30).map(|number| (number, 0..BYTES)).collect::<Vec<_>>());
    assert_eq!((case.taken(), case.counted()), (20 * BYTES, 20 * BYTES));
}

#[test]
fn a_limit_of_a_tenth_that_stays_free_is_the_file_systems() {
    let case = Case::new();
    let local = Local { limit: None, ..case.local(0) };
    let open = |all, free| {
        let medium = Box::new(faults::Faulty {
            space: Some(budget::Space { all, free }),
            ..faults::Faulty::default()
        });
        Tier::open_on(case.memory.clone(), &local, [1; 32], sizes(&chunks(0, 10)), medium).unwrap()
    };
    read_each(&open(100_000, 11_000), 0..5);
    assert_eq!(case.taken(), 5 * BYTES, "each leaves a tenth");
    read_each(&open(100_000, 10_999), 5..10);
    assert_eq!(case.taken(), 5 * BYTES);
    // Others have filled it.
    drop(open(100_000, 8_500));
    assert_eq!(case.taken(), 3 * BYTES);
}

#[test]
fn a_disk_that_is_full_before_the_limit_evicts_other_packs_as_well() {
    let case = Case::new();
    drop(fill(&case, 1, 20, 10, 1 << 20));
    // By its own word nothing is free, whatever is evicted.
    let medium =
        faults::Faulty { space: Some(budget::Space { all: 100_000, free: 0 }), ..faults::Faulty::default() };
    let of = sizes(&chunks(0, 10));
    let tier =
        Tier::open_on(case.memory.clone(), &case.local(1 << 20), [2; 32], of, Box::new(medium)).unwrap();
    read_each(&tier, 0..1);
    assert!(case.file(2, 0).exists(), "whether there is space the disk says");
    assert!(!case.file(1, 20).exists());
    assert_eq!(case.taken(), case.counted());
}
