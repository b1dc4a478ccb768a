//! Turns knobs one at a time, proves each gain against noise, and puts back what did not help.
//!
//! docs/controller.md has the rules, the constants with their reasons, and why this cannot oscillate.

mod audit;
mod cache;
mod checkpoints;
mod drift;
mod fetchers;
mod giving_back;
mod grant;
mod guard;
mod harm;
mod patience;
mod pick;
mod probe;
mod relief;
mod seed;
mod shared;
mod steps;
mod storage_test;
mod swap;
mod trade;
mod trial;
mod turn;
mod useless;
mod worth;

use crate::budget::{Costs, Delta, Headroom, Supply};
use crate::draws::Draws;
use crate::observation::{Action, Observation, Outcome};
use crate::profile::Profiles;
use crate::random::Random;
use crate::ranks::Job;
use drift::Drift;
use giving_back::GivingBack;
pub use grant::CacheWants;
use guard::{Mentioned, Probation, Rollbacks};
use patience::Patience;
use probe::Probe;
use seed::{Kind, Proposal};
use stallscope_model::{
    Act, Advice, Budgets, CachePeriod, CacheSummary, CacheUses, Phase, TuneMode, WorkerPeriod,
};
use stallscope_units::counted;
use std::collections::BTreeMap;
use storage_test::StorageTest;
use swap::Swap;
use turn::Turn;
use useless::Worth;

/// Telemetry older than this is not acted on.
const STALE_NS: u64 = 10_000_000_000;
/// A probe that can't be seen for this long is undone.
const BLIND_NS: u64 = 60_000_000_000;
/// Training that waits now and then needs what it has: nothing is released before this long without a wait.
const CALM_NS: u64 = 600_000_000_000;
/// And the busiest moment counts for this long.
const PEAK_NS: u64 = 1_800_000_000_000;
/// A job needs this long until it can be expected to train.
const START_NS: u64 = 60_000_000_000;
/// Ranks that the model of the job follows; a job of one is predicted by it.
const MODELLED_RANKS: u32 = 16;
/// Advice is looked for this often.
const ADVISE_NS: u64 = 10_000_000_000;
/// Time that memory pressure, a mean of ten seconds, gets to fall after something was given back.
const RELIEF_NS: u64 = 40_000_000_000;
/// And what is seen at once, after those that were let go are gone.
const RELIEF_SEEN_NS: u64 = 2_000_000_000;

/// What is being done now.
#[derive(Clone, Debug, Default)]
enum Work {
    #[default]
    Watching,
    Probing(Box<Probe>),
    TestingStorage(Box<StorageTest>),
    GivingBack(Box<GivingBack>),
    Swapping(Box<Swap>),
    /// A decision is made; its values are on their way.
    Settling(u64, Turn),
}

/// Names one knob: rank, loader, name.
type Address = (u32, Option<u16>, String);

