//! What a job is called: the verdict, the findings, and the loads.

use crate::stage::{Does, MS, Stage, TRAINER, WORKER, slot};
use stallscope_abi::kernel::{Blocked, TaskSlot};
use stallscope_abi::lane::{self, wait_flags};
use stallscope_ledger::{Config, HostCpus, Ledger, ProcessKind, Summary};
use stallscope_model::LoaderFacts;

/// `steps` steps of 100 ms: the trainer does `own`, then waits while its worker does `made`.
fn job(steps: u64, own: &[(u64, Does)], made: &[(u64, Does)]) -> Stage {
    each(steps, own, |_| made)
}

/// The same with a worker that does something else for each step.
fn each<'a>(steps: u64, own: &[(u64, Does)], made: impl Fn(u64) -> &'a [(u64, Does)]) -> Stage {
    let mut stage = Stage::new();
    stage.ledger.loader(TRAINER, LoaderFacts { workers: 1, ..Default::default() });
    let own_ms: u64 = own.iter().map(|(ms, _)| ms).sum();
    for step in 0..steps {
        let at = 1000 + 100 * step;
        stage.does(TRAINER, at, own);
        stage.did(TRAINER, at + own_ms, at + 100, Does::In(Blocked::Pipe));
        stage.did(WORKER, at, at + own_ms, Does::In(Blocked::Pipe));
        let made = made(step);
        stage.does(WORKER, at + own_ms, made);
        let made_ms: u64 = made.iter().map(|(ms, _)| ms).sum();
        stage.batch(WORKER, at + own_ms, at + own_ms + made_ms, step);
        stage.wait(at + own_ms, at + 100, step);
        stage.advance(at + 100);
    }
    stage.finish(1000 + 100 * steps + 2000);
    stage
}

fn names(summary: &Summary) -> Vec<&str> {
    summary.diagnoses.iter().map(|d| d.name.as_str()).collect()
}

#[test]
fn a_job_that_waits_for_storage_is_fetch_bound() {
    let stage = job(101, &[(30, Does::Cpu)], &[(61, Does::In(Blocked::FileRead)), (5, Does::Cpu)]);
    let summary = stage.ledger.summary();
    assert_eq!(
        summary.verdict.sentence,
        "fetch-bound: 61% of training time waits for storage; about 6.1 of 10 seconds"
    );
    assert_eq!(names(&summary), ["fetch-bound", "prep-bound"]);
    let first = &summary.diagnoses[0];
    assert!((first.share - 0.61).abs() < 0.001);
    assert!(first.evidence.contains("1 worker spent"), "{}", first.evidence);
    assert!(first.advice.contains("num_workers (the script has 1)"), "{}", first.advice);
}

#[test]
fn what_a_host_takes_away_is_shown_from_a_fiftieth_of_its_cpus_on() {
    let mut stage = job(101, &[(30, Does::Cpu)], &[(61, Does::In(Blocked::FileRead)), (5, Does::Cpu)]);
    stage.ledger.set_host_cpus(HostCpus { stolen_share: 0.01, ..HostCpus::default() });
    assert_eq!(names(&stage.ledger.summary()), ["fetch-bound", "prep-bound"]);
    stage.ledger.set_host_cpus(HostCpus { stolen_share: 0.08, ..HostCpus::default() });
    let summary = stage.ledger.summary();
    assert_eq!(names(&summary), ["fetch-bound", "stolen-cpu", "prep-bound"]);
    assert_eq!(
        summary.diagnoses[1].finding,
        "the host of this virtual machine gave 8.0% of its CPU time to others"
    );
}

