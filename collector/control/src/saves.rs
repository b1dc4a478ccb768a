//! What saves cost a job, as its checkpointer reports it after each.

use crate::stats::t_quantile;
use stallscope_model::{CheckpointAccount, CheckpointRule};
use std::collections::VecDeque;

/// Reports that are remembered.
const REPORTS: usize = 64;

#[derive(Clone, Debug, Default)]
pub(crate) struct Saves {
    last: Option<CheckpointAccount>,
    reports: VecDeque<Report>,
}

/// What was added since the report before.
#[derive(Clone, Copy, Debug)]
struct Report {
    seen_ns: u64,
    spent_ns: f64,
    trained_ns: f64,
}

/// Of training's time, what saves cost, with a bound at each end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Share {
    pub(crate) value: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
    /// Reports that it is of.
    pub(crate) reports: usize,
}

impl Saves {
    pub(crate) fn take(&mut self, now_ns: u64, account: CheckpointAccount) {
        let Some(last) = self.last.replace(account) else { return };
        if account.trained_ns < last.trained_ns || account.spent_ns < last.spent_ns {
            // Another process of the job's.
            self.reports.clear();
        } else if account.trained_ns > last.trained_ns {
            let added = |now: u64, before: u64| (now - before) as f64;
            self.reports.push_back(Report {
                seen_ns: now_ns,
                spent_ns: added(account.spent_ns, last.spent_ns),
                trained_ns: added(account.trained_ns, last.trained_ns),
            });
            if self.reports.len() > REPORTS {
                self.reports.pop_front();
            }
        }
    }

    /// Whether nothing bounds what saves cost: an interval is set.
    pub(crate) fn are_unbounded(&self) -> bool {
        self.last.is_some_and(|account| account.budget_ppm.is_none())
    }

    pub(crate) fn rule(&self) -> Option<CheckpointRule> {
        self.last?.rule
    }

    /// Of what was reported from `since_ns` on, without the first report, part of which is of before. The ratio estimator of what was
    /// spent to what was trained, with the chance of error `alpha` at each end. `None` of fewer than two.
    pub(crate) fn share(&self, since_ns: u64, alpha: f64) -> Option<Share> {
        let later = self.reports.iter().filter(|report| report.seen_ns >= since_ns);
        let reports: Vec<&Report> = later.skip(usize::from(since_ns > 0)).collect();
        let sum = |of: fn(&Report) -> f64| reports.iter().map(|report| of(report)).sum::<f64>();
        let (spent_ns, trained_ns, count) =
            (sum(|report| report.spent_ns), sum(|report| report.trained_ns), reports.len() as f64);
        if count < 2.0 || trained_ns <= 0.0 {
            return None;
        }
        let value = spent_ns / trained_ns;
        let off = |report: &&Report| (report.spent_ns - value * report.trained_ns).powi(2);
        let squares: f64 = reports.iter().map(off).sum();
        let deviation = (squares * count / (count - 1.0)).sqrt() / trained_ns;
        let reach = t_quantile(1.0 - alpha, count - 1.0) * deviation;
        let clamp = |share: f64| share.clamp(0.0, 1.0);
        Some(Share {
            value: clamp(value),
            low: clamp(value - reach),
            high: clamp(value + reach),
            reports: reports.len(),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn saves(reports: &[(u64, u64)]) -> Saves {
        let (mut saves, mut account) = (Saves::default(), CheckpointAccount::default());
        saves.take(0, account);
        for (number, (spent_ns, trained_ns)) in reports.iter().enumerate() {
            account.spent_ns += spent_ns;
            account.trained_ns += trained_ns;
            saves.take(number as u64 + 1, account);
        }
        saves
    }

    #[test]
    fn saves_cost_what_was_spent_of_what_was_trained() {
        let share = saves(&[(20, 100), (10, 100), (15, 100)]).share(0, 0.05).unwrap();
        assert!((share.value - 0.15).abs() < 1e-12 && share.reports == 3);
        assert!(share.low > 0.05 && share.low < 0.15 && share.high > 0.15 && share.high < 0.25, "{share:?}");
    }

    #[test]
    fn the_first_report_after_a_change_is_partly_of_before() {
        let share = saves(&[(50, 100), (50, 100), (1, 100), (1, 100)]).share(2, 0.05).unwrap();
        assert_eq!((share.value, share.reports), (0.01, 2));
    }

    #[test]
    fn an_account_that_begins_anew_is_another_process() {
        let mut saves = saves(&[(20, 100), (20, 100)]);
        saves.take(9, CheckpointAccount::default());
        assert_eq!(saves.share(0, 0.05), None);
    }
}
