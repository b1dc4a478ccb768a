//! What the model says of a job whose every part is known: profiled at one setting, asked about others, and compared
//! with the same job really run there. Reality is the clock of `toy`, which shares nothing with the model's pipeline.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use crate::toy::Toy;
use crate::toy::seen::{far, job, knobs, narrow};
use crate::toy::step;
use stallscope_control::{
    Bottleneck, Change, Delta, NodeState, Profile, Profiles, advise, expect, outlook, rates, what_if,
};
use stallscope_model::{
    Advice, BatchService, Budgets, Cause, Causes, Knob, LoaderFacts, RemedyKind, StepLedger,
};

const MS: f64 = 1e6;

fn workers(to: u32) -> Change {
    Change { workers: Some(Delta::To(to)), ..Change::default() }
}

#[track_caller]
fn is_right(job: Toy, profile: &Profile, to: u32) {
    let (found, really_ms) = (what_if(profile, &workers(to)).unwrap(), job.step_ms(to as usize));
    let step_ms = found.step_ns.value / MS;
    assert!((step_ms / really_ms - 1.0).abs() < 0.1, "{to} workers: {step_ms} predicted, {really_ms} really");
    let (low_ms, high_ms) = (found.step_ns.low / MS, found.step_ns.high / MS);
    assert!(low_ms < really_ms && really_ms < high_ms, "{really_ms} is not in {low_ms} to {high_ms}");
}

#[test]
fn a_delay_is_distinguished_from_a_limit_by_workers_that_come_and_go() {
    let delayed = far(5.0, 10.0);
    let profile = delayed.seen(&[3, 1, 2]);
    [1, 3, 4, 8].into_iter().for_each(|to| is_right(delayed, &profile, to));
    let limited = narrow(5.0, 10.0);
    let profile = limited.seen(&[3, 1, 2]);
    [1, 3, 4, 8].into_iter().for_each(|to| is_right(limited, &profile, to));
    assert_eq!(what_if(&profile, &workers(8)).unwrap().bottleneck, Bottleneck::Storage);
    let storage_per_s = rates(&profile).storage.unwrap().value;
    assert!((storage_per_s / (16.0 / 0.05) - 1.0).abs() < 0.1, "{storage_per_s}");
}

#[test]
fn where_nothing_tells_both_outcomes_are_given() {
    for reality in [far(0.5, 10.0), narrow(0.5, 10.0)] {
        let profile = reality.seen(&[1]);
        let found = what_if(&profile, &workers(3)).unwrap();
        let really_ns = reality.step_ms(3) * MS;
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
        let either = found.either.unwrap();
        let gain = if reality.limited { either.if_limited } else { either.if_slow };
        let really = reality.step_ms(1) / reality.step_ms(3) - 1.0;
        assert!((gain.value - really).abs() < 0.1 * (1.0 + really), "{either:?}, really {really}");
        // Whatever storage is, nothing is promised that one of the two would break.
        let (knobs, node) = (knobs(&profile), NodeState { cpus: 8.0, ..NodeState::default() });
        let expected = expect(&profile, &knobs, &Budgets::default(), &node);
        let more = expected.iter().find(|one| one.kind == RemedyKind::MoreWorkers).unwrap();
        let certain = more.certain().value;
        assert!(more.may_be_worthwhile() && certain < 0.1, "{more:?}");
        for advice in advise(&expected, &knobs).iter().filter(|advice| advice.knob == "workers") {
            assert!(advice.gain.value <= certain, "{advice:?}");
        }
    }
}

