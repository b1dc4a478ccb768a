//! One job's evidence in, its ledger, recording and summary out. Knows no socket and no clock of its own.

mod summary;
#[cfg(test)]
mod tests;

use crate::adviser::{Adviser, Around};
use crate::audit::Audit;
use crate::files::Files;
use crate::foreign_text;
use crate::fresh::{Fresh, Trained};
use crate::host;
use crate::knobs::{Knobs, Resolved};
use crate::lanes::{self, Lane, Lanes};
use crate::procfs::{self, CpuTicks};
use crate::usage::job_cpus;
use crate::wanted::Wanting;
use crate::watchdog::{SUSPECT_NS, Watchdog};
use stallscope_abi::kernel::{Record, TaskSlot};
use stallscope_ledger::{Config, HostCpus, Ledger, Member, ProcessFacts};
use stallscope_model::{
    AuditEvent, CacheSummary, EvidenceState, HeldSummary, HostFacts, JobFacts, KnobRequest, LoaderFacts,
    Phase, RunSummary, StepLedger, TuneMode, WorkerPeriod,
};
use stallscope_ring::{Fact, Greeting, Reader};
use stallscope_store::{ClockAnchor, Recorder};
use stallscope_wire::ProgramState;
use stallscope_wire::frame::{Splitter, Tag, Tick};
use std::collections::{BTreeMap, HashSet};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

pub(crate) struct Engine {
    ledger: Ledger,
    recorder: Option<Recorder>,
    job: JobFacts,
    host: HostFacts,
    lanes: Lanes,
    pub(crate) knobs: Knobs,
    adviser: Adviser,
    pub(crate) audit: Audit,
    /// Of the controller, while there is one.
    tune: Option<TuneMode>,
    pub(crate) held: Option<HeldSummary>,
    /// For it.
    pub(crate) fresh: Fresh,
    trained: Trained,
    kernel: EvidenceState,
    programs: Vec<ProgramState>,
    frames: Splitter,
    kernel_lost: BTreeMap<String, u64>,
    kernel_lost_before: BTreeMap<String, u64>,
    kernel_cpu_ns: Option<u64>,
    files: Files,
    /// Latest moment up to which all kernel evidence has arrived.
    kernel_until_ns: u64,
    records: u64,
    /// The period of [`WorkerPeriod`]s that was under way when they were last taken.
    period: u64,
    begun_ns: u64,
    start_cpu_ns: u64,
    begun_ticks: Option<CpuTicks>,
    wanting: Wanting,
    pub(crate) wants_shim: bool,
    shims_seen: bool,
    refused: u64,
    page_refused: bool,
    cache_refused: bool,
    watchdog: Watchdog,
    notices: Vec<String>,
}

/// So many processes' periods are kept each second.
const FEW_LANES: usize = 64;

impl Engine {
    pub(crate) fn new(job: JobFacts, wants_shim: bool) -> Engine {
        let begun_ns = host::now_ns();
        let host = host::facts();
        // Of its root, until its trainers are known.
        let cpus = job_cpus(&[job.pid]).unwrap_or(f64::from(host.cpus));
        let mut ledger = Ledger::new(Config {
            cpus: cpus.ceil() as u32,
            memory_bytes: host.memory_bytes,
            attached: job.attached,
            ..Config::default()
        });
        ledger.root(job.pid, begun_ns);
        Engine {
            ledger,
            recorder: None,
            job,
            host,
            lanes: Lanes::default(),
            knobs: Knobs::default(),
            adviser: Adviser::new(cpus),
            audit: Audit::default(),
            tune: None,
            held: None,
            fresh: Fresh::default(),
            trained: Trained::default(),
            kernel: EvidenceState::Off,
            programs: Vec::new(),
            frames: Splitter::default(),
            kernel_lost: BTreeMap::new(),
            kernel_lost_before: BTreeMap::new(),
            kernel_cpu_ns: None,
            files: Files::default(),
            kernel_until_ns: 0,
            records: 0,
            period: 0,
            begun_ns,
            start_cpu_ns: 0,
            begun_ticks: CpuTicks::read(),
            wanting: Wanting::default(),
            wants_shim,
            shims_seen: false,
            refused: 0,
            page_refused: false,
            cache_refused: false,
            watchdog: Watchdog::default(),
            notices: Vec::new(),
        }
    }

