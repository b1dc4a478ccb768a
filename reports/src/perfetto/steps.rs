//! A slice a step, with the causes of its time inside.

use super::ranks::{Kind, Ranks};
use super::trace::{Label, Trace};
use crate::{Error, Run};
use stallscope_model::{Cause, Phase, StepDetail, StepLedger};
use std::collections::HashMap;

/// Categories: the order of the causes is known of the steps kept in full; in the others they are stacked in the order
/// of [`Cause::ALL`].
const STEP: &str = "step";
const CRITICAL_PATH: &str = "critical_path";
const STACKED: &str = "stacked";

pub(super) fn write(run: &Run, ranks: &mut Ranks<'_>, trace: &mut Trace<'_>) -> Result<(), Error> {
    let key = |rank, loader, phase, index| (rank, loader, phase, index);
    let details: HashMap<_, &StepDetail> = run
        .details
        .iter()
        .map(|detail| (key(detail.rank, detail.loader, detail.phase, detail.index), detail))
        .collect();
    run.each_step(|row| {
        let step = &row.step;
        let kind = Kind::Steps(step.phase, step.loader);
        let (track, start_ns, end_ns) = ranks.next(step.rank, kind, (step.start_ns, step.end_ns), trace)?;
        let mut facts = vec![("index", step.index)];
        facts.extend((step.samples > 0).then_some(("samples", step.samples.into())));
        facts.extend(step.producer.map(|pid| ("producer_pid", pid.into())));
        facts.extend((row.merged > 1).then_some(("merged", row.merged)));
        trace.open(track, start_ns, Label { name: name(step.phase, row.merged), category: STEP }, &facts)?;
        let detail =
            details.get(&key(step.rank, step.loader, step.phase, step.index)).filter(|_| row.merged == 1);
        let category = if detail.is_some() { CRITICAL_PATH } else { STACKED };
        let mut at_ns = start_ns;
        for (cause, from_ns, to_ns) in
            detail.map_or_else(|| stacked(step, start_ns), |detail| in_order(detail))
        {
            let (from_ns, to_ns) = (from_ns.clamp(at_ns, end_ns), to_ns.clamp(at_ns, end_ns));
            if from_ns < to_ns {
                trace.open(track, from_ns, Label { name: cause.name(), category }, &[])?;
                trace.close(track, to_ns)?;
                at_ns = to_ns;
            }
        }
        trace.close(track, end_ns)?;
        Ok(())
    })
}

fn name(phase: Phase, merged: u64) -> &'static str {
    match (phase, merged) {
        (Phase::Training, 0..=1) => "training step",
        (Phase::Training, _) => "training steps",
        (Phase::Evaluation, 0..=1) => "evaluation step",
        (Phase::Evaluation, _) => "evaluation steps",
        (other, _) => other.name(),
    }
}

fn in_order(detail: &StepDetail) -> Vec<(Cause, u64, u64)> {
    detail.critical.iter().map(|piece| (piece.cause, piece.start_ns, piece.end_ns)).collect()
}

fn stacked(step: &StepLedger, start_ns: u64) -> Vec<(Cause, u64, u64)> {
    let mut at_ns = start_ns;
    step.causes
        .iter()
        .map(|(cause, ns)| {
            let from_ns = at_ns;
            at_ns = at_ns.saturating_add(ns);
            (cause, from_ns, at_ns)
        })
        .collect()
}
