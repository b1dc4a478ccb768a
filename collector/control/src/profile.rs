//! What a model needs of a running job or of its recording: the latest training steps of each rank and a sample of the
//! batches that were made for it. Bounded, whatever the job's length.

use stallscope_model::{
    BatchService, CachePeriod, CacheUses, Cause, Causes, Knob, LoaderFacts, Phase, StepLedger,
};
use std::collections::{BTreeMap, VecDeque};

const MAX_STEPS: usize = 1024;
const MAX_SERVICES: usize = 512;
/// Of ten seconds each.
const MAX_CACHE_PERIODS: usize = 12;
/// Fewer say nothing that a decision could rest on.
pub(crate) const MIN_STEPS: usize = 30;
pub(crate) const MIN_SERVICES: usize = 20;
/// Steps with other loaders from one with this loader to the next, where a turn of the loop takes batches of several; more are epochs
/// of theirs.
const MOST_BESIDE: u32 = 16;
/// PyTorch's default: batches in advance for each worker.
const PREFETCH_FACTOR: u32 = 2;

/// Of a cache within a period; fewer draws say little of its share of hits.
const MIN_DRAWS: u64 = 20;
/// By how much more of the draws a cache that was filled has than before, and than in the period in which that came to be.
const FILLED: f64 = 0.25;
const FULLER: f64 = 0.1;

/// A cache gets full once, in the first pass. That its share of hits goes up and down later, as with an order that is the same in
/// each pass, is how it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Filling {
    #[default]
    Cold,
    /// The start of the period in which it was found to be fuller.
    Since(u64),
    Over,
}

/// One training step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Step {
    pub(crate) wall_ns: f64,
    pub(crate) samples: f64,
    pub(crate) causes: Causes,
    /// Of the wait for the batch, during which a device still had work.
    pub(crate) hidden_ns: f64,
    ended_ns: u64,
}

impl Step {
    /// What comes before an evaluation is a step's as well as what comes behind it.
    fn add(&mut self, piece: &StepLedger) {
        self.wall_ns += piece.end_ns.saturating_sub(piece.start_ns) as f64;
        self.samples += f64::from(piece.samples);
        self.causes += &piece.causes;
        self.hidden_ns += piece.hidden_ns.unwrap_or(0) as f64;
        self.ended_ns = piece.end_ns;
    }

    /// Waiting for the batch.
    pub(crate) fn stall_ns(&self) -> f64 {
        self.causes.data_stall_ns() as f64
    }

    /// Of that, what a device did not hide.
    pub(crate) fn exposed_ns(&self) -> f64 {
        (self.stall_ns() - self.hidden_ns).max(0.0)
    }

    /// Of its own, on a core.
    pub(crate) fn compute_ns(&self) -> f64 {
        self.causes[Cause::Compute] as f64
    }

    /// Of its own, ready for a core that it did not get.
    pub(crate) fn preempted_ns(&self) -> f64 {
        self.causes[Cause::Preempted] as f64
    }

    /// Of its own, without a core: a device, other ranks, checkpoints, what nothing explains; and what a turn of the loop takes with
    /// batches of other loaders.
    pub(crate) fn elsewhere_ns(&self) -> f64 {
        let cored_ns = self.compute_ns() + self.preempted_ns();
        (self.wall_ns - self.stall_ns() - cored_ns).max(0.0)
    }
}

/// Of one loader. A recording may say anything; what is simulated has to fit into memory and end in time.
const MOST_WORKERS: u32 = 256;
const MOST_PREFETCH: u32 = 65_536;

