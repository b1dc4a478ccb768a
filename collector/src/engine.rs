//! One job's evidence in, its ledger, recording and summary out. Knows no socket and no clock of its own.

use crate::host;
use stallscope_abi::kernel::{Record, TaskSlot};
use stallscope_ledger::{Config, Ledger, ProcessFacts};
use stallscope_model::{EvidenceState, HostFacts, JobFacts, Loss, Overhead, RunSummary};
use stallscope_ring::{Fact, Greeting, Reader};
use stallscope_store::{ClockAnchor, Recorder};
use stallscope_wire::frame::{Splitter, Tag, Tick};
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

pub(crate) struct Engine {
    ledger: Ledger,
    recorder: Option<Recorder>,
    job: JobFacts,
    host: HostFacts,
    /// Lanes by connection.
    lanes: HashMap<u64, Lane>,
    /// What lanes of finished processes had dropped.
    lane_dropped: u64,
    kernel: EvidenceState,
    frames: Splitter,
    kernel_lost: BTreeMap<String, u64>,
    kernel_cpu_ns: Option<u64>,
    /// Latest moment up to which all kernel evidence has arrived.
    kernel_until_ns: u64,
    records: u64,
    begun_ns: u64,
    wants_shim: bool,
}

struct Lane {
    pid: u32,
    reader: Reader,
}

impl Engine {
    pub(crate) fn new(job: JobFacts, wants_shim: bool) -> Engine {
        let begun_ns = host::now_ns();
        let mut ledger = Ledger::new(Config::default());
        ledger.root(job.pid, begun_ns);
        Engine {
            ledger,
            recorder: None,
            job,
            host: host::facts(),
            lanes: HashMap::new(),
            lane_dropped: 0,
            kernel: EvidenceState::Off,
            frames: Splitter::default(),
            kernel_lost: BTreeMap::new(),
            kernel_cpu_ns: None,
            kernel_until_ns: 0,
            records: 0,
            begun_ns,
            wants_shim,
        }
    }

    pub(crate) fn record_with(&mut self, recorder: Recorder) {
        self.recorder = Some(recorder);
    }

    pub(crate) fn recording(&self) -> Option<PathBuf> {
        self.recorder.as_ref().map(|recorder| recorder.path().to_path_buf())
    }

    pub(crate) fn kernel_is(&mut self, state: EvidenceState) {
        self.kernel = state;
        // A new connection begins with a whole frame.
        self.frames = Splitter::default();
    }

    pub(crate) fn kernel_until_ns(&self) -> u64 {
        self.kernel_until_ns
    }

    /// Bytes from the kernel service, cut anywhere.
    pub(crate) fn kernel_bytes(&mut self, bytes: &[u8]) -> Result<(), stallscope_wire::Error> {
        let Engine { frames, ledger, kernel_lost, kernel_cpu_ns, kernel_until_ns, records, .. } = self;
        let mut now_ns = host::now_ns();
        frames.feed(bytes, |tag, payload| match tag {
            Tag::Record => {
                *records += 1;
                match Record::parse(payload) {
                    Some(record) => ledger.kernel(&record),
                    None => *kernel_lost.entry("unknown kernel record".into()).or_default() += 1,
                }
            }
            Tag::Slot => {
                if let Some(slot) = TaskSlot::parse(payload) {
                    ledger.open_slot(&slot, now_ns);
                }
            }
            Tag::Tick => {
                if let Ok(tick) = stallscope_wire::decode::<Tick>(payload) {
                    kernel_lost.extend(tick.lost);
                    *kernel_cpu_ns = tick.run_time_ns.or(*kernel_cpu_ns);
                    *kernel_until_ns = tick.now_ns;
                    now_ns = tick.now_ns;
                }
            }
        })
    }

