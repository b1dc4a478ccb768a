//! Lanes between honest sides.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use stallscope_abi::lane::Record;
use stallscope_ring::{Error, Reader, Writer};

fn record(n: u64) -> Record {
    Record::from_words([n, n | 1 << 63, n, !n, n << 7, n * n])
}

fn drained(reader: &mut Reader) -> Vec<Record> {
    let mut records = Vec::new();
    reader.drain(u64::MAX, |record| records.push(*record));
    records
}

#[test]
fn records_arrive_as_they_were_pushed() {
    let (mut writer, fd) = Writer::create(8).unwrap();
    let mut reader = Reader::open(fd).unwrap();
    assert_eq!(reader.pid(), std::process::id());
    for round in 0..100 {
        let sent: Vec<Record> = (0..5).map(|n| record(round * 5 + n)).collect();
        assert!(sent.iter().all(|record| writer.push(record)));
        assert_eq!(drained(&mut reader), sent);
    }
    assert_eq!(reader.dropped(), 0);
}

#[test]
fn a_full_lane_drops_the_newest_and_counts_them() {
    let (mut writer, fd) = Writer::create(4).unwrap();
    let mut reader = Reader::open(fd).unwrap();
    let taken = (0..10).filter(|n| writer.push(&record(*n))).count();
    assert_eq!(taken, 4);
    assert_eq!(drained(&mut reader), (0..4).map(record).collect::<Vec<_>>());
    assert_eq!(reader.dropped(), 6);
    assert!(writer.push(&record(10)), "a slot is free again");
    assert_eq!(drained(&mut reader), [record(10)]);
}

#[test]
fn a_burst_that_outgrows_the_short_ring_arrives_whole_and_in_order() {
    let (mut writer, fd) = Writer::create(512).unwrap();
    let mut reader = Reader::open(fd).unwrap();
    let (mut next, mut expected) = (0, 0);
    // Within the short ring, into the long one, full, and back again.
    for (burst, taken) in [(100, 100), (300, 300), (1000, 768), (100, 100), (700, 700), (1, 1)] {
        let pushed = (0..burst).take_while(|n| writer.push(&record(next + n))).count() as u64;
        assert_eq!(pushed, taken);
        next += pushed;
        let found = drained(&mut reader);
        assert_eq!(found, (expected..next).map(record).collect::<Vec<_>>());
        expected = next;
    }
    assert_eq!(reader.dropped(), 1);
}

#[test]
fn a_reader_that_takes_a_part_leaves_the_rest_in_order() {
    let (mut writer, fd) = Writer::create(512).unwrap();
    let mut reader = Reader::open(fd).unwrap();
    let (mut next, mut expected) = (0, 0);
    // Within the short ring, into the long one, and back again; never so many that none has a slot.
    for (burst, most) in
        [(200, 50), (300, 250), (100, 1), (100, 399), (0, 0), (10, 9), (10, 500), (300, 299), (9, 10)]
    {
        (0..burst).for_each(|n| assert!(writer.push(&record(next + n))));
        next += burst;
        let mut found = Vec::new();
        let drained = reader.drain(most, |record| found.push(*record));
        let taken = most.min(next - expected);
        assert_eq!(found, (expected..expected + taken).map(record).collect::<Vec<_>>());
        expected += taken;
        assert_eq!((drained.records, drained.left), (taken, next - expected));
    }
    assert_eq!((next - expected, reader.dropped()), (0, 0));
}

#[test]
fn a_reader_that_takes_over_continues_in_both_rings() {
    let (mut writer, fd) = Writer::create(512).unwrap();
    (0..300).for_each(|n| assert!(writer.push(&record(n))));
    let mut first = Reader::open(fd.try_clone().unwrap()).unwrap();
    assert_eq!(drained(&mut first).len(), 300);
    drop(first);
    (300..800).for_each(|n| assert!(writer.push(&record(n))));
    let found = drained(&mut Reader::open(fd).unwrap());
    assert_eq!(found, (300..800).map(record).collect::<Vec<_>>());
}

#[test]
fn a_new_reader_resumes_where_the_last_one_stopped() {
    let (mut writer, fd) = Writer::create(8).unwrap();
    writer.push(&record(1));
    let mut first = Reader::open(fd.try_clone().unwrap()).unwrap();
    assert_eq!(drained(&mut first), [record(1)]);
    drop(first);
    writer.push(&record(2));
    assert_eq!(drained(&mut Reader::open(fd).unwrap()), [record(2)]);
}

#[test]
fn what_a_dead_writer_left_can_still_be_read() {
    let (mut writer, fd) = Writer::create(8).unwrap();
    writer.push(&record(1));
    drop(writer);
    assert_eq!(drained(&mut Reader::open(fd).unwrap()), [record(1)]);
}

#[test]
fn impossible_capacities_are_refused() {
    for capacity in [0, 3, u32::MAX, 1 << 21] {
        assert!(matches!(Writer::create(capacity), Err(Error::Capacity(_))), "{capacity}");
    }
}
