//! The layout of lane records on the wire: other versions' shims and collectors have it, too.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use proptest::prelude::*;
use stallscope_abi::lane::*;

const TIME_NS: u64 = 0x0102_0304_0506_0708;
const A: u64 = 0xA1A2_A3A4_A5A6_A7A8;
const B: u64 = 0xB1B2_B3B4_B5B6_B7B8;
const C: u64 = 0xC1C2_C3C4_C5C6_C7C8;
const D: u64 = 0xD1D2_D3D4_D5D6_D7D8;
const LOADER: u16 = 0x1112;
const ID: u32 = 0x2122_2324;

/// An event of each kind, and the 48 bytes of its record, as version 2 has them.
fn golden() -> Vec<(Event, &'static str)> {
    vec![
        (
            Wait {
                loader: LOADER,
                worker: ID,
                enter_ns: A,
                batch: B,
                samples: C,
                flags: wait_flags::FIRST | wait_flags::PINNED,
            }
            .into(),
            "0807060504030201 0100121124232221 a8a7a6a5a4a3a2a1 b8b7b6b5b4b3b2b1 c8c7c6c5c4c3c2c1 0a00000000000000",
        ),
        (
            Clock {
                loader: LOADER,
                at: ClockAt::BatchReady,
                cpu_ns: A,
                run_delay_ns: B,
                process_cpu_ns: C,
                read_ns: D,
            }
            .into(),
            "0807060504030201 0200121104000000 a8a7a6a5a4a3a2a1 b8b7b6b5b4b3b2b1 c8c7c6c5c4c3c2c1 d8d7d6d5d4d3d2d1",
        ),
        (
            IterStart { loader: LOADER, epoch: A, flags: wait_flags::NO_GRAD | wait_flags::FIRST }.into(),
            "0807060504030201 0300121100000000 a8a7a6a5a4a3a2a1 0000000000000000 0000000000000000 0300000000000000",
        ),
        (
            IterEnd { loader: LOADER, batches: A, enter_ns: B }.into(),
            "0807060504030201 0400121100000000 a8a7a6a5a4a3a2a1 b8b7b6b5b4b3b2b1 0000000000000000 0000000000000000",
        ),
        (
            Sample { loader: LOADER, count: ID, start_ns: A, batch: B, read_ns: C }.into(),
            "0807060504030201 0500121124232221 a8a7a6a5a4a3a2a1 b8b7b6b5b4b3b2b1 c8c7c6c5c4c3c2c1 0000000000000000",
        ),
        (
            Batch { loader: LOADER, worker: ID, start_ns: A, batch: B, collate_ns: C, cpu_ns: D }.into(),
            "0807060504030201 0600121124232221 a8a7a6a5a4a3a2a1 b8b7b6b5b4b3b2b1 c8c7c6c5c4c3c2c1 d8d7d6d5d4d3d2d1",
        ),
        (
            Checkpoint {
                saver: Saver::DcpAsyncSave,
                began_ns: A,
                stage: Stage::Persist,
                bytes: C,
                caller: Caller::Forked,
            }
            .into(),
            "0807060504030201 0700000003000000 a8a7a6a5a4a3a2a1 0100000000000000 c8c7c6c5c4c3c2c1 0200000000000000",
        ),
        (
            DeviceIdle { idle_ns: A, wait_exit_ns: B }.into(),
            "0807060504030201 0800000000000000 a8a7a6a5a4a3a2a1 b8b7b6b5b4b3b2b1 0000000000000000 0000000000000000",
        ),
        (
            Collective { began_ns: A }.into(),
            "0807060504030201 0900000000000000 a8a7a6a5a4a3a2a1 0000000000000000 0000000000000000 0000000000000000",
        ),
        (
            Bye {}.into(),
            "0807060504030201 0a00000000000000 0000000000000000 0000000000000000 0000000000000000 0000000000000000",
        ),
        (
            CacheUses {
                loader: LOADER,
                prefetched: ID,
                hits: 0xA5A6_A7A8,
                substitutions: 0xA1A2_A3A4,
                misses: 0xB5B6_B7B8,
                late: 0xB1B2_B3B4,
                pool_bytes: C,
                source_bytes: D,
            }
            .into(),
            "0807060504030201 0b00121124232221 a8a7a6a5a4a3a2a1 b8b7b6b5b4b3b2b1 c8c7c6c5c4c3c2c1 d8d7d6d5d4d3d2d1",
        ),
        (
            CacheState { loader: LOADER, kept_bytes: A, capacity_bytes: B, evictions: C, kept_samples: D }
                .into(),
            "0807060504030201 0c00121100000000 a8a7a6a5a4a3a2a1 b8b7b6b5b4b3b2b1 c8c7c6c5c4c3c2c1 d8d7d6d5d4d3d2d1",
        ),
        (
            CheckpointCost { spent_ns: A, trained_ns: B, budget_ppm: C, failed: D }.into(),
            "0807060504030201 0d00000000000000 a8a7a6a5a4a3a2a1 b8b7b6b5b4b3b2b1 c8c7c6c5c4c3c2c1 d8d7d6d5d4d3d2d1",
        ),
        (
            CacheCurve {
                loader: LOADER,
                point: 0x2324,
                points: 0x22,
                ranks: 0x21,
                capacity_bytes: A,
                uses: B,
                misses: C,
                dataset_bytes: D,
            }
            .into(),
            "0807060504030201 0e00121124232221 a8a7a6a5a4a3a2a1 b8b7b6b5b4b3b2b1 c8c7c6c5c4c3c2c1 d8d7d6d5d4d3d2d1",
        ),
        (
            Step { source: StepSource::Script }.into(),
            "0807060504030201 0f00000002000000 0000000000000000 0000000000000000 0000000000000000 0000000000000000",
        ),
        (
            CheckpointRule { cost_ns: A, persist_ns: B, mtbf_ns: C, interval_ns: D }.into(),
            "0807060504030201 1000000000000000 a8a7a6a5a4a3a2a1 b8b7b6b5b4b3b2b1 c8c7c6c5c4c3c2c1 d8d7d6d5d4d3d2d1",
        ),
    ]
}

