//! Launches the job as the user who typed it, in their environment, with the shim on its Python path.

use crate::foreign_text::short;
use crate::private_mounts::PrivateMounts;
use crate::sudo::Caller;
use crate::witness::Witnesses;
use crate::{procfs, signals};
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use tokio::process::{Child, Command};
use tokio::signal::unix::SignalKind;

/// Why a command did not start; `code` is what a shell would exit with.
#[derive(Debug, thiserror::Error)]
#[error("{sentence}")]
pub struct LaunchError {
    pub code: i32,
    sentence: String,
}

/// What a job is given to load the shim.
pub(crate) struct Shim<'a> {
    /// The folder that holds the Python package.
    pub(crate) package: &'a Path,
    /// The collector's.
    pub(crate) socket: &'a Path,
    /// Memory for the files of the data set that it trains on.
    pub(crate) cache_bytes: Option<u64>,
}

/// Starts `command`, with the shim where one is given, and what it alone sees.
pub(crate) fn launch(
    command: &[OsString],
    shim: Option<Shim<'_>>,
    mounts: &mut PrivateMounts,
    run_as: Option<&Caller>,
    witnesses: &Witnesses,
) -> Result<Child, LaunchError> {
    let Some((program, arguments)) = command.split_first() else {
        return Err(LaunchError { code: 2, sentence: "no command was given".into() });
    };
    let mut child = Command::new(program);
    child.args(arguments);
    // Of a job that starts this one, and which may be one of the node's policy.
    for theirs in ["STALLSCOPE_CACHE_BYTES", "STALLSCOPE_NODE_JOB"] {
        child.env_remove(theirs);
    }
    if shim.is_none() {
        // None comes by itself either.
        child.env("STALLSCOPE_SHIM", "off");
    }
    if let Some(shim) = shim {
        let mut path = vec![shim.package.join("stallscope/_inject")];
        if let Some(theirs) = std::env::var_os("PYTHONPATH").filter(|value| !value.is_empty()) {
            path.extend(std::env::split_paths(&theirs));
        }
        if let Ok(path) = std::env::join_paths(path) {
            child.env("PYTHONPATH", path);
        }
        child.env("STALLSCOPE_SOCKET", shim.socket);
        if let Some(bytes) = shim.cache_bytes {
            child.env("STALLSCOPE_CACHE_BYTES", bytes.to_string());
        }
    }
    let entered = mounts.enter(child.as_std_mut(), run_as.is_some());
    entered.map_err(|error| LaunchError {
        code: 126,
        sentence: format!("cannot prepare the job's mounts: {error}"),
    })?;
    // Once it has mounted: for that it has to be root.
    if let Some(caller) = run_as {
        caller.run(child.as_std_mut());
    }
    signals::hear_of(child.as_std_mut());
    // The last thing before it is the job.
    witnesses.begin_with(child.as_std_mut());
    child.spawn().map_err(|error| {
        if let Some(sentence) = mounts.trouble(&error) {
            return LaunchError { code: 126, sentence };
        }
        let name = Path::new(program).display();
        let (code, sentence) = match error.kind() {
            std::io::ErrorKind::NotFound => (127, format!("there is no command {name}")),
            // exec says the same of a folder in PATH that may not be looked into.
            std::io::ErrorKind::PermissionDenied if !is_seen(Path::new(program)).unwrap_or(true) => {
                (127, format!("there is no command {name}"))
            }
            std::io::ErrorKind::PermissionDenied => (126, format!("{name} may not be executed")),
            _ => (126, format!("{name} did not start: {error}")),
        };
        LaunchError { code, sentence }
    })
}

/// Fails where there is no such command, before anything is prepared for it.
pub(crate) fn find(command: &[OsString]) -> Result<(), LaunchError> {
    let Some(program) = command.first().map(Path::new) else { return Ok(()) };
    let name = program.display();
    match is_seen(program) {
        Ok(true) => Ok(()),
        Ok(false) => Err(LaunchError { code: 127, sentence: format!("there is no command {name}") }),
        Err(error) => {
            Err(LaunchError { code: 126, sentence: format!("{name} cannot be looked at: {}", error.kind()) })
        }
    }
}

