//! The lines of an audit as decisions: what was turned, and what became of it.

use super::{change, gain};
use stallscope_model::{Act, AuditEvent, Estimate, Knob};
use stallscope_units as units;
use std::collections::{BTreeMap, HashMap, HashSet};

/// What became of a decision to turn knobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Became {
    /// Its outcome is not known yet.
    Open,
    /// A user set it.
    Set,
    Kept,
    Undone,
    Refused,
    /// A lower value was kept because the job is no slower with it.
    Released,
    /// The job ended before the outcome was known.
    Unproven,
}

impl Became {
    /// The outcome in a word or two, to follow "workers 2 → 4".
    pub const fn name(self) -> &'static str {
        match self {
            Became::Open => "being tried",
            Became::Set => "set",
            Became::Kept => "kept",
            Became::Undone => "undone",
            Became::Refused => "refused",
            Became::Released => "given back",
            Became::Unproven => "not proven",
        }
    }
}

/// A decision to turn one knob, or several together: all lines of the audit that bear its number.
#[derive(Clone, Debug)]
pub struct Turn<'a> {
    /// The first request for each knob; never empty.
    pub asked: Vec<&'a AuditEvent>,
    pub became: Became,
    /// The line that decided what became of it.
    pub last: &'a AuditEvent,
}

/// Groups of knobs that are named of one decision.
const NAMED: usize = 3;

impl<'a> Turn<'a> {
    fn new(event: &'a AuditEvent, became: Became) -> Turn<'a> {
        Turn { asked: vec![event], became, last: event }
    }

    /// Whether the controller decided it, not a user.
    pub fn is_controllers(&self) -> bool {
        self.asked.iter().all(|asked| asked.by == "controller")
    }

    pub fn predicted(&self) -> Option<Estimate> {
        self.asked.iter().find_map(|asked| asked.predicted).or(self.last.predicted)
    }

    /// "workers 2 → 4 kept, +31%"; with its rank where `ranks` is true.
    pub fn in_words(&self, knobs: &[Knob], ranks: bool) -> String {
        let by = match (self.became, self.asked.first()) {
            (Became::Set, Some(asked)) => format!(" by {}", asked.by),
            _ => String::new(),
        };
        let gained = match (self.became, &self.last.measured, self.predicted()) {
            (Became::Open, _, Some(hoped)) => format!(", expected {}", gain(hoped.value)),
            (Became::Kept | Became::Undone | Became::Released, Some(measured), _) => {
                format!(", {}", gain(measured.value))
            }
            _ => String::new(),
        };
        format!("{} {}{by}{gained}", self.what(knobs, ranks), self.became.name())
    }

    /// "rank 0: workers 2 → 4, prefetch 4 → 12", "workers 2 → 4 on 8 ranks".
    fn what(&self, knobs: &[Knob], ranks: bool) -> String {
        let mut alike: Vec<(String, Vec<Option<u32>>)> = Vec::new();
        let mut places: HashMap<String, usize> = HashMap::new();
        for asked in &self.asked {
            let changed = change(asked, knobs);
            match places.get(&changed) {
                Some(place) => alike[*place].1.push(asked.rank),
                None => {
                    places.insert(changed.clone(), alike.len());
                    alike.push((changed, vec![asked.rank]));
                }
            }
        }
        let first = self.asked.first().and_then(|asked| asked.rank);
        let one = self.asked.iter().all(|asked| asked.rank == first);
        let more = if alike.len() > NAMED { ", …" } else { "" };
        let named: Vec<String> = alike
            .into_iter()
            .take(NAMED)
            .map(|(changed, of)| match (one || !ranks, of.as_slice()) {
                (true, _) => changed,
                (false, [Some(rank)]) => format!("{changed} on rank {rank}"),
                (false, of) => format!("{changed} on {} ranks", of.len()),
            })
            .collect();
        let whose = first.filter(|_| ranks && one).map(|rank| format!("rank {rank}: ")).unwrap_or_default();
        format!("{whose}{}{more}", named.join(", "))
    }
}

/// The decisions that turned knobs, or were to, in the order they were taken.
pub fn turns(audit: &[AuditEvent]) -> Vec<Turn<'_>> {
    let mut turns: Vec<Turn<'_>> = Vec::new();
    let mut known: BTreeMap<u64, usize> = BTreeMap::new();
    // A look through all that a turn has asked for, for each line, would take the square of their number.
    let mut asked_for: HashSet<(usize, Option<u32>, Option<u16>, &str)> = HashSet::new();
    for event in audit {
        let what = |place: usize| (place, event.rank, event.loader, event.knob.as_str());
        let place = known.get(&event.decision).copied();
        let is_release = place.is_some_and(|place| turns[place].asked[0].act == Act::Release);
        let became = match event.act {
            Act::Request | Act::Release => Became::Open,
            Act::Applied if event.by == "controller" => Became::Open,
            Act::Applied => Became::Set,
            Act::Refused => Became::Refused,
            Act::Keep if is_release => Became::Released,
            Act::Keep => Became::Kept,
            Act::Undo => Became::Undone,
            Act::Mode if place.is_some() => Became::Unproven,
            Act::Mode | Act::Advise | Act::Hold | Act::Drift | Act::Freeze => continue,
        };
        let Some(place) = place else {
            if event.decision > 0 {
                known.insert(event.decision, turns.len());
                asked_for.insert(what(turns.len()));
            }
            turns.push(Turn::new(event, became));
            continue;
        };
        let turn = &mut turns[place];
        match became {
            // A probe turns its knob back and forth; the turn shows the first request alone.
            Became::Open if event.act != Act::Applied && asked_for.insert(what(place)) => {
                turn.asked.push(event)
            }
            Became::Open => {}
            // A user who set several knobs has to learn of a refusal, so it outweighs those that were set.
            Became::Set if turn.became == Became::Refused => {}
            _ => (turn.became, turn.last) = (became, event),
        }
    }
    turns
}

