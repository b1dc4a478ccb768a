//! A loader's pipeline as discrete events: a trainer, its workers, the cores and the storage that they share.
//!
//! What is modelled is PyTorch's `DataLoader` with ordered hand-over: batches go round-robin to the workers, each
//! works on its own one after the other, the trainer takes them in order, and with each that it takes one more is
//! given out, as long as fewer than `prefetch` are outstanding. Cores and storage are shared equally by all workers that
//! wants them (processor sharing). The what-if and the simulator of jobs both run on this.

mod terms;
mod worker;

pub use terms::{Conditions, Demand, StepOutcome, Storage};

use crate::random::Random;
use stallscope_model::{BatchService, Cause, Causes};
use std::collections::VecDeque;
use worker::{Kind, Making, Worker};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Trainer {
    /// Nanoseconds of work that are left.
    Computing(f64),
    /// Waits for its device: nanoseconds that are left.
    Elsewhere(f64),
    Waiting,
    /// Takes a finished batch, or starts workers: nanoseconds that are left.
    Taking(f64),
}

/// A running pipeline. `D` gives what the batch of an index asks for; it is called once for each, in order.
#[derive(Debug)]
pub struct Pipeline<D> {
    demand: D,
    random: Random,
    conditions: Conditions,
    prefetch: u32,
    workers: Vec<Worker>,
    /// Numbers of those that get batches, in their turn.
    cycle: Vec<u32>,
    turn: usize,
    /// The trainer makes its batches itself, when it needs them.
    inline: bool,
    /// Next to give out, and next to hand over.
    sent: u64,
    taken: u64,
    /// Finished, not yet handed over.
    ready: VecDeque<(u64, u32, Demand)>,
    now_ns: f64,
    trainer: Trainer,
    /// Of [`Storage::credit_ns`], what there is now.
    credit_ns: f64,
    /// What is owed for workers that were added.
    starting_ns: f64,
    in_hand: Demand,
    producer: u32,
    worker_cpu_ns: f64,
    /// Of the step under way, by cause.
    spent_ns: [f64; Cause::COUNT],
    made: Vec<BatchService>,
}

impl<D: FnMut(u64) -> Demand> Pipeline<D> {
    /// With 0 workers the trainer makes the batches itself, and stays at that. `prefetch` is in batches over all
    /// workers, at least 1.
    pub fn new(workers: u32, prefetch: u32, conditions: Conditions, seed: u64, demand: D) -> Pipeline<D> {
        let mut pipeline = Pipeline {
            demand,
            random: Random::new(seed),
            conditions,
            prefetch: prefetch.max(1),
            workers: (0..workers.max(1)).map(Worker::new).collect(),
            cycle: (0..workers.max(1)).collect(),
            turn: 0,
            inline: workers == 0,
            sent: 0,
            taken: 0,
            ready: VecDeque::new(),
            now_ns: 0.0,
            trainer: Trainer::Waiting,
            credit_ns: 0.0,
            starting_ns: 0.0,
            in_hand: Demand::default(),
            producer: 0,
            worker_cpu_ns: 0.0,
            spent_ns: [0.0; Cause::COUNT],
            made: Vec::new(),
        };
        pipeline.give_out();
        pipeline.until_taken();
        pipeline.spent_ns = [0.0; Cause::COUNT];
        pipeline
    }

    pub fn now_ns(&self) -> u64 {
        self.now_ns.round() as u64
    }

    /// What is around the pipeline; a change holds from now on.
    pub fn conditions(&mut self) -> &mut Conditions {
        &mut self.conditions
    }

    /// 0 when the trainer makes the batches itself.
    pub fn workers(&self) -> u32 {
        if self.inline { 0 } else { self.cycle.len() as u32 }
    }

    pub fn prefetch(&self) -> u32 {
        self.prefetch
    }

