//! `run` and `attach` from the first moment to the last screen.

mod attached;
mod by_node;

pub(crate) use attached::has_ended;
pub(crate) use by_node::{Recorded, collect};

use crate::child;
use crate::control::{Control, Owner};
use crate::engine::Engine;
use crate::holding::Holding;
use crate::kernel_client::{Heard, KernelClient, KernelSource};
use crate::metrics::{Metrics, Publisher};
use crate::options::{AttachOptions, RunOptions, TuneOptions};
use crate::orphans::Orphans;
use crate::package::python_package;
use crate::private_mounts::PrivateMounts;
use crate::registration::{self, Registration};
use crate::runtime::{Card, Claim, JobDir, RuntimeDir};
use crate::signals::Signals;
use crate::sudo::Caller;
use crate::witness::Witnesses;
use crate::{descriptors, host, inherited, join, shims};
use anyhow::{Context, Result};
use stallscope_model::{JobFacts, RunSummary};
use stallscope_store::{Options, Recorder};
use stallscope_wire::JobHello;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::signal::unix::SignalKind;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

/// How often a knob's answer is looked for.
const TICK: Duration = Duration::from_millis(250);
/// Ticks between two flushes of the recording, the first of them at once: a second.
const TICKS_A_FLUSH: u32 = 5;
/// How long the last evidence may take to arrive after the job's end.
const LINGER: Duration = Duration::from_millis(700);

/// Where a session shows itself.
pub trait View {
    /// Once a second.
    fn progress(&mut self, summary: &RunSummary);
    /// One sentence that the person at the terminal should know.
    fn note(&mut self, sentence: &str);
    /// The screen: at the end and on SIGUSR1.
    fn screen(&mut self, summary: &RunSummary, recording: Option<&Path>);
}

/// Launches a job, measures it to its end and returns the exit code that a shell would show.
///
/// # Errors
/// [`crate::LaunchError`] when the command can't be started; or what was asked for by name (sudo's collector,
/// metrics) can't be had, before the job starts. Whatever else fails costs measurement, never the job: `view`
/// shows it.
pub fn run(options: RunOptions, view: &mut dyn View) -> Result<i32> {
    runtime()?.block_on(run_here(options, view))
}