/// Two workers that always read, but for moments in which one of them waits for a core: a reader waits no less for it then,
/// as what it waits for has begun before.
#[test]
fn a_worker_that_is_late_for_a_core_does_not_make_a_limit_look_like_a_delay() {
    for late_ms in [1.0, 2.0, 4.0] {
        let limited = Toy { late_ms, ..narrow(0.1, 5.0) };
        let found = what_if(&limited.seen(&[2]), &workers(4)).unwrap();
        let certain = found.either.map_or(found.gain, |either| either.if_limited);
        assert!(certain.value < 0.15 && found.gain.low < 0.1, "{late_ms} ms: {found:?}");
        let delayed = Toy { late_ms, ..far(0.1, 5.0) };
        let found = what_if(&delayed.seen(&[2]), &workers(4)).unwrap();
        let really = delayed.step_ms(2) / delayed.step_ms(4) - 1.0;
        let if_slow = found.either.map_or(found.gain, |either| either.if_slow);
        assert!((if_slow.value / really - 1.0).abs() < 0.1, "{late_ms} ms: {found:?}, really {really}");
    }
}

#[test]
fn decoding_is_bound_by_workers_and_then_by_cores() {
    let job = job(80.0, 10.0);
    let profile = job.seen(&[2]);
    [1, 3, 4].into_iter().for_each(|to| is_right(job, &profile, to));
    let few = what_if(&profile, &Change { cores: Some(1.0), ..workers(8) }).unwrap();
    // 90 ms of work on one core.
    assert!((few.step_ns.value / MS / 90.0 - 1.0).abs() < 0.1, "{few:?}");
    assert_eq!(few.bottleneck, Bottleneck::Cores);
    let look = outlook(&profile).unwrap().smallest.unwrap();
    // Two for the workers, and the trainer's own.
    assert_eq!((look.cached_share, look.cores), (None, Some(3.0)), "{look:?}");
    assert!((7..=9).contains(&look.workers), "{look:?}");
}

/// Two workers that decode beside a trainer whose two threads wait for each other, on two cores: more workers take the cores
/// from it, and what one of its threads has done waits for the other.
#[test]
fn more_workers_on_busy_cores_take_time_from_the_trainer() {
    let crowded = Toy { cores: 2, trainer_threads: 2, ..job(60.0, 10.0) };
    let [two_ms, four_ms] = [2, 4].map(|workers| crowded.step_ms(workers));
    assert!(four_ms > 1.03 * two_ms, "{two_ms} ms, then {four_ms} ms");
    let mut profiles = crowded.profiles(&[2]);
    profiles.trainer_threads(0, 2.0);
    let profile = profiles.training()[0].clone();
    let found = what_if(&profile, &workers(4)).unwrap();
    let really = two_ms / four_ms - 1.0;
    assert!(found.gain.value < 0.0, "{found:?}, really {really}");
    assert!(found.gain.low <= really && really <= found.gain.high, "{found:?}, really {really}");
    let node = NodeState { cpus: 2.0, ..NodeState::default() };
    let expected = expect(&profile, &knobs(&profile), &Budgets::default(), &node);
    let more = expected.iter().find(|one| one.kind == RemedyKind::MoreWorkers).unwrap();
    assert!(!more.may_be_worthwhile(), "{more:?}");
}

#[test]
fn storage_and_cache_bring_what_they_take_away() {
    let profile = narrow(5.0, 10.0).seen(&[3, 1, 2]);
    let with = |change: Change| what_if(&profile, &change).unwrap().step_ns.value / MS;
    let twice = Change { storage_factor: Some(2.0), ..Change::default() };
    let half = Change { cached_share: Some(0.5), ..Change::default() };
    for (change, wanted_ms) in [(twice, 25.0), (half, 25.0)] {
        let step_ms = with(change);
        assert!((step_ms / wanted_ms - 1.0).abs() < 0.1, "{change:?}: {step_ms}");
    }
    let look = outlook(&profile).unwrap();
    // 50 ms of reading beside 10 ms of compute: four fifths have to come from memory.
    let cached = look.smallest.as_ref().unwrap().cached_share.unwrap();
    assert!((0.7..0.95).contains(&cached), "{look:?}");
    assert!((look.difference_share.value - 0.8).abs() < 0.05, "{look:?}");
}

fn advised(profile: &Profile, budgets: &Budgets, node: &NodeState) -> Vec<Advice> {
    let knobs = knobs(profile);
    advise(&expect(profile, &knobs, budgets, node), &knobs)
}

