//! A larger cache: proposed by what the present one has saved, kept where its hits are seen to be worth it.
//!
//! A cache is never emptied for a proof. A raise fills while training goes on, and until the samples that came in are drawn
//! again, in the next pass, nothing can be proven. From then on the shuffle itself is the experiment: some batches have more
//! samples that must be read than others ([`Reads`]). Beside it stands the pace before and after, as long as nothing else was
//! turned in between. Other knobs are tried meanwhile.

use super::probe::{self, DELTA, Why};
use super::seed::{CACHE, Kind, Need, Proposal, STALL, seconds};
use super::trade::pass_draws;
use super::turn::{Move, Status, Turn, taken_by_another};
use super::useless::reads_of;
use super::{Address, Controller, RELIEF_NS, Work, audit};
use crate::Outcome;
use crate::cache::{LargerCache, larger_cache};
use crate::ranks::{self, Job, Rank};
use crate::reads::{Reads, Since};
use crate::stats::{self, Figure, Gain};
use crate::whatif::{Change, Model, predict};
use stallscope_model::{Act, CacheCurve, CacheUses, Estimate, KnobState, Phase};
use stallscope_units::percent_in_words;

/// Of the memory that is left, what a cache may take.
pub(super) const OF_FREE: f64 = 0.8;
/// Whether a larger cache is worth its memory is asked so often, and after each answer that it is not half as often, as the model's
/// answer takes CPU.
const ASK_NS: u64 = 10_000_000_000;
const SELDOM_NS: u64 = 320_000_000_000;
/// Of the rise in hits that was expected, as much as has to be there before it is judged.
const RISEN: f64 = 0.5;
/// Draws, in passes over the data, after which a raise must have shown: one pass to fill, one to be used, and some on top.
const PASSES: f64 = 2.2;
/// Steps between two looks at a cache that is used, a quarter of those seen where that is more, and the most looks. It costs nothing
/// while it is looked at, and what is seen late is seen the more exactly.
const LOOK_STEPS: u32 = 48;
const MOST_LOOKS: u32 = 16;
/// Of as many steps a quarter is no more than is remembered of them; of single batches more is.
const SEEN_STEPS: u32 = 600;
/// Steps that a raise is proposed from.
const FEWEST_STEPS: u32 = 30;
/// Simulations behind one prediction, and what its interval leaves out at each end where there is none.
const REPLICAS: usize = 3;
const ALPHA: f64 = 0.025;

/// A raise that has yet to prove itself.
#[derive(Clone, Debug)]
pub(super) struct Growth {
    pub(super) decision: u64,
    pub(super) proposal: Proposal,
    /// Pace with the smaller cache, for as long as nothing else is being turned; and reads of a batch.
    before: Option<Figure>,
    reads_before: Option<Reads>,
    /// Share of the draws that saved a read, and by how much it is expected to rise.
    reused_before: f64,
    rise: f64,
    /// Draws of one pass over the data.
    pass_draws: f64,
    stage: Stage,
}

#[derive(Clone, Debug)]
enum Stage {
    Turning(Turn),
    /// In force, with the cumulative uses at that moment.
    Filling(CacheUses),
    /// Hits have risen; with the batches since.
    Used {
        since_ns: u64,
        looks: u32,
        steps: u32,
        batches: Since,
    },
}

enum Judged {
    Open,
    Keep(Gain),
    Undo(Option<Gain>, Why),
}

impl Controller {
    /// A larger cache, where training waits and the model expects it to help, and what that is based on.
    pub(super) fn pick_cache(&mut self) -> Option<(Proposal, LargerCache, String)> {
        if self.growth.is_some() || self.now_ns < self.ask_cache_ns || !self.ready(CACHE, Kind::Raise) {
            return None;
        }
        self.ask_cache_ns = self.now_ns.saturating_add(ASK_NS);
        let found = self.expected_cache(self.free_bytes(0))?;
        if found.0.predicted.value < DELTA {
            self.cache_pause_ns = (2 * self.cache_pause_ns).clamp(ASK_NS, SELDOM_NS);
            self.ask_cache_ns = self.now_ns.saturating_add(self.cache_pause_ns);
            return None;
        }
        self.cache_pause_ns = 0;
        Some(found)
    }

