//! One trainer: its pieces that wait for evidence, and their attribution once it is there.

use crate::Config;
use crate::attribute::{Attributed, ByKind, Trainer, Wait, own_part, wait_part};
use crate::calls::Calls;
use crate::detail::{self, Role, Slowest};
use crate::handover::{BatchTimes, Handover, Producer, Source};
use crate::kernel_steps::AFTER_PUT_NS;
use crate::passage::Passage;
use crate::process::Process;
use crate::services::draw;
use crate::silences::Gaps;
use crate::steps::{NO_LOADER, Phases, Piece};
use crate::tally::Tallies;
use stallscope_model::{
    Causes, CriticalPiece, EvidenceKinds, LoaderFacts, Phase, StepDetail, StepLane, StepLedger, WorkerLoad,
};
use std::collections::{BTreeMap, VecDeque};

/// Pieces that may wait for evidence at the same time.
pub(crate) const MAX_PENDING: usize = 4096;
const MAX_DEVICE_IDLE: usize = 4096;
const MAX_DETAILS: usize = 64;
/// How far behind a hand-over the main thread is looked for.
const MAX_DELAY_NS: u64 = 100_000_000;
/// Steps of a rank, from its first one on, that are all compared with the shim's account, and of how many later ones one.
const ALL_COMPARED: u64 = 256;
const COMPARED_ONE_IN: u64 = 8;

pub(crate) type Processes = BTreeMap<u32, Process>;

/// Sums over training steps of a rank that both the kernel and the shim saw.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Compared {
    pub(crate) fused: Causes,
    pub(crate) shim: Causes,
}

/// A closed piece: what is published, and what the job's ledger aligns.
#[derive(Clone, Debug)]
pub(crate) struct Closed {
    pub(crate) step: StepLedger,
    pub(crate) own: Causes,
    pub(crate) wait: Causes,
}

#[derive(Debug)]
pub(crate) struct Rank {
    pub(crate) pid: u32,
    pub(crate) number: u32,
    pub(crate) phases: Phases,
    pub(crate) pending: VecDeque<Piece>,
    pub(crate) calls: Calls,
    /// Nanoseconds without work for the device, by the end of the wait.
    device_idle: BTreeMap<u64, u64>,
    pub(crate) has_device: bool,
    pub(crate) loaders: BTreeMap<u16, LoaderFacts>,
    indices: BTreeMap<Phase, u64>,
    pub(crate) tallies: Tallies,
    pub(crate) compared: Compared,
    /// Over training.
    pub(crate) unexplained: ByKind,
    pub(crate) own_reading: ByKind,
    pub(crate) asleep_for_threads_ns: u64,
    pub(crate) transfer_behind_fault_ns: u64,
    slowest: Slowest,
    /// Of the slowest steps, until they are taken.
    pub(crate) details: VecDeque<StepDetail>,
    /// Loads of workers that are gone, by loader and place.
    pub(crate) retired: BTreeMap<(u16, u32), WorkerLoad>,
    /// The most workers at the same time, as far as some of them are forgotten.
    pub(crate) workers_at_once: u32,
    pub(crate) batches_unseen: u64,
    /// Batches and steps that the shim reported; once it did, a detector's handovers are no longer taken.
    pub(crate) shim_handovers: u64,
    pub(crate) gaps: Gaps,
    /// It ended its session, or is gone: its last pieces are closed.
    pub(crate) ended: bool,
    /// Its process is gone.
    pub(crate) left: bool,
}

impl Rank {
    pub(crate) fn new(pid: u32, number: u32, started_ns: u64) -> Rank {
        Rank {
            pid,
            number,
            phases: Phases::new(started_ns),
            pending: VecDeque::new(),
            calls: Calls::default(),
            device_idle: BTreeMap::new(),
            has_device: false,
            loaders: BTreeMap::new(),
            indices: BTreeMap::new(),
            tallies: Tallies::default(),
            compared: Compared::default(),
            unexplained: ByKind::default(),
            own_reading: ByKind::default(),
            asleep_for_threads_ns: 0,
            transfer_behind_fault_ns: 0,
            slowest: Slowest::default(),
            details: VecDeque::new(),
            retired: BTreeMap::new(),
            workers_at_once: 0,
            batches_unseen: 0,
            shim_handovers: 0,
            gaps: Gaps::default(),
            ended: false,
            left: false,
        }
    }

    pub(crate) fn device_idle(&mut self, wait_end_ns: u64, idle_ns: u64) {
        self.has_device = true;
        self.device_idle.insert(wait_end_ns, idle_ns);
        if self.device_idle.len() > MAX_DEVICE_IDLE {
            self.device_idle.pop_first();
        }
    }

