use crate::growth::Growth;
use crate::live::{Live, Trouble};
use crate::rollup::Rollups;
use crate::rows::ClockAnchor;
use crate::waiting::Waiting;
use crate::{caches, decisions, details, tables};
use stallscope_model::{
    AuditEvent, BatchService, CachePeriod, CheckpointEvent, JobFacts, Loss, RunSummary, StepDetail,
    StepLedger, WorkerPeriod,
};
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// How a recording is written; the defaults are what everybody should use.
#[derive(Clone, Debug)]
pub struct Options {
    /// Rows of steps before the oldest are merged; about 70 bytes each. The other tables grow in proportion.
    pub step_rows: u64,
    /// Steps kept in memory while the disk is full; more are dropped and counted.
    pub waiting_steps: usize,
    /// Directory for what cannot be written at the target; `None`: one of this user's own under `/var/tmp`.
    pub spool: Option<PathBuf>,
    /// Write in the spool until the end even when the target's file system would do.
    pub spool_always: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { step_rows: 1_000_000, waiting_steps: 50_000, spool: None, spool_always: false }
    }
}

/// Clock anchors nearer to each other than this are not written.
const ANCHOR_EVERY_NS: u64 = 10_000_000_000;
/// Flushes to let pass after one that failed: trying costs more the more steps wait.
const RETRY_FLUSHES: u32 = 5;
/// Clock anchors kept while nothing can be written.
const ANCHORS: usize = 1000;

/// Writes one recording. Whatever happens to the disk, it neither fails nor blocks for long: steps that cannot
/// be written wait, then are dropped and counted, and a sentence for the user says so.
#[derive(Debug)]
pub struct Recorder {
    target: PathBuf,
    options: Options,
    live: Option<Live>,
    steps: VecDeque<StepLedger>,
    rollups: Rollups,
    waiting: Waiting,
    audit_lines: u64,
    anchors: Vec<ClockAnchor>,
    last_anchor_ns: Option<u64>,
    growth: Growth,
    lost: BTreeMap<&'static str, u64>,
    /// The summary whose mirror is in the tables.
    mirrored: Option<RunSummary>,
    /// Why nothing can be written at the moment, as a reason for losses.
    trouble: Option<&'static str>,
    flushes_to_retry: u32,
    notices: Vec<String>,
}

/// What became of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Where it is; `None` when it could not be written at all.
    pub path: Option<PathBuf>,
    /// Sentences for the user that were not taken yet.
    pub notices: Vec<String>,
    /// Everything the recorder lost.
    pub losses: Vec<Loss>,
}

impl Recorder {
    /// Begins a recording at `target`; where that exists, at the first free of `NAME.2.stall`, `NAME.3.stall`, ….
    pub fn create(target: &Path, job: &JobFacts, options: Options) -> Recorder {
        let mut recorder = Recorder {
            target: target.to_path_buf(),
            growth: Growth::new(options.step_rows),
            options,
            live: None,
            steps: VecDeque::new(),
            rollups: Rollups::default(),
            waiting: Waiting::default(),
            audit_lines: 0,
            anchors: Vec::new(),
            last_anchor_ns: None,
            lost: BTreeMap::new(),
            mirrored: None,
            trouble: None,
            flushes_to_retry: 0,
            notices: Vec::new(),
        };
        recorder.flush(&RunSummary { job: job.clone(), ..RunSummary::default() });
        recorder
    }

    /// Where the recording is being written, for readers; `None` while it cannot be.
    pub fn path(&self) -> Option<&Path> {
        self.live.as_ref().map(|live| live.path.as_path())
    }

    /// Takes a step; it is in the file after the next [`Self::flush`].
    pub fn step(&mut self, step: StepLedger) {
        self.rollups.add(&step);
        self.steps.push_back(step);
        if self.steps.len() > self.options.waiting_steps.max(1) && self.trouble.is_some() {
            self.drop_oldest(1);
        }
    }

    /// Takes a step in full. Of each rank the three slowest that end within a minute are kept.
    pub fn step_detail(&mut self, detail: StepDetail) {
        self.waiting.detail(detail);
    }

