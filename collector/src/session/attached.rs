//! `attach`: a session for a job that runs already.

use super::{Happened, Session, TICK, View, show_card, start_metrics, start_recording};
use crate::control::{Control, Owner};
use crate::engine::Engine;
use crate::holding::Holding;
use crate::kernel_client::{KernelClient, KernelSource};
use crate::options::{AttachOptions, KernelChoice};
use crate::runtime::{self, Claim, JobDir, RuntimeDir};
use crate::signals::Signals;
use crate::sudo::Caller;
use crate::{child, foreign_text, host, join, procfs, shims};
use anyhow::Result;
use rustix::event::{PollFd, PollFlags, Timespec};
use stallscope_model::JobFacts;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use tokio::signal::unix::SignalKind;
use tokio::time::{Instant, sleep_until};

pub(super) async fn attach_here(options: AttachOptions, view: &mut dyn View) -> Result<()> {
    let mut signals = Signals::new()?;
    let pid = find(&options.job)?;
    // A job whose collector was killed still calls it: then this session takes its place.
    let (dir, card) = runtime::take_over(pid).map_or((None, None), |(dir, card)| (Some(dir), card));
    let taken_over = dir.is_some();
    let pid = card.as_ref().map_or(pid, |card| card.pid);
    let gone = || anyhow::anyhow!("there is no process {pid}; `stallscope ls` lists jobs");
    let raw = rustix::process::Pid::from_raw(pid as i32).ok_or_else(gone)?;
    let pidfd =
        rustix::process::pidfd_open(raw, rustix::process::PidfdFlags::NONBLOCK).map_err(|_| gone())?;
    let mut command = procfs::command(pid);
    foreign_text::shorten_command(&mut command);
    let words: Vec<OsString> = command.iter().map(OsString::from).collect();
    let name = card
        .map_or_else(|| child::name_of(&words), |card| foreign_text::short(&card.name, child::NAME_CHARS));
    let metrics = start_metrics(options.metrics, view)?;
    let source = tokio::select! {
        found = KernelSource::find(KernelChoice::Auto) => found?,
        _ = signals.ending() => {
            dir.into_iter().for_each(JobDir::leave);
            return Ok(());
        }
    };
    // By now a job that was just launched by sudo or setpriv is its user's.
    let owner = std::fs::metadata(format!("/proc/{pid}")).map_err(|_| gone())?.uid();
    // Before anything is recorded: who asked for it would rather know now.
    let holding = options.cache_bytes.map(|bytes| Holding::start(pid, owner, bytes)).transpose()?;
    if has_ended(&pidfd) {
        return Err(gone());
    }
    // What came before is not watched, and no part of the time that the report covers.
    let job = JobFacts {
        name: name.clone(),
        command,
        pid,
        user: host::user_name(owner),
        started_wall_ns: host::wall_ns(),
        attached: true,
        ..JobFacts::default()
    };
    let mut engine = Engine::new(job.clone(), taken_over);
    engine.owned_by(owner);
    // With sudo the recording is the caller's. They had root look into this very process, whosever it is, and not into what
    // its user may not look into.
    let reader = Caller::find().map(|_| owner);
    let kernel = KernelClient::start(source, pid, options.syscalls, reader, &mut engine);
    if let stallscope_model::EvidenceState::Missing(reason) = &engine.summary().kernel
        && !taken_over
    {
        anyhow::bail!("cannot attach to {pid}: {reason}");
    }
    start_recording(&mut engine, &job, options.output, &name, view);
    // Seen by `ls` and `top` like a job that was launched; it is measured all the same without.
    let own = || match RuntimeDir::of_this_user().and_then(|runtime| runtime.claim(&join::attached_key(pid)))
    {
        Ok(Claim::Mine(dir)) => Some(dir),
        Ok(Claim::Taken(_)) | Err(_) => None,
    };
    let dir = dir.or_else(own);
    let server = dir.as_ref().and_then(|dir| shims::Server::bind(&dir.socket()).ok());
    match &dir {
        Some(dir) => show_card(dir, &job, &engine, view),
        None => view.note("`stallscope ls` will not show this job: its folder cannot be made"),
    }
    let end = if options.period.is_some() { "" } else { "; Ctrl-C ends it, the job runs on" };
    view.note(&format!("watching {name}, pid {pid}{end}"));
    if taken_over {
        view.note(
            "its collector was gone: this one takes its place, with its loaders' evidence and its knobs",
        );
    }
    let deadline = options.period.map(|period| Instant::now() + period);
    let control = Control::new(Owner { uid: owner, name: job.user.clone(), job: name });
    let mut session = Session::new(engine, control, kernel, server, metrics, view);
    session.holding = holding;
    if let Some(holding) = &mut session.holding
        && let Err(error) = holding.show_knob(&mut session.engine.knobs)
    {
        session.view.note(&format!("the budget of --cache stays as it is: {error:#}"));
    }
    loop {
        let over = async {
            let ended = async {
                while !has_ended(&pidfd) {
                    tokio::time::sleep(TICK).await;
                }
            };
            match deadline {
                Some(deadline) => tokio::select! { () = ended => (), () = sleep_until(deadline) => () },
                None => ended.await,
            }
        };
        match session.until(over, &mut signals).await {
            Happened::Signal(kind) if kind == SignalKind::user_defined1() => session.show(),
            Happened::Idle => {}
            Happened::Over(()) | Happened::Signal(_) => {
                session.end(None).await;
                if let Some(dir) = dir.filter(|_| taken_over && !has_ended(&pidfd)) {
                    dir.leave();
                }
                return Ok(());
            }
        }
    }
}

/// Whether the process behind a pidfd is gone.
pub(crate) fn has_ended(pidfd: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
}

/// The pid that a person means: a number, or a running job's name or prefix.
fn find(job: &str) -> Result<u32> {
    match job.parse() {
        Ok(pid) => Ok(pid),
        Err(_) => {
            let runtime = RuntimeDir::of_this_user()?;
            runtime
                .find(job)
                .map(|(_, card)| card.pid)
                .or_else(|error| runtime.abandoned(job).map(|card| card.pid).ok_or(error))
        }
    }
}