    /// All is set up: what comes from here on is the cost of measuring.
    pub(crate) fn started(&mut self) {
        self.start_cpu_ns = host::own_cost().0;
    }

    /// Whose job it is, if not this process's user's.
    pub(crate) fn owned_by(&mut self, uid: u32) {
        self.watchdog.owner(uid);
    }

    pub(crate) fn record_with(&mut self, recorder: Recorder) {
        self.recorder = Some(recorder);
    }

    /// How long the job has trained so far, by the steps of one rank.
    pub(crate) fn trained_ns(&self) -> u64 {
        self.trained.ns()
    }

    /// Where the recording is being written.
    pub(crate) fn recording(&self) -> Option<PathBuf> {
        self.recorder.as_ref().and_then(Recorder::path).map(Path::to_path_buf)
    }

    /// Sentences for the person at the terminal since the last call.
    pub(crate) fn notices(&mut self) -> Vec<String> {
        let recorder = self.recorder.as_mut().map(Recorder::take_notices).unwrap_or_default();
        recorder.into_iter().chain(std::mem::take(&mut self.notices)).collect()
    }

    pub(crate) fn kernel_is(&mut self, state: EvidenceState) {
        self.kernel = state;
        // Each connection counts its losses from its own beginning.
        for (reason, count) in std::mem::take(&mut self.kernel_lost) {
            let before = foreign_text::loss(&mut self.kernel_lost_before, &reason);
            before.into_iter().for_each(|before| *before = before.saturating_add(count));
        }
        self.files.restart();
        // A new connection begins with a whole frame.
        self.frames = Splitter::default();
    }

    /// The kernel programs as of now: none while no service answers.
    pub(crate) fn kernel_has(&mut self, programs: Vec<ProgramState>) {
        self.programs = programs;
    }

    pub(crate) fn kernel_until_ns(&self) -> u64 {
        self.kernel_until_ns
    }

    /// Bytes from the kernel service, cut anywhere.
    pub(crate) fn kernel_bytes(&mut self, bytes: &[u8]) -> Result<(), stallscope_wire::Error> {
        let Engine {
            frames, ledger, lanes, kernel_lost, kernel_cpu_ns, files, kernel_until_ns, records, ..
        } = self;
        let mut now_ns = host::now_ns();
        frames.feed(bytes, |tag, payload| match tag {
            Tag::Record => {
                *records += 1;
                match Record::parse(payload) {
                    Some(record) => {
                        read_last(ledger, lanes, records, &record);
                        ledger.kernel(&record);
                        name_rank(ledger, &record);
                    }
                    None => *kernel_lost.entry("unknown kernel record".into()).or_default() += 1,
                }
            }
            Tag::Slot => {
                if let Some(slot) = TaskSlot::parse(payload) {
                    ledger.open_slot(&slot, now_ns);
                }
            }
            Tag::Still => payload.chunks_exact(4).for_each(|tid| {
                ledger.still_blocked(u32::from_ne_bytes([tid[0], tid[1], tid[2], tid[3]]), now_ns);
            }),
            Tag::FileWait => files.file(payload),
            Tag::MountWait => files.mount(payload),
            Tag::Tick => {
                if let Ok(tick) = stallscope_wire::decode::<Tick>(payload) {
                    for (reason, count) in tick.lost {
                        foreign_text::loss(kernel_lost, &reason).into_iter().for_each(|lost| *lost = count);
                    }
                    *kernel_cpu_ns = tick.run_time_ns.or(*kernel_cpu_ns);
                    *kernel_until_ns = tick.now_ns;
                    now_ns = tick.now_ns;
                }
            }
        })
    }

