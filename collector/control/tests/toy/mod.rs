//! A loader as a clock that ticks: what the model's predictions are compared with. Nothing of it is the model's. Time goes
//! in small steps instead of from event to event, storage serves one read after the other instead of all at once, and
//! cores go round in slices instead of being shared.

#![allow(dead_code, clippy::unwrap_used, reason = "each file of tests uses a part of it")]

pub(crate) mod seen;

use stallscope_control::Random;
use stallscope_model::{BatchService, Cause, Causes, Phase, StepLedger};
use std::collections::VecDeque;

const TICK_NS: u64 = 100_000;
/// A thread keeps its core for so many ticks.
const SLICE: u64 = 30;
const MS: f64 = 1e6;

/// What a batch takes, in milliseconds, and what is around.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Toy {
    pub(crate) samples: u32,
    pub(crate) read_ms: f64,
    /// One read after the other; else all at once.
    pub(crate) limited: bool,
    pub(crate) cpu_ms: f64,
    /// Before one sample in twenty, on average: its worker comes so much later, as if others had its core.
    pub(crate) late_ms: f64,
    pub(crate) compute_ms: f64,
    /// Threads that the trainer computes with, each of which does its part of every millisecond and then spins until the
    /// others have done theirs.
    pub(crate) trainer_threads: usize,
    pub(crate) cores: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Piece {
    Read(f64),
    Cpu(f64),
}

#[derive(Debug, Default)]
struct Worker {
    given: VecDeque<u64>,
    /// The one that is being made, and what is left of it; the next piece last.
    batch: Option<u64>,
    pieces: Vec<Piece>,
    service: BatchService,
    /// Of the read under way: how long it takes so far, and the readers beside it, added up.
    read: (f64, f64),
    /// How many there were when it began.
    ahead: f64,
    reads: Vec<[f64; 3]>,
    readers_ns: f64,
}

pub(crate) struct Seen {
    pub(crate) steps: Vec<StepLedger>,
    pub(crate) services: Vec<BatchService>,
}

impl Toy {
    /// So many steps with these workers, two batches ahead for each, from `from_ns` on.
    pub(crate) fn run(&self, workers: usize, steps: u64, from_ns: u64, seed: u64) -> Seen {
        let mut random = Random::new(seed);
        let mut team: Vec<Worker> = (0..workers).map(|_| Worker::default()).collect();
        let (mut sent, mut taken, mut now, mut tick) = (0, 0, from_ns, 0);
        let mut ready: Vec<u64> = Vec::new();
        let mut queue: VecDeque<usize> = VecDeque::new();
        // Milliseconds of work that each of the trainer's threads has left; `None`: it waits.
        let mut trainer: Option<Vec<f64>> = None;
        let mut begun: Option<u64> = None;
        let mut causes = Causes::default();
        let mut seen = Seen { steps: Vec::new(), services: Vec::new() };
        while (seen.steps.len() as u64) < steps {
            while sent < taken + 2 * workers as u64 {
                team[sent as usize % workers].given.push_back(sent);
                sent += 1;
            }
            for (number, worker) in team.iter_mut().enumerate() {
                self.begin(worker, number, now, &mut random);
                match worker.pieces.last() {
                    Some(Piece::Read(_)) if !queue.contains(&number) => {
                        queue.push_back(number);
                        worker.ahead = queue.len() as f64;
                    }
                    _ => {}
                }
            }
            if trainer.is_none()
                && let Some(place) = ready.iter().position(|batch| *batch == taken)
            {
                ready.swap_remove(place);
                taken += 1;
                if let Some(start_ns) = begun.replace(now) {
                    let step = step(taken - 2, start_ns, now, std::mem::take(&mut causes));
                    seen.steps.push(StepLedger { samples: self.samples, ..step });
                }
                let ms = self.compute_ms * (0.7 + 0.6 * random.unit());
                trainer = Some(vec![ms; self.trainer_threads.max(1)]);
            }
            let readers = queue.len() as f64;
            let cores = self.on_cores(&team, trainer.as_ref(), tick);
            self.account(&team, trainer.as_ref(), taken, &cores, &mut causes);
            let served: Vec<usize> =
                queue.iter().copied().take(if self.limited { 1 } else { usize::MAX }).collect();
            for (number, worker) in team.iter_mut().enumerate() {
                let progress = match worker.pieces.last() {
                    Some(Piece::Read(_)) => {
                        worker.service.fetch_ns += TICK_NS;
                        worker.read.0 += TICK_NS as f64;
                        worker.read.1 += readers * TICK_NS as f64;
                        served.contains(&number)
                    }
                    Some(Piece::Cpu(_)) => {
                        let runs = cores.contains(&Thread::Worker(number));
                        let ns =
                            if runs { &mut worker.service.cpu_ns } else { &mut worker.service.runnable_ns };
                        *ns += TICK_NS;
                        runs
                    }
                    None => false,
                };
                if progress && worker.advance() {
                    queue.retain(|waiting| *waiting != number);
                }
                if worker.pieces.is_empty()
                    && let Some(batch) = worker.batch.take()
                {
                    ready.push(batch);
                    seen.services.push(worker.finished(now + TICK_NS, self.samples));
                }
            }
            if let Some(left) = &mut trainer {
                let last = left.iter().copied().fold(0.0, f64::max);
                for (place, ms) in left.iter_mut().enumerate() {
                    if cores.contains(&Thread::Trainer(place)) && *ms > last - 1.0 {
                        *ms -= TICK_NS as f64 / MS;
                    }
                }
                if left.iter().all(|ms| *ms <= 0.0) {
                    trainer = None;
                }
            }
            now += TICK_NS;
            tick += 1;
        }
        seen
    }

