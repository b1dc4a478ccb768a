//! Which knob memory is worth more in, where there is none left: expected by the model of the job, before anything is turned.

use super::cache::{OF_FREE, larger, proposal};
use super::probe::DELTA;
use super::seed::{self, CACHE, Kind, Need, PREFETCH, Proposal, STALL, WORKERS, turned};
use super::swap::Hits;
use super::turn::Move;
use super::useless::reads_of;
use super::{Controller, Work, audit, probe};
use crate::Outcome;
use crate::profile::Profile;
use crate::ranks::{self, Rank};
use crate::stats::{self, Figure};
use crate::whatif::{Change, Delta, Look, Model, Prediction, predict};
use stallscope_model::{CacheUses, Estimate, TuneMode};
use stallscope_units::{memory, percent_in_words};
use std::cell::OnceCell;

/// It is asked so often, and after each answer that nothing is to be gained not half as often, as the model takes CPU.
const ASK_NS: u64 = 10_000_000_000;
const SELDOM_NS: u64 = 320_000_000_000;
/// Steps that it is compared with, as there is no way back and forth.
const FEWEST_STEPS: u32 = 150;
const REPLICAS: usize = 3;
/// Sizes are turned by whole ones of these.
const MIB: u64 = 1 << 20;
/// Of what trying may cost, as much may be expected to be lost beforehand.
const EXPECTED_COST: f64 = 0.5;

/// When it was last asked.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Asked {
    next_ns: u64,
    pause_ns: u64,
    /// Of a trial that may have to make way.
    trial_ns: u64,
}

/// Memory for one knob that another gives.
pub(super) struct Trade {
    pub(super) proposal: Proposal,
    pub(super) saw: String,
    pub(super) before: Figure,
    pub(super) hits: Option<Hits>,
}

/// What all of them are judged by.
struct Sight<'a> {
    rank: &'a Rank,
    need: Need,
    uses: CacheUses,
    profile: &'a Profile,
    /// Made where it is asked, as it takes CPU.
    model: OnceCell<(Model<'a>, Vec<Look>)>,
}

impl Sight<'_> {
    fn predict(&self, change: &Change) -> Option<Prediction> {
        let (model, looks) = self.model.get_or_init(|| {
            let model = Model::new(self.profile);
            let looks = model.looks(REPLICAS);
            (model, looks)
        });
        predict(model, change, looks).ok()
    }

    fn gain(&self, change: &Change) -> Option<Estimate> {
        self.predict(change).map(|found| found.gain)
    }

    /// Share of the pace that is lost at most, where it is not known whether storage is slow or at its limit.
    fn loss(&self, change: &Change) -> Option<f64> {
        let found = self.predict(change)?;
        let either = found.either.map(|either| either.if_slow.value.min(either.if_limited.value));
        Some(-either.unwrap_or(found.gain.value).min(0.0))
    }
}

impl Controller {
    /// What promises most, where memory is what there is too little of.
    pub(super) fn pick_trade(&mut self) -> Option<Trade> {
        if self.mode != TuneMode::Act || self.growth.is_some() || self.now_ns < self.traded.next_ns {
            return None;
        }
        self.traded.next_ns = self.now_ns.saturating_add(ASK_NS);
        let mut asked = false;
        let found = self.best_trade(&mut asked);
        self.traded.pause_ns = match &found {
            Some(_) => 0,
            None if asked => (2 * self.traded.pause_ns).clamp(ASK_NS, SELDOM_NS),
            None => self.traded.pause_ns,
        };
        if asked {
            self.traded.next_ns = self.now_ns.saturating_add(self.traded.pause_ns.max(ASK_NS));
        }
        found
    }

