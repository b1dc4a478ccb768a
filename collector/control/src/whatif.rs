//! What a change would bring: the pipeline is simulated on the job's own steps and batches, as it is and as it would
//! be, and the ratio of the two is applied to what was measured. So what the simulation gets wrong in both cancels.

mod factor;
mod outlook;
mod simulate;

use factor::{Factor, moments};
pub use outlook::{Outlook, Smallest, outlook};
use simulate::Simulated;
pub(crate) use simulate::{Look, Model};

use crate::fit::{Reading, reads_at_all};
use crate::profile::Profile;
use stallscope_model::{Cause, Causes, Either, Estimate};

/// What differs from now. `None`: nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Change {
    pub workers: Option<Delta>,
    /// In batches, over all workers. By default as many for each worker as now, as PyTorch has it.
    pub prefetch: Option<Delta>,
    /// Times as fast, its delays as well as its limit.
    pub storage_factor: Option<f64>,
    /// Of all samples, 0 to 1; what a cache has of them now is a part of it.
    pub cached_share: Option<f64>,
    pub cores: Option<f64>,
    /// CPU time of a sample, times that of now.
    pub sample_factor: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delta {
    To(u32),
    More(u32),
    Fewer(u32),
}

impl Delta {
    fn of(self, now: u32) -> u32 {
        match self {
            Delta::To(value) => value,
            Delta::More(by) => now.saturating_add(by),
            Delta::Fewer(by) => now.saturating_sub(by),
        }
    }
}

/// The values of a pipeline's knobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    pub workers: u32,
    pub prefetch: u32,
}

/// What holds a job up most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bottleneck {
    /// Training waits for next to nothing.
    Compute,
    /// Storage gives no more.
    Storage,
    /// Each read takes its time, and too few are under way at once.
    Latency,
    Preparation,
    Cores,
    HandOver,
}

impl Bottleneck {
    pub const fn name(self) -> &'static str {
        match self {
            Bottleneck::Compute => "compute",
            Bottleneck::Storage => "storage",
            Bottleneck::Latency => "reads in flight",
            Bottleneck::Preparation => "preparation",
            Bottleneck::Cores => "cores",
            Bottleneck::HandOver => "hand-over",
        }
    }

    fn of(runs: &[Simulated]) -> Bottleneck {
        let causes = summed(runs);
        let storage_busy = runs.iter().map(|run| run.storage_busy).sum::<f64>() / runs.len().max(1) as f64;
        let total_ns = causes.total_ns() as f64;
        let cores_ns = causes[Cause::Starved] + causes[Cause::Preempted];
        if (causes.data_stall_ns() + causes[Cause::Preempted]) as f64 <= 0.05 * total_ns {
            return Bottleneck::Compute;
        }
        let reading = if storage_busy > 0.8 { Bottleneck::Storage } else { Bottleneck::Latency };
        let waits = [
            (causes[Cause::Fetch], reading),
            (causes[Cause::Prep], Bottleneck::Preparation),
            (cores_ns, Bottleneck::Cores),
            (causes[Cause::Transfer], Bottleneck::HandOver),
        ];
        waits.into_iter().max_by_key(|(ns, _)| *ns).map_or(Bottleneck::Compute, |(_, bottleneck)| bottleneck)
    }
}

/// What a change is expected to bring.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    pub now: Setting,
    pub then: Setting,
    /// Measured; mean of a step.
    pub step_now_ns: Estimate,
    pub step_ns: Estimate,
    /// Samples a second; `None` where it is not known how many a batch has.
    pub samples_per_s: Option<Estimate>,
    /// Share by which samples a second rise.
    pub gain: Estimate,
    /// The gain under each reading of the same waits, where the evidence fits both.
    pub either: Option<Either>,
    pub bottleneck_now: Bottleneck,
    pub bottleneck: Bottleneck,
    /// Share of training time that waits for data.
    pub stall_share_now: f64,
    pub stall_share: f64,
    /// By how much the simulation of what is misses what was measured, as a share; the interval is wider by it.
    pub calibration: f64,
    /// Sentences.
    pub doubts: Vec<String>,
}

/// Shares of a cache that differ by less are the same.
const SAME_SHARE: f64 = 0.01;
/// Calibrations beyond that are reported as doubts.
const DOUBTFUL: f64 = 0.15;
/// Allowances for what the model gets wrong although everything is known: a share of any step, and of the logarithm of
/// the change. `make bench-whatif` shows them to be ample.
const MODEL_ERROR: f64 = 0.012;
const CHANGE_ERROR: f64 = 0.08;

