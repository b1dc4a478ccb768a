//! The launcher: starts and ends sessions that tune jobs, each as its job's user. It holds the right to become another user and
//! no other, takes fixed messages alone, and reads nothing that a user wrote.

mod messages;
mod session;

use crate::confine::drop_all_capabilities;
pub(crate) use messages::{FromLauncher, Start, ToLauncher, acts};
pub use session::{SessionEnd, SessionOptions, session};

use anyhow::{Context, Result, bail};
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};
use rustix::thread::{CapabilitySet, set_no_new_privs};
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream as StdStream;
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, pipe};
use tokio::process::{ChildStdin, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// More sessions at once are refused.
const SESSIONS: usize = 1024;

/// What the launcher keeps of root's privileges.
pub(crate) const KEPT: CapabilitySet = CapabilitySet::SETUID.union(CapabilitySet::SETGID);

/// Serves the node's service at the other end of `service`, until that ends or SIGTERM comes. `ends_with_stdin`: SIGHUP comes
/// as a byte on stdin, and the end of what started us as its end. All sessions end with it, and leave what they proved.
///
/// # Errors
/// The service is gone, or there is no more of what a process takes.
pub(crate) fn serve(service: StdStream, ends_with_stdin: bool) -> Result<()> {
    set_no_new_privs(true).context("sessions could gain privileges")?;
    service.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async move {
        let (mut from_service, mut to_service) = UnixStream::from_std(service)?.into_split();
        let mut ends = [SignalKind::terminate(), SignalKind::interrupt()].map(signal);
        let [Ok(terminate), Ok(interrupt)] = &mut ends else { bail!("signals cannot be heard") };
        let mut hangup = signal(SignalKind::hangup())?;
        let stdin = ends_with_stdin.then(|| std::io::stdin().as_fd().try_clone_to_owned()).transpose()?;
        let mut stdin = stdin.map(pipe::Receiver::from_owned_fd).transpose()?;
        let (sender, mut ended) = mpsc::channel::<FromLauncher>(SESSIONS);
        let mut sessions: BTreeMap<u64, ChildStdin> = BTreeMap::new();
        let mut message = Box::pin(ToLauncher::read(&mut from_service));
        loop {
            let reply = tokio::select! {
                read = &mut message => {
                    let read = read.context("the node's service has ended")?;
                    drop(message);
                    message = Box::pin(ToLauncher::read(&mut from_service));
                    match read {
                        ToLauncher::Start(start) => start_one(&start, &mut sessions, &sender),
                        // The session ends itself when nobody holds the other end of its stdin any more.
                        ToLauncher::Stop { id } => {
                            sessions.remove(&id);
                            None
                        }
                    }
                }
                Some(end) = ended.recv() => {
                    if let FromLauncher::Ended { id, .. } = &end {
                        sessions.remove(id);
                    }
                    Some(end)
                }
                byte = next_byte(&mut stdin) => match byte {
                    Some(_) => Some(FromLauncher::Reload),
                    None => return Ok(()),
                },
                _ = hangup.recv() => Some(FromLauncher::Reload),
                _ = terminate.recv() => return Ok(()),
                _ = interrupt.recv() => return Ok(()),
            };
            if let Some(reply) = reply {
                to_service.write_all(&reply.encode()).await.context("the node's service has ended")?;
            }
        }
    })
}

/// Never returns where nothing is to be read.
async fn next_byte(stdin: &mut Option<pipe::Receiver>) -> Option<u8> {
    match stdin {
        Some(stdin) => stdin.read_u8().await.ok(),
        None => std::future::pending().await,
    }
}

fn start_one(
    start: &Start,
    sessions: &mut BTreeMap<u64, ChildStdin>,
    ended: &mpsc::Sender<FromLauncher>,
) -> Option<FromLauncher> {
    let id = start.id;
    let failed = Some(FromLauncher::Ended { id, code: i32::from(SessionEnd::Failed.code()) });
    if sessions.len() >= SESSIONS || sessions.contains_key(&id) {
        return failed;
    }
    let started = command(start).and_then(|mut command| Ok(command.spawn()?));
    let Ok(mut child) = started else { return failed };
    if let Some(stdin) = child.stdin.take() {
        sessions.insert(id, stdin);
    }
    let ended = ended.clone();
    tokio::spawn(async move {
        let status = child.wait().await;
        let code = status.ok().and_then(|status| status.code()).unwrap_or(-1);
        // Where the launcher ends there is nobody to report to.
        let _ = ended.send(FromLauncher::Ended { id, code }).await;
    });
    None
}

/// The session of one job, to be started as the job's user.
///
/// # Errors
/// The process is gone, or is another user's than the service says.
fn command(start: &Start) -> Result<Command> {
    let found = std::fs::metadata(format!("/proc/{}", start.pid))?;
    // It is root's as well where it may not be looked into: then no policy tunes it, as none tunes root's.
    if start.uid == 0 || found.uid() != start.uid {
        bail!("process {} is not of user {}", start.pid, start.uid);
    }
    let (uid, gid) = (Uid::from_raw(start.uid), Gid::from_raw(found.gid()));
    let mut command = Command::new("/proc/self/exe");
    command
        .args(SessionOptions::of(start).words())
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let become_user = move || {
        // The session connects to a socket of the user's own: it needs none of their further groups.
        setgroups(&[])?;
        setresgid(gid, gid, gid)?;
        setresuid(uid, uid, uid)?;
        drop_all_capabilities().map_err(|_| std::io::Error::from_raw_os_error(libc::EPERM))
    };
    // SAFETY: the closure runs between fork and exec, in a process that had one thread, and makes system calls alone.
    unsafe { command.as_std_mut().pre_exec(become_user) };
    Ok(command)
}

async fn read_exactly<const N: usize>(from: &mut OwnedReadHalf) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes).await?;
    Ok(bytes)
}