#[test]
fn advice_names_the_knob_that_helps_and_nothing_where_none_does() {
    let (budgets, node) = (Budgets::default(), NodeState { cpus: 8.0, ..NodeState::default() });
    let delayed = far(5.0, 10.0).seen(&[3, 1, 2]);
    let advice = advised(&delayed, &budgets, &node);
    assert_eq!((advice[0].knob.as_str(), advice[0].now), ("workers", 2));
    assert!(advice[0].to >= 4 && advice[0].gain.low > 0.5, "{advice:?}");
    assert!(advice[0].why.contains("reads in flight"), "{advice:?}");
    let compute = far(5.0, 60.0).seen(&[3, 2, 4]);
    assert_eq!(advised(&compute, &budgets, &node), []);
    assert_eq!(what_if(&compute, &workers(8)).unwrap().bottleneck_now, Bottleneck::Compute);
    // No memory for one more.
    let node = NodeState { memory_available_bytes: 1 << 20, ..node };
    assert!(advised(&delayed, &budgets, &node).iter().all(|advice| advice.knob != "workers"));
}

/// What is seen of a trainer of two threads on two cores that others keep busy, by hand: each step it computes for 220 ms and is
/// ready without a core for 120 ms; its workers have all batches ready, and wait for a core longer than they are on one.
fn crowded(step_ms: u64, preempted_ms: u64, cpu_ms: u64, runnable_ms: u64) -> Profile {
    let mut profiles = Profiles::new(2.0);
    profiles.loader(0, &LoaderFacts { workers: 4, prefetch_factor: Some(2), ..Default::default() });
    let ns = |ms: u64| ms * MS as u64;
    for index in 0..100 {
        let start_ns = index * ns(step_ms);
        let mut causes = Causes::default();
        causes[Cause::Preempted] = ns(preempted_ms);
        causes[Cause::Compute] = ns(step_ms - preempted_ms);
        profiles.step(&step(index, start_ns, start_ns + ns(step_ms), causes));
        profiles.service(&BatchService {
            start_ns,
            ready_ns: start_ns + ns(cpu_ms + runnable_ms),
            samples: 16,
            cpu_ns: ns(cpu_ms),
            runnable_ns: ns(runnable_ms),
            makers: 1.0,
            weight: 1.0,
            ..BatchService::default()
        });
    }
    profiles.trainer_threads(0, 2.0);
    profiles.training()[0].clone()
}

#[test]
fn no_change_takes_more_from_a_step_than_was_measured_beside_the_trainers_own_work() {
    let profile = crowded(340, 120, 35, 60);
    let most = 340.0 / 220.0 - 1.0;
    for (cores, sample_factor) in [(Some(4.0), None), (Some(64.0), None), (Some(4.0), Some(0.1))] {
        let found = what_if(&profile, &Change { cores, sample_factor, ..Change::default() }).unwrap();
        assert!(found.calibration.abs() < 0.15, "{found:?}");
        assert!(found.gain.value > 0.3 && found.gain.value < most + 1e-6, "{found:?}");
        assert!(found.gain.high < most + 0.1, "{found:?}");
    }
    let knobs = knobs(&profile);
    let expected = expect(&profile, &knobs, &Budgets::default(), &NodeState::default());
    assert!(expected.iter().all(|one| one.gain.value < most + 1e-6), "{expected:?}");
    let cores = expected.iter().find(|one| one.kind == RemedyKind::MoreCores).unwrap();
    assert!(cores.is_worthwhile(), "{cores:?}");
}

