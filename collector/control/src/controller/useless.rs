//! How much of a cache training would not miss, and why.
//!
//! What may go is what was raised here: the script's own size, and one that a person has set, stay. Three things make a part of it
//! useless: it saves no reads, a smaller cache would save as many, or training does not feel the reads that it saves. How many
//! reads there would be more comes from the miss-ratio curve, or from the share that hits now; what a read costs comes from the
//! batches themselves ([`Reads`]); whether training feels it, from the utilisation law.

use super::audit;
use super::probe::DELTA;
use super::seed::{CACHE, Kind, NO_STALL, Need, Proposal, STALL};
use super::turn::{CONTROLLER, Move};
use super::{CALM_NS, Controller};
use crate::ranks::{self, Job, Rank};
use crate::reads::Reads;
use crate::stats::{Figure, Gain};
use stallscope_model::{CacheCurve, CacheState, CacheUses, Estimate, Knob, KnobState, TuneMode};
use stallscope_units::{duration_in_words, memory, percent_in_words};

/// Of what is above the floor, as much as may go at once: half, or less where that would be felt. A sixteenth is too little to try.
const PARTS: [u64; 4] = [2, 4, 8, 16];
/// The last bytes above the floor go together.
const LEAST_STEP: u64 = 4 << 20;
/// Where memory is short for something else, what is useless goes after this long.
const SHORT_NS: u64 = 60_000_000_000;
/// Of the draws: no more reads saved than that are none.
const SAVES: f64 = 0.01;
/// Draws without reads saved after which none are expected: passes over the data, where their size is known; else times what is
/// kept, as more would save less than a twentieth.
const PASSES: f64 = 2.2;
const TIMES_KEPT: f64 = 20.0;
/// Of the draws, and of those that save a read: as many reads more are none.
const ALIKE: f64 = 0.005;
const SHARE_ALIKE: f64 = 0.1;
const ALPHA: f64 = 0.05;
/// By how much longer batches may take than the law says before training that does not wait feels them: it knows means only.
const SPARE: f64 = 1.2;

/// A cache of its script's that is no larger is not worth a word.
const LITTLE: u64 = 64 << 20;
/// Samples of a batch that are read on average, from which on it is seen what a read costs.
const READ: f64 = 1.0;

/// What has been seen of the job's caches.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Worth {
    idle: Idle,
    bytes: u64,
    /// When they got another size.
    turned_ns: u64,
    /// Batches that show what a read costs: where all is kept no new ones do.
    read_cost: Option<Reads>,
    /// When something else last could not have the memory that it was to have.
    pub(super) short_ns: Option<u64>,
    /// The part that was given back last was not missed.
    pub(super) soon: bool,
}

impl Worth {
    pub(super) fn take(&mut self, now_ns: u64, job: &Job) {
        self.idle.take(job.cache_uses());
        let bytes = job.caches_bytes();
        if std::mem::replace(&mut self.bytes, bytes) != bytes {
            self.turned_ns = now_ns;
        }
    }

    /// Batches of now, with what a read costs as exactly as it is known.
    pub(super) fn priced(&self, now: Reads) -> Reads {
        now.priced(self.read_cost.as_ref())
    }
}

/// How long a cache has saved no reads.
#[derive(Clone, Copy, Debug, Default)]
struct Idle {
    from: CacheUses,
    last: CacheUses,
}

impl Idle {
    fn take(&mut self, uses: CacheUses) {
        let since = uses.since(&self.from);
        if uses.draws() < self.last.draws() || since.share(since.reuses()).is_some_and(|share| share > SAVES)
        {
            self.from = uses;
        }
        self.last = uses;
    }

    fn draws(&self) -> f64 {
        self.last.since(&self.from).draws() as f64
    }
}

/// A part of the cache that training would not miss.
pub(super) struct Useless {
    pub(super) proposal: Proposal,
    pub(super) saw: String,
    pub(super) before: Figure,
    /// Of the batches until now.
    pub(super) reads: Option<Reads>,
    /// Training waits for data, or nearly.
    pub(super) stall: f64,
}

/// With a smaller cache.
pub(super) struct Smaller {
    pub(super) share: f64,
    /// Of training's pace; never above 0. `None`: what a read costs is not known.
    pub(super) loss: Option<Gain>,
}

impl Controller {
    /// What a read costs, for when none is left that shows it.
    pub(super) fn note_read_cost(&mut self) {
        let rank = self.job.training().find(|rank| rank.cache().is_some());
        let seen = rank.and_then(|rank| reads_of(rank, self.since_ns));
        if let Some(seen) = seen.filter(|seen| seen.reads >= READ && seen.each_ns().is_some()) {
            self.cache_worth.read_cost = Some(seen);
        }
    }