    pub(crate) fn shim_arrived(&mut self, connection: u64, pid: u32, mut greeting: Greeting, reader: Reader) {
        if !self.lanes.has_place_for(reader.bytes()) {
            let gib = lanes::BYTES >> 30;
            self.shim_refused(pid, &format!("the lanes of all processes would take more than {gib} GiB"));
            return;
        }
        foreign_text::shorten_greeting(&mut greeting);
        self.ledger.process(ProcessFacts {
            pid,
            ns_pid: greeting.pid,
            ppid: greeting.ppid,
            kind: kind(greeting.kind),
            rank: greeting.rank.rank,
            world_size: greeting.rank.world_size,
            host: self.host.host.clone(),
            torch_version: greeting.torch,
            python_version: greeting.python,
            unavailable: greeting.unavailable,
        });
        self.shims_seen = true;
        self.knobs.process(connection, greeting.rank.rank);
        self.lanes.add(connection, Lane { pid, rank: greeting.rank.rank, reader });
    }

    /// A shim whose lane can't be read, because it is older, newer or none of ours.
    pub(crate) fn shim_refused(&mut self, pid: u32, reason: &str) {
        self.refused += 1;
        if self.refused == 1 {
            self.notices.push(format!("the shim in process {pid} is not read: {reason}"));
        }
    }

    /// A client connected whose first line is none of the protocol's.
    pub(crate) fn stranger_refused(&mut self) {
        self.refused += 1;
    }

    pub(crate) fn shim_reported(&mut self, connection: u64, fact: Fact) {
        let Some(Lane { pid, rank: of, .. }) = self.lanes.of(connection) else { return };
        match fact {
            Fact::Loader(mut loader) => {
                foreign_text::shorten_loader(&mut loader);
                let facts = LoaderFacts {
                    loader: loader.loader,
                    workers: loader.workers,
                    batch_size: loader.batch_size,
                    prefetch_factor: loader.prefetch_factor,
                    pin_memory: loader.pin_memory,
                    persistent_workers: loader.persistent_workers,
                    start_method: loader.start_method,
                    dataset: loader.dataset,
                    dataset_len: loader.dataset_len,
                };
                self.adviser.loader(*of, &facts);
                self.ledger.loader(*pid, facts);
            }
            Fact::Kind { kind: is, rank } => {
                *of = rank.rank;
                self.ledger.kind(*pid, kind(is), rank.rank, rank.world_size);
                self.knobs.process(connection, rank.rank);
            }
            Fact::Knob(knob) => {
                // It was asked for, and its user waits for what it brings.
                if knob.name == "cache.bytes"
                    && !knob.available
                    && !std::mem::replace(&mut self.cache_refused, true)
                {
                    self.notices.push(foreign_text::sentence(&knob.reason));
                }
                self.knobs.report(connection, knob);
            }
            Fact::KnobGone { slot } => self.knobs.remove(connection, slot),
            Fact::Unavailable { what } => self.ledger.unavailable(*pid, foreign_text::sentence(&what)),
            // Waits name their workers themselves; a page without its descriptor is none; a newer shim may say more.
            Fact::Workers { .. } | Fact::Page { .. } | Fact::Unknown => {}
        }
    }

    /// A process hands over the page of its knobs.
    pub(crate) fn page_arrived(&mut self, connection: u64, page: &OwnedFd) {
        if let (Err(error), Some(lane)) = (self.knobs.arrived(connection, page), self.lanes.of(connection))
            && !std::mem::replace(&mut self.page_refused, true)
        {
            self.notices.push(format!("the knobs of process {} cannot be turned: {error}", lane.pid));
        }
    }

    /// The knobs that are asked for, all or none. A request without a loader means the training loaders.
    ///
    /// # Errors
    /// What cannot be, in a sentence.
    pub(crate) fn resolve(&self, requests: &[KnobRequest]) -> Result<Resolved, String> {
        let ranks = self.ledger.summary().ranks;
        let training: HashSet<(u32, u16)> = ranks
            .iter()
            .flat_map(|rank| rank.phases.iter().map(move |phase| (rank.facts.rank, phase)))
            .filter(|(_, phase)| phase.phase == Phase::Training && phase.steps > 0)
            .filter_map(|(rank, phase)| Some((rank, phase.loader?)))
            .collect();
        self.knobs.resolve(requests, &|rank, loader| training.contains(&(rank, loader)))
    }

