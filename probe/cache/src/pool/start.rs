//! How there comes to be one pool a runtime folder: a lock, a socket, and a process that belongs to no job.

use super::error::{Error, Result, system};
use super::limits::Limits;
use super::server::Server;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::ffi::OsString;
use std::fs::DirBuilder;
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const SOCKET: &str = "pool.sock";
const LOCK: &str = "pool.lock";

/// How long the pool stays after its last client, in milliseconds.
const LINGER: &str = "STALLSCOPE_POOL_LINGER_MS";
const LINGER_MS: u64 = 5000;

/// Longest path of a Unix socket that every system takes.
const MOST_PATH_BYTES: usize = 100;

const BACKLOG: i32 = 1024;

/// The folder where the pool is found, by path and open.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    fd: OwnedFd,
}

impl Folder {
    /// Made where it is not there yet; of this user alone.
    pub(crate) fn open(path: &Path) -> Result<Folder> {
        let wrong = |why: String| {
            Error::Wrong(format!(
                "{}: {why}; set STALLSCOPE_RUNTIME_DIR to a folder of yours",
                path.display()
            ))
        };
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(|error| wrong(error.to_string()))?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(|error| wrong(error.to_string()))?;
        // Of the one that was opened: by its path another may be found.
        let owner = rustix::fs::fstat(&fd).map_err(|error| wrong(error.to_string()))?.st_uid;
        if owner != rustix::process::geteuid().as_raw() {
            return Err(wrong("it belongs to another user".into()));
        }
        Ok(Folder { path: path.to_owned(), fd })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The socket's address, by a short way where the path is too long for one.
    pub(crate) fn address(&self) -> Result<SocketAddrUnix> {
        let path = self.path.join(SOCKET);
        let path = if path.as_os_str().len() <= MOST_PATH_BYTES {
            path
        } else {
            PathBuf::from(format!("/proc/self/fd/{}/{SOCKET}", self.fd.as_raw_fd()))
        };
        SocketAddrUnix::new(path).map_err(system("bind"))
    }
}

/// The place of the one pool.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) listener: OwnedFd,
    folder: Folder,
    _lock: OwnedFd,
}

impl Place {
    /// `None`: another process has it.
    pub(crate) fn take(folder: Folder) -> Result<Option<Place>> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let lock = rustix::fs::openat(&folder.fd, LOCK, flags, mode).map_err(system("open"))?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
            Err(errno) => return Err(system("flock")(errno)),
        }
        // What a killed pool left.
        let _ = rustix::fs::unlinkat(&folder.fd, SOCKET, rustix::fs::AtFlags::empty());
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let listener = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .map_err(system("socket"))?;
        rustix::net::bind(&listener, &folder.address()?).map_err(system("bind"))?;
        rustix::net::listen(&listener, BACKLOG).map_err(system("listen"))?;
        Ok(Some(Place { listener, folder, _lock: lock }))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // Still under the lock, so that it is nobody else's.
        let _ = rustix::fs::unlinkat(&self.folder.fd, SOCKET, rustix::fs::AtFlags::empty());
    }
}

/// How long a pool that leaves, or one that starts, may be at it.
const OTHER_LIMIT: Duration = Duration::from_secs(10);
const OTHER_LOOK: Duration = Duration::from_millis(10);

/// `None`: there is a pool already.
pub(super) fn place(folder: &Path) -> Result<Option<Place>> {
    let until = Instant::now() + OTHER_LIMIT;
    loop {
        let folder = Folder::open(folder)?;
        let address = folder.address()?;
        if let Some(place) = Place::take(folder)? {
            return Ok(Some(place));
        }
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        if socket.is_ok_and(|socket| rustix::net::connect(&socket, &address).is_ok()) {
            return Ok(None);
        }
        if Instant::now() > until {
            return Err(Error::Start("another pool holds its place and does not listen".into()));
        }
        std::thread::sleep(OTHER_LOOK);
    }
}

