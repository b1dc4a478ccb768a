//! What was decided, as marks; what each knob was set to, as counters.

use super::ranks::{COUNTERS_ORDER, Ranks};
use super::trace::{Label, Place, Trace, Track};
use crate::run::took_ns;
use crate::{Error, Run};
use stallscope_look::tuning::{change, values};
use stallscope_model::Knob;

/// Above the ranks.
const AUDIT_ORDER: i32 = -1;

pub(super) fn write(
    run: &Run,
    job: Track,
    ranks: &mut Ranks<'_>,
    trace: &mut Trace<'_>,
) -> Result<(), Error> {
    if !run.audit.is_empty() {
        let track = trace.track("audit", Place { under: Some(job), order: AUDIT_ORDER })?;
        for event in &run.audit {
            let whose = event.rank.map(|rank| format!("rank {rank}: ")).unwrap_or_default();
            let name = format!("{whose}{} {}", event.act.name(), change(event, &run.summary.knobs));
            let label = Label { name: name.trim_end(), category: "audit" };
            let mut facts = vec![("decision", event.decision)];
            facts.extend(event.from.map(|from| ("from", from)));
            facts.extend(event.to.map(|to| ("to", to)));
            trace.mark(track, event.time_ns, label, &facts)?;
        }
    }
    for knob in &run.summary.knobs {
        counter(run, knob, ranks, trace)?;
    }
    Ok(())
}

/// From what the script had set to what it was at the end.
fn counter(run: &Run, knob: &Knob, ranks: &mut Ranks<'_>, trace: &mut Trace<'_>) -> Result<(), Error> {
    let begun_ns = run.summary.job.started_wall_ns;
    let mut over_time = vec![(begun_ns, knob.initial)];
    over_time.extend(values(knob, &run.audit));
    let last_ns = over_time.iter().map(|(at_ns, _)| *at_ns).max().unwrap_or(begun_ns);
    over_time.push((begun_ns.saturating_add(took_ns(&run.summary)).max(last_ns), knob.value));
    let group = ranks.group(knob.rank, trace)?;
    let name = match knob.loader {
        Some(loader) if loader > 0 => format!("{}, loader {loader}", knob.name),
        _ => knob.name.clone(),
    };
    let place = Place { under: Some(group), order: COUNTERS_ORDER };
    let track = trace.counter_track(&name, &knob.unit, place)?;
    for (at_ns, value) in over_time {
        trace.count(track, at_ns, value as f64)?;
    }
    Ok(())
}