/// Of one job. Fed once a second; see [`Controller::observe`].
#[derive(Debug)]
pub struct Controller {
    mode: TuneMode,
    budgets: Budgets,
    random: Random,
    job: Job,
    /// For the model's predictions; of the first few ranks.
    profiles: Profiles,
    headroom: Headroom,
    costs: Costs,
    supply: Supply,
    work: Work,
    /// A larger cache that has yet to prove itself, beside whatever else is tried.
    growth: Option<cache::Growth>,
    /// What others read from the job's storage.
    shared: shared::Shared,
    /// Another interval of checkpoints that has yet to prove itself, beside whatever else is tried.
    frequency: Option<checkpoints::Frequency>,
    /// The interval in force, and since when: what saves cost before it says nothing of now.
    interval_s: u64,
    saves_since_ns: u64,
    draws: Draws,
    /// That caches have yet to fill, as last seen.
    promised_bytes: u64,
    /// Of each loader, as last seen.
    cache_uses: BTreeMap<(u32, u16), CacheUses>,
    /// Before that no larger one is thought of.
    ask_cache_ns: u64,
    cache_pause_ns: u64,
    worth: grant::Worth,
    cache_worth: Worth,
    traded: trade::Asked,
    decisions: u64,
    patience: BTreeMap<(&'static str, Kind), Patience>,
    /// Nothing was turned since, so these steps can be compared.
    since_ns: u64,
    /// Steps after it that are still of before.
    settle: u32,
    drift: Drift,
    rollbacks: Rollbacks,
    probation: Option<Probation>,
    /// Raises that are in force, the newest last.
    raised: Vec<Proposal>,
    /// The newest of them, where it is of one rank, and the job's memory before it, without what caches keep.
    grown: Option<(Delta, u64)>,
    /// What the script, or a user, last set: nothing is released below, unless a budget asks for it.
    floors: BTreeMap<Address, u64>,
    /// Too little, as a proven gain showed: nothing is released to that or below.
    too_few: BTreeMap<Address, u64>,
    /// Workers that the law kept busy at the busiest moment of the last half hour, and when, by rank.
    peaks: BTreeMap<u32, (f64, u64)>,
    /// When training last waited for data.
    waited_ns: u64,
    /// As last seen.
    values: BTreeMap<Address, u64>,
    /// Who asked for each last.
    set_by: BTreeMap<Address, String>,
    /// Knobs were looked at before.
    looked: bool,
    /// Loss, as a share, that releases since the last proven gain cost by their own measurement.
    given_away: f64,
    /// See [`crate::stats::compare`].
    restless: f64,
    mentioned: Mentioned,
    advised: BTreeMap<Address, u64>,
    advice: Vec<Advice>,
    next_advice_ns: u64,
    relieved_ns: Option<u64>,
    /// Before that no worker is taken away to see what storage gives.
    storage_test_ns: u64,
    /// Training that was seen, and what of it was lost to changes that did not stay.
    trained_ns: u64,
    cost_ns: f64,
    blind_since_ns: Option<u64>,
    now_ns: u64,
    began_ns: Option<u64>,
}

impl Controller {
    /// `budgets` are hard: what would exceed them is not asked for. `seed` decides by how little two waits differ, so
    /// that probes don't fall into step with something else.
    pub fn new(mode: TuneMode, budgets: Budgets, seed: u64) -> Controller {
        Controller {
            mode,
            budgets,
            random: Random::new(seed),
            job: Job::default(),
            profiles: Profiles::new(budgets.cores.unwrap_or(0.0)),
            headroom: Headroom::default(),
            costs: Costs::default(),
            supply: Supply::default(),
            work: Work::default(),
            growth: None,
            shared: shared::Shared::default(),
            frequency: None,
            interval_s: 0,
            saves_since_ns: 0,
            draws: Draws::default(),
            promised_bytes: 0,
            cache_uses: BTreeMap::new(),
            ask_cache_ns: 0,
            cache_pause_ns: 0,
            worth: grant::Worth::default(),
            cache_worth: Worth::default(),
            traded: trade::Asked::default(),
            decisions: 0,
            patience: BTreeMap::new(),
            since_ns: 0,
            settle: 0,
            drift: Drift::default(),
            rollbacks: Rollbacks::default(),
            probation: None,
            raised: Vec::new(),
            grown: None,
            floors: BTreeMap::new(),
            too_few: BTreeMap::new(),
            peaks: BTreeMap::new(),
            waited_ns: 0,
            values: BTreeMap::new(),
            set_by: BTreeMap::new(),
            looked: false,
            given_away: 0.0,
            restless: 0.0,
            mentioned: Mentioned::default(),
            advised: BTreeMap::new(),
            advice: Vec::new(),
            next_advice_ns: 0,
            relieved_ns: None,
            storage_test_ns: 0,
            trained_ns: 0,
            cost_ns: 0.0,
            blind_since_ns: None,
            now_ns: 0,
            began_ns: None,
        }
    }

    pub fn mode(&self) -> TuneMode {
        self.mode
    }

    /// On the clock of [`Observation::now_ns`]: until then nothing is tried, because too much had to be taken back at once.
    pub fn frozen_until_ns(&self) -> Option<u64> {
        self.rollbacks.frozen_until_ns(self.now_ns)
    }

    /// What it would do now, best first; made anew every ten seconds.
    pub fn advice(&self) -> &[Advice] {
        &self.advice
    }

