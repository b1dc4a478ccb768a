//! Who exports what, and with what right: somebody by hand, a unit of systemd by the node's configuration, or the process that the
//! node's service starts.

use super::{Written, push, shown};
use crate::node_service::Way;
use crate::policy::{Export, Policy};
use anyhow::Result;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use std::convert::Infallible;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// How the service is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// As any caller does, who hears what that caller may know.
    AsCaller,
    /// By stdin, as the process that the service has started for this. It ends with the service.
    ByStdin,
}

/// Exports the node's jobs and its audit until the process ends, as far as the caller may know of them.
///
/// # Errors
/// It can't begin: by hand an address that is taken is an error, and the service's process waits until it is free.
pub fn export_node(
    export: &Export,
    every: Duration,
    written: Written,
    asked: Asked,
    say: fn(&str),
) -> Result<Infallible> {
    match asked {
        Asked::AsCaller => begin(export, every, written, Way::Socket, asked, say),
        Asked::ByStdin => {
            // What it hears of all jobs is in its memory.
            set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
            let way = Way::given()?;
            std::thread::Builder::new().name("end".into()).spawn(end_with_stdin)?;
            begin(export, every, written, way, asked, say)
        }
    }
}

fn begin(
    export: &Export,
    every: Duration,
    written: Written,
    way: Way,
    asked: Asked,
    say: fn(&str),
) -> Result<Infallible> {
    let way = Arc::new(way);
    let is_patient = asked == Asked::ByStdin;
    shown::show(export, written.figures, Arc::clone(&way), is_patient, say)?;
    if let Some(endpoint) = &export.otlp {
        // To its own process the service tells what came since the last one's end.
        let from_now = asked == Asked::AsCaller;
        return push(endpoint, every, written, &way, from_now, say);
    }
    loop {
        std::thread::park();
    }
}

/// The service may end at any moment, and this process is asleep for most of the time.
fn end_with_stdin() {
    let stdin = std::io::stdin();
    loop {
        let mut ends = [PollFd::new(&stdin, PollFlags::RDHUP)];
        if poll(&mut ends, None).is_ok() {
            std::process::exit(0);
        }
    }
}

/// The same as the node's configuration has it (`[export]`), as root's unit of systemd does. SIGHUP has it read again.
///
/// # Errors
/// The configuration can't be read, or it can't begin.
pub fn export_as_configured(
    config: &Path,
    every: Duration,
    written: Written,
    say: fn(&str),
) -> Result<Infallible> {
    let export = Policy::read(config)?.export;
    if export.is_nowhere() {
        say("the configuration has no [export]: nothing is exported until SIGHUP reads one that has");
    }
    let (config, own) = (config.to_owned(), export.clone());
    let (tell, hears) = std::sync::mpsc::channel();
    std::thread::Builder::new().name("reload".into()).spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let heard = runtime.map_err(anyhow::Error::from).map(|runtime| {
            runtime.block_on(async {
                let mut hangups = signal(SignalKind::hangup())?;
                let _ = tell.send(());
                while hangups.recv().await.is_some() {
                    again(&config, &own, say);
                }
                anyhow::Ok(())
            })
        });
        if let Ok(Err(why)) | Err(why) = heard {
            say(&format!("SIGHUP cannot be heard: {why:#}"));
        }
    })?;
    let _ = hears.recv();
    export_node(&export, every, written, Asked::AsCaller, say)
}

/// Begins anew with another `[export]` than `own`, in this process.
fn again(config: &Path, own: &Export, say: fn(&str)) {
    let another = match Policy::read(config) {
        Ok(policy) => policy.export != *own,
        Err(why) => {
            say(&format!("the configuration that was read before stays in force: {why}"));
            false
        }
    };
    if another {
        say("[export] of the configuration is another, and is in force");
        let why = Command::new("/proc/self/exe").arg0("stallscope").args(std::env::args_os().skip(1)).exec();
        say(&format!("it cannot begin anew: {why}"));
    }
}
