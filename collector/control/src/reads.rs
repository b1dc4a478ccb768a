//! What a sample that has to be read costs its batch.
//!
//! The shuffle decides how many samples of a batch a cache has, so batches with many of them and batches with few are as good
//! as assigned by lot: the time that batches take, regressed on the samples of each that were read, is what one read adds,
//! whatever storage and machine do meanwhile. The variance is White's (1980), because slow batches vary more.

use crate::fit::weight;
use crate::ranks::Rank;
use crate::stats::{self, Gain};
use stallscope_model::BatchService;
use std::collections::VecDeque;

/// Fewer batches do not show how much they vary.
const FEWEST: usize = 40;

/// Batches that count towards one question are kept for it, the newest so many.
const MOST: usize = 4096;

/// Batches since a moment, however many a rank remembers of them: what a read costs is seen the more exactly the more there are.
#[derive(Clone, Debug)]
pub(crate) struct Since {
    from_ns: u64,
    /// Of all that came to the rank.
    taken: u64,
    batches: VecDeque<Seen>,
}

impl Since {
    /// Those that are begun from now on.
    pub(crate) fn new(from_ns: u64, rank: Option<&Rank>) -> Since {
        Since { from_ns, taken: rank.map_or(0, |rank| rank.services_taken), batches: VecDeque::new() }
    }

    /// Takes those that are new.
    pub(crate) fn take(&mut self, rank: &Rank) {
        let count = rank.services_taken.saturating_sub(self.taken).min(rank.services.len() as u64) as usize;
        self.taken = rank.services_taken;
        let new = rank.services.iter().skip(rank.services.len() - count);
        let new = new.filter(|service| service.start_ns >= self.from_ns);
        self.batches.extend(new.filter_map(Seen::of));
        let surplus = self.batches.len().saturating_sub(MOST);
        drop(self.batches.drain(..surplus));
    }

    pub(crate) fn count(&self) -> u32 {
        self.batches.len() as u32
    }

    /// `None` for too few.
    pub(crate) fn reads(&self) -> Option<Reads> {
        Reads::of_seen(self.batches.iter().copied())
    }
}

/// Of a batch: how long it took, how many of its samples were read, for how many it stands, and what the loader took for it.
#[derive(Clone, Copy, Debug)]
struct Seen([f64; 4]);

impl Seen {
    /// `None` where it is not known what a cache had.
    fn of(service: &BatchService) -> Option<Seen> {
        let ns = service.ready_ns.saturating_sub(service.start_ns) as f64;
        Some(Seen([ns, f64::from(service.missed?), weight(service), ns / service.makers.max(1.0)]))
    }
}

/// Of some batches of one loader.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Reads {
    /// Mean of a batch.
    pub(crate) batch_ns: f64,
    /// Mean number of samples of a batch that were read.
    pub(crate) reads: f64,
    /// What each adds; `None` where all batches have as many.
    each: Option<Each>,
    /// What the loader takes for one: of a batch, over the workers that made one at the same time.
    made_ns: f64,
    made_sd_ns: f64,
    batches: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Each {
    ns: f64,
    sd_ns: f64,
}