/// How often knobs were turned and what became of it: "3 turns: 2 kept, 1 undone".
pub fn turns_in_words(turns: &[Turn<'_>]) -> String {
    let mut counts: Vec<(Became, u64)> = Vec::new();
    for turn in turns {
        match counts.iter_mut().find(|(became, _)| *became == turn.became) {
            Some((_, count)) => *count += 1,
            None => counts.push((turn.became, 1)),
        }
    }
    let counts: Vec<String> =
        counts.iter().map(|(became, count)| format!("{count} {}", became.name())).collect();
    format!("{}: {}", units::counted(turns.len() as u64, "turn"), counts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::super::values;
    use super::*;

    fn event(decision: u64, act: Act, from: u64, to: u64) -> AuditEvent {
        AuditEvent {
            decision,
            act,
            by: "controller".into(),
            rank: Some(0),
            knob: "workers".into(),
            from: Some(from),
            to: Some(to),
            ..AuditEvent::default()
        }
    }

    fn estimate(value: f64, low: f64, high: f64) -> Estimate {
        Estimate { value, low, high }
    }

    #[test]
    fn the_lines_of_a_decision_are_one_turn() {
        let mut kept = event(1, Act::Keep, 2, 4);
        kept.measured = Some(estimate(0.31, 0.2, 0.4));
        let by_hand = |act| AuditEvent { by: "ada".into(), ..event(3, act, 4, 6) };
        let audit = [
            event(1, Act::Request, 2, 4),
            event(1, Act::Applied, 2, 4),
            event(1, Act::Request, 4, 2),
            event(1, Act::Request, 2, 4),
            kept,
            event(2, Act::Request, 4, 5),
            event(2, Act::Applied, 4, 5),
            event(2, Act::Undo, 4, 5),
            event(0, Act::Hold, 0, 0),
            by_hand(Act::Request),
            by_hand(Act::Applied),
            event(4, Act::Release, 6, 5),
            event(4, Act::Keep, 6, 5),
            event(5, Act::Request, 5, 7),
            event(5, Act::Mode, 5, 7),
            event(6, Act::Request, 5, 8),
        ];
        let turns = turns(&audit);
        let words: Vec<String> = turns.iter().map(|turn| turn.in_words(&[], false)).collect();
        assert_eq!(
            words,
            [
                "workers 2 → 4 kept, +31%",
                "workers 4 → 5 undone",
                "workers 4 → 6 set by ada",
                "workers 6 → 5 given back",
                "workers 5 → 7 not proven",
                "workers 5 → 8 being tried"
            ]
        );
        assert_eq!(turns[0].in_words(&[], true), "rank 0: workers 2 → 4 kept, +31%");
        assert_eq!(turns_in_words(&turns[..3]), "3 turns: 1 kept, 1 undone, 1 set");
    }

    /// As a foreign recording may have them: looked for in all that were asked for before, this would take hours.
    #[test]
    fn a_decision_on_many_knobs_is_one_turn() {
        let of = |number: u32| AuditEvent {
            rank: Some(number),
            knob: format!("knob {number}"),
            ..event(1, Act::Request, 2, 4)
        };
        let audit: Vec<AuditEvent> = (0..300_000).map(of).collect();
        let turns = turns(&audit);
        assert_eq!((turns.len(), turns[0].asked.len()), (1, 300_000));
        assert!(turns[0].in_words(&[], true).starts_with("knob 0 2 → 4 on rank 0, "));
    }

    #[test]
    fn knobs_that_are_turned_together_are_one_turn() {
        let of = |act, rank: Option<u32>, knob: &str| AuditEvent {
            rank,
            knob: knob.into(),
            ..event(1, act, 2, 4)
        };
        let audit = [
            of(Act::Request, Some(0), "workers"),
            of(Act::Request, Some(1), "workers"),
            of(Act::Request, Some(1), "prefetch"),
            of(Act::Applied, None, "workers"),
            of(Act::Undo, None, "workers"),
        ];
        let turns = turns(&audit);
        assert_eq!(turns.len(), 1);
        assert_eq!(turns[0].in_words(&[], true), "workers 2 → 4 on 2 ranks, prefetch 2 → 4 on rank 1 undone");
        // The verdict is on the knob beside, too.
        let knob = Knob { rank: 1, name: "prefetch".into(), ..Knob::default() };
        let values: Vec<u64> = values(&knob, &audit).into_iter().map(|(_, value)| value).collect();
        assert_eq!(values, [4, 2]);
    }
}