    fn begin(&self, worker: &mut Worker, number: usize, now: u64, random: &mut Random) {
        if worker.batch.is_some() {
            return;
        }
        let Some(batch) = worker.given.pop_front() else { return };
        worker.batch = Some(batch);
        let each =
            |whole: f64, random: &mut Random| whole / f64::from(self.samples) * (0.7 + 0.6 * random.unit());
        for _ in 0..self.samples {
            if self.late_ms > 0.0 && random.unit() < 0.05 {
                worker.pieces.push(Piece::Cpu(2.0 * self.late_ms * random.unit()));
            }
            if self.cpu_ms > 0.0 {
                worker.pieces.push(Piece::Cpu(each(self.cpu_ms, random)));
            }
            if self.read_ms > 0.0 {
                worker.pieces.push(Piece::Read(each(self.read_ms, random)));
            }
        }
        worker.service = BatchService { worker: number as u32, start_ns: now, ..BatchService::default() };
    }

    /// Who runs in this tick. Each thread has a core of its own to come back to, and those of one core take turns; a core
    /// with nothing to do takes over a thread. A trainer's thread that is done spins until the others are.
    fn on_cores(&self, team: &[Worker], trainer: Option<&Vec<f64>>, tick: u64) -> Vec<Thread> {
        let mut threads: Vec<(usize, Thread)> =
            (0..trainer.map_or(0, Vec::len)).map(|place| (place, Thread::Trainer(place))).collect();
        let works = |worker: &Worker| matches!(worker.pieces.last(), Some(Piece::Cpu(_)));
        let workers = (0..team.len()).filter(|number| works(&team[*number]));
        threads.extend(workers.map(|number| (number, Thread::Worker(number))));
        let mut running = Vec::new();
        for core in 0..self.cores {
            let own: Vec<Thread> = threads
                .iter()
                .filter(|(home, _)| home % self.cores == core)
                .map(|(_, thread)| *thread)
                .collect();
            // Cores are in no step with one another.
            let slice = tick / (SLICE + 7 * core as u64);
            running.extend(own.get(slice as usize % own.len().max(1)));
        }
        for (_, thread) in threads {
            if running.len() < self.cores && !running.contains(&thread) {
                running.push(thread);
            }
        }
        running
    }

    fn account(
        &self,
        team: &[Worker],
        trainer: Option<&Vec<f64>>,
        wanted: u64,
        cores: &[Thread],
        causes: &mut Causes,
    ) {
        let cause = match trainer {
            Some(_) if cores.contains(&Thread::Trainer(0)) => Cause::Compute,
            Some(_) => Cause::Preempted,
            None => {
                let number = wanted as usize % team.len();
                match team[number].pieces.last() {
                    Some(Piece::Read(_)) => Cause::Fetch,
                    Some(Piece::Cpu(_)) if !cores.contains(&Thread::Worker(number)) => Cause::Starved,
                    _ => Cause::Prep,
                }
            }
        };
        causes[cause] += TICK_NS;
    }

    /// Mean step, of a run of its own.
    pub(crate) fn step_ms(&self, workers: usize) -> f64 {
        let steps = self.run(workers, 350, 0, 99).steps;
        let steady = &steps[50..];
        (steady[steady.len() - 1].end_ns - steady[0].start_ns) as f64 / steady.len() as f64 / MS
    }
}

/// A training step of 16 samples.
pub(crate) fn step(index: u64, start_ns: u64, end_ns: u64, causes: Causes) -> StepLedger {
    StepLedger {
        rank: 0,
        loader: 0,
        phase: Phase::Training,
        index,
        part: false,
        start_ns,
        end_ns,
        causes,
        hidden_ns: None,
        producer: None,
        samples: 16,
        evidence: Default::default(),
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Thread {
    Trainer(usize),
    Worker(usize),
}

impl Worker {
    /// One tick of the piece under way; true where a read has ended.
    fn advance(&mut self) -> bool {
        let Some(piece) = self.pieces.last_mut() else { return false };
        let (Piece::Read(left) | Piece::Cpu(left)) = piece;
        *left -= TICK_NS as f64 / MS;
        if *left > 0.0 {
            return false;
        }
        let Some(Piece::Read(_)) = self.pieces.pop() else { return false };
        let (ns, readers_ns) = std::mem::take(&mut self.read);
        self.readers_ns += readers_ns;
        self.reads.push([ns, readers_ns / ns, self.ahead]);
        true
    }

    /// What the ledger would tell of the batch: how long its reads took, by how many read beside them.
    fn finished(&mut self, now: u64, samples: u32) -> BatchService {
        let mut service = std::mem::take(&mut self.service);
        (service.ready_ns, service.samples, service.weight) = (now, samples, 1.0);
        if service.fetch_ns > 0 {
            service.readers = std::mem::take(&mut self.readers_ns) / service.fetch_ns as f64;
        }
        let reads = std::mem::take(&mut self.reads);
        let count = reads.len() as f64;
        let mean = |of: usize| reads.iter().map(|read| read[of]).sum::<f64>() / count.max(1.0);
        let products = |a: usize, b: usize| -> f64 {
            reads.iter().map(|read| (read[a] - mean(a)) * (read[b] - mean(b))).sum()
        };
        service.reads = reads.len() as u32;
        (service.readers_spread, service.readers_effect_ns) = (products(1, 1), products(0, 1) * count);
        (service.ahead_spread, service.ahead_effect_ns) = (products(2, 2), products(0, 2) * count);
        service
    }
}
