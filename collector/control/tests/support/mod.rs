//! A job that is as simple as can be: each worker makes a batch in a fixed time, and training takes one.
#![allow(dead_code, reason = "each file of tests uses a part of it")]

mod cache;
mod rivals;

pub(crate) use cache::Cache;
pub(crate) use rivals::Rivals;
use stallscope_control::{Action, Controller, MachineCpus, NodeState, Observation, Outcome, RankObservation};
use stallscope_model::{
    Act, AuditEvent, BatchService, Budgets, CacheSummary, Cause, Causes, CheckpointAccount, CheckpointRule,
    EvidenceKinds, Knob, KnobState, Phase, StepLedger, TuneMode,
};

pub(crate) const SECOND_NS: u64 = 1_000_000_000;
const OWN_NS: u64 = 100_000_000;

pub(crate) fn act() -> Controller {
    Controller::new(TuneMode::Act, Budgets::default(), 1)
}

/// Runs for so many seconds; everything that was audited.
pub(crate) fn run(job: &mut Job, controller: &mut Controller, seconds: u64) -> Outcome {
    let mut all = Outcome::default();
    for _ in 0..seconds {
        let out = controller.observe(&job.second());
        job.take(&out.actions);
        all.actions.extend(out.actions);
        all.audit.extend(out.audit);
    }
    all
}

/// Runs until the audit has an act, and no longer than an hour.
pub(crate) fn until(job: &mut Job, controller: &mut Controller, act: Act) -> AuditEvent {
    for _ in 0..3600 {
        if let Some(event) = run(job, controller, 1).audit.into_iter().find(|event| event.act == act) {
            return event;
        }
    }
    panic!("within an hour the audit had no {}", act.name());
}

pub(crate) fn audited(out: &Outcome, act: Act) -> usize {
    out.audit.iter().filter(|event| event.act == act).count()
}

pub(crate) fn reasons(out: &Outcome, act: Act) -> String {
    let of = |event: &&AuditEvent| event.act == act;
    out.audit.iter().filter(of).map(|event| event.why.clone()).collect::<Vec<_>>().join("; ")
}

impl Saver {
    /// Nothing is saved until then.
    pub(crate) fn stops(&mut self, until_ns: u64) {
        self.saved_ns = until_ns;
    }
}

/// A checkpointer that saves at the interval in force.
#[derive(Clone, Debug)]
pub(crate) struct Saver {
    /// Of a save, beside a part of the time since the one before.
    pub(crate) cost_ns: u64,
    pub(crate) cost_share: f64,
    /// The script's own, in seconds; 0: that of the rule.
    pub(crate) own_s: u64,
    pub(crate) rule: CheckpointRule,
    account: CheckpointAccount,
    saved_ns: u64,
}

pub(crate) struct Job {
    pub(crate) cache: Option<Cache>,
    pub(crate) saver: Option<Saver>,
    pub(crate) now_ns: u64,
    /// Training's own work on a batch.
    pub(crate) own_ns: u64,
    /// Of a batch in a worker.
    pub(crate) service_ns: u64,
    /// Of that, what is spent on a CPU, as a share; the rest is read, or waited for.
    pub(crate) cpu_share: f64,
    /// More workers make no more batches: they share what they wait for.
    pub(crate) shared: bool,
    /// By how much each worker beyond two makes the batches of all take longer, as a share.
    pub(crate) crowd: f64,
    /// With fewer batches ahead each takes as long as three.
    pub(crate) needs: u64,
    pub(crate) refuses: Option<&'static str>,
    pub(crate) answers: bool,
    /// Time that workers take to leave, in which they finish what they were given.
    pub(crate) leaves_ns: u64,
    /// Until when those that are to leave are there.
    leaving_ns: u64,
    pub(crate) pressure: f64,
    /// Cores of the machine's 16 that others want; `None`: nobody looks.
    pub(crate) others_cpus: Option<f64>,
    /// Other jobs that read from its storage, which has a bandwidth.
    pub(crate) rivals: Option<Rivals>,
    /// Somebody says what they read.
    pub(crate) knows_rivals: bool,
    /// That the trainer uses.
    pub(crate) trainer_cpus: f64,
    cpu_ns: u64,
    /// How batches are made is not seen.
    pub(crate) hides_services: bool,
    /// Nothing new is seen.
    pub(crate) frozen: bool,
    pub(crate) dead: bool,
    pub(crate) phase: Phase,
    pub(crate) state: KnobState,
    /// What a worker takes beyond what it begins with, by its age in seconds.
    pub(crate) grows: fn(u64) -> u64,
    /// Workers are made anew at each epoch of so many seconds.
    pub(crate) epoch_s: Option<u64>,
    /// Of the job's memory cgroup; it is killed beyond.
    pub(crate) memory_limit: Option<u64>,
    pub(crate) killed: bool,
    /// When each worker began.
    born_ns: Vec<u64>,
    pub(crate) knobs: Vec<Knob>,
    step_ns: u64,
    seen_ns: u64,
    index: u64,
}

