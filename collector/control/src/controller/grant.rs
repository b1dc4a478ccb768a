//! Memory for caches that somebody else grants and takes back: what it is worth to this job, and giving back what is no longer
//! granted.

use super::seed::{CACHE, Need};
use super::turn::Move;
use super::{Controller, Work, audit};
use crate::Outcome;
use stallscope_model::{Act, CacheCurve, KnobState, TuneMode};
use stallscope_units::memory;

/// What a miss costs is seen while so many uses miss.
const SEEN: f64 = 0.05;
/// As a share of a step: a job that would take longer than this many times without a cache is none that trains.
const MOST_COST: f64 = 100.0;
/// How often what memory is worth is looked at.
const LOOK_NS: u64 = 5_000_000_000;

/// What memory for its caches is worth to a job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CacheWants {
    /// What its caches hold or may fill now, all together, in bytes.
    pub held_bytes: u64,
    /// Bytes, and the share (0 to 1) of the time that the job would take without any cache that so many save. Empty while that
    /// is not known.
    pub benefit: Vec<(u64, f64)>,
}

/// As last seen.
#[derive(Clone, Debug, Default)]
pub(super) struct Worth {
    /// Time that training would wait for reads were each use a miss, as a share of the time that it takes now.
    all_missed: Option<f64>,
    benefit: Vec<(u64, f64)>,
    next_ns: u64,
}

impl Controller {
    /// What its caches may have from now on, all together, in bytes. What they were raised to beyond that is given back.
    pub fn grant_caches(&mut self, bytes: u64) {
        self.budgets.cache_bytes = Some(bytes);
    }

    /// `None` where this controller turns none.
    pub fn cache_wants(&mut self) -> Option<CacheWants> {
        if self.mode != TuneMode::Act {
            return None;
        }
        if self.now_ns >= self.worth.next_ns {
            self.worth.next_ns = self.now_ns.saturating_add(LOOK_NS);
            if let Some(benefit) = self.benefit() {
                self.worth.benefit = benefit;
            }
        }
        let held_bytes = self.job.caches_bytes().max(self.job.kept_bytes());
        Some(CacheWants { held_bytes, benefit: self.worth.benefit.clone() })
    }

    /// From the miss-ratio curve, and from what misses have cost: where none is left to be seen, what they did cost before.
    fn benefit(&mut self) -> Option<Vec<(u64, f64)>> {
        let caches = || self.job.training().filter_map(|rank| rank.cache());
        let known = |curve: &&CacheCurve| !curve.is_mixed() && !curve.points().is_empty();
        let curve = caches().map(|cache| &cache.curve).find(known).copied();
        let capacity_bytes =
            caches().filter_map(|cache| cache.state).map(|state| state.capacity_bytes).max()?;
        let missed = 1.0 - self.draws.steady().or_else(|| self.draws.recent())?.hit_share()?;
        let needs = self.job.training().filter_map(|rank| Need::of(rank, self.since_ns, self.settle));
        let waits = needs.map(|need| need.sums.share(need.sums.fetch_ns)).fold(0.0, f64::max);
        if missed >= SEEN {
            self.worth.all_missed = Some((waits / missed).clamp(0.0, MOST_COST));
        }
        let all_missed = self.worth.all_missed?;
        let without = 1.0 + all_missed * (1.0 - missed);
        let saved = |missed: f64| all_missed * (1.0 - missed.clamp(0.0, 1.0)) / without;
        let Some(curve) = curve else {
            // Where each sample is drawn once a pass, hits grow with the bytes.
            let all_bytes = capacity_bytes as f64 / (1.0 - missed);
            return (missed <= 1.0 - SEEN).then(|| vec![(all_bytes as u64, saved(0.0))]);
        };
        // It is of a sample of the uses, and taken for its shape.
        let now = curve.miss_ratio(capacity_bytes).filter(|now| *now >= SEEN && missed >= SEEN);
        let scale = now.map_or(1.0, |now| missed / now);
        Some(
            curve
                .points()
                .iter()
                .map(|point| (point.capacity_bytes, saved(point.miss_ratio() * scale)))
                .collect(),
        )
    }

    /// Caches that may fill more than is granted give it back, each its part of what it was raised by; what a script or a user set
    /// stays. True when that is all there is to do now.
    pub(super) fn fit_caches(&mut self, out: &mut Outcome) -> bool {
        let Some(most) = self.budgets.cache_bytes else { return false };
        let now = self.job.caches_bytes();
        let over = now.saturating_sub(most);
        if over == 0 || matches!(self.work, Work::Settling(..)) {
            return false;
        }
        let raised: Vec<(Move, u64)> =
            self.job.training().filter_map(|rank| self.raised_cache(rank)).collect();
        let above = raised.iter().map(|(_, above)| *above).fold(0, u64::saturating_add);
        if above == 0 {
            return false;
        }
        let why = format!("the node grants the caches {} and they may fill {}", memory(most), memory(now));
        // One thing at a time: what is being tried ends first, and what is left to give back is once that is in force.
        match std::mem::take(&mut self.work) {
            Work::Watching | Work::Settling(..) => {}
            Work::GivingBack(giving) => {
                self.give_back_for_good(&giving, &why, "the node grants less", out);
                return true;
            }
            Work::Probing(probe) => {
                self.put_back(*probe, why, out);
                return true;
            }
            Work::TestingStorage(test) => {
                self.end_storage_test(*test, Act::Undo, String::new(), why, out);
                return true;
            }
            Work::Swapping(swap) => {
                self.drop_swap(*swap, &why, out);
                return true;
            }
        }
        if self.growth.is_some() {
            self.drop_growth(&why, out);
            return true;
        }
        let back = over.min(above) as f64 / above as f64;
        let moves: Vec<Move> = raised
            .into_iter()
            .map(|(turned, above)| {
                // A byte too much rather than one too few.
                let gives = ((above as f64 * back).ceil() as u64 + 1).min(above);
                Move { to: turned.from - gives, ..turned }
            })
            .collect();
        self.decisions += 1;
        for turned in &moves {
            let mut event = audit::line(Act::Undo, self.decisions, self.now_ns);
            audit::of(&mut event, turned);
            event.saw.clone_from(&why);
            event.why =
                "given back at once; it is granted again when it saves more here than elsewhere".to_owned();
            out.audit.push(event);
        }
        self.drift.cache_turned();
        self.turn_to(self.decisions, moves, out);
        true
    }

    /// The rank's cache as it stands, and by how much it was raised beyond what the script or a user had set.
    fn raised_cache(&self, rank: &crate::ranks::Rank) -> Option<(Move, u64)> {
        let knob = rank.knob(CACHE).filter(|knob| knob.state != KnobState::Unavailable)?;
        let address = (rank.rank, knob.loader, knob.name.clone());
        // Who set it before this controller began is not in its floors.
        let theirs = !knob.set_by.is_empty() && knob.set_by != super::turn::CONTROLLER;
        let own =
            if theirs { knob.value } else { self.floors.get(&address).copied().unwrap_or(knob.initial) };
        let own = own.max(knob.min);
        let above = knob.value.saturating_sub(own);
        let (from, to) = (knob.value, knob.value);
        (above > 0)
            .then(|| (Move { rank: rank.rank, loader: knob.loader, knob: CACHE.to_owned(), from, to }, above))
    }
}
