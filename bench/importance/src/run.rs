//! One training: what it reads, and what it learns.

use crate::data::DataSet;
use crate::method::Method;
use crate::net::{BATCH, Feedback, Net};
use stallscope_cache::{Planner, PolicyKind, Substitutes, Trace, TraceUse, Use, replay};

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Outcome {
    /// Samples that were read, those that filled the cache too.
    pub(crate) reads: f64,
    /// Of the uses, once the first two epochs' worth is over.
    pub(crate) hit_ratio: f64,
    /// Of the same uses, those that were given another sample; no hits.
    pub(crate) substituted_ratio: f64,
    /// Hits of MIN that knows every use to come, on these draws; for methods that keep by next use and give no others.
    pub(crate) min_hit_ratio: Option<f64>,
    /// On the test part, in percent.
    pub(crate) accuracy: f64,
    /// `(sum of weights)^2 / (n * sum of their squares)`.
    pub(crate) effective_share: f64,
}

/// Trains for `epochs` times as many draws as there are samples, with a learning rate that falls along a cosine.
pub(crate) fn run(
    set: &DataSet,
    method: &Method,
    cache_share: f64,
    rate: f32,
    epochs: u32,
    seed: u64,
) -> Outcome {
    let samples = set.train.len();
    let mut planner = Planner::new(method.draws(cache_share), samples as u32, seed);
    // Samples are of one size, which is called one byte.
    let capacity = (cache_share * samples as f64) as u64;
    let mut cache = method.policy.make(capacity);
    let mut substitutes = (method.substitute > 0.0).then(|| {
        let classes = set.train.classes.iter().map(|class| u32::from(*class)).collect();
        Substitutes::new(classes, method.substitute, seed, 0, 1)
    });
    let mut net = Net::new(set.train.width, seed);
    let (steps, warm) = ((samples * epochs as usize).div_ceil(BATCH), (2 * samples).div_ceil(BATCH));
    let (mut ids, mut weights, mut evicted, mut feedback) = (vec![], vec![], vec![], Feedback::default());
    let (mut reads, mut late_hits, mut late_uses, mut place) = (0u64, 0u64, 0u64, 0);
    let mut late_given = 0u64;
    let (mut sum, mut squares) = (0.0, 0.0);
    let mut trace = Trace::default();
    for step in 0..steps {
        ids.clear();
        weights.clear();
        let mut ends_epoch = false;
        while ids.len() < BATCH && !ends_epoch {
            let planned = planner.next(cache.as_mut());
            let used = Use { id: planned.draw.id, bytes: 1, at: planned.at, next_at: planned.next_at };
            let hit = cache.contains(used.id);
            let other = substitutes.as_mut().and_then(|substitutes| {
                let is_kept = |id| cache.contains(id);
                let given = substitutes.batch(used.at, &[used.id], 0..1, used.at, &is_kept);
                substitutes.handed_over(used.at + 1);
                given.first().map(|(_, other)| *other)
            });
            if other.is_some() {
                late_given += u64::from(step >= warm);
            } else if hit {
                cache.hit(&used);
            } else {
                reads += 1;
                cache.miss(&used, &mut evicted);
            }
            if method.policy == PolicyKind::Min && substitutes.is_none() {
                let epoch = u32::from(step >= warm);
                trace.uses.push(TraceUse { epoch, id: used.id, bytes: 1, score: 0.0 });
            }
            if step >= warm {
                late_uses += 1;
                late_hits += u64::from(hit);
            }
            ids.push(other.unwrap_or(used.id));
            weights.push(planned.draw.weight);
            sum += f64::from(planned.draw.weight);
            squares += f64::from(planned.draw.weight).powi(2);
            ends_epoch = planned.ends_epoch;
            if let Some(substitutes) = substitutes.as_mut().filter(|_| ends_epoch) {
                substitutes.begin(used.at + 1);
            }
        }
        let progress = step as f32 / steps as f32;
        let rate = rate * 0.5 * (1.0 + (std::f32::consts::PI * progress).cos());
        net.train(&set.train, &ids, &weights, rate, &mut feedback);
        let scores = if method.by_gradient { &feedback.gradient_norms } else { &feedback.losses };
        planner.trained(place, &ids, scores, cache.as_mut());
        place += ids.len();
        if ends_epoch {
            cache.epoch();
            place = 0;
        }
    }
    let uses = (steps * BATCH) as f64;
    Outcome {
        reads: reads as f64,
        hit_ratio: late_hits as f64 / late_uses.max(1) as f64,
        substituted_ratio: late_given as f64 / late_uses.max(1) as f64,
        min_hit_ratio: (!trace.uses.is_empty())
            .then(|| replay(&trace, PolicyKind::Min, capacity).since(1).hit_ratio()),
        accuracy: net.accuracy(&set.test),
        effective_share: sum * sum / (uses * squares),
    }
}
