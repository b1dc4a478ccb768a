//! Ratios with intervals. They are kept as logarithms, in which twice and half are equally far.

use stallscope_model::Estimate;

/// Two-sided 95% of Student's t for about as many replicas as there are.
const T: f64 = 2.1;

#[derive(Clone, Copy, Debug)]
pub(super) struct Factor {
    log: f64,
    low: f64,
    high: f64,
}

impl Factor {
    pub(super) const ONE: Factor = Factor { log: 0.0, low: 0.0, high: 0.0 };

    pub(super) fn new(log: f64, deviation: f64) -> Factor {
        Factor { log, low: log - T * deviation, high: log + T * deviation }
    }

    /// With an interval that holds all of these.
    pub(super) fn reaching(self, logs: &[f64]) -> Factor {
        let low = logs.iter().copied().fold(self.low, f64::min);
        Factor { low, high: logs.iter().copied().fold(self.high, f64::max), ..self }
    }

    /// Not below what `least` is.
    pub(super) fn at_least(self, least: Factor) -> Factor {
        Factor { log: self.log.max(least.log), low: self.low.max(least.low), high: self.high.max(least.high) }
    }

    pub(super) fn inverse(self) -> Factor {
        Factor { log: -self.log, low: -self.high, high: -self.low }
    }

    pub(super) fn times(self, by: f64) -> Estimate {
        Estimate { value: by * self.log.exp(), low: by * self.low.exp(), high: by * self.high.exp() }
    }
}

/// Mean and standard deviation; both 0 for nothing.
pub(super) fn moments(values: &[f64]) -> (f64, f64) {
    let count = values.len().max(1) as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (mean, (squares / (count - 1.0).max(1.0)).sqrt())
}