    pub(crate) fn shim_arrived(&mut self, connection: u64, pid: u32, greeting: Greeting, reader: Reader) {
        self.ledger.process(ProcessFacts {
            pid,
            ns_pid: greeting.pid,
            ppid: greeting.ppid,
            kind: greeting.kind,
            rank: greeting.rank,
            world_size: greeting.world_size,
            host: self.host.host.clone(),
            torch_version: greeting.torch,
            python_version: greeting.python,
            unavailable: greeting.unavailable,
        });
        self.lanes.insert(connection, Lane { pid, reader });
    }

    pub(crate) fn shim_said(&mut self, connection: u64, fact: Fact) {
        let Some(lane) = self.lanes.get(&connection) else { return };
        self.ledger.fact(lane.pid, fact);
    }

    /// A process with the shim is gone or hung up; what it wrote before is still read.
    pub(crate) fn shim_gone(&mut self, connection: u64) {
        if let Some(mut lane) = self.lanes.remove(&connection) {
            drain(&mut self.ledger, &mut self.records, &mut lane);
            self.lane_dropped += lane.reader.dropped();
        }
    }

    /// Ten times a second: reads the lanes and closes the steps that are final.
    pub(crate) fn tick(&mut self) {
        for lane in self.lanes.values_mut() {
            drain(&mut self.ledger, &mut self.records, lane);
        }
        let steps = self.ledger.advance(host::now_ns());
        if let Some(recorder) = &mut self.recorder {
            recorder.steps(&steps);
        }
    }

    /// Once a second: what a reader of the recording, or its survivor after a kill, gets to see.
    pub(crate) fn flush(&mut self) -> RunSummary {
        let anchor = ClockAnchor {
            monotonic_ns: host::now_ns(),
            boottime_ns: host::boottime_ns(),
            wall_ns: host::wall_ns(),
        };
        let summary = self.summary();
        if let Some(recorder) = &mut self.recorder {
            recorder.flush(&summary, anchor);
        }
        summary
    }

    /// The job has ended, or is left: closes everything.
    pub(crate) fn finish(&mut self, exit_code: Option<i32>) -> RunSummary {
        let connections: Vec<u64> = self.lanes.keys().copied().collect();
        for connection in connections {
            self.shim_gone(connection);
        }
        let steps = self.ledger.finish(host::now_ns());
        if let Some(recorder) = &mut self.recorder {
            recorder.steps(&steps);
        }
        self.job.exit_code = exit_code;
        self.job.ended_wall_ns = Some(host::wall_ns());
        let summary = self.flush();
        if let Some(recorder) = self.recorder.take() {
            recorder.finish(&summary);
        }
        summary
    }

    pub(crate) fn summary(&self) -> RunSummary {
        let seen = self.ledger.summary();
        let (collector_cpu_ns, collector_rss_bytes) = host::own_cost();
        let dropped: u64 = self.lane_dropped + self.lanes.values().map(|lane| lane.reader.dropped()).sum::<u64>();
        let mut losses = seen.losses;
        losses.extend(self.kernel_lost.iter().map(|(reason, count)| Loss { reason: reason.clone(), count: *count }));
        losses.push(Loss { reason: "lane full".into(), count: dropped });
        losses.extend(self.recorder.iter().flat_map(Recorder::losses));
        losses.retain(|loss| loss.count > 0);
        RunSummary {
            job: self.job.clone(),
            host: self.host.clone(),
            shim: self.shim_state(&seen.ranks),
            ranks: seen.ranks,
            phases: seen.phases,
            kernel: self.kernel.clone(),
            disagreement_share: seen.disagreement_share,
            losses,
            diagnoses: seen.diagnoses,
            verdict: seen.verdict,
            overhead: Overhead {
                collector_cpu_ns,
                collector_rss_bytes,
                kernel_cpu_ns: self.kernel_cpu_ns,
                records: self.records,
                wall_ns: host::now_ns().saturating_sub(self.begun_ns),
            },
        }
    }
}

fn drain(ledger: &mut Ledger, records: &mut u64, lane: &mut Lane) {
    lane.reader.drain(|record| {
        *records += 1;
        ledger.lane(lane.pid, record);
    });
}