impl Job {
    /// Two workers where six would keep up.
    pub(crate) fn slow() -> Job {
        let knob = |name: &str, value: u64| Knob {
            loader: Some(0),
            name: name.to_owned(),
            value,
            initial: value,
            min: 1,
            max: 64,
            ..Knob::default()
        };
        Job {
            cache: None,
            saver: None,
            now_ns: 1000 * SECOND_NS,
            own_ns: OWN_NS,
            service_ns: 550_000_000,
            cpu_share: 0.1,
            shared: false,
            crowd: 0.0,
            needs: 0,
            refuses: None,
            answers: true,
            leaves_ns: 0,
            leaving_ns: 0,
            pressure: 0.0,
            others_cpus: None,
            rivals: None,
            knows_rivals: true,
            trainer_cpus: 0.5,
            cpu_ns: 500 * SECOND_NS,
            hides_services: false,
            frozen: false,
            dead: false,
            phase: Phase::Training,
            state: KnobState::Applied,
            grows: |_| 0,
            epoch_s: None,
            memory_limit: None,
            killed: false,
            born_ns: vec![1000 * SECOND_NS; 2],
            knobs: vec![knob("workers", 2), knob("prefetch", 4)],
            step_ns: 1000 * SECOND_NS,
            seen_ns: 1000 * SECOND_NS,
            index: 0,
        }
    }

    /// The same with a cache of 100 of 400 MiB, from which half of what workers wait for is read.
    pub(crate) fn cached(read_ns: u64) -> Job {
        let mut job = Job::slow();
        job.cache = Some(Cache::of(8000, 50 << 10, read_ns));
        job.knobs.push(Knob {
            loader: Some(0),
            name: "cache.bytes".to_owned(),
            value: 100 << 20,
            initial: 100 << 20,
            min: 1 << 20,
            max: 16 << 30,
            ..Knob::default()
        });
        job
    }

    pub(crate) fn cache_bytes(&self) -> u64 {
        self.knobs[2].value
    }

    /// In a pass that is not its first, and of which this share hits.
    pub(crate) fn start_with_hits(&mut self, share: f64) {
        if let Some(cache) = &mut self.cache {
            cache.starts_with((share * cache.samples as f64) as u64);
        }
        let bytes = self.cache.as_ref().map_or(0, |cache| cache.kept_bytes());
        (self.knobs[2].value, self.knobs[2].initial) = (bytes, bytes);
    }

    /// The script has so many processes that read ahead, each of which has this share of the missing samples in time.
    pub(crate) fn reads_ahead(&mut self, count: u64, each: f64) {
        self.knobs.push(Knob {
            loader: Some(0),
            name: "cache.fetchers".to_owned(),
            value: count,
            initial: count,
            max: 16,
            ..Knob::default()
        });
        self.cache.iter_mut().for_each(|cache| cache.read_ahead = each);
    }

    pub(crate) fn fetchers(&self) -> u64 {
        self.knobs.get(3).map_or(0, |knob| knob.value)
    }

    /// Of one batch.
    fn reads(&mut self) -> u64 {
        let (capacity, fetchers) = (self.knobs.get(2).map_or(0, |knob| knob.value), self.fetchers());
        self.cache.as_mut().map_or(0, |cache| cache.batch(capacity, fetchers))
    }

    fn cache_summary(&self) -> Option<CacheSummary> {
        Some(self.cache.as_ref()?.summary(self.cache_bytes()))
    }

    pub(crate) fn workers(&self) -> u64 {
        self.knobs[0].value
    }

    /// That it has made.
    pub(crate) fn steps(&self) -> u64 {
        self.index
    }

    pub(crate) fn prefetch(&self) -> u64 {
        self.knobs[1].value
    }

    /// A checkpointer that saves every `seconds`, by a rule of its own.
    pub(crate) fn saves_every(&mut self, seconds: u64) {
        self.knobs.retain(|knob| knob.name != "ckpt.interval");
        self.knobs.push(Knob {
            name: "ckpt.interval".to_owned(),
            unit: "seconds".to_owned(),
            value: seconds,
            initial: seconds,
            max: 604_800,
            ..Knob::default()
        });
    }

