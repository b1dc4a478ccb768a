//! What the model says of a job whose every part is known: profiled at one setting, asked about others, and compared
//! with the same job really run there.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use stallscope_control::pipeline::{Conditions, Demand, Pipeline, Storage};
use stallscope_control::{
    Bottleneck, Change, Delta, NodeState, Profile, Profiles, Random, advise, outlook, rates, what_if,
};
use stallscope_model::{Budgets, Knob, LoaderFacts, Phase, StepLedger};

const MS: f64 = 1e6;

#[derive(Clone, Copy)]
struct Job {
    demand: Demand,
    conditions: Conditions,
}

impl Job {
    fn new(cpu_ms: f64, compute_ms: f64, storage: Storage) -> Job {
        let demand = Demand {
            samples: 32,
            cpu_ns: cpu_ms * MS,
            requests: 16,
            bytes: 1e6,
            compute_ns: compute_ms * MS,
            handover_ns: 0.2 * MS,
            ..Demand::default()
        };
        Job { demand, conditions: Conditions { cores: 8.0, storage, ..Conditions::default() } }
    }

    fn pipeline(self, workers: u32, seed: u64) -> Pipeline<impl FnMut(u64) -> Demand> {
        let mut random = Random::new(seed);
        let draw = move |_| {
            let mut vary = |value: f64| value * (0.7 + 0.6 * random.unit());
            let Demand { cpu_ns, bytes, compute_ns, .. } = self.demand;
            Demand { cpu_ns: vary(cpu_ns), bytes: vary(bytes), compute_ns: vary(compute_ns), ..self.demand }
        };
        Pipeline::new(workers, 2 * workers, self.conditions, seed, draw)
    }

    /// Mean step.
    fn step_ms(self, workers: u32) -> f64 {
        let mut pipeline = self.pipeline(workers, 99);
        (0..50).for_each(|_| drop(pipeline.next_step()));
        let from_ns = pipeline.now_ns();
        (0..600).for_each(|_| drop(pipeline.next_step()));
        (pipeline.now_ns() - from_ns) as f64 / 600.0 / MS
    }

    /// What is seen of it with these many workers, one after the other; the last setting is the one of now.
    fn seen(self, settings: &[u32]) -> Profile {
        let mut profiles = Profiles::new(8.0);
        profiles
            .loader(0, &LoaderFacts { workers: settings[0], prefetch_factor: Some(2), ..Default::default() });
        let mut pipeline = self.pipeline(settings[0], 5);
        for workers in settings {
            pipeline.set_workers(*workers);
            pipeline.set_prefetch(2 * workers);
            for (name, value) in [("workers", *workers), ("prefetch", 2 * workers)] {
                let loader = Some(0);
                profiles.knob(&Knob { name: name.into(), value: value.into(), loader, ..Knob::default() });
            }
            for index in 0..200 {
                let step = pipeline.next_step();
                step.made.iter().for_each(|service| profiles.service(service));
                profiles.step(&StepLedger {
                    rank: 0,
                    loader: 0,
                    phase: Phase::Training,
                    index,
                    part: false,
                    start_ns: step.start_ns,
                    end_ns: step.end_ns,
                    causes: step.causes,
                    hidden_ns: None,
                    producer: None,
                    samples: step.samples,
                    evidence: Default::default(),
                });
            }
        }
        profiles.training()[0].clone()
    }
}

fn far() -> Storage {
    Storage { latency_ns: 4.0 * MS, ..Storage::default() }
}

fn narrow() -> Storage {
    Storage { bytes_per_s: 2e7, ..Storage::default() }
}

fn workers(to: u32) -> Change {
    Change { workers: Some(Delta::To(to)), ..Change::default() }
}

#[track_caller]
fn is_right(job: Job, profile: &Profile, to: u32) {
    let (found, really_ms) = (what_if(profile, &workers(to)).unwrap(), job.step_ms(to));
    let step_ms = found.step_ns.value / MS;
    assert!(
        (step_ms / really_ms - 1.0).abs() < 0.08,
        "{to} workers: {step_ms} predicted, {really_ms} really"
    );
    let (low_ms, high_ms) = (found.step_ns.low / MS, found.step_ns.high / MS);
    assert!(low_ms < really_ms && really_ms < high_ms, "{really_ms} is not in {low_ms} to {high_ms}");
}

#[test]
fn a_delay_is_told_from_a_limit_by_workers_that_come_and_go() {
    let delayed = Job::new(5.0, 10.0, far());
    let profile = delayed.seen(&[3, 1, 2]);
    [1, 3, 4, 8].into_iter().for_each(|to| is_right(delayed, &profile, to));
    let limited = Job::new(5.0, 10.0, narrow());
    let profile = limited.seen(&[3, 1, 2]);
    [1, 3, 4, 8].into_iter().for_each(|to| is_right(limited, &profile, to));
    assert_eq!(what_if(&profile, &workers(8)).unwrap().bottleneck, Bottleneck::Storage);
    let storage_per_s = rates(&profile).storage.unwrap().value;
    assert!((storage_per_s / (32.0 / 0.05) - 1.0).abs() < 0.1, "{storage_per_s}");
}

#[test]
fn where_nothing_tells_the_interval_holds_both_and_it_is_said() {
    for (storage, really) in [(far(), Job::new(5.0, 10.0, far())), (narrow(), Job::new(5.0, 10.0, narrow()))]
    {
        let profile = Job::new(5.0, 10.0, storage).seen(&[1]);
        let found = what_if(&profile, &workers(3)).unwrap();
        let really_ns = really.step_ms(3) * MS;
        assert!(
            found.step_ns.low <= really_ns * 1.02 && really_ns <= found.step_ns.high * 1.02,
            "{really_ns} {found:?}"
        );
        assert!(found.doubts.iter().any(|doubt| doubt.contains("limit or only a delay")), "{found:?}");
        assert!(
            rates(&profile)
                .unknown
                .iter()
                .any(|unknown| unknown.contains("a second worker for a few batches"))
        );
    }
}