/// Each step waits 60 ms for its batch, computes for 20 ms and is ready without a core for 100 ms, as others keep the cores busy. Its
/// one worker reads all the while.
fn reads_beside_others() -> Profile {
    let mut profiles = Profiles::new(2.0);
    profiles.loader(0, &LoaderFacts { workers: 1, prefetch_factor: Some(2), ..Default::default() });
    for index in 0..100 {
        let start_ns = index * 180 * MS as u64;
        let mut causes = Causes::default();
        causes[Cause::Fetch] = 60 * MS as u64;
        causes[Cause::Preempted] = 100 * MS as u64;
        causes[Cause::Compute] = 20 * MS as u64;
        profiles.step(&step(index, start_ns, start_ns + 180 * MS as u64, causes));
        profiles.service(&BatchService {
            start_ns,
            ready_ns: start_ns + 178 * MS as u64,
            samples: 16,
            fetch_ns: 170 * MS as u64,
            cpu_ns: 2 * MS as u64,
            runnable_ns: 6 * MS as u64,
            readers: 1.0,
            makers: 1.0,
            weight: 1.0,
            ..BatchService::default()
        });
    }
    profiles.trainer_threads(0, 1.0);
    profiles.training()[0].clone()
}

/// Others keep the cores busy then as well.
#[test]
fn faster_batches_bring_the_trainer_no_core() {
    let profile = reads_beside_others();
    let most = 180.0 / 120.0 - 1.0;
    let faster = Change { storage_factor: Some(8.0), ..Change::default() };
    for change in [workers(3), faster] {
        let found = what_if(&profile, &change).unwrap();
        assert!(found.gain.value > 0.0 && found.gain.value < most + 1e-6, "{found:?}");
        assert!(found.gain.high < most + 0.1, "{found:?}");
        assert!(found.either.is_none_or(|either| either.if_slow.high < most + 0.1), "{found:?}");
    }
    // Nor would the best of loaders: 60 of 180 ms are what it could save.
    let look = outlook(&profile).unwrap();
    assert!((look.difference_share.value - 60.0 / 180.0).abs() < 0.05, "{look:?}");
    // One that takes less of the cores may.
    let cores = what_if(&profile, &Change { cores: Some(64.0), ..faster }).unwrap();
    assert!(cores.gain.value > most, "{cores:?}");
}

/// Batches take their workers longer than training does, which waits for none.
#[test]
fn of_a_job_that_the_model_does_not_fit_nothing_is_promised() {
    let profile = crowded(100, 0, 900, 0);
    let sentence = what_if(&profile, &workers(8)).unwrap_err();
    assert!(
        sentence.contains("does not fit this job") && sentence.contains("longer than measured"),
        "{sentence}"
    );
    let now = what_if(&profile, &Change::default()).unwrap();
    assert_eq!(now.doubts, [sentence]);
    let look = outlook(&profile).unwrap();
    assert_eq!(look.smallest, None);
    assert_eq!(look.direct_share, 0.0);
    assert_eq!(expect(&profile, &knobs(&profile), &Budgets::default(), &NodeState::default()), []);
}

#[test]
fn too_little_and_nonsense_are_sentences() {
    let profile = far(5.0, 10.0).seen(&[2]);
    let sentence = |change: Change| what_if(&profile, &change).unwrap_err();
    assert!(sentence(Change { storage_factor: Some(0.0), ..Change::default() }).contains("more than 0"));
    assert!(
        sentence(Change { cached_share: Some(1.4), ..Change::default() }).contains("between 0% and 100%")
    );
    assert!(sentence(workers(1_000_000)).contains("4096"));
    let mut young = Profiles::new(2.0);
    young.loader(0, &LoaderFacts { workers: 2, ..Default::default() });
    assert!(what_if(young.training()[0], &Change::default()).unwrap_err().contains("let the job run longer"));
    assert!(rates(young.training()[0]).unknown[0].contains("too few"));
}

