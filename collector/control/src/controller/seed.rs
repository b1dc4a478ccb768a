//! What is worth trying next, by the utilisation law (Denning & Buzen, 1978): a batch that takes a worker D, wanted
//! every X, keeps D / X workers busy. The model only proposes; whether it is right is seen by trying.

use super::turn::Move;
use crate::fit::weight;
use crate::ranks::{Job, Rank};
use crate::stats;
use crate::window::{StepGroup, Sums, newest, steps};
use stallscope_model::{CONTROLLED_KNOBS, Estimate};

/// Waiting for data, share of training: more than this is worth doing something about, less than [`NO_STALL`] is none.
pub(crate) const STALL: f64 = 0.02;
pub(crate) const NO_STALL: f64 = 0.005;
/// Workers beyond what the law asks for, because it knows means only. What is too many is given back later.
const SPARE: f64 = 1.7;
/// Of all workers: with more of them at work than that, only more workers help.
const BUSY: f64 = 0.95;
/// Batches ahead for each worker where the script does not say: PyTorch's own default.
const AHEAD: u64 = 2;
/// A batch's service time beyond its mean that prefetch is to bridge, as a quantile.
const TAIL: f64 = 0.99;
/// Waits that leave no doubt, share of training, and the gain that the law then has to expect.
const CLEAR_STALL: f64 = 0.25;
const CLEAR_GAIN: f64 = 0.25;
/// Share of the busy workers of the rank that waits most from which on another rank is as short of them.
const ALIKE: f64 = 0.75;
/// Seconds of steps that a proposal is made from.
const LOOK_NS: u64 = 30_000_000_000;

/// The loader's own: what they do shows as soon as the batches under way are taken.
pub(crate) const LOADER_KNOBS: [&str; 3] = [WORKERS, PREFETCH, FETCHERS];
pub(crate) const WORKERS: &str = CONTROLLED_KNOBS[0];
pub(crate) const PREFETCH: &str = CONTROLLED_KNOBS[1];
pub(crate) const CACHE: &str = CONTROLLED_KNOBS[2];
pub(crate) const CHECKPOINTS: &str = CONTROLLED_KNOBS[3];
pub(crate) const FETCHERS: &str = CONTROLLED_KNOBS[4];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// More of a knob, for a gain.
    Raise,
    /// Less of it, for a gain: workers take CPU from one another and from training.
    Ease,
    /// From a rank that hardly waits to one that does, within the same budget.
    Shift,
    /// Less of it, because it does not help.
    Release,
    /// Less of another knob, whose memory it takes.
    Swap,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Proposal {
    pub(crate) kind: Kind,
    /// Which knob this is about; `moves` may carry prefetch along with workers.
    pub(crate) knob: &'static str,
    pub(crate) moves: Vec<Move>,
    /// Expected of the ranks that are turned; for the job where they are what holds it up.
    pub(crate) predicted: Estimate,
    /// By how much the present setting can't keep up, as a share, by the law.
    pub(crate) shortfall: f64,
    /// A few steps show that it is what training waits for.
    pub(crate) clear: bool,
    pub(crate) why: String,
}

impl Proposal {
    /// Largest step of its own knob.
    pub(crate) fn step(&self) -> u64 {
        let own = self.moves.iter().filter(|turned| turned.knob == self.knob);
        own.map(|turned| turned.to.abs_diff(turned.from)).max().unwrap_or(0)
    }
}

/// What a rank's loader does and would need.
#[derive(Clone, Debug)]
pub(crate) struct Need {
    pub(crate) rank: u32,
    pub(crate) sums: Sums,
    pub(crate) workers: Option<u64>,
    pub(crate) prefetch: Option<u64>,
    /// A batch's, of one worker, as workers are now.
    service_ns: Option<f64>,
    /// Of that, what is left where a worker never has to wait for a CPU.
    work_ns: Option<f64>,
    tail_ns: f64,
    /// Training's own work on a batch.
    own_ns: f64,
    /// What a gain is counted from.
    base: Base,
}

/// A step as it is by now: a job that has just begun gets faster by itself, and is not credited to a knob with that.
#[derive(Clone, Copy, Debug)]
struct Base {
    /// Of a step, without the waits for other ranks.
    step_ns: f64,
    /// Of that, training's own work.
    own_ns: f64,
}

impl Base {
    fn of(sums: &Sums) -> Base {
        Base {
            step_ns: sums.step_ns() - sums.peer_ns / sums.steps,
            own_ns: ((sums.wall_ns - sums.stall_ns - sums.peer_ns) / sums.steps).max(1.0),
        }
    }

