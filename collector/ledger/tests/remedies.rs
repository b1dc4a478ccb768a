//! The advice about findings: one list, by what the model of the job expects.

use crate::stage::{Does, Stage, TRAINER, WORKER};
use stallscope_abi::kernel::Blocked;
use stallscope_abi::lane::wait_flags;
use stallscope_ledger::{Config, HostCpus, Ledger, ProcessKind};
use stallscope_model::{Either, Estimate, Expected, LoaderFacts, Rates, RemedyKind, RunSummary};

/// Steps of 100 ms: the trainer does `own`, then waits while its worker does `made`; the script has so many workers.
fn job(cpus: u32, workers: u32, own: &[(u64, Does)], made: &[(u64, Does)]) -> Stage {
    let config = Config { cpus, ..Config::default() };
    let mut stage = Stage { ledger: Ledger::new(config), ..Stage::empty() };
    stage.ledger.root(TRAINER, 0);
    stage.greet(TRAINER, 1, ProcessKind::Trainer, 0, 1);
    stage.greet(WORKER, TRAINER, ProcessKind::Worker, 0, 1);
    stage.ledger.loader(TRAINER, LoaderFacts { workers, ..Default::default() });
    let own_ms: u64 = own.iter().map(|(ms, _)| ms).sum();
    for step in 0..30 {
        let at = 1000 + 100 * step;
        stage.does(TRAINER, at, own);
        stage.did(TRAINER, at + own_ms, at + 100, Does::In(Blocked::Pipe));
        stage.did(WORKER, at, at + own_ms, Does::In(Blocked::Pipe));
        stage.does(WORKER, at + own_ms, made);
        let made_ms: u64 = made.iter().map(|(ms, _)| ms).sum();
        stage.batch(WORKER, at + own_ms, at + own_ms + made_ms, step);
        stage.wait(at + own_ms, at + 100, step);
        stage.advance(at + 100);
    }
    stage.finish(6_000);
    stage
}

fn reads() -> Stage {
    job(8, 2, &[(30, Does::Cpu)], &[(60, Does::In(Blocked::FileRead)), (10, Does::Cpu)])
}

fn sentences(stage: &Stage, expected: &[Expected]) -> Vec<String> {
    sentences_with(stage, expected, &[])
}

fn sentences_with(stage: &Stage, expected: &[Expected], rates: &[Rates]) -> Vec<String> {
    let diagnoses = stage.ledger.summary_with(expected, rates).diagnoses;
    let summary = RunSummary { diagnoses, ..RunSummary::default() };
    summary.remedies().into_iter().map(|remedy| remedy.sentence.clone()).collect()
}

fn estimate(value: f64) -> Estimate {
    Estimate { value, low: value - 0.02, high: value + 0.02 }
}

fn expected(kind: RemedyKind, now: u64, to: u64, gain: f64) -> Expected {
    Expected {
        rank: 0,
        loader: 0,
        kind,
        now,
        to,
        gain: estimate(gain),
        either: None,
        by_script: false,
        why: String::new(),
    }
}

#[test]
fn what_the_model_expects_nothing_of_is_not_advised() {
    let judged = [
        expected(RemedyKind::MoreWorkers, 2, 6, 0.01),
        expected(RemedyKind::Cache, 0, 300 << 20, 0.38),
        expected(RemedyKind::FasterStorage, 0, 0, 0.45),
        expected(RemedyKind::CheaperSamples, 0, 0, 0.015),
    ];
    let advice = sentences(&reads(), &judged);
    assert_eq!(advice.len(), 2, "{advice:#?}");
    assert!(advice[0].starts_with("Make storage twice as fast") && advice[0].contains("+45%"), "{advice:#?}");
    assert!(
        advice[1].contains("cache=\"300MiB\"") && advice[1].contains("+38% (+36% to +40%)"),
        "{advice:#?}"
    );
    let found = reads().ledger.summary_with(&judged, &[]).diagnoses;
    let prep = found.iter().find(|found| found.name == "prep-bound").unwrap();
    let nothing = "Nothing is expected to help here: more workers +1%";
    assert!(prep.advice.starts_with(nothing), "{}", prep.advice);
}

/// An interval that reaches to nothing refutes no gain: a run of one minute cannot tell.
#[test]
fn what_the_model_cannot_tell_is_not_called_nothing() {
    let unclear = |kind| Expected {
        gain: Estimate { value: 0.17, low: -0.02, high: 0.4 },
        ..expected(kind, 2, 6, 0.17)
    };
    let judged = [
        unclear(RemedyKind::MoreWorkers),
        unclear(RemedyKind::FasterStorage),
        expected(RemedyKind::Cache, 0, 300 << 20, 0.0),
    ];
    let found = reads().ledger.summary_with(&judged, &[]).diagnoses;
    let advice = &found.iter().find(|found| found.name == "fetch-bound").unwrap().advice;
    let listed = "faster storage +17% (-2% to +40%)";
    assert!(advice.starts_with("This run cannot tell") && advice.contains(listed), "{advice}");
    assert!(!advice.contains("Nothing is expected"), "{advice}");
}