    /// Start of what is not attributed yet: evidence from then on is needed.
    pub(crate) fn horizon_ns(&self) -> u64 {
        self.pending.front().map_or(self.phases.horizon_ns(), |piece| piece.start_ns)
    }

    /// Closes pieces in order as long as their evidence is there or has been waited for long enough.
    pub(crate) fn close(
        &mut self,
        processes: &mut Processes,
        several_ranks: bool,
        config: &Config,
        now_ns: u64,
    ) -> Vec<Closed> {
        let mut closed = Vec::new();
        // Where too many wait, the older half goes with what is known.
        let keep = if self.pending.len() > MAX_PENDING { MAX_PENDING / 2 } else { MAX_PENDING };
        while let Some(piece) = self.pending.front() {
            if self.pending.len() <= keep && !self.is_final(piece, processes, config, now_ns) {
                break;
            }
            let Some(mut piece) = self.pending.pop_front() else { break };
            self.extend(&mut piece, processes);
            closed.push(self.attribute(&piece, processes, several_ranks, config));
        }
        let horizon_ns = self.horizon_ns();
        self.calls.forget_before(horizon_ns);
        self.device_idle = self.device_idle.split_off(&horizon_ns);
        closed
    }

    fn is_final(&self, piece: &Piece, processes: &Processes, config: &Config, now_ns: u64) -> bool {
        let waited_ns = now_ns.saturating_sub(piece.end_ns);
        if self.has_device
            && piece.wait.is_some()
            && !self.device_idle.contains_key(&piece.end_ns)
            && waited_ns < config.device_patience_ns
        {
            return false;
        }
        if waited_ns >= config.patience_ns {
            return true;
        }
        let Some(trainer) = processes.get(&self.pid) else { return true };
        // Of a wait too: it may have been woken and got no CPU.
        if !trainer.covers(piece.end_ns) {
            return false;
        }
        let Some(wait) = &piece.wait else { return true };
        let Some(producer) = producer_pid(wait, processes).and_then(|pid| processes.get(&pid)) else {
            return false;
        };
        match batch_of(wait, producer) {
            Some(batch) => producer.covers(batch.ready_ns.min(piece.end_ns)),
            None => false,
        }
    }

    /// The kernel alone sees the next index being put, some microseconds of CPU time before the main thread has its batch.
    /// Where it loses its CPU within these (the thread that it wakes wants one, too), it has the batch when it runs again.
    fn extend(&mut self, piece: &mut Piece, processes: &Processes) {
        let Some(wait) = piece.wait.as_mut().filter(|wait| wait.source == Source::Kernel) else { return };
        let Some(trainer) = processes.get(&self.pid) else { return };
        let put_ns = wait.exit_ns.saturating_sub(AFTER_PUT_NS);
        let mut exit_ns = wait.exit_ns;
        trainer.kernel.each(put_ns, put_ns.saturating_add(MAX_DELAY_NS), |from_ns, to_ns, did| {
            if from_ns < wait.exit_ns && did.is_some_and(|did| did.times.runnable_ns == to_ns - from_ns) {
                exit_ns = exit_ns.max(to_ns + (wait.exit_ns - from_ns));
            }
        });
        let next = self.pending.front_mut();
        exit_ns = next.as_ref().map_or(exit_ns, |next| exit_ns.min(next.enter_ns())).max(wait.exit_ns);
        match next {
            Some(next) => next.start_ns = next.start_ns.max(exit_ns),
            None => self.phases.went_on(exit_ns),
        }
        (wait.exit_ns, piece.end_ns) = (exit_ns, exit_ns);
    }