    /// Of the newer half of these steps, if they are faster than all of them.
    fn of_newer(groups: &[StepGroup]) -> Base {
        let all = Base::of(&Sums::of(groups));
        let newer = Base::of(&Sums::of(newest(groups, steps(groups).div_ceil(2))));
        if newer.step_ns < all.step_ns { newer } else { all }
    }
}

impl Need {
    pub(crate) fn of(rank: &Rank, from_ns: u64, settle: u32) -> Option<Need> {
        let groups = rank.recent_groups(from_ns, settle, LOOK_NS);
        let sums = Sums::of(&groups);
        if sums.steps < 10.0 || sums.wall_ns <= 0.0 {
            return None;
        }
        let from_ns = from_ns.max(rank.seen_until_ns.saturating_sub(LOOK_NS));
        // How long each took, and how many it stands for.
        let mut times: Vec<(f64, f64)> = rank
            .services
            .iter()
            .filter(|service| service.start_ns >= from_ns)
            .map(|service| (service.ready_ns.saturating_sub(service.start_ns) as f64, weight(service)))
            .collect();
        // What has just got slower counts as what it is now.
        let last = stats::weighted_mean(&times[times.len().saturating_sub(16)..]);
        let enough = times.len() >= 8;
        let service_ns =
            stats::weighted_mean(&times).zip(last).map(|(all, last)| all.max(last)).filter(|_| enough);
        let tail_ns = stats::weighted_quantile(&mut times, TAIL);
        let work: Vec<(f64, f64)> = rank
            .services
            .iter()
            .filter(|service| service.start_ns >= from_ns)
            .map(|service| {
                let made_ns = service.ready_ns.saturating_sub(service.start_ns);
                (made_ns.saturating_sub(service.runnable_ns) as f64, weight(service))
            })
            .collect();
        Some(Need {
            rank: rank.rank,
            workers: rank.value(WORKERS),
            prefetch: rank.value(PREFETCH),
            service_ns,
            work_ns: stats::weighted_mean(&work).filter(|_| enough),
            tail_ns,
            own_ns: Base::of(&sums).own_ns,
            base: Base::of_newer(&groups),
            sums,
        })
    }

    pub(crate) fn stall(&self) -> f64 {
        self.sums.stall_share()
    }

    fn at_work(&self) -> f64 {
        let workers = self.workers.unwrap_or(1);
        workers.min(self.prefetch.unwrap_or(workers)).max(1) as f64
    }

    /// Workers that the law keeps busy; without a batch's time, those that would not let training wait if each
    /// worked as well as now.
    pub(crate) fn busy_workers(&self) -> f64 {
        match self.service_ns {
            Some(service_ns) => service_ns / self.own_ns,
            None => self.at_work() / (1.0 - self.stall()).max(0.1),
        }
    }

    /// Whether so many workers would do if they did not have to wait for a CPU.
    pub(crate) fn would_do(&self, workers: u64) -> bool {
        self.work_ns.is_none_or(|work_ns| work_ns / self.own_ns <= workers as f64)
    }

    /// How long a step takes where a batch takes a worker so much longer than now, as a share, by the law: as long as the
    /// workers need for it, or training's own work if that takes longer. Without workers each batch is made between two steps.
    pub(crate) fn step_ns(&self, longer: f64) -> f64 {
        self.step_of(self.service_ns.unwrap_or(0.0) / self.at_work() * (1.0 + longer).max(0.0))
    }

    /// The same where the loader takes so long for a batch.
    pub(crate) fn step_of(&self, made_ns: f64) -> f64 {
        match self.workers {
            None | Some(0) => self.own_ns + made_ns,
            Some(_) => made_ns.max(self.own_ns),
        }
    }

    /// Workers that would keep up, and prefetch that would bridge a slow batch.
    fn wanted_workers(&self) -> u64 {
        let now = self.workers.unwrap_or(1);
        let lawful = (SPARE * self.busy_workers()).ceil();
        (lawful.clamp(0.0, 1e6) as u64).max(now + 1)
    }

    /// Batches that training takes while one batch in a hundred is being made.
    fn tail_batches(&self) -> u64 {
        let beyond = self.service_ns.map_or(0.0, |service_ns| (self.tail_ns - service_ns) / self.own_ns);
        beyond.clamp(0.0, 1e6).ceil() as u64
    }

    fn wanted_prefetch(&self) -> u64 {
        let now = self.prefetch.unwrap_or(1);
        (self.at_work() as u64 + self.tail_batches()).clamp(2 * now, 8 * now)
    }

    /// By the law, workers are not what training waits for.
    fn has_workers(&self) -> bool {
        self.service_ns.is_some() && SPARE * self.busy_workers() <= self.at_work()
    }