#[test]
fn each_cause_has_its_finding() {
    use Does::*;
    type Doing = &'static [(u64, Does)];
    let cases: [(&str, &str, Doing, Doing); 6] = [
        ("prep-bound", "prep-bound", &[(50, Cpu)], &[(50, Cpu)]),
        ("short of CPU", "starved-workers", &[(50, Cpu)], &[(10, Cpu), (40, Runnable)]),
        ("transfer-bound", "transfer-bound", &[(50, Cpu)], &[]),
        ("short of CPU", "preempted-trainer", &[(50, Cpu), (50, Runnable)], &[]),
        ("checkpoint-bound", "checkpoint-stall", &[(50, Cpu), (50, In(Blocked::Sync))], &[]),
        ("unexplained", "unexplained-time", &[(50, Cpu), (50, In(Blocked::Futex))], &[]),
    ];
    for (finding, lint, own, made) in cases {
        let summary = job(20, own, made).ledger.summary();
        assert_eq!(summary.verdict.finding, finding, "{}", summary.verdict.sentence);
        assert_eq!(names(&summary)[0], lint);
    }
}

#[test]
fn what_has_one_remedy_counts_together() {
    use Does::*;
    let stage =
        job(20, &[(38, Cpu), (14, Runnable)], &[(22, In(Blocked::FileRead)), (6, Cpu), (20, Runnable)]);
    let summary = stage.ledger.summary();
    assert_eq!(
        summary.verdict.sentence,
        "short of CPU: 34% of training time waits for a CPU: 20% while batches are made and handed over, 14% \
         as the trainer gets none; about 646 of 1900 ms"
    );
    // Also where storage alone takes more than either.
    assert_eq!(names(&summary)[..3], ["starved-workers", "preempted-trainer", "fetch-bound"]);
}

#[test]
fn a_part_that_is_hardly_there_is_neither_named_nor_counted() {
    use Does::*;
    let made = |step| if step % 2 == 0 { &[(1, Runnable), (2, Cpu)][..] } else { &[(3, Cpu)][..] };
    let summary = each(21, &[(40, Cpu), (57, Runnable)], made).ledger.summary();
    let sentence = summary.verdict.sentence;
    assert!(
        sentence.starts_with("short of CPU: 57% of training time the trainer is ready to run"),
        "{sentence}"
    );
}

#[test]
fn a_loop_that_sleeps_on_its_own_has_no_data_stall() {
    for kind in [Blocked::Futex, Blocked::Net, Blocked::Sleep] {
        let summary = job(20, &[(60, Does::Cpu), (40, Does::In(kind))], &[]).ledger.summary();
        assert!(names(&summary).contains(&"no-data-stall"), "{kind:?}: {:?}", summary.diagnoses);
    }
}

/// What `next(iter(loader))` in a loop shows as.
#[test]
fn a_loop_that_waits_for_processes_to_end_may_have_dropped_an_iterator() {
    let advice = |kind| {
        let summary = job(20, &[(60, Does::Cpu), (40, Does::In(kind))], &[]).ledger.summary();
        let found = summary.diagnoses.iter().find(|found| found.name == "unexplained-time").unwrap();
        found.advice.clone()
    };
    assert!(advice(Blocked::Child).contains("iterator of a loader that is dropped early"));
    assert!(!advice(Blocked::Futex).contains("iterator"));
}

#[test]
fn a_job_at_work_is_compute_bound() {
    let summary = job(20, &[(99, Does::Cpu)], &[(1, Does::Cpu)]).ledger.summary();
    assert_eq!(summary.verdict.finding, "compute-bound");
    assert_eq!(names(&summary), ["no-data-stall"]);
}

#[test]
fn a_job_that_computes_most_of_the_time_is_not_called_after_its_waits() {
    let summary = job(20, &[(83, Does::Cpu)], &[(12, Does::Cpu)]).ledger.summary();
    assert_eq!(summary.verdict.finding, "compute-bound", "{}", summary.verdict.sentence);
    assert!(names(&summary).contains(&"prep-bound"), "what it waits for is found all the same");
}

#[test]
fn a_few_steps_are_no_verdict() {
    let summary = job(4, &[(30, Does::Cpu)], &[(70, Does::In(Blocked::FileRead))]).ledger.summary();
    assert_eq!(summary.verdict.finding, "too few steps");
    assert_eq!(names(&summary), ["too-few-steps"]);
    // What its time went to is known all the same.
    let did = "1 main thread was on a CPU for 30%";
    assert!(summary.verdict.sentence.contains(did), "{}", summary.verdict.sentence);
}

