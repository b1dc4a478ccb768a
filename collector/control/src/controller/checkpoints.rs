//! How often the job saves, where a fixed interval is in force.
//!
//! Its checkpointer has a rule of its own (probe/checkpoint/src/interval.rs), and reports the interval of that rule whatever is in force:
//! the one with which saves and failures lose least, within the budget that the script gives. The controller asks for it where goodput is
//! expected to gain, and judges it by what saves cost of training before and after. What failures cost is the model's on both sides: a job that
//! is being watched has hardly any.

use super::audit;
use super::probe::{DELTA, Why};
use super::seed::{CHECKPOINTS, Kind, Proposal};
use super::turn::{CONTROLLER, Move, Status, Turn};
use super::{Action, Controller};
use crate::goodput::Failures;
use crate::observation::Outcome;
use crate::ranks::Rank;
use crate::saves::Share;
use crate::stats::Gain;
use stallscope_model::{Act, Estimate, Knob, KnobState};
use stallscope_units::{duration_in_words, percent_in_words};

/// Reports of saves before which nothing is known, of saves after which an interval is tried although it is not sure that it gains, and looks
/// after which it is not clear.
const FEWEST: usize = 3;
const ENOUGH: usize = 12;
const MOST_LOOKS: usize = 10;
/// Chance of error at each end of what is expected.
const ALPHA: f64 = 0.05;

/// Another interval that has yet to prove itself.
#[derive(Clone, Debug)]
pub(super) struct Frequency {
    decision: u64,
    pub(super) proposal: Proposal,
    /// The script's own interval was in force before, which the knob's 0 brings back whatever it is by then.
    own: bool,
    pub(super) saw: String,
    before: Share,
    failures: Failures,
    /// Until it is in force.
    turn: Option<Turn>,
    in_force_ns: u64,
    /// Training that was seen by then.
    trained_ns: u64,
    reports: usize,
}

impl Frequency {
    fn intervals_s(&self) -> (f64, f64) {
        self.proposal.moves.first().map_or((1.0, 1.0), |turned| (turned.from as f64, turned.to as f64))
    }

    fn gain(&self, with: Share) -> Gain {
        let (from_s, to_s) = self.intervals_s();
        let gain = |with: f64, before: f64| {
            self.failures.goodput(with, to_s) / self.failures.goodput(before, from_s) - 1.0
        };
        Gain {
            value: gain(with.value, self.before.value),
            low: gain(with.high, self.before.low),
            high: gain(with.low, self.before.high),
        }
    }
}

/// A person's value says what may be lost, and stays until it is given back.
fn is_a_persons(knob: &Knob) -> bool {
    !knob.set_by.is_empty() && knob.set_by != CONTROLLER && knob.requested != Some(0)
}

/// Of the rank that decides for all.
fn decides(rank: &Rank) -> Option<&Knob> {
    rank.knob(CHECKPOINTS).filter(|knob| knob.state != KnobState::Unavailable)
}