    /// A checkpointer whose saves cost this much; where no interval is set its rule has one every `rule_s`.
    pub(crate) fn saves(&mut self, cost_ns: u64, own_s: u64, rule_s: u64, mtbf_s: u64) {
        let rule = CheckpointRule {
            cost_ns,
            persist_ns: SECOND_NS,
            mtbf_ns: mtbf_s * SECOND_NS,
            interval_ns: rule_s * SECOND_NS,
        };
        self.saves_every(if own_s > 0 { own_s } else { rule_s });
        let account = CheckpointAccount { budget_ppm: (own_s == 0).then_some(20_000), ..Default::default() };
        let saved_ns = self.now_ns;
        self.saver = Some(Saver { cost_ns, cost_share: 0.0, own_s, rule, account, saved_ns });
    }

    pub(crate) fn interval_s(&self) -> u64 {
        self.knobs.iter().find(|knob| knob.name == "ckpt.interval").map_or(0, |knob| knob.value)
    }

    fn save(&mut self) {
        let interval_ns = self.interval_s() * SECOND_NS;
        let Some(saver) = &mut self.saver else { return };
        let since_ns = self.now_ns.saturating_sub(saver.saved_ns);
        if since_ns < interval_ns {
            return;
        }
        // A little noise, the same each time.
        let noise = 1.0 + 0.1 * ((self.now_ns / SECOND_NS * 7919 % 17) as f64 / 8.0 - 1.0);
        let cost_ns = (saver.cost_ns as f64 + saver.cost_share * since_ns as f64) * noise;
        saver.saved_ns = self.now_ns;
        saver.account.spent_ns += cost_ns as u64;
        saver.account.trained_ns += since_ns;
        saver.account.rule = Some(saver.rule);
    }

    pub(crate) fn most(&mut self, name: &str, most: u64) {
        self.knobs.iter_mut().filter(|knob| knob.name == name).for_each(|knob| knob.max = most);
    }

    pub(crate) fn user_sets(&mut self, name: &str, value: u64) {
        for knob in self.knobs.iter_mut().filter(|knob| knob.name == name) {
            (knob.value, knob.requested, knob.set_by) = (value, Some(value), "alice".to_owned());
        }
    }

    /// What was last asked for of a knob.
    pub(crate) fn requested(&self, name: &str) -> Option<u64> {
        self.knobs.iter().find(|knob| knob.name == name)?.requested
    }

    /// What a person set is given back, so that the script's own interval is in force.
    pub(crate) fn gives_back(&mut self, own_s: u64) {
        for knob in self.knobs.iter_mut().filter(|knob| knob.requested == Some(0)) {
            knob.value = own_s;
        }
    }

    /// The controller set the workers before, and the prefetch came to be so by itself.
    pub(crate) fn follows(&mut self, workers: u64, prefetch: u64) {
        for (knob, value) in self.knobs.iter_mut().zip([workers, prefetch]) {
            knob.value = value;
        }
        (self.knobs[0].requested, self.knobs[0].set_by) = (Some(workers), "controller".to_owned());
    }

    pub(crate) fn take(&mut self, actions: &[Action]) {
        for action in actions {
            let own_s = self.saver.as_ref().map_or(0, |saver| saver.own_s);
            for knob in self.knobs.iter_mut().filter(|knob| knob.name == action.knob) {
                knob.requested = Some(action.value);
                knob.set_by = "controller".to_owned();
                if let Some(reason) = self.refuses {
                    (knob.state, knob.reason) = (KnobState::Refused, reason.to_owned());
                } else if self.leaves_ns > 0 && action.value < knob.value {
                    (knob.state, self.leaving_ns) = (KnobState::Pending, self.now_ns + self.leaves_ns);
                } else if self.answers {
                    let is_given_back = knob.name == "ckpt.interval" && action.value == 0;
                    let value = if is_given_back { own_s } else { action.value };
                    (knob.value, knob.state) = (value, KnobState::Applied);
                } else {
                    knob.state = KnobState::Pending;
                }
            }
        }
    }

    fn memory_bytes(&self) -> u64 {
        let trainer = if self.memory_limit.is_some() { 300 << 20 } else { 2 << 30 };
        let kept = self.cache.as_ref().map_or(0, |cache| cache.kept_bytes());
        trainer + kept + self.worker_bytes().iter().sum::<u64>()
    }

    fn worker_bytes(&self) -> Vec<u64> {
        let of = |born_ns: &u64| (100 << 20) + (self.grows)((self.now_ns - born_ns) / SECOND_NS);
        self.born_ns.iter().map(of).collect()
    }