    /// A larger cache within so many bytes, where training waits, and what it is expected to bring.
    pub(super) fn expected_cache(&self, free: u64) -> Option<(Proposal, LargerCache, String)> {
        if crate::budget::Headroom::contradiction(&self.budgets).is_some() {
            return None;
        }
        let needs = self.job.training().filter_map(|rank| Need::of(rank, self.since_ns, self.settle));
        let worst =
            needs.max_by(|a, b| a.stall().total_cmp(&b.stall())).filter(|need| need.stall() > STALL)?;
        let groups = self.job.groups(self.since_ns, self.settle);
        let figure = ranks::figure(&groups, u32::MAX)?;
        // The rise is judged after a pass over the data: there is no queue to wait for.
        if groups.iter().any(|rank| crate::window::steps(rank) < FEWEST_STEPS) {
            return None;
        }
        let rank = self.cached_rank()?;
        let profile = self.profiles.training().into_iter().find(|profile| profile.rank == rank.rank)?;
        let uses = self.draws.steady()?;
        let size = |most: u64| larger(&self.job, &uses, rank, self.limit(CACHE, Kind::Raise, free).min(most));
        let made = |most: u64| proposal(&self.job, &size(most)?);
        let mut proposal = self.shrink(made(u64::MAX)?, made).ok()?;
        let size = size(proposal.step().saturating_mul(proposal.moves.len() as u64))?;
        let then = reads_of(rank, self.since_ns).and_then(|reads| {
            let share = (1.0 - size.share) / (1.0 - size.share_now).max(1e-3);
            reads.longer(reads.reads * share, None, ALPHA)
        });
        let by_law = then.map(|longer| {
            let gain = |longer: f64| worst.step_ns(0.0) / worst.step_ns(longer).max(1.0) - 1.0;
            Estimate { value: gain(longer.value), low: gain(longer.high), high: gain(longer.low) }
        });
        // The law costs nothing: the model is asked where there is something to gain.
        if by_law.is_some_and(|gain| gain.high < DELTA) {
            return None;
        }
        let foreseen = || {
            let model = Model::new(profile);
            let change = Change { cached_share: Some(size.share), ..Change::default() };
            predict(&model, &change, &model.looks(REPLICAS)).ok().map(|found| found.gain)
        };
        let foreseen = if profile.too_little().is_none() { foreseen() } else { None };
        proposal.predicted = foreseen.or(by_law)?;
        Some((proposal, size, audit::saw(&worst, &figure)))
    }

    /// What a trial beside it takes again, or takes as soon as its values are in force.
    pub(super) fn reserved_bytes(&self) -> u64 {
        match &self.work {
            Work::Probing(probe) if !probe.is_with() || matches!(probe.stage, probe::Stage::Turning(_)) => {
                self.headroom.bytes_of(&self.job, &probe.proposal.deltas())
            }
            _ => 0,
        }
    }

    /// That the cache may take, where so much more were free.
    pub(super) fn free_bytes(&self, freed: u64) -> u64 {
        let reserved = self.reserved_bytes();
        let left = |all: u64, used: u64| all.saturating_add(freed).saturating_sub(used);
        let used = self.job.memory_bytes().saturating_add(self.job.promised_bytes()).saturating_add(reserved);
        let there = left(self.headroom.node.memory_available_bytes, reserved);
        let within = self.budgets.memory_bytes.map_or(there, |budget| left(budget, used).min(there));
        let free = (within as f64 * OF_FREE) as u64;
        let of_caches = |most: u64| most.saturating_sub(self.job.caches_bytes());
        self.budgets.cache_bytes.map_or(free, |most| of_caches(most).min(free))
    }

    pub(super) fn grow(&mut self, proposal: Proposal, size: &LargerCache, saw: &str, out: &mut Outcome) {
        let Some(rank) = self.cached_rank() else { return };
        let Some(reused_before) = self.draws.steady().and_then(|recent| recent.share(recent.reuses())) else {
            return;
        };
        let Some(pass_draws) = pass_draws(rank, reused_before) else { return };
        let reads_before = reads_of(rank, self.since_ns);
        self.decisions += 1;
        out.audit.extend(audit::asked(Act::Request, self.decisions, self.now_ns, &proposal, saw));
        let turn = Turn { moves: proposal.moves.clone(), asked_ns: self.now_ns };
        out.actions.extend(turn.actions(self.decisions));
        let before = ranks::figure(&self.job.groups(self.since_ns, self.settle), u32::MAX);
        // Memory that gets short takes it back first.
        self.raised.push(proposal.clone());
        self.growth = Some(Growth {
            decision: self.decisions,
            proposal,
            before,
            reads_before,
            reused_before,
            rise: size.share - size.share_now,
            pass_draws,
            stage: Stage::Turning(turn),
        });
    }