    fn attribute(
        &mut self,
        piece: &Piece,
        processes: &mut Processes,
        several_ranks: bool,
        config: &Config,
    ) -> Closed {
        let enter_ns = piece.enter_ns();
        let producer_pid = piece.wait.as_ref().and_then(|wait| producer_pid(wait, processes));
        let (mut own, mut waited) = (Attributed::default(), Attributed::default());
        let (mut shadow, mut shown) = (None, None);
        // Where the interval may hold a checkpoint: outside training, others than savers write, too.
        let saved_ns = self.calls.first_save(piece.end_ns);
        let saving_from_ns = match piece.phase {
            Phase::Training => Some(piece.start_ns),
            _ => saved_ns.map(|saved_ns| saved_ns.clamp(piece.start_ns, enter_ns)),
        };
        let mut saving = Causes::default();
        if let Some(process) = processes.get(&self.pid) {
            let producer = producer_pid.and_then(|pid| processes.get(&pid));
            let batch =
                piece.wait.as_ref().zip(producer).and_then(|(wait, producer)| batch_of(wait, producer));
            // Of a batch that was there already the kernel alone sees nothing, and nobody waited for it.
            let is_shims = piece.wait.is_some_and(|wait| wait.source == Source::Shim);
            if is_shims && batch.is_none() {
                self.batches_unseen += 1;
            }
            let evidence = |kernel: bool| {
                let view = if kernel { Process::view } else { Process::shim_view };
                let trainer = Trainer {
                    view: view(process),
                    calls: self.calls.all(),
                    several_ranks,
                    has_device: self.has_device,
                    kernel_waits: self.shim_handovers == 0,
                    reads_itself: piece.loader == NO_LOADER,
                };
                let wait = piece.wait.map(|wait| Wait {
                    enter_ns,
                    exit_ns: piece.end_ns,
                    start_ns: batch.map(|batch| batch.start_ns),
                    // What the kernel alone saw without a message was there already: all hand-over.
                    ready_ns: match (batch, wait.producer, wait.source) {
                        (None, Producer::Unknown, Source::Kernel) => Some(enter_ns),
                        (batch, ..) => batch.map(|batch| batch.ready_ns),
                    },
                    producer: producer.map(view),
                    passage: Passage {
                        trainer: view(process),
                        pins: kernel.then_some(&process.pins),
                        worker: producer
                            .filter(|_| wait.producer != Producer::Trainer)
                            .map(|worker| (view(worker), kernel.then_some(&worker.errands))),
                    },
                    in_process: wait.producer == Producer::Trainer,
                    slice_ns: config.slice_ns,
                });
                (trainer, wait)
            };
            let account = |(trainer, wait): &(Trainer<'_>, Option<Wait<'_>>)| {
                let own = own_part(trainer, piece.start_ns, enter_ns);
                (own, wait.as_ref().map(wait_part).unwrap_or_default())
            };
            let fused = evidence(true);
            (own, waited) = account(&fused);
            saving = match saving_from_ns {
                Some(from_ns) if from_ns == piece.start_ns => own.causes,
                Some(from_ns) => own_part(&fused.0, from_ns, enter_ns).causes,
                None => saving,
            };
            if piece.phase == Phase::Training && self.slowest.takes(piece.start_ns, piece.end_ns) {
                shown = Some(in_full(piece, &fused.0, fused.1.as_ref(), self.pid, producer_pid));
            }
            // The shim alone does not know what a loop of its own is blocked in, and there may be none: nothing to compare.
            let comparable =
                piece.phase == Phase::Training && piece.loader != NO_LOADER && self.shim_handovers > 0;
            if comparable && own.kernel_ns + waited.kernel_ns > 0 && self.compares(piece) {
                let (own, waited) = account(&evidence(false));
                let alone = own.join(&waited);
                // More unseen than that is a shim that leaves clocks to the kernel.
                let is_whole = alone.unexplained.unseen_ns() <= (piece.end_ns - piece.start_ns) / 10;
                shadow = is_whole.then_some(alone.causes);
            }
        }
        self.calls.settle(piece.phase, piece.end_ns, &saving);
        let both = own.join(&waited);
        if let Some(shim) = &shadow {
            self.compared.fused += &both.seen_by_both();
            self.compared.shim += shim;
        }
        if piece.phase == Phase::Training {
            self.unexplained.add(&both.unexplained);
            self.own_reading.add(&both.own_reading);
            self.asleep_for_threads_ns += both.asleep_for_threads_ns;
            self.transfer_behind_fault_ns += both.transfer_behind_fault_ns;
        }
        self.pair(piece, producer_pid, processes);
        let hidden_ns = self.hidden_ns(piece, &waited.causes);
        let index = self.indices.entry(piece.phase).or_default();
        let shim_handover = piece.wait.is_none_or(|wait| wait.source == Source::Shim);
        let step = StepLedger {
            rank: self.number,
            loader: piece.loader,
            phase: piece.phase,
            index: *index,
            part: piece.part,
            start_ns: piece.start_ns,
            end_ns: piece.end_ns,
            causes: both.causes,
            hidden_ns,
            producer: producer_pid.filter(|pid| *pid != self.pid),
            samples: piece.samples,
            evidence: EvidenceKinds { kernel: both.kernel_ns > 0, shim: shim_handover || both.shim_ns > 0 },
        };
        *index += 1;
        if let Some((lanes, critical)) = shown {
            self.details.push_back(StepDetail {
                rank: step.rank,
                loader: step.loader,
                phase: step.phase,
                index: step.index,
                start_ns: step.start_ns,
                end_ns: step.end_ns,
                lanes,
                critical,
            });
            // Those that nobody takes: the later ones are slower, or of a later minute.
            if self.details.len() > MAX_DETAILS {
                self.details.pop_front();
            }
        }
        self.tallies.step(&step);
        Closed { step, own: own.causes, wait: waited.causes }
    }