    /// Takes in what is new, and says what follows: values to ask for (only in mode act) and lines for the audit.
    pub fn observe(&mut self, observation: &Observation) -> Outcome {
        let mut out = Outcome::default();
        let forward = self.job.take(observation);
        let before_ns = std::mem::replace(&mut self.now_ns, observation.now_ns);
        if let Some((delta, before_bytes)) = self.grown {
            self.costs.learn_more(delta, self.job.own_bytes().saturating_sub(before_bytes));
        }
        let mut node = observation.node.clone();
        // What a cache was given and has yet to fill is no longer there for anything else.
        let promised = self.job.promised_bytes();
        node.memory_available_bytes = node.memory_available_bytes.saturating_sub(promised);
        self.supply.promised(promised.saturating_sub(self.promised_bytes));
        self.promised_bytes = promised;
        self.supply.take(observation.now_ns, &node, &self.job);
        self.shared.take(observation.now_ns, node.storage);
        self.headroom =
            Headroom { budgets: self.budgets, node, costs: self.costs, supply: self.supply.clone() };
        self.begin(&mut out);
        self.profile(observation);
        self.draws.take(observation.now_ns, self.job.cache_uses());
        self.cache_worth.take(observation.now_ns, &self.job);
        self.note_interval();
        if !forward {
            self.start_over(&mut out);
        }
        match self.mode {
            TuneMode::Observe => {
                self.look_for_drift(&mut out);
            }
            TuneMode::Advise => {
                self.look_for_drift(&mut out);
                self.advise(&mut out);
            }
            TuneMode::Act => self.act(observation.now_ns.saturating_sub(before_ns), &mut out),
        }
        out
    }

    /// Undoes a probe under way; what was proven stays.
    pub fn stop(&mut self, now_ns: u64) -> Outcome {
        let mut out = Outcome::default();
        self.now_ns = self.now_ns.max(now_ns);
        self.drop_work("the controller was stopped before the gain was proven", &mut out);
        if self.began_ns.is_some() {
            let mut event = audit::line(Act::Mode, 0, self.now_ns);
            event.why = "the controller ended; what was proven stays".to_owned();
            out.audit.push(event);
        }
        self.mode = TuneMode::Observe;
        out
    }

    fn profile(&mut self, observation: &Observation) {
        for rank in observation.ranks.iter().filter(|rank| rank.rank < MODELLED_RANKS) {
            rank.steps.iter().for_each(|step| self.profiles.step(step));
            rank.services.iter().for_each(|service| self.profiles.service(service));
            rank.knobs.iter().for_each(|knob| self.profiles.knob(knob));
            rank.caches.iter().for_each(|cache| self.profile_cache(cache, observation.now_ns));
        }
    }

    /// What a cache gave since the last observation.
    fn profile_cache(&mut self, cache: &CacheSummary, now_ns: u64) {
        let before = self.cache_uses.insert((cache.rank, cache.loader), cache.training);
        self.profiles.cache(&CachePeriod {
            start_ns: now_ns - now_ns % WorkerPeriod::LENGTH_NS,
            rank: cache.rank,
            loader: cache.loader,
            phase: Phase::Training,
            uses: cache.training.since(&before.unwrap_or(cache.training)),
            state: cache.state,
        });
    }

    fn begin(&mut self, out: &mut Outcome) {
        if self.began_ns.is_some() {
            return;
        }
        self.began_ns = Some(self.now_ns);
        let cores = self.budgets.cores.unwrap_or(self.headroom.node.cpus).min(self.headroom.node.cpus);
        self.profiles = Profiles::new(cores);
        self.waited_ns = self.now_ns;
        let within = audit::budgets(&self.budgets);
        let mut event = audit::line(Act::Mode, 0, self.now_ns);
        // Before the first step none is known.
        if !self.job.ranks.is_empty() {
            event.saw = counted(self.job.ranks.len() as u64, "rank");
        }
        event.why = match self.mode {
            TuneMode::Observe => "observe: watches and changes nothing".to_owned(),
            TuneMode::Advise => format!("advise: says what would help within {within}, and changes nothing"),
            TuneMode::Act => {
                format!("act: makes one change at a time within {within}, keeps what it can prove")
            }
        };
        out.audit.push(event);
        if let Some(contradiction) = Headroom::contradiction(&self.budgets) {
            self.hold("contradiction", String::new(), contradiction, out);
        }
    }

