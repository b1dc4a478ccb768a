//! Jobs whose batches take what those of a real job took, in the same order.

use crate::scenario::{MS, Scenario, base};
use stallscope_control::pipeline::{Demand, Storage};

/// `make demo ACT=1` untouched (two workers, each read takes 4 ms), four epochs, recorded by `stallscope run` as root beside
/// other work on two CPUs; written by bench/recorded.py.
const DEMO_FAR: &str = include_str!("../recorded/demo-far.csv");

/// The batches of a file of bench/recorded.py; none where it is not one.
fn batches(text: &str) -> Vec<Demand> {
    let row = |line: &str| {
        let mut fields = line.split(',');
        let samples = fields.next()?.parse().ok()?;
        let mut ns = || Some(fields.next()?.parse::<f64>().ok()? * MS);
        let (latency_ns, cpu_ns, compute_ns) = (ns()?, ns()?, ns()?);
        // A read for each sample; how long they took together is known.
        Some(Demand { samples, requests: samples, latency_ns, cpu_ns, compute_ns, ..Demand::default() })
    };
    text.lines().skip(1).map(row).collect::<Option<Vec<_>>>().unwrap_or_default()
}

/// Each seed begins with another batch, and goes round.
pub(crate) fn scenarios() -> Vec<Scenario> {
    vec![Scenario {
        recorded: batches(DEMO_FAR),
        // Storage adds nothing to what was recorded; training takes a core of its own.
        storage: Storage::default(),
        cpus: 8.0,
        course: |_, world| world.conditions.trainer_threads = 1.0,
        ..base("recorded: the demo on storage that is far")
    }]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_recorded_batches_are_read_whole() {
        let batches = batches(DEMO_FAR);
        assert_eq!(batches.len(), DEMO_FAR.lines().count() - 1);
        assert!(
            batches.iter().all(|batch| batch.samples > 0 && batch.cpu_ns > 0.0 && batch.compute_ns > 0.0)
        );
    }

    #[test]
    fn what_is_no_such_file_has_no_batches() {
        assert!(batches("").is_empty());
        assert!(batches("samples,fetch_ms,cpu_ms,compute_ms\n32,1.0,x,2.0\n").is_empty());
    }
}