    /// Begins to raise the cache, where that is worth while now. It fills beside whatever else is tried.
    pub(super) fn consider_cache(&mut self, out: &mut Outcome) -> bool {
        let relieved =
            self.relieved_ns.is_some_and(|relieved_ns| self.now_ns < relieved_ns.saturating_add(RELIEF_NS));
        let training = self.job.training().all(|rank| rank.phase == Some(Phase::Training));
        if relieved || !training || self.rollbacks.frozen(self.now_ns) || self.blind().is_some() {
            return false;
        }
        let Some((proposal, size, saw)) = self.pick_cache() else { return false };
        self.grow(proposal, &size, &saw, out);
        true
    }

    fn cached_rank(&self) -> Option<&Rank> {
        self.job.training().find(|rank| rank.cache().is_some())
    }

    /// The hits of the larger cache have come, and nothing else is turned until it is known what they are worth.
    pub(super) fn judges_growth(&self) -> bool {
        self.growth.as_ref().is_some_and(|growth| matches!(growth.stage, Stage::Used { .. }))
    }

    /// What became of the raise under way, once a second. `alone`: nothing else is being tried, so that it may be undone. True when
    /// its hits come now: whatever is being tried meanwhile has windows of both sides of that.
    pub(super) fn go_on_growing(&mut self, alone: bool, out: &mut Outcome) -> bool {
        let Some(mut growth) = self.growth.take() else { return false };
        let mut rises = false;
        growth.before = growth.before.filter(|_| alone);
        let uses = self.job.cache_uses();
        let turning = matches!(growth.stage, Stage::Turning(_));
        if let Some(gone) =
            growth.proposal.moves.iter().find(|turned| alone && !turning && turned.find(&self.job).is_none())
        {
            let why = format!("rank {} or its knob {} is gone", gone.rank, gone.knob);
            self.undo_growth(growth, None, String::new(), why, out);
            return false;
        }
        match &mut growth.stage {
            Stage::Turning(turn) => match turn.status(&self.job, self.now_ns) {
                Status::Waiting(_) => {}
                Status::InForce => growth.stage = Stage::Filling(uses),
                Status::Refused(why) | Status::Taken(why) | Status::Gone(why) if alone => {
                    self.refused_growth(growth, why, out);
                    return false;
                }
                _ => {}
            },
            Stage::Filling(begun) => {
                let reused = self.draws.recent().and_then(|recent| recent.share(recent.reuses()));
                let drawn = uses.since(begun).draws() as f64;
                if reused.is_some_and(|reused| reused >= growth.reused_before + RISEN * growth.rise) {
                    let batches = Since::new(self.now_ns, self.cached_rank());
                    growth.stage =
                        Stage::Used { since_ns: self.now_ns, looks: 0, steps: LOOK_STEPS, batches };
                    rises = true;
                } else if alone && drawn > PASSES * growth.pass_draws {
                    let why = format!(
                        "the larger cache saves the reads of {} of the samples, and the smaller one did of {}",
                        percent_in_words(reused.unwrap_or(0.0)),
                        percent_in_words(growth.reused_before)
                    );
                    self.undo_growth(growth, None, String::new(), why, out);
                    return false;
                }
            }
            Stage::Used { .. } if !alone => {}
            Stage::Used { .. } => match self.judge_growth(&mut growth) {
                (Judged::Open, _) => {}
                (Judged::Keep(gain), saw) => {
                    self.keep_growth(growth, gain, saw, out);
                    return false;
                }
                (Judged::Undo(gain, why), saw) => {
                    self.undo_growth(growth, gain, saw, audit::why(why).to_owned(), out);
                    return false;
                }
            },
        }
        self.growth = Some(growth);
        rises
    }

