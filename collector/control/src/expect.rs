//! What single changes would bring, and which knobs to turn for it. Findings, `tune` and the screens draw on this, so that
//! none of them advises what another expects nothing of.

use crate::observation::NodeState;
use crate::profile::Profile;
use crate::whatif::{Change, Delta, Look, Model, Prediction, Setting, predict};
use stallscope_model::{Advice, Budgets, Estimate, Expected, Knob, KnobState, RemedyKind};

/// Replicas of what is expected.
const CLOSE_LOOK: usize = 8;
/// What a worker may need besides its batches where nobody measured it: Python and torch after a fork.
const WORKER_BYTES: u64 = 200 << 20;
/// Steps that are no longer than this share of the best are as good: the rest would be held for nothing.
const AS_GOOD: f64 = 1.01;
const MOST_WORKERS: u64 = 64;

/// What each change of its own would bring to the rank of `profile`, nothing included, within the bounds of its knobs,
/// `budgets` and what `node` has left; empty where too little is known, or the model does not fit the job.
pub fn expect(profile: &Profile, knobs: &[Knob], budgets: &Budgets, node: &NodeState) -> Vec<Expected> {
    if profile.too_little().is_some() {
        return Vec::new();
    }
    let model = Model::new(profile);
    if model.misfit().is_some() {
        return Vec::new();
    }
    let looks = model.looks(CLOSE_LOOK);
    let ask = Ask { model: &model, looks: &looks };
    let workers = bounds(profile, knobs, "workers").unwrap_or((1, MOST_WORKERS));
    let now = u64::from(profile.workers);
    let near = (1..=4).flat_map(|by| [now.saturating_sub(by), now + by]).chain([2 * now]);
    let (mut fewer, mut more): (Vec<u64>, Vec<u64>) =
        near.filter(|to| *to != now && (workers.0.max(1)..=workers.1).contains(to)).partition(|to| *to < now);
    more.retain(|to| fits(to - now, budgets, node, *to));
    fewer.retain(|_| now > 1);
    let mut expected = vec![ask.workers(RemedyKind::MoreWorkers, &more)];
    if now > 1 {
        expected.push(ask.workers(RemedyKind::FewerWorkers, &fewer));
    }
    if now > 0 {
        let ahead = u64::from(profile.prefetch);
        let bounds = bounds(profile, knobs, "prefetch").unwrap_or((1, u64::from(u32::MAX)));
        let mut more = vec![2 * ahead, 4 * ahead, 8 * ahead];
        more.retain(|to| (bounds.0..=bounds.1).contains(to));
        expected.push(ask.prefetch(&more));
    }
    let none = Change::default;
    let factors = [
        (RemedyKind::FasterStorage, Some(Change { storage_factor: Some(2.0), ..none() })),
        (
            RemedyKind::MoreCores,
            profile.cores.is_finite().then(|| Change { cores: Some(2.0 * profile.cores), ..none() }),
        ),
        (RemedyKind::CheaperSamples, Some(Change { sample_factor: Some(0.5), ..none() })),
    ];
    expected.extend(factors.into_iter().filter_map(|(kind, change)| Some(ask.about(kind, 0, 0, &change?))));
    expected
}

/// The knobs that are worth turning, best first: those that are there and can be turned.
pub fn advise(expected: &[Expected], knobs: &[Knob]) -> Vec<Advice> {
    let mut advice: Vec<Advice> = expected
        .iter()
        .filter(|expected| expected.is_worthwhile())
        .filter_map(|expected| {
            let name = match expected.kind {
                RemedyKind::MoreWorkers | RemedyKind::FewerWorkers => "workers",
                RemedyKind::MorePrefetch => "prefetch",
                RemedyKind::Cache => "cache.bytes",
                _ => return None,
            };
            let knob = knobs.iter().find(|knob| {
                (knob.rank, knob.loader) == (expected.rank, Some(expected.loader)) && knob.name == name
            });
            // A cache that the job does not have is a line of its script.
            let first = expected.kind == RemedyKind::Cache && expected.now == 0;
            if !first && knob.is_none_or(|knob| knob.state == KnobState::Unavailable) {
                return None;
            }
            Some(Advice {
                rank: expected.rank,
                loader: Some(expected.loader),
                knob: name.to_owned(),
                now: expected.now,
                to: expected.to,
                gain: Estimate { high: expected.gain.high, ..expected.certain() },
                why: expected.why.clone(),
            })
        })
        .collect();
    advice.sort_by(|a, b| b.gain.value.total_cmp(&a.gain.value));
    // More and fewer of the same can't both be done.
    let mut seen: Vec<String> = Vec::new();
    advice.retain(|advice| {
        !seen.contains(&advice.knob) && {
            seen.push(advice.knob.clone());
            true
        }
    });
    advice
}

