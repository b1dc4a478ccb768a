//! How single batches were made: what a worker did for each, and who was at work beside it.

use crate::stage::{Does, MS, Stage, TRAINER, WORKER, slice, slot};
use stallscope_abi::kernel::{Blocked, Record};
use stallscope_abi::lane;
use stallscope_ledger::ProcessKind;
use stallscope_model::BatchService;

const OTHER: u32 = 102;

fn two_workers() -> Stage {
    let mut stage = Stage::new();
    stage.greet(OTHER, TRAINER, ProcessKind::Worker, 0, 1);
    stage
}

fn service(stage: &mut Stage) -> BatchService {
    let services = stage.ledger.services();
    let [service] = services.as_slice() else { panic!("{services:#?}") };
    service.clone()
}

#[test]
fn a_batchs_time_is_cut_by_sample_with_who_read_beside_it() {
    let mut stage = two_workers();
    stage.does(
        WORKER,
        0,
        &[
            (20, Does::In(Blocked::Pipe)),
            (40, Does::In(Blocked::FileRead)),
            (30, Does::CpuReading(10)),
            (10, Does::Runnable),
            (60, Does::In(Blocked::Pipe)),
        ],
    );
    stage.does(OTHER, 0, &[(40, Does::In(Blocked::FileRead)), (120, Does::In(Blocked::Pipe))]);
    stage.sample(WORKER, 20, 99, 0);
    stage.batch(WORKER, 20, 100, 0);
    stage.wait(0, 110, 0);
    stage.advance(2000);
    let service = service(&mut stage);
    assert_eq!((service.start_ns, service.ready_ns, service.samples), (20 * MS, 100 * MS, 1));
    assert_eq!((service.fetch_ns, service.cpu_ns, service.runnable_ns), (40 * MS, 30 * MS, 10 * MS));
    // For half of its reading the other one read too; that one worked for a quarter of the whole.
    assert!((service.readers - 1.5).abs() < 0.01, "{service:?}");
    assert!((service.makers - 1.25).abs() < 0.01, "{service:?}");
    assert_eq!(service.read_bytes, Some(0));
    assert!(stage.ledger.services().is_empty());
}

#[test]
fn bytes_are_those_read_meanwhile() {
    let mut stage = Stage::new();
    for at in 0..10 {
        let mut read = slice(WORKER, at * 10, at * 10 + 10, Does::In(Blocked::FileRead));
        read.read_bytes = 1000 * at;
        stage.ledger.kernel(&Record::Slice(read));
    }
    stage.batch(WORKER, 20, 50, 0);
    stage.advance(2000);
    stage.finish(2000);
    assert_eq!(service(&mut stage).read_bytes, Some(2000 + 3000 + 4000));
}

/// The batch that the first of two workers makes while both read 4 MB; of the bytes that the kernel counts each has so many.
fn read_beside(counted: [u64; 2]) -> Option<u64> {
    let mut stage = two_workers();
    for at in 0..100 {
        for (worker, counted) in [WORKER, OTHER].into_iter().zip(counted) {
            let mut read = slice(worker, at * 10, at * 10 + 10, Does::In(Blocked::FileRead));
            (read.rchar, read.read_bytes) = (40_000, counted / 100);
            stage.ledger.kernel(&Record::Slice(read));
        }
    }
    stage.batch(WORKER, 0, 1000, 0);
    stage.advance(3000);
    stage.finish(3000);
    service(&mut stage).read_bytes
}

/// A storage limit of 0.07 MB/s was named where a file system (FUSE) counted next to nothing of what it gave.
#[test]
fn bytes_of_storage_that_counts_next_to_none_are_not_known() {
    assert_eq!(read_beside([70_000, 0]), None);
    assert_eq!(read_beside([4_000_000, 4_000_000]), Some(4_000_000));
}

#[test]
fn what_a_neighbour_has_read_ahead_for_both_is_counted_with_the_neighbour() {
    assert_eq!(read_beside([0, 8_000_000]), Some(0));
    assert_eq!(read_beside([8_000_000, 0]), Some(8_000_000));
}