    /// More: they are started at once, for which the trainer stands still. Fewer, at least one: the last ones get
    /// no more batches and go when they have made what they have. The trainer's own making stays as it is.
    pub fn set_workers(&mut self, workers: u32) {
        let wanted = workers.max(1) as usize;
        if self.inline || wanted == self.cycle.len() {
            return;
        }
        while self.cycle.len() > wanted {
            let number = self.cycle.pop();
            for worker in self.workers.iter_mut().filter(|worker| Some(worker.number) == number) {
                worker.retiring = true;
            }
        }
        self.workers.retain(|worker| !(worker.retiring && worker.is_idle()));
        while self.cycle.len() < wanted {
            let is_taken = |number: u32| self.workers.iter().any(|worker| worker.number == number);
            let number = (0..).find(|number| !is_taken(*number)).unwrap_or_default();
            self.workers.push(Worker::new(number));
            self.cycle.push(number);
            self.starting_ns += self.conditions.worker_start_ns;
        }
        self.turn = 0;
    }

    /// In batches over all workers, at least 1. More are given out with the next hand-over; fewer, as soon as
    /// that many have been taken.
    pub fn set_prefetch(&mut self, batches: u32) {
        self.prefetch = batches.max(1);
    }

    /// The trainer does something else for so long once it has its next batch (an evaluation, a wait for other ranks);
    /// counted as [`Cause::Transfer`]. Workers go on.
    pub fn stand_still(&mut self, ns: u64) {
        self.starting_ns += ns as f64;
    }

    /// CPU time that the workers have taken so far.
    pub fn worker_cpu_ns(&self) -> u64 {
        self.worker_cpu_ns as u64
    }

    /// Of workers, and of batches that are given out.
    pub fn memory_bytes(&self) -> u64 {
        let workers = self.workers.len() as u64 * u64::from(!self.inline);
        let finished: u64 = self.ready.iter().map(|(.., demand)| demand.memory_bytes).sum();
        let queued = |worker: &Worker| {
            let making = worker.making.as_ref().map_or(0, |making| making.demand.memory_bytes);
            making + worker.queue.iter().map(|(_, demand)| demand.memory_bytes).sum::<u64>()
        };
        workers * self.conditions.worker_bytes + finished + self.workers.iter().map(queued).sum::<u64>()
    }

    /// Runs until the next batch is handed over.
    pub fn next_step(&mut self) -> StepOutcome {
        let (batch, samples, start_ns) = (self.taken - 1, self.in_hand.samples, self.now_ns());
        self.trainer = Trainer::Computing(self.in_hand.compute_ns.max(0.0));
        self.until_taken();
        let end_ns = self.now_ns();
        let spent_ns = std::mem::replace(&mut self.spent_ns, [0.0; Cause::COUNT]);
        StepOutcome {
            batch,
            samples,
            start_ns,
            end_ns,
            causes: whole_ns(&spent_ns, end_ns - start_ns),
            producer: self.producer,
            made: std::mem::take(&mut self.made),
        }
    }

    fn until_taken(&mut self) {
        let before = self.taken;
        while self.taken == before {
            self.settle();
            if self.taken == before {
                self.event();
            }
        }
    }

    /// Everything that takes no time: batches begun, workers gone, the trainer's turn from one thing to the next.
    fn settle(&mut self) {
        let workers = self.workers.len();
        for worker in &mut self.workers {
            if worker.making.is_none()
                && let Some((index, demand)) = worker.queue.pop_front()
            {
                let (now_ns, conditions) = (self.now_ns, &self.conditions);
                let making = Making::new(index, demand, now_ns, conditions, workers, &mut self.random);
                worker.making = Some(making);
            }
        }
        self.spend_credit();
        match self.trainer {
            Trainer::Computing(left_ns) if left_ns <= 0.0 => {
                self.trainer = Trainer::Elsewhere(self.in_hand.device_ns.max(0.0));
                self.settle();
            }
            Trainer::Elsewhere(left_ns) if left_ns <= 0.0 => {
                self.trainer = Trainer::Waiting;
                self.settle();
            }
            Trainer::Waiting => {
                if self.inline && self.sent == self.taken {
                    self.give_out();
                    self.settle();
                }
                if self.trainer == Trainer::Waiting
                    && let Some(at) = self.ready.iter().position(|(index, ..)| *index == self.taken)
                    && let Some((_, producer, demand)) = self.ready.remove(at)
                {
                    (self.in_hand, self.producer) = (demand, producer);
                    let starting_ns = std::mem::take(&mut self.starting_ns);
                    self.trainer = Trainer::Taking(demand.handover_ns.max(0.0) + starting_ns);
                    self.settle();
                }
            }
            Trainer::Taking(left_ns) if left_ns <= 0.0 => {
                self.taken += 1;
                self.trainer = Trainer::Computing(0.0);
                if !self.inline {
                    self.give_out();
                }
            }
            Trainer::Computing(_) | Trainer::Elsewhere(_) | Trainer::Taking(_) => {}
        }
    }

