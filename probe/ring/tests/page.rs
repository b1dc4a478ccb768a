//! A process's knobs, turned from another one.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use proptest::prelude::*;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use stallscope_ring::{Answer, CollectorSide, Error, JobSide, RequestNumber, SLOTS, Standing};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

const HEADER_BYTES: usize = 64;
const PAGE_BYTES: usize = HEADER_BYTES + SLOTS as usize * 32;

fn pair() -> (JobSide, CollectorSide) {
    let (job, fd) = JobSide::create().unwrap();
    (job, CollectorSide::open(&fd).unwrap())
}

fn memfd(bytes: &[u8], seals: SealFlags) -> OwnedFd {
    let file = File::from(memfd_create("hostile", MemfdFlags::ALLOW_SEALING).unwrap());
    file.write_all_at(bytes, 0).unwrap();
    fcntl_add_seals(&file, seals).unwrap();
    file.into()
}

fn sealed(bytes: &[u8]) -> OwnedFd {
    memfd(bytes, SealFlags::SHRINK | SealFlags::GROW)
}

fn good() -> Vec<u8> {
    let (_job, fd) = JobSide::create().unwrap();
    let mut bytes = vec![0; PAGE_BYTES];
    File::from(fd).read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

#[test]
fn a_request_arrives_and_its_answer_returns() {
    let (job, mut collector) = pair();
    let none = RequestNumber::none(3);
    job.answer(5, none, Answer::Own, 4);
    assert_eq!(collector.standing(5).of(3), Some((4, none, Answer::Own)));
    let (before, first) = (job.turned(), none.next());
    collector.ask(5, first, 32);
    assert_ne!(job.turned(), before);
    assert_eq!(job.request(5), (first, 32));
    job.answer(5, first, Answer::Applied, 32);
    assert_eq!(collector.standing(5), Standing { value: 32, answered: Some((first, Answer::Applied)) });
    // Of another knob that had the slot before, or will have it, it says nothing.
    assert_eq!(collector.standing(5).of(4), None);
    assert!(!job.request(5).0.same_knob(RequestNumber::none(4)));
}

#[test]
fn a_later_collector_finds_what_was_asked_and_continues_the_count() {
    let (job, fd) = JobSide::create().unwrap();
    let number = RequestNumber::none(1).next();
    let turned = {
        let mut first = CollectorSide::open(&fd).unwrap();
        first.ask(0, number, 9);
        job.turned()
    };
    job.answer(0, number, Answer::Refused, 2);
    let mut second = CollectorSide::open(&fd).unwrap();
    assert_eq!(second.requested(0), (number, 9));
    assert_eq!(second.standing(0).of(1), Some((2, number, Answer::Refused)));
    assert_eq!(job.turned(), turned, "who only looks does not ring");
    second.ask(0, number.next(), 10);
    assert_ne!(job.turned(), turned);
    assert_eq!(job.request(0), (number.next(), 10));
}

#[test]
fn a_copy_says_the_same_and_takes_requests_of_its_own() {
    let (job, mut collector) = pair();
    let number = RequestNumber::none(1).next();
    collector.ask(63, number, 7);
    job.answer(63, number, Answer::Pending, 4);
    let (copy, fd) = job.copy().unwrap();
    assert_eq!((copy.turned(), copy.request(63)), (job.turned(), job.request(63)));
    let mut later = CollectorSide::open(&fd).unwrap();
    assert_eq!(later.standing(63), collector.standing(63));
    later.ask(63, number.next(), 8);
    assert_eq!(job.request(63), (number, 7));
    assert_ne!(copy.turned(), job.turned());
}

#[test]
fn numbers_of_a_knob_go_on_for_ever_and_never_look_like_none() {
    let mut number = RequestNumber::none(u32::MAX);
    assert!(!number.is_some());
    for _ in 0..10 {
        let next = number.next();
        assert!(next.is_some() && next != number && next.same_knob(number));
        number = next;
    }
}

#[test]
fn under_a_storm_of_requests_the_last_one_comes_into_force() {
    const REQUESTS: u64 = 100_000;
    let (job, mut collector) = pair();
    let done = AtomicBool::new(false);
    let none = RequestNumber::none(9);
    let last = std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let mut number = none;
            for value in 1..=REQUESTS {
                number = number.next();
                collector.ask(1, number, value);
                if let Some((in_force, answered, Answer::Applied)) = collector.standing(1).of(9) {
                    // The count of a request is its value here.
                    assert!(
                        in_force >= answered.word() & u64::from(u32::MAX),
                        "answered before it was in force"
                    );
                }
            }
            done.store(true, Ordering::Release);
            number
        });
        let (mut seen, mut in_force) = (0, 0);
        loop {
            let over = done.load(Ordering::Acquire);
            if job.turned() != seen {
                seen = job.turned();
                let (number, value) = job.request(1);
                assert!(value >= in_force, "an old value came back");
                in_force = value;
                job.answer(1, number, Answer::Applied, value);
            }
            if over {
                break;
            }
        }
        asking.join().unwrap()
    });
    assert_eq!(collector.standing(1).of(9), Some((REQUESTS, last, Answer::Applied)));
}

