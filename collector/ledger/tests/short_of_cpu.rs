//! The advice to a job that waits for a CPU: by whether others hold its CPUs, or its own processes do.

use crate::stage::{Does, MS, Stage, TRAINER, WORKER, slice};
use stallscope_abi::kernel::{Blocked, Record};
use stallscope_abi::lane::StepSource;
use stallscope_ledger::{Config, HostCpus, Ledger, ProcessKind, Wanted};
use stallscope_model::{Estimate, Expected, LoaderFacts, Rates, RemedyKind, RunSummary};

fn on(cpus: u32, attached: bool) -> Stage {
    let mut stage = Stage::empty();
    stage.ledger = Ledger::new(Config { cpus, attached, ..Config::default() });
    stage.ledger.root(TRAINER, 0);
    stage
}

/// The main thread does this while other threads of its process have so many milliseconds of a CPU.
fn beside(stage: &mut Stage, start: u64, end: u64, does: Does, threads: u64) {
    let slice =
        stallscope_abi::kernel::Slice { sibling_cpu_ns: threads * MS, ..slice(TRAINER, start, end, does) };
    stage.ledger.kernel(&Record::Slice(slice));
}

/// Steps of 100 ms of a loop without a loader: its main thread is on a CPU for half of each, without one for the rest, and
/// other threads of it have `threads` ms of a CPU meanwhile.
fn loop_alone(cpus: u32, threads: u64) -> Stage {
    let mut stage = on(cpus, false);
    stage.greet(TRAINER, 1, ProcessKind::Trainer, 0, 1);
    for step in 0..40 {
        let at = 1000 + 100 * step;
        beside(&mut stage, at, at + 50, Does::Cpu, threads / 2);
        beside(&mut stage, at + 50, at + 100, Does::Runnable, threads / 2);
        stage.stepped(at + 100, StepSource::Optimiser);
        stage.advance(at + 100);
    }
    stage.finish(8_000);
    stage
}

/// Steps of 100 ms of a job with a loader that keeps up: the trainer is on a CPU for 70 ms and without one for 27, with as
/// many milliseconds of its other threads as `threads` says; its worker decodes meanwhile for `decodes` ms.
fn loader(cpus: u32, threads: u64, decodes: u64) -> Stage {
    loader_of(cpus, threads, decodes, 70)
}

/// The same of a trainer that is on a CPU for `computes` ms of the 97.
fn loader_of(cpus: u32, threads: u64, decodes: u64, computes: u64) -> Stage {
    let mut stage = on(cpus, false);
    stage.greet(TRAINER, 1, ProcessKind::Trainer, 0, 1);
    stage.greet(WORKER, TRAINER, ProcessKind::Worker, 0, 1);
    stage.ledger.loader(TRAINER, LoaderFacts { workers: 6, ..Default::default() });
    for step in 0..40 {
        let at = 1000 + 100 * step;
        beside(&mut stage, at, at + computes, Does::Cpu, threads / 2);
        beside(&mut stage, at + computes, at + 97, Does::Runnable, threads / 2);
        stage.did(TRAINER, at + 97, at + 100, Does::In(Blocked::Pipe));
        stage.does(WORKER, at, &[(decodes, Does::Cpu), (100 - decodes, Does::In(Blocked::Pipe))]);
        stage.batch(WORKER, at, at + 99, step);
        stage.wait(at + 97, at + 100, step);
        stage.advance(at + 100);
    }
    stage.finish(8_000);
    stage
}

fn advice(stage: &Stage, expected: &[Expected]) -> Vec<String> {
    let diagnoses = stage.ledger.summary_with(expected, &[]).diagnoses;
    let summary = RunSummary { diagnoses, ..RunSummary::default() };
    summary.remedies().into_iter().map(|remedy| remedy.sentence.clone()).collect()
}

fn about<'a>(advice: &'a [String], words: &str) -> Option<&'a str> {
    advice.iter().map(String::as_str).find(|sentence| sentence.contains(words))
}

