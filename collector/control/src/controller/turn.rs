//! Asking for values and seeing whether the job takes them.

use crate::observation::Action;
use crate::ranks::Job;
use stallscope_model::{Knob, KnobState};

/// Who asks, in [`Knob::set_by`].
pub(crate) const CONTROLLER: &str = "controller";
/// A job that takes a value at its next epoch, say, is not waited for longer.
pub(crate) const PATIENCE_NS: u64 = 120_000_000_000;

/// One knob of one rank, from one value to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Move {
    pub(crate) rank: u32,
    pub(crate) loader: Option<u16>,
    pub(crate) knob: String,
    pub(crate) from: u64,
    pub(crate) to: u64,
}

impl Move {
    pub(crate) fn back(&self) -> Move {
        Move { from: self.to, to: self.from, ..self.clone() }
    }

    /// The way back from what is in force of it, which is less than all where a part was given back since.
    pub(crate) fn what_is_left(&self, job: &Job) -> Option<Move> {
        let value = self.find(job)?.value;
        let part = self.from.min(self.to)..=self.from.max(self.to);
        (value != self.from && part.contains(&value)).then(|| Move {
            from: value,
            to: self.from,
            ..self.clone()
        })
    }

    pub(crate) fn find<'a>(&self, job: &'a Job) -> Option<&'a Knob> {
        job.ranks
            .get(&self.rank)?
            .knobs
            .iter()
            .find(|knob| knob.name == self.knob && knob.loader == self.loader)
    }
}

/// Values asked for together, until all are in force.
#[derive(Clone, Debug)]
pub(crate) struct Turn {
    pub(crate) moves: Vec<Move>,
    pub(crate) asked_ns: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// Not yet; what the job says it waits for, which may be nothing.
    Waiting(String),
    InForce,
    /// With the job's reason.
    Refused(String),
    /// Somebody else has set another value: their name.
    Taken(String),
    /// The rank or its knob is no longer there.
    Gone(String),
}

impl Turn {
    pub(crate) fn actions(&self, decision: u64) -> Vec<Action> {
        let action = |turned: &Move| Action {
            decision,
            rank: turned.rank,
            loader: turned.loader,
            knob: turned.knob.clone(),
            value: turned.to,
        };
        self.moves.iter().map(action).collect()
    }

    /// As of `now_ns`. What was observed in the moment of asking is from before it.
    pub(crate) fn status(&self, job: &Job, now_ns: u64) -> Status {
        if let Some(taken) = self.moves.iter().find_map(|turned| taken_by_another(turned, job)) {
            return Status::Taken(taken);
        }
        let mut waiting = None;
        for turned in &self.moves {
            let Some(knob) = turned.find(job) else {
                return Status::Gone(match job.ranks.contains_key(&turned.rank) {
                    true => format!("rank {} no longer has the knob {}", turned.rank, turned.knob),
                    false => format!("rank {} is gone", turned.rank),
                });
            };
            if knob.value == turned.to && knob.state != KnobState::Pending {
                continue;
            }
            if now_ns <= self.asked_ns {
                waiting = Some(String::new());
                continue;
            }
            match knob.state {
                KnobState::Refused if knob.requested.is_none_or(|value| value == turned.to) => {
                    return Status::Refused(reason(knob, "it gave no reason"));
                }
                KnobState::Unavailable => return Status::Refused(reason(knob, "it cannot be turned here")),
                _ if now_ns > self.asked_ns + PATIENCE_NS => {
                    return Status::Refused(format!(
                        "not in force after {} s: {}",
                        PATIENCE_NS / 1_000_000_000,
                        reason(knob, "it did not say why")
                    ));
                }
                _ => waiting = Some(knob.reason.clone()),
            }
        }
        waiting.map_or(Status::InForce, Status::Waiting)
    }
}

fn reason(knob: &Knob, otherwise: &str) -> String {
    if knob.reason.is_empty() { otherwise.to_owned() } else { knob.reason.clone() }
}

/// Who else has asked for a value that is neither the old nor the new one, or has asked at all.
pub(crate) fn taken_by_another(turned: &Move, job: &Job) -> Option<String> {
    let knob = turned.find(job)?;
    let theirs = !knob.set_by.is_empty() && knob.set_by != CONTROLLER;
    let asked = knob.requested.is_some_and(|value| value != turned.from && value != turned.to);
    let set = knob.value != turned.from && knob.value != turned.to && knob.requested.is_none();
    match (theirs, asked, set) {
        (true, true, _) => Some(knob.set_by.clone()),
        (false, _, true) => Some("the script".to_owned()),
        _ => None,
    }
}
