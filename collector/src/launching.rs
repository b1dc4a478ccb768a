//! The launcher: starts and ends sessions that tune jobs, each as its job's user. It holds the right to become another user and
//! no other, takes fixed messages alone, and reads nothing that a user wrote.

mod collecting;
mod messages;
mod session;

pub use collecting::{CollectEnd, CollectOptions, collect};
pub(crate) use messages::{Collect, FromLauncher, Start, ToLauncher, acts};
pub use session::{SessionEnd, SessionOptions, session};

use anyhow::{Context, Result, bail};
use rustix::thread::{CapabilitySet, set_no_new_privs};
use stallscope_ebpf::Subordinates;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream as StdStream;
use std::path::Path;
use std::process::Stdio;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, pipe};
use tokio::process::{ChildStdin, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// More at once are refused, of all users and of one, with all ids that are subordinate to theirs: sessions, each of which takes
/// some 10 MB, and collectors, of which one counts as five. One user's fit into what the unit allows (`MemoryMax=`).
const SESSIONS: usize = 1024;
const OF_A_USER: usize = 256;
const OF_A_COLLECTOR: usize = 5;

/// What the launcher keeps of root's privileges.
pub(crate) const KEPT: CapabilitySet = CapabilitySet::SETUID.union(CapabilitySet::SETGID);

/// A session that has not ended yet. Its user may have stopped it (SIGSTOP), and then it does not end when it should.
struct Running {
    payer: u32,
    /// Sessions as which it counts.
    weight: usize,
    /// The session ends itself when nobody holds this any more.
    stdin: Option<ChildStdin>,
}

/// Serves the node's service at the other end of `service`, until that ends or SIGTERM comes. `ends_with_stdin`: SIGHUP comes
/// as a byte on stdin, and the end of what started us as its end. All sessions end with it, and leave what they proved. In
/// `recordings` each user has a folder for those of the jobs that nobody launched with `run`.
///
/// # Errors
/// The service is gone, or there is no more of what a process takes.
pub(crate) fn serve(
    service: StdStream,
    subordinates: &Subordinates,
    ends_with_stdin: bool,
    recordings: Option<&Path>,
) -> Result<()> {
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
                        ToLauncher::Start(start) => {
                            let payer = subordinates.payer(start.uid);
                            let of = Of { id: start.id, uid: start.uid, payer, weight: 1, pid: start.pid };
                            let words = |gid| SessionOptions::of(&start, gid).words().map(OsString::from).to_vec();
                            start_one(of, words, &mut sessions, &sender)
                        }
                        ToLauncher::Collect(collect) => {
                            let payer = subordinates.payer(collect.uid);
                            let (id, uid, pid) = (collect.id, collect.uid, collect.pid);
                            let of = Of { id, uid, payer, weight: OF_A_COLLECTOR, pid };
                            let words = |gid| CollectOptions::of(&collect, gid, recordings).words();
                            start_one(of, words, &mut sessions, &sender)
                        }
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

/// Whose process is to be started: number `id` of the service, for a job of user `uid` with process `pid`, charged to `payer`.
#[derive(Clone, Copy, Debug)]
struct Of {
    id: u64,
    uid: u32,
    payer: u32,
    weight: usize,
    pid: u32,
}

/// A user may have fewer than are still free: users who take all that they may leave some to the next.
fn has_place(of: Of, sessions: &BTreeMap<u64, Running>) -> bool {
    let weights = sessions.values().map(|session| session.weight);
    let of_user = sessions.values().filter(|session| session.payer == of.payer).map(|session| session.weight);
    let most = OF_A_USER.min(SESSIONS.saturating_sub(weights.sum()));
    of_user.sum::<usize>() + of.weight <= most && !sessions.contains_key(&of.id)
}

/// Starts this program with the words that a group's number gives.
fn start_one(
    of: Of,
    words: impl Fn(u32) -> Vec<OsString>,
    sessions: &mut BTreeMap<u64, Running>,
    ended: &mpsc::Sender<FromLauncher>,
) -> Option<FromLauncher> {
    let Of { id, payer, weight, .. } = of;
    let failed = Some(FromLauncher::Ended { id, code: i32::from(SessionEnd::Failed.code()) });
    if !has_place(of, sessions) {
        return failed;
    }
    let started = command(of, words).and_then(|mut command| Ok(command.spawn()?));
    let Ok(mut child) = started else { return failed };
    sessions.insert(id, Running { payer, weight, stdin: child.stdin.take() });
    let ended = ended.clone();
    tokio::spawn(async move {
        let status = child.wait().await;
        let code = status.ok().and_then(|status| status.code()).unwrap_or(-1);
        // Where the launcher ends there is nobody to report to.
        let _ = ended.send(FromLauncher::Ended { id, code }).await;
    });
    None
}

/// The session or the collector of one job, which becomes the job's user.
///
/// # Errors
/// The process is gone, or is another user's than the service says.
fn command(of: Of, words: impl Fn(u32) -> Vec<OsString>) -> Result<Command> {
    let Of { uid, pid, .. } = of;
    // This file, unlike the folder that it is in, is root's where its process may not be looked into: a set-uid or set-gid program
    // has users and groups that neither the one who started it nor its owner may be given.
    let found = std::fs::metadata(format!("/proc/{pid}/environ"))?;
    if uid == 0 || found.uid() != uid {
        bail!("process {pid} is not of user {uid}");
    }
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0("stallscope")
        // Signals of the launcher's terminal are not its user's word that the session is to end.
        .process_group(0)
        .args(words(found.gid()))
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
            command(Of { id: 1, uid: NOBODY, payer: NOBODY, weight: 1, pid: self.0.id() }, |_| Vec::new())
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
    fn one_user_with_all_subordinate_ids_leaves_sessions_to_others() {
        let subordinates = Subordinates::parse(b"7:100000:65536", b"");
        let taken = |uids: &[u32]| -> BTreeMap<u64, Running> {
            let running = |uid: &u32| Running { payer: subordinates.payer(*uid), weight: 1, stdin: None };
            (0..).zip(uids.iter().map(running)).collect()
        };
        let has_place = |uid: u32, sessions: &BTreeMap<u64, Running>| {
            let of = Of { id: u64::MAX, uid, payer: subordinates.payer(uid), weight: OF_A_COLLECTOR, pid: 0 };
            has_place(of, sessions)
        };
        let own: Vec<u32> = (100_000..100_256).collect();
        let sessions = taken(&own);
        assert!(!has_place(7, &sessions) && !has_place(165_000, &sessions));
        assert!(has_place(8, &sessions));
        // Users with all that they may have.
        let sessions = taken(&[[8; 256], [9; 256], [10; 256]].concat());
        assert!(!has_place(8, &sessions) && has_place(11, &sessions));
        let sessions = taken(&[[8; 256], [9; 256], [10; 256], [11; 256]].concat()[..900]);
        assert!(!has_place(11, &sessions) && has_place(12, &sessions));
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
