//! The words of the audit.

use super::probe::{Probe, Why};
use super::seed::{CACHE, Need, Proposal, seconds};
use super::turn::{CONTROLLER, Move};
use crate::stats::{Figure, Gain};
use stallscope_model::{Act, AuditEvent, Budgets, Estimate};
use stallscope_units::{memory, percent_in_words};

pub(crate) fn line(act: Act, decision: u64, now_ns: u64) -> AuditEvent {
    AuditEvent { act, decision, time_ns: now_ns, by: CONTROLLER.to_owned(), ..AuditEvent::default() }
}

/// About a decision as a whole: its own knob, and the rank where it is about one.
pub(crate) fn about(act: Act, decision: u64, now_ns: u64, proposal: &Proposal) -> AuditEvent {
    let mut event = line(act, decision, now_ns);
    let mut own = proposal.moves.iter().filter(|turned| turned.knob == proposal.knob);
    if let Some(first) = own.next() {
        of(&mut event, first);
        if own.next().is_some() {
            event.rank = None;
            event.loader = None;
        }
    }
    event.predicted = Some(proposal.predicted);
    event
}

/// A line on each value that `proposal` asks for.
pub(crate) fn asked(
    act: Act,
    decision: u64,
    now_ns: u64,
    proposal: &Proposal,
    saw: &str,
) -> impl Iterator<Item = AuditEvent> {
    let moves = proposal.moves.iter().filter(|turned| turned.to != turned.from);
    moves.map(move |turned| {
        let mut event = line(act, decision, now_ns);
        of(&mut event, turned);
        event.saw = saw.to_owned();
        event.predicted = Some(proposal.predicted);
        event.why.clone_from(&proposal.why);
        event
    })
}

pub(crate) fn of(event: &mut AuditEvent, turned: &Move) {
    event.rank = Some(turned.rank);
    event.loader = turned.loader;
    event.knob.clone_from(&turned.knob);
    event.from = Some(turned.from);
    event.to = Some(turned.to);
}

pub(crate) fn measured(gain: Gain) -> Option<Estimate> {
    Some(Estimate { value: gain.value, low: gain.low, high: gain.high })
}

/// "812 batches/s" would need a unit for each knob; samples are what training is paid in.
pub(crate) fn pace(figure: &Figure) -> String {
    let pace = figure.log_pace.exp();
    if pace >= 100.0 { format!("{pace:.0} samples/s") } else { format!("{pace:.2} samples/s") }
}

pub(crate) fn saw(need: &Need, before: &Figure) -> String {
    let sums = &need.sums;
    format!(
        "rank {} waited {} of the last {} for data ({} while it was read, {} while it was prepared), with {} workers and {} batches ahead; {} over all ranks",
        need.rank,
        percent_in_words(sums.stall_share()),
        seconds(sums.wall_ns),
        percent_in_words(sums.share(sums.fetch_ns)),
        percent_in_words(sums.share(sums.prep_ns)),
        count(need.workers),
        count(need.prefetch),
        pace(before)
    )
}

fn count(value: Option<u64>) -> String {
    value.map_or_else(|| "an unknown number of".to_owned(), |value| value.to_string())
}

fn signed(share: f64) -> String {
    format!("{}{}", if share >= 0.0 { "+" } else { "" }, percent_in_words(share))
}

/// "+31% (+27% to +35%)".
pub(crate) fn gain(gain: Gain) -> String {
    format!("{} ({} to {})", signed(gain.value), signed(gain.low), signed(gain.high))
}

/// What a probe's windows showed.
pub(crate) fn windows(probe: &Probe) -> String {
    let mut text = String::new();
    for (at, leg) in probe.legs.iter().enumerate() {
        let with = if at % 2 == 1 { "with it" } else { "without" };
        text += &format!("{}{} {with}", if at > 0 { ", " } else { "" }, pace(leg));
    }
    format!(
        "{text}; waiting for data {} before and {} with it",
        percent_in_words(probe.stall_before),
        percent_in_words(probe.stall_with)
    )
}

pub(crate) fn why(why: Why) -> &'static str {
    match why {
        Why::Worse => "the job got slower with it",
        Why::TooLittle => "it gains less than what a change has to gain to be kept",
        Why::Waits => "training waits for data again with it",
        Why::Vanished => "training stopped waiting without it, too, so what it would gain cannot be seen now",
        Why::NotClear => "after all windows it is still not clear that it gains enough to be kept",
    }
}

/// "workers 2 to 6, prefetch 4 to 12, on rank 0".
pub(crate) fn moves(proposal: &Proposal) -> String {
    let mut ranks: Vec<String> = proposal.moves.iter().map(|turned| turned.rank.to_string()).collect();
    ranks.dedup();
    let knobs: Vec<String> = proposal
        .moves
        .iter()
        .filter(|turned| proposal.moves.first().is_some_and(|first| first.rank == turned.rank))
        .filter(|turned| turned.from != turned.to)
        .map(|turned| match turned.knob == CACHE {
            true => format!("{} {} to {}", turned.knob, memory(turned.from), memory(turned.to)),
            false => format!("{} {} to {}", turned.knob, turned.from, turned.to),
        })
        .collect();
    let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
    format!("{}, on {noun} {}", knobs.join(", "), ranks.join(", "))
}

pub(crate) fn budgets(budgets: &Budgets) -> String {
    let parts: Vec<String> = [
        budgets.cores.map(|cores| format!("{cores} cores")),
        budgets.spare_cores_only.then(|| "cores that others leave idle".to_owned()),
        budgets.memory_bytes.map(|bytes| format!("{} of memory", memory(bytes))),
        budgets.descriptors.map(|count| format!("{count} descriptors a process")),
        budgets.cache_bytes.map(|bytes| match bytes {
            0 => "no larger cache".to_owned(),
            bytes => format!("{} of caches", memory(bytes)),
        }),
        budgets.checkpoint_overhead.map(|share| format!("{} of training for saves", percent_in_words(share))),
    ]
    .into_iter()
    .flatten()
    .collect();
    if parts.is_empty() { "what the machine has".to_owned() } else { parts.join(", ") }
}
