//! The node's service: knows the running jobs, which introduce themselves, and has those tuned that the node's policy names.
//!
//! Two processes. This one hears users, runs as a user without any right, and decides. The launcher (launching.rs) may become
//! another user, hears this one alone, and starts what it decided.

mod asking;
mod book;
mod desk;
mod found;
mod journal;
mod pauses;
mod reported;
mod serving;
mod shares;

pub(crate) use asking::Way;
pub use asking::{NodeLog, node_state, pause_node, resume_node};

use crate::confine::{Account, drop_all_capabilities, keep_capabilities};
use crate::host;
use crate::launching::{self, KEPT};
use crate::node_socket::NodeSocket;
use crate::policy::Policy;
use anyhow::{Context, Result, bail, ensure};
use book::Book;
use nix::sys::signal::{SigHandler, Signal, signal};
use nix::unistd::{ForkResult, fork};
use rustix::fs::{Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::set_no_new_privs;
use serving::Given;
use stallscope_folder::Folder;
use std::os::fd::IntoRawFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicI32, Ordering};

/// How the node's service serves.
#[derive(Debug)]
pub struct NodeOptions<'a> {
    pub config: &'a Path,
    pub socket: &'a Path,
    /// Whom the part that hears users becomes: a user's name or number. Without one `stallscope`, where there is such a user,
    /// else `nobody`.
    pub user: Option<&'a str>,
    /// Folder of the service: the node's audit, and which pauses there are.
    pub state: &'a Path,
    /// A byte on stdin has the configuration read again, and the end of stdin ends the service.
    pub ends_with_stdin: bool,
    /// Whether it starts a process that does what the configuration has in `[export]`.
    pub exports: bool,
}

/// Serves until SIGTERM, Ctrl-C or, if asked for, the end of stdin. Calls `say` with each sentence for the log. The process must
/// have one thread.
///
/// # Errors
/// The configuration can't be read, we are not root, or the socket can't be bound.
pub fn serve_node(options: NodeOptions<'_>, say: fn(&str)) -> Result<()> {
    let NodeOptions { config, socket, user, state, ends_with_stdin, exports } = options;
    // What our starter has left open (systemd a socket, a shell any file) must not come to the users' sessions.
    // SAFETY: closes descriptors that nothing in this process uses; it has just been started.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
    let config = std::path::absolute(config)?;
    let policy = Policy::read(&config)?;
    let Some(account) = Account::find(user)? else {
        bail!("the node's service starts sessions as the jobs' users, which takes root");
    };
    let bound = NodeSocket::bind(socket, None, false)?;
    // Once no other service has it, and before we are a user who may open none of it.
    let book = Book::open(state)?;
    if let Some(recordings) = &policy.recordings {
        open_to_users(&recordings.dir)
            .with_context(|| format!("recordings.dir, {}, cannot be used", recordings.dir.display()))?;
    }
    let recordings = policy.recordings.clone().map(|recordings| recordings.dir);
    let (ours, theirs) = UnixStream::pair()?;
    // SAFETY: this process has one thread, so that its copy finds no lock taken and may do what it likes.
    match unsafe { fork() }.context("cannot start the part that hears users")? {
        ForkResult::Child => {
            drop(ours);
            let done = hear_users(&account).and_then(|()| {
                if let Err(why) = Policy::read(&config) {
                    say(&format!(
                        "SIGHUP will not read the configuration again, as the service's user may not: {why}"
                    ));
                }
                say(&format!("serving this node's policy at {}", socket.display()));
                let own_uid = account.is_own().then_some(account.uid());
                let given = Given {
                    listener: bound.listener,
                    launcher: theirs,
                    policy,
                    book,
                    own_uid,
                    exports,
                    login_name: host::login_name,
                };
                serving::serve(given, &config, say)
            });
            if let Err(error) = &done {
                say(&format!("{error:#}"));
            }
            // SAFETY: ends this process and nothing of the other's: no destructor or exit handler runs.
            unsafe { libc::_exit(i32::from(done.is_err())) }
        }
        ForkResult::Parent { .. } => {
            let subordinates = book.subordinates().clone();
            drop((theirs, bound, book));
            keep_capabilities(KEPT).context("the launcher cannot give away its capabilities")?;
            launching::serve(ours, &subordinates, ends_with_stdin, recordings.as_deref())
        }
    }
}

