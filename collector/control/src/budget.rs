//! What a change would take of the machine, worst case, and whether it fits.

mod cores;

use crate::observation::NodeState;
use crate::ranks::{Job, Rank};
use crate::trend::Trend;
use stallscope_model::Budgets;
use stallscope_units::memory;

/// Of the machine's memory that is left to everybody else, whatever the budget.
const FLOOR_SHARE: f64 = 0.05;
/// Of /dev/shm that batches may be given.
const SHM_SHARE: f64 = 0.5;
/// Of the descriptors that a process may open.
const DESCRIPTOR_SHARE: f64 = 0.9;
/// Pipes and a handle of its process, in the trainer; twice what torch 2.15 takes.
const DESCRIPTORS_A_WORKER: u64 = 8;
/// Tensors of a batch that are passed by descriptor.
const DESCRIPTORS_A_BATCH: u64 = 4;
/// What was measured is believed with this much on top.
const MARGIN: f64 = 1.15;
/// A decoded batch against what was read for it: small JPEGs become floats.
const EXPANSION: u64 = 40;
/// Of free memory that one step may take, once it was seen what a worker and a batch take: where memory gets short is
/// seen only then. Before, the worst is assumed.
const STEP_SHARE: f64 = 0.25;
/// Waiting for memory, share of ten seconds: nobody should at all.
const PRESSURE: f64 = 0.05;

/// A job that is asked to give something back has so long to do it, a batch under way and its queue included.
const GIVING_BACK_S: f64 = 20.0;
/// Where all would be used up within so long as the last second had it, that second is enough to go by.
const PLUNGE_S: f64 = 3.0;
/// Nothing is added while what there is would be used up within this time as it is.
const FORESEEN_S: f64 = 120.0;

/// What is left of what cannot be shared, and how fast it gets less.
#[derive(Clone, Debug, Default)]
pub(crate) struct Supply {
    memory: Trend,
    shm: Trend,
    /// Descriptors of the rank that has fewest left.
    descriptors: Trend,
    memory_limit_bytes: u64,
}

impl Supply {
    pub(crate) fn take(&mut self, now_ns: u64, node: &NodeState, job: &Job) {
        if std::mem::replace(&mut self.memory_limit_bytes, node.memory_limit_bytes) != node.memory_limit_bytes
        {
            // The machine's before the job's group is known, say.
            self.memory = Trend::default();
        }
        self.memory.take(now_ns, node.memory_available_bytes);
        self.shm.take(now_ns, node.shm_free_bytes.unwrap_or(0));
        self.descriptors.take(now_ns, descriptors_left(node, job));
    }

    /// More of the memory that is left is spoken for: `node`'s is without it from now on.
    pub(crate) fn promised(&mut self, more_bytes: u64) {
        self.memory.lower(more_bytes);
    }

    /// Knobs were turned.
    pub(crate) fn turned(&mut self, now_ns: u64) {
        [&mut self.memory, &mut self.shm, &mut self.descriptors]
            .into_iter()
            .for_each(|trend| trend.turned(now_ns));
    }
}

/// Of the rank that has fewest.
fn descriptors_left(node: &NodeState, job: &Job) -> u64 {
    let open = job.ranks.values().map(|rank| rank.descriptors).max().unwrap_or(0);
    ((node.descriptor_limit as f64 * DESCRIPTOR_SHARE) as u64).saturating_sub(open)
}

/// Why something has to be given back.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Pressed {
    pub(crate) why: String,
    /// What says so is a mean over seconds that have gone by, and takes as long to fall.
    pub(crate) lags: bool,
}

/// A change of one rank's loader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Delta {
    pub(crate) rank: u32,
    pub(crate) workers: i64,
    pub(crate) batches: i64,
    pub(crate) cache_bytes: i64,
    pub(crate) fetchers: i64,
}

/// What workers and batches were seen to take; before that the worst case is assumed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Costs {
    pub(crate) worker_bytes: Option<u64>,
    pub(crate) batch_bytes: Option<u64>,
    /// Of a process that reads ahead; before that as a worker.
    fetcher_bytes: Option<u64>,
    /// Workers and batches that were added together, and what they took.
    both: Option<(u64, u64, u64)>,
    /// Memory of the job at which somebody had to wait for memory.
    pub(crate) ceiling_bytes: Option<u64>,
}

/// Of that memory: as near as the job may come again.
const CEILING_SHARE: f64 = 0.95;

