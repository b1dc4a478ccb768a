//! A profile as demands on a pipeline.

use super::{Change, Setting};
use crate::fit::{Fit, Reading, batches, blocks, credit_ns, demands, weight};
use crate::pipeline::{Conditions, Demand, Pipeline, Storage};
use crate::profile::{Profile, Step};
use crate::random::Random;
use stallscope_model::{BatchService, Cause, Causes};

pub(crate) const REPLICAS: usize = 20;
/// Steps that are simulated.
const LEAST: usize = 150;
const MOST: usize = 250;
/// Batches that are taken at most, with those until all is in its course.
const MOST_AHEAD: u32 = 3 * MOST as u32;
/// Replicas for a value that is looked for among many.
const FEW: usize = 3;
/// A simulation of now that is off by a larger factor is not of this job.
const MISFIT: f64 = 1.25;
/// Neighbours that are tried at most, a core.
const MAX_NEIGHBOURS: f64 = 8.0;
/// By how much the power of its share of the cores with which a trainer's work goes on exceeds 1, where two threads or more
/// share that work: from and to. Measured with torch's own threads (docs/what-if.md).
const GANG: [f64; 2] = [0.4, 1.1];

/// What the simulations of one profile have in common.
#[derive(Debug)]
pub(crate) struct Model<'a> {
    pub(crate) profile: &'a Profile,
    pub(crate) fit: Fit,
    /// Threads of others that always want a core: as many as explain how long workers waited for one, and the trainer.
    neighbours: f64,
    trainer_neighbours: f64,
    /// At a few replicas.
    few: Vec<Look>,
}

/// One resample of the profile.
#[derive(Debug)]
pub(crate) struct Replica {
    demands: Vec<Demand>,
    reading: Reading,
    /// Mean of the measured steps in it.
    pub(crate) measured_ns: f64,
    /// The trainer's own part of those, as a share: what no change takes away; and its waits for a core.
    pub(crate) own_share: f64,
    pub(crate) preempted_share: f64,
    /// See [`Conditions::trainer_power`].
    trainer_power: f64,
    seed: u64,
}

