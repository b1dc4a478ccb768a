//! The session of a job that nobody launched with `run`: its shim came by itself, or its processes were found, and the node's launcher
//! has started this process, as the job's user, to collect its evidence. Nobody looks at it, and it writes no recording: nobody has
//! named a place for one.

use super::{Happened, Session, TICK, View, has_ended, runtime, show_card};
use crate::control::{Control, Owner};
use crate::engine::Engine;
use crate::kernel_client::{KernelClient, KernelSource};
use crate::options::KernelChoice;
use crate::registration::{self, Registration};
use crate::runtime::{Claim, RuntimeDir, places};
use crate::signals::Signals;
use crate::{child, host, procfs, shims};
use anyhow::{Context, Result, bail};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use stallscope_model::{EvidenceState, JobFacts, RunSummary};
use stallscope_wire::JobHello;
use std::ffi::OsString;
use std::path::Path;
use tokio::signal::unix::SignalKind;

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
pub(crate) fn collect(pid: u32, start_ticks: u64, has_shim: bool) -> Result<()> {
    runtime()?.block_on(collect_here(pid, start_ticks, has_shim))
}

async fn collect_here(pid: u32, start_ticks: u64, has_shim: bool) -> Result<()> {
    let mut signals = Signals::new()?;
    let raw = Pid::from_raw(pid as i32).context("no process has the number 0")?;
    let pidfd = pidfd_open(raw, PidfdFlags::NONBLOCK)?;
    let key = if has_shim { places::key(pid, start_ticks) } else { places::found_key(pid, start_ticks) };
    let Claim::Mine(dir) = RuntimeDir::of_this_user()?.claim(&key)? else {
        bail!("process {pid} has a collector already");
    };
    let server = shims::Server::bind(&dir.socket())?;
    let command = procfs::command(pid);
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
    loop {
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
            }
            Happened::Signal(kind) if kind == SignalKind::user_defined1() => {}
            Happened::Over(()) | Happened::Signal(_) => {
                session.end(None).await;
                if has_shim && !has_ended(&pidfd) {
                    dir.leave();
                }
                return Ok(());
            }
        }
    }
}