/// One loader of one rank, at the setting that it has now.
#[derive(Clone, Debug)]
pub struct Profile {
    pub rank: u32,
    pub loader: u16,
    /// 0: the trainer makes its batches itself.
    pub workers: u32,
    /// In batches, over all workers.
    pub prefetch: u32,
    /// Of the machine, or of the job's part of it.
    pub cores: f64,
    /// That the trainer's own work keeps busy at once; `None` where nobody counted.
    pub(crate) trainer_threads: Option<f64>,
    pub(crate) steps: VecDeque<Step>,
    /// Of the step that an evaluation has cut in two, what came before it.
    begun: Step,
    /// Steps with other loaders since its last one, and their time.
    beside: u32,
    beside_ns: f64,
    pub(crate) services: VecDeque<BatchService>,
    /// What a cache gave of late, by the start of the period.
    caches: VecDeque<(u64, CacheUses)>,
    filling: Filling,
    /// Of what was before nothing is kept: the cache was not as full.
    from_ns: u64,
    /// What the knobs of the cache are set to, where there are such: its bytes, and the processes that read ahead.
    cache_bytes: Option<u64>,
    fetchers: Option<u64>,
    /// Since the setting changed: as many steps are served from what was in the queue before.
    settling: u32,
    trained_ns: u64,
    /// The first description of a loader is as its script made it; in later ones its knobs may differ.
    described: bool,
}

impl Profile {
    fn new(rank: u32, loader: u16, cores: f64) -> Profile {
        let (steps, services, caches) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
        let mut profile = Profile {
            rank,
            loader,
            workers: 0,
            prefetch: 1,
            cores,
            trainer_threads: None,
            steps,
            begun: Step::default(),
            beside: 0,
            beside_ns: 0.0,
            services,
            caches,
            filling: Filling::default(),
            from_ns: 0,
            cache_bytes: None,
            fetchers: None,
            settling: 0,
            trained_ns: 0,
            described: false,
        };
        profile.set(0, 1);
        profile
    }

    fn turn(&mut self, workers: u32, prefetch: u32) {
        if Profile::within(workers, prefetch) != (self.workers, self.prefetch) {
            self.set(workers, prefetch);
        }
    }

    /// A loader without workers has no batches ahead, but for the one that it makes.
    fn within(workers: u32, prefetch: u32) -> (u32, u32) {
        (workers.min(MOST_WORKERS), prefetch.clamp(1, MOST_PREFETCH))
    }

    /// Steps of another setting say nothing of this one; how batches are made stays true.
    fn set(&mut self, workers: u32, prefetch: u32) {
        (self.workers, self.prefetch) = Profile::within(workers, prefetch);
        self.settling = self.settles();
        self.steps.clear();
    }

    fn settles(&self) -> u32 {
        self.prefetch.saturating_add(self.workers).clamp(2, 64)
    }

    /// Share of the samples that the cache has had of late, read ahead or kept; 0 where there is no cache.
    pub fn cached_share(&self) -> f64 {
        self.cached().hit_share().unwrap_or(0.0)
    }

    /// Share of the samples whose read the cache has saved of late, because it had kept them.
    pub fn reused_share(&self) -> f64 {
        let cached = self.cached();
        cached.share(cached.reuses()).unwrap_or(0.0)
    }

    /// What the cache gave of late.
    pub fn cached(&self) -> CacheUses {
        let mut sum = CacheUses::default();
        self.caches.iter().for_each(|(_, uses)| sum += uses);
        sum
    }

    /// Another cache: what was measured with the one before says nothing of this one.
    fn set_cache(&mut self, bytes: u64) {
        let before = self.cache_bytes.replace(bytes);
        self.begin_anew_unless(before.is_none_or(|before| before == bytes));
    }

    /// More or fewer processes that read ahead: likewise.
    fn set_fetchers(&mut self, count: u64) {
        let before = self.fetchers.replace(count);
        self.begin_anew_unless(before.is_none_or(|before| before == count));
    }

    /// Steps and batches of a first pass, in which a cache was filled, say nothing of those that have the whole of it.
    fn follow_filling(&mut self) {
        let mut newest = self.caches.iter().rev().filter(|(_, uses)| uses.draws() >= MIN_DRAWS);
        let Some((start_ns, uses)) = newest.next() else { return };
        let mut before = CacheUses::default();
        newest.for_each(|(_, uses)| before += uses);
        let (Some(now), Some(before)) = (uses.hit_share(), before.hit_share()) else { return };
        let start_ns = *start_ns;
        self.filling = match self.filling {
            Filling::Cold if now >= before + FILLED => Filling::Since(start_ns),
            Filling::Since(since_ns) if since_ns < start_ns && now >= before + FULLER => {
                Filling::Since(start_ns)
            }
            Filling::Since(since_ns) if since_ns < start_ns => Filling::Over,
            same => same,
        };
        if self.filling == Filling::Since(start_ns) && self.from_ns < start_ns {
            self.from_ns = start_ns;
            self.steps.retain(|step| step.ended_ns >= start_ns);
            self.services.retain(|service| service.start_ns >= start_ns);
            self.caches.retain(|(at_ns, _)| *at_ns >= start_ns);
        }
    }

