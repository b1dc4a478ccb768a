//! The design effect of an order: the variance of the number of samples of a class in a batch, summed up over classes, by
//! what it is if each sample is drawn by itself.

use super::{Epoch, Layout, Recipe, Share};

/// The class of each sample, as far as the mix of batches depends on it.
#[derive(Debug)]
pub struct Classes {
    /// By place.
    of: Vec<u32>,
    /// Samples of each class.
    counts: Vec<u64>,
    /// That two samples have one class: of one chunk, of different chunks, and drawn each by itself.
    within: f64,
    between: f64,
    alone: f64,
    /// How many more pairs there are in a chunk than if all chunks had equally many samples.
    uneven: f64,
}

impl Classes {
    /// `class_of` a record's number; any numbers.
    pub fn of(layout: &Layout, class_of: impl Fn(u32) -> u32) -> Classes {
        let mut numbers = std::collections::HashMap::new();
        let of: Vec<u32> = layout
            .records
            .iter()
            .map(|record| {
                let next = numbers.len() as u32;
                *numbers.entry(class_of(*record)).or_insert(next)
            })
            .collect();
        let mut counts = vec![0_u64; numbers.len()];
        let (mut pairs, mut alike) = (0.0, 0.0);
        let mut here = vec![0_u64; numbers.len()];
        for run in &layout.runs {
            let classes = &of[run.places.start as usize..run.places.end as usize];
            for class in classes {
                counts[*class as usize] += 1;
                here[*class as usize] += 1;
            }
            pairs += pairs_of(classes.len() as u64);
            for class in classes {
                alike += pairs_of(std::mem::take(&mut here[*class as usize]));
            }
        }
        let all = of.len() as f64;
        let all_pairs = pairs_of(of.len() as u64);
        let all_alike: f64 = counts.iter().map(|count| pairs_of(*count)).sum();
        let part = |some: f64, of: f64| if of > 0.0 { some / of } else { 0.0 };
        Classes {
            within: part(alike, pairs),
            between: part(all_alike - alike, all_pairs - pairs),
            alone: counts.iter().map(|count| (*count as f64 / all).powi(2)).sum(),
            uneven: part(pairs * layout.runs.len() as f64, all * all),
            of,
            counts,
        }
    }

    /// How many there are; with fewer than two no order is better than another.
    pub fn count(&self) -> usize {
        self.counts.len()
    }

    /// The design effect that an order has on average, for a batch of all ranks of so many samples.
    pub fn predicted(&self, layout: &Layout, lanes: usize, window: usize, batch: usize) -> f64 {
        let batch = batch.min(layout.samples());
        if batch < 2 || self.count() < 2 {
            return 1.0;
        }
        let together = self.in_one_chunk(layout, lanes.max(1), window.max(1), batch);
        let same = together * self.within + (1.0 - together) * self.between;
        1.0 + (batch - 1) as f64 * (same - self.alone) / (1.0 - self.alone)
    }

    /// The share of a batch's pairs that are of one chunk.
    fn in_one_chunk(&self, layout: &Layout, lanes: usize, window: usize, batch: usize) -> f64 {
        let chunks = layout.chunks() as f64 / lanes as f64;
        let window = (window as f64).min(chunks);
        let of_lane = batch as f64 / lanes as f64;
        if of_lane <= 1.0 {
            return 0.0;
        }
        // Two samples that are drawn d chunks apart have all but d of the chunks of the window in common, and behind the
        // epoch's end those that are at its begin.
        let samples_of_chunk = layout.samples() as f64 / layout.chunks() as f64;
        let common = |apart: f64| {
            let apart = apart / samples_of_chunk;
            (window - apart).max(0.0) + (window - (chunks - apart)).max(0.0)
        };
        let (mut sum, mut weights) = (0.0, 0.0);
        for apart in 1..of_lane.ceil() as usize {
            let weight = of_lane - apart as f64;
            sum += weight * common(apart as f64).min(window);
            weights += weight;
        }
        let pairs_within_lanes = ((of_lane - 1.0) / (batch as f64 - 1.0)).max(0.0);
        pairs_within_lanes * self.uneven * sum / weights / (window * window)
    }

    /// The fewest chunks of a lane with which the prediction is at most this; none where no number of them is enough.
    pub fn fewest(&self, layout: &Layout, lanes: usize, batch: usize, most: f64) -> Option<usize> {
        let enough = |window: usize| self.predicted(layout, lanes, window, batch) <= most;
        let (mut few, mut many) = (1, layout.chunks().div_ceil(lanes.max(1)).max(1));
        if !enough(many) {
            return None;
        }
        while few < many {
            let middle = few + (many - few) / 2;
            match enough(middle) {
                true => many = middle,
                false => few = middle + 1,
            }
        }
        Some(few)
    }

    /// The design effect of an epoch as its order is, over its whole batches; and how many these are.
    pub fn measured(&self, layout: &Layout, recipe: Recipe, epoch: u64, batch: usize) -> (f64, usize) {
        let order = Epoch::new(layout, recipe, epoch).places(Share { rank: 0, world: 1, batch, start: 0 });
        let all = order.len() as f64;
        let mut here = vec![0_u64; self.counts.len()];
        // The sum of (n - b p)^2 over classes is that of n^2 - 2 b p n, and the sum of (b p)^2.
        let expected: f64 =
            self.counts.iter().map(|count| (batch as f64 * *count as f64 / all).powi(2)).sum();
        let (mut sum, mut batches) = (0.0, 0);
        for batch_places in order.chunks_exact(batch.max(1)) {
            let classes = || batch_places.iter().map(|place| self.of[*place as usize] as usize);
            classes().for_each(|class| here[class] += 1);
            for class in classes() {
                let count = std::mem::take(&mut here[class]) as f64;
                sum += count * (count - 2.0 * batch as f64 * self.counts[class] as f64 / all);
            }
            sum += expected;
            batches += 1;
        }
        if batches == 0 || self.count() < 2 {
            return (1.0, batches);
        }
        (sum / batches as f64 / (batch as f64 * (1.0 - self.alone)), batches)
    }
}

fn pairs_of(count: u64) -> f64 {
    count as f64 * (count as f64 - 1.0).max(0.0)
}
