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