    fn begin_anew_unless(&mut self, same: bool) {
        if !same {
            // Who turns a cache watches what comes of it.
            self.filling = Filling::Over;
            self.caches.clear();
            self.services.clear();
            self.set(self.workers, self.prefetch);
        }
    }

    /// Steps that are remembered.
    pub fn steps(&self) -> usize {
        self.steps.len()
    }

    /// Batches of which it is remembered how they were made.
    pub fn services(&self) -> usize {
        self.services.len()
    }

    /// Share of training time that waits for data.
    pub fn stall_share(&self) -> f64 {
        let wall_ns: f64 = self.steps.iter().map(|step| step.wall_ns).sum();
        let stall_ns: f64 = self.steps.iter().map(Step::stall_ns).sum();
        if wall_ns > 0.0 { stall_ns / wall_ns } else { 0.0 }
    }

    /// Of the time in which the trainer could have computed, the share in which it had a core.
    pub(crate) fn trainer_share(&self) -> f64 {
        let sum = |of: fn(&Step) -> f64| self.steps.iter().map(of).sum::<f64>();
        let computing_ns = sum(Step::compute_ns);
        let waiting_ns = sum(Step::preempted_ns);
        if computing_ns > 0.0 { computing_ns / (computing_ns + waiting_ns) } else { 1.0 }
    }

    /// Why this profile does not suffice for a prediction, in a sentence; `None` when it does.
    pub fn too_little(&self) -> Option<String> {
        // A batch is reported before the step that it is for.
        if self.services.is_empty() && (!self.described || !self.steps.is_empty()) {
            return Some(
                "it is not known how single batches were made: that takes the shim of `stallscope run` and \
                 a recording of format 3 or later; run the job again under `stallscope run`"
                    .to_owned(),
            );
        }
        if self.steps.len() < MIN_STEPS || self.services.len() < MIN_SERVICES {
            return Some(format!(
                "too few were seen: {} training steps, without the first {} of a setting, which take what was in the \
                 queue before, and {} batches; it takes {MIN_STEPS} and {MIN_SERVICES}: let the job run longer",
                self.steps.len(),
                self.settles(),
                self.services.len(),
            ));
        }
        None
    }
}

/// The profiles of a job's loaders, fed in order of time.
#[derive(Clone, Debug)]
pub struct Profiles {
    cores: f64,
    of: BTreeMap<(u32, u16), Profile>,
}

impl Profiles {
    /// `cores` that the job may use; 0 when unknown, which counts as no limit.
    pub fn new(cores: f64) -> Profiles {
        let cores = if cores > 0.0 { cores } else { f64::INFINITY };
        Profiles { cores, of: BTreeMap::new() }
    }

    /// Reported again: a job may bind itself to fewer CPUs, or get another quota.
    pub fn cores(&mut self, cores: f64) {
        self.cores = cores;
        self.of.values_mut().for_each(|profile| profile.cores = cores);
    }

    /// That the job may use; infinite when unknown.
    pub fn known_cores(&self) -> f64 {
        self.cores
    }

    /// A loader as its script made it.
    pub fn loader(&mut self, rank: u32, facts: &LoaderFacts) {
        let factor = facts.prefetch_factor.unwrap_or(PREFETCH_FACTOR);
        let profile = self.profile(rank, facts.loader);
        if !std::mem::replace(&mut profile.described, true) {
            profile.set(facts.workers, facts.workers.saturating_mul(factor));
        }
    }

    /// A knob as it stands now: a new value begins a new setting.
    pub fn knob(&mut self, knob: &Knob) {
        let Some(profile) = knob.loader.and_then(|loader| self.of.get_mut(&(knob.rank, loader))) else {
            return;
        };
        let value = u32::try_from(knob.value).unwrap_or(u32::MAX);
        match knob.name.as_str() {
            "workers" => profile.turn(value, profile.prefetch),
            "prefetch" => profile.turn(profile.workers, value),
            "cache.bytes" => profile.set_cache(knob.value),
            "cache.fetchers" => profile.set_fetchers(knob.value),
            _ => {}
        }
    }

