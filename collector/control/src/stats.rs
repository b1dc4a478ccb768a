//! How sure a comparison of two windows of steps can be.
//!
//! Steps are neither independent (a queue of finished batches lies between worker and trainer) nor normal (a slow
//! read makes a tail). So a window is cut into a dozen blocks, each long enough that their means are nearly normal;
//! what correlation is left between neighbours widens the interval (batch means, Law & Kelton, "Simulation Modeling
//! and Analysis", 9.5.3). What is compared is samples over time, not a mean of ratios.

/// Blocks that a window is cut into, where it has steps enough.
const BLOCKS: usize = 12;
/// Fewer don't show how much they vary.
const FEWEST_BLOCKS: usize = 4;

/// The pace of one window: the logarithm of samples a second, so that differences are gains.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Figure {
    pub(crate) log_pace: f64,
    /// Of `log_pace`.
    pub(crate) variance: f64,
    pub(crate) freedom: f64,
}

/// Samples and nanoseconds of something short.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Piece {
    pub(crate) samples: f64,
    pub(crate) ns: f64,
}

/// The gain of B over A, as a share, with a one-sided bound at each end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Gain {
    pub(crate) value: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

/// The pace of the ranks of a job together; each has its pieces in order of time. `None` where they are too few.
pub(crate) fn figure(ranks: &[Vec<Piece>]) -> Option<Figure> {
    let fewest = ranks.iter().map(Vec::len).min()?;
    let blocks = BLOCKS.min((fewest / 2).max(FEWEST_BLOCKS));
    if fewest < blocks {
        return None;
    }
    let mut paces = vec![0.0; blocks];
    let mut whole = 0.0;
    for pieces in ranks {
        for (block, pace) in paces.iter_mut().enumerate() {
            let (from, to) = (block * pieces.len() / blocks, (block + 1) * pieces.len() / blocks);
            *pace += rate(&pieces[from..to])?;
        }
        whole += rate(pieces)?;
    }
    let count = blocks as f64;
    let mean = paces.iter().sum::<f64>() / count;
    let off: Vec<f64> = paces.iter().map(|pace| (pace - mean) / whole).collect();
    let squares: f64 = off.iter().map(|x| x * x).sum();
    let variance = squares / (count - 1.0) / count;
    let neighbours: f64 = off.windows(2).map(|pair| pair[0] * pair[1]).sum();
    let correlation = if squares > 0.0 { (neighbours / squares).clamp(0.0, 0.6) } else { 0.0 };
    Some(Figure {
        log_pace: whole.ln(),
        variance: variance * (1.0 + correlation) / (1.0 - correlation),
        freedom: count - 1.0,
    })
    .filter(|figure| figure.log_pace.is_finite() && figure.variance.is_finite())
}

fn rate(pieces: &[Piece]) -> Option<f64> {
    let samples: f64 = pieces.iter().map(|piece| piece.samples).sum();
    let ns: f64 = pieces.iter().map(|piece| piece.ns).sum();
    (samples > 0.0 && ns > 0.0).then(|| samples / ns * 1e9)
}