    pub(crate) fn second(&mut self) -> Observation {
        self.now_ns += SECOND_NS;
        self.cpu_ns += (self.cores() * SECOND_NS as f64) as u64;
        self.save();
        if self.leaving_ns > 0 && self.now_ns >= self.leaving_ns {
            self.leaving_ns = 0;
            for knob in self.knobs.iter_mut().filter(|knob| knob.state == KnobState::Pending) {
                (knob.value, knob.state) = (knob.requested.unwrap_or(knob.value), KnobState::Applied);
            }
        }
        if self.epoch_s.is_some_and(|epoch_s| (self.now_ns / SECOND_NS).is_multiple_of(epoch_s)) {
            self.born_ns.clear();
        }
        self.born_ns.resize(self.workers() as usize, self.now_ns);
        let memory_bytes = self.memory_bytes();
        self.killed |= self.memory_limit.is_some_and(|limit| memory_bytes > limit);
        let (mut steps, mut services) = (Vec::new(), Vec::new());
        self.step_ns = self.step_ns.min(self.now_ns);
        while self.step_ns < self.now_ns {
            let reads = self.reads();
            let reads_ns = reads * self.cache.as_ref().map_or(0, |cache| cache.read_ns);
            let step = self.step(reads_ns);
            self.step_ns = step.end_ns;
            self.rivals.iter_mut().for_each(Rivals::batch);
            let service_ns = match &self.rivals {
                Some(rivals) => (rivals.batch_ns(self.workers()) * self.workers() as f64) as u64,
                None if self.shared => self.service_ns * self.workers() / 2,
                None => self.service_ns,
            };
            let cpu_ns = (service_ns as f64 * self.cpu_share) as u64;
            let service_ns = service_ns + reads_ns;
            services.push(BatchService {
                start_ns: step.end_ns - service_ns,
                ready_ns: step.end_ns,
                samples: 32,
                cpu_ns,
                fetch_ns: service_ns - cpu_ns,
                makers: self.workers() as f64,
                missed: self.cache.as_ref().map(|_| reads as u32),
                ..BatchService::default()
            });
            steps.push(step);
        }
        if self.hides_services {
            services.clear();
        }
        if self.frozen {
            (steps, services) = Default::default();
        } else {
            self.seen_ns = self.now_ns;
        }
        for knob in &mut self.knobs {
            if self.state == KnobState::Unavailable {
                knob.state = self.state;
            }
        }
        let rank = RankObservation {
            rank: 0,
            seen_until_ns: self.seen_ns,
            phase: self.phase,
            steps,
            services,
            knobs: self.knobs.clone(),
            caches: self.cache_summary().into_iter().collect(),
            checkpoints: self.saver.as_ref().map(|saver| saver.account),
            memory_bytes,
            worker_bytes: self.worker_bytes(),
            cpu_ns: self.cpu_ns,
            descriptors: 40,
        };
        Observation {
            now_ns: self.now_ns,
            ranks: if self.dead { Vec::new() } else { vec![rank] },
            node: NodeState {
                cpus: 16.0,
                memory_available_bytes: self
                    .memory_limit
                    .map_or(32 << 30, |limit| limit.saturating_sub(memory_bytes)),
                memory_limit_bytes: self.memory_limit.unwrap_or(64 << 30),
                memory_pressure_share: Some(self.pressure),
                shm_free_bytes: Some(16 << 30),
                descriptor_limit: 1024,
                machine: self.others_cpus.map(|others| self.machine(others)),
                storage: self.rivals.as_mut().map(Rivals::second).filter(|_| self.knows_rivals),
            },
        }
    }

    /// That the job uses, with what each worker computes where that is of interest.
    fn cores(&self) -> f64 {
        let workers = if self.others_cpus.is_some() { self.workers() as f64 } else { 0.0 };
        self.trainer_cpus + self.cpu_share * workers
    }

    fn machine(&self, others: f64) -> MachineCpus {
        let busy = (self.cores() + others).min(16.0);
        MachineCpus { idle: 16.0 - busy, busy }
    }

    fn step(&mut self, reads_ns: u64) -> StepLedger {
        let workers = if self.shared { 2 } else { self.workers().min(self.prefetch()) };
        // A little noise, the same each time.
        let noise = 1.0 + 0.05 * ((self.index * 7919 % 17) as f64 / 8.0 - 1.0);
        let crowd = 1.0 + self.crowd * (workers as f64 - 2.0).max(0.0);
        let lack = if self.prefetch() < self.needs { 3.0 } else { 1.0 };
        let service_ns = self.service_ns + reads_ns;
        let made_ns = match &self.rivals {
            Some(rivals) => rivals.batch_ns(workers) * noise,
            None => service_ns as f64 * crowd * lack * noise / workers as f64,
        } as u64;
        let wall = made_ns.max(self.own_ns);
        let mut causes = Causes::default();
        causes[Cause::Compute] = self.own_ns;
        causes[Cause::Fetch] = wall - self.own_ns;
        self.index += 1;
        StepLedger {
            rank: 0,
            loader: 0,
            phase: self.phase,
            index: self.index,
            part: false,
            start_ns: self.step_ns,
            end_ns: self.step_ns + wall,
            causes,
            hidden_ns: None,
            producer: None,
            samples: 32,
            evidence: EvidenceKinds::default(),
        }
    }
}
