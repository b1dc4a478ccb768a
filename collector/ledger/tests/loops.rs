//! Loops without a loader: where their steps end, and what they wait for.

use crate::stage::{Does, MS, Stage, TRAINER, WORKER, saved};
use stallscope_abi::kernel::Blocked;
use stallscope_abi::lane::{Caller, ClockAt, Saver, StepSource, wait_flags};
use stallscope_ledger::ProcessKind;
use stallscope_model::{Cause, Phase, StepLedger};

fn steps(stage: &mut Stage, times: &[u64]) {
    times.iter().for_each(|at| stage.stepped(*at, StepSource::Optimiser));
}

/// Phase, loader, start and end of every piece, in milliseconds.
fn pieces(stage: &mut Stage, end: u64) -> Vec<(Phase, u16, u64, u64)> {
    stage.finish(end);
    let piece = |step: &StepLedger| (step.phase, step.loader, step.start_ns / MS, step.end_ns / MS);
    stage.steps.iter().map(piece).collect()
}

const NONE: u16 = StepLedger::NO_LOADER;

#[test]
fn the_first_step_ends_the_start_up_and_each_further_one_is_training() {
    let mut stage = Stage::new();
    steps(&mut stage, &[100, 150, 210]);
    let expected = [
        (Phase::Startup, NONE, 0, 100),
        (Phase::Training, NONE, 100, 150),
        (Phase::Training, NONE, 150, 210),
    ];
    assert_eq!(pieces(&mut stage, 300), expected);
    let phases = stage.ledger.summary().phases;
    assert_eq!(phases.iter().map(|phase| phase.loader).collect::<Vec<_>>(), [None, None]);
}

#[test]
fn what_a_loop_is_blocked_in_for_data_is_fetch() {
    let mut stage = Stage::new();
    let parts = [
        (20, Does::In(Blocked::Fault)),
        (10, Does::In(Blocked::FileRead)),
        (5, Does::In(Blocked::Pipe)),
        (5, Does::In(Blocked::Net)),
        (10, Does::In(Blocked::Futex)),
        (10, Does::In(Blocked::Sleep)),
        (10, Does::In(Blocked::Sync)),
        (5, Does::Runnable),
        (25, Does::Cpu),
    ];
    stage.does(TRAINER, 0, &[(100, Does::Cpu)]);
    stage.does(TRAINER, 100, &parts);
    steps(&mut stage, &[100, 200]);
    stage.finish(300);
    let expected = [
        (Cause::Fetch, 40),
        (Cause::Unknown, 20),
        (Cause::Persist, 10),
        (Cause::Preempted, 5),
        (Cause::Compute, 25),
    ];
    stage.expect(Phase::Training, 0, &expected);
}

#[test]
fn asleep_for_a_thread_that_has_read_is_fetch_and_what_threads_compute_then_is_prep() {
    for ranks in [1, 2] {
        let mut stage = Stage::empty();
        stage.greet(TRAINER, 1, ProcessKind::Trainer, 0, ranks);
        stage.does(
            TRAINER,
            0,
            &[(100, Does::Cpu), (60, Does::Helped(Blocked::FutexRead, 15)), (40, Does::Cpu)],
        );
        steps(&mut stage, &[100, 200]);
        stage.finish(300);
        stage.expect(Phase::Training, 0, &[(Cause::Fetch, 45), (Cause::Prep, 15), (Cause::Compute, 40)]);
        assert_eq!(stage.ledger.summary().main_threads.readers_ns, 60 * MS);
    }
}

#[test]
fn among_ranks_a_socket_is_the_others() {
    let mut stage = Stage::empty();
    stage.greet(TRAINER, 1, ProcessKind::Trainer, 0, 2);
    stage.does(TRAINER, 0, &[(100, Does::Cpu), (50, Does::In(Blocked::Net)), (50, Does::In(Blocked::Fault))]);
    steps(&mut stage, &[100, 200]);
    stage.finish(300);
    stage.expect(Phase::Training, 0, &[(Cause::Peer, 50), (Cause::Fetch, 50)]);
}

#[test]
fn without_the_kernel_the_clocks_tell_the_cpu_and_the_rest_is_unknown() {
    let mut stage = Stage::new();
    steps(&mut stage, &[100]);
    stage.clock(TRAINER, ClockAt::Step, 100, (80, 0, 80));
    steps(&mut stage, &[200]);
    stage.clock(TRAINER, ClockAt::Step, 200, (110, 10, 130));
    stage.finish(300);
    // Another thread used 20 ms of CPU in the 60 that the main thread was off it: nobody knows what for.
    let expected = [(Cause::Compute, 30), (Cause::Preempted, 10), (Cause::Unknown, 60)];
    stage.expect(Phase::Training, 0, &expected);
}

