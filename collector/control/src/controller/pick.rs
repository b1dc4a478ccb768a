//! Which change is worth trying next, and whether it fits the budgets.

use super::seed::{
    self, CACHE, FETCHERS, Kind, LOADER_KNOBS, NO_STALL, Need, PREFETCH, Proposal, STALL, WORKERS, turned,
};
use super::turn::Move;
use super::{CALM_NS, Controller, PEAK_NS, audit, fetchers, probe};
use crate::budget::Delta as Taken;
use crate::ranks::{Job, Rank};
use crate::whatif::{Change, Delta, Model, predict};
use stallscope_model::{Advice, Estimate, Knob, KnobState, TuneMode};
use stallscope_units::percent_in_words;
use std::collections::BTreeMap;

/// Simulations behind one prediction: a glance, as the probe measures it anyway.
const REPLICAS: usize = 3;
/// Gain of ending all waits from which on a raise is tried although the model expects nothing of it: it takes seconds
/// of training to see that the model is right, which less could hardly pay back.
const DOUBT: f64 = 0.1;

impl Proposal {
    /// The proposal in the words of [`Advice`], one for each knob.
    pub(super) fn advice(&self) -> Vec<Advice> {
        let advice = |turned: &Move| Advice {
            rank: turned.rank,
            loader: turned.loader,
            knob: turned.knob.clone(),
            now: turned.from,
            to: turned.to,
            gain: self.predicted,
            why: self.why.clone(),
        };
        self.moves.iter().map(advice).collect()
    }

    /// What it takes of each rank.
    pub(super) fn deltas(&self) -> Vec<Taken> {
        let mut deltas: Vec<Taken> = Vec::new();
        for turned in &self.moves {
            let by = i64::try_from(turned.to).unwrap_or(i64::MAX).saturating_sub_unsigned(turned.from);
            let mut delta = deltas
                .pop_if(|delta| delta.rank == turned.rank)
                .unwrap_or(Taken { rank: turned.rank, ..Taken::default() });
            match turned.knob.as_str() {
                WORKERS => delta.workers += by,
                CACHE => delta.cache_bytes += by,
                FETCHERS => delta.fetchers += by,
                _ => delta.batches += by,
            }
            deltas.push(delta);
        }
        deltas
    }
}

impl Controller {
    /// The change that promises most and may be tried now, and what it is based on.
    pub(super) fn pick(&mut self, out: &mut crate::Outcome) -> Option<(Proposal, String)> {
        let needs: Vec<Need> =
            self.job.training().filter_map(|rank| Need::of(rank, self.since_ns, self.settle)).collect();
        self.note_peaks(&needs);
        let worst = needs.iter().max_by(|a, b| a.stall().total_cmp(&b.stall()))?;
        let figure = crate::ranks::figure(&self.job.groups(self.since_ns, self.settle), u32::MAX)?;
        let saw = audit::saw(worst, &figure);
        let proposal = if worst.stall() > STALL { self.raise(&needs, out) } else { None };
        // A job that does not wait is left alone: how its work shares the cores is not for us to try.
        let eased = || (worst.stall() > STALL).then(|| self.ease(&needs)).flatten();
        let proposal = proposal.or_else(eased).or_else(|| self.release(worst.stall()))?;
        Some((proposal, saw))
    }

    /// What bursts ask for is needed, although there is none just now.
    fn note_peaks(&mut self, needs: &[Need]) {
        let now_ns = self.now_ns;
        for need in needs {
            let busy = need.busy_workers();
            let peak = self.peaks.entry(need.rank).or_insert((busy, now_ns));
            if busy >= peak.0 || now_ns > peak.1.saturating_add(PEAK_NS) {
                *peak = (busy, now_ns);
            }
        }
    }

    pub(super) fn ready(&self, knob: &'static str, kind: Kind) -> bool {
        self.mode != TuneMode::Act
            || self.patience.get(&(knob, kind)).is_none_or(|patience| patience.ready(self.now_ns))
    }

    pub(super) fn limit(&self, knob: &'static str, kind: Kind, step: u64) -> u64 {
        self.patience.get(&(knob, kind)).map_or(step, |patience| patience.limit(step))
    }