/// Is the pool of `dir` in this thread, until its last client has been gone for `linger`. At once over where there is
/// one already.
///
/// # Errors
/// The folder or the socket cannot be had.
pub fn serve(dir: &Path, linger: Duration) -> Result<()> {
    match place(dir)? {
        Some(place) => Server::new(place, Limits::of_this_process(), linger).run(),
        None => Ok(()),
    }
}

/// Becomes the pool of `dir` in a process of its own: the calling one ends as soon as it can be connected to. To be
/// called by a process that was started for this and has one thread.
///
/// # Errors
/// As [`serve`]. Where there is a pool already, it returns.
pub fn run(dir: &Path) -> Result<()> {
    // What the job has left open is none of ours, and pipes and devices must not stay open because of us.
    // SAFETY: closes descriptors that nothing in this process uses; it has just been started.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
    let linger = std::env::var(LINGER).ok().and_then(|text| text.parse().ok()).unwrap_or(LINGER_MS);
    let Some(place) = place(dir)? else { return Ok(()) };
    let mut server = Server::new(place, Limits::of_this_process(), Duration::from_millis(linger));
    // SAFETY: there is one thread, so that the child finds nothing half done by another.
    match unsafe { libc::fork() } {
        -1 => return Err(system("fork")(std::io::Error::last_os_error())),
        0 => {}
        // SAFETY: ends the process without running what the child is going to use: the lock and the socket are the child's.
        _ => unsafe { libc::_exit(0) },
    }
    let _ = rustix::process::setsid();
    let _ = rustix::process::chdir("/");
    let _ = rustix::thread::set_name(c"stallscope-pool");
    leave_terminal();
    let served = server.run();
    drop(server);
    // SAFETY: ends the process; what Python would do at its end is the business of the process that has ended already.
    unsafe { libc::_exit(i32::from(served.is_err())) }
}

/// Nobody waits for the end of our output, and no signal of a terminal ends us.
fn leave_terminal() {
    if let Ok(null) = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        for fd in 0..3 {
            // SAFETY: replaces the standard descriptors, which nobody has borrowed.
            unsafe { libc::dup2(null.as_raw_fd(), fd) };
        }
    }
    for signal in [libc::SIGHUP, libc::SIGINT] {
        // SAFETY: no handler of ours is involved.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// Starts `command` with the folder behind it: a process that calls [`run`].
pub(crate) fn launch(command: &[OsString], folder: &Folder) -> Result<Child> {
    let (program, arguments) = command
        .split_first()
        .ok_or_else(|| Error::Wrong("the command that starts the pool is empty".into()))?;
    Command::new(program)
        .args(arguments)
        .arg(folder.path())
        // The pool is no process of the job's that the shim would have to watch.
        .env_remove("STALLSCOPE_SOCKET")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| Error::Start(format!("{}: {error}", Path::new(program).display())))
}

/// Waits until the launched process has handed over to the pool.
pub(crate) fn finish(child: &mut Child, limit: Duration) -> Result<()> {
    let pidfd = Pid::from_raw(child.id() as i32).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    if let (Some(pidfd), Ok(limit)) = (&pidfd, Timespec::try_from(limit)) {
        let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
        while let Err(rustix::io::Errno::INTR) = poll(&mut fds, Some(&limit)) {}
        if fds[0].revents().is_empty() {
            return Err(Error::Start(format!("it took more than {} s", limit.tv_sec)));
        }
    }
    // A job that ignores its children's ends has no status of them.
    if child.wait().map_or(true, |status| status.success()) {
        return Ok(());
    }
    let mut printed = String::new();
    if let Some(stderr) = child.stderr.take() {
        let _ = stderr.take(4096).read_to_string(&mut printed);
    }
    let why = printed.trim().lines().last().unwrap_or("it gave no reason").to_owned();
    Err(Error::Start(why))
}