fn bounds(profile: &Profile, knobs: &[Knob], name: &str) -> Option<(u64, u64)> {
    let knob = knobs
        .iter()
        .find(|knob| knob.name == name && knob.rank == profile.rank && knob.loader == Some(profile.loader))?;
    (knob.state != KnobState::Unavailable).then_some((knob.min, knob.max))
}

struct Ask<'a> {
    model: &'a Model<'a>,
    looks: &'a [Look],
}

impl Ask<'_> {
    fn workers(&self, kind: RemedyKind, values: &[u64]) -> Expected {
        let profile = self.model.profile;
        let each = match profile.workers {
            0 => 2,
            workers => profile.prefetch.div_ceil(workers),
        };
        let setting = |workers: u32| Setting { workers, prefetch: workers.saturating_mul(each).max(1) };
        let now = u64::from(profile.workers);
        let Some(to) = self.smallest(values, setting) else { return self.nothing(kind, now) };
        let workers = Some(Delta::To(small(to)));
        self.about(kind, now, to, &Change { workers, ..Change::default() })
    }

    fn prefetch(&self, values: &[u64]) -> Expected {
        let (kind, profile) = (RemedyKind::MorePrefetch, self.model.profile);
        let now = u64::from(profile.prefetch);
        let setting = |prefetch| Setting { workers: profile.workers, prefetch };
        let Some(to) = self.smallest(values, setting) else { return self.nothing(kind, now) };
        let prefetch = Some(Delta::To(small(to)));
        self.about(kind, now, to, &Change { prefetch, ..Change::default() })
    }

    /// The smallest that is as good as the best of `values`.
    fn smallest(&self, values: &[u64], setting: impl Fn(u32) -> Setting) -> Option<u64> {
        let share = |to: &u64| self.model.share_of_now(setting(small(*to)), &Change::default());
        let shares: Vec<(f64, u64)> = values.iter().map(|to| (share(to), *to)).collect();
        let best = shares.iter().map(|(share, _)| *share).fold(f64::INFINITY, f64::min);
        shares.into_iter().filter(|(share, _)| *share <= best * AS_GOOD).map(|(_, to)| to).min()
    }

    fn about(&self, kind: RemedyKind, now: u64, to: u64, change: &Change) -> Expected {
        let Ok(found) = predict(self.model, change, self.looks) else { return self.nothing(kind, now) };
        Expected { gain: found.gain, either: found.either, to, why: why(&found), ..self.nothing(kind, now) }
    }

    /// It does not fit the budgets.
    fn nothing(&self, kind: RemedyKind, now: u64) -> Expected {
        let Profile { rank, loader, .. } = *self.model.profile;
        Expected {
            rank,
            loader,
            kind,
            now,
            to: now,
            gain: Estimate::default(),
            either: None,
            by_script: false,
            why: String::new(),
        }
    }
}

fn small(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

/// Whether memory and cores allow for so many workers more. A worker that waits needs no core, so that workers
/// may outnumber cores; the model knows what they would take from one another.
fn fits(more: u64, budgets: &Budgets, node: &NodeState, workers: u64) -> bool {
    let available = budgets
        .memory_bytes
        .map_or(node.memory_available_bytes, |budget| budget.min(node.memory_available_bytes));
    let memory = available == 0 || more.saturating_mul(WORKER_BYTES) <= available;
    memory && budgets.cores.is_none_or(|cores| workers as f64 <= (4.0 * cores).max(1.0))
}

fn why(found: &Prediction) -> String {
    let then = if found.bottleneck == found.bottleneck_now {
        format!("{} would still hold it up most", found.bottleneck.name())
    } else {
        format!("then {} would hold it up", found.bottleneck.name())
    };
    format!(
        "{:.0}% of training time waits for data, mostly because of {}; it would be {:.0}%, and {then}",
        100.0 * found.stall_share_now,
        found.bottleneck_now.name(),
        100.0 * found.stall_share
    )
}