#[test]
fn steps_of_a_loader_stand() {
    let mut stage = Stage::new();
    stage.iter_start(0, 90, 0);
    for index in 0..4 {
        stage.wait(100 + index * 50, 110 + index * 50, index);
        steps(&mut stage, &[130 + index * 50, 140 + index * 50]);
    }
    stage.iter_end_found(0, 290, 300);
    // What was accumulated of the last batches.
    steps(&mut stage, &[310]);
    let training: Vec<_> =
        pieces(&mut stage, 400).into_iter().filter(|piece| piece.0 == Phase::Training).collect();
    let expected = [(110, 160), (160, 210), (210, 260), (260, 290)];
    assert_eq!(training, expected.map(|(start, end)| (Phase::Training, 0, start, end)));
}

#[test]
fn a_loader_beside_the_loop_is_evaluation_gradients_or_not() {
    for flags in [wait_flags::NO_GRAD, 0] {
        let mut stage = Stage::new();
        steps(&mut stage, &[100, 150, 200]);
        stage.iter_start(0, 220, flags);
        for index in 0..3 {
            let first = if index == 0 { wait_flags::FIRST } else { 0 };
            stage.wait_for(TRAINER, 0, WORKER, 230 + index * 10, 235 + index * 10, index, flags | first);
        }
        stage.iter_end(0, 270);
        steps(&mut stage, &[320, 370]);
        let found = pieces(&mut stage, 400);
        let of = |phase| found.iter().filter(|piece| piece.0 == phase).collect::<Vec<_>>();
        assert!(of(Phase::Evaluation).iter().all(|piece| piece.1 == 0 && piece.2 >= 220 && piece.3 <= 270));
        let training = of(Phase::Training);
        assert_eq!(training.first().map(|piece| piece.2), Some(100), "{found:?}");
        assert_eq!(training.last().copied(), Some(&(Phase::Training, NONE, 320, 370)), "{found:?}");
        assert!(of(Phase::Between).is_empty(), "{found:?}");
    }
}

/// Every moment belongs to one piece.
fn has_no_holes(found: &[(Phase, u16, u64, u64)]) {
    assert!(found.windows(2).all(|pair| pair[0].3 == pair[1].2), "{found:?}");
}

#[test]
fn a_loop_that_goes_on_with_a_loader_and_back_loses_and_doubles_nothing() {
    let mut stage = Stage::new();
    steps(&mut stage, &[100, 150, 200]);
    stage.iter_start(0, 210, 0);
    for index in 0..4 {
        stage.wait(220 + index * 50, 230 + index * 50, index);
        steps(&mut stage, &[260 + index * 50]);
    }
    stage.iter_end_found(0, 420, 430);
    steps(&mut stage, &[480, 530, 580]);
    let found = pieces(&mut stage, 600);
    has_no_holes(&found);
    // The first batch looks like one beside the loop, until a step follows it.
    let of_loader = [(230, 280), (280, 330), (330, 380), (380, 420)];
    let training: Vec<_> = found.iter().filter(|piece| piece.0 == Phase::Training && piece.1 == 0).collect();
    assert_eq!(
        training,
        of_loader.map(|(start, end)| (Phase::Training, 0, start, end)).iter().collect::<Vec<_>>()
    );
    let own: Vec<_> = found.iter().filter(|piece| piece.0 == Phase::Training && piece.1 == NONE).collect();
    let expected = [(100, 150), (150, 200), (200, 220), (480, 530), (530, 580)];
    assert_eq!(
        own,
        expected.map(|(start, end)| (Phase::Training, NONE, start, end)).iter().collect::<Vec<_>>()
    );
}

#[test]
fn a_step_that_prepares_the_optimiser_begins_no_training() {
    let mut stage = Stage::new();
    steps(&mut stage, &[50]);
    stage.iter_start(0, 90, 0);
    stage.wait(100, 110, 0);
    steps(&mut stage, &[130]);
    stage.wait(150, 160, 1);
    let expected =
        [(Phase::Startup, NONE, 0, 50), (Phase::Startup, 0, 50, 110), (Phase::Training, 0, 110, 160)];
    assert_eq!(pieces(&mut stage, 200), expected);
}

#[test]
fn the_scripts_steps_win_over_the_optimisers() {
    let mut stage = Stage::new();
    for turn in 0..3 {
        stage.stepped(100 + turn * 50, StepSource::Optimiser);
        stage.stepped(110 + turn * 50, StepSource::Script);
    }
    let expected = [
        (Phase::Startup, NONE, 0, 100),
        (Phase::Startup, NONE, 100, 110),
        (Phase::Training, NONE, 110, 160),
        (Phase::Training, NONE, 160, 210),
    ];
    assert_eq!(pieces(&mut stage, 300), expected);
}