/// Three steps of 14 s made no verdict, though 91% of them was a lack of CPU.
#[test]
fn a_few_long_steps_are_one() {
    let mut stage = Stage::new();
    stage.ledger.loader(TRAINER, LoaderFacts { workers: 1, ..Default::default() });
    for step in 0..4 {
        let at = 1000 + 10_000 * step;
        stage.does(TRAINER, at, &[(900, Does::Cpu), (9_000, Does::Runnable), (100, Does::In(Blocked::Pipe))]);
        stage.did(WORKER, at, at + 10_000, Does::In(Blocked::Pipe));
        stage.batch(WORKER, at, at + 9_990, step);
        stage.wait(at + 9_900, at + 10_000, step);
        stage.advance(at + 10_000);
    }
    stage.finish(60_000);
    let verdict = stage.ledger.summary().verdict;
    assert_eq!(verdict.finding, "short of CPU", "{verdict:?}");
    assert!(verdict.sentence.contains(" in only "), "{verdict:?}");
}

#[test]
fn any_process_can_be_looked_at_without_steps() {
    let mut stage = Stage::empty();
    stage.ledger = Ledger::new(Config { attached: true, ..Config::default() });
    stage.ledger.root(TRAINER, 0);
    stage.does(TRAINER, 0, &[(1200, Does::Cpu), (600, Does::In(Blocked::FileRead)), (200, Does::Runnable)]);
    stage.did(300, 0, 50, Does::In(Blocked::Sleep));
    stage.finish(2200);
    let summary = stage.ledger.summary();
    assert_eq!(summary.verdict.finding, "fetch-bound");
    for words in [
        "on a CPU for 60%",
        "blocked in files for 30%",
        "no training steps were seen",
        "from outside only those of a DataLoader",
    ] {
        assert!(summary.verdict.sentence.contains(words), "{}", summary.verdict.sentence);
    }
    assert_eq!(names(&summary), ["fetch-bound", "preempted-trainer", "evidence-missing"]);
    let first = &summary.diagnoses[0];
    assert_eq!(first.finding, "the main thread waits for data for 30% of 2.0 seconds");
    assert!(first.advice.starts_with("Read the next batch in a thread"), "{}", first.advice);
    let loads = &summary.ranks[0].workers;
    assert_eq!((loads[0].pid, loads[0].fetch_ns, loads[0].runnable_ns), (TRAINER, 600 * MS, 200 * MS));
    assert_eq!((loads[1].pid, loads[1].idle_ns), (300, 50 * MS));
    assert!(summary.phases.is_empty());
}

/// What `attach` sees of a loop without a loader, in which no step shows.
#[test]
fn without_steps_the_verdict_is_what_the_main_thread_did() {
    let over = |hundredth_ms: u64, parts: &[(u64, Does)]| {
        let mut stage = Stage::empty();
        let parts: Vec<(u64, Does)> = parts.iter().map(|(of, does)| (of * hundredth_ms, *does)).collect();
        stage.does(TRAINER, 0, &parts);
        stage.finish(100 * hundredth_ms + 100);
        stage.ledger.summary().verdict.finding
    };
    let verdict = |parts: &[(u64, Does)]| over(20, parts);
    let (cpu, runnable) = (Does::Cpu, Does::Runnable);
    let (fault, sync) = (Does::In(Blocked::Fault), Does::In(Blocked::Sync));
    let (lock, sleep) = (Does::In(Blocked::Futex), Does::In(Blocked::Sleep));
    assert_eq!(verdict(&[(30, cpu), (65, fault), (5, runnable)]), "fetch-bound");
    assert_eq!(verdict(&[(50, cpu), (40, runnable), (10, fault)]), "short of CPU");
    assert_eq!(verdict(&[(90, cpu), (10, fault)]), "compute-bound");
    assert_eq!(verdict(&[(70, cpu), (5, fault), (25, sync)]), "checkpoint-bound");
    // Nobody knows what for.
    for asleep in [lock, sleep] {
        assert_eq!(verdict(&[(20, cpu), (70, asleep), (10, fault)]), "no training steps seen");
    }
    // A shell or a server: a process that never works trains nothing.
    assert_eq!(verdict(&[(100, Does::In(Blocked::Net))]), "no training steps seen");
    // A job that fails as it starts.
    assert_eq!(over(1, &[(30, cpu), (70, runnable)]), "no training steps seen");
}

