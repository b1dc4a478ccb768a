//! The values of knobs over time, from the audit.

use stallscope_model::{Act, AuditEvent, Knob};
use std::collections::BTreeMap;

/// How a knob was set over time: moments and values, oldest first, as far as the audit tells. What is asked for counts
/// from then on, until it is refused or undone.
pub fn values(knob: &Knob, audit: &[AuditEvent]) -> Vec<(u64, u64)> {
    let mut values = Vec::new();
    // What it was before each decision.
    let mut before: BTreeMap<u64, u64> = BTreeMap::new();
    for event in audit {
        let its = event.knob == knob.name
            && event.rank.is_none_or(|rank| rank == knob.rank)
            && event.loader.is_none_or(|loader| Some(loader) == knob.loader);
        // A controller's verdict names one knob and is on all of its decision.
        let all = event.by == "controller";
        match (event.act, event.from, event.to) {
            (Act::Request | Act::Release, Some(from), Some(to)) if its => {
                before.entry(event.decision).or_insert(from);
                values.push((event.time_ns, to));
            }
            (Act::Applied | Act::Keep, _, Some(to)) if its => values.push((event.time_ns, to)),
            (Act::Undo | Act::Refused, from, _) if its || all => {
                let from = before.get(&event.decision).copied().or(from.filter(|_| its));
                values.extend(from.map(|from| (event.time_ns, from)));
            }
            _ => {}
        }
    }
    values
}

/// What happened to a knob, as a mark over a chart; of two at one place the later variant says more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mark {
    Raised,
    Lowered,
    Kept,
    Undone,
}

impl Mark {
    pub const ALL: [Mark; 4] = [Mark::Raised, Mark::Lowered, Mark::Kept, Mark::Undone];

    /// `None` where nothing was turned.
    pub fn of(event: &AuditEvent) -> Option<Mark> {
        match (event.act, event.from, event.to) {
            (Act::Request | Act::Release, Some(from), Some(to)) if to > from => Some(Mark::Raised),
            (Act::Request | Act::Release, Some(from), Some(to)) if to < from => Some(Mark::Lowered),
            (Act::Keep, ..) => Some(Mark::Kept),
            (Act::Undo, ..) => Some(Mark::Undone),
            _ => None,
        }
    }

    pub const fn name(self) -> &'static str {
        match self {
            Mark::Raised => "raised",
            Mark::Lowered => "lowered",
            Mark::Kept => "kept",
            Mark::Undone => "undone",
        }
    }

    pub const fn sign(self, unicode: bool) -> char {
        match (self, unicode) {
            (Mark::Raised, true) => '▲',
            (Mark::Raised, false) => '^',
            (Mark::Lowered, true) => '▼',
            (Mark::Lowered, false) => 'v',
            (Mark::Kept, true) => '✓',
            (Mark::Kept, false) => 'k',
            (Mark::Undone, true) => '✗',
            (Mark::Undone, false) => 'x',
        }
    }
}