impl Controller {
    /// The interval that is worth trying.
    pub(super) fn pick_interval(&self) -> Option<Frequency> {
        if self.frequency.is_some() || !self.ready(CHECKPOINTS, Kind::Raise) {
            return None;
        }
        let rank = self.job.training().find(|rank| decides(rank).is_some())?;
        let knob = decides(rank).filter(|knob| knob.state == KnobState::Applied && !is_a_persons(knob))?;
        let rule = rank.saves.rule().filter(|rule| rule.interval_ns > 0 && rank.saves.are_unbounded())?;
        let before = rank.saves.share(self.saves_since_ns, ALPHA).filter(|share| share.reports >= FEWEST)?;
        let seconds = |ns: u64| ns as f64 / 1e9;
        let failures = Failures { mtbf_s: seconds(rule.mtbf_ns), persist_s: seconds(rule.persist_ns) };
        // Where saves may cost less than the script allows, they come no more often than that takes.
        let share = self.budgets.checkpoint_overhead.filter(|share| *share > 0.0);
        let within_s = share.map_or(0, |share| (seconds(rule.cost_ns) / share).ceil() as u64);
        let to = (seconds(rule.interval_ns).round() as u64).max(within_s).max(knob.min.max(1)).min(knob.max);
        let turned =
            Move { rank: rank.rank, loader: None, knob: CHECKPOINTS.to_owned(), from: knob.value.max(1), to };
        // Saves that wait for one another cost less where they are rarer: the gain may be larger.
        let (from_s, to_s) = (turned.from as f64, turned.to as f64);
        let gain = |share: f64| {
            failures.goodput(share * from_s / to_s, to_s) / failures.goodput(share, from_s) - 1.0
        };
        let ends = [gain(before.low), gain(before.high)];
        let predicted =
            Estimate { value: gain(before.value), low: ends[0].min(ends[1]), high: ends[0].max(ends[1]) };
        // What is roughly known cannot be compared with: saves that come often are soon known better.
        let is_known = predicted.low >= DELTA || before.reports >= ENOUGH;
        if predicted.value < DELTA || turned.from == turned.to || !is_known {
            return None;
        }
        let saw = format!(
            "saves cost {} of training with one every {}",
            percent_in_words(before.value),
            interval(turned.from)
        );
        let proposal = Proposal {
            kind: Kind::Raise,
            knob: CHECKPOINTS,
            moves: vec![turned],
            predicted,
            shortfall: 0.0,
            clear: false,
            why: format!(
                "a save costs {}, and the job fails every {} on average: with a save every {} both lose least within the checkpointer's budget",
                duration_in_words(rule.cost_ns),
                duration_in_words(rule.mtbf_ns),
                interval(to)
            ),
        };
        Some(Frequency {
            decision: 0,
            proposal,
            own: knob.set_by.is_empty() || knob.requested == Some(0),
            saw,
            before,
            failures,
            turn: None,
            in_force_ns: 0,
            trained_ns: 0,
            reports: 0,
        })
    }

    /// Another interval came into force, be it the script's or a person's.
    pub(super) fn note_interval(&mut self) {
        let knob = self.job.training().find_map(decides);
        let Some(now_s) = knob.map(|knob| knob.value) else { return };
        // One that is given in steps follows what they take.
        let by_s = now_s.abs_diff(self.interval_s);
        if by_s > 1 && by_s.saturating_mul(4) > self.interval_s {
            (self.interval_s, self.saves_since_ns) = (now_s, self.now_ns);
        }
    }

    /// Asks for another interval, where that is worth while now. It is judged beside whatever else is tried.
    pub(super) fn consider_interval(&mut self, out: &mut Outcome) {
        let Some(mut frequency) = self.pick_interval() else { return };
        self.decisions += 1;
        let (proposal, saw) = (&frequency.proposal, &frequency.saw);
        out.audit.extend(audit::asked(Act::Request, self.decisions, self.now_ns, proposal, saw));
        let turn = Turn { moves: proposal.moves.clone(), asked_ns: self.now_ns };
        out.actions.extend(turn.actions(self.decisions));
        (frequency.decision, frequency.turn) = (self.decisions, Some(turn));
        self.frequency = Some(frequency);
    }