    /// The part of the cache that may go; a sentence in `holds` where all of it is useless and stays.
    pub(super) fn useless_cache(&self, holds: &mut Vec<String>) -> Option<Useless> {
        let is_short = |short_ns: u64| self.now_ns < short_ns.saturating_add(SHORT_NS);
        // What went was not missed: the next part need not wait for long.
        let soon = self.cache_worth.soon || self.cache_worth.short_ns.is_some_and(is_short);
        let wait_ns = if soon { SHORT_NS } else { CALM_NS };
        if self.mode != TuneMode::Act
            || self.growth.is_some()
            || self.now_ns < self.cache_worth.turned_ns.saturating_add(wait_ns)
            || !self.ready(CACHE, Kind::Release)
        {
            return None;
        }
        let rank = self.job.training().find(|rank| rank.cache().is_some())?;
        let state = rank.cache()?.state.filter(|state| state.capacity_bytes > 0)?;
        let saves = self.idle_share(&state);
        let held: Vec<(&Knob, u64)> = self.job.training().filter_map(|rank| self.above(rank)).collect();
        let above: u64 = held.iter().map(|(_, above)| above).sum();
        if above == 0 {
            let own = rank.value(CACHE).filter(|own| *own > LITTLE);
            holds.extend(saves.zip(own).map(|(why, own)| {
                format!("{why}; its {} were not set here, and stay: less would do", memory(own))
            }));
            return None;
        }
        let need = self
            .job
            .training()
            .filter_map(|rank| Need::of(rank, self.since_ns, self.settle))
            .max_by(|a, b| a.stall().total_cmp(&b.stall()))?;
        let before = ranks::figure(&self.job.groups(self.since_ns, self.settle), u32::MAX)?;
        let calm = need.stall() < NO_STALL && self.now_ns > self.waited_ns.saturating_add(CALM_NS);
        let waits = need.stall() > STALL;
        let recent = self.draws.recent()?;
        let share_now = recent.share(recent.reuses())?;
        let now = reads_of(rank, self.since_ns);
        if now.is_none() && !rank.services.is_empty() {
            // Too few batches so far.
            return None;
        }
        let priced = now.map(|now| self.cache_worth.priced(now));
        let allowed = (DELTA / 2.0 - self.given_away).max(0.0);
        for part in PARTS {
            let step = (above / part).max(above.min(LEAST_STEP));
            let smaller = self.smaller(rank, &state, share_now, step, &need, priced.as_ref());
            // Where nothing hits just now, as in the first pass over other data, nothing is alike.
            let alike = share_now > SAVES && smaller.share >= share_now - ALIKE.min(SHARE_ALIKE * share_now);
            let felt = smaller.loss.map(|loss| -loss.low);
            let why = match (&saves, felt) {
                (Some(why), _) => why.clone(),
                _ if alike => format!(
                    "the cache saves the reads of {} of the samples, and would of {} with {} less",
                    percent_in_words(share_now),
                    percent_in_words(smaller.share),
                    memory(step)
                ),
                (_, Some(felt)) if felt <= allowed && calm => format!(
                    "training has not waited for data for {}, and would not with {} less",
                    duration_in_words(self.now_ns - self.waited_ns),
                    memory(step)
                ),
                // A small part of any cache is hardly felt: only half of it shows that reads are not what training waits for.
                (_, Some(felt))
                    if felt <= allowed
                        && waits
                        && part == PARTS[0]
                        && now.is_some_and(|now| now.each_ns().is_some()) =>
                {
                    format!("training hardly gains by the reads that {} of the cache save", memory(step))
                }
                // That no sample is read hides what one would cost: the least part shows it.
                (_, None) if calm && part == PARTS[PARTS.len() - 1] => format!(
                    "training has not waited for data for {}; what a read costs is not known, as hardly one is left",
                    duration_in_words(self.now_ns - self.waited_ns)
                ),
                _ => continue,
            };
            let limit = self.limit(CACHE, Kind::Release, step);
            if limit < above / PARTS[PARTS.len() - 1] {
                return None;
            }
            let moves = lowered(&held, limit, above);
            let predicted = match (saves.is_some() || alike, smaller.loss) {
                (false, Some(loss)) => Estimate { value: loss.value, low: loss.low, high: loss.high },
                _ => Estimate { value: 0.0, low: -DELTA / 2.0, high: 0.0 },
            };
            // Were it wrong, all that goes would have to be read again.
            let lost = state.kept_samples as f64 * limit as f64 / state.capacity_bytes as f64;
            let again_ns = priced.and_then(|now| now.each_ns()).unwrap_or(0.0).max(0.0) * lost;
            if moves.is_empty() || waits && !alike && saves.is_none() && !self.affords(again_ns) {
                return None;
            }
            let (kind, knob, shortfall, clear) = (Kind::Release, CACHE, 0.0, false);
            return Some(Useless {
                proposal: Proposal { kind, knob, moves, predicted, shortfall, clear, why },
                saw: audit::saw(&need, &before),
                before,
                reads: now,
                stall: need.stall(),
            });
        }
        None
    }

    /// Ranks that share a cache have one curve, which one of them reports.
    fn known_curve(&self) -> Option<CacheCurve> {
        self.job.training().filter_map(|rank| Some(rank.cache()?.curve)).find(is_known)
    }