#[test]
fn without_steps_the_process_that_works_stands_for_the_job_and_its_sleep_under_way_counts() {
    let mut stage = Stage::empty();
    stage.new_task(TRAINER, 1, 0, "torchrun");
    stage.did(TRAINER, 0, 100, Does::In(Blocked::Child));
    stage.new_task(200, TRAINER, 0, "python");
    stage.does(200, 0, &[(20, Does::Cpu), (10, Does::In(Blocked::Pipe))]);
    let blocked = TaskSlot { ppid: TRAINER, ..slot(200, 30, Does::In(Blocked::Fault)) };
    stage.ledger.open_slot(&blocked, 100 * MS);
    stage.new_task(201, 200, 0, "reader");
    stage.did(201, 0, 100, Does::Cpu);
    stage.finish(200);
    let main = stage.ledger.summary().main_threads;
    assert_eq!((main.count, main.pid, main.wall_ns), (1, 200, 100 * MS));
    assert_eq!((main.cpu_ns, main.pipes_ns, main.faults_ns), (20 * MS, 10 * MS, 70 * MS));
}

#[test]
fn nothing_seen_is_called_nothing() {
    let summary = Stage::empty().ledger.summary();
    assert_eq!(summary.verdict.finding, "not measured");
    assert!(summary.ranks.is_empty());
}

#[test]
fn loads_of_workers_that_follow_each_other_are_one_line() {
    let mut stage = Stage::empty();
    stage.greet(TRAINER, 1, ProcessKind::Trainer, 0, 1);
    for epoch in 0..300u32 {
        let (pid, at) = (1000 + epoch, u64::from(epoch) * 100);
        stage.new_task(pid, TRAINER, at, "python");
        stage.greet(pid, TRAINER, ProcessKind::Worker, 0, 1);
        stage.does(
            pid,
            at,
            &[(20, Does::In(Blocked::FileRead)), (10, Does::Cpu), (10, Does::In(Blocked::Pipe))],
        );
        stage.batch(pid, at, at + 30, 0);
        stage.wait_for(TRAINER, 0, pid, at, at + 40, 0, wait_flags::FIRST);
        stage.exits(pid, at + 41);
        stage.advance(at + 99);
    }
    stage.finish(40_000);
    let summary = stage.ledger.summary();
    let [load] = summary.ranks[0].workers.as_slice() else { panic!("{:?}", summary.ranks[0].workers) };
    assert_eq!(summary.ranks[0].workers_at_once(), 1);
    assert_eq!((load.batches, load.wall_ns), (Some(300), 12_000 * MS));
    assert_eq!((load.fetch_ns, load.cpu_ns, load.idle_ns), (6_000 * MS, 3_000 * MS, 3_000 * MS));
}

/// "3 workers" stood beside "2 workers", as one of an epoch was still ending when those of the next had begun.
#[test]
fn workers_that_end_while_their_followers_begin_are_not_counted_beside_them() {
    let mut stage = Stage::empty();
    stage.greet(TRAINER, 1, ProcessKind::Trainer, 0, 1);
    for epoch in 0..5u32 {
        let at = u64::from(epoch) * 100;
        for worker in 0..2 {
            let pid = 1000 + 2 * epoch + worker;
            stage.new_task(pid, TRAINER, at, "python");
            stage.greet(pid, TRAINER, ProcessKind::Worker, 0, 1);
            stage.does(
                pid,
                at,
                &[(20, Does::In(Blocked::FileRead)), (10, Does::Cpu), (74, Does::In(Blocked::Pipe))],
            );
            let batch = lane::Batch {
                loader: 0,
                worker,
                start_ns: at * MS,
                batch: worker.into(),
                collate_ns: 0,
                cpu_ns: 0,
            };
            stage.lane(pid, batch.encode((at + 30) * MS));
            stage.wait_for(TRAINER, 0, pid, at, at + 40, worker.into(), wait_flags::FIRST);
            stage.exits(pid, at + 105);
        }
        stage.advance(at + 99);
    }
    stage.finish(10_000);
    assert_eq!(stage.ledger.summary().ranks[0].facts.workers_at_once, 2);
}

