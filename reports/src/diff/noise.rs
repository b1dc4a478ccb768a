//! How far a figure of a run can be trusted, from how it varied within the run.
//!
//! A run is cut into windows. A figure is a ratio of sums over them (Taylor's linearisation gives what each window
//! adds to its variance: Cochran, *Sampling Techniques*, 3rd ed. 1977, section 6.4). Neighbouring windows resemble
//! each other, so their number is replaced by that of independent ones with the same information,
//! `n (1 - r) / (1 + r)` with `r` the correlation of neighbours (Bayley and Hammersley, *The "effective" number of
//! independent observations in an autocorrelated time series*, J. R. Stat. Soc. Suppl. 8, 1946), freed from its bias in
//! short series (Kendall, Biometrika 41, 1954). Two runs are then compared by Welch's t (Biometrika 34, 1947).
//!
//! This is the noise *within* two runs. Another machine, a cold cache or a neighbour that was there all the time is
//! seen by none of it: only repeating the runs shows it.

/// How sure a change has to be to be called beyond noise.
pub const CONFIDENCE: f64 = 0.99;
/// The normal distribution's quantile for it, both tails.
const Z: f64 = 2.575_829_303_548_901;
/// With fewer windows the noise is not estimated.
pub(crate) const WINDOWS_AT_LEAST: usize = 10;
/// The same for independent ones.
const INDEPENDENT_AT_LEAST: f64 = 4.0;

/// A figure over the windows of one run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    /// Sum of the numerators over that of the denominators.
    pub(crate) ratio: f64,
    /// Of the ratio.
    standard_error: f64,
    /// Windows it is worth.
    independent: f64,
}

/// The spread of a figure given as numerator and denominator of each window, in order of time. `None` when there
/// are too few windows, or too few that are independent of each other.
pub(crate) fn spread(windows: &[(f64, f64)]) -> Option<Spread> {
    let count = windows.len() as f64;
    let whole: f64 = windows.iter().map(|(_, denominator)| denominator).sum();
    if windows.len() < WINDOWS_AT_LEAST || whole <= 0.0 {
        return None;
    }
    let ratio = windows.iter().map(|(numerator, _)| numerator).sum::<f64>() / whole;
    let residuals: Vec<f64> = windows
        .iter()
        .map(|(numerator, denominator)| (numerator - ratio * denominator) * count / whole)
        .collect();
    let squares: f64 = residuals.iter().map(|residual| residual * residual).sum();
    let products: f64 = residuals.windows(2).map(|pair| pair[0] * pair[1]).sum();
    let seen = if squares > 0.0 { products / squares } else { 0.0 };
    let unbiased = ((count * seen + 1.0) / (count - 4.0)).clamp(0.0, 1.0);
    // Without any variance there is nothing to be correlated.
    let independent = if squares > 0.0 { count * (1.0 - unbiased) / (1.0 + unbiased) } else { count };
    (independent >= INDEPENDENT_AT_LEAST).then(|| Spread {
        ratio,
        standard_error: (squares / count / (independent - 1.0)).sqrt(),
        independent,
    })
}

/// Half the width of the interval that holds the true difference of two figures with [`CONFIDENCE`].
pub(crate) fn margin(a: &Spread, b: &Spread) -> f64 {
    let [of_a, of_b] = [a, b].map(|spread| spread.standard_error.powi(2));
    let variance = of_a + of_b;
    if variance <= 0.0 {
        return 0.0;
    }
    let freedom =
        variance.powi(2) / (of_a.powi(2) / (a.independent - 1.0) + of_b.powi(2) / (b.independent - 1.0));
    student(freedom) * variance.sqrt()
}