#[test]
fn what_a_short_recording_lacks_is_named() {
    let feed = |profiles: &mut Profiles, steps: u64| {
        (0..steps).for_each(|index| {
            profiles.step(&step(index, index, index + 1, Causes::default()));
        })
    };
    // Without a shim no batch will ever be reported, however long the job runs.
    for steps in [1, 18, 60] {
        let mut attached = Profiles::new(2.0);
        feed(&mut attached, steps);
        let sentence = rates(attached.training()[0]).unknown[0].clone();
        assert!(
            sentence.contains("under `stallscope run`") && !sentence.contains("longer"),
            "{steps}: {sentence}"
        );
    }
    // 30 on the screen, of which the first six are served from the first queue.
    let mut young = Profiles::new(2.0);
    young.loader(0, &LoaderFacts { workers: 2, prefetch_factor: Some(2), ..Default::default() });
    feed(&mut young, 30);
    young.service(&BatchService { ready_ns: 1, ..BatchService::default() });
    let sentence = rates(young.training()[0]).unknown[0].clone();
    assert!(sentence.contains("24 training steps, without the first 6"), "{sentence}");
}

#[test]
fn nothing_changed_is_what_was_measured() {
    let profile = far(20.0, 10.0).seen(&[2]);
    let found = what_if(&profile, &Change::default()).unwrap();
    assert_eq!((found.gain.value, found.gain.low, found.gain.high), (0.0, 0.0, 0.0));
    assert_eq!(found.step_ns, found.step_now_ns);
    assert!(found.calibration.abs() < 0.05, "{found:?}");
}

#[test]
fn a_loader_that_is_reported_again_has_not_changed() {
    let mut profiles = Profiles::new(2.0);
    let facts = LoaderFacts { workers: 2, prefetch_factor: Some(4), ..Default::default() };
    profiles.loader(0, &facts);
    let knob = Knob { name: "workers".into(), value: 3, loader: Some(0), ..Knob::default() };
    profiles.knob(&knob);
    profiles.loader(0, &facts);
    assert_eq!((profiles.training()[0].workers, profiles.training()[0].prefetch), (3, 8));
}

#[test]
fn a_step_that_an_evaluation_cuts_in_two_is_one() {
    let profile = |cut: bool| {
        let mut profiles = Profiles::new(2.0);
        profiles.loader(0, &LoaderFacts { workers: 2, prefetch_factor: Some(2), ..Default::default() });
        for index in 0..100u64 {
            let (start_ns, end_ns) = (index * 100_000_000, (index + 1) * 100_000_000);
            let mut causes = Causes::default();
            causes[Cause::Compute] = 90_000_000;
            if cut && index.is_multiple_of(5) {
                let part = StepLedger { part: true, ..step(index, start_ns, start_ns + 90_000_000, causes) };
                profiles.step(&part);
                causes = Causes::default();
            }
            causes[Cause::Fetch] = 10_000_000;
            profiles.step(&step(index, end_ns - causes.total_ns(), end_ns, causes));
        }
        profiles.training()[0].clone()
    };
    let (cut, whole) = (profile(true), profile(false));
    assert_eq!(cut.steps(), whole.steps());
    assert_eq!(cut.stall_share(), whole.stall_share());
}

/// What is seen of a trainer that works for 90 ms with each batch and now and then waits 100 for one, as it was read in a burst:
/// two workers make a batch in 120 ms, and have nothing to do for a third of their time.
fn computes_beside_bursts() -> Profile {
    let mut profiles = Profiles::new(8.0);
    profiles.loader(0, &LoaderFacts { workers: 2, prefetch_factor: Some(2), ..Default::default() });
    let mut at = 0u64;
    for index in 0..300u64 {
        let mut causes = Causes::default();
        causes[Cause::Compute] = 90_000_000;
        causes[Cause::Fetch] = if index.is_multiple_of(10) { 100_000_000 } else { 0 };
        let service_ns = if index.is_multiple_of(10) { 300_000_000 } else { 100_000_000 };
        profiles.service(&BatchService {
            start_ns: at,
            ready_ns: at + service_ns,
            samples: 16,
            fetch_ns: service_ns - 20_000_000,
            cpu_ns: 20_000_000,
            readers: 1.2 + 0.1 * (index % 5) as f64,
            makers: 1.2,
            reads: 16,
            // All readers are held up at once.
            readers_spread: 1.0,
            readers_effect_ns: 120_000_000.0,
            ahead_spread: 1.0,
            ahead_effect_ns: 120_000_000.0,
            weight: 1.0,
            ..BatchService::default()
        });
        let end_ns = at + causes.total_ns();
        profiles.step(&step(index, at, end_ns, causes));
        at = end_ns;
    }
    profiles.training()[0].clone()
}