    /// What became of the interval that was asked for, once a second.
    pub(super) fn go_on_saving(&mut self, out: &mut Outcome) {
        let Some(mut frequency) = self.frequency.take() else { return };
        if let Some(turn) = &frequency.turn {
            match turn.status(&self.job, self.now_ns) {
                Status::Waiting(_) => self.frequency = Some(frequency),
                Status::InForce => {
                    (frequency.turn, frequency.in_force_ns) = (None, self.now_ns);
                    frequency.trained_ns = self.trained_ns;
                    self.frequency = Some(frequency);
                }
                Status::Refused(why) | Status::Taken(why) | Status::Gone(why) => {
                    let mut event =
                        audit::about(Act::Refused, frequency.decision, self.now_ns, &frequency.proposal);
                    event.why = why;
                    out.audit.push(event);
                    self.leave_interval_alone();
                    self.give_back_interval(&frequency, out);
                }
            }
            return;
        }
        let rank = self.job.training().find(|rank| decides(rank).is_some());
        let Some((rank, knob)) = rank.and_then(|rank| Some((rank, decides(rank)?))) else {
            // Between two passes, say.
            self.frequency = Some(frequency);
            return;
        };
        if is_a_persons(knob) {
            let why = format!("{} turned the knob meanwhile: theirs stays", knob.set_by);
            self.leave_interval_alone();
            self.end_interval(&frequency, Act::Undo, None, String::new(), why, out);
            return;
        }
        let alpha = self.patience.get(&(CHECKPOINTS, Kind::Raise)).cloned().unwrap_or_default().alpha()
            / MOST_LOOKS as f64;
        let with = rank.saves.share(frequency.in_force_ns, alpha).filter(|share| share.reports >= FEWEST);
        let Some(with) = with.filter(|share| share.reports > frequency.reports) else {
            let waited_s = self.trained_ns.saturating_sub(frequency.trained_ns) as f64 / 1e9;
            let (_, to_s) = frequency.intervals_s();
            if waited_s > (2 * FEWEST + MOST_LOOKS) as f64 * to_s.max(10.0) {
                let why = "too few saves were seen with it".to_owned();
                self.undo_interval(frequency, None, String::new(), why, out);
            } else {
                self.frequency = Some(frequency);
            }
            return;
        };
        frequency.reports = with.reports;
        let (gain, over) = (frequency.gain(with), with.reports >= FEWEST + MOST_LOOKS);
        let saw = format!(
            "saves cost {} of training before and {} with it",
            percent_in_words(frequency.before.value),
            percent_in_words(with.value)
        );
        if gain.low >= DELTA {
            let why = format!("the gain is proven: {}", audit::gain(gain));
            let step = frequency.proposal.step();
            self.patience(&frequency.proposal).keep(step);
            self.end_interval(&frequency, Act::Keep, Some(gain), saw, why, out);
        } else if gain.high < DELTA || over {
            let why = if gain.high < DELTA { Why::TooLittle } else { Why::NotClear };
            self.undo_interval(frequency, Some(gain), saw, audit::why(why).to_owned(), out);
        } else {
            self.frequency = Some(frequency);
        }
    }

    fn leave_interval_alone(&mut self) {
        self.patience.entry((CHECKPOINTS, Kind::Raise)).or_default().leave_alone(self.now_ns);
    }

    fn undo_interval(
        &mut self,
        frequency: Frequency,
        gain: Option<Gain>,
        saw: String,
        why: String,
        out: &mut Outcome,
    ) {
        let jitter = self.random.unit();
        self.give_up(&frequency.proposal, jitter);
        self.give_back_interval(&frequency, out);
        self.end_interval(&frequency, Act::Undo, gain, saw, why, out);
    }

    /// Asks for what was in force before, unless a person has set another since, or the job has refused ours: one that is pending
    /// may still come into force.
    fn give_back_interval(&self, frequency: &Frequency, out: &mut Outcome) {
        let moves = frequency.proposal.moves.iter();
        let ours = moves.filter(|turned| {
            turned.find(&self.job).is_some_and(|knob| !is_a_persons(knob) && knob.state != KnobState::Refused)
        });
        out.actions.extend(ours.map(|turned| Action {
            decision: frequency.decision,
            rank: turned.rank,
            loader: turned.loader,
            knob: turned.knob.clone(),
            value: if frequency.own { 0 } else { turned.from },
        }));
    }

    fn end_interval(
        &self,
        frequency: &Frequency,
        act: Act,
        gain: Option<Gain>,
        saw: String,
        why: String,
        out: &mut Outcome,
    ) {
        let mut event = audit::about(act, frequency.decision, self.now_ns, &frequency.proposal);
        event.measured = gain.and_then(audit::measured);
        (event.saw, event.why) = (saw, why);
        out.audit.push(event);
    }

    /// The interval that was asked for ends without proof.
    pub(super) fn drop_interval(&mut self, why: &str, out: &mut Outcome) {
        if let Some(frequency) = self.frequency.take() {
            self.undo_interval(frequency, None, String::new(), why.to_owned(), out);
        }
    }
}

fn interval(seconds: u64) -> String {
    duration_in_words(seconds.saturating_mul(1_000_000_000))
}