fn more_cores(value: f64) -> Expected {
    Expected {
        rank: 0,
        loader: 0,
        kind: RemedyKind::MoreCores,
        now: 0,
        to: 0,
        gain: Estimate { value, low: value - 0.5, high: value + 0.1 },
        either: None,
        by_script: false,
        why: String::new(),
    }
}

/// Beside two busy processes, one thread instead of two took a step of such a loop from 341 to 137 ms.
#[test]
fn threads_of_a_loop_without_a_loader_are_counted_too() {
    for (threads, wanted) in [(50, true), (2, false)] {
        let advice = advice(&loop_alone(2, threads), &[]);
        assert_eq!(about(&advice, "OMP_NUM_THREADS=").is_some(), wanted, "{threads}: {advice:#?}");
        let others = advice
            .iter()
            .position(|sentence| sentence.contains("Keep other work off"))
            .expect("there are some");
        assert!(
            !wanted || advice[..others].iter().any(|one| one.contains("OMP_NUM_THREADS=")),
            "{advice:#?}"
        );
    }
}

/// No step of a loop without a loader shows from outside.
#[test]
fn without_steps_a_main_thread_that_gets_no_cpu_is_advised_the_same() {
    for (threads, wanted) in [(40, true), (0, false)] {
        let mut stage = on(2, true);
        for at in (0..4000).step_by(100) {
            beside(&mut stage, at, at + 50, Does::Cpu, threads / 2);
            beside(&mut stage, at + 50, at + 100, Does::Runnable, threads / 2);
        }
        stage.finish(5_000);
        let summary = stage.ledger.summary();
        assert_eq!(summary.verdict.finding, "short of CPU");
        let first = &summary.diagnoses[0];
        assert_eq!(first.name, "preempted-trainer");
        assert_eq!(first.finding, "the main thread is ready to run and gets no CPU for 50% of 4.0 seconds");
        let advice = advice(&stage, &[]);
        assert!(about(&advice, "Keep other work off").is_some(), "{advice:#?}");
        assert_eq!(about(&advice, "OMP_NUM_THREADS=").is_some(), wanted, "{advice:#?}");
    }
}