    /// Adds a line to the audit; it is in the recording after the next [`Engine::flush`].
    pub(crate) fn audit(&mut self, event: AuditEvent) {
        self.audit.add(event, self.recorder.as_mut());
    }

    /// A controller is at work on the job, or no longer.
    pub(crate) fn tuned(&mut self, mode: Option<TuneMode>) {
        self.tune = mode;
        self.fresh = Fresh::default();
    }

    /// Trainers under way; see [`Ledger::members`].
    pub(crate) fn members(&self, now_ns: u64) -> Vec<Member> {
        self.ledger.members(now_ns)
    }

    pub(crate) fn caches(&self) -> Vec<CacheSummary> {
        self.ledger.caches()
    }

    /// A process with the shim is gone or hung up; what it wrote before is still read.
    pub(crate) fn shim_gone(&mut self, connection: u64) {
        self.knobs.gone(connection);
        let taken = self.lanes.take(connection, |pid, record| self.ledger.lane(pid, record));
        if let Some((pid, records)) = taken {
            self.records += records;
            self.ledger.gone(pid, host::now_ns());
        }
    }

    /// Ticks between two looks at the lanes: half a second, and a second for a job of many processes, as a look costs some
    /// cache misses for each of them. A screen changes once a second, and a step waits as long for its evidence.
    pub(crate) fn ticks_a_look(&self) -> u32 {
        if self.lanes.len() > FEW_LANES { 4 } else { 2 }
    }

    /// Whether lanes fill so quickly that they have to be read as often as can be.
    pub(crate) fn is_flooded(&self) -> bool {
        self.lanes.are_flooded()
    }

    /// Reads the lanes and closes the steps that are final.
    pub(crate) fn tick(&mut self) {
        self.records += self.lanes.look(|pid, record| self.ledger.lane(pid, record));
        let steps = self.ledger.advance(host::now_ns());
        self.keep(steps);
    }

    fn keep(&mut self, steps: Vec<StepLedger>) {
        for step in &steps {
            self.adviser.step(step);
            self.trained.step(step);
        }
        if self.tune.is_some() {
            steps.iter().for_each(|step| self.fresh.step(step));
        }
        if let Some(recorder) = &mut self.recorder {
            steps.into_iter().for_each(|step| recorder.step(step));
        }
    }

    /// Of many workers their periods are kept when they are over, or at `last`: a row a worker and second costs more than
    /// the job's steps.
    fn keep_details(&mut self, last: bool) {
        let (details, checkpoints) = (self.ledger.details(), self.ledger.checkpoints());
        let period = host::now_ns() / WorkerPeriod::LENGTH_NS;
        let over = std::mem::replace(&mut self.period, period) != period || last;
        let periods =
            if over || self.lanes.len() <= FEW_LANES { self.ledger.worker_periods() } else { Vec::new() };
        let services = self.ledger.services();
        services.iter().for_each(|service| self.adviser.service(service));
        if self.tune.is_some() {
            services.iter().for_each(|service| self.fresh.service(service));
        }
        let caches = self.ledger.cache_periods();
        caches.iter().for_each(|period| self.adviser.cache(period));
        if let Some(recorder) = &mut self.recorder {
            caches.into_iter().for_each(|period| recorder.cache_period(period));
            details.into_iter().for_each(|detail| recorder.step_detail(detail));
            checkpoints.into_iter().for_each(|checkpoint| recorder.checkpoint(checkpoint));
            periods.into_iter().for_each(|period| recorder.worker_period(period));
            services.into_iter().for_each(|service| recorder.batch_service(service));
        }
    }

