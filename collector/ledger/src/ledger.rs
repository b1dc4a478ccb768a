use crate::Config;
use crate::cache::Caches;
use crate::epochs::Epochs;
use crate::handover::{Handover, Source};
use crate::kernel_steps::KernelSteps;
use crate::own_cpu::{HostCpus, OwnCpu};
use crate::process::{Process, ProcessFacts, ProcessKind};
use crate::rank::{Processes, Rank, owner};
use crate::ranks::Job;
use crate::services::{Made, Services};
use crate::steps::Phases;
use crate::timeline::{Interval, Pushed};
use stallscope_abi::kernel::{self, TaskSlot};
use stallscope_abi::lane::{Event, Record, wait_flags};
use stallscope_model::{LoaderFacts, StepLedger, WorkerPeriod};
use std::collections::{BTreeMap, VecDeque};

/// Later times are no times: two years after boot.
const MAX_TIME_NS: u64 = 1 << 56;
pub(crate) const MAX_PROCESSES: usize = kernel::MAX_TASKS as usize;
pub(crate) const MAX_STEPS_OUT: usize = 16_384;
/// Of a trainer. The shim uses numbers of those that are gone again.
const MAX_LOADERS: usize = 1024;
/// Of a process: sentences on what cannot be measured.
const MAX_UNAVAILABLE: usize = 16;
/// Processes beyond these have one such sentence: all of a job say the same.
const MAX_THAT_SAY_MORE: usize = 1024;

/// What was seen and could not be used.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lost {
    pub(crate) malformed: u64,
    pub(crate) unknown_kind: u64,
    pub(crate) overlapping: u64,
    pub(crate) late_waits: u64,
    pub(crate) history: u64,
    pub(crate) steps_not_taken: u64,
    pub(crate) processes: u64,
    pub(crate) loaders: u64,
    /// Reports of trainers too many.
    pub(crate) trainers: u64,
}

/// One job's account. Feed it evidence in order, call [`Ledger::advance`] regularly, and take the steps.
#[derive(Debug)]
pub struct Ledger {
    pub(crate) config: Config,
    pub(crate) root: Option<(u32, u64)>,
    pub(crate) processes: Processes,
    /// Trainers, by pid.
    pub(crate) ranks: BTreeMap<u32, Rank>,
    /// Of the last report of a trainer too many.
    pub(crate) nobody: Option<Box<Rank>>,
    pub(crate) job: Job,
    pub(crate) lost: Lost,
    pub(crate) kernel_seen: bool,
    /// Of workers that are gone, until they are taken.
    pub(crate) last_periods: Vec<WorkerPeriod>,
    pub(crate) services: Services,
    pub(crate) caches: Caches,
    pub(crate) epochs: Epochs,
    /// Of the last [`Ledger::advance`].
    pub(crate) now_ns: u64,
    kernel_steps: KernelSteps,
    pub(crate) own_cpu: OwnCpu,
    pub(crate) host_cpus: HostCpus,
    read_bytes: u64,
    out: VecDeque<StepLedger>,
}

impl Ledger {
    pub fn new(config: Config) -> Ledger {
        Ledger {
            config,
            root: None,
            processes: BTreeMap::new(),
            ranks: BTreeMap::new(),
            nobody: None,
            job: Job::default(),
            lost: Lost::default(),
            kernel_seen: false,
            last_periods: Vec::new(),
            services: Services::default(),
            caches: Caches::default(),
            epochs: Epochs::default(),
            now_ns: 0,
            kernel_steps: KernelSteps::default(),
            own_cpu: OwnCpu::default(),
            host_cpus: HostCpus::default(),
            read_bytes: 0,
            out: VecDeque::new(),
        }
    }

    /// CPUs the job may use, where they are no longer those of its configuration.
    pub fn set_cpus(&mut self, cpus: u32) {
        self.config.cpus = cpus;
    }

    /// What the machine's CPUs did while the job was looked at.
    pub fn set_host_cpus(&mut self, cpus: HostCpus) {
        self.host_cpus = cpus;
    }