/// As from outside: nobody tells which of them follows which.
#[test]
fn two_workers_in_each_of_many_epochs_are_two_workers() {
    let mut stage = Stage::empty();
    stage.greet(TRAINER, 1, ProcessKind::Trainer, 0, 1);
    for epoch in 0..40u32 {
        let at = u64::from(epoch) * 2_000;
        for worker in 0..2 {
            let pid = 1000 + 2 * epoch + worker;
            stage.new_task(pid, TRAINER, at + 10 * u64::from(worker), "pt_data_worker");
            // The last state of the one before is looked at after its exit.
            stage.ledger.still_blocked(pid - 2, (at + 15) * MS);
            stage.does(pid, at + 20, &[(900, Does::In(Blocked::FileRead)), (100, Does::Cpu)]);
            stage.exits(pid, at + 1_100);
        }
        stage.advance(at + 1_999);
    }
    stage.finish(100_000);
    let rank = &stage.ledger.summary().ranks[0];
    assert!(rank.workers.len() > 2, "each process is listed: {}", rank.workers.len());
    assert_eq!(rank.workers_at_once(), 2);
}

#[test]
fn one_worker_that_does_all_is_named() {
    let mut stage = job(20, &[(30, Does::Cpu)], &[(70, Does::In(Blocked::FileRead))]);
    stage.greet(102, TRAINER, ProcessKind::Worker, 0, 1);
    stage.did(102, 1000, 3000, Does::In(Blocked::Pipe));
    let summary = stage.ledger.summary();
    let uneven = summary.diagnoses.iter().find(|d| d.name == "uneven-workers").unwrap();
    assert!(
        uneven.finding.starts_with("one of the 2 workers of rank 0 is at work for 70%"),
        "{}",
        uneven.finding
    );
}

#[test]
fn workers_that_came_later_do_not_make_the_others_uneven() {
    // Two do all of the first half; six more share the second one with them.
    let mut stage = Stage::empty();
    stage.ledger.root(TRAINER, 0);
    stage.greet(TRAINER, 1, ProcessKind::Trainer, 0, 1);
    let later = WORKER + 2..WORKER + 8;
    for pid in [WORKER, WORKER + 1] {
        stage.greet(pid, TRAINER, ProcessKind::Worker, 0, 1);
    }
    for step in 0..40 {
        let at = 1000 + 100 * step;
        if step == 20 {
            later.clone().for_each(|pid| stage.greet(pid, TRAINER, ProcessKind::Worker, 0, 1));
        }
        let team = if step < 20 { WORKER..WORKER + 2 } else { WORKER..WORKER + 8 };
        let busy_ms = if step < 20 { 100 } else { 70 };
        stage.did(TRAINER, at, at + 20, Does::Cpu);
        for pid in team {
            stage.did(pid, at, at + busy_ms, Does::In(Blocked::FileRead));
            if busy_ms < 100 {
                stage.did(pid, at + busy_ms, at + 100, Does::In(Blocked::Pipe));
            }
        }
        stage.batch(WORKER, at, at + 60, step);
        let first = if step == 0 { wait_flags::FIRST } else { 0 };
        stage.wait_for(TRAINER, 0, WORKER, at + 20, at + 61, step, first);
        stage.advance(at + 100);
    }
    stage.finish(9_000);
    let summary = stage.ledger.summary();
    assert_eq!(summary.ranks[0].workers.len(), 8);
    let names: Vec<&str> = summary.diagnoses.iter().map(|found| found.name.as_str()).collect();
    assert!(names.contains(&"fetch-bound") && !names.contains(&"uneven-workers"), "{names:?}");
}