#[test]
fn descriptors_that_are_no_page_are_refused() {
    assert!(CollectorSide::open(&sealed(&good())).is_ok());
    let (_writer, lane) = stallscope_ring::Writer::create(4).unwrap();
    let mut other_layout = good();
    other_layout[8] += 1;
    for fd in [
        memfd(&good(), SealFlags::GROW),
        sealed(&good()[..100]),
        sealed(&[good(), vec![0; 8]].concat()),
        sealed(&[0; PAGE_BYTES]),
        sealed(&other_layout),
        File::open("/proc/self/exe").unwrap().into(),
        rustix::pipe::pipe().unwrap().0,
        lane,
    ] {
        assert!(matches!(CollectorSide::open(&fd), Err(Error::NotAPage(_))));
    }
    let unwritable = memfd(&good(), SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE);
    assert!(matches!(CollectorSide::open(&unwritable), Err(Error::System { call: "mmap", .. })));
}

#[test]
fn a_slot_that_no_page_has_says_and_does_nothing() {
    let (job, mut collector) = pair();
    for slot in [SLOTS, u32::MAX] {
        collector.ask(slot, RequestNumber::none(1).next(), 5);
        job.answer(slot, RequestNumber::none(1), Answer::Applied, 5);
        assert_eq!(collector.standing(slot).value, 0);
        assert_eq!(job.request(slot), (RequestNumber::default(), 0));
    }
    assert_eq!(job.turned(), 0);
}

proptest! {
    /// Whatever one side has written, the other reads something, and what it asks or answers itself stands.
    #[test]
    fn any_bytes_are_taken(
        noise in proptest::collection::vec(any::<u8>(), PAGE_BYTES - HEADER_BYTES),
        turned in any::<u64>(),
        slot in 0..SLOTS,
        generation in any::<u32>(),
        value in any::<u64>(),
    ) {
        let (job, fd) = JobSide::create().unwrap();
        let file = File::from(fd.try_clone().unwrap());
        file.write_all_at(&noise, HEADER_BYTES as u64).unwrap();
        file.write_all_at(&turned.to_ne_bytes(), 16).unwrap();
        let mut collector = CollectorSide::open(&fd).unwrap();
        for slot in 0..SLOTS {
            let (number, _) = collector.requested(slot);
            prop_assert!(number.next().is_some());
            collector.standing(slot);
        }
        let number = RequestNumber::none(generation).next();
        let before = job.turned();
        collector.ask(slot, number, value);
        prop_assert_ne!(job.turned(), before);
        prop_assert_eq!(job.request(slot), (number, value));
        job.answer(slot, number, Answer::Refused, value);
        prop_assert_eq!(collector.standing(slot).of(generation), Some((value, number, Answer::Refused)));
    }
}