    /// Once a second: what a reader of the recording, or its survivor after a kill, gets to see.
    pub(crate) fn flush(&mut self) -> RunSummary {
        self.files.look();
        let anchor = ClockAnchor {
            monotonic_ns: host::now_ns(),
            boottime_ns: host::boottime_ns(),
            wall_ns: host::wall_ns(),
        };
        self.keep_details(false);
        let ledger = &self.ledger;
        self.adviser.second(anchor.monotonic_ns, &self.knobs.state(), || around(ledger));
        if let Some(cpus) = self.adviser.cpus() {
            self.ledger.set_cpus(cpus.ceil() as u32);
        }
        if let Some((now, before)) = CpuTicks::read().zip(self.begun_ticks) {
            let wanted =
                self.wanting.second(anchor.monotonic_ns, || self.ledger.members(anchor.monotonic_ns));
            self.ledger.set_host_cpus(HostCpus { wanted, ..now.since(&before) });
        }
        let silences = self.ledger.silences(anchor.monotonic_ns, SUSPECT_NS);
        self.notices.extend(self.watchdog.look(silences, anchor.monotonic_ns));
        let summary = self.summary();
        if let Some(recorder) = &mut self.recorder {
            recorder.anchor(anchor);
            recorder.flush(&summary);
        }
        summary
    }

    /// The job has ended, or is left: closes everything.
    pub(crate) fn finish(&mut self, exit_code: Option<i32>) -> (RunSummary, Option<PathBuf>) {
        let trainers = trainers(&self.ledger);
        self.lanes.ended();
        for connection in self.lanes.connections() {
            self.shim_gone(connection);
        }
        let steps = self.ledger.finish(host::now_ns());
        self.keep(steps);
        self.keep_details(true);
        self.files.look();
        let ledger = &self.ledger;
        self.adviser.last(&self.knobs.state(), || Around { trainers, ..around(ledger) });
        self.job.exit_code = exit_code;
        self.job.ended_wall_ns = Some(host::wall_ns());
        let summary = self.summary();
        let Some(recorder) = self.recorder.take() else { return (summary, None) };
        let finished = recorder.finish(&summary);
        self.notices.extend(finished.notices);
        (summary, finished.path)
    }
}

fn around(ledger: &Ledger) -> Around {
    let seen = ledger.summary();
    Around { trainers: trainers(ledger), ranks: seen.ranks, caches: seen.caches, epochs: seen.epochs }
}

fn trainers(ledger: &Ledger) -> Vec<u32> {
    ledger.members(host::now_ns()).into_iter().map(|member| member.pid).collect()
}

/// torchrun and Slurm tell a process its rank by its environment, which we may read of our own processes and,
/// privileged, of all. The shim, where there is one, says it better.
fn name_rank(ledger: &mut Ledger, record: &Record) {
    let (Record::TaskNew(task) | Record::TaskExec(task)) = record else { return };
    if task.header.tid != task.header.tgid {
        return;
    }
    let environment = procfs::environment(task.header.tgid).unwrap_or_default();
    let number = |name: &str| {
        let value =
            environment.split(|byte| *byte == 0).find_map(|entry| entry.strip_prefix(name.as_bytes()))?;
        std::str::from_utf8(value).ok()?.parse().ok()
    };
    if let (Some(rank), Some(world_size)) = (number("RANK="), number("WORLD_SIZE=")) {
        ledger.rank(task.header.tgid, rank, world_size);
    }
}

fn kind(kind: stallscope_ring::ProcessKind) -> stallscope_ledger::ProcessKind {
    match kind {
        stallscope_ring::ProcessKind::Trainer => stallscope_ledger::ProcessKind::Trainer,
        stallscope_ring::ProcessKind::Worker => stallscope_ledger::ProcessKind::Worker,
        stallscope_ring::ProcessKind::Other => stallscope_ledger::ProcessKind::Other,
    }
}

/// A process tells what it did before the kernel tells that it ended: its lane may have waited a second for a look.
fn read_last(ledger: &mut Ledger, lanes: &mut Lanes, records: &mut u64, record: &Record) {
    let Record::TaskExit(exit) = record else { return };
    if exit.header.tid == exit.header.tgid {
        *records += lanes.read_last(exit.header.tgid, |pid, record| ledger.lane(pid, record));
    }
}