    fn raise(&mut self, needs: &[Need], out: &mut crate::Outcome) -> Option<Proposal> {
        if crate::budget::Headroom::contradiction(&self.budgets).is_some() {
            return None;
        }
        let mut best: Option<Proposal> = None;
        let mut refused = None;
        for knob in LOADER_KNOBS {
            if !self.ready(knob, Kind::Raise) {
                continue;
            }
            let made = |most: u64| {
                let limit = |step| self.limit(knob, Kind::Raise, step).min(most);
                match knob {
                    WORKERS => seed::more_workers(&self.job, needs, limit),
                    FETCHERS => fetchers::more(&self.job, &self.draws, self.since_ns, needs, limit),
                    _ => seed::more_prefetch(&self.job, needs, limit),
                }
            };
            let Some(full) = made(u64::MAX) else { continue };
            match self.shrink(full, made) {
                Ok(fits) => {
                    let better = best.as_ref().is_none_or(|best| fits.predicted.value > best.predicted.value);
                    if fits.predicted.high >= probe::DELTA && better {
                        best = Some(fits);
                    }
                }
                Err(why) => {
                    if made(1).is_some_and(|least| self.headroom.memory(&self.job, &least.deltas()).is_err())
                    {
                        self.cache_worth.short_ns = Some(self.now_ns);
                    }
                    refused = Some((knob, why));
                }
            }
        }
        if let Some(mut best) = best {
            best.clear &= self.untried(best.knob);
            // What the model has no knob for is the law's to promise.
            let promising = match best.knob == FETCHERS {
                true => best.predicted.value >= probe::DELTA,
                false => self.foresee(&mut best),
            };
            // What the model expects nothing of is not advised, and tried only where it could gain much if it errs.
            let tried = self.mode == TuneMode::Act && to_high(needs) >= DOUBT;
            return (promising || tried).then_some(best);
        }
        let (knob, why) = refused?;
        if let Some(shift) = self.shift(needs) {
            return Some(shift);
        }
        let saw = format!("more {knob} could help, as training waits for data");
        self.hold(
            if knob == WORKERS { "no budget for workers" } else { "no budget for prefetch" },
            saw,
            why,
            out,
        );
        None
    }

    /// What the model of the job predicts, where it can. The audit has it beside the measured gain; the choice
    /// is the law's, which costs nothing and errs towards more. False where it expects nothing.
    pub(super) fn foresee(&self, proposal: &mut Proposal) -> bool {
        let profiles = self.profiles.training();
        let [profile] = profiles.as_slice() else { return true };
        let to = |name: &str| {
            let turned =
                proposal.moves.iter().find(|turned| turned.knob == name && turned.rank == profile.rank);
            turned.map(|turned| Delta::To(u32::try_from(turned.to).unwrap_or(u32::MAX)))
        };
        let change = Change { workers: to(WORKERS), prefetch: to(PREFETCH), ..Change::default() };
        if profile.too_little().is_some() {
            // Nothing is proven of what is only advised: where the model will soon know, advice waits for it.
            return self.mode == TuneMode::Act || profile.services.is_empty();
        }
        let model = Model::new(profile);
        let Ok(found) = predict(&model, &change, &model.looks(REPLICAS)) else { return true };
        proposal.predicted = found.gain;
        let Some(either) = found.either else { return found.gain.value >= probe::DELTA };
        let [slow, limited] = [either.if_slow.value, either.if_limited.value].map(|gain| 100.0 * gain);
        proposal.why = format!(
            "{}; {slow:+.0}% if each read is merely slow, {limited:+.0}% if storage is at its limit, which is not known",
            proposal.why
        );
        if self.mode != TuneMode::Act {
            proposal.predicted.value = either.if_limited.value.min(either.if_slow.value);
        }
        true
    }

    /// The largest step that fits: half, and half again.
    pub(super) fn shrink(
        &self,
        full: Proposal,
        made: impl Fn(u64) -> Option<Proposal>,
    ) -> Result<Proposal, String> {
        let mut step = full.step();
        let mut proposal = full;
        loop {
            let Err(why) = self.headroom.fits(&self.job, &proposal.deltas()) else { return Ok(proposal) };
            step /= 2;
            if step == 0 {
                proposal.moves = self.barest(proposal.moves);
                let fits = self.headroom.fits(&self.job, &proposal.deltas()).is_ok();
                return if fits { Ok(proposal) } else { Err(why) };
            }
            proposal = made(step).ok_or(why)?;
        }
    }

    /// With each worker only the batch that it works on.
    pub(super) fn barest(&self, moves: Vec<Move>) -> Vec<Move> {
        let workers: Vec<(u32, u64)> = moves
            .iter()
            .filter(|turned| turned.knob == WORKERS)
            .map(|turned| (turned.rank, turned.to))
            .collect();
        let bare = |mut turned: Move| {
            if turned.knob == PREFETCH
                && let Some((_, workers)) = workers.iter().find(|(rank, _)| *rank == turned.rank)
            {
                // Where nobody asks, torch's rule gives an added worker as many batches as each other one has.
                turned.to = turned.to.min(*workers).max(turned.from);
            }
            turned
        };
        moves.into_iter().map(bare).collect()
    }

