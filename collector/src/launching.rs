//! The launcher: starts and ends sessions that tune jobs, each as its job's user. It holds the right to become another user and
//! no other, takes fixed messages alone, and reads nothing that a user wrote.

mod messages;
mod session;

pub(crate) use messages::{FromLauncher, Start, ToLauncher, acts};
pub use session::{SessionEnd, SessionOptions, session};

use anyhow::{Context, Result, bail};
use rustix::thread::{CapabilitySet, set_no_new_privs};
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream as StdStream;
use std::process::Stdio;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, pipe};
use tokio::process::{ChildStdin, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// More sessions at once are refused, of all users and of one.
const SESSIONS: usize = 1024;
const OF_A_USER: usize = 256;

/// What the launcher keeps of root's privileges.
pub(crate) const KEPT: CapabilitySet = CapabilitySet::SETUID.union(CapabilitySet::SETGID);

/// A session that has not ended yet. Its user may have stopped it (SIGSTOP), and then it does not end when it should.
struct Running {
    uid: u32,
    /// The session ends itself when nobody holds this any more.
    stdin: Option<ChildStdin>,
}

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
        let mut sessions: BTreeMap<u64, Running> = BTreeMap::new();
        let mut message = Box::pin(ToLauncher::read(&mut from_service));
        loop {
            let reply = tokio::select! {
                read = &mut message => {
                    let read = read.context("the node's service has ended")?;
                    drop(message);
                    message = Box::pin(ToLauncher::read(&mut from_service));
                    match read {
                        ToLauncher::Start(start) => start_one(&start, &mut sessions, &sender),
                        ToLauncher::Stop { id } => {
                            sessions.entry(id).and_modify(|session| session.stdin = None);
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
    sessions: &mut BTreeMap<u64, Running>,
    ended: &mpsc::Sender<FromLauncher>,
) -> Option<FromLauncher> {
    let id = start.id;
    let failed = Some(FromLauncher::Ended { id, code: i32::from(SessionEnd::Failed.code()) });
    let of_user = sessions.values().filter(|session| session.uid == start.uid).count();
    if sessions.len() >= SESSIONS || of_user >= OF_A_USER || sessions.contains_key(&id) {
        return failed;
    }
    let started = command(start).and_then(|mut command| Ok(command.spawn()?));
    let Ok(mut child) = started else { return failed };
    sessions.insert(id, Running { uid: start.uid, stdin: child.stdin.take() });
    let ended = ended.clone();
    tokio::spawn(async move {
        let status = child.wait().await;
        let code = status.ok().and_then(|status| status.code()).unwrap_or(-1);
        // Where the launcher ends there is nobody to report to.
        let _ = ended.send(FromLauncher::Ended { id, code }).await;
    });
    None
}

/// The session of one job, which becomes the job's user.
///
/// # Errors
/// The process is gone, or is another user's than the service says.
fn command(start: &Start) -> Result<Command> {
    // This file, unlike the folder that it is in, is root's where its process may not be looked into: a set-uid or set-gid program
    // has users and groups that neither the one who started it nor its owner may be given.
    let found = std::fs::metadata(format!("/proc/{}/environ", start.pid))?;
    if start.uid == 0 || found.uid() != start.uid {
        bail!("process {} is not of user {}", start.pid, start.uid);
    }
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0("stallscope")
        // Signals of the launcher's terminal are not its user's word that the session is to end.
        .process_group(0)
        .args(SessionOptions::of(start, found.gid()).words())
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    Ok(command)
}

async fn read_exactly<const N: usize>(from: &mut OwnedReadHalf) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes).await?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const NOBODY: u32 = 65534;

    /// `program` as nobody, until it is dropped.
    struct Sleeping(std::process::Child);

    impl Sleeping {
        fn start(program: &std::path::Path) -> Sleeping {
            let mut command = std::process::Command::new(program);
            std::os::unix::process::CommandExt::uid(&mut command, NOBODY);
            std::os::unix::process::CommandExt::gid(&mut command, NOBODY);
            Sleeping(command.arg("300").spawn().unwrap())
        }

        fn has_session(&self) -> bool {
            let (id, pid) = (1, self.0.id());
            let (start_ticks, acts, rule, cache_bytes, checkpoint_ppm) = (0, true, 1, 0, 0);
            command(&Start { id, uid: NOBODY, pid, start_ticks, acts, rule, cache_bytes, checkpoint_ppm })
                .is_ok()
        }
    }

    impl Drop for Sleeping {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn no_session_has_the_group_of_a_set_gid_program() {
        let folder = std::env::temp_dir().join(format!("ss-setgid-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let program = folder.join("sleep");
        std::fs::copy("/bin/sleep", &program).unwrap();
        // Only root may give files away, and start processes of others.
        if std::os::unix::fs::chown(&program, None, Some(4242)).is_ok() {
            std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
            assert!(Sleeping::start(&program).has_session());
            std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o2755)).unwrap();
            assert!(!Sleeping::start(&program).has_session());
        } else {
            eprintln!("SKIPPED: no_session_has_the_group_of_a_set_gid_program takes root");
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