/// What `change` would bring to the loader of `profile`.
///
/// # Errors
/// A sentence when too little is known, the change makes no sense, or the model does not fit the job.
pub fn what_if(profile: &Profile, change: &Change) -> Result<Prediction, String> {
    if let Some(why) = profile.too_little() {
        return Err(why);
    }
    let model = Model::new(profile);
    predict(&model, change, &model.looks(simulate::REPLICAS))
}

/// The same with a model that is there already, and as many looks at it as there was time for.
pub(crate) fn predict(model: &Model<'_>, change: &Change, looks: &[Look]) -> Result<Prediction, String> {
    let profile = model.profile;
    let (now, then) = (model.now(), setting(profile, change)?);
    let before: Vec<Simulated> = looks.iter().map(|look| look.as_is).collect();
    let mut after = Vec::with_capacity(looks.len());
    let (mut measured, mut ratios) = (Vec::new(), Vec::new());
    let actual_ns = mean_ns(profile);
    for Look { replica, as_is } in looks {
        let changed = model.run(replica, then, change);
        measured.push((replica.measured_ns / actual_ns).ln());
        ratios.push((changed.step_ns / as_is.step_ns).ln());
        after.push(changed);
    }
    let (_, measured_sd) = moments(&measured);
    let (missed, _) = moments(&looks.iter().map(Look::missed).collect::<Vec<_>>());
    let changes = then != now || beyond_knobs(change);
    let misfit = model.misfit();
    if changes && let Some(misfit) = misfit {
        return Err(misfit);
    }
    let least = least(model, then, change, looks);
    let extremes = is_either(model, change).then(|| extremes(model, then, change));
    // `scatter` beside that of the ratio.
    let factor = |scatter: f64| {
        let (ratio, ratio_sd) = moments(&ratios);
        if !changes {
            return Factor::new(0.0, scatter);
        }
        let model_error = MODEL_ERROR + CHANGE_ERROR * ratio.abs() + missed.abs() / 2.0;
        let factor = Factor::new(ratio, ratio_sd.hypot(model_error).hypot(scatter));
        // Several kinds of storage are possible: the interval reaches to what each would give.
        let factor = if model.fit.is_unknown() { factor.reaching(&ratios) } else { factor };
        let factor = extremes.iter().flatten().fold(factor, |factor, ratios| factor.reaching(ratios));
        factor.at_least(least)
    };
    let gain = if changes { factor(0.0).inverse() } else { Factor::ONE }.times(1.0);
    let samples = crate::rates::samples_a_batch(profile);
    let calibration = missed.exp() - 1.0;
    let stall_share_now = profile.stall_share();
    let either = extremes.as_ref().map(|extremes| either(model, extremes, missed, least));
    Ok(Prediction {
        now,
        then,
        step_now_ns: Factor::new(0.0, measured_sd).times(actual_ns),
        step_ns: factor(measured_sd).times(actual_ns),
        samples_per_s: (samples > 0.0)
            .then(|| factor(measured_sd).inverse().times(samples / actual_ns * 1e9)),
        gain: less_one(gain),
        either,
        bottleneck_now: Bottleneck::of(&before),
        bottleneck: Bottleneck::of(&after),
        stall_share_now,
        stall_share: if changes { stall_share(&after) } else { stall_share_now },
        calibration,
        doubts: doubts(misfit, calibration, either.as_ref()),
    })
}

/// What the change takes from no step: see [`Model::least_share`].
fn least(model: &Model<'_>, then: Setting, change: &Change, looks: &[Look]) -> Factor {
    let share = |look: &Look| model.least_share(&look.replica, then, change).max(1e-9).ln();
    let shares: Vec<f64> = looks.iter().map(share).collect();
    let (share, deviation) = moments(&shares);
    Factor::new(share, deviation.hypot(MODEL_ERROR))
}

fn less_one(ratio: Estimate) -> Estimate {
    Estimate { value: ratio.value - 1.0, low: ratio.low - 1.0, high: ratio.high - 1.0 }
}

/// Whether the effect of a change depends on something unknown: if storage is slow or at its limit.
fn is_either(model: &Model<'_>, change: &Change) -> bool {
    let turns_readers = change.workers.is_some() || change.prefetch.is_some();
    turns_readers && model.fit.is_unknown() && reads_at_all(model.profile)
}

/// Replicas for each of the two readings.
const OF_EITHER: usize = 5;