#[test]
fn a_forked_child_saves_for_its_trainer_in_the_background() {
    let mut stage = Stage::new();
    steps(&mut stage, &[100, 200]);
    for child in 300..304 {
        stage.new_task(child, TRAINER, 120, "python");
        stage.greet(child, TRAINER, ProcessKind::Other, 0, 1);
        stage.lane(child, saved(130, 180, Saver::TorchSave, true, Caller::Forked));
    }
    stage.finish(300);
    let ranks = stage.ledger.summary().ranks;
    assert_eq!(ranks.len(), 1, "children that save are no ranks");
    assert_eq!((ranks[0].checkpoints.count, ranks[0].checkpoints.bytes), (4, 4000));
    assert_eq!((ranks[0].checkpoints.blocked_ns, ranks[0].checkpoints.background_ns), (0, 200 * MS));
}

#[test]
fn a_loop_without_steps_is_described_by_what_its_main_thread_did() {
    let mut stage = Stage::new();
    stage.does(TRAINER, 0, &[(600, Does::Cpu), (1400, Does::In(Blocked::Fault))]);
    stage.did(WORKER, 0, 100, Does::Cpu);
    // Which names it a trainer.
    stage.checkpoint(50, 60, Saver::TorchSave, true, true);
    stage.finish(2200);
    let verdict = stage.ledger.summary().verdict;
    assert_eq!(verdict.finding, "fetch-bound");
    assert!(verdict.sentence.contains("blocked in page faults for 70%"), "{}", verdict.sentence);
    assert!(verdict.sentence.contains("stallscope.step()"), "{}", verdict.sentence);
}

#[test]
fn processes_that_were_seen_are_not_denied_without_the_kernel() {
    let mut stage = Stage::new();
    stage.finish(200);
    let verdict = stage.ledger.summary().verdict;
    assert_eq!(verdict.finding, "no training steps seen");
    assert!(verdict.sentence.contains("2 processes were seen"), "{}", verdict.sentence);
}

#[test]
fn a_loop_that_ends_with_its_first_step_has_begun() {
    let mut stage = Stage::new();
    stage.does(TRAINER, 0, &[(2000, Does::Cpu)]);
    steps(&mut stage, &[1900]);
    stage.finish(2000);
    let sentence = stage.ledger.summary().verdict.sentence;
    assert!(sentence.contains("; training had hardly begun, or"), "{sentence}");
}

#[test]
fn the_verdict_of_a_loop_that_reads_by_itself_names_its_reading() {
    let mut stage = Stage::new();
    for turn in 0..20 {
        stage.does(TRAINER, turn * 100, &[(40, Does::Cpu), (60, Does::In(Blocked::Fault))]);
        steps(&mut stage, &[turn * 100 + 100]);
    }
    stage.finish(3000);
    let summary = stage.ledger.summary();
    assert_eq!(summary.verdict.finding, "fetch-bound");
    assert!(
        summary.verdict.sentence.contains("the job reads without a loader"),
        "{}",
        summary.verdict.sentence
    );
    assert!(!summary.diagnoses[0].advice.contains("num_workers"), "{}", summary.diagnoses[0].advice);
    // The shim alone does not know what blocks it, which is no disagreement.
    assert_eq!(summary.disagreement_share, None);
}

/// Read-ahead, which larger pieces amount to, made random maps three times slower, and a thread no faster.
#[test]
fn a_loop_that_reads_by_itself_is_advised_by_what_blocks_it() {
    let advice = |kind: Blocked| {
        let mut stage = Stage::new();
        for turn in 0..20 {
            stage.does(TRAINER, turn * 100, &[(40, Does::Cpu), (60, Does::In(kind))]);
            steps(&mut stage, &[turn * 100 + 100]);
        }
        stage.finish(3000);
        stage.ledger.summary().diagnoses[0].advice.clone()
    };
    let (faults, reads, sockets) = (advice(Blocked::Fault), advice(Blocked::FileRead), advice(Blocked::Net));
    assert!(faults.contains("MADV_RANDOM") && faults.contains("another process"), "{faults}");
    assert!(!faults.contains("larger pieces") && !faults.contains("in a thread"), "{faults}");
    // A file a read is as large as a piece gets: what helps whatever the size comes first.
    assert!(
        reads.starts_with("Read the next batch in a thread") && reads.contains("larger pieces"),
        "{reads}"
    );
    assert!(!reads.contains("MADV_RANDOM") && reads.contains("local disk"), "{reads}");
    // Who answers is not known: a process of the job's own has nothing to read.
    assert!(sockets.starts_with("Where processes of its own answer"), "{sockets}");
    assert!(sockets.contains("Where a server answers") && sockets.contains("in a thread"), "{sockets}");
    assert!(!sockets.contains("disk"), "{sockets}");
    assert!(!sockets.contains("larger pieces"), "{sockets}");
}