    /// `asked`: whether the model was.
    fn best_trade(&self, asked: &mut bool) -> Option<Trade> {
        // Of ranks that wait for each other, what one gives another may need.
        let mut training = self.job.training();
        let (rank, None) = (training.next()?, training.next()) else { return None };
        rank.cache()?;
        let need = Need::of(rank, self.since_ns, self.settle).filter(|need| need.stall() > STALL)?;
        let groups = self.job.groups(self.since_ns, self.settle);
        if groups.iter().any(|rank| crate::window::steps(rank) < FEWEST_STEPS) {
            return None;
        }
        let before = ranks::figure(&groups, u32::MAX)?;
        let uses = self.draws.steady()?;
        let profiles = self.profiles.training();
        let [profile] = profiles.as_slice() else { return None };
        if profile.too_little().is_some() {
            return None;
        }
        let saw = audit::saw(&need, &before);
        let sight = Sight { rank, need, uses, profile, model: OnceCell::new() };
        let found = [self.workers_for_cache(&sight), self.cache_for_workers(&sight)];
        *asked = sight.model.get().is_some();
        let best = found
            .into_iter()
            .flatten()
            .max_by(|(a, _), (b, _)| a.predicted.value.total_cmp(&b.predicted.value));
        let (proposal, hits) = best.filter(|(best, _)| best.predicted.value >= DELTA)?;
        Some(Trade { proposal, saw, before, hits })
    }

    /// The last workers go, and the cache gets what they had.
    fn workers_for_cache(&self, sight: &Sight<'_>) -> Option<(Proposal, Option<Hits>)> {
        let rank = sight.rank;
        let free = self.free_bytes(0);
        // Where there is memory for a larger cache nothing has to go for it.
        if !self.ready(CACHE, Kind::Swap) || larger(&self.job, &sight.uses, rank, free).is_some() {
            return None;
        }
        let now = rank.value(WORKERS)?;
        let above = now.checked_sub(self.floor_of(rank, WORKERS)?).filter(|above| *above > 0)?;
        let steps = [1, above.div_ceil(2)];
        let candidates = steps.into_iter().filter_map(|step| {
            let fewer = self.fewer_workers(rank, now - step)?;
            let freed = self.freed_bytes(rank, &fewer);
            let size = larger(&self.job, &sight.uses, rank, self.free_bytes(freed)).filter(|_| freed > 0)?;
            let more = proposal(&self.job, &size)?;
            let workers = Some(Delta::To(u32::try_from(now - step).ok()?));
            let prefetch = fewer.iter().find(|turned| turned.knob == PREFETCH);
            let prefetch = prefetch.and_then(|turned| u32::try_from(turned.to).ok()).map(Delta::To);
            let given = Change { workers, prefetch, ..Change::default() };
            let predicted = sight.gain(&Change { cached_share: Some(size.share), ..given })?;
            let hits = self.hits(rank, size.share - size.share_now)?;
            // Until the larger cache is used its workers are missed.
            let lost = sight.loss(&given)?;
            let pass_ns = hits.pass_draws * self.job.step_ns() / mean_samples(rank)?;
            if lost * pass_ns > EXPECTED_COST * self.affordable_ns() {
                return None;
            }
            let why = format!(
                "memory is full, and {} is worth more to the cache, which would have {:.0}% of the samples instead of {:.0}%, than to {step} of {now} workers",
                memory(size.to_bytes - size.capacity_bytes),
                100.0 * size.share,
                100.0 * size.share_now,
            );
            let moves = [fewer, more.moves].concat();
            Some((Proposal { kind: Kind::Swap, moves, predicted, why, ..more }, Some(hits)))
        });
        best_of(candidates)
    }