/// Measures a running process tree until it ends, `period` is over or Ctrl-C. Where the collector that launched it
/// was killed, this session takes its place.
///
/// # Errors
/// There is no such job, it belongs to another user, there is no kernel evidence to be had, or metrics can't be
/// served where they should.
pub fn attach(options: AttachOptions, view: &mut dyn View) -> Result<()> {
    runtime()?.block_on(attached::attach_here(options, view))
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    // One thread: the collector has to stay small beside the job.
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

async fn run_here(options: RunOptions, view: &mut dyn View) -> Result<i32> {
    if host::was_executed_with_privilege() {
        view.note(
            "the system took LD_LIBRARY_PATH, LD_PRELOAD, TMPDIR and the like from your job's environment, as this program has \
             file capabilities; start jobs with a copy that has none",
        );
    }
    let caller = Caller::find();
    let run_as = caller.as_ref();
    let name = options.name.unwrap_or_else(|| child::name_of(&options.command));
    let first = || options.tune.and_then(|tune| tune.first_cache_bytes());
    let wanted_bytes = options.cache_bytes.or_else(first);
    let cache_bytes = wanted_bytes.filter(|bytes| *bytes > 0);
    // Servers end by themselves where there is to be no job; until then Ctrl-C ends this program as any other.
    let mut mounts = PrivateMounts::start(&options.mounts, run_as)?;
    // Signals are ours before there is a child that could be left behind.
    let mut signals = Signals::new()?;
    let dir = match RuntimeDir::of_this_user().and_then(|runtime| runtime.claim(&join::key(&name))) {
        Ok(Claim::Mine(dir)) => Some(dir),
        Ok(Claim::Taken(socket)) => {
            let wants_shim = options.shim;
            return join::run(&options.command, wants_shim, cache_bytes, &mut mounts, &socket, run_as, view)
                .await;
        }
        Err(error) => {
            view.note(&format!("the shim stays off: {error:#}"));
            None
        }
    };
    // A user who asked for metrics would rather mend the address than find out after a day that there are none.
    let metrics = start_metrics(options.metrics, view)?;
    let server = dir.as_ref().and_then(|dir| open_server(dir, view));
    let package = if options.shim { package(view) } else { None };
    let socket = dir.as_ref().map(JobDir::socket).filter(|_| server.is_some());
    let shim = package.as_deref().zip(socket.as_deref());
    let node = match shim {
        Some(_) => {
            let label = registration::label();
            let own_mode = options.tune.map(|tune| tune.mode);
            let owner = run_as.map(|caller| caller.uid);
            Some(
                Registration::open(JobHello {
                    name: name.clone(),
                    label,
                    owner,
                    own_mode,
                    ..JobHello::default()
                })
                .await,
            )
        }
        None => None,
    };
    let by_node = || node.as_ref().map(|node| node.first_cache_bytes);
    let cache_bytes = wanted_bytes.or_else(by_node).filter(|bytes| *bytes > 0);
    let shim = shim.map(|(package, socket)| child::Shim { package, socket, cache_bytes });
    let wants_shim = shim.is_some();
    child::find(&options.command)?;
    let kernel = tokio::select! {
        found = KernelSource::find(options.kernel) => found?,
        // There is no job yet that it could be passed on to.
        kind = signals.ending() => return Ok(128 + kind.as_raw_value()),
    };
    let mut witnesses = Witnesses::start();
    let orphans = Orphans::expect();
    let mut child = child::launch(&options.command, shim, &mut mounts, run_as, &witnesses)?;
    let pid = child.id().context("the job ended before it could be looked at")?;
    let link = node.map(|node| node.keep(pid));
    let job = JobFacts {
        name: name.clone(),
        command: options.command.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
        pid,
        user: run_as.map_or_else(
            || host::user_name(rustix::process::getuid().as_raw()),
            |caller| caller.name.clone(),
        ),
        started_wall_ns: host::wall_ns(),
        ..JobFacts::default()
    };
    let mut engine = Engine::new(job.clone(), wants_shim);
    // The recording is the user's, who may not look into a set-uid program that their job executes.
    let reader = run_as.map(|caller| caller.uid);
    let kernel = KernelClient::start(kernel, pid, options.syscalls, reader, &mut engine);
    start_recording(&mut engine, &job, options.output, &name, view);
    if let Some(dir) = &dir {
        show_card(dir, &job, &engine, view);
    }
    let uid = run_as.map_or_else(|| rustix::process::getuid().as_raw(), |caller| caller.uid);
    engine.owned_by(uid);
    let mut code = None;
    let mut control = Control::new(Owner { uid, name: job.user.clone(), job: name });
    if let Some(link) = link {
        control.report_to(link);
    }
    if let Some(TuneOptions { mode, budgets }) = options.tune
        && let Err(sentence) = control.begin(&mut engine, mode, budgets, job.user.clone(), None)
    {
        view.note(&sentence);
    }
    inherited::let_go();
    let mut session = Session::new(engine, control, kernel, server, metrics, view);
    loop {
        let over = async {
            match code {
                // The job is over; runs that joined it may still be under way.
                Some(_) => std::future::pending().await,
                None => child.wait().await,
            }
        };
        match session.until(over, &mut signals).await {
            Happened::Over(status) => {
                code = Some(status.map_or(1, child::exit_code));
            }
            Happened::Signal(kind) if kind == SignalKind::user_defined1() => {
                session.show();
                // Batch systems have a job save by it, and send it to the process alone that they have started.
                if code.is_none() {
                    child::forward(kind, &child, &mut witnesses);
                }
            }
            Happened::Signal(kind) => match code {
                // The job is over, and its number may be another process's by now.
                Some(code) => {
                    session.end(Some(code)).await;
                    return Ok(code);
                }
                None => child::forward(kind, &child, &mut witnesses),
            },
            Happened::Idle => {}
        }
        orphans.reap(&child);
        // Those of a job that has ended this moment end with it.
        let ended = mounts.ended();
        if code.is_none() && matches!(child.try_wait(), Ok(None)) {
            ended.iter().for_each(|sentence| session.view.note(sentence));
        }
        if let Some(code) = code
            && session.server.as_ref().is_none_or(|server| server.joined() == 0)
        {
            session.end(Some(code)).await;
            return Ok(code);
        }
    }
}

/// The folder of the shim; without it the job runs unmeasured from inside.
fn package(view: &mut dyn View) -> Option<PathBuf> {
    python_package().map_err(|error| view.note(&format!("the shim stays off: {error:#}"))).ok()
}

/// Listens for the job's processes and for viewers.
fn open_server(dir: &JobDir, view: &mut dyn View) -> Option<shims::Server> {
    let opened = shims::Server::bind(&dir.socket());
    opened.map_err(|error| view.note(&format!("the shim stays off: {error:#}"))).ok()
}

/// Lets others find the job.
fn show_card(dir: &JobDir, job: &JobFacts, engine: &Engine, view: &mut dyn View) {
    let card = Card {
        name: job.name.clone(),
        pid: job.pid,
        recording: engine.recording().unwrap_or_default(),
        started_wall_ns: job.started_wall_ns,
    };
    if let Err(error) = dir.write_card(&card) {
        view.note(&format!("`stallscope ls` will not show this job: {error:#}"));
    }
}

/// Serves figures where somebody asked for them.
fn start_metrics(
    metrics: Option<Metrics<RunSummary>>,
    view: &mut dyn View,
) -> Result<Option<Publisher<RunSummary>>> {
    let publisher = metrics.map(|metrics| Publisher::start(metrics.bind()?)).transpose()?;
    if let Some(publisher) = &publisher {
        view.note(&publisher.whereabouts());
    }
    Ok(publisher)
}

/// A session under way.
struct Session<'a> {
    engine: Engine,
    control: Control,
    kernel: KernelClient,
    server: Option<shims::Server>,
    metrics: Option<Publisher<RunSummary>>,
    /// Of the job's files, where somebody asked for it.
    holding: Option<Holding>,
    view: &'a mut dyn View,
}