    /// What the main threads of all processes have read from storage, those that are gone included; a little more where
    /// storage counts late.
    pub fn read_bytes(&self) -> u64 {
        self.read_bytes
    }

    /// The root of the job's process tree was launched or attached to.
    pub fn root(&mut self, pid: u32, now_ns: u64) {
        self.root = Some((pid, now_ns.min(MAX_TIME_NS)));
        self.touch(pid, now_ns);
    }

    /// A record of the kernel programs, in the order of their ring.
    pub fn kernel(&mut self, record: &kernel::Record) {
        let header = *record.header();
        if header.time_ns > MAX_TIME_NS {
            self.lost.malformed += 1;
            return;
        }
        self.kernel_seen = true;
        let found = self.kernel_steps.record(record);
        while let Some(handover) = self.kernel_steps.certain(header.tgid) {
            self.found(handover);
        }
        found.into_iter().for_each(|handover| self.found(handover));
        if let kernel::Record::Wait(wait) = record {
            self.errand(wait);
        }
        // Other threads than main ones and those that pin memory show in `sibling_cpu_ns` and in errands.
        if header.tid != header.tgid {
            if let kernel::Record::Slice(slice) = record
                && let Some(interval) = Interval::of_slice(slice)
                && let Some(pin) = self.touch(header.tgid, header.time_ns).pin(header.tid)
            {
                pin.push(interval);
            }
            return;
        }
        match record {
            kernel::Record::Slice(slice) => {
                let process = self.touch(header.tgid, header.time_ns);
                let before = process.read_so_far();
                let pushed = process.slice(slice);
                let read = process.read_so_far().saturating_sub(before);
                self.read_bytes = self.read_bytes.saturating_add(read);
                match pushed {
                    Some(Pushed::Whole) => {}
                    Some(Pushed::Overlapping) => self.lost.overlapping += 1,
                    None => self.lost.malformed += 1,
                }
            }
            kernel::Record::TaskNew(task) => {
                self.replace_if_gone(header.tgid, Some(header.time_ns));
                let process = self.touch(header.tgid, header.time_ns);
                process.host_ppid = Some(task.ppid);
                process.named(&task.comm);
            }
            kernel::Record::TaskExec(task) => self.touch(header.tgid, header.time_ns).named(&task.comm),
            kernel::Record::TaskExit(_) => self.gone(header.tgid, header.time_ns),
            kernel::Record::Save(save) => {
                if let Some(checkpoint) = self.kernel_steps.save(save)
                    && !self.has_working_shim(header.tgid)
                {
                    self.trainer(header.tgid).calls.checkpoint(
                        header.tgid,
                        header.time_ns,
                        &checkpoint,
                        false,
                    );
                }
            }
            // Boundaries, for the detector above.
            kernel::Record::Wait(_) | kernel::Record::Wake(_) | kernel::Record::BatchRead(_) => {}
        }
    }

    /// A detector found a hand-over.
    fn found(&mut self, handover: Handover) {
        if !self.has_working_shim(handover.pid) {
            self.handover(handover);
        }
    }

    /// A worker's thread handed something on that its trainer slept for.
    fn errand(&mut self, wait: &kernel::Wait) {
        let (trainer, worker) = (wait.header.tgid, wait.waker_tgid);
        if wait.errand_start_ns == 0 || owner(worker, &self.processes, |pid| pid == trainer).is_none() {
            return;
        }
        if let Some(worker) = self.processes.get_mut(&worker)
            && !worker.errands.take(wait)
        {
            self.lost.malformed += 1;
        }
    }

    /// A shim's boundaries are exact, so the detector's are not needed; one whose hooks failed has none.
    fn has_working_shim(&self, pid: u32) -> bool {
        self.processes
            .get(&pid)
            .is_some_and(|process| process.greeted && process.facts.unavailable.is_empty())
    }