impl Costs {
    /// Memory grew by this, at most, while knobs of a rank went up.
    pub(crate) fn learn(&mut self, delta: Delta, grown_bytes: u64) {
        let grown = (grown_bytes as f64 * MARGIN) as u64 + (1 << 20);
        let (workers, batches) = (delta.workers.max(0) as u64, delta.batches.max(0) as u64);
        match (workers, batches) {
            (0, 0) if delta.fetchers > 0 => self.fetcher_bytes = Some(grown / delta.fetchers as u64),
            (1.., 0) => self.worker_bytes = Some(grown / workers),
            (0, 2..) => self.batch_bytes = Some(grown / batches),
            (1.., 1..) => self.both = Some((workers, batches, grown)),
            _ => {}
        }
    }

    /// The same of workers that stayed: some grow for as long as an epoch, and more.
    pub(crate) fn learn_more(&mut self, delta: Delta, grown_bytes: u64) {
        let before = *self;
        self.learn(delta, grown_bytes);
        self.worker_bytes = self.worker_bytes.max(before.worker_bytes);
        self.batch_bytes = self.batch_bytes.max(before.batch_bytes);
        self.fetcher_bytes = self.fetcher_bytes.max(before.fetcher_bytes);
        self.both = self.both.max(before.both);
    }

    /// All memory that the rank has could be in its workers, or in its batches.
    fn worst(rank: &Rank, own_bytes: u64, name: &str) -> u64 {
        own_bytes / rank.value(name).unwrap_or(1).max(1)
    }

    /// Of so many more processes that read ahead.
    fn of_fetchers(&self, rank: &Rank, own_bytes: u64, count: u64) -> u64 {
        let as_worker = || self.worker_bytes.unwrap_or(Self::worst(rank, own_bytes, "workers"));
        let each = self.fetcher_bytes.unwrap_or_else(|| as_worker().max(rank.workers.of_one_more()));
        each.saturating_mul(count)
    }

    /// Of so many more workers and batches, and of the batches alone. Whatever the split of what was added together,
    /// adding the same share of both takes the same share of it, and no other mix takes more than its larger share.
    /// `own_bytes`: of the rank, without what caches keep.
    fn of(&self, rank: &Rank, own_bytes: u64, workers: u64, batches: u64) -> (u64, u64) {
        let together = self.both.map(|(w, b, grown)| {
            let share = (workers as f64 / w as f64).max(batches as f64 / b as f64);
            (grown as f64 * share) as u64
        });
        let alone = |bytes: Option<u64>, count: u64, otherwise: u64| {
            let together = together.filter(|_| bytes.is_none()).unwrap_or(u64::MAX);
            bytes.unwrap_or(otherwise).saturating_mul(count).min(together)
        };
        let read = rank.services.iter().filter_map(|service| service.read_bytes).max();
        let bound = read.map_or(u64::MAX, |bytes| bytes.max(1 << 20).saturating_mul(EXPANSION));
        let in_batches =
            alone(self.batch_bytes, batches, Self::worst(rank, own_bytes, "prefetch").min(bound));
        let of_workers = alone(self.worker_bytes, workers, Self::worst(rank, own_bytes, "workers"));
        let all = of_workers.saturating_add(in_batches);
        (all.min(together.unwrap_or(u64::MAX)), in_batches)
    }
}

/// When `left` is used up as it goes, where that is too soon.
fn soon(left: u64, trend: &Trend) -> Option<String> {
    let soon = |falls: f64, within_s: f64| (left as f64 <= falls * within_s && falls > 0.0).then_some(falls);
    let falls = soon(trend.falls_per_s(), GIVING_BACK_S).or_else(|| soon(trend.plunges_per_s(), PLUNGE_S))?;
    Some(format!("{:.0} s as it goes", left as f64 / falls))
}

/// What may be used, as of now.
#[derive(Clone, Debug, Default)]
pub(crate) struct Headroom {
    pub(crate) budgets: Budgets,
    pub(crate) node: NodeState,
    pub(crate) costs: Costs,
    pub(crate) supply: Supply,
}

impl Headroom {
    /// Whether all of it can be taken together, or a sentence on what there is too little of.
    pub(crate) fn fits(&self, job: &Job, deltas: &[Delta]) -> Result<(), String> {
        self.memory(job, deltas)?;
        self.beside_memory(job, deltas)
    }

    /// The same of all but memory.
    pub(crate) fn beside_memory(&self, job: &Job, deltas: &[Delta]) -> Result<(), String> {
        self.cores(job, deltas)?;
        for delta in deltas {
            self.descriptors(job, *delta)?;
        }
        Ok(())
    }

    /// What they may take, at most.
    pub(crate) fn bytes_of(&self, job: &Job, deltas: &[Delta]) -> u64 {
        self.more_bytes(job, deltas).0
    }

