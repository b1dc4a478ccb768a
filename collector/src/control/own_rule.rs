//! What a job's own rule does with a knob that nobody has set: a checkpointer saves more seldom as its saves get dearer.

use stallscope_model::{Act, AuditEvent, Knob, KnobState};
use std::collections::BTreeMap;

/// The knobs that follow a rule of the job's.
const FOLLOW: [&str; 1] = ["ckpt.interval"];
/// A change that is worth a line, as a share of the value before: a rule follows each save.
const WORTH_A_LINE: f64 = 0.2;

/// Values by rank and knob, as the audit has them, and whether somebody had asked for them.
#[derive(Debug, Default)]
pub(super) struct OwnRules(BTreeMap<(u32, String), (u64, bool)>);

impl OwnRules {
    /// Lines on what rules have changed since the last call.
    pub(super) fn changed(&mut self, knobs: &[Knob], now_ns: u64) -> Vec<AuditEvent> {
        let follow = knobs.iter().filter(|knob| {
            FOLLOW.contains(&knob.name.as_str()) && knob.state == KnobState::Applied && knob.value > 0
        });
        let mut lines = Vec::new();
        for knob in follow {
            let at = (knob.rank, knob.name.clone());
            let (known, was_asked) = self.0.entry(at).or_insert((knob.value, false));
            // 0: given back to the rule. Every other value is somebody's, and the audit has it.
            let is_asked = knob.requested.is_some_and(|asked| asked != 0);
            let is_given_back = std::mem::replace(was_asked, is_asked) && !is_asked;
            if is_asked {
                *known = knob.value;
            }
            if knob.value.abs_diff(*known) as f64 <= WORTH_A_LINE * *known as f64 {
                continue;
            }
            let from = std::mem::replace(known, knob.value);
            let why = match is_given_back {
                true => "it was given back",
                false => "the rule follows what saves cost and how often the job fails",
            };
            lines.push(AuditEvent {
                time_ns: now_ns,
                act: Act::Hold,
                by: "the script".into(),
                rank: Some(knob.rank),
                loader: knob.loader,
                from: Some(from),
                to: Some(knob.value),
                saw: format!(
                    "{} {} {} by the job's own rule, {from} before",
                    knob.name, knob.value, knob.unit
                ),
                why: why.into(),
                knob: knob.name.clone(),
                ..AuditEvent::default()
            });
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(value: u64, requested: Option<u64>) -> [Knob; 1] {
        [Knob { name: "ckpt.interval".into(), unit: "seconds".into(), value, requested, ..Knob::default() }]
    }

    #[test]
    fn a_line_tells_of_each_change_that_is_worth_one_and_is_nobodys() {
        let mut rules = OwnRules::default();
        let mut seen = |value, requested| {
            let lines = rules.changed(&interval(value, requested), 0);
            lines.iter().map(|line| (line.from, line.to)).collect::<Vec<_>>()
        };
        assert_eq!(seen(100, None), []);
        assert_eq!(seen(110, None), []);
        assert_eq!(seen(125, None), [(Some(100), Some(125))]);
        assert_eq!(seen(125, None), []);
        assert_eq!(seen(600, Some(600)), [], "a user's");
        assert_eq!(seen(90, Some(0)), [(Some(600), Some(90))], "given back");
        assert!(rules.changed(&interval(120, Some(0)), 0)[0].why.starts_with("the rule follows"));
        rules.changed(&interval(600, Some(600)), 0);
        assert_eq!(rules.changed(&interval(90, Some(0)), 0)[0].why, "it was given back");
        let workers = Knob { name: "workers".into(), value: 9, ..Knob::default() };
        assert!(rules.changed(&[workers], 0).is_empty());
    }
}