    /// What storage has saved up is transferred at once.
    fn spend_credit(&mut self) {
        for worker in &mut self.workers {
            let Some(stage) = worker.making.as_mut().and_then(|making| making.stages.last_mut()) else {
                continue;
            };
            if stage.kind == Kind::Transfer && self.credit_ns > 0.0 {
                let alone_ns = stage.alone_ns(&self.conditions);
                let spent_ns = self.credit_ns.min(stage.left * alone_ns);
                self.credit_ns -= spent_ns;
                if alone_ns > 0.0 {
                    stage.left -= spent_ns / alone_ns;
                }
            }
        }
    }

    fn give_out(&mut self) {
        let depth = if self.inline { 1 } else { u64::from(self.prefetch) };
        while self.sent - self.taken < depth {
            let demand = (self.demand)(self.sent);
            let number = self.cycle[self.turn % self.cycle.len()];
            if let Some(worker) = self.workers.iter_mut().find(|worker| worker.number == number) {
                worker.queue.push_back((self.sent, demand));
            }
            self.turn = (self.turn + 1) % self.cycle.len();
            self.sent += 1;
        }
    }

    /// Goes on to the next moment at which something ends.
    fn event(&mut self) {
        let count = |is: fn(Kind) -> bool| {
            self.workers.iter().filter(|worker| worker.doing().is_some_and(is)).count() as f64
        };
        let computing = f64::from(matches!(self.trainer, Trainer::Computing(_)));
        let threads = count(|kind| kind == Kind::Cpu) + computing * self.conditions.trainer_threads.max(0.0);
        let share_beside = |neighbours: f64| {
            (self.conditions.cores.max(1e-3) / (threads + neighbours.max(0.0)).max(1e-9)).min(1.0)
        };
        let core_share = share_beside(self.conditions.neighbours);
        let trainer_share = match self.conditions.trainer_threads > 0.0 {
            true => share_beside(self.conditions.trainer_neighbours),
            false => 1.0,
        };
        let trainer_pace = trainer_share.powf(self.conditions.trainer_power.max(1.0));
        let slowdown = self.conditions.slowdown.max(1.0);
        let transfers = count(|kind| kind == Kind::Transfer);
        let (readers, makers) = (count(Kind::reads), count(|_| true));
        let conditions = self.conditions;
        // How long a stage of 1 would take from here on.
        let whole_ns = |worker: &Worker| {
            let stage = worker.making.as_ref()?.stages.last()?;
            let alone_ns = stage.alone_ns(&conditions).max(0.0);
            Some(match stage.kind {
                Kind::Cpu => alone_ns * slowdown / core_share,
                Kind::Transfer => alone_ns * transfers,
                Kind::Blocked | Kind::Latency | Kind::Cached => alone_ns,
            })
        };
        let trainer_left_ns = match self.trainer {
            Trainer::Computing(left_ns) => left_ns * slowdown / trainer_pace,
            Trainer::Elsewhere(left_ns) | Trainer::Taking(left_ns) => left_ns,
            Trainer::Waiting => f64::INFINITY,
        };
        let left_ns = |worker: &Worker| {
            let left =
                worker.making.as_ref().and_then(|making| making.stages.last()).map(|stage| stage.left)?;
            Some(left * whole_ns(worker)?)
        };
        // A batch that asks for nothing is finished at once.
        let nothing = |worker: &Worker| worker.making.as_ref().is_some_and(|making| making.stages.is_empty());
        let mut dt_ns = self.workers.iter().filter_map(left_ns).fold(trainer_left_ns, f64::min);
        if self.workers.iter().any(nothing) {
            dt_ns = 0.0;
        }
        // Every batch that is waited for has been given out, so something is always under way.
        debug_assert!(dt_ns.is_finite());
        self.account(dt_ns, core_share, trainer_share);
        self.now_ns += dt_ns;
        if transfers == 0.0 {
            self.credit_ns = (self.credit_ns + dt_ns).min(self.conditions.storage.credit_ns);
        }
        let reached = |left_ns: f64| left_ns <= dt_ns * (1.0 + 1e-12) + 1e-6;
        for worker in &mut self.workers {
            let (left, whole) = (left_ns(worker), whole_ns(worker));
            let Some(making) = worker.making.as_mut() else { continue };
            match making.stages.last().map(|stage| stage.kind) {
                Some(kind) if kind.reads() => {
                    making.fetch_ns += dt_ns;
                    making.readers_ns += readers * dt_ns;
                }
                Some(Kind::Cpu) => {
                    making.cpu_ns += core_share * dt_ns;
                    self.worker_cpu_ns += core_share * dt_ns;
                    making.runnable_ns += (1.0 - core_share) * dt_ns;
                }
                _ => {}
            }
            making.makers_ns += makers * dt_ns;
            match (left, whole, making.stages.last_mut()) {
                (Some(left_ns), ..) if reached(left_ns) => drop(making.stages.pop()),
                (_, Some(whole_ns), Some(stage)) => stage.left -= dt_ns / whole_ns,
                _ => {}
            }
            if making.stages.is_empty() {
                self.made.push(service(making, worker.number, self.now_ns));
                self.ready.push_back((making.index, worker.number, making.demand));
                worker.making = None;
            }
        }
        self.workers.retain(|worker| !(worker.retiring && worker.is_idle()));
        match &mut self.trainer {
            Trainer::Computing(left_ns) | Trainer::Taking(left_ns) if reached(trainer_left_ns) => {
                *left_ns = 0.0
            }
            Trainer::Computing(left_ns) => *left_ns -= dt_ns * trainer_pace / slowdown,
            Trainer::Elsewhere(left_ns) | Trainer::Taking(left_ns) => *left_ns -= dt_ns,
            Trainer::Waiting => {}
        }
    }