    /// Of a step that is as `base` now, with so many workers, were nothing else in the way.
    fn pace_ns(&self, base: &Base, workers: u64) -> f64 {
        let made_ns = match self.service_ns {
            Some(service_ns) => service_ns / workers.max(1) as f64,
            None => base.step_ns * self.at_work() / workers.max(1) as f64,
        };
        made_ns.clamp(base.own_ns, base.step_ns.max(base.own_ns))
    }

    /// The shortest that a step can become with so many workers: each does at most what one of now does.
    fn least_ns(&self, workers: u64) -> f64 {
        let Base { step_ns, own_ns } = self.base;
        let workers = workers.max(1) as f64;
        let made_ns = match self.workers {
            // Training makes each batch itself now, after the one before.
            None | Some(0) => (step_ns - own_ns) / workers,
            Some(_) => step_ns * self.at_work() / workers,
        };
        made_ns.clamp(own_ns, step_ns.max(own_ns))
    }
}

/// Of the job, whose pace is that of its slowest rank, where `turned` says what a rank's would be that gets another number of
/// workers, and `now` what it is.
fn slowest_ns(
    needs: &[Need],
    workers: &[(u32, u64)],
    now: impl Fn(&Need) -> f64,
    turned: impl Fn(&Need, u64) -> f64,
) -> f64 {
    let of = |need: &Need| match workers.iter().find(|(rank, _)| *rank == need.rank) {
        Some((_, workers)) => turned(need, *workers),
        None => now(need),
    };
    needs.iter().map(of).fold(1.0, f64::max)
}

/// Gain of the job when some ranks get other numbers of workers: by the law, and never more than as many workers more can
/// make.
fn gain(needs: &[Need], workers: &[(u32, u64)]) -> Estimate {
    let now = |need: &Need| need.base.step_ns;
    let now_ns = slowest_ns(needs, &[], now, |need, _| need.base.step_ns);
    let then = |need: &Need, workers: u64| need.pace_ns(&need.base, workers).max(need.least_ns(workers));
    let then_ns = slowest_ns(needs, workers, now, then);
    let least_ns = slowest_ns(needs, workers, now, Need::least_ns);
    Estimate { value: now_ns / then_ns - 1.0, low: 0.0, high: now_ns / least_ns - 1.0 }
}

/// By how much the job can't keep up, as a share, which so many workers would end by the law.
fn shortfall(needs: &[Need], workers: &[(u32, u64)]) -> f64 {
    let now = |need: &Need| Base::of(&need.sums).step_ns;
    let then = |need: &Need, workers: u64| need.pace_ns(&Base::of(&need.sums), workers);
    slowest_ns(needs, &[], now, then) / slowest_ns(needs, workers, now, then) - 1.0
}

/// The ranks that hold up the job: those that wait for data about as much as the one that waits most, and those whose
/// workers, by the law, can't keep up either and only seem to, as the others are slower by chance. Who is far from keeping up
/// may not wait at all while the others are slower still, and whose workers are about as busy as those of the rank that
/// waits most will wait next: where a batch is slow now and then, it is a matter of chance which rank has one.
pub(crate) fn slowest(needs: &[Need]) -> Vec<&Need> {
    let most = needs.iter().map(Need::stall).fold(0.0, f64::max);
    let use_of_workers = |need: &Need| need.service_ns.map(|_| need.busy_workers() / need.at_work());
    let first = needs.iter().max_by(|a, b| a.stall().total_cmp(&b.stall()));
    let used = first.and_then(use_of_workers).unwrap_or(f64::INFINITY);
    let holds = |need: &&Need| {
        need.stall() > STALL && need.stall() >= most / 2.0
            || need.stall() > NO_STALL && SPARE * need.busy_workers() > need.at_work()
            || need.service_ns.is_some() && need.busy_workers() > need.at_work()
            || use_of_workers(need).is_some_and(|mine| mine >= ALIKE * used)
    };
    needs.iter().filter(holds).collect()
}

/// Turns `name` of a rank to about `to`; `None` where it can't be turned that way.
pub(crate) fn turned(rank: &Rank, name: &str, to: u64) -> Option<Move> {
    let knob = rank.knob(name)?;
    let usable = knob.state != stallscope_model::KnobState::Unavailable && knob.min <= knob.max;
    let to = usable.then(|| to.clamp(knob.min, knob.max))?;
    (to != knob.value).then(|| Move {
        rank: rank.rank,
        loader: knob.loader,
        knob: knob.name.clone(),
        from: knob.value,
        to,
    })
}

