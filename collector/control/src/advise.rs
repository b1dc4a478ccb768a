//! Which knob to turn, to which value, and what that is expected to bring.

use crate::observation::NodeState;
use crate::profile::Profile;
use crate::whatif::{Change, Delta, Model, Prediction, Setting, predict};
use stallscope_model::{Advice, Budgets, Knob, KnobState};

/// Replicas of what is advised.
const CLOSE_LOOK: usize = 8;
/// Gains below that are not worth anybody's time; nor are they possible where training waits less.
const WORTH: f64 = 0.02;
/// What a worker may need besides its batches where nobody measured it: Python and torch after a fork.
const WORKER_BYTES: u64 = 200 << 20;

/// What is expected to help the rank of `profile`, best first: nothing where nothing does, as in a job bound by
/// compute. Only knobs that can be turned, only within `budgets` and what `node` has left.
pub fn advise(profile: &Profile, knobs: &[Knob], budgets: &Budgets, node: &NodeState) -> Vec<Advice> {
    let mut advice = Vec::new();
    if profile.too_little().is_some() || profile.stall_share() < WORTH {
        return advice;
    }
    let model = Model::new(profile);
    for name in ["workers", "prefetch"] {
        let knob = knobs.iter().find(|knob| {
            knob.name == name && knob.rank == profile.rank && knob.loader == Some(profile.loader)
        });
        let Some(knob) = knob.filter(|knob| knob.state != KnobState::Unavailable) else { continue };
        let ranked = ranked(&model, name, knob, budgets, node);
        // The smallest that is as good as the best: the rest would be held for nothing.
        let best = ranked.iter().map(|(share, _)| *share).fold(f64::INFINITY, f64::min);
        let Some((_, value)) =
            ranked.iter().filter(|(share, _)| *share <= best * 1.01).min_by_key(|(_, v)| *v)
        else {
            continue;
        };
        if *value == knob.value {
            continue;
        }
        let Ok(found) = predict(&model, &change(name, *value), CLOSE_LOOK) else { continue };
        if found.gain.value >= WORTH && found.gain.low > 0.0 {
            advice.push(Advice {
                rank: profile.rank,
                loader: Some(profile.loader),
                knob: name.to_owned(),
                now: knob.value,
                to: *value,
                gain: found.gain,
                why: why(&found),
            });
        }
    }
    advice.sort_by(|a, b| b.gain.value.total_cmp(&a.gain.value));
    advice
}

fn change(name: &str, value: u64) -> Change {
    let delta = Some(Delta::To(u32::try_from(value).unwrap_or(u32::MAX)));
    match name {
        "workers" => Change { workers: delta, ..Change::default() },
        _ => Change { prefetch: delta, ..Change::default() },
    }
}

/// Each allowed value with the step that it gives, as a share of the step of now.
fn ranked(
    model: &Model<'_>,
    name: &str,
    knob: &Knob,
    budgets: &Budgets,
    node: &NodeState,
) -> Vec<(f64, u64)> {
    let profile = model.profile;
    let (now, each) = (knob.value, u64::from(profile.prefetch.div_ceil(profile.workers.max(1))));
    let mut values: Vec<u64> = match name {
        "workers" => {
            let near = (1..=4).flat_map(|by| [now.saturating_sub(by), now.saturating_add(by)]);
            near.chain([now.saturating_mul(2), now]).collect()
        }
        _ => vec![now, now / 2, now.saturating_mul(2), now.saturating_mul(4), now.saturating_mul(8)],
    };
    values.retain(|value| (knob.min.max(1)..=knob.max).contains(value));
    if name == "workers" {
        values.retain(|value| *value <= now || has_room(*value - now, budgets, node, *value));
    }
    values.sort_unstable();
    values.dedup();
    values
        .into_iter()
        .map(|value| {
            let small = u32::try_from(value).unwrap_or(u32::MAX);
            let setting = match name {
                "workers" => Setting {
                    workers: small,
                    prefetch: u32::try_from(value.saturating_mul(each)).unwrap_or(u32::MAX),
                },
                _ => Setting { workers: profile.workers, prefetch: small },
            };
            (model.share_of_now(setting, &Change::default()), value)
        })
        .collect()
}

/// Whether memory and cores allow for so many workers more. A worker that waits needs no core, so that workers
/// may outnumber cores; the model knows what they would take from one another.
fn has_room(more: u64, budgets: &Budgets, node: &NodeState, workers: u64) -> bool {
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