#[test]
fn where_nothing_tells_a_limit_from_a_delay_both_outcomes_are_named() {
    let either =
        Either { if_slow: estimate(0.54), if_limited: estimate(0.0), bytes_per_s: Some(f64::from(1 << 18)) };
    let more = Expected { either: Some(either), ..expected(RemedyKind::MoreWorkers, 2, 6, 0.3) };
    let advice = sentences(&reads(), &[more, expected(RemedyKind::FasterStorage, 0, 0, 0.2)]);
    assert!(advice[0].contains("twice as fast"), "what is certain comes first: {advice:#?}");
    let workers = advice.iter().find(|sentence| sentence.contains("num_workers")).unwrap();
    assert!(workers.contains("from 2 to 6: +54%"), "{workers}");
    assert!(workers.contains("nothing if storage is at its limit of 0.26 MB/s"), "{workers}");
    // Once in a list.
    let of = |kind, if_slow: f64, if_limited: f64| {
        let either =
            Either { if_slow: estimate(if_slow), if_limited: estimate(if_limited), bytes_per_s: None };
        Expected { either: Some(either), ..expected(kind, 2, 6, 0.3) }
    };
    let both = |limited: f64| {
        let prefetch = of(RemedyKind::MorePrefetch, 0.3, limited);
        sentences(&reads(), &[of(RemedyKind::MoreWorkers, 0.54, 0.0), prefetch]).join("\n")
    };
    assert_eq!(both(0.0).matches("if storage is at its limit").count(), 1, "{}", both(0.0));
    assert!(
        both(0.0).contains("+30% (+28% to +32%) if each read is merely slow, else nothing either"),
        "{}",
        both(0.0)
    );
    assert_eq!(both(0.1).matches("if storage is at its limit").count(), 2, "{}", both(0.1));
}

#[test]
fn without_a_model_the_condition_is_named() {
    let advice = sentences(&reads(), &[]);
    let workers = advice.iter().find(|sentence| sentence.contains("num_workers (the script has 2)")).unwrap();
    assert!(workers.contains("merely slow") && workers.contains("not where storage"), "{workers}");
}

/// Waking up takes as much on CPUs that idle.
#[test]
fn nobody_else_is_blamed_for_a_few_waits_for_a_cpu() {
    let blamed = |own: &[(u64, Does)]| {
        let made = [(60, Does::In(Blocked::FileRead)), (10, Does::Cpu)];
        sentences(&job(8, 2, own, &made), &[]).join("\n").contains("CPUs of its own")
    };
    assert!(!blamed(&[(23, Does::Cpu), (7, Does::Runnable)]));
    assert!(blamed(&[(15, Does::Cpu), (15, Does::Runnable)]));
}

/// One after the other on one screen, and more than there is, was seen on public scripts.
#[test]
fn advice_can_be_followed_and_does_not_contradict_itself() {
    let crowded: &[(u64, Does)] = &[(30, Does::Cpu), (30, Does::Runnable)];
    let decoding: &[(u64, Does)] = &[(20, Does::Cpu), (15, Does::Runnable)];
    for (cpus, workers) in [(2, 0), (2, 1), (2, 2), (2, 8), (8, 2)] {
        let advice = sentences(&job(cpus, workers, crowded, decoding), &[]).join("\n");
        let raises = advice.contains("Raise num_workers") || advice.contains("Set num_workers");
        let lowers = advice.contains("smaller num_workers");
        assert!(!(raises && lowers), "{cpus} CPUs, {workers} workers:\n{advice}");
        assert!(!raises || workers < cpus, "there is no CPU for more:\n{advice}");
        assert!(!lowers || workers > 1, "there is none to spare:\n{advice}");
        assert_eq!(advice.to_lowercase().matches("give the job").count(), 1, "given twice:\n{advice}");
    }
    let judged =
        [expected(RemedyKind::MoreWorkers, 2, 3, 0.1), expected(RemedyKind::FewerWorkers, 2, 1, 0.05)];
    let advice = sentences(&job(8, 2, crowded, decoding), &judged).join("\n");
    assert_eq!(advice.matches("num_workers").count(), 1, "{advice}");
}