/// A resample, and the simulation of it as it is.
#[derive(Debug)]
pub(crate) struct Look {
    pub(crate) replica: Replica,
    pub(crate) as_is: Simulated,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Simulated {
    pub(crate) step_ns: f64,
    pub(crate) causes: Causes,
    /// Share of the time for which storage is needed.
    pub(crate) storage_busy: f64,
    starved_share: f64,
    preempted_share: f64,
}

impl Look {
    /// Logarithm of the factor by which the simulation of now misses what was measured.
    pub(crate) fn missed(&self) -> f64 {
        (self.as_is.step_ns / self.replica.measured_ns).ln()
    }
}

impl<'a> Model<'a> {
    pub(crate) fn new(profile: &'a Profile) -> Model<'a> {
        let fit = Fit::new(profile, &mut Random::new(u64::from(profile.rank) + 7));
        let mut model = Model { profile, fit, neighbours: 0.0, trainer_neighbours: 0.0, few: Vec::new() };
        model.fit_neighbours();
        model.few = model.looks(FEW);
        model
    }

    pub(crate) fn looks(&self, replicas: usize) -> Vec<Look> {
        let look = |at| {
            let replica = self.replica(at);
            let as_is = self.run(&replica, self.now(), &Change::default());
            Look { replica, as_is }
        };
        (0..replicas).map(look).collect()
    }

    /// The scheduler does not treat all alike: a worker that has slept waits longer for a core than a trainer that holds one. So
    /// each has its own, those of workers again once the trainer's are known.
    fn fit_neighbours(&mut self) {
        if !self.profile.cores.is_finite() {
            return;
        }
        let sum = |of: fn(&BatchService) -> u64| -> f64 {
            self.profile.services.iter().map(|one| weight(one) * of(one) as f64).sum()
        };
        let (cpu_ns, runnable_ns) = (sum(|one| one.cpu_ns), sum(|one| one.runnable_ns));
        let starved = runnable_ns / (cpu_ns + runnable_ns).max(1.0);
        let preempted = 1.0 - self.profile.trainer_share();
        let replica = self.replica(0);
        self.explain(&replica, starved, |model| &mut model.neighbours, |run| run.starved_share);
        self.explain(&replica, preempted, |model| &mut model.trainer_neighbours, |run| run.preempted_share);
        self.explain(&replica, starved, |model| &mut model.neighbours, |run| run.starved_share);
    }

    /// By bisection, as waiting for a core grows with them.
    fn explain(
        &mut self,
        replica: &Replica,
        wanted: f64,
        neighbours: fn(&mut Self) -> &mut f64,
        found: fn(&Simulated) -> f64,
    ) {
        let (mut low, mut high) = (0.0, MAX_NEIGHBOURS * self.profile.cores);
        for _ in 0..8 {
            let middle = (low + high) / 2.0;
            *neighbours(self) = middle;
            match found(&self.run(replica, self.now(), &Change::default())) < wanted {
                true => low = middle,
                false => high = middle,
            }
        }
        *neighbours(self) = low;
    }

    /// The `nth` resample, the same whenever it is asked for.
    pub(crate) fn replica(&self, nth: usize) -> Replica {
        let reading = self.fit.readings[(spread(nth) * self.fit.readings.len() as f64) as usize];
        self.replica_reading(nth, reading)
    }

    /// The same, were reading made of this.
    pub(crate) fn replica_reading(&self, nth: usize, reading: Reading) -> Replica {
        let profile = self.profile;
        let random = &mut Random::new(0x5eed + nth as u64);
        let length = profile.steps.len().clamp(LEAST, MOST);
        let samples = crate::rates::samples_a_batch(profile).round() as u32;
        let steps = blocks(profile.steps.len(), length, random);
        let services = batches(&profile.services, length, random);
        let drawn: Vec<_> = steps
            .iter()
            .zip(services)
            .map(|(step, service)| (profile.steps[*step], &profile.services[service]))
            .collect();
        let gang = GANG[0] + (GANG[1] - GANG[0]) * spread(nth);
        let trainer_power = 1.0 + gang * (self.threads() - 1.0).min(1.0);
        // What the trainer's threads wait for each other now is no work of its own.
        let alone = profile.trainer_share().powf(trainer_power - 1.0);
        let mean = |of: fn(&Step) -> f64| drawn.iter().map(|(step, _)| of(step)).sum::<f64>() / length as f64;
        let measured_ns = mean(|step| step.wall_ns);
        let own_share = mean(|step| step.compute_ns() + step.elsewhere_ns()) / measured_ns;
        let preempted_share = mean(Step::preempted_ns) / measured_ns;
        let demands = drawn
            .into_iter()
            .map(|(step, service)| {
                let (alone_ns, latency_ns) = demands(service, &reading);
                let observed_ns =
                    service.fetch_ns.saturating_add(service.cpu_ns).saturating_add(service.runnable_ns);
                let made_ns = service.ready_ns - service.start_ns;
                let requests = if service.reads > 0 { service.reads } else { samples.max(1) };
                Demand {
                    samples,
                    cpu_ns: service.cpu_ns as f64,
                    requests: if service.fetch_ns > 0 { requests } else { 0 },
                    // Storage is given such a bandwidth that a byte takes it a nanosecond.
                    bytes: alone_ns,
                    latency_ns,
                    blocked_ns: made_ns.saturating_sub(observed_ns) as f64,
                    handover_ns: step.causes[Cause::Transfer] as f64,
                    compute_ns: step.compute_ns() * alone,
                    device_ns: step.elsewhere_ns(),
                    memory_bytes: 0,
                }
            })
            .collect();
        Replica { demands, reading, measured_ns, own_share, preempted_share, trainer_power, seed: nth as u64 }
    }

    pub(crate) fn run(&self, replica: &Replica, setting: Setting, change: &Change) -> Simulated {
        let faster = change.storage_factor.unwrap_or(1.0);
        let conditions = Conditions {
            cores: change.cores.unwrap_or(self.profile.cores),
            neighbours: self.neighbours,
            trainer_neighbours: self.trainer_neighbours,
            trainer_threads: self.threads(),
            trainer_power: replica.trainer_power,
            storage: Storage {
                bytes_per_s: 1e9 * faster,
                credit_ns: credit_ns(&replica.reading),
                cached_share: self.still_read(change.cached_share),
                ..Storage::default()
            },
            ..Conditions::default()
        };
        let dearer = change.sample_factor.unwrap_or(1.0);
        let draw = |index: u64| {
            let demand = replica.demands[index as usize % replica.demands.len()];
            let (latency_ns, cpu_ns) = (demand.latency_ns / faster, demand.cpu_ns * dearer);
            Demand { latency_ns, cpu_ns, ..demand }
        };
        // More in advance than all that is simulated changes nothing.
        let prefetch = setting.prefetch.min(setting.workers.max(MOST_AHEAD));
        let mut pipeline = Pipeline::new(setting.workers, prefetch, conditions, replica.seed, draw);
        let settling = (setting.prefetch.saturating_add(setting.workers) as usize).min(2 * MOST);
        (0..settling).for_each(|_| drop(pipeline.next_step()));
        let from_ns = pipeline.now_ns();
        let mut causes = Causes::default();
        let (mut cpu_ns, mut runnable_ns, mut read) = (0, 0, 0);
        for _ in 0..replica.demands.len() {
            let step = pipeline.next_step();
            causes += &step.causes;
            for service in &step.made {
                cpu_ns += service.cpu_ns;
                runnable_ns += service.runnable_ns;
                read += service.read_bytes.unwrap_or(0);
            }
        }
        let wall_ns = (pipeline.now_ns() - from_ns).max(1) as f64;
        let device_ns: f64 = replica.demands.iter().map(|demand| demand.device_ns).sum();
        let computing_ns = (causes[Cause::Compute] as f64 - device_ns).max(0.0);
        let preempted_ns = causes[Cause::Preempted] as f64;
        Simulated {
            step_ns: wall_ns / replica.demands.len() as f64,
            causes,
            storage_busy: read as f64 / faster / wall_ns,
            starved_share: runnable_ns as f64 / (cpu_ns + runnable_ns).max(1) as f64,
            preempted_share: preempted_ns / (computing_ns + preempted_ns).max(1.0),
        }
    }

    /// Of what is read from storage now, the share that would be cached if `cached` of all samples were.
    fn still_read(&self, cached: Option<f64>) -> f64 {
        let now = self.profile.cached_share();
        let more = cached.map_or(0.0, |cached| cached - now);
        if now < 1.0 { (more / (1.0 - now)).clamp(0.0, 1.0) } else { 0.0 }
    }

    /// The least that a step becomes, as a share of that of now. Ending all waits for data brings that and no more, whatever the
    /// simulation has; waits of the trainer for a core end only where a change leaves more of the cores to it.
    pub(crate) fn least_share(&self, replica: &Replica, setting: Setting, change: &Change) -> f64 {
        let frees_cores = change.cores.is_some()
            || change.cached_share.is_some()
            || change.sample_factor.is_some()
            || setting.workers < self.profile.workers;
        replica.own_share + if frees_cores { 0.0 } else { replica.preempted_share }
    }

    /// Of the trainer's waits for a core, the part that stays where the loader takes none: its own threads' and other processes'.
    pub(crate) fn preempted_by_others(&self) -> f64 {
        let taken = Change { cached_share: Some(1.0), sample_factor: Some(0.001), ..Change::default() };
        // Waits by what is computed: for so many threads beside it on its core the trainer waits.
        let odds = |share: f64| share / (1.0 - share).max(f64::EPSILON);
        let (mut now, mut then) = (0.0, 0.0);
        for Look { replica, as_is } in &self.few {
            now += odds(as_is.preempted_share);
            then += odds(self.run(replica, self.now(), &taken).preempted_share);
        }
        if now > 0.0 { (then / now).min(1.0) } else { 0.0 }
    }

    /// Mean step over a few replicas, as a share of that of now.
    pub(crate) fn share_of_now(&self, setting: Setting, change: &Change) -> f64 {
        let (mut before_ns, mut after_ns) = (0.0, 0.0);
        for Look { replica, as_is } in &self.few {
            before_ns += as_is.step_ns;
            let least_ns = as_is.step_ns * self.least_share(replica, setting, change);
            after_ns += self.run(replica, setting, change).step_ns.max(least_ns);
        }
        after_ns / before_ns
    }

    /// Why nothing is promised of any change, where the job as it is goes otherwise than the model has it.
    pub(crate) fn misfit(&self) -> Option<String> {
        let missed = self.few.iter().map(|look| look.missed()).sum::<f64>() / self.few.len().max(1) as f64;
        (missed.abs() > MISFIT.ln()).then(|| {
            let off = if missed > 0.0 { "longer" } else { "shorter" };
            format!(
                "the model does not fit this job: simulated as it is, a step takes {:.0}% {off} than measured, so that \
                 nothing is promised of any change",
                100.0 * (missed.exp() - 1.0).abs()
            )
        })
    }

    fn threads(&self) -> f64 {
        self.profile.trainer_threads.unwrap_or(1.0)
    }

    pub(crate) fn now(&self) -> Setting {
        Setting { workers: self.profile.workers, prefetch: self.profile.prefetch }
    }
}

/// From 0 to 1, by the golden ratio: however few replicas there are, they are spread over all that may be.
fn spread(nth: usize) -> f64 {
    (0.5 + nth as f64 * 0.618_033_988_75).fract()
}
