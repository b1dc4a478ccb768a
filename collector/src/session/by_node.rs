//! The session of a job that nobody launched with `run`: its shim came by itself, or its processes were found, and the node's launcher
//! has started this process, as the job's user, to collect its evidence. Nobody looks at it. It writes a recording where the node's
//! configuration names a folder for them, and then looks after its user's recordings there.

use super::{Happened, Session, TICK, View, has_ended, runtime, show_card, start_recording};
use crate::control::{Control, Owner};
use crate::engine::Engine;
use crate::kernel_client::{KernelClient, KernelSource};
use crate::options::KernelChoice;
use crate::registration::{self, Registration};
use crate::runtime::{Claim, RuntimeDir, places};
use crate::signals::Signals;
use crate::{child, foreign_text, host, procfs, shims};
use anyhow::{Context, Result, bail};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use stallscope_model::{EvidenceState, JobFacts, RunSummary};
use stallscope_store::{Dropped, Retention};
use stallscope_units::memory;
use stallscope_wire::JobHello;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use tokio::signal::unix::SignalKind;
use tokio::time::Instant;

/// How often its user's recordings are looked after, beside at its beginning and its end.
const LOOK_AFTER: Duration = Duration::from_secs(3600);

/// Nobody looks.
struct Unseen;

impl View for Unseen {
    fn progress(&mut self, _: &RunSummary) {}
    fn note(&mut self, _: &str) {}
    fn screen(&mut self, _: &RunSummary, _: Option<&Path>) {}
}

/// Until the job ends or a signal comes: then a successor may take the job's folder, where its processes keep calling.
///
/// # Errors
/// The process is gone, the job has a collector, its folder can't be made, or there is no evidence of it.
pub(crate) fn collect(pid: u32, start_ticks: u64, has_shim: bool, recorded: Option<Recorded>) -> Result<()> {
    runtime()?.block_on(collect_here(pid, start_ticks, has_shim, recorded))
}

/// Where the job's recording goes.
#[derive(Debug)]
pub(crate) struct Recorded {
    /// Its user's own; or why there is none, in a sentence.
    pub(crate) folder: Result<PathBuf, String>,
    pub(crate) retention: Retention,
}

impl Recorded {
    /// Has those go of its user's recordings that are too old or too many. What there is to say of it, in a sentence.
    fn look_after(&self) -> Option<String> {
        let folder = match &self.folder {
            Ok(folder) => folder,
            Err(why) => return Some(format!("it is not recorded: {why}")),
        };
        match self.retention.apply(folder, SystemTime::now()) {
            Ok(Dropped { recordings: 0, .. }) => None,
            Ok(Dropped { recordings, bytes }) => Some(format!(
                "recordings dropped in {}, the oldest first: {recordings}, which took {}",
                folder.display(),
                memory(bytes)
            )),
            Err(error) => Some(format!("{} cannot be listed: {error}", folder.display())),
        }
    }
}

async fn collect_here(pid: u32, start_ticks: u64, has_shim: bool, recorded: Option<Recorded>) -> Result<()> {
    let mut signals = Signals::new()?;
    let raw = Pid::from_raw(pid as i32).context("no process has the number 0")?;
    let pidfd = pidfd_open(raw, PidfdFlags::NONBLOCK)?;
    let key = if has_shim { places::key(pid, start_ticks) } else { places::found_key(pid, start_ticks) };
    let Claim::Mine(dir) = RuntimeDir::of_this_user()?.claim(&key)? else {
        bail!("process {pid} has a collector already");
    };
    let server = shims::Server::bind(&dir.socket())?;
    let mut command = procfs::command(pid);
    foreign_text::shorten_command(&mut command);
    let words: Vec<OsString> = command.iter().map(OsString::from).collect();
    let name = child::name_of(&words);
    let uid = rustix::process::getuid().as_raw();
    let job = JobFacts {
        name: name.clone(),
        command,
        pid,
        user: host::user_name(uid),
        started_wall_ns: host::wall_ns(),
        // What came before its first step is no part of what is measured.
        attached: true,
        ..JobFacts::default()
    };
    let mut engine = Engine::new(job.clone(), has_shim);
    let source = KernelSource::find(KernelChoice::Auto).await?;
    let kernel = KernelClient::start(source, pid, false, None, &mut engine);
    if let (EvidenceState::Missing(reason), false) = (&engine.summary().kernel, has_shim) {
        bail!("there is no evidence of process {pid}: {reason}");
    }
    let mut view = Unseen;
    let mut news = recorded.as_ref().and_then(Recorded::look_after);
    if let Some(folder) = recorded.as_ref().and_then(|recorded| recorded.folder.as_ref().ok()) {
        let target = folder.join(child::recording_of(&name));
        start_recording(&mut engine, &job, Some(target), &name, &mut view);
    }
    show_card(&dir, &job, &engine, &mut view);
    let hello = JobHello {
        name: name.clone(),
        label: registration::label(),
        pid: Some(pid),
        granted_bytes: dir.granted_bytes(),
        ..JobHello::default()
    };
    let link = Registration::open(hello).await.keep(pid);
    let mut grants = link.grants();
    let mut control = Control::new(Owner { uid, name: job.user, job: name });
    control.report_to(link);
    let mut session = Session::new(engine, control, kernel, Some(server), None, &mut view);
    let mut looked_after = Instant::now();
    loop {
        if let Some(sentence) = news.take() {
            session.control.of_recordings(sentence);
        }
        let over = async {
            while !has_ended(&pidfd) {
                tokio::time::sleep(TICK).await;
            }
        };
        match session.until(over, &mut signals).await {
            Happened::Idle => {
                if grants.has_changed().unwrap_or(false)
                    && let Some(bytes) = *grants.borrow_and_update()
                {
                    dir.keep_granted(bytes);
                }
                if looked_after.elapsed() >= LOOK_AFTER {
                    looked_after = Instant::now();
                    news = recorded.as_ref().and_then(Recorded::look_after);
                }
            }
            Happened::Signal(kind) if kind == SignalKind::user_defined1() => {}
            Happened::Over(()) | Happened::Signal(_) => {
                session.end(None).await;
                // Its own recording has grown since; nobody is left to hear of it.
                let _ = recorded.as_ref().and_then(Recorded::look_after);
                if has_shim && !has_ended(&pidfd) {
                    dir.leave();
                }
                return Ok(());
            }
        }
    }
}