#[test]
fn storage_that_workers_leave_idle_is_not_at_its_limit() {
    let rates = rates(&computes_beside_bursts());
    let (storage, compute) = (rates.storage.unwrap(), rates.compute.unwrap());
    assert!(storage.value > compute.value, "{rates:?}");
    assert_eq!(rates.data_bound, Some(false));
    assert_eq!(rates_of(narrow(5.0, 10.0)).data_bound, Some(true));
    assert_eq!(rates_of(job(80.0, 90.0)).data_bound, Some(false));
}

fn rates_of(job: Toy) -> stallscope_model::Rates {
    rates(&job.seen(&[3, 1, 2]))
}

/// What was reached every part did: batches of an hour ago, from colder storage, say nothing else.
#[test]
fn no_part_is_slower_than_what_was_reached() {
    let mut profiles = narrow(5.0, 10.0).profiles(&[3, 1, 2]);
    for index in 0..600u64 {
        let mut causes = Causes::default();
        causes[Cause::Compute] = 10_000_000;
        let at = 1_000_000_000_000 + index * 10_000_000;
        profiles.step(&step(index, at, at + 10_000_000, causes));
    }
    let rates = rates(profiles.training()[0]);
    let reached = rates.actual.unwrap().value;
    for part in [rates.prep, rates.fetch, rates.storage].into_iter().flatten() {
        assert!(part.value >= reached && part.high >= part.value, "{rates:?}");
    }
}

/// Each turn of the loop takes a batch of one loader, waits 60 ms for one of another and computes for 30 ms; later both have an epoch of their own.
#[test]
fn a_turn_that_takes_batches_of_two_loaders_is_as_long_as_both_its_steps() {
    let mut profiles = Profiles::new(2.0);
    let made = |at: u64| BatchService {
        start_ns: at,
        ready_ns: at + 5_000_000,
        samples: 16,
        cpu_ns: 4_000_000,
        weight: 1.0,
        ..Default::default()
    };
    let mut at = 0;
    let mut turn = |profiles: &mut Profiles, loader: u16, index: u64, (waits_ns, computes_ns): (u64, u64)| {
        let mut causes = Causes::default();
        (causes[Cause::Fetch], causes[Cause::Compute]) = (waits_ns, computes_ns);
        let end = at + waits_ns + computes_ns;
        profiles.service(&BatchService { loader, ..made(at) });
        profiles.step(&StepLedger { loader, ..step(index, at, end, causes) });
        at = end;
    };
    for loader in [0, 1] {
        profiles
            .loader(0, &LoaderFacts { loader, workers: 1, prefetch_factor: Some(2), ..Default::default() });
    }
    for index in 0..100 {
        turn(&mut profiles, 0, index, (0, 10_000_000));
        turn(&mut profiles, 1, index, (60_000_000, 30_000_000));
    }
    let per_s = |profiles: &Profiles| rates(profiles.training()[0]).actual.unwrap().value;
    let both = per_s(&profiles);
    assert!((both / 160.0 - 1.0).abs() < 0.01, "{both} samples/s");
    let share = profiles.training()[0].stall_share();
    assert!((share - 0.6).abs() < 0.01, "{share}");
    for index in 100..1400 {
        turn(&mut profiles, 0, index, (0, 10_000_000));
    }
    for index in 100..1400 {
        turn(&mut profiles, 1, index, (60_000_000, 30_000_000));
    }
    let alone = per_s(&profiles);
    assert!((alone * 0.09 / 16.0 - 1.0).abs() < 0.02, "{alone} samples/s");
}
