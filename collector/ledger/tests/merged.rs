//! The job's ledger made again from recorded steps.

use stallscope_ledger::{About, Merged};
use stallscope_model::Cause::{Compute, Fetch, Peer};
use stallscope_model::*;

const MS: u64 = 1_000_000;

/// Step `index` of a rank of two: each computes for 40 ms and waits 10 ms for its next batch; at even steps rank 0,
/// at odd ones rank 1 waits 60 ms, for which the other then waits in its next step.
fn step(rank: u32, index: u64) -> StepLedger {
    let slow = |index: u64| (index % 2) as u32;
    let mut causes = Causes::default();
    causes[Compute] = 40 * MS;
    causes[Fetch] = if slow(index) == rank { 60 } else { 10 } * MS;
    causes[Peer] = if index > 0 && slow(index - 1) != rank { 50 } else { 0 } * MS;
    let end_ns = (index + 1) * 100 * MS;
    StepLedger {
        rank,
        loader: 0,
        phase: Phase::Training,
        index,
        part: false,
        start_ns: end_ns - causes.total_ns().min(end_ns),
        end_ns,
        causes,
        hidden_ns: None,
        producer: None,
        samples: 32,
        evidence: EvidenceKinds { kernel: true, shim: true },
    }
}

fn rank(rank: u32) -> RankSummary {
    RankSummary {
        facts: RankFacts { rank, world_size: 2, ..RankFacts::default() },
        phases: Vec::new(),
        workers: Vec::new(),
        checkpoints: Checkpoints::default(),
    }
}

fn job(steps: impl Iterator<Item = StepLedger>) -> PhaseSummary {
    let mut merged = Merged::new([0, 1]);
    steps.for_each(|step| merged.add(&step, 1));
    let summary = merged.conclude(&[rank(0), rank(1)], &About::default());
    assert_eq!(summary.phases.len(), 1);
    summary.phases[0].clone()
}

#[test]
fn each_step_is_the_slower_ranks_whichever_that_is() {
    let job = job((0..100).flat_map(|index| [step(0, index), step(1, index)]));
    assert_eq!(job.steps, 100, "the last wait has no work after it, and is no step");
    assert_eq!((job.causes[Fetch], job.causes[Compute]), (100 * 60 * MS, 100 * 40 * MS));
    assert_eq!(job.causes[Peer], 0);
    assert_eq!(job.samples, 2 * 100 * 32);
}

#[test]
fn a_hole_in_one_rank_leaves_the_rest_aligned() {
    let lost = 40..60;
    let job = job((0..100)
        .flat_map(|index| [step(0, index), step(1, index)])
        .filter(|step| step.rank == 0 || !lost.contains(&step.index)));
    assert_eq!(job.steps, 100);
    // Where rank 1 was not seen, rank 0 is all there is of the job.
    let seen_fully = (100 - 20) * 60 * MS;
    assert!((seen_fully..=100 * 60 * MS).contains(&job.causes[Fetch]), "{}", job.causes[Fetch]);
}

#[test]
fn a_rank_that_comes_late_in_the_reading_is_waited_for() {
    let (first, second) = ((0..100).map(|index| step(0, index)), (0..100).map(|index| step(1, index)));
    assert_eq!(job(first.chain(second)).causes[Fetch], 100 * 60 * MS);
}

#[test]
fn figures_beyond_reason_do_no_harm() {
    let mut merged = Merged::new([0]);
    for index in [0, 5, u64::MAX] {
        let causes = Causes([u64::MAX; Cause::COUNT]);
        merged.add(&StepLedger { causes, index, hidden_ns: Some(u64::MAX), ..step(0, 0) }, 3);
        merged.add(&StepLedger { end_ns: u64::MAX, index, ..step(0, 0) }, 1);
    }
    let summary = merged.conclude(&[rank(0)], &About { cpus: u32::MAX, ..About::default() });
    assert_eq!(summary.phases[0].wall_ns, u64::MAX);
}

/// A row that says that it stands for that many kept `report` busy for as long: 2,000 rows of 65,536 steps for a minute.
#[test]
fn a_row_of_many_steps_is_no_more_work_than_one_of_few() {
    const MANY: u64 = 1 << 40;
    let mut merged = Merged::new([0, 1]);
    for row in 0..100 {
        (0..2).for_each(|rank| merged.add(&StepLedger { index: row * MANY, ..step(rank, row) }, MANY));
    }
    let phases = merged.conclude(&[rank(0), rank(1)], &About::default()).phases;
    assert_eq!(phases[0].steps, 100 * MANY);
    assert_eq!(phases[0].causes.total_ns(), phases[0].wall_ns);
}

#[test]
fn a_row_of_many_steps_counts_as_they_would_one_by_one() {
    const MANY: u64 = 50;
    let (mut rows, mut steps) = (Merged::new([0, 1]), Merged::new([0, 1]));
    for row in 0..40 {
        for rank in 0..2 {
            let mut one = step(rank, row);
            one.index = row * MANY;
            (0..MANY).for_each(|nth| steps.add(&StepLedger { index: one.index + nth, ..one.clone() }, 1));
            let causes = Causes(one.causes.0.map(|ns| ns * MANY));
            rows.add(&StepLedger { causes, samples: 32 * MANY as u32, ..one }, MANY);
        }
    }
    let of = |merged: Merged| merged.conclude(&[rank(0), rank(1)], &About::default());
    assert_eq!(of(rows), of(steps));
}

/// Each has its own distribution of step times: all numbers that there are took gigabytes.
#[test]
fn so_many_loaders_have_sums_of_their_own_and_the_others_one() {
    let mut merged = Merged::new([0]);
    for loader in 0..1000 {
        merged.add(&StepLedger { loader, ..step(0, loader.into()) }, 1);
    }
    let phases = merged.conclude(&[rank(0)], &About::default()).phases;
    assert_eq!(phases.iter().map(|phase| phase.steps).sum::<u64>(), 1000);
    assert!(phases.len() <= 129, "{}", phases.len());
}
