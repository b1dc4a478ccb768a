//! Training's time that counts in the end: what saves and failures leave of it.

/// How a job fails, and how long a save takes until it counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Failures {
    /// Mean time between failures, in seconds.
    pub(crate) mtbf_s: f64,
    /// From the beginning of a save until it is durable, in seconds.
    pub(crate) persist_s: f64,
}

impl Failures {
    /// The share of training that failures leave, with a save every `interval_s` seconds: Daly's (2006) complete model for failures
    /// that come at random, without the time that a restart takes, which no interval changes. Where a save is durable only later, a
    /// failure loses so much more.
    pub(crate) fn left(&self, interval_s: f64) -> f64 {
        let mtbf_s = self.mtbf_s.max(1e-3);
        let exposed = (interval_s.max(0.0) / mtbf_s).min(700.0);
        let lost = if exposed < 1e-9 { 1.0 } else { exposed / exposed.exp_m1() };
        lost * (-self.persist_s.max(0.0) / mtbf_s).exp()
    }

    /// Goodput, as a share of training's time: saves every `interval_s` seconds cost `share` of it.
    pub(crate) fn goodput(&self, share: f64, interval_s: f64) -> f64 {
        ((1.0 - share.clamp(0.0, 1.0)) * self.left(interval_s)).max(1e-9)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIX_HOURS: Failures = Failures { mtbf_s: 21_600.0, persist_s: 0.0 };

    #[test]
    fn a_failure_loses_half_an_interval_on_average_where_intervals_are_short() {
        let lost = 1.0 - SIX_HOURS.left(600.0);
        assert!((lost - 300.0 / 21_600.0).abs() < 1e-4, "{lost}");
        let late = Failures { persist_s: 60.0, ..SIX_HOURS };
        assert!((SIX_HOURS.left(600.0) - late.left(600.0) - 60.0 / 21_600.0).abs() < 1e-4);
    }

    #[test]
    fn what_is_never_saved_is_lost() {
        assert!(SIX_HOURS.left(1e7) < 1e-3);
        assert_eq!(SIX_HOURS.left(0.0), 1.0);
    }

    #[test]
    fn youngs_interval_has_the_best_goodput() {
        let cost_s = 2.0;
        let goodput = |interval_s: f64| SIX_HOURS.goodput(cost_s / interval_s, interval_s);
        let young_s = (2.0 * cost_s * SIX_HOURS.mtbf_s).sqrt();
        for factor in [0.5, 0.8, 1.25, 2.0] {
            assert!(goodput(young_s) > goodput(factor * young_s), "{factor}");
        }
    }
}
