//! Several `stallscope run` of one job on one node (eight Slurm tasks, say): the first is the collector, the
//! others launch their task, point its shim there and stay connected while it runs.

use crate::child::{self, Shim};
use crate::inherited;
use crate::orphans::Orphans;
use crate::package::python_package;
use crate::private_mounts::PrivateMounts;
use crate::session::View;
use crate::signals::Signals;
use crate::sudo::Caller;
use crate::witness::Witnesses;
use anyhow::Result;
use stallscope_wire::{Client, Hello, Reply};
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::time::timeout;

/// How long the job's collector may take to answer; the task's own end would be noticed that much later.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
const REAP_EVERY: Duration = Duration::from_secs(1);

/// What all tasks of one job on this node have in common and no other job has.
pub(crate) fn key(name: &str) -> String {
    match (std::env::var("SLURM_JOB_ID"), std::env::var("SLURM_STEP_ID")) {
        (Ok(job), Ok(step)) => format!("slurm-{job}.{step}"),
        _ => format!("{name}-{}", std::process::id()),
    }
}

/// The same for one that is attached to, perhaps beside its own collector and others who attach.
pub(crate) fn attached_key(pid: u32) -> String {
    format!("attach-{pid}-{}", std::process::id())
}

/// Launches `command` as one more task of the job whose collector listens at `socket`.
pub(crate) async fn run(
    command: &[OsString],
    wants_shim: bool,
    cache_bytes: Option<u64>,
    mounts: &mut PrivateMounts,
    socket: &Path,
    run_as: Option<&Caller>,
    view: &mut dyn View,
) -> Result<i32> {
    let package = if wants_shim { python_package().ok() } else { None };
    let mut signals = Signals::new()?;
    let shim = package.as_deref().map(|package| Shim { package, socket, cache_bytes });
    let mut witnesses = Witnesses::start();
    let orphans = Orphans::expect();
    let mut child = child::launch(command, shim, mounts, run_as, &witnesses)?;
    let pid = child.id().unwrap_or_default();
    inherited::let_go();
    // Held open until the task is over; the collector counts it.
    let introduced = timeout(ANSWER_WITHIN, introduce(socket, pid)).await;
    let introduced = introduced.unwrap_or_else(|_| Err(anyhow::anyhow!("no answer in time")));
    let _connection = match introduced {
        Ok((recording, connection)) => {
            view.note(&format!("this task is measured together with the job's others, into {recording}"));
            Some(connection)
        }
        Err(error) => {
            view.note(&format!("this task is not measured: the job's collector does not answer ({error})"));
            None
        }
    };
    let mut looks = tokio::time::interval(REAP_EVERY);
    loop {
        tokio::select! {
            status = child.wait() => return Ok(status.map_or(1, child::exit_code)),
            _ = looks.tick() => orphans.reap(&child),
            kind = signals.next() => child::forward(kind, &child, &mut witnesses),
        }
    }
}

async fn introduce(socket: &Path, pid: u32) -> Result<(String, BufReader<UnixStream>)> {
    let mut stream = UnixStream::connect(socket).await?;
    stream.write_all(&stallscope_wire::encode(&Hello::new(Client::Run { pid }))).await?;
    let mut stream = BufReader::new(stream);
    let mut line = Vec::new();
    stream.read_until(b'\n', &mut line).await?;
    match stallscope_wire::decode(&line)? {
        Reply::Joined { recording } => Ok((recording, stream)),
        Reply::Error(sentence) => anyhow::bail!(sentence),
        _ => anyhow::bail!("it answered something else"),
    }
}
