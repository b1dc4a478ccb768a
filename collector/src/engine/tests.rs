use super::*;
use stallscope_abi::kernel::{self, Header, TaskExit, bytes_of};
use stallscope_abi::lane::Wait;
use stallscope_ring::Writer;
use stallscope_wire::frame;

const TRAINER: u32 = 4_000_000;

/// Between two looks at the lanes, which may be a second, the kernel tells of the trainer's end.
#[test]
fn the_last_steps_of_a_process_are_read_before_it_ends() {
    let mut engine = Engine::new(JobFacts { pid: TRAINER, ..JobFacts::default() }, true);
    let (mut writer, lane) = Writer::create(64).expect("a lane");
    let reader = Reader::open(lane).expect("that can be read");
    let kind = stallscope_ring::ProcessKind::Trainer;
    engine.shim_arrived(1, TRAINER, Greeting { pid: TRAINER, kind, ..Greeting::default() }, reader);
    let now_ns = host::now_ns();
    for step in 0..10 {
        let time_ns = now_ns + step * 1_000_000;
        let wait = Wait { loader: 0, worker: 0, enter_ns: time_ns - 1000, batch: step, samples: 0, flags: 0 };
        writer.push(&wait.encode(time_ns));
    }
    let header = Header {
        kind: kernel::Kind::TaskExit as u16,
        size: size_of::<TaskExit>() as u16,
        tid: TRAINER,
        tgid: TRAINER,
        time_ns: now_ns + 20_000_000,
        ..Header::default()
    };
    let exit = TaskExit { header, ..TaskExit::default() };
    let mut bytes = Vec::new();
    frame::push(&mut bytes, Tag::Record, bytes_of(&exit));
    engine.kernel_bytes(&bytes).expect("a frame");
    let (summary, _) = engine.finish(Some(0));
    let training = summary.phases.iter().find(|phase| phase.phase == Phase::Training);
    assert_eq!(training.map(|phase| phase.steps), Some(9), "{:?}", summary.losses);
    // No batch was reported; no wait came too late.
    let late = summary.losses.iter().find(|loss| loss.reason.contains("too late"));
    assert!(late.is_none(), "{late:?}");
}

/// The summary has them, and is written once a second.
#[test]
fn of_a_processs_texts_a_part_is_kept() {
    let mut engine = Engine::new(JobFacts { pid: TRAINER, ..JobFacts::default() }, true);
    let (_writer, lane) = Writer::create(64).expect("a lane");
    let reader = Reader::open(lane).expect("that can be read");
    let long = || "\u{1b}[2J".repeat(15_000);
    let (torch, unavailable) = (Some(long()), vec![long()]);
    let kind = stallscope_ring::ProcessKind::Trainer;
    engine.shim_arrived(1, TRAINER, Greeting { kind, torch, unavailable, ..Greeting::default() }, reader);
    let loader = stallscope_ring::LoaderFact { dataset: long(), start_method: long(), ..Default::default() };
    engine.shim_reported(1, Fact::Loader(loader));
    engine.shim_reported(1, Fact::Unavailable { what: long() });
    let facts = &engine.summary().ranks[0].facts;
    let json = serde_json::to_string(facts).expect("JSON");
    assert!(facts.loaders.len() == 1 && facts.unavailable.len() == 1 && json.len() < 4000, "{}", json.len());
}

#[test]
fn a_page_that_is_none_is_reported_once() {
    let mut engine = Engine::new(JobFacts::default(), true);
    for connection in 0..3 {
        let (_writer, lane) = Writer::create(64).unwrap();
        engine.shim_arrived(connection, 7, Greeting::default(), Reader::open(lane).unwrap());
        let none = std::fs::File::open("/dev/null").unwrap().into();
        engine.page_arrived(connection, &none);
        engine.page_arrived(connection, &none);
    }
    assert_eq!(engine.notices().len(), 1);
}

/// Each may hold a million records.
#[test]
fn lanes_of_a_job_are_bounded_together() {
    let mut engine = Engine::new(JobFacts::default(), true);
    let lanes = 2 * lanes::BYTES
        / (stallscope_ring::MAX_CAPACITY as usize * size_of::<stallscope_abi::lane::Record>());
    for connection in 0..lanes as u64 {
        let (_writer, lane) = Writer::create(stallscope_ring::MAX_CAPACITY).unwrap();
        engine.shim_arrived(connection, 7, Greeting::default(), Reader::open(lane).unwrap());
    }
    assert!((1..lanes / 2 + 1).contains(&engine.lanes.len()), "{} of {lanes}", engine.lanes.len());
    assert_eq!(engine.notices().len(), 1);
    assert!(engine.summary().losses.iter().any(|loss| loss.reason == "connection refused"));
}

/// Where STALLSCOPE_KERNEL_SOCKET leads, anybody may listen.
#[test]
fn of_losses_that_a_kernel_service_names_some_are_kept() {
    let mut engine = Engine::new(JobFacts::default(), false);
    for round in 0..200 {
        let lost =
            (0..100).map(|nth| (format!("\u{1b}[2J{round} {nth} {}", "x".repeat(400)), u64::MAX)).collect();
        let mut bytes = Vec::new();
        let tick = Tick { now_ns: 1, lost, run_time_ns: None };
        frame::push(&mut bytes, Tag::Tick, &stallscope_wire::encode(&tick));
        engine.kernel_bytes(&bytes).expect("a frame");
        if round % 20 == 0 {
            engine.kernel_is(EvidenceState::On);
        }
    }
    let losses = engine.summary().losses;
    assert!(losses.len() < 200, "{}", losses.len());
    assert!(losses.iter().all(|loss| loss.reason.len() < 300 && !loss.reason.contains('\u{1b}')));
}