    fn judge_growth(&mut self, growth: &mut Growth) -> (Judged, String) {
        let Stage::Used { since_ns, looks, steps, batches } = &mut growth.stage else {
            return (Judged::Open, String::new());
        };
        self.cached_rank().into_iter().for_each(|rank| batches.take(rank));
        let settle = self.job.drain();
        let groups = self.job.groups(*since_ns, settle);
        let seen = groups.iter().map(|rank| crate::window::steps(rank)).min().unwrap_or(0);
        let seen = seen.max(if seen > LOOK_STEPS { batches.count() } else { 0 });
        let figure = ranks::figure(&groups, u32::MAX).filter(|_| seen >= *steps);
        let (Some(figure), Some(rank)) = (figure, self.cached_rank()) else {
            return (Judged::Open, String::new());
        };
        let more = if seen < SEEN_STEPS || seen == batches.count() { seen / 4 } else { 0 };
        (*looks, *steps) = (*looks + 1, seen + more.max(LOOK_STEPS));
        let alpha = self.patience.get(&(CACHE, Kind::Raise)).cloned().unwrap_or_default().alpha()
            / f64::from(MOST_LOOKS);
        let (since_ns, over, all) = (*since_ns, *looks >= MOST_LOOKS, batches.reads());
        let pace = growth.before.and_then(|before| stats::compare(&[before, figure], self.restless, alpha));
        let reads = reads_of(rank, since_ns);
        let before = all.zip(growth.reads_before);
        let before = before.and_then(|(reads, before)| reads.longer(before.reads, Some(&before), alpha));
        let shuffle = Need::of(rank, since_ns, settle).zip(before).map(|(need, before)| {
            let gain = |longer: f64| need.step_ns(longer) / need.step_ns(0.0).max(1.0) - 1.0;
            Gain { value: gain(before.value), low: gain(before.low), high: gain(before.high) }
        });
        // What the loader takes, before and after, shows it where no batch is left that has to read, and other knobs were tried.
        let loader = growth.reads_before.zip(reads).zip(Need::of(rank, since_ns, settle));
        let loader = loader.map(|((before, now), need)| {
            let [before, now] = [before, now].map(|reads| reads.made_ns(alpha));
            let gain =
                |before_ns: f64, now_ns: f64| need.step_of(before_ns) / need.step_of(now_ns).max(1.0) - 1.0;
            Gain {
                value: gain(before.value, now.value),
                low: gain(before.low, now.high),
                high: gain(before.high, now.low),
            }
        });
        let pace = pace.or(loader);
        let saw = saw(reads.as_ref(), growth, &figure);
        let little = |gain: Gain| gain.high < DELTA;
        let judged = match (shuffle, pace) {
            (Some(gain), _) if gain.low >= DELTA => Judged::Keep(gain),
            (shuffle, Some(gain)) if gain.low >= DELTA && !shuffle.is_some_and(little) => Judged::Keep(gain),
            (Some(gain), pace) if little(gain) && pace.is_none_or(little) => {
                Judged::Undo(Some(gain), Why::TooLittle)
            }
            (None, Some(gain)) if little(gain) => Judged::Undo(Some(gain), Why::TooLittle),
            (shuffle, pace) if over => Judged::Undo(shuffle.or(pace), Why::NotClear),
            _ => Judged::Open,
        };
        (judged, saw)
    }

    fn keep_growth(&mut self, growth: Growth, gain: Gain, saw: String, out: &mut Outcome) {
        let mut event = audit::about(Act::Keep, growth.decision, self.now_ns, &growth.proposal);
        event.saw = saw;
        event.measured = audit::measured(gain);
        event.why = format!("the gain is proven: {}", audit::gain(gain));
        out.audit.push(event);
        self.drift.cache_turned();
        let step = growth.proposal.step();
        self.patience(&growth.proposal).keep(step);
    }

    fn undo_growth(
        &mut self,
        growth: Growth,
        gain: Option<Gain>,
        saw: String,
        why: String,
        out: &mut Outcome,
    ) {
        let mut event = audit::about(Act::Undo, growth.decision, self.now_ns, &growth.proposal);
        event.saw = saw;
        event.measured = gain.and_then(audit::measured);
        event.why = why;
        out.audit.push(event);
        self.drift.cache_turned();
        self.raised.retain(|raised| *raised != growth.proposal);
        let jitter = self.random.unit();
        self.give_up(&growth.proposal, jitter);
        let moves =
            growth.proposal.moves.iter().filter_map(|turned| turned.what_is_left(&self.job)).collect();
        self.turn_to(growth.decision, moves, out);
    }