/// Student's quantile for [`CONFIDENCE`], both tails: the expansion around the normal one (Abramowitz and Stegun
/// 26.7.5), within 1% from three degrees of freedom on.
fn student(freedom: f64) -> f64 {
    let powers = |coefficients: &[f64]| {
        coefficients.iter().rev().fold(0.0, |sum, coefficient| sum * Z * Z + coefficient) * Z
    };
    Z + powers(&[1.0, 1.0]) / (4.0 * freedom)
        + powers(&[3.0, 16.0, 5.0]) / (96.0 * freedom.powi(2))
        + powers(&[-15.0, 17.0, 19.0, 3.0]) / (384.0 * freedom.powi(3))
        + powers(&[-945.0, -1920.0, 1482.0, 776.0, 79.0]) / (92160.0 * freedom.powi(4))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_windows_have_a_finite_margin_or_none(
            a in prop::collection::vec((any::<u64>(), any::<u64>()), 0..40),
            b in prop::collection::vec((0..1000u64, 0..3u64), 0..40),
        ) {
            let spreads = [a, b].map(|windows| {
                spread(&windows.into_iter().map(|(x, y)| (x as f64, y as f64)).collect::<Vec<_>>())
            });
            if let [Some(a), Some(b)] = spreads {
                let margin = margin(&a, &b);
                prop_assert!(margin.is_finite() && margin >= 0.0, "{a:?} {b:?}: {margin}");
            }
        }
    }

    /// Uniform numbers in 0 to 1 (splitmix64).
    struct Numbers(u64);

    impl Numbers {
        fn next(&mut self) -> f64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut mixed = self.0;
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (mixed ^ (mixed >> 31)) as f64 / u64::MAX as f64
        }

        /// About normal: mean 0, deviation 1.
        fn normal(&mut self) -> f64 {
            (0..12).map(|_| self.next()).sum::<f64>() - 6.0
        }

        /// Windows of a run of a mean step of `level` ms whose neighbours correlate by `correlation`.
        fn run(&mut self, windows: usize, level: f64, correlation: f64) -> Vec<(f64, f64)> {
            let mut state = self.normal();
            (0..windows)
                .map(|_| {
                    state = correlation * state + (1.0 - correlation * correlation).sqrt() * self.normal();
                    let steps = 80.0 + 40.0 * self.next();
                    (steps * (level + 10.0 * state), steps)
                })
                .collect()
        }
    }

    fn found_different(numbers: &mut Numbers, windows: usize, levels: [f64; 2], correlation: f64) -> f64 {
        const PAIRS: usize = 2000;
        let mut apart = 0;
        for _ in 0..PAIRS {
            let [a, b] = levels.map(|level| spread(&numbers.run(windows, level, correlation)));
            if let (Some(a), Some(b)) = (a, b) {
                apart += usize::from((a.ratio - b.ratio).abs() > margin(&a, &b));
            }
        }
        apart as f64 / PAIRS as f64
    }

    #[test]
    fn runs_that_do_not_differ_are_seldom_found_different() {
        let mut numbers = Numbers(1);
        for (windows, correlation, at_most) in
            [(10, 0.0, 0.02), (30, 0.0, 0.02), (120, 0.0, 0.02), (60, 0.5, 0.025), (240, 0.8, 0.03)]
        {
            let false_alarms = found_different(&mut numbers, windows, [100.0, 100.0], correlation);
            assert!(false_alarms <= at_most, "{windows} windows, {correlation}: {false_alarms}");
        }
    }

    #[test]
    fn runs_that_differ_are_found_different() {
        let mut numbers = Numbers(2);
        for (windows, correlation) in [(30, 0.0), (120, 0.5), (360, 0.8)] {
            let found = found_different(&mut numbers, windows, [100.0, 115.0], correlation);
            assert!(found >= 0.95, "{windows} windows, {correlation}: {found}");
        }
    }

    #[test]
    fn too_little_says_nothing() {
        let mut numbers = Numbers(3);
        assert_eq!(spread(&numbers.run(WINDOWS_AT_LEAST - 1, 100.0, 0.0)), None);
        assert_eq!(spread(&[(0.0, 0.0); 40]), None);
        let drifting: Vec<(f64, f64)> = (0..12).map(|n| (f64::from(n), 1.0)).collect();
        assert_eq!(spread(&drifting), None);
        let constant = spread(&[(5.0, 1.0); 20]).expect("enough windows");
        assert_eq!((constant.ratio, margin(&constant, &constant)), (5.0, 0.0));
    }

    #[test]
    fn quantiles_are_the_published_ones() {
        for (freedom, quantile) in [(3.0, 5.841), (5.0, 4.032), (10.0, 3.169), (30.0, 2.750), (1e9, 2.576)] {
            let found = student(freedom);
            assert!((found / quantile - 1.0).abs() < 0.01, "{freedom}: {found}");
        }
    }
}
