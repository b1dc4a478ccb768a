//! Which sample is used next, and how much it counts in the loss.

mod iis;
mod importance;
mod plain;
mod reuse;
mod shade;
pub(crate) mod state;

use state::{Read, Written};
use std::fmt::{self, Debug};

/// A sample that was drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draw {
    pub id: u32,
    /// What its loss is multiplied with, so that the expected gradient is that of a plain shuffle: 1 over N times the
    /// probability it was drawn with. Fixed when it is drawn.
    pub weight: f32,
}

impl Draw {
    fn plain(id: u32) -> Draw {
        Draw { id, weight: 1.0 }
    }
}

/// What a draw may look at.
pub struct World<'a> {
    /// Whether a sample is kept now. Only SHADE's published sampler asks.
    pub resident: &'a dyn Fn(u32) -> bool,
}

impl Debug for World<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("World")
    }
}

/// A rule for drawing samples.
pub trait Draws: Debug + Send + Sync {
    /// The next chunk of draws, in order; never empty. An epoch is [`Draws::chunks_an_epoch`] of them.
    fn chunk(&mut self, world: &World<'_>) -> Vec<Draw>;

    fn chunks_an_epoch(&self) -> u32 {
        1
    }

    /// How many chunks are drawn before the first of them is used. More makes next uses known and scores stale.
    fn ahead(&self) -> u32 {
        1
    }

    /// A batch was trained on: `place` of its first sample within the epoch, its ids and their losses. A loss that is no
    /// number, or below 0, counts as 0.
    fn trained(&mut self, _place: usize, _ids: &[u32], _losses: &[f32]) {}

    /// What the policy is to know of a sample's importance after [`Draws::trained`]; `None`: nothing new.
    fn score(&self, _id: u32) -> Option<f64> {
        None
    }

    /// The class of each sample, as numbers from 0 on without gaps.
    fn classes(&mut self, _of: &[u32]) {}

    /// What the draws to come depend on beside what they were made with.
    fn save(&self, state: &mut Written);

    /// Takes up what [`Draws::save`] wrote, when nothing has been drawn yet. `None`: that is not what was written.
    fn load(&mut self, state: &mut Read<'_>) -> Option<()>;
}

/// Which of the published sampler's steps are as published, and which are corrected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Selection {
    AsPublished,
    Corrected,
}

/// The rules there are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DrawKind {
    /// Every sample once an epoch, in a new order.
    Plain,
    /// With replacement, by importance, with weights.
    Importance,
    /// iCACHE's selection: the less important the seldomer.
    Iis(Selection),
    /// SHADE's: with replacement by rank in the batch; residents `copies` times.
    Shade { selection: Selection, copies: f64 },
    /// Each read sample `uses` times while it is in a window of `window_share` of all samples; `pinned_share` of them
    /// never leave.
    Reuse { uses: u32, window_share: f64, pinned_share: f64 },
}

impl DrawKind {
    /// Draws from `samples` samples, at least 1.
    pub fn make(self, samples: u32, seed: u64) -> Box<dyn Draws> {
        match self {
            DrawKind::Plain => Box::new(plain::Plain::new(samples, seed)),
            DrawKind::Importance => Box::new(importance::Importance::new(samples, seed)),
            DrawKind::Iis(selection) => Box::new(iis::Iis::new(samples, seed, selection)),
            DrawKind::Shade { selection, copies } => {
                Box::new(shade::Shade::new(samples, seed, selection, copies))
            }
            DrawKind::Reuse { uses, window_share, pinned_share } => {
                Box::new(reuse::Reuse::new(samples, seed, uses, window_share, pinned_share))
            }
        }
    }

    pub fn name(self) -> String {
        match self {
            DrawKind::Plain => "plain".into(),
            DrawKind::Importance => "importance".into(),
            DrawKind::Iis(Selection::AsPublished) => "iis-published".into(),
            DrawKind::Iis(Selection::Corrected) => "iis".into(),
            DrawKind::Shade { selection: Selection::AsPublished, copies } => {
                format!("shade-published x{copies}")
            }
            DrawKind::Shade { selection: Selection::Corrected, copies } => format!("shade x{copies}"),
            DrawKind::Reuse { uses, .. } => format!("reuse x{uses}"),
        }
    }
}

/// `losses` without what is no loss.
fn sane(loss: f32) -> f64 {
    if loss > 0.0 && loss.is_finite() { f64::from(loss) } else { 0.0 }
}

/// Ids by probability: `count` independent draws with replacement (Vose's alias method).
fn with_replacement(weights: &[f64], count: usize, random: &mut crate::random::Random) -> Vec<u32> {
    let total: f64 = weights.iter().sum();
    if !total.is_finite() || total <= 0.0 {
        return (0..count).map(|_| random.below(weights.len()) as u32).collect();
    }
    let scale = weights.len() as f64 / total;
    let mut share: Vec<f64> = weights.iter().map(|weight| weight * scale).collect();
    let mut alias: Vec<u32> = (0..weights.len() as u32).collect();
    let (mut small, mut large): (Vec<u32>, Vec<u32>) =
        (0..weights.len() as u32).partition(|id| share[*id as usize] < 1.0);
    while let (Some(low), Some(high)) = (small.pop(), large.last().copied()) {
        alias[low as usize] = high;
        share[high as usize] -= 1.0 - share[low as usize];
        if share[high as usize] < 1.0 {
            large.pop();
            small.push(high);
        }
    }
    // What rounding left over stands for itself.
    small.into_iter().chain(large).for_each(|id| share[id as usize] = 1.0);
    (0..count)
        .map(|_| {
            let id = random.below(weights.len());
            if random.unit() < share[id] { id as u32 } else { alias[id] }
        })
        .collect()
}

#[cfg(test)]
mod tests;