    /// What is being tried ends, and what it changed is put back.
    fn drop_work(&mut self, why: &str, out: &mut Outcome) {
        let work = std::mem::take(&mut self.work);
        self.drop_growth(why, out);
        self.drop_interval(why, out);
        match work {
            Work::Probing(probe) => self.put_back(*probe, why.to_owned(), out),
            Work::TestingStorage(test) => {
                self.end_storage_test(*test, Act::Undo, String::new(), why.to_owned(), out);
            }
            Work::GivingBack(giving) => self.drop_giving_back(*giving, why, out),
            Work::Swapping(swap) => self.drop_swap(*swap, why, out),
            Work::Watching | Work::Settling(..) => {}
        }
    }

    /// The clock ran backwards: nothing that was seen can be compared with what comes.
    fn start_over(&mut self, out: &mut Outcome) {
        self.drop_work("the clock ran backwards, so its windows cannot be compared", out);
        self.storage_test_ns = 0;
        self.since_ns = self.now_ns;
        self.probation = None;
        self.drift = Drift::default();
        self.hold(
            "clock",
            String::new(),
            "the clock ran backwards; everything is learnt anew".to_owned(),
            out,
        );
    }

    /// Says why nothing is done, once.
    fn hold(&mut self, topic: &'static str, saw: String, why: String, out: &mut Outcome) {
        if !topic.is_empty() && self.mentioned.is_new(topic, self.now_ns) {
            let mut event = audit::line(Act::Hold, 0, self.now_ns);
            (event.saw, event.why) = (saw, why);
            out.audit.push(event);
        }
    }

    /// What is known of a knob is forgotten when the job does other work than before.
    fn look_for_drift(&mut self, out: &mut Outcome) -> bool {
        let turning = matches!(self.work, Work::Probing(_) | Work::TestingStorage(_));
        // A cache changes what a worker's CPU does as well.
        let cached = matches!(self.work, Work::GivingBack(_) | Work::Swapping(_));
        let costs = match self.growth.is_some() || cached {
            true => drift::OWN_WORK,
            false if turning || self.now_ns <= self.since_ns + STALE_NS => drift::NOT_READING,
            false => drift::ALL,
        };
        let Some(seen) = self.drift.look(&self.job, self.now_ns, costs) else { return false };
        let mut event = audit::line(Act::Drift, 0, self.now_ns);
        event.saw = seen;
        event.why = "what was learnt about the knobs is forgotten".to_owned();
        out.audit.push(event);
        self.patience.retain(|_, patience| {
            patience.forget();
            true
        });
        self.probation = None;
        self.given_away = 0.0;
        self.too_few.clear();
        self.costs.ceiling_bytes = None;
        self.since_ns = self.now_ns;
        true
    }

    fn advise(&mut self, out: &mut Outcome) {
        if self.now_ns < self.next_advice_ns {
            return;
        }
        self.next_advice_ns = self.now_ns.saturating_add(ADVISE_NS);
        self.note_values(out);
        if self.blind().is_some() {
            return;
        }
        let cache = self.pick_cache().map(|(proposal, _, saw)| (proposal, saw));
        let interval = self.pick_interval().map(|frequency| (frequency.proposal, frequency.saw));
        let Some((proposal, saw)) = self.pick(out).or(cache).or(interval) else {
            self.advice.clear();
            return;
        };
        self.advice = proposal.advice();
        for (advice, turned) in self.advice.iter().zip(&proposal.moves) {
            let address = (turned.rank, turned.loader, turned.knob.clone());
            // A worker more or less is no new advice.
            let known = self.advised.get(&address).is_some_and(|to| to.abs_diff(turned.to) * 4 <= *to);
            if known {
                continue;
            }
            self.advised.insert(address, turned.to);
            self.decisions += 1;
            let mut event = audit::line(Act::Advise, self.decisions, self.now_ns);
            audit::of(&mut event, turned);
            event.saw.clone_from(&saw);
            event.predicted = Some(advice.gain);
            event.why.clone_from(&advice.why);
            out.audit.push(event);
        }
    }
}