    /// The trainer's time goes to what it does, or to what the worker that has its batch does.
    fn account(&mut self, dt_ns: f64, core_share: f64, trainer_share: f64) {
        let mut spend = |cause: Cause, ns: f64| self.spent_ns[cause as usize] += ns;
        match self.trainer {
            Trainer::Computing(_) => {
                spend(Cause::Compute, trainer_share * dt_ns);
                spend(Cause::Preempted, (1.0 - trainer_share) * dt_ns);
            }
            Trainer::Elsewhere(_) => spend(Cause::Compute, dt_ns),
            Trainer::Taking(_) => spend(Cause::Transfer, dt_ns),
            Trainer::Waiting => {
                let producer = self.workers.iter().find(|worker| worker.has(self.taken));
                match producer.and_then(Worker::doing) {
                    Some(Kind::Cpu) => {
                        spend(Cause::Prep, core_share * dt_ns);
                        spend(Cause::Starved, (1.0 - core_share) * dt_ns);
                    }
                    _ => spend(Cause::Fetch, dt_ns),
                }
            }
        }
    }
}

fn service(making: &Making, worker: u32, ready_ns: f64) -> BatchService {
    let mean = |integral_ns: f64, over_ns: f64| if over_ns > 0.0 { integral_ns / over_ns } else { 0.0 };
    BatchService {
        rank: 0,
        loader: 0,
        worker,
        start_ns: making.start_ns.round() as u64,
        ready_ns: ready_ns.round() as u64,
        samples: making.demand.samples,
        fetch_ns: making.fetch_ns.round() as u64,
        cpu_ns: making.cpu_ns.round() as u64,
        runnable_ns: making.runnable_ns.round() as u64,
        read_bytes: Some(making.read_bytes.round() as u64),
        readers: mean(making.readers_ns, making.fetch_ns),
        makers: mean(making.makers_ns, ready_ns - making.start_ns),
        missed: Some(making.missed.round() as u32),
        ..BatchService::default()
    }
}

/// Rounds down, and gives what is left of the whole to the largest.
fn whole_ns(spent_ns: &[f64; Cause::COUNT], wall_ns: u64) -> Causes {
    let mut causes = Causes::default();
    let mut left_ns = wall_ns;
    let mut most = Cause::Compute;
    for cause in Cause::ALL {
        let ns = (spent_ns[cause as usize] as u64).min(left_ns);
        causes[cause] = ns;
        left_ns -= ns;
        if causes[cause] > causes[most] {
            most = cause;
        }
    }
    causes[most] += left_ns;
    causes
}