/// With others on the CPUs more workers get more of them: three times the steps of one with four was seen.
#[test]
fn fewer_workers_are_advised_only_where_the_job_is_in_its_own_way() {
    let (waits, made): (&[_], &[_]) =
        (&[(30, Does::Cpu), (30, Does::Runnable)], &[(5, Does::Cpu), (30, Does::Runnable)]);
    let advice = sentences(&job(2, 2, waits, made), &[]).join("\n");
    assert!(!advice.contains("smaller num_workers"), "{advice}");
    assert!(advice.contains("uses 0.3 of the 2") || advice.contains("uses 0.4 of the 2"), "{advice}");
    assert!(advice.contains("other processes hold the rest"), "{advice}");
    let mut stage = job(2, 2, waits, made);
    stage.ledger.set_host_cpus(HostCpus { all: 8.0, idle: 4.0, ..HostCpus::default() });
    let judged = sentences(&stage, &[expected(RemedyKind::MoreCores, 0, 0, 0.98)]).join("\n");
    assert!(
        judged.contains("Give the job twice the CPUs and no more threads than now (OMP_NUM_THREADS): +98%"),
        "{judged}"
    );
    let busy: &[_] = &[(35, Does::Cpu), (15, Does::Runnable)];
    let made: &[_] = &[(45, Does::Cpu), (5, Does::Runnable)];
    let advice = sentences(&job(1, 2, busy, made), &[]).join("\n");
    assert!(advice.contains("smaller num_workers") && advice.contains("its own processes use"), "{advice}");
}

/// Workers that decode on the trainer's own core keep up, and yet take from it what it lacks.
#[test]
fn a_loader_that_takes_the_trainers_cpu_is_not_called_free() {
    let data_keeps_up = |own_ms: u64, decoding: Does| {
        let mut stage =
            Stage { ledger: Ledger::new(Config { cpus: 1, ..Config::default() }), ..Stage::empty() };
        stage.ledger.root(TRAINER, 0);
        stage.greet(TRAINER, 1, ProcessKind::Trainer, 0, 1);
        stage.greet(WORKER, TRAINER, ProcessKind::Worker, 0, 1);
        stage.ledger.loader(TRAINER, LoaderFacts { workers: 2, ..Default::default() });
        for step in 0..30 {
            let at = 1000 + 100 * step;
            let own = [(own_ms, Does::Cpu), (97 - own_ms, Does::Runnable), (3, Does::In(Blocked::Pipe))];
            stage.does(TRAINER, at, &own);
            stage.does(WORKER, at, &[(55, Does::In(Blocked::Pipe)), (42, decoding), (3, Does::Cpu)]);
            stage.batch(WORKER, at + 55, at + 100, step);
            stage.wait(at + 97, at + 100, step);
            stage.advance(at + 100);
        }
        stage.finish(6_000);
        let judged = [expected(RemedyKind::CheaperSamples, 0, 0, 0.3)];
        let found = stage.ledger.summary_with(&judged, &[]).diagnoses;
        let advice = |name: &str| {
            found
                .iter()
                .find(|found| found.name == name)
                .map(|found| found.advice.clone())
                .unwrap_or_default()
        };
        (advice("no-data-stall"), advice("preempted-trainer"))
    };
    // In the second case others hold what the job does not use: of a public script whose workers had three times the trainer's part,
    // cheaper batches made it nearly three times as fast.
    for own_ms in [55, 15] {
        let (keeps_up, short) = data_keeps_up(own_ms, Does::Cpu);
        assert!(keeps_up.contains("with less CPU would"), "{keeps_up}");
        assert!(short.contains("Halve the CPU time of a sample: ") && short.contains("+30%"), "{short}");
    }
    let (keeps_up, short) = data_keeps_up(55, Does::Runnable);
    assert!(keeps_up.starts_with("A faster loader would not"), "{keeps_up}");
    assert!(!short.contains("Halve"), "others hold the CPU: {short}");
}

/// In a trial both loaders of a loop were given cheaper samples, which brought three times what was promised of one.
#[test]
fn what_is_expected_of_one_of_several_loaders_says_so() {
    let of_loader = |kind, loader, gain| Expected { loader, ..expected(kind, 2, 4, gain) };
    let judged = [of_loader(RemedyKind::MoreWorkers, 0, 0.1), of_loader(RemedyKind::MoreWorkers, 1, 0.3)];
    let named = sentences(&reads(), &judged);
    assert!(named[0].starts_with("Raise num_workers from 2 to 4 (of loader 1 alone): +30%"), "{named:?}");
    let named = sentences(&reads(), &judged[..1]);
    assert!(named.iter().any(|one| one.starts_with("Raise num_workers from 2 to 4: +10%")), "{named:?}");
}