    /// How many threads the rank's trainer computes with.
    pub fn trainer_threads(&mut self, rank: u32, threads: f64) {
        let of_rank = self.of.range_mut((rank, 0)..=(rank, u16::MAX));
        of_rank.for_each(|(_, profile)| profile.trainer_threads = Some(threads.clamp(1.0, 1024.0)));
    }

    /// A closed step; only those of training count.
    pub fn step(&mut self, step: &StepLedger) {
        let wall_ns = step.end_ns.saturating_sub(step.start_ns);
        if step.phase == Phase::Between {
            // A pass that was left for an evaluation: the step that this cut has no end.
            let of_rank = self.of.range_mut((step.rank, 0)..=(step.rank, u16::MAX));
            of_rank.for_each(|(_, profile)| profile.begun = Step::default());
        }
        // Nothing of a loop without a loader can be turned or predicted.
        if step.phase != Phase::Training || wall_ns == 0 || step.loader == StepLedger::NO_LOADER {
            return;
        }
        for (_, other) in self.of.range_mut((step.rank, 0)..=(step.rank, u16::MAX)) {
            if other.loader != step.loader {
                other.beside = other.beside.saturating_add(u32::from(!step.part));
                other.beside_ns += wall_ns as f64;
            }
        }
        let profile = self.profile(step.rank, step.loader);
        profile.trained_ns = profile.trained_ns.saturating_add(wall_ns);
        profile.begun.add(step);
        if step.part {
            return;
        }
        let mut whole = std::mem::take(&mut profile.begun);
        let (beside, beside_ns) =
            (std::mem::take(&mut profile.beside), std::mem::take(&mut profile.beside_ns));
        if beside <= MOST_BESIDE {
            whole.wall_ns += beside_ns;
        }
        if profile.settling > 0 {
            profile.settling -= 1;
            return;
        }
        profile.steps.push_back(whole);
        if profile.steps.len() > MAX_STEPS {
            profile.steps.pop_front();
        }
    }

    /// How a batch was made. One whose loader nobody knew is the only loader's.
    pub fn service(&mut self, service: &BatchService) {
        let key = (service.rank, service.loader);
        let mut only = self.of.range((service.rank, 0)..=(service.rank, u16::MAX)).map(|(key, _)| *key);
        let key = match (self.of.contains_key(&key), only.next(), only.next()) {
            (false, Some(only), None) => only,
            (true, ..) => key,
            _ => return,
        };
        if service.ready_ns <= service.start_ns {
            return;
        }
        if let Some(profile) = self.of.get_mut(&key).filter(|profile| service.start_ns >= profile.from_ns) {
            profile.services.push_back(service.clone());
            if profile.services.len() > MAX_SERVICES {
                profile.services.pop_front();
            }
        }
    }

    /// What a cache gave within a period; reports of the same period add up.
    pub fn cache(&mut self, period: &CachePeriod) {
        if period.phase != Phase::Training || period.uses.draws() == 0 {
            return;
        }
        let profile = self.profile(period.rank, period.loader);
        let caches = &mut profile.caches;
        match caches.iter_mut().find(|(start_ns, _)| *start_ns == period.start_ns) {
            Some((_, uses)) => *uses += &period.uses,
            None => caches.push_back((period.start_ns, period.uses)),
        }
        if caches.len() > MAX_CACHE_PERIODS {
            caches.pop_front();
        }
        profile.follow_filling();
    }

    /// Of each rank the loader that it trained with for longest.
    pub fn training(&self) -> Vec<&Profile> {
        let mut longest: BTreeMap<u32, &Profile> = BTreeMap::new();
        for profile in self.of.values() {
            let before = longest.entry(profile.rank).or_insert(profile);
            if profile.trained_ns > before.trained_ns {
                *before = profile;
            }
        }
        longest.into_values().collect()
    }

    fn profile(&mut self, rank: u32, loader: u16) -> &mut Profile {
        self.of.entry((rank, loader)).or_insert_with(|| Profile::new(rank, loader, self.cores))
    }
}