#[test]
fn a_long_batch_is_remembered_while_the_trainer_goes_on() {
    let mut stage = two_workers();
    // The other worker's batches keep the trainer going; this one's takes 8 seconds.
    for second in 0..10u64 {
        stage.did(TRAINER, second * 1000, second * 1000 + 1000, Does::Cpu);
        stage.did(OTHER, second * 1000, second * 1000 + 1000, Does::Cpu);
        if second < 8 {
            stage.did(WORKER, second * 1000, second * 1000 + 1000, Does::In(Blocked::Net));
        } else {
            stage.did(WORKER, second * 1000, second * 1000 + 1000, Does::In(Blocked::Pipe));
        }
        stage.batch(OTHER, second * 1000, second * 1000 + 900, second);
        stage.wait_for(
            TRAINER,
            0,
            OTHER,
            second * 1000 + 900,
            second * 1000 + 950,
            second,
            u64::from(second == 0),
        );
        if second == 8 {
            stage.batch(WORKER, 0, 8000, 99);
        }
        stage.advance(second * 1000 + 1000);
    }
    stage.finish(12_000);
    let long: Vec<BatchService> = stage
        .ledger
        .services()
        .into_iter()
        .filter(|service| service.start_ns == 0 && service.fetch_ns > 0)
        .collect();
    assert_eq!(long.len(), 1);
    assert_eq!(long[0].fetch_ns, 8000 * MS);
}

/// The uses of a batch are reported before it, and those of the next one after it.
#[test]
fn what_a_cache_did_not_have_of_a_batch_is_known() {
    let mut stage = Stage::new();
    stage.did(WORKER, 0, 100, Does::Cpu);
    let uses = |misses| lane::CacheUses {
        loader: 0,
        prefetched: 0,
        hits: 5,
        substitutions: 0,
        misses,
        late: 0,
        pool_bytes: 0,
        source_bytes: 0,
    };
    for (misses, start, ready) in [(3, 0, 40), (0, 40, 80)] {
        stage.lane(WORKER, uses(misses).encode((ready - 1) * MS));
        stage.batch(WORKER, start, ready, 0);
    }
    stage.batch(WORKER, 80, 100, 0);
    stage.finish(2000);
    let missed: Vec<Option<u32>> = stage.ledger.services().iter().map(|made| made.missed).collect();
    assert_eq!(missed, [Some(3), Some(0), None]);
}

#[test]
fn what_nobody_saw_is_not_kept() {
    let mut stage = Stage::new();
    stage.did(WORKER, 60, 100, Does::Cpu);
    stage.batch(WORKER, 0, 100, 0);
    stage.advance(5000);
    assert!(stage.ledger.services().is_empty());
}

#[test]
fn a_reader_that_is_still_blocked_counts() {
    let mut stage = two_workers();
    stage.did(WORKER, 0, 80, Does::In(Blocked::FileRead));
    let mut blocked = slot(OTHER, 0, Does::In(Blocked::FileRead));
    blocked.ppid = TRAINER;
    stage.ledger.open_slot(&blocked, 100 * MS);
    stage.batch(WORKER, 0, 80, 0);
    stage.finish(100);
    assert!((service(&mut stage).readers - 2.0).abs() < 0.01);
}

/// At the end of each epoch workers are gone before anybody looks at the last batches.
#[test]
fn a_reader_that_is_gone_by_now_counts() {
    let mut stage = two_workers();
    stage.did(WORKER, 0, 80, Does::In(Blocked::FileRead));
    stage.did(OTHER, 0, 90, Does::In(Blocked::FileRead));
    stage.batch(WORKER, 0, 80, 0);
    stage.ledger.gone(OTHER, 95 * MS);
    stage.advance(100);
    stage.advance(3000);
    stage.finish(4000);
    assert!((service(&mut stage).readers - 2.0).abs() < 0.01);
}

/// And one that is forgotten is not one that did not read.
#[test]
fn who_read_beside_a_batch_is_not_guessed() {
    let mut stage = two_workers();
    stage.did(WORKER, 0, 80, Does::In(Blocked::FileRead));
    stage.did(OTHER, 0, 5, Does::Cpu);
    stage.did(OTHER, 79, 90, Does::Cpu);
    stage.batch(WORKER, 0, 80, 0);
    stage.finish(5000);
    assert!(stage.ledger.services().is_empty());
}

#[test]
fn a_trainer_without_workers_makes_its_batches_itself() {
    let mut stage = Stage::empty();
    stage.greet(TRAINER, 1, ProcessKind::Trainer, 0, 1);
    stage.does(TRAINER, 0, &[(30, Does::In(Blocked::FileRead)), (20, Does::Cpu)]);
    stage.batch(TRAINER, 0, 50, 0);
    stage.wait_for(TRAINER, 0, TRAINER, 0, 50, 0, 0);
    stage.finish(100);
    let service = service(&mut stage);
    assert_eq!((service.fetch_ns, service.cpu_ns, service.makers), (30 * MS, 20 * MS, 1.0));
}