    /// The interval still under way of a watched task, at each tick: a provisional end of its account.
    pub fn open_slot(&mut self, slot: &TaskSlot, now_ns: u64) {
        if now_ns > MAX_TIME_NS {
            return;
        }
        self.kernel_seen = true;
        let process = self.touch(slot.tgid, now_ns);
        if slot.tid == slot.tgid {
            process.slot(slot, now_ns);
        } else if let Some(pin) = process.pin(slot.tid) {
            pin.set_open(Interval::of_slot(slot, now_ns));
        }
    }

    /// The main thread of `pid` has been blocked since before its last [`Ledger::open_slot`].
    pub fn still_blocked(&mut self, pid: u32, now_ns: u64) {
        if let Some(process) = self.processes.get_mut(&pid).filter(|_| now_ns <= MAX_TIME_NS) {
            process.last_seen_ns = process.last_seen_ns.max(now_ns);
            process.kernel.hold_open(now_ns);
        }
    }

    /// A shim greeted from its process.
    pub fn process(&mut self, mut facts: ProcessFacts) {
        let pid = facts.pid;
        let most = if self.processes.len() < MAX_THAT_SAY_MORE { MAX_UNAVAILABLE } else { 1 };
        facts.unavailable.truncate(most);
        // Else what was left out stays allocated.
        facts.unavailable.shrink_to_fit();
        self.replace_if_gone(pid, None);
        let process = self.touch(pid, 0);
        process.greeted = true;
        process.facts = facts;
        self.enrol(pid);
    }

    /// What a process is became clear after it greeted.
    pub fn kind(&mut self, pid: u32, kind: ProcessKind, rank: u32, world_size: u32) {
        let facts = &mut self.touch(pid, 0).facts;
        (facts.kind, facts.rank, facts.world_size) = (kind, rank, world_size);
        self.enrol(pid);
    }

    /// The environment of a process names its rank; what its shim says counts more.
    pub fn rank(&mut self, pid: u32, rank: u32, world_size: u32) {
        let process = self.touch(pid, 0);
        if !process.greeted {
            (process.facts.rank, process.facts.world_size) = (rank, world_size);
        }
    }

    /// A hook could not be set; `what` is one sentence.
    pub fn unavailable(&mut self, pid: u32, what: String) {
        let unavailable = &mut self.touch(pid, 0).facts.unavailable;
        if unavailable.len() < MAX_UNAVAILABLE && !unavailable.contains(&what) {
            unavailable.push(what);
        }
    }

    /// A loader of the trainer `pid` became known.
    pub fn loader(&mut self, pid: u32, facts: LoaderFacts) {
        let loaders = &mut self.trainer(pid).loaders;
        if loaders.len() < MAX_LOADERS || loaders.contains_key(&facts.loader) {
            loaders.insert(facts.loader, facts);
        } else {
            self.lost.loaders += 1;
        }
    }

    /// The process is gone: nothing more will be reported of it.
    pub fn gone(&mut self, pid: u32, now_ns: u64) {
        match self.ranks.get_mut(&pid) {
            // Its connection's end and the kernel tell of the same.
            Some(rank) if rank.left => return,
            Some(rank) => rank.left = true,
            None => {}
        }
        self.goodbye(pid, now_ns);
    }

    /// The process is about to end; taking it down may last.
    fn goodbye(&mut self, pid: u32, now_ns: u64) {
        if let Some(process) = self.processes.get_mut(&pid) {
            process.exited_ns.get_or_insert(now_ns);
        }
        if let Some(rank) = self.ranks.get_mut(&pid) {
            rank.ended = true;
            if rank.phases.begun() || !self.config.attached {
                self.trainer_pieces(pid, |rank, pieces| rank.phases.end(now_ns, pieces));
            }
        }
    }