/// Compares windows A, B, A, B, … in order of time: each B with the mean of the A before and the A after it, so that
/// what changes slowly cancels. What changes fast widens the interval, by whatever shows more of it: where the A
/// before and the A after differ, B may lie anywhere between them; pairs differ from one another; and `restless` is
/// how much windows of this length varied while nothing was turned, see [`restless`]. `alpha`: the chance of error
/// at each end. `None` without an A and a B.
pub(crate) fn compare(legs: &[Figure], restless: f64, alpha: f64) -> Option<Gain> {
    let pairs = legs.len() / 2;
    if pairs == 0 {
        return None;
    }
    let mut weights = vec![0.0; legs.len()];
    let mut drift = 0.0;
    let mut gains = Vec::with_capacity(pairs);
    for pair in 0..pairs {
        let (before, with) = (legs[2 * pair].log_pace, legs[2 * pair + 1].log_pace);
        weights[2 * pair + 1] += 1.0;
        match legs.get(2 * pair + 2) {
            Some(after) => {
                weights[2 * pair] -= 0.5;
                weights[2 * pair + 2] -= 0.5;
                drift += (after.log_pace - before).powi(2) / 12.0;
                gains.push(with - (before + after.log_pace) / 2.0);
            }
            None => {
                weights[2 * pair] -= 1.0;
                gains.push(with - before);
            }
        }
    }
    let n = pairs as f64;
    let value = mean(&gains)?;
    let (mut square, mut spread) = (drift / (n * n), 0.0);
    for (leg, weight) in legs.iter().zip(&weights) {
        let own = (weight / n).powi(2) * (leg.variance + restless);
        square += own;
        spread += own * own / leg.freedom.max(1.0);
    }
    let mut freedom = if spread > 0.0 { (square * square / spread).clamp(3.0, 1e6) } else { 1e6 };
    if let Some(between) = variance(&gains).filter(|between| pairs >= 4 && between / n > square) {
        (square, freedom) = (between / n, n - 1.0);
    }
    let reach = t_quantile(1.0 - alpha, freedom) * square.sqrt();
    let share = |log: f64| log.clamp(-20.0, 20.0).exp_m1();
    Some(Gain { value: share(value), low: share(value - reach), high: share(value + reach) })
}

/// Variance of windows in a row, in which nothing was turned, about the mean of their neighbours, beyond what is
/// seen within them: what of a comparison's noise no single window shows. `None` where they are too few.
pub(crate) fn restless(windows: &[Figure]) -> Option<f64> {
    if windows.len() < 5 {
        return None;
    }
    let off = |three: &[Figure]| (three[1].log_pace - (three[0].log_pace + three[2].log_pace) / 2.0).powi(2);
    let squares: Vec<f64> = windows.windows(3).map(off).collect();
    let within: Vec<f64> = windows.iter().map(|window| window.variance).collect();
    // A window and half of two others: 1 + 1/4 + 1/4 of a window's variance.
    Some((mean(&squares)? / 1.5 - mean(&within)?).max(0.0))
}

/// Quantile of the normal distribution (Abramowitz & Stegun 26.2.23; within 4.5e-4).
pub(crate) fn normal_quantile(p: f64) -> f64 {
    let p = p.clamp(1e-12, 1.0 - 1e-12);
    let tail = p.min(1.0 - p);
    let t = (-2.0 * tail.ln()).sqrt();
    let x = t
        - (2.515_517 + t * (0.802_853 + t * 0.010_328))
            / (1.0 + t * (1.432_788 + t * (0.189_269 + t * 0.001_308)));
    if p < 0.5 { -x } else { x }
}

/// Quantile of Student's t (Abramowitz & Stegun 26.7.5; good from three degrees of freedom on).
pub(crate) fn t_quantile(p: f64, freedom: f64) -> f64 {
    let x = normal_quantile(p);
    let n = freedom.max(1.0);
    let g1 = (x.powi(3) + x) / 4.0;
    let g2 = (5.0 * x.powi(5) + 16.0 * x.powi(3) + 3.0 * x) / 96.0;
    let g3 = (3.0 * x.powi(7) + 19.0 * x.powi(5) + 17.0 * x.powi(3) - 15.0 * x) / 384.0;
    x + g1 / n + g2 / (n * n) + g3 / (n * n * n)
}

pub(crate) fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// Of values with how many each stands for.
pub(crate) fn weighted_mean(values: &[(f64, f64)]) -> Option<f64> {
    let weights: f64 = values.iter().map(|(_, weight)| weight).sum();
    (weights > 0.0).then(|| values.iter().map(|(value, weight)| value * weight).sum::<f64>() / weights)
}

/// The least value that so large a share of all does not exceed; 0 for none. Sorts `values`.
pub(crate) fn weighted_quantile(values: &mut [(f64, f64)], share: f64) -> f64 {
    values.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut left = share * values.iter().map(|(_, weight)| weight).sum::<f64>();
    let at = values.iter().position(|(_, weight)| {
        left -= weight;
        left < 0.0
    });
    at.or(values.len().checked_sub(1)).map_or(0.0, |at| values[at].0)
}