    /// Takes a checkpoint, which stands for those of its rank that lie within it.
    pub fn checkpoint(&mut self, checkpoint: CheckpointEvent) {
        self.waiting.checkpoint(checkpoint);
    }

    /// Adds to what is known of a worker's period.
    pub fn worker_period(&mut self, period: WorkerPeriod) {
        self.waiting.worker(period);
    }

    /// Adds to what is known of a cache's period.
    pub fn cache_period(&mut self, period: CachePeriod) {
        self.waiting.cache(period);
    }

    /// Adds a line to the audit and gives the number it has there, whatever it says itself.
    pub fn audit(&mut self, event: AuditEvent) -> u64 {
        let line = self.audit_lines;
        self.audit_lines += 1;
        self.waiting.audit(AuditEvent { line, ..event });
        line
    }

    /// Takes how a batch was made. Of each rank at most 200 in ten seconds are kept, fewer where there are many
    /// ranks: a sample, of which nothing is missing when one is not kept.
    pub fn batch_service(&mut self, service: BatchService) {
        self.waiting.service(service);
    }

    /// Takes a reading of the clocks; about one in ten seconds is kept.
    pub fn anchor(&mut self, anchor: ClockAnchor) {
        if self.last_anchor_ns.is_none_or(|last| anchor.monotonic_ns >= last.saturating_add(ANCHOR_EVERY_NS))
        {
            self.last_anchor_ns = Some(anchor.monotonic_ns);
            self.anchors.push(anchor);
        }
    }

    /// Writes everything taken so far and `summary` in one transaction. To be called about once a second.
    pub fn flush(&mut self, summary: &RunSummary) {
        self.write(summary, false);
    }

    /// What the recorder could not write, by reason; steps still waiting are not among it.
    pub fn losses(&self) -> Vec<Loss> {
        let others = [
            (&"recording: roll-ups not writable", &self.rollups.dropped),
            (&"recording: details not writable", &self.waiting.dropped),
        ];
        self.lost
            .iter()
            .chain(others.into_iter().filter(|(_, dropped)| **dropped > 0))
            .map(|(reason, count)| Loss { reason: (*reason).to_owned(), count: *count })
            .collect()
    }