impl Reads {
    /// Of those of which it is known what a cache had; `None` for too few.
    pub(crate) fn of<'a>(services: impl Iterator<Item = &'a BatchService>) -> Option<Reads> {
        Reads::of_seen(services.filter_map(Seen::of))
    }

    fn of_seen(seen: impl Iterator<Item = Seen>) -> Option<Reads> {
        let seen: Vec<[f64; 4]> = seen.map(|Seen(batch)| batch).collect();
        if seen.len() < FEWEST {
            return None;
        }
        let all: f64 = seen.iter().map(|[_, _, weight, _]| weight).sum();
        let mean = |of: usize| seen.iter().map(|batch| batch[of] * batch[2]).sum::<f64>() / all;
        let (batch_ns, reads) = (mean(0), mean(1));
        let spread: f64 = seen.iter().map(|[_, read, weight, _]| weight * (read - reads).powi(2)).sum();
        let each = (spread > 0.0).then(|| {
            let products: f64 =
                seen.iter().map(|[ns, read, weight, _]| weight * (ns - batch_ns) * (read - reads)).sum();
            let ns = products / spread;
            let left = |[batch, read, weight, _]: &[f64; 4]| {
                (weight * (read - reads) * (batch - batch_ns - ns * (read - reads))).powi(2)
            };
            let count = seen.len() as f64;
            let sd_ns = (seen.iter().map(left).sum::<f64>() * count / (count - 2.0)).sqrt() / spread;
            Each { ns, sd_ns }
        });
        let made_ns = mean(3);
        let off = |[_, _, weight, made]: &[f64; 4]| (weight * (made - made_ns)).powi(2);
        let made_sd_ns = seen.iter().map(off).sum::<f64>().sqrt() / all;
        Some(Reads { batch_ns, reads, each, made_ns, made_sd_ns, batches: seen.len() })
    }

    /// What the loader takes for a batch, in nanoseconds, with one-sided bounds.
    pub(crate) fn made_ns(&self, alpha: f64) -> Gain {
        let reach = stats::t_quantile(1.0 - alpha, self.batches as f64 - 1.0) * self.made_sd_ns;
        Gain { value: self.made_ns, low: (self.made_ns - reach).max(0.0), high: self.made_ns + reach }
    }

    /// What one adds, in nanoseconds.
    pub(crate) fn each_ns(&self) -> Option<f64> {
        self.each.map(|each| each.ns)
    }

    /// The same, with what a read costs from `other` where that tells it more exactly.
    pub(crate) fn priced(self, other: Option<&Reads>) -> Reads {
        let each = other
            .and_then(|other| other.each)
            .filter(|theirs| self.each.is_none_or(|own| theirs.sd_ns < own.sd_ns));
        Reads { each: each.or(self.each), ..self }
    }

    /// How much longer a batch would take with so many reads, as a share of now; the bounds are one-sided, with a chance of error
    /// of `alpha` each. `before`: earlier batches, which tell what a read costs where none of these has one.
    pub(crate) fn longer(&self, reads: f64, before: Option<&Reads>, alpha: f64) -> Option<Gain> {
        let of = if self.each.is_some() { self } else { before? };
        let each = of.each?;
        let reach = stats::t_quantile(1.0 - alpha, of.batches as f64 - 2.0) * each.sd_ns;
        let more = reads - self.reads;
        let share = |ns: f64| (ns * more / self.batch_ns.max(1.0)).max(-0.99);
        let ends = [share(each.ns - reach), share(each.ns + reach)];
        Some(Gain { value: share(each.ns), low: ends[0].min(ends[1]), high: ends[0].max(ends[1]) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// Batches of 32, of which each sample is read with this chance, for so long; something else comes and goes.
    fn batches(count: usize, missed: f64, read_ns: f64, seed: u64) -> Vec<BatchService> {
        let mut random = Random::new(seed);
        (0..count)
            .map(|at| {
                let reads = (0..32).filter(|_| random.unit() < missed).count() as u32;
                let other_ns = 2e7 * (1.0 + 0.5 * (at as f64 / 50.0).sin()) + 2e6 * random.unit();
                let ready_ns = (other_ns + read_ns * f64::from(reads)) as u64;
                BatchService { ready_ns, missed: Some(reads), ..BatchService::default() }
            })
            .collect()
    }

    #[test]
    fn a_read_costs_what_it_costs_whatever_else_comes_and_goes() {
        for seed in 0..20 {
            let seen = batches(300, 0.5, 1e6, seed);
            let reads = Reads::of(seen.iter()).unwrap();
            let each = reads.each.unwrap();
            assert!((each.ns - 1e6).abs() < 4.0 * each.sd_ns && each.sd_ns < 4e5, "{each:?}");
            let longer = reads.longer(32.0, None, 0.01).unwrap();
            // Half of 32 reads of 1 ms, of the 37 ms that a batch takes.
            assert!(longer.low < 0.44 && longer.high > 0.42 && longer.low > 0.0, "{longer:?}");
        }
    }

    #[test]
    fn reads_that_cost_nothing_are_seldom_taken_for_dear() {
        let wrong = (0..400)
            .filter(|seed| {
                let seen = batches(200, 0.5, 0.0, *seed);
                Reads::of(seen.iter()).unwrap().longer(32.0, None, 0.05).unwrap().low > 0.0
            })
            .count();
        assert!(wrong < 40, "{wrong} of 400");
    }

    /// A rank remembers some hundred batches, and what is asked over a longer time is answered by all of it.
    #[test]
    fn what_a_read_costs_is_seen_more_exactly_the_longer_it_is_looked_at() {
        let (mut rank, mut since) = (Rank::default(), Since::new(0, None));
        let mut errors = Vec::new();
        for second in 0..16 {
            let new = batches(64, 0.5, 1e6, second);
            rank.services_taken += new.len() as u64;
            rank.services.extend(new);
            let surplus = rank.services.len().saturating_sub(256);
            drop(rank.services.drain(..surplus));
            since.take(&rank);
            // What was taken is not taken again.
            since.take(&rank);
            errors.push(since.reads().and_then(|reads| reads.each).map_or(f64::NAN, |each| each.sd_ns));
        }
        assert_eq!(since.batches.len(), 16 * 64);
        assert!(errors[15] < 0.6 * errors[3], "{errors:?}");
        // Those that were begun before count for nothing.
        let mut later = Since::new(u64::MAX, None);
        later.take(&rank);
        assert!(later.reads().is_none());
    }

    #[test]
    fn too_few_batches_and_batches_that_are_alike_say_nothing() {
        assert!(Reads::of(batches(39, 0.5, 1e6, 1).iter()).is_none());
        let alike = Reads::of(batches(60, 0.0, 1e6, 1).iter()).unwrap();
        assert!(alike.each.is_none() && alike.longer(5.0, None, 0.01).is_none());
        let before = Reads::of(batches(60, 0.5, 1e6, 1).iter());
        assert!(alike.longer(16.0, before.as_ref(), 0.01).unwrap().low > 0.2);
    }
}