/// Sample variance; `None` for fewer than two.
pub(crate) fn variance(values: &[f64]) -> Option<f64> {
    let mean = mean(values)?;
    (values.len() > 1)
        .then(|| values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (values.len() as f64 - 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Heavy-tailed, autocorrelated step times from a small generator of our own.
    struct Steps {
        state: u64,
        carried: f64,
    }

    impl Steps {
        fn uniform(&mut self) -> f64 {
            self.state =
                self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((self.state >> 11) as f64 + 0.5) / (1u64 << 53) as f64
        }

        fn window(&mut self, steps: usize, ns: f64) -> Vec<Piece> {
            (0..steps)
                .map(|_| {
                    let tail = self.uniform().powf(-0.35) - 1.0;
                    self.carried = 0.6 * self.carried + 0.4 * tail;
                    Piece { samples: 64.0, ns: ns * (1.0 + self.carried) }
                })
                .collect()
        }
    }

    #[test]
    fn what_changes_nothing_is_seldom_taken_for_a_gain() {
        let mut steps = Steps { state: 7, carried: 0.0 };
        let wrong = (0..1000)
            .filter(|_| {
                let legs: Vec<Figure> =
                    (0..3).map(|_| figure(&[steps.window(150, 1e8)]).expect("steps enough")).collect();
                compare(&legs, 0.0, 0.05).expect("an A and a B").low >= 0.02
            })
            .count();
        assert!(wrong <= 50, "{wrong} of 1000 comparisons of the same with the same found a gain of 2%");
    }

    #[test]
    fn a_real_gain_is_found() {
        let mut steps = Steps { state: 3, carried: 0.0 };
        let legs: Vec<Figure> =
            [1e8, 0.7e8, 1e8].iter().map(|ns| figure(&[steps.window(200, *ns)]).expect("steps")).collect();
        let gain = compare(&legs, 0.0, 0.01).expect("an A and a B");
        assert!(gain.low > 0.02 && gain.low < 0.43 && gain.high > 0.43, "{gain:?}");
    }

    #[test]
    fn a_steady_drift_is_not_a_gain() {
        let leg = |ns: f64| Figure { log_pace: -ns.ln(), variance: 1e-6, freedom: 11.0 };
        let gain = compare(&[leg(1.0), leg(0.9), leg(0.81)], 0.0, 0.05).expect("an A and a B");
        assert!(gain.value.abs() < 1e-9 && gain.low < 0.0);
    }

    #[test]
    fn quantiles_are_those_of_the_tables() {
        assert!((normal_quantile(0.975) - 1.96).abs() < 1e-3);
        assert!((t_quantile(0.975, 11.0) - 2.201).abs() < 5e-3);
        assert!((t_quantile(0.99, 4.0) - 3.747).abs() < 0.1);
    }

    #[test]
    fn too_few_or_empty_steps_have_no_figure() {
        assert!(figure(&[]).is_none());
        assert!(figure(&[vec![Piece { samples: 1.0, ns: 1.0 }; 3]]).is_none());
        assert!(figure(&[vec![Piece { samples: 0.0, ns: 0.0 }; 70]]).is_none());
    }

    #[test]
    fn what_stands_for_others_counts_as_often() {
        let mut values = [(30.0, 1.0), (10.0, 8.0), (20.0, 1.0)];
        assert_eq!(weighted_mean(&values), Some(13.0));
        assert_eq!(weighted_quantile(&mut values, 0.79), 10.0);
        assert_eq!(weighted_quantile(&mut values, 0.85), 20.0);
        assert_eq!(weighted_quantile(&mut values, 0.99), 30.0);
        assert_eq!((weighted_mean(&[]), weighted_quantile(&mut [], 0.5)), (None, 0.0));
    }
}
