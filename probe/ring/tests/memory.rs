//! What a reader holds of a lane.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use stallscope_abi::lane::Record;
use stallscope_ring::{Reader, Writer};

/// KiB resident of every mapping of a lane in this process.
fn resident_kib() -> Vec<u64> {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let lanes = maps.split("\n").skip_while(|line| !line.contains("stallscope-lane"));
    let mut resident = Vec::new();
    let mut of_lane = false;
    for line in lanes {
        if line.contains('-') && line.contains("rw-s") {
            of_lane = line.contains("stallscope-lane");
        } else if let (true, Some(rss)) = (of_lane, line.strip_prefix("Rss:")) {
            resident.push(rss.trim().trim_end_matches(" kB").parse().unwrap());
            of_lane = false;
        }
    }
    resident
}

#[test]
fn a_reader_lets_go_of_the_pages_that_it_has_read() {
    let (mut writer, fd) = Writer::create(16384).unwrap();
    let mut reader = Reader::open(fd).unwrap();
    let mut next = 0;
    for _ in 0..400 {
        (0..100).for_each(|n| assert!(writer.push(&Record { a: next + n, ..Record::default() })));
        reader.drain(|record| {
            assert_eq!(record.a, next);
            next += 1;
        });
    }
    assert_eq!(next, 40_000);
    let mut resident = resident_kib();
    resident.sort_unstable();
    let [reader_kib, writer_kib] = resident[..] else { panic!("two mappings were expected: {resident:?}") };
    assert!(writer_kib >= 768, "the writer has used its whole lane: {writer_kib} KiB");
    // The kernel maps up to 64 KiB around a page that is asked for.
    assert!(reader_kib <= 192, "the reader still holds {reader_kib} KiB");
}