    /// More bytes, at most. Each part counts by itself: what one rank gives back another does not have yet.
    fn more_bytes(&self, job: &Job, deltas: &[Delta]) -> (u64, u64) {
        let mut sums = (0u64, 0u64);
        for delta in deltas {
            let Some(rank) = job.ranks.get(&delta.rank) else { continue };
            let (workers, batches) = (delta.workers.max(0) as u64, delta.batches.max(0) as u64);
            // What the caches keep counts with the first rank, and is in no worker and no batch.
            let is_first = job.ranks.keys().next() == Some(&delta.rank);
            let kept_bytes = if is_first { job.kept_bytes() } else { 0 };
            let own_bytes = rank.memory_bytes.saturating_sub(kept_bytes);
            let (all, in_batches) = self.costs.of(rank, own_bytes, workers, batches);
            let all = all.max(workers.saturating_mul(rank.workers.of_one_more()));
            let all = all.saturating_add(delta.cache_bytes.max(0) as u64);
            let all =
                all.saturating_add(self.costs.of_fetchers(rank, own_bytes, delta.fetchers.max(0) as u64));
            sums = (sums.0.saturating_add(all), sums.1.saturating_add(in_batches));
        }
        sums
    }

    /// Whether there is the memory for all of it.
    pub(crate) fn memory(&self, job: &Job, deltas: &[Delta]) -> Result<(), String> {
        let (bytes, in_shm) = self.more_bytes(job, deltas);
        if bytes == 0 {
            return Ok(());
        }
        let more =
            deltas.iter().fold(0_u64, |sum, delta| sum.saturating_add(delta.cache_bytes.max(0) as u64));
        if let Some(most) = self.budgets.cache_bytes.filter(|_| more > 0) {
            let now = job.caches_bytes();
            if now.saturating_add(more) > most {
                return Err(format!(
                    "its caches have {} of the {} that they may have",
                    memory(now),
                    memory(most)
                ));
            }
        }
        let used = job.memory_bytes().saturating_add(job.promised_bytes());
        if let Some(budget) = self.budgets.memory_bytes {
            if used == 0 {
                return Err("the job's memory is not known, so its budget cannot be kept".to_owned());
            }
            if used.saturating_add(bytes) > budget {
                return Err(format!(
                    "it may take {} more and the job has {} of the {} that it may use",
                    memory(bytes),
                    memory(used),
                    memory(budget)
                ));
            }
        }
        let ceiling = self.costs.ceiling_bytes.map(|bytes| (bytes as f64 * CEILING_SHARE) as u64);
        if let Some(ceiling) = ceiling.filter(|ceiling| used.saturating_add(bytes) > *ceiling) {
            return Err(format!(
                "it may take {} more, and near {} memory got short before",
                memory(bytes),
                memory(ceiling)
            ));
        }
        let floor = self.floor_bytes();
        let growth = job.growth_bytes();
        let needed = bytes.saturating_add(growth).saturating_add(floor);
        if self.node.memory_limit_bytes > 0 && self.node.memory_available_bytes < needed {
            let yet = match growth >> 20 {
                0 => String::new(),
                _ => format!(", the workers there are may grow by {} as others have,", memory(growth)),
            };
            return Err(format!(
                "it may take {} more{yet} and only {} are free, of which {} stay free",
                memory(bytes),
                memory(self.node.memory_available_bytes),
                memory(floor)
            ));
        }
        let falls = self.supply.memory.falls_per_s();
        let left = self.node.memory_available_bytes.saturating_sub(floor).saturating_sub(bytes) as f64;
        if self.node.memory_limit_bytes > 0 && !self.supply.memory.is_known() && left < 2.0 * used as f64 {
            return Err("whether what was added grows on is not seen yet".to_owned());
        }
        if self.node.memory_limit_bytes > 0 && falls * FORESEEN_S > left {
            return Err(format!(
                "memory gets less by {} a second, so that what there is may be needed by what runs",
                memory(falls as u64)
            ));
        }
        let seen = self.costs.both.or(self.costs.worker_bytes.or(self.costs.batch_bytes).map(|_| (0, 0, 0)));
        let most = self.node.memory_available_bytes.saturating_sub(floor) as f64 * STEP_SHARE;
        if self.node.memory_limit_bytes > 0 && seen.is_some() && bytes as f64 > most {
            return Err(format!(
                "it may take {} more, and one step may take at most {} of what is free",
                memory(bytes),
                memory(most as u64)
            ));
        }
        match self.node.shm_free_bytes {
            Some(free) if in_shm as f64 > free as f64 * SHM_SHARE => Err(format!(
                "its batches may take {} of /dev/shm, where {} are free",
                memory(in_shm),
                memory(free)
            )),
            _ => Ok(()),
        }
    }