    /// A record of a process's own lane, in lane order.
    pub fn lane(&mut self, pid: u32, record: &Record) {
        let Some(event) = Event::decode(record) else {
            self.lost.unknown_kind += 1;
            return;
        };
        let time_ns = record.time_ns();
        if time_ns > MAX_TIME_NS {
            self.lost.malformed += 1;
            return;
        }
        let process = self.touch(pid, time_ns);
        let worker = process.facts.kind == ProcessKind::Worker;
        match event {
            Event::Clock(clock) => process.shim.clock(time_ns, &clock, worker),
            Event::Sample(sample) => process.shim.sample(time_ns, &sample),
            Event::Batch(batch) => {
                process.shim.batch(time_ns, &batch);
                let samples = u32::try_from(process.shim.last_samples).unwrap_or(u32::MAX);
                let made = Made { samples, missed: process.shim.take_missed() };
                self.services.batch(pid, time_ns, &batch, made, self.ranks.len());
            }
            Event::Bye(_) => self.goodbye(pid, time_ns),
            Event::Wait(wait) => {
                let wait = Handover::of_wait(pid, time_ns, &wait);
                self.serves(&wait);
                if !wait.has(wait_flags::FAILED) {
                    self.caches.handed(pid, wait.loader, !wait.has(wait_flags::NO_GRAD), wait.enter_ns);
                }
                self.handover(wait);
            }
            Event::IterStart(start) => {
                let (loader, flags) = (start.loader, start.flags);
                let training = flags & wait_flags::NO_GRAD == 0;
                self.caches.iterated(pid, loader, training, time_ns);
                let read = self.read_by(pid, loader, time_ns);
                self.epochs.begin(pid, loader, flags, read);
                self.trainer_pieces(pid, |rank, pieces| {
                    rank.phases.iter_start(loader, flags, time_ns, pieces)
                });
            }
            Event::IterEnd(end) => {
                let found = end.enter_ns != 0;
                let entered_ns = if found { end.enter_ns.min(time_ns) } else { time_ns };
                let read = self.read_by(pid, end.loader, time_ns);
                self.epochs.end(pid, end.loader, found, read);
                self.trainer_pieces(pid, |rank, pieces| {
                    rank.phases.iter_end(end.loader, entered_ns, time_ns, pieces)
                });
            }
            Event::Checkpoint(call) => self.saved(pid, time_ns, &call),
            Event::CheckpointCost(cost) => self.trainer(pid).calls.checkpoint_cost(&cost),
            Event::CheckpointRule(rule) => self.trainer(pid).calls.checkpoint_rule(&rule),
            Event::DeviceIdle(idle) => self.trainer(pid).device_idle(idle.wait_exit_ns, idle.idle_ns),
            Event::Collective(call) => self.trainer(pid).calls.collective(call.began_ns, time_ns),
            Event::Step(step) => self.step(pid, time_ns, step),
            Event::CacheUses(uses) => {
                process.shim.cache_uses(&uses);
                if !self.caches.uses(pid, time_ns, &uses) {
                    self.lost.malformed += 1;
                }
            }
            Event::CacheState(state) => {
                let number = self.trainer(pid).number;
                self.caches.state(pid, number, time_ns, &state);
            }
            Event::CacheCurve(curve) => {
                self.trainer(pid);
                if !self.caches.curve(pid, time_ns, &curve) {
                    self.lost.malformed += 1;
                }
            }
        }
    }

    /// A batch was handed to a trainer: from the shim's records, or found in the kernel's by a detector. Where
    /// a shim tells of the trainer, a detector's are ignored.
    pub fn handover(&mut self, handover: Handover) {
        if handover.exit_ns > MAX_TIME_NS {
            self.lost.malformed += 1;
            return;
        }
        let met_under_way = self.config.attached && !self.ranks.contains_key(&handover.pid);
        let rank = self.trainer(handover.pid);
        if met_under_way {
            rank.phases = Phases::under_way(handover.exit_ns, handover.loader);
            return;
        }
        match handover.source {
            Source::Shim => rank.shim_handovers += 1,
            Source::Kernel if rank.shim_handovers > 0 => return,
            Source::Kernel => {}
        }
        rank.gaps.batch(handover.exit_ns);
        let mut taken = true;
        self.trainer_pieces(handover.pid, |rank, pieces| taken = rank.phases.wait(handover, pieces));
        self.lost.late_waits += u64::from(!taken);
    }