#[test]
fn a_stall_that_the_device_did_not_feel_is_no_verdict() {
    let mut stage = Stage::new();
    for step in 0..20u64 {
        let at = 1000 + 100 * step;
        stage.did(TRAINER, at, at + 100, Does::Cpu);
        stage.did(WORKER, at, at + 100, Does::In(Blocked::FileRead));
        stage.batch(WORKER, at + 10, at + 100, step);
        stage.wait(at + 10, at + 100, step);
        stage.device_idle(at, at + 100, 0);
    }
    stage.finish(5000);
    let summary = stage.ledger.summary();
    assert_eq!(summary.verdict.finding, "no data stall", "{}", summary.verdict.sentence);
    assert!(names(&summary).contains(&"no-data-stall"));
}

#[test]
fn workers_of_two_loaders_are_kept_apart() {
    let mut stage = Stage::new();
    stage.greet(102, TRAINER, ProcessKind::Worker, 0, 1);
    stage.did(WORKER, 0, 100, Does::Cpu);
    stage.did(102, 0, 100, Does::Cpu);
    // Both call themselves worker 0 of loader 0.
    stage.batch(WORKER, 0, 20, 0);
    stage.batch(102, 0, 20, 0);
    stage.wait_for(TRAINER, 0, WORKER, 0, 30, 0, wait_flags::FIRST);
    stage.wait_for(TRAINER, 1, 102, 40, 50, 0, wait_flags::FIRST | wait_flags::NO_GRAD);
    stage.finish(200);
    let summary = stage.ledger.summary();
    let pids: Vec<u32> = summary.ranks[0].workers.iter().map(|load| load.pid).collect();
    assert_eq!(pids, [WORKER, 102]);
}

#[test]
fn only_workers_that_train_count_as_busy_readers() {
    let mut stage = Stage::new();
    stage.greet(102, TRAINER, ProcessKind::Worker, 0, 1);
    // The evaluation's persistent worker idles.
    stage.did(102, 0, 3000, Does::In(Blocked::Pipe));
    stage.batch(102, 0, 20, 0);
    stage.wait_for(TRAINER, 1, 102, 0, 21, 0, wait_flags::FIRST | wait_flags::NO_GRAD);
    for step in 0..20 {
        let at = 100 + 100 * step;
        let flags = if step == 0 { wait_flags::FIRST } else { 0 };
        stage.did(WORKER, at, at + 100, Does::In(Blocked::FileRead));
        stage.batch(WORKER, at, at + 99, step);
        stage.wait_for(TRAINER, 0, WORKER, at + 1, at + 100, step, flags);
    }
    stage.finish(3000);
    let summary = stage.ledger.summary();
    let first = &summary.diagnoses[0];
    assert_eq!(first.name, "fetch-bound");
    assert!(first.evidence.contains("; 1 worker spent"), "{}", first.evidence);
    assert!(first.evidence.contains(" of its time reading"), "{}", first.evidence);
}

#[test]
fn a_job_without_a_shim_is_advised_to_use_run_only_where_it_was_not_launched_by_it() {
    let advice = |attached: bool| {
        let config = Config { attached, ..Config::default() };
        let summary = Ledger::new(config).summary();
        summary.diagnoses.into_iter().find(|found| found.name == "evidence-missing").unwrap().advice
    };
    assert_eq!(advice(true), "Start the job with `stallscope run`");
    assert!(!advice(false).contains("stallscope run"), "{}", advice(false));
    // Seen: "kernel evidence only" above "kernel: missing".
    let neither = Ledger::new(Config::default()).summary().diagnoses;
    let found = neither.iter().find(|found| found.name == "evidence-missing").unwrap();
    assert!(found.finding.contains("neither") && !found.evidence.contains("kernel"), "{found:?}");
}