/// Whether there is such a file, in PATH where it is named without a folder. An error: a folder on its way may not be entered.
fn is_seen(program: &Path) -> std::io::Result<bool> {
    if program.components().count() > 1 || program.is_absolute() {
        return program.try_exists();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    Ok(std::env::split_paths(&path).any(|folder| folder.join(program).exists()))
}

/// As a shell would show it.
pub(crate) fn exit_code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

/// Passes a signal on to the job, unless all that came of this kind came to the job as well, as to the whole of our process group: a second one
/// may have it give up what it does after the first. SIGUSR1 asks for our screen, and goes to a job that does something of its own at it.
pub(crate) fn forward(kind: SignalKind, job: &Child, witnesses: &mut Witnesses) {
    // Both are asked in any case: what they had left over would be the next one's.
    let (came, to_group) = (signals::came(kind), witnesses.of_group(kind));
    let Some(pid) = job.id() else { return };
    let has_it = came <= if is_in_our_group(pid) { to_group } else { 0 };
    if !has_it && (kind != SignalKind::user_defined1() || expects(kind, pid)) {
        send(kind, job);
    }
}

/// The child itself is asked for its number: once its end was taken note of, be it by a look at it in passing, another process may
/// have that number, and until then none has.
fn send(kind: SignalKind, job: &Child) {
    let signal = rustix::process::Signal::from_named_raw(kind.as_raw_value());
    let pid = job.id().and_then(|pid| rustix::process::Pid::from_raw(pid as i32));
    if let (Some(signal), Some(pid)) = (signal, pid) {
        // A job that ended meanwhile needs no signal.
        let _ = rustix::process::kill_process(pid, signal);
    }
}

fn is_in_our_group(pid: u32) -> bool {
    let group = rustix::process::getpgid(rustix::process::Pid::from_raw(pid as i32));
    group.is_ok_and(|group| group == rustix::process::getpgrp())
}

/// Whether the job does something of its own at this signal: it has a handler for it, or blocks it to ask for it.
fn expects(kind: SignalKind, pid: u32) -> bool {
    let status = procfs::text(pid, "status").unwrap_or_default();
    let sets = ["SigCgt:", "SigBlk:"].map(|name| status.lines().find_map(|line| line.strip_prefix(name)));
    let sets = sets.into_iter().flatten().filter_map(|set| u64::from_str_radix(set.trim(), 16).ok());
    sets.fold(0, |all, set| all | set) >> (kind.as_raw_value() - 1) & 1 == 1
}

/// Characters of a job's name, which every screen, page and metric has. A command line may have a mebibyte, and be another user's.
pub(crate) const NAME_CHARS: usize = 200;

/// A job's name from its command: the script's, else the program's.
pub(crate) fn name_of(command: &[OsString]) -> String {
    let paths: Vec<&Path> = command.iter().map(Path::new).collect();
    let script = paths.iter().skip(1).find(|path| path.extension().is_some_and(|ext| ext == "py"));
    // `python -m package.module`
    let module = command.iter().position(|arg| arg == "-m").and_then(|at| paths.get(at + 1));
    let named = match (script, module) {
        (Some(script), _) => script.file_stem(),
        (None, Some(module)) => Some(module.as_os_str()),
        (None, None) => paths.first().and_then(|program| program.file_stem()),
    };
    named.map_or_else(|| "job".into(), |name| short(&name.to_string_lossy(), NAME_CHARS))
}

/// Bytes of a recording's name that come from its job's: beside it lie files with longer names.
const FILE_NAME_BYTES: usize = 200;

/// Where the recording of a job called `name` goes unless somebody says so: into the current folder. The name may be anybody's,
/// as a command line is its process's own, and is no path.
pub(crate) fn recording_of(name: &str) -> PathBuf {
    let is_safe = |c: char| c != '/' && !c.is_control();
    let mut safe: String = name.chars().map(|c| if is_safe(c) { c } else { '_' }).collect();
    safe.truncate(safe.floor_char_boundary(FILE_NAME_BYTES));
    if safe.is_empty() || safe.starts_with(['.', '-']) {
        safe.insert(0, '_');
    }
    PathBuf::from(format!("{safe}.stall"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn name(words: &str) -> String {
        name_of(&words.split(' ').map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn a_job_is_called_like_its_script() {
        assert_eq!(name(&"x".repeat(1 << 20)).chars().count(), NAME_CHARS);
        assert_eq!(name("python train.py --lr 0.1"), "train");
        assert_eq!(name("torchrun --nproc-per-node 2 src/pretrain.py"), "pretrain");
        assert_eq!(name("python -m timm.train"), "timm.train");
        assert_eq!(name("/opt/bin/trainer --fast"), "trainer");
    }

    #[test]
    fn a_recording_lies_in_the_current_folder_whatever_the_job_is_called() {
        let recording = |name| recording_of(name).display().to_string();
        assert_eq!(recording("timm.train"), "timm.train.stall");
        assert_eq!(recording("träin v2"), "träin v2.stall");
        assert_eq!(recording("/etc/logrotate.d/x"), "_etc_logrotate.d_x.stall");
        assert_eq!(recording("../x\n\u{1b}[2J"), "_.._x__[2J.stall");
        assert_eq!((recording(""), recording("-rf")), ("_.stall".into(), "_-rf.stall".into()));
        assert!(recording(&"ä".repeat(500)).len() < 220);
    }

    /// Has the kernel give the next process the number `pid`, where it lets this process say so.
    fn next_is(pid: u32) -> bool {
        std::fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string()).is_ok()
    }

    #[tokio::test]
    async fn no_signal_goes_to_a_process_that_has_the_number_of_a_job_that_ended() {
        for _ in 0..50 {
            let mut job = Command::new("true").spawn().unwrap();
            let number = job.id().unwrap();
            // As a session looks whether mounts end with the job, before it hears of the job's end.
            while job.try_wait().unwrap().is_none() {
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
            if !next_is(number) {
                eprintln!("SKIPPED: a number can be given again by root only");
                return;
            }
            let mut other = Command::new("sleep").arg("300").kill_on_drop(true).spawn().unwrap();
            // Another process of the machine may have begun in between.
            if other.id() == Some(number) {
                send(SignalKind::terminate(), &job);
                let ended = tokio::time::timeout(std::time::Duration::from_millis(300), other.wait()).await;
                assert!(ended.is_err(), "it was signalled in the job's place");
                return;
            }
        }
        panic!("no process was given that number in 50 tries");
    }

    #[tokio::test]
    async fn a_command_that_is_not_there_exits_as_in_a_shell() {
        let started = |name: &str| {
            launch(&[name.into()], None, &mut PrivateMounts::default(), None, &Witnesses::start())
                .unwrap_err()
        };
        let error = started("no-such-command-at-all");
        assert_eq!(error.code, 127);
        let code = |program: &str| find(&[program.into()]).map_err(|error| error.code);
        assert_eq!((code("/etc/passwd"), code("/etc/no-such-file")), (Ok(()), Err(127)));
        assert_eq!(code("/etc/passwd/within"), Err(126), "what is on its way cannot be entered");
        let error = started("/etc/passwd");
        assert_eq!(error.code, 126);
    }
}