fn hex(record: &Record) -> String {
    record.words().map(|word| format!("{:016x}", word.swap_bytes())).join(" ")
}

#[test]
fn every_event_lies_in_its_record_as_version_2_has_it() {
    assert_eq!((VERSION, size_of::<Record>()), (2, 48));
    let golden = golden();
    for (number, (event, bytes)) in golden.iter().enumerate() {
        let record = event.encode(TIME_NS);
        assert_eq!(hex(&record), *bytes, "{event:?}");
        assert_eq!(record.time_ns(), TIME_NS);
        assert_eq!(Event::decode(&record), Some(*event));
        let kind = number as u64 + 1;
        assert_eq!(record.words()[1] & 0xffff, kind, "an event of each kind, in order");
    }
    let next = Record::from_words([TIME_NS, golden.len() as u64 + 1, 0, 0, 0, 0]);
    assert_eq!(Event::decode(&next), None, "a kind without an event here");
}

/// What is a name in a field is a number on the wire.
#[test]
fn every_name_has_its_number() {
    fn names<T: Copy>(all: &[T], number: fn(T) -> u64, name: fn(T) -> &'static str) -> String {
        all.iter().map(|value| format!("{} {}", number(*value), name(*value))).collect::<Vec<_>>().join(", ")
    }
    let clocks = "0 other, 1 wait_enter, 2 wait_exit, 3 batch_start, 4 batch_ready, 5 step";
    assert_eq!(names(ClockAt::ALL, |at| at as u64, ClockAt::name), clocks);
    assert_eq!(names(StepSource::ALL, |source| source as u64, StepSource::name), "1 optimiser, 2 script");
    assert_eq!(
        names(Saver::ALL, |saver| saver as u64, Saver::name),
        "1 torch.save, 2 dcp.save, 3 dcp.async_save, 4 safetensors, 5 other, 6 stallscope"
    );
    assert_eq!(names(Stage::ALL, |stage| stage as u64, Stage::name), "0 snapshot, 1 persist");
    assert_eq!(names(Caller::ALL, |caller| caller as u64, Caller::name), "0 main_thread, 1 thread, 2 forked");
    assert!(Saver::ALL.iter().all(|saver| Saver::of_name(saver.name()) == Some(*saver)));
    assert_eq!(Saver::of_name("carrier pigeon"), None);
}

#[test]
fn a_name_that_a_newer_shim_has_is_read_as_the_general_one() {
    let newer = |kind: u64, id: u64, b: u64, d: u64| {
        Event::decode(&Record::from_words([TIME_NS, kind | id << 32, 0, b, 0, d])).unwrap()
    };
    let Event::Checkpoint(saved) = newer(7, 99, 99, 99) else { panic!("no checkpoint") };
    assert_eq!((saved.saver, saved.stage, saved.caller), (Saver::Other, Stage::Persist, Caller::MainThread));
    let Event::Clock(clock) = newer(2, 99, 0, 0) else { panic!("no clock") };
    assert_eq!(clock.at, ClockAt::Other);
    assert_eq!(newer(15, 99, 0, 0), Step { source: StepSource::Optimiser }.into());
}

#[test]
fn every_field_is_shown_by_its_name() {
    let (uses, _) = golden().into_iter().find(|(event, _)| event.name() == "CacheUses").unwrap();
    let mut shown = Vec::new();
    uses.fields(|name, value| shown.push((name, value)));
    assert_eq!(shown[0], ("loader", Value::Number(LOADER.into())));
    assert_eq!(shown[3], ("substitutions", Value::Number(0xA1A2_A3A4)));
    assert_eq!(shown.len(), 8);
    Event::from(Step { source: StepSource::Script })
        .fields(|name, value| assert_eq!((name, value), ("source", Value::Name("script"))));
}

proptest! {
    /// All values of all fields are among what any bytes decode to.
    #[test]
    fn every_event_decodes_to_itself(kind in 1..=15u64, words: [u64; WORDS], other_time_ns: u64) {
        let [time_ns, head, a, b, c, d] = words;
        let record = Record::from_words([time_ns, head & !0xffff | kind, a, b, c, d]);
        let event = Event::decode(&record).unwrap();
        let encoded = event.encode(other_time_ns);
        prop_assert_eq!(encoded.time_ns(), other_time_ns);
        prop_assert_eq!(Event::decode(&encoded), Some(event));
    }

    #[test]
    fn hostile_bytes_are_an_event_or_none(words: [u64; WORDS]) {
        let record = Record::from_words(words);
        prop_assert_eq!(record.words(), words);
        if let Some(event) = Event::decode(&record) {
            event.fields(|name, _| assert!(!name.is_empty()));
        }
    }
}