    /// A part of the cache goes, and one more worker gets it.
    fn cache_for_workers(&self, sight: &Sight<'_>) -> Option<(Proposal, Option<Hits>)> {
        let rank = sight.rank;
        if !self.ready(WORKERS, Kind::Swap) {
            return None;
        }
        let now = rank.value(WORKERS)?;
        let more = turned(rank, WORKERS, now.saturating_add(1)).filter(|turned| turned.to > turned.from)?;
        // Of the batches ahead no more than one for each, as they take memory as well.
        let mut more = self.barest(seed::with_prefetch(rank, more, 0));
        more.retain(|turned| turned.to > turned.from);
        let (kind, knob, shortfall, clear) = (Kind::Swap, WORKERS, 0.0, false);
        let mut proposal = Proposal {
            kind,
            knob,
            moves: more,
            predicted: Estimate::default(),
            shortfall,
            clear,
            why: String::new(),
        };
        let deltas = proposal.deltas();
        // Where there is memory for it nothing has to go, and where something else is short that would not help.
        if self.headroom.memory(&self.job, &deltas).is_ok()
            || self.headroom.beside_memory(&self.job, &deltas).is_err()
        {
            return None;
        }
        let (held, above) = self.above(rank)?;
        let wanted = (self.headroom.bytes_of(&self.job, &deltas) as f64 / OF_FREE) as u64;
        let free = (self.free_bytes(0) as f64 / OF_FREE) as u64;
        let gives = (wanted.checked_sub(free)? / MIB + 1).saturating_mul(MIB);
        if gives > above {
            return None;
        }
        let state = rank.cache()?.state?;
        let share_now = sight.uses.share(sight.uses.reuses())?;
        let now_reads = reads_of(rank, self.since_ns).map(|reads| self.cache_worth.priced(reads))?;
        let smaller = self.smaller(rank, &state, share_now, gives, &sight.need, Some(&now_reads));
        let loss = smaller.loss?;
        let to = |name: &str| {
            let turned = proposal.moves.iter().find(|turned| turned.knob == name);
            turned.and_then(|turned| u32::try_from(turned.to).ok()).map(Delta::To)
        };
        let gain =
            sight.gain(&Change { workers: to(WORKERS), prefetch: to(PREFETCH), ..Change::default() })?;
        let both = |gain: f64, loss: f64| (1.0 + gain) * (1.0 + loss) - 1.0;
        // Were it wrong, all that goes would have to be read again.
        let lost = state.kept_samples as f64 * gives as f64 / state.capacity_bytes.max(1) as f64;
        if now_reads.each_ns().unwrap_or(0.0).max(0.0) * lost > EXPECTED_COST * self.affordable_ns() {
            return None;
        }
        let less = Move {
            rank: rank.rank,
            loader: held.loader,
            knob: held.name.clone(),
            from: held.value,
            to: held.value - gives,
        };
        proposal.why = format!(
            "memory is full, and {} of it is worth more to one worker more than to the cache, which saves the reads of {} of the samples and would of {}",
            memory(gives),
            percent_in_words(share_now),
            percent_in_words(smaller.share)
        );
        proposal.predicted = Estimate {
            value: both(gain.value, loss.low),
            low: both(gain.low, loss.low),
            high: both(gain.high, loss.high),
        };
        proposal.moves.insert(0, less);
        Some((proposal, None))
    }

    /// Down to that a knob may go: what the script or a person has set. That fewer were too little was seen with a smaller cache.
    fn floor_of(&self, rank: &Rank, name: &str) -> Option<u64> {
        let knob = rank.knob(name).filter(|knob| knob.state == stallscope_model::KnobState::Applied)?;
        let address = (rank.rank, knob.loader, knob.name.clone());
        let own = self.floors.get(&address).copied().unwrap_or(knob.initial);
        Some(own.max(knob.min).max(1))
    }

    /// So many workers, and no more batches ahead for each than now.
    fn fewer_workers(&self, rank: &Rank, to: u64) -> Option<Vec<Move>> {
        let now = rank.value(WORKERS)?.max(1);
        let workers = turned(rank, WORKERS, to).filter(|turned| turned.to < turned.from)?;
        let batches = |ahead: u64| {
            let floor = self.floor_of(rank, PREFETCH)?.max(to);
            let wanted = (u128::from(ahead) * u128::from(to)).div_ceil(u128::from(now)) as u64;
            turned(rank, PREFETCH, wanted.max(floor)).filter(|turned| turned.to < turned.from)
        };
        Some([Some(workers), rank.value(PREFETCH).and_then(batches)].into_iter().flatten().collect())
    }