enum Happened<T> {
    Over(T),
    Signal(SignalKind),
    /// Nothing more; the caller looks whether it is done.
    Idle,
}

impl<'a> Session<'a> {
    fn new(
        mut engine: Engine,
        control: Control,
        kernel: KernelClient,
        server: Option<shims::Server>,
        metrics: Option<Publisher<RunSummary>>,
        view: &'a mut dyn View,
    ) -> Session<'a> {
        if let Some(metrics) = &metrics {
            metrics.publish(engine.summary());
        }
        engine.started();
        // Each process of the job takes two, a connection and its lane. The job has been started, with its own limit.
        descriptors::allow_all();
        Session { engine, control, kernel, server, metrics, holding: None, view }
    }

    /// Measures until something happens that the caller has to decide on, a flush at the latest.
    async fn until<T>(&mut self, over: impl Future<Output = T>, signals: &mut Signals) -> Happened<T> {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        tokio::pin!(over);
        let mut count: u32 = 0;
        loop {
            tokio::select! {
                value = &mut over => return Happened::Over(value),
                kind = signals.next() => return Happened::Signal(kind),
                heard = self.kernel.next() => hear(&mut self.engine, heard),
                event = shims::next(&mut self.server) => self.handle(event),
                _ = ticks.tick() => {
                    count += 1;
                    if count.is_multiple_of(self.engine.ticks_a_look()) || self.engine.is_flooded() {
                        self.engine.tick();
                    }
                    self.control.tick(&mut self.engine);
                    if let Some(holding) = &mut self.holding {
                        self.engine.held = Some(holding.tick(&mut self.engine.knobs));
                    }
                    if count == TICKS_A_FLUSH {
                        self.control.second(&mut self.engine);
                        let summary = self.engine.flush();
                        self.view.progress(&summary);
                        let of_holding = self.holding.as_mut().and_then(Holding::notice);
                        for sentence in self.engine.notices().iter().chain(&of_holding) {
                            self.view.note(sentence);
                        }
                        if let Some(metrics) = &self.metrics {
                            metrics.publish(summary);
                        }
                        return Happened::Idle;
                    }
                }
            }
        }
    }

    fn handle(&mut self, event: shims::Event) {
        if let shims::Event::Joined { pid: Some(pid), .. } = &event {
            self.kernel.also(*pid);
        }
        shims::handle(&mut self.engine, &mut self.control, event);
    }

    fn show(&mut self) {
        let summary = self.engine.flush();
        let recording = self.engine.recording();
        self.view.screen(&summary, recording.as_deref());
    }

    /// Waits for the last evidence, closes the recording and shows the screen.
    async fn end(&mut self, code: Option<i32>) {
        let over_ns = host::now_ns();
        let deadline = Instant::now() + LINGER;
        while self.engine.kernel_until_ns() < over_ns {
            tokio::select! {
                heard = self.kernel.next() => hear(&mut self.engine, heard),
                event = shims::next(&mut self.server) => self.handle(event),
                () = sleep_until(deadline) => break,
            }
        }
        self.control.end(&mut self.engine, code.is_some());
        self.holding = None;
        let (summary, recording) = self.engine.finish(code);
        for sentence in self.engine.notices() {
            self.view.note(&sentence);
        }
        self.view.screen(&summary, recording.as_deref());
    }
}

fn hear(engine: &mut Engine, heard: Heard<'_>) {
    match heard {
        Heard::Bytes(bytes) => {
            if let Err(error) = engine.kernel_bytes(bytes) {
                engine.kernel_is(stallscope_model::EvidenceState::Partial(error.to_string()));
            }
        }
        Heard::State(state, programs) => {
            engine.kernel_is(state);
            engine.kernel_has(programs);
        }
    }
}

fn start_recording(
    engine: &mut Engine,
    job: &JobFacts,
    output: Option<PathBuf>,
    name: &str,
    view: &mut dyn View,
) {
    let target = output.unwrap_or_else(|| child::recording_of(name));
    engine.record_with(Recorder::create(&target, job, Options::default()));
    for sentence in engine.notices() {
        view.note(&sentence);
    }
}