/// Logarithms of the step's change under each of [`Reading::extremes`].
fn extremes(model: &Model<'_>, then: Setting, change: &Change) -> [Vec<f64>; 3] {
    let ratios = |reading: Reading| -> Vec<f64> {
        let ratio = |at: usize| {
            let replica = model.replica_reading(at, reading);
            let as_is = model.run(&replica, model.now(), &Change::default());
            (model.run(&replica, then, change).step_ns / as_is.step_ns).ln()
        };
        (0..OF_EITHER).map(ratio).collect()
    };
    Reading::extremes(model.profile).map(ratios)
}

fn either(model: &Model<'_>, [slow, limited, held]: &[Vec<f64>; 3], missed: f64, least: Factor) -> Either {
    let gain = |of: &[f64], reaching: &[f64]| {
        let (ratio, ratio_sd) = moments(of);
        let model_error = MODEL_ERROR + CHANGE_ERROR * ratio.abs() + missed.abs() / 2.0;
        let factor = Factor::new(ratio, ratio_sd.hypot(model_error)).reaching(reaching).at_least(least);
        less_one(factor.inverse().times(1.0))
    };
    Either {
        if_slow: gain(slow, &[]),
        if_limited: gain(limited, held),
        bytes_per_s: crate::rates::bytes_per_s(model.profile),
    }
}

fn summed(runs: &[Simulated]) -> Causes {
    let mut causes = Causes::default();
    runs.iter().for_each(|run| causes += &run.causes);
    causes
}

fn stall_share(runs: &[Simulated]) -> f64 {
    let causes = summed(runs);
    causes.data_stall_ns() as f64 / causes.total_ns().max(1) as f64
}

fn beyond_knobs(change: &Change) -> bool {
    change.storage_factor.is_some()
        || change.cached_share.is_some()
        || change.cores.is_some()
        || change.sample_factor.is_some()
}

fn doubts(misfit: Option<String>, calibration: f64, either: Option<&Either>) -> Vec<String> {
    let mut doubts = Vec::from_iter(misfit);
    if doubts.is_empty() && calibration.abs() > DOUBTFUL {
        let off = if calibration > 0.0 { "longer" } else { "shorter" };
        doubts.push(format!(
            "simulated as it is, a step takes {:.0}% {off} than measured: something that the model does not know is at \
             work, and the interval is wider for it",
            100.0 * calibration.abs()
        ));
    }
    if let Some(Either { if_slow, if_limited, bytes_per_s }) = either {
        let limit = bytes_per_s
            .map_or(String::new(), |rate| format!(" of {}", stallscope_units::bytes_per_second(rate)));
        doubts.push(format!(
            "whether storage has a limit or only a delay cannot be determined from the present setting: {:+.0}% if each read is \
             merely slow, {:+.0}% if storage is at its limit{limit}",
            100.0 * if_slow.value,
            100.0 * if_limited.value
        ));
    }
    doubts
}

/// # Errors
/// A sentence when the change makes no sense.
fn setting(profile: &Profile, change: &Change) -> Result<Setting, String> {
    let workers = change.workers.map_or(profile.workers, |delta| delta.of(profile.workers));
    let prefetch = match change.prefetch {
        Some(delta) => delta.of(profile.prefetch),
        None if workers == profile.workers => profile.prefetch,
        None => {
            let each = if profile.workers == 0 { 2 } else { profile.prefetch.div_ceil(profile.workers) };
            workers.saturating_mul(each)
        }
    };
    let positive = |value: Option<f64>, what: &str| match value {
        Some(value) if !(value.is_finite() && value > 0.0) => Err(format!("{what} has to be more than 0")),
        _ => Ok(()),
    };
    positive(change.storage_factor, "the speed of storage")?;
    positive(change.cores, "the number of cores")?;
    positive(change.sample_factor, "the CPU time of a sample")?;
    if change.cached_share.is_some_and(|share| !(0.0..=1.0).contains(&share)) {
        return Err("the share that is cached has to be between 0% and 100%".to_owned());
    }
    let cached = profile.cached_share();
    if change.cached_share.is_some_and(|share| share < cached - SAME_SHARE) {
        return Err(format!(
            "the cache has {:.0}% of the samples now: what a smaller one would cost is not known, as the reads that it \
             saves were not made",
            100.0 * cached
        ));
    }
    if workers > 4096 || prefetch > 1 << 20 {
        return Err("a loader has at most 4096 workers and a million batches in advance here".to_owned());
    }
    Ok(Setting { workers, prefetch: prefetch.max(1) })
}

pub(crate) fn mean_ns(profile: &Profile) -> f64 {
    profile.steps.iter().map(|step| step.wall_ns).sum::<f64>() / profile.steps.len().max(1) as f64
}