/// `attach` to a job that waited 27% of its time for data and 48% for a CPU had advice on the CPU alone.
#[test]
fn without_steps_what_the_main_thread_reads_is_advised_on_beside_its_lack_of_cpu() {
    let advised = |reads: u64| {
        let mut stage = on(2, true);
        for at in (0..4000).step_by(100) {
            stage.does(
                TRAINER,
                at,
                &[(48, Does::Runnable), (reads, Does::In(Blocked::FileRead)), (52 - reads, Does::Cpu)],
            );
        }
        stage.finish(5_000);
        let summary = stage.ledger.summary();
        assert_eq!(summary.verdict.finding, "short of CPU");
        summary.diagnoses.iter().map(|found| found.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(advised(27)[..2], ["preempted-trainer", "fetch-bound"]);
    assert!(!advised(4).contains(&"fetch-bound".to_owned()));
}

/// Others held 60% of a CPU: cheaper samples, which came first, brought +7%, and the others' end +182%.
#[test]
fn where_others_have_most_of_the_cpus_their_end_comes_first() {
    let cheaper = Expected { kind: RemedyKind::CheaperSamples, ..more_cores(0.6) };
    let first =
        |computes: u64| advice(&loader_of(2, 0, 30, computes), std::slice::from_ref(&cheaper)).remove(0);
    assert!(first(28).starts_with("Keep other work off"), "{}", first(28));
    assert!(first(50).starts_with("Halve the CPU time of a sample"), "{}", first(50));
}

/// Twice the CPUs had been expected to bring +173% (+100% to +185%); that the others stopped brought +270% to +330%.
#[test]
fn a_gain_is_given_with_the_one_change_that_it_is_of() {
    let mut stage = loop_alone(2, 50);
    stage.ledger.set_host_cpus(HostCpus { all: 64.0, idle: 50.0, ..HostCpus::default() });
    let advice = advice(&stage, &[more_cores(1.73)]);
    let figure = about(&advice, "+173%").unwrap();
    assert!(figure.starts_with("Give the job twice the CPUs"), "{figure}");
    assert!(!figure.contains("other work") && !figure.contains("of its own"), "{figure}");
    let stop = about(&advice, "Keep other work off").unwrap();
    assert!(stop.contains("not estimated") && stop.contains("can be much"), "{stop}");
    assert!(!stop.contains('%'), "{stop}");
}

/// Twice the CPUs had been expected to bring +99%, and brought +4%: others wanted those, too.
#[test]
fn a_gain_of_more_cpus_is_given_where_some_are_idle_or_the_job_has_the_machine_to_itself() {
    let says = |stage: &mut Stage, all: f64, idle: f64| {
        stage.ledger.set_host_cpus(HostCpus { all, idle, ..HostCpus::default() });
        let advice = advice(stage, &[more_cores(0.99)]);
        assert!(about(&advice, "ive the job").is_some(), "the lack is named: {advice:#?}");
        about(&advice, "+99%").is_some()
    };
    let mut beside_others = loop_alone(2, 50);
    assert!(!says(&mut beside_others, 8.0, 0.5));
    assert!(!says(&mut beside_others, 2.0, 0.0));
    assert!(!says(&mut beside_others, 0.0, 0.0), "nobody looked");
    assert!(says(&mut beside_others, 8.0, 3.0));
    // Its own processes use both, and there are no others.
    assert!(says(&mut loader(2, 40, 90), 2.0, 0.1));
}

/// Advice on threads stood third, and brought most.
#[test]
fn far_more_threads_than_cpus_are_the_first_advice() {
    let first = |threads: f64, main_threads: f64| {
        let mut stage = loader(2, 40, 90);
        let wanted = Wanted { threads, main_threads, ..Wanted::default() };
        stage.ledger.set_host_cpus(HostCpus { all: 2.0, idle: 0.0, wanted, ..HostCpus::default() });
        let advice = advice(&stage, &[more_cores(0.99)]);
        let threads = advice.iter().filter(|sentence| sentence.contains("OMP_NUM_THREADS=")).count();
        (advice[0].contains("16 want a CPU at once, and it has 2"), threads)
    };
    assert_eq!(first(16.0, 1.5), (true, 1));
    // Of many workers each has one thread: their number is what may be too large.
    assert_eq!(first(9.0, 9.0), (false, 0));
    assert_eq!(first(2.5, 0.8), (false, 0));
    assert_eq!(first(0.0, 0.0), (false, 0), "nobody counted");
}

#[test]
fn the_quota_of_a_job_is_named_and_no_others_are() {
    let of = |quota_used_up_share| {
        let mut stage = loader(2, 40, 20);
        let wanted = Wanted { quota_used_up_share, ..Wanted::default() };
        stage.ledger.set_host_cpus(HostCpus { all: 8.0, idle: 6.0, wanted, ..HostCpus::default() });
        advice(&stage, &[])
    };
    let held_back = of(0.85);
    let quota = about(&held_back, "quota of its control group").unwrap();
    assert!(quota.contains("limits.cpu") && quota.contains("85% of the periods"), "{quota}");
    assert!(about(&held_back, "Keep other work off").is_none(), "{held_back:#?}");
    let at_times = of(0.05);
    assert!(
        about(&at_times, "quota").is_none() && about(&at_times, "Keep other work off").is_some(),
        "{at_times:#?}"
    );
}

/// Fewer workers and fewer threads of a job alone on its CPUs had brought -31% to +7%.
#[test]
fn what_may_slow_a_job_down_that_is_in_its_own_way_names_its_condition() {
    let alone = advice(&loader(2, 40, 90), &[]);
    let threads = about(&alone, "OMP_NUM_THREADS").unwrap();
    assert!(threads.contains("only where") && threads.contains("slows"), "{threads}");
    let workers = about(&alone, "smaller num_workers (the script has 6)").unwrap();
    assert!(workers.contains("slows") && workers.contains("cannot tell how much"), "{workers}");
    let cpus = about(&alone, "Give the job more CPUs").unwrap();
    assert!(cpus.contains("cannot tell how much"), "{cpus}");
    assert!(about(&alone, "Keep other work off").is_none(), "there is nobody else: {alone:#?}");
    let beside_others = advice(&loader(4, 40, 20), &[]);
    let threads = about(&beside_others, "OMP_NUM_THREADS").unwrap();
    assert!(!threads.contains("only where") && threads.contains("not estimated"), "{threads}");
    assert!(about(&beside_others, "smaller num_workers").is_none(), "{beside_others:#?}");
}

/// Training that waits for batches whose workers get no CPU is not helped by fewer of them.
#[test]
fn fewer_workers_are_not_advised_where_training_waits_for_them() {
    let mut stage = on(1, false);
    stage.greet(TRAINER, 1, ProcessKind::Trainer, 0, 1);
    stage.greet(WORKER, TRAINER, ProcessKind::Worker, 0, 1);
    stage.ledger.loader(TRAINER, LoaderFacts { workers: 4, ..Default::default() });
    for step in 0..40 {
        let at = 1000 + 100 * step;
        stage.does(TRAINER, at, &[(40, Does::Cpu), (10, Does::Runnable), (50, Does::In(Blocked::Pipe))]);
        stage.does(WORKER, at, &[(50, Does::In(Blocked::Pipe)), (20, Does::Runnable), (30, Does::Cpu)]);
        // Another of its processes has the CPU meanwhile.
        stage.did(300, at, at + 20, Does::Cpu);
        stage.batch(WORKER, at + 50, at + 100, step);
        stage.wait(at + 50, at + 100, step);
        stage.advance(at + 100);
    }
    stage.finish(8_000);
    let advice = advice(&stage, &[]);
    assert!(about(&advice, "Give the job more CPUs").is_some(), "{advice:#?}");
    assert!(
        about(&advice, "num_workers").is_none_or(|sentence| !sentence.contains("smaller")),
        "{advice:#?}"
    );
}

/// In a trial the trainer lacked a CPU for half of its time, while workers read as fast as the storage gave: more CPUs would have brought
/// nothing.
#[test]
fn storage_that_sets_the_pace_leads_before_a_longer_wait_for_a_cpu() {
    let mut stage = on(2, false);
    stage.greet(TRAINER, 1, ProcessKind::Trainer, 0, 1);
    stage.greet(WORKER, TRAINER, ProcessKind::Worker, 0, 1);
    stage.ledger.loader(TRAINER, LoaderFacts { workers: 1, ..Default::default() });
    for step in 0..40 {
        let at = 1000 + 100 * step;
        stage.does(TRAINER, at, &[(20, Does::Cpu), (45, Does::Runnable), (35, Does::In(Blocked::Pipe))]);
        stage.does(WORKER, at, &[(99, Does::In(Blocked::FileRead)), (1, Does::Cpu)]);
        stage.batch(WORKER, at, at + 100, step);
        stage.wait(at + 65, at + 100, step);
        stage.advance(at + 100);
    }
    stage.finish(8_000);
    let rate = |value| Some(Estimate { value, low: value, high: value });
    let finding = |fetch, compute| {
        let rates =
            Rates { actual: rate(10.0), fetch: rate(fetch), compute: rate(compute), ..Rates::default() };
        stage.ledger.summary_with(&[], &[rates]).verdict.finding
    };
    assert_eq!(finding(10.1, 15.4), "fetch-bound");
    assert_eq!(finding(20.0, 15.4), "short of CPU", "they read faster than that");
    assert_eq!(finding(10.1, 10.4), "short of CPU", "training is no faster");
    assert_eq!(stage.ledger.summary().verdict.finding, "short of CPU", "nobody knows the rates");
}