/// With workers goes the prefetch that gives each as many batches ahead as the script gave it, as without, added
/// workers have nothing to do; and what bridges `tail` batches, as they hand over in order.
pub(crate) fn with_prefetch(rank: &Rank, workers: Move, tail: u64) -> Vec<Move> {
    let script = |name| rank.knob(name).map(|knob| knob.initial).filter(|value| *value > 0);
    let each = match (script(PREFETCH), script(WORKERS)) {
        (Some(prefetch), Some(workers)) => (prefetch / workers).clamp(1, 64),
        _ => AHEAD,
    };
    let wanted = workers.to.saturating_mul(each).max(workers.to.saturating_add(tail));
    let wanted = wanted.min(rank.value(PREFETCH).unwrap_or(1).saturating_mul(16));
    let short = rank.value(PREFETCH).is_some_and(|now| now < wanted);
    let prefetch =
        short.then(|| turned(rank, PREFETCH, wanted)).flatten().filter(|turned| turned.to > turned.from);
    [Some(workers), prefetch].into_iter().flatten().collect()
}

/// More workers for the slowest ranks, each at most `limit` more.
pub(crate) fn more_workers(job: &Job, needs: &[Need], limit: impl Fn(u64) -> u64) -> Option<Proposal> {
    let (mut moves, mut workers, mut why) = (Vec::new(), Vec::new(), String::new());
    let (mut enough, mut clear) = (true, true);
    for need in slowest(needs) {
        let Some(now) = need.workers else { continue };
        let to = now + limit(need.wanted_workers() - now);
        let Some(rank) = job.ranks.get(&need.rank) else { continue };
        let Some(more) = turned(rank, WORKERS, to).filter(|turned| turned.to > turned.from) else { continue };
        if why.is_empty() {
            why = need.law();
        }
        workers.push((need.rank, more.to));
        moves.extend(with_prefetch(rank, more, need.tail_batches()));
        enough &= need.has_workers();
        clear &= need.stall() >= CLEAR_STALL && need.service_ns.is_some();
    }
    let mut predicted = gain(needs, &workers);
    let mut shortfall = shortfall(needs, &workers);
    if enough {
        predicted.value = predicted.high / 4.0;
        shortfall = predicted.value;
    }
    (!moves.is_empty()).then_some(Proposal {
        kind: Kind::Raise,
        knob: WORKERS,
        moves,
        predicted,
        shortfall,
        clear: clear && shortfall >= CLEAR_GAIN,
        why,
    })
}

/// More batches ahead for the slowest ranks.
pub(crate) fn more_prefetch(job: &Job, needs: &[Need], limit: impl Fn(u64) -> u64) -> Option<Proposal> {
    let (mut moves, mut ranks, mut why) = (Vec::new(), Vec::new(), String::new());
    for need in slowest(needs) {
        let Some(now) = need.prefetch else { continue };
        // Workers that are never idle have no batch to spare, however many may wait.
        if need.busy_workers() > BUSY * need.at_work() && need.prefetch >= need.workers.map(|now| 2 * now) {
            continue;
        }
        let to = now + limit(need.wanted_prefetch() - now);
        let Some(rank) = job.ranks.get(&need.rank) else { continue };
        let Some(more) = turned(rank, PREFETCH, to).filter(|turned| turned.to > turned.from) else {
            continue;
        };
        if why.is_empty() {
            why = need.tail();
        }
        ranks.push((need.rank, u64::MAX >> 12));
        moves.push(more);
    }
    // How much of the waits it bridges depends on how they are spread, which is not modelled: half of them, where
    // workers are not what is missing first.
    let most = gain(needs, &ranks).high;
    let share = if slowest(needs).iter().all(|need| need.has_workers()) { 0.5 } else { 0.1 };
    let predicted = Estimate { value: share * most, low: 0.0, high: most };
    let shortfall = predicted.value;
    (!moves.is_empty()).then_some(Proposal {
        kind: Kind::Raise,
        knob: PREFETCH,
        moves,
        predicted,
        shortfall,
        clear: false,
        why,
    })
}

impl Need {
    fn law(&self) -> String {
        match self.service_ns {
            Some(service_ns) => format!(
                "a worker takes {} for a batch and training would take one every {}, which keeps {:.1} workers busy",
                seconds(service_ns),
                seconds(self.own_ns),
                service_ns / self.own_ns
            ),
            None => "training waits for data, and how long a batch takes a worker is not known".to_owned(),
        }
    }

    fn tail(&self) -> String {
        match self.service_ns {
            Some(service_ns) => format!(
                "one batch in a hundred takes {} instead of {}, and {} batches ahead bridge {}",
                seconds(self.tail_ns),
                seconds(service_ns),
                self.prefetch.unwrap_or(0),
                seconds(self.own_ns * self.prefetch.unwrap_or(0) as f64)
            ),
            None => "more batches ahead bridge a slow one".to_owned(),
        }
    }
}

pub(crate) fn seconds(ns: f64) -> String {
    if ns >= 1e9 { format!("{:.2} s", ns / 1e9) } else { format!("{:.1} ms", ns / 1e6) }
}

#[cfg(test)]
mod tests;
