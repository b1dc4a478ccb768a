//! Sees within a few steps that a change hurts, long before a window is complete, and counts what it cost.
//!
//! Two one-sided CUSUMs (Page, 1954) over what was seen since the turn: of how long steps take, beside those before it, and
//! of how much of them waits for data. One slow step raises no alarm, four do.

use super::seed::{STALL, seconds};
use crate::stats;
use crate::window::{StepGroup, Sums};
use stallscope_units::percent_in_words;

/// No job's steps are steadier than this, as a share.
const STEADIEST: f64 = 0.05;
/// In standard deviations: what counts as usual, what one step counts at most, and what they have to add up to.
const ALLOWANCE: f64 = 0.5;
const MOST: f64 = 3.0;
const ALARM: f64 = 8.0;
/// The same of the share of a step that waits for data.
const WAIT_ALLOWANCE: f64 = 0.03;
const WAIT_MOST: f64 = 0.25;
const WAIT_ALARM: f64 = 0.5;

/// What a rank's steps were like before a change.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Usual {
    /// Mean length of a step.
    step_ns: f64,
    /// Of the logarithm of a step's length.
    mean: f64,
    spread: f64,
    stall: f64,
}

impl Usual {
    /// `None` for fewer than two groups.
    pub(crate) fn of(groups: &[StepGroup]) -> Option<Usual> {
        let logs: Vec<f64> = groups.iter().filter_map(log_step).collect();
        let sums = Sums::of(groups);
        Some(Usual {
            step_ns: sums.step_ns(),
            mean: stats::mean(&logs)?,
            spread: stats::variance(&logs)?.sqrt().max(STEADIEST),
            stall: sums.stall_share(),
        })
    }

    /// Why what was seen since is worse, as a sentence; `None` while it is not, or while that is not sure. `waits`: a
    /// change that is not to let training wait more. Where it waited before, some steps in a row that wait longer are nothing
    /// unusual, and that it does is seen by how long they take.
    pub(crate) fn harmed(&self, since: &[StepGroup], waits: bool) -> Option<String> {
        let waits = waits && self.stall < STALL;
        let (mut slow, mut waiting) = (Sum::default(), Sum::default());
        for (at, group) in since.iter().enumerate() {
            let Some(log) = log_step(group) else { continue };
            slow.add(((log - self.mean) / self.spread).min(MOST) - ALLOWANCE, at);
            let stall = Sums::of(&[*group]).stall_share() - self.stall - WAIT_ALLOWANCE;
            waiting.add(stall.min(WAIT_MOST), at);
            if slow.value > ALARM {
                let sums = Sums::of(&since[slow.from..=at]);
                return Some(format!(
                    "{:.0} steps in a row took {} each, and {} before",
                    sums.steps,
                    seconds(sums.step_ns()),
                    seconds(self.step_ns)
                ));
            }
            if waits && waiting.value > WAIT_ALARM {
                let sums = Sums::of(&since[waiting.from..=at]);
                return Some(format!(
                    "{:.0} steps in a row waited {} of their time for data, and {} before",
                    sums.steps,
                    percent_in_words(sums.stall_share()),
                    percent_in_words(self.stall)
                ));
            }
        }
        None
    }

    /// Training time that these steps took beyond what as many took before; less than 0 where they were faster.
    pub(crate) fn cost_ns(&self, since: &[StepGroup]) -> f64 {
        let sums = Sums::of(since);
        sums.wall_ns - sums.steps * self.step_ns
    }
}

fn log_step(group: &StepGroup) -> Option<f64> {
    (group.steps > 0 && group.wall_ns > 0).then(|| (group.wall_ns as f64 / f64::from(group.steps)).ln())
}

/// Of one direction; begins anew whenever there is nothing.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    value: f64,
    from: usize,
}

impl Sum {
    fn add(&mut self, excess: f64, at: usize) {
        if self.value <= 0.0 {
            self.from = at;
        }
        self.value = (self.value + excess).max(0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: f64 = 1e6;

    /// Steps of about so many milliseconds, of which they wait a share for data.
    fn groups(count: usize, ms: f64, stall: f64) -> Vec<StepGroup> {
        let noise = |at: usize| 1.0 + 0.1 * ((at * 7919 % 13) as f64 / 6.0 - 1.0);
        let group = |at: usize| {
            let wall_ns = ms * MS * noise(at);
            StepGroup {
                steps: 1,
                samples: 8,
                wall_ns: wall_ns as u64,
                stall_ns: (stall * wall_ns) as u64,
                ..StepGroup::default()
            }
        };
        (0..count).map(group).collect()
    }

    /// Steps that it takes until harm is seen.
    fn seen_after(since: &[StepGroup], waits: bool) -> Option<usize> {
        let usual = Usual::of(&groups(30, 450.0, 0.001)).expect("enough");
        (1..=since.len()).find(|count| usual.harmed(&since[..*count], waits).is_some())
    }

    #[test]
    fn steps_that_take_a_quarter_longer_are_seen_within_ten() {
        let steps = seen_after(&groups(60, 570.0, 0.0), false);
        assert!(steps.is_some_and(|steps| steps <= 10), "{steps:?}");
        let steps = seen_after(&[groups(20, 450.0, 0.0), groups(60, 900.0, 0.0)].concat(), false);
        assert!(steps.is_some_and(|steps| (21..=26).contains(&steps)), "{steps:?}");
    }

    #[test]
    fn waits_that_were_not_there_are_seen_within_five_steps() {
        let steps = seen_after(&groups(60, 450.0, 0.2), true);
        assert!(steps.is_some_and(|steps| steps <= 5), "{steps:?}");
        assert_eq!(seen_after(&groups(60, 450.0, 0.2), false), None);
    }

    /// Of a job that waits a third of its time, some steps wait half of theirs and others next to nothing.
    #[test]
    fn longer_waits_of_a_job_that_waits_anyway_raise_no_alarm_while_its_steps_take_no_longer() {
        let usual = Usual::of(&groups(30, 450.0, 0.33)).expect("enough");
        assert_eq!(usual.harmed(&groups(12, 450.0, 0.5), true), None);
        let slower = usual.harmed(&groups(12, 700.0, 0.5), true).expect("they take longer");
        assert!(slower.contains("took"), "{slower}");
    }

    #[test]
    fn steps_as_before_and_a_single_slow_one_raise_no_alarm() {
        assert_eq!(seen_after(&groups(1000, 450.0, 0.002), true), None);
        let hiccup = [groups(10, 450.0, 0.0), groups(1, 9000.0, 0.9), groups(100, 450.0, 0.0)].concat();
        assert_eq!(seen_after(&hiccup, true), None);
    }

    #[test]
    fn what_a_look_cost_is_the_time_beyond_as_many_steps_before() {
        let usual = Usual::of(&groups(26, 400.0, 0.0)).expect("enough");
        let cost_ns = usual.cost_ns(&groups(13, 600.0, 0.0));
        assert!((cost_ns / (13.0 * 200.0 * MS) - 1.0).abs() < 0.02, "{cost_ns}");
        assert_eq!(Usual::of(&groups(1, 400.0, 0.0)), None);
    }
}