/// A folder in which collectors make one each for their users, as these and with root's group, and nobody else makes anything. It is
/// made where it is missing. A folder around it may be another user's, who can put something else in its place at any time: what is
/// opened to users is what was looked at.
fn open_to_users(dir: &Path) -> Result<()> {
    const MODE: u32 = 0o1771;
    let (parent, name) = dir.parent().zip(dir.file_name()).context("it is no folder of its own")?;
    let parent = Folder::make(parent).map_err(std::io::Error::from)?;
    let is_new = match rustix::fs::mkdirat(&parent, name, Mode::RWXU) {
        Ok(()) => true,
        Err(Errno::EXIST) => false,
        Err(error) => return Err(error.into()),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = rustix::fs::openat(&parent, name, flags, Mode::empty()).ok();
    let facts = || folder.as_ref().and_then(|folder| rustix::fs::fstat(folder).ok());
    let is_ours = |facts: &Stat| (facts.st_uid, facts.st_gid) == (0, 0);
    // The file mode creation mask has its say in what is made, and not in this.
    if is_new && facts().is_some_and(|facts| is_ours(&facts) && facts.st_mode & 0o5077 == 0) {
        folder.iter().try_for_each(|folder| rustix::fs::fchmod(folder, Mode::from_raw_mode(MODE)))?;
    }
    ensure!(
        facts().is_some_and(|facts| is_ours(&facts)
            && facts.st_mode & 0o7003 == 0o1001
            && facts.st_mode & 0o070 == 0o070),
        "it is to be a folder of root's and its group's with the mode 1771, as this service makes one that is missing"
    );
    Ok(())
}

/// Nothing of root's is left to the part that hears users.
fn hear_users(account: &Account) -> Result<()> {
    // Ctrl-C, `systemctl reload` and `systemctl stop` are for the launcher, with which this part ends.
    for ignored in [Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM] {
        // SAFETY: to ignore a signal runs nothing.
        unsafe { signal(ignored, SigHandler::SigIgn) }?;
    }
    account.take()?;
    drop_all_capabilities()?;
    set_no_new_privs(true)?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    ensure!(
        rustix::process::geteuid().as_raw() != 0 || account.is_root(),
        "the part that hears users is still root"
    );
    Ok(())
}

/// Where SIGHUP goes that the node's collector gets.
static RELOADS: AtomicI32 = AtomicI32::new(-1);

/// Starts the node's service beside the node's collector, which may not start anything later: it ends with this process, and reads
/// `config` again when this process gets SIGHUP. To be called while this process has one thread.
///
/// # Errors
/// The configuration can't be read, or the service can't be started.
pub fn start_node_service(
    config: &Path,
    kernel_socket: &Path,
    user: Option<&str>,
    state: &Path,
) -> Result<()> {
    extern "C" fn reload(_signal: libc::c_int) {
        let to = RELOADS.load(Ordering::Relaxed);
        // SAFETY: write(2) may be called in a handler, with a descriptor that stays open and a byte of the program's own.
        unsafe { libc::write(to, b"r".as_ptr().cast(), 1) };
    }
    Policy::read(config)?;
    ensure!(
        rustix::process::geteuid().is_root(),
        "--config starts sessions as the jobs' users, which takes root; where the collector has another user, start \
         `stallscope node-service` beside it (contrib/systemd)"
    );
    let mut command = Command::new("/proc/self/exe");
    command.arg0("stallscope").arg("node-service").arg("--beside-collect").arg("--config").arg(config);
    command.arg("--state").arg(state);
    command.arg("--socket").arg(kernel_socket.with_file_name("node.sock"));
    command.args(user.into_iter().flat_map(|user| ["--user", user]));
    let mut child = command.stdin(Stdio::piped()).spawn().context("cannot start the node's service")?;
    let stdin = child.stdin.take().context("the node's service has no stdin")?;
    RELOADS.store(std::os::fd::OwnedFd::from(stdin).into_raw_fd(), Ordering::Relaxed);
    // SAFETY: the handler does what a handler may.
    unsafe { signal(Signal::SIGHUP, SigHandler::Handler(reload)) }?;
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};

    #[test]
    fn recordings_go_where_no_other_user_leads() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let mode = |name: &str| std::fs::metadata(at(name)).unwrap().permissions().mode() & 0o7777;
        std::fs::create_dir(at("elsewhere")).unwrap();
        symlink(at("elsewhere"), at("theirs")).unwrap();
        if std::fs::metadata(folder.path()).unwrap().gid() != 0
            || lchown(at("theirs"), Some(4343), None).is_err()
        {
            eprintln!("SKIPPED: recordings_go_where_no_other_user_leads takes root");
            return;
        }
        open_to_users(&at("own/dir")).unwrap();
        assert_eq!(mode("own/dir"), 0o1771);
        open_to_users(&at("own/dir")).unwrap();
        let before = mode("elsewhere");
        assert!(open_to_users(&at("theirs")).unwrap_err().to_string().contains("with the mode 1771"));
        assert!(open_to_users(&at("theirs/dir")).is_err());
        assert_eq!((mode("elsewhere"), at("elsewhere/dir").exists()), (before, false));
    }
}