    /// What these free at least.
    fn freed_bytes(&self, rank: &Rank, fewer: &[Move]) -> u64 {
        let of = |turned: &Move| {
            let each = match turned.knob.as_str() {
                WORKERS => rank.workers.least_of(rank.value(WORKERS).unwrap_or(0)),
                _ => 0,
            };
            each.saturating_mul(turned.from - turned.to)
        };
        fewer.iter().map(of).fold(0, u64::saturating_add)
    }

    fn hits(&self, rank: &Rank, rise: f64) -> Option<Hits> {
        let uses = self.draws.steady()?;
        let before = uses.share(uses.reuses())?;
        Some(Hits { before, rise, pass_draws: pass_draws(rank, before)? })
    }

    /// A trial that takes the memory of which the model expects more in a larger cache makes way for that: true where it did.
    pub(super) fn makes_way(&mut self, out: &mut Outcome) -> bool {
        let Some(why) = self.better_for_cache() else { return false };
        let Work::Probing(trial) = std::mem::take(&mut self.work) else { return false };
        let now_ns = self.now_ns;
        self.patience(&trial.proposal).make_way(now_ns);
        self.ask_cache_ns = 0;
        self.put_back(*trial, why, out);
        true
    }

    /// Why the memory of the trial under way is worth more to the cache, as a sentence; `None` where it is not, or is not known.
    fn better_for_cache(&mut self) -> Option<String> {
        let Work::Probing(trial) = &self.work else { return None };
        let measures = matches!(trial.stage, probe::Stage::Measuring { .. });
        if trial.is_with()
            || !measures
            || trial.proposal.kind != Kind::Raise
            || self.growth.is_some()
            || self.now_ns < self.traded.trial_ns
            || !self.ready(CACHE, Kind::Raise)
        {
            return None;
        }
        self.traded.trial_ns = self.now_ns.saturating_add(ASK_NS);
        // Steps of the setting without it, and enough of them.
        if self.profiles.training().iter().any(|profile| profile.too_little().is_some()) {
            return None;
        }
        let reserved = self.reserved_bytes();
        let (larger, ..) = self.expected_cache(self.free_bytes(reserved))?;
        let beside = self.expected_cache(self.free_bytes(0));
        let beside = beside.map_or(0.0, |(beside, ..)| beside.predicted.value.max(0.0));
        let so_far = stats::compare(&trial.legs, trial.restless, 0.5).map(|gain| gain.value);
        let trial_gain = so_far.unwrap_or(trial.proposal.predicted.value).max(0.0);
        let expected = larger.predicted.value;
        (expected >= (1.0 + trial_gain) * (1.0 + beside) - 1.0 + DELTA).then(|| {
            format!(
                "a larger cache with the same memory is expected to bring {:+.0}%, and this {:+.0}% and {:+.0}% by the cache that there is memory for beside it",
                100.0 * expected,
                100.0 * trial_gain,
                100.0 * beside
            )
        })
    }
}

/// Draws of one pass over the data; `reused`: share of the draws that save a read.
pub(super) fn pass_draws(rank: &Rank, reused: f64) -> Option<f64> {
    let cache = rank.cache()?;
    let state = cache.state?;
    let dataset = cache.curve.dataset_bytes() as f64 / state.kept_bytes.max(1) as f64;
    let passes = if dataset > 0.0 { dataset } else { 1.0 / reused.max(1e-3) };
    Some(passes.max(1.0) * state.kept_samples as f64)
}

fn mean_samples(rank: &Rank) -> Option<f64> {
    let samples: Vec<f64> = rank.services.iter().map(|service| f64::from(service.samples)).collect();
    stats::mean(&samples).filter(|samples| *samples > 0.0)
}

fn best_of<T>(found: impl Iterator<Item = (Proposal, T)>) -> Option<(Proposal, T)> {
    found.max_by(|(a, _), (b, _)| a.predicted.value.total_cmp(&b.predicted.value))
}