#[test]
fn the_advice_is_by_what_blocks_training_not_its_start() {
    let advice = |kind: Blocked| {
        let mut stage = Stage::new();
        stage.does(TRAINER, 0, &[(100, Does::Cpu), (5000, Does::In(Blocked::Fault))]);
        steps(&mut stage, &[5100]);
        for turn in 0..20 {
            let at = 5100 + turn * 100;
            stage.does(TRAINER, at, &[(40, Does::Cpu), (60, Does::In(kind))]);
            steps(&mut stage, &[at + 100]);
        }
        stage.finish(8000);
        stage.ledger.summary().diagnoses[0].advice.clone()
    };
    let reads = advice(Blocked::FileRead);
    assert!(
        reads.starts_with("Read the next batch in a thread") && !reads.contains("MADV_RANDOM"),
        "{reads}"
    );
    let readers = advice(Blocked::FutexRead);
    assert!(readers.starts_with("Let the threads that read begin more"), "{readers}");
    assert!(!readers.contains("Read the next batch in a thread"), "{readers}");
    // Of what those threads are blocked in nothing is known but that it is a read.
    assert!(!readers.contains("MADV_RANDOM"), "{readers}");
}

#[test]
fn threads_that_may_make_the_batches_are_named_where_data_seem_to_keep_up() {
    let found = |does: Does| {
        let mut stage = Stage::new();
        for turn in 0..20 {
            stage.does(TRAINER, turn * 100, &[(40, Does::Cpu), (60, does)]);
            steps(&mut stage, &[turn * 100 + 100]);
        }
        stage.finish(3000);
        let summary = stage.ledger.summary();
        let finding = summary.diagnoses.iter().find(|one| one.name == "no-data-stall").unwrap();
        (summary.verdict.sentence.clone(), finding.finding.clone(), finding.advice.clone())
    };
    let (verdict, finding, advice) = found(Does::Helped(Blocked::Futex, 60));
    assert!(
        verdict.ends_with(
            "and sleeps for 60% until threads of its own are done, which may be making its batches"
        ),
        "{verdict}"
    );
    assert!(
        finding.ends_with("and 60% for threads of the job's own, which may be making its batches"),
        "{finding}"
    );
    assert!(advice.contains("in worker processes"), "{advice}");
    let (verdict, finding, advice) = found(Does::Cpu);
    for text in [verdict, finding, advice] {
        assert!(!text.contains("threads"), "{text}");
    }
}

#[test]
fn without_the_kernel_a_loop_that_is_off_the_cpu_is_not_called_to_have_its_data() {
    let on_cpu = |ms_a_step: u64| {
        let mut stage = Stage::new();
        for turn in 0..20 {
            steps(&mut stage, &[turn * 100]);
            stage.clock(TRAINER, ClockAt::Step, turn * 100, (turn * ms_a_step, 0, turn * ms_a_step));
        }
        stage.finish(3000);
        let summary = stage.ledger.summary();
        let names: Vec<String> = summary.diagnoses.iter().map(|found| found.name.clone()).collect();
        (summary.verdict, names)
    };
    let has = |names: &[String], name: &str| names.iter().any(|one| one == name);
    let (verdict, names) = on_cpu(30);
    assert_eq!(verdict.finding, "unexplained");
    assert!(verdict.sentence.contains("kernel's evidence"), "{}", verdict.sentence);
    assert!(!has(&names, "no-data-stall"), "{names:?}");
    // The 8% of the time that it is off the CPU may be its reading as well.
    let (_, names) = on_cpu(92);
    assert!(has(&names, "unexplained-time") && !has(&names, "no-data-stall"), "{names:?}");
    let (_, names) = on_cpu(98);
    assert!(!has(&names, "unexplained-time") && has(&names, "no-data-stall"), "{names:?}");
}

#[test]
fn a_loop_that_waits_for_a_lock_may_wait_for_its_own_reader() {
    let mut stage = Stage::new();
    stage.does(TRAINER, 0, &[(100, Does::Cpu)]);
    let mut ends = vec![100];
    for step in 0..20 {
        let at = 100 + 100 * step;
        stage.does(TRAINER, at, &[(40, Does::In(Blocked::Futex)), (60, Does::Cpu)]);
        ends.push(at + 100);
    }
    steps(&mut stage, &ends);
    stage.finish(3000);
    let summary = stage.ledger.summary();
    let found = summary.diagnoses.iter().find(|found| found.name == "unexplained-time").expect("a finding");
    assert!(
        found.advice.starts_with("Where a thread or a process of its own makes the next batch"),
        "{}",
        found.advice
    );
    // What that thread does is not known, so that nothing says that it does not read.
    assert!(
        summary.verdict.sentence.contains("a thread or a process of its own"),
        "{}",
        summary.verdict.sentence
    );
    assert!(summary.diagnoses.iter().all(|found| found.name != "no-data-stall"), "{:?}", summary.diagnoses);
}