    /// Why it is not worth anything, where it has saved no reads for long enough.
    fn idle_share(&self, state: &CacheState) -> Option<String> {
        let known = self.known_curve();
        let kept = state.kept_samples as f64;
        let sample_bytes = state.kept_bytes as f64 / kept.max(1.0);
        let enough = match known.map(|curve| curve.dataset_bytes() as f64).filter(|bytes| *bytes > 0.0) {
            Some(bytes) if sample_bytes > 0.0 => PASSES * bytes / sample_bytes,
            _ => TIMES_KEPT * kept,
        };
        let draws = self.cache_worth.idle.draws();
        (kept > 0.0 && draws >= enough.max(1000.0)).then(|| {
            format!("the cache has saved hardly a read in {draws:.0} draws, and keeps {kept:.0} samples")
        })
    }

    /// What a rank's cache has above what has to stay; nothing where a person has the knob.
    pub(super) fn above<'a>(&self, rank: &'a Rank) -> Option<(&'a Knob, u64)> {
        let knob = rank.knob(CACHE).filter(|knob| knob.state == KnobState::Applied)?;
        let address = (rank.rank, knob.loader, knob.name.clone());
        let floor = self.floors.get(&address).copied().unwrap_or(knob.initial).max(knob.min);
        let theirs = !knob.set_by.is_empty() && knob.set_by != CONTROLLER;
        let above = knob.value.checked_sub(floor).filter(|above| *above > 0 && !theirs)?;
        Some((knob, above))
    }

    pub(super) fn smaller(
        &self,
        rank: &Rank,
        state: &CacheState,
        share_now: f64,
        step: u64,
        need: &Need,
        now: Option<&Reads>,
    ) -> Smaller {
        let then = state.capacity_bytes.saturating_sub(step);
        let known = self.known_curve();
        let missed =
            known.and_then(|curve| Some((curve.miss_ratio(state.capacity_bytes)?, curve.miss_ratio(then)?)));
        // What it has not filled it does not use.
        let used = state.kept_bytes.min(state.capacity_bytes).max(1) as f64;
        let share = match missed {
            Some((now, then)) => share_now - (then - now).max(0.0),
            None => share_now * (then as f64 / used).min(1.0),
        };
        let share = share.clamp(0.0, share_now);
        let samples: Vec<f64> = rank.services.iter().map(|service| f64::from(service.samples)).collect();
        let batch = crate::stats::mean(&samples).filter(|batch| *batch > 0.0);
        let loss = now.zip(batch).and_then(|(now, batch)| {
            let reads = now.reads + (share_now - share) * batch;
            let longer = now.longer(reads, None, ALPHA)?;
            let loss = |longer: f64| match need.stall() < NO_STALL {
                true => {
                    let step_ns = need.step_ns(SPARE * (1.0 + longer) - 1.0);
                    (need.step_ns(0.0) / step_ns.max(1.0) - 1.0).min(0.0)
                }
                // The law knows means only: where training waits all the same, it feels all that makes a batch longer.
                false => (1.0 / (1.0 + longer).max(0.01) - 1.0).min(0.0),
            };
            Some(Gain { value: loss(longer.value), low: loss(longer.high), high: loss(longer.low) })
        });
        Smaller { share, loss }
    }
}

pub(super) fn reads_of(rank: &Rank, since_ns: u64) -> Option<Reads> {
    Reads::of(rank.services.iter().filter(|service| service.start_ns >= since_ns))
}

fn is_known(curve: &CacheCurve) -> bool {
    !curve.is_mixed() && !curve.points().is_empty()
}

/// `step` bytes less in all, each rank in proportion to what it has above its floor.
fn lowered(held: &[(&Knob, u64)], step: u64, above: u64) -> Vec<Move> {
    let of = |(knob, mine): &(&Knob, u64)| {
        let less = (u128::from(*mine) * u128::from(step) / u128::from(above.max(1))) as u64;
        (less > 0).then(|| Move {
            rank: knob.rank,
            loader: knob.loader,
            knob: knob.name.clone(),
            from: knob.value,
            to: knob.value - less.min(*mine),
        })
    };
    held.iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_is_idle_from_its_last_saved_reads_on() {
        let (mut idle, mut uses) = (Idle::default(), CacheUses::default());
        let mut seen = Vec::new();
        for second in 0..100 {
            // In the second quarter a third of the draws save a read.
            uses.hits += if (25..50).contains(&second) { 33 } else { 0 };
            uses.misses += if (25..50).contains(&second) { 67 } else { 100 };
            idle.take(uses);
            seen.push(idle.draws());
        }
        assert_eq!((seen[24], seen[49], seen[99]), (2500.0, 0.0, 5000.0));
        // Counts that begin anew.
        idle.take(CacheUses { misses: 7, ..CacheUses::default() });
        assert_eq!(idle.draws(), 0.0);
    }

    #[test]
    fn ranks_give_back_by_what_they_have_above_their_floors() {
        let knob = |rank, value| Knob { rank, value, ..Knob::default() };
        let (one, other) = (knob(0, 400), knob(1, 200));
        let moves = lowered(&[(&one, 300), (&other, 100)], 200, 400);
        let to: Vec<(u32, u64)> = moves.iter().map(|turned| (turned.rank, turned.to)).collect();
        assert_eq!(to, [(0, 250), (1, 150)]);
    }
}
