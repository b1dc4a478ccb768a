//! Whatever kernel and shim say of a job: causes add up, and nothing overflows or panics.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stallscope_abi::kernel::{Record, TaskSlot};
use stallscope_abi::lane;
use stallscope_ledger::{Config, Ledger, ProcessFacts, ProcessKind};

const ROUND_NS: u64 = 100_000_000;

/// The record that `bytes` begins with. Its kind is mostly one that there is.
fn lane_record(bytes: &[u8]) -> Option<lane::Record> {
    let mut words = [0; lane::WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.get(..48)?.chunks_exact(8)) {
        *word = u64::from_le_bytes(bytes.try_into().ok()?);
    }
    words[1] = words[1] & !0xffff | words[1] & 0x1f;
    Some(lane::Record::from_words(words))
}

fn process(ledger: &mut Ledger, pid: u32, kind: u8) {
    let kind = [ProcessKind::Trainer, ProcessKind::Worker, ProcessKind::Other][usize::from(kind % 3)];
    ledger.process(ProcessFacts {
        pid,
        ns_pid: pid,
        ppid: 100,
        kind,
        rank: pid % 2,
        world_size: 2,
        ..Default::default()
    });
}

// Entries of a tag, a length and so many bytes.
fuzz_target!(|bytes: &[u8]| {
    let mut ledger = Ledger::new(Config::default());
    ledger.root(100, 0);
    (100..105).for_each(|pid| process(&mut ledger, pid, pid as u8));
    let (mut rest, mut now_ns) = (bytes, 0_u64);
    let mut steps = Vec::new();
    while let [tag, length, more @ ..] = rest {
        let (entry, left) = more.split_at(more.len().min(usize::from(*length)));
        rest = left;
        let pid = 100 + u32::from(tag >> 4) % 5;
        match tag % 8 {
            0 | 1 => {
                if let Some(record) = Record::parse(entry) {
                    ledger.kernel(&record);
                }
            }
            2 => {
                if let Some(slot) = TaskSlot::parse(entry) {
                    ledger.open_slot(&slot, now_ns);
                }
            }
            3 | 4 => {
                if let Some(record) = lane_record(entry) {
                    ledger.lane(pid, &record);
                }
            }
            5 => process(&mut ledger, pid, *length),
            6 => ledger.gone(pid, now_ns),
            _ => {
                now_ns += ROUND_NS * u64::from(*length);
                steps.extend(ledger.advance(now_ns));
                let _ = (ledger.details(), ledger.worker_periods());
            }
        }
    }
    steps.extend(ledger.finish(now_ns));
    for step in &steps {
        assert!(step.start_ns <= step.end_ns);
        assert_eq!(step.causes.total_ns(), step.end_ns - step.start_ns);
    }
    let summary = ledger.summary();
    assert!(summary.diagnoses.iter().all(|found| found.share.is_finite() && found.share >= 0.0));
});