#[test]
fn decoding_is_bound_by_workers_and_then_by_cores() {
    let mut job = Job::new(80.0, 10.0, Storage::default());
    job.demand.requests = 0;
    let profile = job.seen(&[2]);
    [1, 3, 4].into_iter().for_each(|to| is_right(job, &profile, to));
    let few = what_if(&profile, &Change { cores: Some(1.0), ..workers(8) }).unwrap();
    // 90 ms of work on one core.
    assert!((few.step_ns.value / MS / 90.0 - 1.0).abs() < 0.1, "{few:?}");
    assert_eq!(few.bottleneck, Bottleneck::Cores);
    let look = outlook(&profile).unwrap();
    // Two for the workers, and the trainer's own.
    assert_eq!((look.cached_share, look.cores), (None, Some(3.0)), "{look:?}");
    assert!((7..=9).contains(&look.workers), "{look:?}");
}

#[test]
fn storage_and_cache_bring_what_they_take_away() {
    let job = Job::new(5.0, 10.0, narrow());
    let profile = job.seen(&[3, 1, 2]);
    let with = |change: Change| what_if(&profile, &change).unwrap().step_ns.value / MS;
    let twice = Change { storage_factor: Some(2.0), ..Change::default() };
    let half = Change { cached_share: Some(0.5), ..Change::default() };
    for (change, wanted_ms) in [(twice, 25.0), (half, 25.0)] {
        let step_ms = with(change);
        assert!((step_ms / wanted_ms - 1.0).abs() < 0.1, "{change:?}: {step_ms}");
    }
    let look = outlook(&profile).unwrap();
    // 50 ms of reading beside 10 ms of compute: four fifths have to come from memory.
    let cached = look.cached_share.unwrap();
    assert!((0.7..0.95).contains(&cached), "{look:?}");
    assert!((look.difference_share.value - 0.8).abs() < 0.05, "{look:?}");
}

fn knobs(profile: &Profile) -> Vec<Knob> {
    let knob = |name: &str, value: u32| Knob {
        name: name.into(),
        loader: Some(0),
        value: value.into(),
        min: 1,
        max: 64,
        ..Knob::default()
    };
    vec![knob("workers", profile.workers), knob("prefetch", profile.prefetch)]
}

#[test]
fn advice_names_the_knob_that_helps_and_nothing_where_none_does() {
    let (budgets, node) = (Budgets::default(), NodeState { cpus: 8.0, ..NodeState::default() });
    let delayed = Job::new(5.0, 10.0, far()).seen(&[3, 1, 2]);
    let advice = advise(&delayed, &knobs(&delayed), &budgets, &node);
    assert_eq!((advice[0].knob.as_str(), advice[0].now), ("workers", 2));
    assert!(advice[0].to >= 4 && advice[0].gain.low > 0.5, "{advice:?}");
    assert!(advice[0].why.contains("reads in flight"), "{advice:?}");
    let compute = Job::new(5.0, 60.0, far()).seen(&[3, 2, 4]);
    assert_eq!(advise(&compute, &knobs(&compute), &budgets, &node), []);
    assert_eq!(what_if(&compute, &workers(8)).unwrap().bottleneck_now, Bottleneck::Compute);
    // No memory for one more.
    let node = NodeState { memory_available_bytes: 1 << 20, ..node };
    assert!(
        advise(&delayed, &knobs(&delayed), &budgets, &node).iter().all(|advice| advice.knob != "workers")
    );
}

#[test]
fn too_little_and_nonsense_are_sentences() {
    let profile = Job::new(5.0, 10.0, far()).seen(&[2]);
    let said = |change: Change| what_if(&profile, &change).unwrap_err();
    assert!(said(Change { storage_factor: Some(0.0), ..Change::default() }).contains("more than 0"));
    assert!(said(Change { cached_share: Some(1.4), ..Change::default() }).contains("between 0% and 100%"));
    assert!(said(workers(1_000_000)).contains("4096"));
    let mut young = Profiles::new(2.0);
    young.loader(0, &LoaderFacts { workers: 2, ..Default::default() });
    assert!(what_if(young.training()[0], &Change::default()).unwrap_err().contains("let the job run longer"));
    assert!(rates(young.training()[0]).unknown[0].contains("too few"));
}

#[test]
fn nothing_changed_is_what_was_measured() {
    let profile = Job::new(20.0, 10.0, far()).seen(&[2]);
    let found = what_if(&profile, &Change::default()).unwrap();
    assert_eq!((found.gain.value, found.gain.low, found.gain.high), (0.0, 0.0, 0.0));
    assert_eq!(found.step_ns, found.step_now_ns);
    assert!(found.calibration.abs() < 0.05, "{found:?}");
}

#[test]
fn a_loader_that_is_told_again_has_not_changed() {
    let mut profiles = Profiles::new(2.0);
    let facts = LoaderFacts { workers: 2, prefetch_factor: Some(4), ..Default::default() };
    profiles.loader(0, &facts);
    let knob = Knob { name: "workers".into(), value: 3, loader: Some(0), ..Knob::default() };
    profiles.knob(&knob);
    profiles.loader(0, &facts);
    assert_eq!((profiles.training()[0].workers, profiles.training()[0].prefetch), (3, 8));
}