    /// Closes the steps whose evidence has arrived, or has been waited for long enough: in order per rank.
    pub fn advance(&mut self, now_ns: u64) -> Vec<StepLedger> {
        self.close(now_ns);
        self.own_cpu.look(&self.processes, |pid| self.ranks.contains_key(&pid), &self.out, now_ns);
        self.job.settle(now_ns, self.config.rank_patience_ns);
        self.services.advance(&self.processes, &self.ranks, &self.config, now_ns);
        self.caches.advance(&self.processes, &self.ranks, &self.config, now_ns);
        self.now_ns = now_ns;
        self.forget(now_ns);
        self.out.drain(..).collect()
    }

    /// Closes everything: the job has ended or is left.
    pub fn finish(&mut self, now_ns: u64) -> Vec<StepLedger> {
        let pids: Vec<u32> = self.ranks.keys().copied().collect();
        pids.iter().for_each(|pid| self.trainer_pieces(*pid, |rank, pieces| rank.phases.prove(pieces)));
        self.close(u64::MAX);
        self.ranks.keys().for_each(|pid| self.job.end(*pid));
        self.job.settle(u64::MAX, 0);
        self.services.advance(&self.processes, &self.ranks, &self.config, u64::MAX);
        self.caches.advance(&self.processes, &self.ranks, &self.config, u64::MAX);
        self.now_ns = u64::MAX;
        self.forget(now_ns);
        self.out.drain(..).collect()
    }

    fn close(&mut self, now_ns: u64) {
        self.processes.values_mut().for_each(|process| process.settle(now_ns));
        let pids: Vec<u32> = self.ranks.keys().copied().collect();
        pids.into_iter().for_each(|pid| self.close_rank(pid, now_ns));
    }

    pub(crate) fn close_rank(&mut self, pid: u32, now_ns: u64) {
        let several = self.several_ranks(pid);
        let Some(rank) = self.ranks.get_mut(&pid) else { return };
        for closed in rank.close(&mut self.processes, several, &self.config, now_ns) {
            self.job.add(pid, &closed, 1);
            self.out.push_back(closed.step);
            if self.out.len() > MAX_STEPS_OUT {
                self.out.pop_front();
                self.lost.steps_not_taken += 1;
            }
        }
        let is_over = |process: &Process| {
            process
                .exited_ns
                .is_some_and(|exited_ns| now_ns.saturating_sub(exited_ns) >= self.config.rank_patience_ns)
        };
        // Who is held by a child that has its connection, too, is not waited for.
        let over = rank.left || self.processes.get(&pid).is_none_or(is_over);
        if rank.ended && over && rank.pending.is_empty() {
            self.job.end(pid);
        }
    }

    /// Whether `pid` trains together with others: by its own word, else when the kernel found several trainers.
    /// Trainers that a job runs beside each other, each alone, don't wait for one another.
    fn several_ranks(&self, pid: u32) -> bool {
        match self.processes.get(&pid) {
            Some(process) if process.greeted => process.facts.world_size > 1,
            _ => self.ranks.len() > 1,
        }
    }

    pub(crate) fn touch(&mut self, pid: u32, time_ns: u64) -> &mut Process {
        if self.processes.len() >= MAX_PROCESSES && !self.processes.contains_key(&pid) {
            self.evict();
        }
        let process = self.processes.entry(pid).or_default();
        process.facts.pid = pid;
        process.has_reports = true;
        process.last_seen_ns = process.last_seen_ns.max(time_ns);
        if process.first_seen_ns == 0 || (time_ns > 0 && time_ns < process.first_seen_ns) {
            process.first_seen_ns = time_ns;
        }
        process
    }

    /// Frees memory: processes that are gone are dropped first, then those not heard of for longest.
    fn evict(&mut self) {
        let no_rank = self.processes.iter().filter(|(pid, _)| !self.ranks.contains_key(pid));
        let mut stale: Vec<(bool, u64, u32)> =
            no_rank.map(|(pid, process)| (process.exited_ns.is_none(), process.last_seen_ns, *pid)).collect();
        stale.sort_unstable();
        for (_, _, pid) in stale.into_iter().take(MAX_PROCESSES / 8) {
            self.retire(pid);
            self.lost.processes += 1;
        }
    }
}