#[test]
fn however_many_there_are_no_more_than_twenty_a_second_are_looked_at() {
    let mut stage = Stage::new();
    for at in 0..6000u64 {
        stage.did(WORKER, at, at + 1, Does::Cpu);
        stage.batch(WORKER, at, at + 1, at);
        if at % 100 == 99 {
            stage.advance(at + 1);
        }
    }
    stage.finish(8000);
    let services = stage.ledger.services();
    for second in 0..6 {
        let of = services.iter().filter(|service| service.ready_ns / (1000 * MS) == second).count();
        assert!(of <= 20, "{of} in second {second}");
        // From the second second on it is known how many there are.
        assert!(second == 0 || of > 3, "{of} in second {second}");
    }
}

/// Two workers, each sample of the first takes 10 ms alone and, where `shared`, 20 beside the other's reading.
fn effect_ns(shared: bool) -> f64 {
    let mut stage = two_workers();
    let mut at = 0;
    for sample in 0..8 {
        let beside = sample % 2 == 1;
        let length = if shared && beside { 20 } else { 10 };
        stage.did(WORKER, at, at + length, Does::In(Blocked::FileRead));
        let other = if beside { Blocked::FileRead } else { Blocked::Pipe };
        stage.did(OTHER, at, at + length, Does::In(other));
        stage.sample(WORKER, at, at + length, 0);
        at += length;
    }
    stage.batch(WORKER, 0, at, 0);
    stage.finish(2000);
    let service = service(&mut stage);
    assert_eq!(service.reads, 8);
    service.readers_effect_ns / service.readers_spread
}

#[test]
fn samples_tell_whether_readers_hold_each_other_up() {
    assert!(effect_ns(false).abs() < 1.0);
    // Eight samples that each take 10 ms longer for one reader more.
    assert!((effect_ns(true) - 80e6).abs() < 1.0);
}

/// One is served after the other: a reader that comes while a sample is read makes it wait no longer.
#[test]
fn those_there_before_are_distinguished_from_those_that_came_later() {
    let mut stage = two_workers();
    let mut at = 0;
    for sample in 0..8 {
        let waits = sample % 2 == 1;
        let length = if waits { 20 } else { 10 };
        stage.did(WORKER, at, at + length, Does::In(Blocked::FileRead));
        // Before it, or for the last 9 of 10 ms.
        let (first, then) = match waits {
            true => (Blocked::FileRead, Blocked::FileRead),
            false => (Blocked::Pipe, Blocked::FileRead),
        };
        stage.did(OTHER, at, at + 1, Does::In(first));
        stage.did(OTHER, at + 1, at + length, Does::In(then));
        stage.sample(WORKER, at, at + length, 0);
        at += length;
    }
    stage.batch(WORKER, 0, at, 0);
    stage.finish(2000);
    let service = service(&mut stage);
    assert!(service.readers_spread < 0.03, "{service:?}");
    assert!((service.ahead_effect_ns / service.ahead_spread - 80e6).abs() < 1.0, "{service:?}");
}

#[test]
fn slow_batches_are_kept_each_and_stand_for_themselves() {
    let mut stage = Stage::new();
    let mut at = 0;
    let mut slow = 0;
    for index in 0..2000u64 {
        let length = if index % 400 == 399 { 50 } else { 1 };
        slow += u64::from(length == 50);
        stage.did(WORKER, at, at + length, Does::Cpu);
        stage.batch(WORKER, at, at + length, index);
        at += length;
        if index % 50 == 49 {
            stage.advance(at);
        }
    }
    stage.finish(at + 2000);
    let services = stage.ledger.services();
    let reported: Vec<&BatchService> =
        services.iter().filter(|service| service.ready_ns - service.start_ns == 50 * MS).collect();
    assert_eq!(reported.len() as u64, slow);
    assert!(reported.iter().all(|service| service.weight == 1.0), "{reported:?}");
    let others = services.iter().filter(|service| service.ready_ns - service.start_ns == MS);
    assert!(others.clone().any(|service| service.weight > 10.0));
    // Together they stand for about as many as there were.
    let stands_for: f64 = services.iter().map(|service| service.weight).sum();
    assert!((1000.0..4000.0).contains(&stands_for), "{stands_for}");
}