    /// Whether to look at what the shim alone would say of this step, which costs as much as the step itself: of all
    /// of a short run's, later of some by chance.
    fn compares(&self, piece: &Piece) -> bool {
        let before = self.indices.get(&piece.phase).copied().unwrap_or(0);
        before < ALL_COMPARED || draw(piece.end_ns, self.pid).is_multiple_of(COMPARED_ONE_IN)
    }

    /// A wait of which the device ran dry for a part only is a stall for that part only.
    fn hidden_ns(&self, piece: &Piece, waited: &Causes) -> Option<u64> {
        if !self.has_device {
            return None;
        }
        if piece.wait.is_none() {
            return Some(0);
        }
        let idle_ns = *self.device_idle.get(&piece.end_ns)?;
        let wait_ns = waited.total_ns();
        Some(wait_ns - idle_ns.min(wait_ns))
    }

    fn pair(&self, piece: &Piece, producer_pid: Option<u32>, processes: &mut Processes) {
        let Some(wait) = piece.wait.filter(|wait| wait.source == Source::Shim) else { return };
        let Some(producer) = producer_pid.and_then(|pid| processes.get_mut(&pid)) else { return };
        if let Some(batch) = producer.shim.find(loader_of(&wait), wait.index, wait.exit_ns) {
            producer.shim.paired(&batch, &wait);
        }
    }
}

/// What a step's detail shows. A worker's lane begins with the making of the batch, as far as that is remembered.
fn in_full(
    piece: &Piece,
    trainer: &Trainer<'_>,
    wait: Option<&Wait<'_>>,
    pid: u32,
    producer_pid: Option<u32>,
) -> (Vec<StepLane>, Vec<CriticalPiece>) {
    let mut lanes = vec![detail::lane(&trainer.view, pid, Role::Trainer, piece.start_ns, piece.end_ns)];
    let worker =
        wait.filter(|wait| !wait.in_process).and_then(|wait| Some((wait, wait.producer?, producer_pid?)));
    if let Some((wait, view, pid)) = worker {
        let from_ns = wait.start_ns.unwrap_or(piece.start_ns).min(piece.start_ns);
        lanes.push(detail::lane(&view, pid, Role::Worker, from_ns, piece.end_ns));
    }
    (lanes, detail::critical(trainer, wait, piece.start_ns, piece.enter_ns()))
}

/// A worker serves one loader and may not know its number; a trainer may serve several.
fn loader_of(wait: &Handover) -> Option<u16> {
    (wait.producer == Producer::Trainer).then_some(wait.loader)
}

fn batch_of(wait: &Handover, producer: &Process) -> Option<BatchTimes> {
    let paired = || {
        let batch = producer.shim.find(loader_of(wait), wait.index, wait.exit_ns)?;
        Some(BatchTimes { start_ns: batch.start_ns, ready_ns: batch.ready_ns })
    };
    wait.batch.or_else(paired)
}

/// The producer's pid on the host. A pid inside a container is looked for among the trainer's descendants
/// first; where trainer and host share a namespace it is the host's.
pub(crate) fn producer_pid(wait: &Handover, processes: &Processes) -> Option<u32> {
    let id = match wait.producer {
        Producer::Trainer => return Some(wait.pid),
        Producer::Pid(pid) => return Some(pid),
        Producer::NamespacePid(id) => id,
        Producer::Unknown => return None,
    };
    let trainer = processes.get(&wait.pid)?;
    if !trainer.greeted || trainer.facts.ns_pid == wait.pid {
        return Some(id);
    }
    let named = || processes.iter().filter(|(_, process)| process.greeted && process.facts.ns_pid == id);
    let (pid, _) = named()
        .filter(|(pid, _)| owner(**pid, processes, |owner| owner == wait.pid).is_some())
        .max_by_key(|(_, process)| process.last_seen_ns)
        .or_else(|| named().max_by_key(|(_, process)| process.last_seen_ns))?;
    Some(*pid)
}

/// The nearest ancestor for which `is` holds. By the kernel's parents where it reported them, else by what the
/// processes reported, whose numbers hold within their own pid namespace. Of a process whose parent did not report (Python's server that
/// forks workers has no shim), who waited for what it made stands for that.
pub(crate) fn owner(pid: u32, processes: &Processes, is: impl Fn(u32) -> bool) -> Option<u32> {
    let mut at = pid;
    for _ in 0..8 {
        let process = processes.get(&at)?;
        let parent = match process.host_ppid {
            Some(parent) => Some(parent),
            None if process.facts.ns_pid == process.facts.pid => Some(process.facts.ppid),
            None => processes
                .iter()
                .find(|(_, other)| other.greeted && other.facts.ns_pid == process.facts.ppid)
                .map(|(pid, _)| *pid),
        };
        at =
            parent.filter(|parent| is(*parent) || processes.contains_key(parent)).or(process.shim.trainer)?;
        if is(at) {
            return Some(at);
        }
    }
    None
}
