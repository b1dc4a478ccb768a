//! What was asked of the job's knobs and not answered yet.

use stallscope_model::{Act, AuditEvent, Knob, KnobState};

/// More at a time are not followed: the oldest are given up.
const MOST: usize = 1024;

/// One knob that was asked for a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) decision: u64,
    pub(crate) by: String,
    pub(crate) rank: u32,
    pub(crate) loader: Option<u16>,
    pub(crate) knob: String,
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// What the job reports that it waits for.
    pub(crate) waits_for: String,
}

impl Asked {
    /// A line of the audit about it.
    pub(crate) fn line(&self, act: Act, now_ns: u64, why: impl Into<String>) -> AuditEvent {
        AuditEvent {
            time_ns: now_ns,
            decision: self.decision,
            act,
            by: self.by.clone(),
            rank: Some(self.rank),
            loader: self.loader,
            knob: self.knob.clone(),
            from: Some(self.from),
            to: Some(self.to),
            why: why.into(),
            ..AuditEvent::default()
        }
    }

    fn is_of(&self, knob: &Knob) -> bool {
        (self.rank, self.loader, &self.knob) == (knob.rank, knob.loader, &knob.name)
    }
}

/// Follows requests until the job has answered them.
#[derive(Debug, Default)]
pub(crate) struct Following(Vec<Asked>);

impl Following {
    pub(crate) fn follow(&mut self, asked: Asked) {
        // A later request for the same knob is answered in its stead.
        let same = |other: &Asked| {
            (other.rank, other.loader, &other.knob) == (asked.rank, asked.loader, &asked.knob)
        };
        self.0.retain(|other| !same(other));
        if self.0.len() == MOST {
            self.0.remove(0);
        }
        self.0.push(asked);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Lines on those that the job has answered by now.
    pub(crate) fn answered(&mut self, knobs: &[Knob], now_ns: u64) -> Vec<AuditEvent> {
        let mut lines = Vec::new();
        self.0.retain_mut(|asked| {
            let line = match knobs.iter().find(|knob| asked.is_of(knob)) {
                None => asked.line(Act::Refused, now_ns, "its process has taken the knob away"),
                Some(knob) if knob.requested != Some(asked.to) => {
                    let why = format!("the script itself has set it to {}", knob.value);
                    asked.line(Act::Refused, now_ns, why)
                }
                Some(knob) => match knob.state {
                    KnobState::Pending => {
                        asked.waits_for.clone_from(&knob.reason);
                        return true;
                    }
                    KnobState::Applied => asked.line(Act::Applied, now_ns, &knob.reason),
                    KnobState::Refused | KnobState::Unavailable => {
                        asked.line(Act::Refused, now_ns, &knob.reason)
                    }
                },
            };
            lines.push(line);
            false
        });
        lines
    }

    /// Lines on the rest: nobody will answer any more.
    pub(crate) fn give_up(&mut self, why: &str, now_ns: u64) -> Vec<AuditEvent> {
        let line = |asked: &Asked| {
            let waits_for = if asked.waits_for.is_empty() { "" } else { ": " };
            asked.line(Act::Refused, now_ns, format!("{why}{waits_for}{}", asked.waits_for))
        };
        std::mem::take(&mut self.0).iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(rank: u32, to: u64) -> Asked {
        Asked {
            decision: 3,
            by: "ada".into(),
            rank,
            loader: Some(0),
            knob: "workers".into(),
            from: 2,
            to,
            waits_for: String::new(),
        }
    }

    fn knob(rank: u32, value: u64, requested: Option<u64>, state: KnobState) -> Knob {
        Knob {
            rank,
            loader: Some(0),
            name: "workers".into(),
            value,
            requested,
            state,
            reason: "so it is".into(),
            ..Knob::default()
        }
    }

    fn acts(lines: &[AuditEvent]) -> Vec<(Act, Option<u32>, &str)> {
        lines.iter().map(|line| (line.act, line.rank, line.why.as_str())).collect()
    }

    #[test]
    fn each_request_has_one_answer() {
        let mut following = Following::default();
        (0..5).for_each(|rank| following.follow(asked(rank, 4)));
        let knobs = [
            knob(0, 4, Some(4), KnobState::Applied),
            knob(1, 2, Some(4), KnobState::Refused),
            knob(2, 2, Some(4), KnobState::Pending),
            knob(3, 7, None, KnobState::Applied),
        ];
        let lines = following.answered(&knobs, 9);
        assert_eq!(
            acts(&lines),
            [
                (Act::Applied, Some(0), "so it is"),
                (Act::Refused, Some(1), "so it is"),
                (Act::Refused, Some(3), "the script itself has set it to 7"),
                (Act::Refused, Some(4), "its process has taken the knob away"),
            ]
        );
        assert_eq!(
            (lines[0].decision, lines[0].from, lines[0].to, lines[0].time_ns),
            (3, Some(2), Some(4), 9)
        );
        assert!(following.answered(&knobs, 10).is_empty());
        // With what it had waited for.
        assert_eq!(
            acts(&following.give_up("the job ended", 11)),
            [(Act::Refused, Some(2), "the job ended: so it is")]
        );
        following.follow(asked(2, 4));
        assert_eq!(acts(&following.give_up("the job ended", 11)), [(Act::Refused, Some(2), "the job ended")]);
        assert!(following.is_empty());
    }

    #[test]
    fn a_later_request_for_the_same_knob_takes_the_place_of_the_first() {
        let mut following = Following::default();
        following.follow(asked(0, 4));
        following.follow(asked(0, 6));
        let lines = following.answered(&[knob(0, 6, Some(6), KnobState::Applied)], 1);
        assert_eq!(lines.iter().map(|line| line.to).collect::<Vec<_>>(), [Some(6)]);
        (0..3_000).for_each(|rank| following.follow(asked(rank, 4)));
        assert_eq!(following.0.len(), MOST);
    }
}
