//! Jobs of which each has one remedy, or none: the model has to put first what really helps most, and to promise of nothing what it
//! does not bring. Reality is the clock of `toy`, run with each remedy, which shares nothing with the model's pipeline.

use crate::toy::Toy;
use crate::toy::seen::{far, job, knobs, narrow};
use stallscope_control::{NodeState, expect};
use stallscope_model::RemedyKind::{
    self, CheaperSamples, FasterStorage, FewerWorkers, MoreCores, MoreWorkers,
};
use stallscope_model::{Budgets, Expected};

/// What training gains by it in reality.
fn really(toy: Toy, workers: u32, expected: &Expected) -> f64 {
    let (changed, to) = match expected.kind {
        MoreWorkers | FewerWorkers => (toy, expected.to as usize),
        FasterStorage => (Toy { read_ms: toy.read_ms / 2.0, ..toy }, workers as usize),
        MoreCores => (Toy { cores: 2 * toy.cores, ..toy }, workers as usize),
        CheaperSamples => (Toy { cpu_ms: toy.cpu_ms / 2.0, ..toy }, workers as usize),
        // The toy keeps two batches ahead for each worker and has no bursts that more would bridge.
        _ => return 0.0,
    };
    toy.step_ms(workers as usize) / changed.step_ms(to) - 1.0
}

#[test]
fn the_first_advice_is_what_helps_most() {
    let two_threads = |toy: Toy| Toy { trainer_threads: 2, ..toy };
    // Settings that were seen, the last one in force; what helps most, if anything does.
    let table: [(&str, Toy, &[u32], Option<RemedyKind>); 7] = [
        ("each read is slow", far(5.0, 10.0), &[3, 1, 2], Some(MoreWorkers)),
        ("storage is at its limit", narrow(5.0, 10.0), &[3, 1, 2], Some(FasterStorage)),
        ("decoding, with cores to spare", job(80.0, 10.0), &[2], Some(MoreWorkers)),
        ("decoding on all of two cores", Toy { cores: 2, ..job(80.0, 10.0) }, &[2], Some(CheaperSamples)),
        (
            "many workers beside a trainer of two threads on two cores",
            two_threads(Toy { cores: 2, ..job(30.0, 20.0) }),
            &[8],
            Some(MoreCores),
        ),
        ("compute-bound", far(5.0, 60.0), &[3, 2, 4], None),
        ("compute-bound on two cores", Toy { cores: 2, ..job(10.0, 60.0) }, &[2], None),
    ];
    for (name, toy, seen, best) in table {
        let mut profiles = toy.profiles(seen);
        profiles.trainer_threads(0, toy.trainer_threads as f64);
        let profile = profiles.training()[0].clone();
        let node = NodeState { cpus: toy.cores as f64, ..NodeState::default() };
        let mut advised = expect(&profile, &knobs(&profile), &Budgets::default(), &node);
        advised.retain(Expected::is_worthwhile);
        advised.sort_by(|a, b| b.certain().value.total_cmp(&a.certain().value));
        assert_eq!(advised.first().map(|first| first.kind), best, "{name}: {advised:#?}");
        let now = seen[seen.len() - 1];
        let gains: Vec<f64> = advised.iter().map(|one| really(toy, now, one)).collect();
        for (one, gain) in advised.iter().zip(&gains) {
            assert!(*gain >= one.certain().low, "{name}: {gain} really, but {one:#?}");
            assert!(gains[0] >= *gain, "{name}: {gains:?} of {advised:#?}");
        }
    }
}