    /// Sentences for the user since the last call, one when writing begins to fail and one when it works again.
    pub fn take_notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notices)
    }

    /// Writes the rest and leaves one plain file.
    pub fn finish(mut self, summary: &RunSummary) -> Finished {
        self.flushes_to_retry = 0;
        self.write(summary, true);
        if self.trouble.is_some() {
            // A summary may fit where the steps do not.
            self.drop_oldest(self.steps.len());
            self.waiting.give_up();
            self.flushes_to_retry = 0;
            self.write(summary, true);
        }
        let path = self.live.take().map(|live| {
            let (path, trouble) = live.finish(&self.target);
            if let Some(trouble) = trouble {
                self.notices.push(format!(
                    "the recording could not be brought to {} ({trouble}); it is at {}",
                    self.target.display(),
                    path.display()
                ));
            }
            path
        });
        Finished { path, losses: self.losses(), notices: self.notices }
    }

    fn write(&mut self, summary: &RunSummary, last: bool) {
        if self.flushes_to_retry > 0 {
            self.flushes_to_retry -= 1;
            self.keep_what_fits();
            return;
        }
        if self.live.is_none() && !self.open(&summary.job) {
            return;
        }
        match self.transact(summary, last) {
            Ok(growth) => {
                self.growth = growth;
                self.steps.clear();
                self.rollups.written();
                self.waiting.written();
                self.anchors.clear();
                self.mirrored = Some(summary.clone());
                if self.trouble.take().is_some() {
                    let lost: u64 = self.lost.values().sum();
                    self.notices
                        .push(format!("{} is written again; {lost} steps were lost so far", self.name()));
                }
            }
            Err(trouble) => self.fail(&trouble, "steps are kept in memory as long as they fit"),
        }
    }

    fn transact(&mut self, summary: &RunSummary, last: bool) -> Result<Growth, Trouble> {
        let json = serde_json::to_string(summary)?;
        let losses = self.losses();
        let mut growth = self.growth.clone();
        let Some(live) = &mut self.live else { return Ok(growth) };
        let transaction = live.connection.transaction()?;
        tables::insert_steps(&transaction, self.steps.iter())?;
        growth.rows += self.steps.len() as u64;
        growth.trim_steps(&transaction)?;
        tables::insert_rollups(&transaction, &self.rollups.unwritten())?;
        details::insert_details(&transaction, &self.waiting.details)?;
        details::insert_checkpoints(&transaction, &self.waiting.checkpoints)?;
        details::add_worker_periods(&transaction, self.waiting.workers())?;
        caches::add_cache_periods(&transaction, self.waiting.caches())?;
        decisions::insert_audit(&transaction, &self.waiting.audit)?;
        decisions::insert_batch_services(&transaction, &self.waiting.services)?;
        growth.trim_others(&transaction, last)?;
        tables::insert_anchors(&transaction, &self.anchors)?;
        for loss in summary.losses.iter().chain(&losses) {
            tables::set_loss(&transaction, loss)?;
        }
        tables::mirror(&transaction, self.mirrored.as_ref(), summary)?;
        tables::set_summary(&transaction, &json)?;
        tables::set_meta(&transaction, "written_wall_ns", &wall_ns().to_string())?;
        if last {
            tables::set_meta(&transaction, "state", "finished")?;
        }
        transaction.commit()?;
        Ok(growth)
    }

    /// Makes the file; false when it cannot be made now.
    fn open(&mut self, job: &JobFacts) -> bool {
        let options = &self.options;
        let opened = Live::create(&self.target, options.spool.as_deref(), !options.spool_always).and_then(
            |(live, elsewhere)| {
                describe(&live, job, options)?;
                Ok((live, elsewhere))
            },
        );
        match opened {
            Ok((live, elsewhere)) => {
                if let Some(reason) = elsewhere {
                    self.notices.push(format!(
                        "{} cannot be written ({reason}); the recording is at {} meanwhile",
                        self.target.display(),
                        live.path.display()
                    ));
                }
                self.mirrored = None;
                self.growth = Growth::new(self.options.step_rows);
                self.live = Some(live);
                true
            }
            Err(trouble) => {
                self.fail(&trouble, "the job is measured all the same");
                false
            }
        }
    }

    fn fail(&mut self, trouble: &Trouble, meanwhile: &str) {
        if self.trouble.is_none() {
            self.notices.push(format!("{} cannot be written: {trouble}; {meanwhile}", self.name()));
        }
        self.trouble = Some(trouble.reason());
        self.flushes_to_retry = RETRY_FLUSHES;
        self.keep_what_fits();
    }

    fn keep_what_fits(&mut self) {
        self.drop_oldest(self.steps.len().saturating_sub(self.options.waiting_steps));
        self.anchors.truncate(ANCHORS);
    }

    fn drop_oldest(&mut self, count: usize) {
        let dropped = self.steps.drain(..count.min(self.steps.len())).count() as u64;
        if dropped > 0 {
            *self.lost.entry(self.trouble.unwrap_or("recording: not writable")).or_default() += dropped;
        }
    }

    fn name(&self) -> String {
        self.path().unwrap_or(&self.target).display().to_string()
    }
}

fn describe(live: &Live, job: &JobFacts, options: &Options) -> Result<(), Trouble> {
    let transaction = live.connection.unchecked_transaction()?;
    for (key, value) in [
        ("schema", crate::VERSION.to_string()),
        ("writer", format!("stallscope {}", env!("CARGO_PKG_VERSION"))),
        ("host", crate::place::host_name()),
        ("state", "running".to_owned()),
        ("step_rows_at_most", options.step_rows.to_string()),
    ] {
        tables::set_meta(&transaction, key, &value)?;
    }
    let summary = RunSummary { job: job.clone(), ..RunSummary::default() };
    tables::mirror(&transaction, None, &summary)?;
    tables::set_summary(&transaction, &serde_json::to_string(&summary)?)?;
    Ok(transaction.commit()?)
}

fn wall_ns() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos())
}
