//! What a reader holds of a lane.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use stallscope_abi::lane::{Record, WORDS};
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

/// Pushes records in bursts, each read before the next; what reader and writer then hold, KiB.
fn held_after(bursts: u64, records: u64) -> [u64; 2] {
    let (mut writer, fd) = Writer::create(16384).unwrap();
    let mut reader = Reader::open(fd).unwrap();
    let mut next = 0;
    for _ in 0..bursts {
        (0..records).for_each(|n| assert!(writer.push(&Record::from_words([next + n; WORDS]))));
        reader.drain(u64::MAX, |record| {
            assert_eq!(record.time_ns(), next);
            next += 1;
        });
    }
    assert_eq!(next, bursts * records);
    let mut resident = resident_kib();
    resident.sort_unstable();
    resident.try_into().unwrap()
}

// One test, as the mappings of all threads show.
#[test]
fn neither_side_keeps_more_of_a_lane_than_it_uses() {
    let [_, kept_up_kib] = held_after(400, 100);
    assert!(kept_up_kib <= 64, "a lane that is read in time holds {kept_up_kib} KiB");

    let [reader_kib, writer_kib] = held_after(40, 1000);
    assert!(writer_kib >= 768, "the writer has used its whole lane: {writer_kib} KiB");
    // The kernel maps up to 64 KiB around a page that is asked for.
    assert!(reader_kib <= 256, "the reader still holds {reader_kib} KiB");
}