    fn descriptors(&self, job: &Job, delta: Delta) -> Result<(), String> {
        let Some(rank) = job.ranks.get(&delta.rank) else { return Ok(()) };
        let more = (delta.workers.max(0) as u64)
            .saturating_mul(DESCRIPTORS_A_WORKER)
            .saturating_add((delta.batches.max(0) as u64).saturating_mul(DESCRIPTORS_A_BATCH));
        let most = match self.node.descriptor_limit {
            0 => u64::MAX,
            limit => (limit as f64 * DESCRIPTOR_SHARE) as u64,
        };
        let most = most.min(self.budgets.descriptors.unwrap_or(u64::MAX));
        if more == 0 || rank.descriptors.saturating_add(more) <= most {
            return Ok(());
        }
        Err(format!(
            "it may take {more} more descriptors, and rank {} has {} of the {most} that it may open",
            delta.rank, rank.descriptors
        ))
    }

    fn floor_bytes(&self) -> u64 {
        (self.node.memory_limit_bytes as f64 * FLOOR_SHARE) as u64
    }

    /// Why something has to be given back at once, before it is used up; `None`: nothing has.
    pub(crate) fn pressed(&self, job: &Job) -> Option<Pressed> {
        let now = |why: String| Some(Pressed { why, lags: false });
        let floor = self.floor_bytes();
        if self.node.memory_limit_bytes > 0 {
            let available = self.node.memory_available_bytes;
            if available < floor {
                return now(format!(
                    "only {} of memory are free, under the {} that stay free",
                    memory(available),
                    memory(floor)
                ));
            }
            if let Some(soon) = soon(available.saturating_sub(floor), &self.supply.memory) {
                return now(format!("{} of memory are free, and used up in {soon}", memory(available)));
            }
        }
        if let Some(share) = self.node.memory_pressure_share.filter(|share| *share > PRESSURE) {
            let why = format!("{:.0}% of the last ten seconds somebody waited for memory", share * 100.0);
            return Some(Pressed { why, lags: true });
        }
        if let Some(free) = self.node.shm_free_bytes
            && let Some(soon) = soon(free, &self.supply.shm)
        {
            return now(format!("{} of /dev/shm are free, and used up in {soon}", memory(free)));
        }
        let left = descriptors_left(&self.node, job);
        if self.node.descriptor_limit > 0
            && let Some(soon) = soon(left, &self.supply.descriptors)
        {
            return now(format!("{left} more descriptors can be opened, and are in {soon}"));
        }
        None
    }

    /// Why what was added cannot stay, though nothing is short yet: it would be, once all workers are as large as the
    /// largest has been.
    pub(crate) fn outgrown(&self, job: &Job) -> Option<String> {
        let growth = job.growth_bytes();
        let free = self.node.memory_available_bytes;
        (self.node.memory_limit_bytes > 0 && free < growth.saturating_add(self.floor_bytes())).then(|| {
            format!(
                "{} of memory are free, and the workers may grow by {} as others have",
                memory(free),
                memory(growth)
            )
        })
    }

    /// Which budget the job is over now; `None`: none.
    pub(crate) fn exceeded(&self, job: &Job) -> Option<String> {
        let used = job.memory_bytes();
        if let Some(budget) = self.budgets.memory_bytes.filter(|budget| used > *budget) {
            return Some(format!("the job has {} of memory and may use {}", memory(used), memory(budget)));
        }
        if let (Some(budget), Some(cores)) = (self.budgets.cores, job.cores())
            && cores > budget * 1.02
        {
            return Some(format!("the job uses {cores:.1} cores and may use {budget:.1}"));
        }
        let budget = self.budgets.descriptors?;
        let rank = job.ranks.values().find(|rank| rank.descriptors > budget)?;
        Some(format!("rank {} has {} descriptors open and may have {budget}", rank.rank, rank.descriptors))
    }

    /// What of the budgets can never be kept, as a sentence.
    pub(crate) fn contradiction(budgets: &Budgets) -> Option<String> {
        match budgets {
            Budgets { cores: Some(cores), .. } if !(cores.is_finite() && *cores > 0.0) => {
                Some(format!("a budget of {cores} cores lets no job run; nothing will be raised"))
            }
            Budgets { memory_bytes: Some(0), .. } => {
                Some("a budget of no memory lets no job run; nothing will be raised".to_owned())
            }
            Budgets { descriptors: Some(0), .. } => {
                Some("a budget of no descriptors lets no job run; nothing will be raised".to_owned())
            }
            _ => None,
        }
    }
}