/// In a trial others had 18% of the only CPU; without them the job was 40% faster.
#[test]
fn what_others_hold_is_named_beside_what_the_job_itself_uses() {
    let advice = |own_ms, others_ms, made_ms| {
        let own = [(own_ms, Does::Cpu), (others_ms, Does::Runnable)];
        sentences(&job(1, 2, &own, &[(made_ms, Does::Cpu)]), &[]).join("\n")
    };
    for (own_ms, others_ms, made_ms, named) in [(45, 18, 37, true), (60, 10, 30, false), (20, 60, 20, true)] {
        let advice = advice(own_ms, others_ms, made_ms);
        assert_eq!(advice.contains("Keep other work off the job's CPUs"), named, "{advice}");
        let own = advice.contains("its own processes use those that are here");
        assert_eq!(own, others_ms < 20, "{advice}");
    }
}

#[test]
fn a_trainer_short_of_cpu_is_advised_what_it_can_still_do() {
    let stage = job(2, 2, &[(30, Does::Cpu), (40, Does::Runnable)], &[(20, Does::Cpu)]);
    let counted = |threads: f64| [Rates { trainer_threads: Some(threads), ..Rates::default() }];
    for (rates, wanted) in [(&[][..], false), (&counted(2.0), true), (&counted(1.02), false)] {
        let advice = sentences_with(&stage, &[], rates).join("\n");
        assert_eq!(advice.contains("OMP_NUM_THREADS"), wanted, "{rates:?}\n{advice}");
    }
    // The model can't tell whether more cores help, or is sure that they don't.
    let cores = |low: f64, high: f64| Expected {
        gain: Estimate { value: 0.05, low, high },
        ..expected(RemedyKind::MoreCores, 0, 0, 0.0)
    };
    let advice = sentences(&stage, &[cores(-0.1, 0.4)]).join("\n");
    assert!(advice.contains("give the job CPUs of its own") && !advice.contains('%'), "{advice}");
    assert!(advice.contains("How much that brings is not estimated"), "{advice}");
    let advice = sentences(&stage, &[cores(-0.01, 0.01)]).join("\n");
    assert!(!advice.contains("Give the job"), "{advice}");
}

#[test]
fn a_cache_that_the_job_as_it_is_cannot_have_is_advised_with_the_change_to_the_script() {
    let stage = reads();
    let cache = |by_script| Expected { by_script, ..expected(RemedyKind::Cache, 0, 1 << 30, 0.5) };
    let [unmodified, changed] =
        [false, true].map(|by_script| sentences(&stage, &[cache(by_script)]).join("\n"));
    assert!(
        unmodified.contains("stallscope run --cache 1024MiB (it keeps the training set alone"),
        "{unmodified}"
    );
    assert!(unmodified.contains(" expected from the second epoch on"), "{unmodified}");
    let larger = sentences(&stage, &[expected(RemedyKind::Cache, 1 << 30, 2 << 30, 0.5)]).join("\n");
    assert!(larger.contains(" expected once it is full"), "{larger}");
    assert!(!changed.contains("run --cache") && changed.contains("`fetch` and `decode`"), "{changed}");
}

#[test]
fn workers_of_an_evaluation_are_not_compared_with_those_of_training() {
    let evaluator = WORKER + 1;
    let mut stage = Stage::empty();
    stage.ledger.root(TRAINER, 0);
    stage.greet(TRAINER, 1, ProcessKind::Trainer, 0, 1);
    for (loader, pid) in [(0, WORKER), (1, evaluator)] {
        stage.greet(pid, TRAINER, ProcessKind::Worker, 0, 1);
        stage.ledger.loader(TRAINER, LoaderFacts { loader, workers: 1, ..Default::default() });
    }
    for step in 0..30 {
        let at = 1000 + 100 * step;
        stage.did(TRAINER, at, at + 20, Does::Cpu);
        stage.did(WORKER, at, at + 100, Does::In(Blocked::FileRead));
        stage.did(evaluator, at, at + 100, Does::In(Blocked::Pipe));
        stage.batch(WORKER, at, at + 99, step);
        let first = if step == 0 { wait_flags::FIRST } else { 0 };
        stage.wait_for(TRAINER, 0, WORKER, at + 20, at + 100, step, first);
        stage.advance(at + 100);
    }
    stage.did(evaluator, 4_000, 4_010, Does::Cpu);
    stage.batch(evaluator, 4_000, 4_010, 0);
    stage.wait_for(TRAINER, 1, evaluator, 4_001, 4_011, 0, wait_flags::FIRST | wait_flags::NO_GRAD);
    stage.finish(9_000);
    let summary = stage.ledger.summary();
    let mut loads: Vec<_> = summary.ranks[0].workers.iter().map(|load| (load.pid, load.loader)).collect();
    loads.sort_unstable();
    assert_eq!(loads, [(WORKER, Some(0)), (evaluator, Some(1))]);
    let names: Vec<&str> = summary.diagnoses.iter().map(|found| found.name.as_str()).collect();
    assert!(!names.contains(&"uneven-workers"), "{names:?}");
}
