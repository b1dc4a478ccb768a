//! What the node's collector tells of itself: how much it does and what that costs.

use crate::caller::Caller;
use crate::host::own_cost;
use crate::kernel_service::KernelSide;
use crate::metrics::{Bound, Publisher};
use anyhow::Result;
use stallscope_ebpf::ProgramState;
use stallscope_model::{Loss, NodeSummary, Overhead, Probe};
use std::time::{Duration, Instant};

/// How often figures are published while there is something to do.
const PERIOD: Duration = Duration::from_secs(1);

pub(crate) struct NodeMetrics {
    publisher: Publisher<NodeSummary>,
    begun: Instant,
    published: Option<Instant>,
}

impl NodeMetrics {
    /// # Errors
    /// There can't be a thread to answer.
    pub(crate) fn start(bound: Bound<NodeSummary>) -> Result<NodeMetrics> {
        Ok(NodeMetrics { publisher: Publisher::start(bound)?, begun: Instant::now(), published: None })
    }

    pub(crate) fn whereabouts(&self) -> String {
        self.publisher.whereabouts()
    }

    /// Publishes what `figures` gives if it is time; always before a long sleep, so that what is served meanwhile
    /// stays true.
    pub(crate) fn publish(&mut self, before_sleep: bool, figures: impl FnOnce() -> NodeSummary) {
        if before_sleep || self.published.is_none_or(|at| at.elapsed() >= PERIOD) {
            let mut figures = figures();
            figures.overhead.wall_ns = self.begun.elapsed().as_nanos() as u64;
            self.publisher.publish(figures);
            self.published = Some(Instant::now());
        }
    }
}

/// The figures of this moment, but how long the collector has been running.
pub(crate) fn figures(
    kernel: &impl KernelSide,
    callers: &[Caller],
    tasks: usize,
    records: u64,
    losses: impl Iterator<Item = (&'static str, u64)>,
) -> NodeSummary {
    let (collector_cpu_ns, collector_rss_bytes) = own_cost();
    let kernel_cpu_ns = kernel.run_time().ok().map(|time| time.as_nanos() as u64).filter(|ns| *ns > 0);
    let watching = || callers.iter().filter(|caller| !caller.roots.is_empty());
    NodeSummary {
        sessions: watching().count() as u64,
        trees: watching().map(|caller| caller.roots.len() as u64).sum(),
        tasks: tasks as u64,
        programs: kernel.programs().into_iter().map(|program| probe(program.name, program.state)).collect(),
        losses: losses.map(|(reason, count)| Loss { reason: reason.into(), count }).collect(),
        overhead: Overhead {
            collector_cpu_ns,
            collector_rss_bytes,
            kernel_cpu_ns,
            records,
            ..Overhead::default()
        },
    }
}

fn probe(name: &str, state: ProgramState) -> Probe {
    let (on, reason) = match state {
        ProgramState::Attached => (true, String::new()),
        ProgramState::Off => (false, "nobody needs it now".into()),
        ProgramState::Missing(reason) | ProgramState::Broken(reason) => (false, reason),
    };
    Probe { name: name.into(), on, reason }
}