    /// One worker from the rank that waits least to the one that waits most.
    fn shift(&self, needs: &[Need]) -> Option<Proposal> {
        if !self.ready(WORKERS, Kind::Shift) {
            return None;
        }
        let to = seed::slowest(needs).into_iter().max_by(|a, b| a.stall().total_cmp(&b.stall()))?;
        let from = needs
            .iter()
            .filter(|need| need.workers.is_some_and(|workers| workers > 1) && need.stall() < STALL)
            .min_by(|a, b| a.stall().total_cmp(&b.stall()))?;
        let (to, from) = (self.job.ranks.get(&to.rank)?, self.job.ranks.get(&from.rank)?);
        let step = self.limit(WORKERS, Kind::Shift, 1);
        let fewer = turned(from, WORKERS, from.value(WORKERS)?.saturating_sub(step).max(1))?;
        let more = turned(to, WORKERS, to.value(WORKERS)? + step).filter(|turned| turned.to > turned.from)?;
        let why = format!(
            "no cores are left for more workers, and rank {} hardly waits for data while rank {} does",
            from.rank, to.rank
        );
        let moves = [vec![fewer], seed::with_prefetch(to, more, 0)].concat();
        let predicted = Estimate { value: probe::DELTA, low: 0.0, high: STALL.max(to_high(needs)) };
        let (kind, knob, shortfall, clear) = (Kind::Shift, WORKERS, 0.0, false);
        let proposal = Proposal { kind, knob, moves, predicted, shortfall, clear, why };
        // Of a busy rank a worker takes more CPU than of one that hardly works, and it is there before the other is
        // gone: the budget allows both, or it stays where it is.
        self.headroom.fits(&self.job, &proposal.deltas()).is_ok().then_some(proposal)
    }

    /// Fewer workers where they take the CPU from training and from each other.
    fn ease(&self, needs: &[Need]) -> Option<Proposal> {
        if !self.ready(WORKERS, Kind::Ease) {
            return None;
        }
        let step = |now: u64| self.limit(WORKERS, Kind::Ease, (now / 4).max(1));
        let fewer = |need: &Need| {
            let now = need.workers.filter(|now| *now > 1)?;
            let to = now.saturating_sub(step(now)).max(1);
            let rank = self.job.ranks.get(&need.rank).filter(|_| need.would_do(to))?;
            turned(rank, WORKERS, to).filter(|turned| turned.to < turned.from)
        };
        let crowded = needs.iter().filter(|need| need.sums.share(need.sums.crowded_ns) > STALL);
        let moves: Vec<Move> = crowded.filter_map(fewer).collect();
        let most = needs.iter().map(|need| need.sums.share(need.sums.crowded_ns)).fold(0.0, f64::max);
        let high = 1.0 / (1.0 - most).max(0.1) - 1.0;
        (!moves.is_empty()).then(|| Proposal {
            kind: Kind::Ease,
            knob: WORKERS,
            moves,
            predicted: Estimate { value: 0.0, low: 0.0, high },
            shortfall: 0.0,
            clear: false,
            why: format!(
                "{} of training went by with work that no CPU was free for, so fewer workers may be faster",
                percent_in_words(most)
            ),
        })
    }

    /// Back towards what the script had, where that costs nothing.
    fn release(&self, stall: f64) -> Option<Proposal> {
        if self.mode != TuneMode::Act {
            return None;
        }
        let over = self.headroom.exceeded(&self.job);
        let resigned = |knob| self.patience.get(&(knob, Kind::Raise)).is_some_and(super::Patience::resigned);
        let calm = stall < NO_STALL && self.now_ns > self.waited_ns.saturating_add(CALM_NS);
        let useless = stall >= STALL && resigned(WORKERS) && resigned(PREFETCH);
        let absurd = crate::budget::Headroom::contradiction(&self.budgets).is_some();
        if absurd || !(calm || useless || over.is_some() && stall < NO_STALL) {
            return None;
        }
        LOADER_KNOBS.into_iter().filter(|knob| self.ready(knob, Kind::Release)).find_map(|knob| {
            let lower = |rank: &Rank| {
                let held = rank.knob(knob).filter(|knob| knob.state == KnobState::Applied)?;
                let script = self.floors.get(&(rank.rank, held.loader, held.name.clone()));
                let floor = if over.is_some() { 1 } else { script.copied().unwrap_or(held.initial) };
                let address = (rank.rank, held.loader, held.name.clone());
                let floor = floor.max(self.too_few.get(&address).map_or(0, |few| few + 1));
                // Workers without a batch each would be idle.
                let floor =
                    if knob == PREFETCH { floor.max(rank.value(WORKERS).unwrap_or(1)) } else { floor };
                let peak = self.peaks.get(&rank.rank).filter(|_| knob == WORKERS && !useless);
                let floor = floor.max(peak.map_or(0, |(busy, _)| busy.ceil().min(1e6) as u64));
                let above = held.value.checked_sub(floor).filter(|above| *above > 0)?;
                let step = self.limit(knob, Kind::Release, above.div_ceil(2)).min(above);
                turned(rank, knob, held.value - step).filter(|turned| turned.to < turned.from)
            };
            let moves: Vec<Move> = self.job.training().filter_map(lower).collect();
            (!moves.is_empty()).then(|| Proposal {
                kind: Kind::Release,
                knob,
                moves,
                predicted: Estimate { value: 0.0, low: -probe::DELTA / 2.0, high: 0.0 },
                shortfall: 0.0,
                clear: false,
                why: match &over {
                    Some(over) => format!("{over}; less may do as well"),
                    None if calm => format!(
                        "training has not waited for data for ten minutes ({} now), so less may do as well",
                        percent_in_words(stall)
                    ),
                    None => "more did not help, so less may do as well".to_owned(),
                },
            })
        })
    }