    /// Not all ranks have taken it: those that have give it back, and values of others stay.
    fn refused_growth(&mut self, growth: Growth, why: String, out: &mut Outcome) {
        let mut event = audit::about(Act::Refused, growth.decision, self.now_ns, &growth.proposal);
        event.why = why;
        out.audit.push(event);
        self.raised.retain(|raised| *raised != growth.proposal);
        self.patience.entry((CACHE, Kind::Raise)).or_default().leave_alone(self.now_ns);
        let ours =
            growth.proposal.moves.iter().filter(|turned| taken_by_another(turned, &self.job).is_none());
        let moves = ours.filter_map(|turned| turned.what_is_left(&self.job)).collect();
        self.turn_to(growth.decision, moves, out);
    }

    /// The raise under way ends without proof.
    pub(super) fn drop_growth(&mut self, why: &str, out: &mut Outcome) {
        if let Some(growth) = self.growth.take() {
            self.undo_growth(growth, None, String::new(), why.to_owned(), out);
        }
    }

    /// Somebody else has turned this knob: where it is one that the raise under way turned, theirs stays, and the raise ends.
    pub(super) fn leave_growth_to(&mut self, by: &str, address: &Address, out: &mut Outcome) {
        let is_theirs =
            |turned: &Move| (turned.rank, turned.loader, &turned.knob) == (address.0, address.1, &address.2);
        if let Some(mut growth) = self.growth.take_if(|growth| growth.proposal.moves.iter().any(is_theirs)) {
            let raised = growth.proposal.clone();
            growth.proposal.moves.retain(|turned| !is_theirs(turned));
            self.raised.retain(|other| *other != raised);
            let why = format!("{by} turned the knob meanwhile: theirs stays");
            self.undo_growth(growth, None, String::new(), why, out);
        }
    }
}

pub(super) fn larger(job: &Job, uses: &CacheUses, rank: &Rank, free: u64) -> Option<LargerCache> {
    let at = (rank.rank, rank.loader?);
    let state = rank.cache()?.state.filter(|state| state.capacity_bytes > 0)?;
    // Ranks that share a cache have one curve, which one of them reports.
    let known = |curve: &&CacheCurve| !curve.is_mixed() && !curve.points().is_empty();
    let curve = job.training().filter_map(|rank| Some(&rank.cache()?.curve)).find(known);
    larger_cache(at, uses, &state, curve, &rank.knobs, free)
}

/// Each rank that trains gets its part of what the cache is to have more.
pub(super) fn proposal(job: &Job, size: &LargerCache) -> Option<Proposal> {
    let more = size.to_bytes.checked_sub(size.capacity_bytes).filter(|more| *more > 0)?;
    let ranks: Vec<&Rank> = job.training().filter(|rank| rank.cache().is_some()).collect();
    let each = more / ranks.len().max(1) as u64;
    let moves: Vec<Move> = ranks
        .iter()
        .filter_map(|rank| {
            let knob = rank.knob(CACHE).filter(|knob| knob.state != KnobState::Unavailable)?;
            let to = knob.value.saturating_add(each).min(knob.max);
            (to > knob.value).then(|| Move {
                rank: rank.rank,
                loader: knob.loader,
                knob: CACHE.to_owned(),
                from: knob.value,
                to,
            })
        })
        .collect();
    (!moves.is_empty()).then(|| Proposal {
        kind: Kind::Raise,
        knob: CACHE,
        moves,
        predicted: Default::default(),
        shortfall: 0.0,
        clear: false,
        why: size.why(),
    })
}

fn saw(reads: Option<&Reads>, growth: &Growth, figure: &Figure) -> String {
    let before = growth
        .before
        .as_ref()
        .map_or_else(String::new, |before| format!("{} before and ", audit::pace(before)));
    let pace = format!("{before}{} with it", audit::pace(figure));
    match reads.and_then(|reads| Some((reads, growth.reads_before.as_ref()?))) {
        Some((reads, before)) => format!(
            "{:.1} samples of a batch were read in place of {:.1}, and each adds {} to the {} that a batch takes; {pace}",
            reads.reads,
            before.reads,
            seconds(reads.each_ns().or(before.each_ns()).unwrap_or(0.0)),
            seconds(reads.batch_ns)
        ),
        None => pace,
    }
}