    /// A prefetch that nobody asked for, of as many batches for each worker as the script has them, beside workers that
    /// were set here: torch's own rule set it.
    fn follows(&self, prefetch: &Knob) -> bool {
        let Some(rank) = self.job.ranks.get(&prefetch.rank) else { return false };
        let mut of_loader = rank.knobs.iter().filter(|knob| knob.loader == prefetch.loader);
        prefetch.name == PREFETCH
            && prefetch.requested.is_none()
            && of_loader.any(|workers| {
                let same = prefetch.value.saturating_mul(workers.initial)
                    == prefetch.initial.saturating_mul(workers.value);
                workers.name == WORKERS && workers.set_by == super::turn::CONTROLLER && same
            })
    }

    /// Takes notice of values that somebody else set.
    pub(super) fn note_values(&mut self, out: &mut crate::Outcome) {
        let mut seen = BTreeMap::new();
        let mut theirs = Vec::new();
        // One of no loader, as the interval of checkpoints, changes nothing of how batches are made, and follows a rule of its own.
        let of_loaders = |knob: &&Knob| knob.loader.is_some();
        for knob in self.job.ranks.values().flat_map(|rank| &rank.knobs).filter(of_loaders) {
            let address = (knob.rank, knob.loader, knob.name.clone());
            let known = self.values.get(&address).copied();
            // Who asks for the value that is in force already wants it to stay.
            let pending = knob.requested.is_some_and(|value| value != knob.value);
            let held = !pending && held_by_another(&mut self.set_by, self.looked, &address, knob);
            if held || known.is_some_and(|known| known != knob.value) {
                let by = if self.follows(knob) { super::turn::CONTROLLER } else { &knob.set_by };
                theirs.push((address.clone(), knob.value, by.to_owned()));
            }
            if known.is_none() {
                let theirs = !knob.set_by.is_empty() && knob.set_by != super::turn::CONTROLLER;
                let floor = if theirs { knob.value } else { knob.initial.min(knob.value) };
                self.floors.insert(address.clone(), floor);
            }
            seen.insert(address, knob.value);
        }
        // The first batches come out of a queue that was filled before training began.
        let first = self.values.is_empty() && !seen.is_empty();
        self.values = seen;
        self.looked = true;
        if first {
            self.settings_changed();
        }
        for (address, value, by) in theirs {
            self.settings_changed();
            if by == super::turn::CONTROLLER {
                continue;
            }
            self.leave_to(&by, &address, value, out);
        }
    }
}

/// Whether somebody else asked for the knob's value since the last look, where there was one. `set_by`: who had until then.
fn held_by_another(
    set_by: &mut BTreeMap<super::Address, String>,
    looked: bool,
    address: &super::Address,
    knob: &Knob,
) -> bool {
    let before = set_by.insert(address.clone(), knob.set_by.clone());
    let another = !knob.set_by.is_empty() && knob.set_by != super::turn::CONTROLLER;
    another && before.map_or(looked, |before| before != knob.set_by)
}

fn to_high(needs: &[Need]) -> f64 {
    let most = needs.iter().map(Need::stall).fold(0.0, f64::max);
    1.0 / (1.0 - most).max(0.02) - 1.0
}

/// Steps until a change shows: all that was under way at the more of both settings.
pub(super) fn drain(job: &Job, proposal: &Proposal) -> u32 {
    let deeper = proposal.moves.iter().filter(|turned| turned.knob == PREFETCH).map(|turned| turned.to).max();
    job.drain().max(deeper.unwrap_or(0).min(4096) as u32)
}
