//! File systems that a job alone sees: FUSE, each served by a process of its own, in a mount namespace that begins with the job
//! and ends with its last process.
//!
//! A server lives outside that namespace, where it finds its files whatever the mount hides. It is neither the job nor this
//! program: if it dies, reads of the job fail; if this program dies, the job reads on. It ends by itself when the kernel
//! has unmounted what it served.

use crate::options::PrivateMount;
use crate::sudo::{self, Caller};
use anyhow::{Context, Result, bail};
use rustix::fs::{Mode, OFlags, fstat, open, openat};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::thread::{CapabilitySet, UnshareFlags};
use stallscope_folder::{Blocked, Folder};
use std::ffi::{CStr, CString};
use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Component, Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// What a server says once it has opened what it serves, and waits for before it speaks with the kernel.
pub const READY: &str = "ready";

/// How long the kernel may take to unmount when the job's last process has ended.
const UNMOUNTED_WITHIN: Duration = Duration::from_millis(500);

/// Mounts that are prepared for a job, and those that it has.
#[derive(Debug, Default)]
pub(crate) struct PrivateMounts {
    prepared: Vec<Prepared>,
    servers: Vec<Server>,
    /// Where the job, before it is one, says what failed.
    trouble: Option<OwnedFd>,
}

#[derive(Debug)]
struct Prepared {
    /// The names on the way to it.
    way: Vec<CString>,
    target: Folder,
    source: CString,
    fs_type: CString,
    data: CString,
    /// Whose number is in `data`.
    _device: OwnedFd,
    server: UnixStream,
}

#[derive(Debug)]
struct Server {
    process: Child,
    target: PathBuf,
    has_ended: bool,
}

/// What can fail between fork and exec.
const NAMESPACE: u8 = 0;
const FOLDER: u8 = 1;
const PRIVILEGES: u8 = 2;
/// And the number of the mount.
const MOUNTS: u8 = 3;
/// So many have a number of their own.
const MOST_MOUNTS: usize = (u8::MAX - MOUNTS) as usize + 1;

impl PrivateMounts {
    /// Starts the servers and waits until they have what they serve.
    ///
    /// # Errors
    /// There is no privilege or no FUSE, a target is no folder, or a server can't serve; each is a sentence.
    pub(crate) fn start(mounts: &[PrivateMount], run_as: Option<&Caller>) -> Result<PrivateMounts> {
        let mut started = PrivateMounts::default();
        if mounts.is_empty() {
            return Ok(started);
        }
        if mounts.len() > MOST_MOUNTS {
            bail!(
                "{} packs, and a job can have {MOST_MOUNTS} by `--pack`: put data sets together into fewer",
                mounts.len()
            );
        }
        if !has_privilege() {
            bail!(
                "`--pack` mounts for this job alone, which takes root: sudo stallscope run --pack ... (the job still runs as you); without root `stallscope pack mount` shows a pack to this user"
            );
        }
        let targets = targets(mounts)?;
        for (mount, target) in mounts.iter().zip(targets) {
            started.add(mount, target, run_as)?;
        }
        Ok(started)
    }

    fn add(&mut self, mount: &PrivateMount, target: Target, run_as: Option<&Caller>) -> Result<()> {
        let device = open_fuse()?;
        let (ours, theirs) = UnixStream::pair()?;
        let mut command = Command::new(&mount.server);
        command
            .args(&mount.arguments)
            .stdin(Stdio::from(device.try_clone()?))
            .stdout(Stdio::from(OwnedFd::from(theirs)))
            .current_dir("/")
            // Ctrl-C is for the job, which may read on until it has saved.
            .process_group(0);
        if let Some(caller) = run_as {
            caller.run(&mut command);
        }
        let shown = Path::new(&mount.server).display();
        let process = command.spawn().with_context(|| format!("cannot start {shown}"))?;
        // With its copies of what is the server's.
        drop(command);
        self.servers.push(Server { process, target: target.path.clone(), has_ended: false });
        let mut line = String::new();
        BufReader::new(&ours).take(64 << 10).read_line(&mut line)?;
        match line.trim_end() {
            READY => {}
            "" => bail!("what was to serve {} ended at once", target.path.display()),
            sentence => bail!("{sentence}"),
        }
        let data = format!(
            "fd={},rootmode=40000,user_id=0,group_id=0,default_permissions,allow_other",
            device.as_raw_fd()
        );
        self.prepared.push(Prepared {
            way: names_of(&target.path)?,
            target: target.folder,
            source: CString::new(mount.source.as_os_str().as_bytes())?,
            fs_type: CString::new(mount.fs_type.as_str())?,
            data: CString::new(data)?,
            _device: device,
            server: ours,
        });
        Ok(())
    }

    /// Has `command` begin in a namespace with these mounts; before it takes on another user, which the caller sees to.
    pub(crate) fn enter(&mut self, command: &mut Command, is_sudo: bool) -> std::io::Result<()> {
        let prepared = std::mem::take(&mut self.prepared);
        if prepared.is_empty() {
            return Ok(());
        }
        let (heard, trouble) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        self.trouble = Some(heard);
        let folder = folder_below(&self.servers);
        // Root by sudo or by capabilities of this program's file: the job is another user's than what it may mount on.
        let gains_nothing = is_sudo || !rustix::process::getuid().is_root();
        let enter = move || {
            let failed = |stage: u8, error: Errno| {
                let _ = rustix::io::write(&trouble, &[stage]);
                std::io::Error::from(error)
            };
            // SAFETY: of namespaces alone; descriptors stay as they are.
            unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }
                .map_err(|error| failed(NAMESPACE, error))?;
            // Nothing that is mounted here is seen elsewhere; what is mounted elsewhere meanwhile (an automounter's home folder)
            // still comes here.
            let downstream = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
            mount_change(c"/", downstream).map_err(|error| failed(NAMESPACE, error))?;
            for (one, number) in prepared.iter().zip(MOUNTS..=u8::MAX) {
                one.mount().map_err(|error| failed(number, error))?;
            }
            if gains_nothing {
                // Set-uid programs would find the caller's files where they trust the system's.
                rustix::thread::set_no_new_privs(true).map_err(|error| failed(PRIVILEGES, error))?;
            }
            if let Some(folder) = &folder {
                rustix::process::chdir(folder.as_c_str()).map_err(|error| failed(FOLDER, error))?;
            }
            Ok(())
        };
        // SAFETY: the closure runs between fork and exec and makes system calls with what was made before: nothing in it
        // allocates or takes a lock.
        unsafe { command.pre_exec(enter) };
        Ok(())
    }

    /// What failed in a job that did not start; none where it was something else.
    pub(crate) fn trouble(&self, error: &std::io::Error) -> Option<String> {
        let mut stage = [0];
        rustix::io::read(self.trouble.as_ref()?, &mut stage).ok().filter(|count| *count == 1)?;
        Some(match stage[0] {
            NAMESPACE => format!("a mount namespace for the job cannot be made: {error}"),
            FOLDER => format!("the current folder is below a pack's, and cannot be had there: {error}"),
            PRIVILEGES => format!("the job cannot be kept from gaining privileges: {error}"),
            mount => {
                let target =
                    self.servers.get(usize::from(mount - MOUNTS)).map(|server| server.target.display());
                if error.raw_os_error() == Some(Errno::STALE.raw_os_error()) {
                    return Some(format!("{} is another folder than at first; nothing was mounted", target?));
                }
                format!("cannot mount on {}: {error}", target?)
            }
        })
    }

    /// A sentence for each server that has ended since, while the job may still need it.
    pub(crate) fn ended(&mut self) -> Vec<String> {
        let ended = self.servers.iter_mut().filter_map(|server| {
            if server.has_ended || !matches!(server.process.try_wait(), Ok(Some(_))) {
                return None;
            }
            server.has_ended = true;
            let target = server.target.display();
            Some(format!("what served {target} has ended: what the job reads there fails"))
        });
        ended.collect()
    }
}

impl Drop for PrivateMounts {
    fn drop(&mut self) {
        // Servers of a job that did not start see their ends of these closed.
        self.prepared.clear();
        let deadline = Instant::now() + UNMOUNTED_WITHIN;
        for server in &mut self.servers {
            // Longer where something of the job lives on, and reads on.
            while matches!(server.process.try_wait(), Ok(None)) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

impl Prepared {
    fn mount(&self) -> Result<(), Errno> {
        let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
        let data: &CStr = &self.data;
        let on = |target: &CStr| mount(self.source.as_c_str(), target, self.fs_type.as_c_str(), flags, data);
        // What was opened is of the mounts outside, so that it is looked for among those of the job: by the way on which it lay, which
        // had no link, and it has to be the same. By a link, or with another folder there now, something else would be hidden.
        let itself = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut folder = open(c"/", itself, Mode::empty())?;
        for part in &self.way {
            folder = openat(&folder, part.as_c_str(), itself, Mode::empty())?;
        }
        let (now, then) = (fstat(&folder)?, fstat(&self.target)?);
        if (now.st_dev, now.st_ino) != (then.st_dev, then.st_ino) {
            return Err(Errno::STALE);
        }
        on(CStr::from_bytes_until_nul(&path_of(&folder)).unwrap_or(c""))?;
        // From now on its server is answered by the kernel.
        rustix::io::write(&self.server, b"\n").map(|_| ())
    }
}

/// Of an absolute path without links.
fn names_of(path: &Path) -> Result<Vec<CString>> {
    let names = path.components().filter(|part| matches!(part, Component::Normal(_)));
    names.map(|name| Ok(CString::new(name.as_os_str().as_bytes())?)).collect()
}

/// A path to what is open, that ends with a 0. Made without memory from anywhere, as between fork and exec.
fn path_of(opened: &OwnedFd) -> [u8; 32] {
    const BEGINS: &[u8] = b"/proc/self/fd/";
    let mut path = [0; 32];
    path[..BEGINS.len()].copy_from_slice(BEGINS);
    let mut number = opened.as_raw_fd().unsigned_abs();
    let digits = number.checked_ilog10().unwrap_or(0) as usize + 1;
    for place in (BEGINS.len()..BEGINS.len() + digits).rev() {
        path[place] = b'0' + (number % 10) as u8;
        number /= 10;
    }
    path
}

fn has_privilege() -> bool {
    rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN))
}

/// A folder that is opened once: what is mounted on is that one, whatever comes to its place meanwhile.
#[derive(Debug)]
struct Target {
    /// Without links on the way to it.
    path: PathBuf,
    folder: Folder,
}

impl Target {
    fn open(named: &Path) -> Result<Target> {
        let shown = named.display();
        let folder = match Folder::open(named) {
            Ok(folder) => folder,
            Err(Blocked::AnothersLink) => {
                bail!("another user's link leads to {shown}; name the folder itself")
            }
            Err(Blocked::System(Errno::NOENT)) => {
                bail!("there is no folder {shown} to show a pack at; make it first: mkdir -p {shown}")
            }
            Err(Blocked::System(Errno::NOTDIR)) => bail!("{shown} is no folder, and so no place for a pack"),
            Err(Blocked::System(error)) => bail!("cannot open {shown}: {error}"),
        };
        let path = std::fs::read_link(format!("/proc/self/fd/{}", folder.as_fd().as_raw_fd()))
            .with_context(|| format!("cannot see where {shown} lies"))?;
        Ok(Target { path, folder })
    }
}

fn targets(mounts: &[PrivateMount]) -> Result<Vec<Target>> {
    let mut targets: Vec<Target> = Vec::with_capacity(mounts.len());
    for mount in mounts {
        let target = Target::open(&mount.target)?;
        if target.path == Path::new("/") {
            bail!("a pack at / would hide everything else from the job; name a folder below");
        }
        let is_within =
            |one: &&Target| one.path.starts_with(&target.path) || target.path.starts_with(&one.path);
        if let Some(other) = targets.iter().find(is_within) {
            bail!(
                "{} and {} lie in one another; give each pack a folder of its own",
                other.path.display(),
                target.path.display()
            );
        }
        targets.push(target);
    }
    Ok(targets)
}

/// The current folder, where it is one of these or lies below: the job would keep the hidden one.
fn folder_below(servers: &[Server]) -> Option<CString> {
    let folder = std::env::current_dir().ok()?;
    let is_hidden = servers.iter().any(|server| folder.starts_with(&server.target));
    is_hidden.then(|| CString::new(folder.as_os_str().as_bytes()).ok()).flatten()
}

/// `/dev/fuse`, as root where this is sudo.
///
/// # Errors
/// There is none, or it may not be opened; the sentence says what to do.
pub fn open_fuse() -> Result<OwnedFd> {
    let open = || rustix::fs::open(c"/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    match sudo::as_root(open) {
        Ok(device) => Ok(device),
        Err(Errno::NOENT | Errno::NXIO | Errno::NODEV) => bail!(
            "there is no /dev/fuse: load it (sudo modprobe fuse), or give the container one (docker run --device /dev/fuse --cap-add SYS_ADMIN)"
        ),
        Err(error) => {
            bail!("/dev/fuse cannot be opened: {error}; in a container it takes --device /dev/fuse")
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn at(target: impl Into<PathBuf>) -> PrivateMount {
        PrivateMount {
            target: target.into(),
            source: "x.pack".into(),
            fs_type: "fuse.x".into(),
            server: "/nowhere/server".into(),
            arguments: Vec::new(),
        }
    }

    /// Root's job would have that user's pack in the place of any folder of the system's.
    #[test]
    fn another_users_link_is_no_place_for_a_pack() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let root = tempfile::tempdir().unwrap();
        let link = root.path().join("link");
        std::os::unix::fs::symlink("/usr", &link).unwrap();
        assert!(targets(&[at(&link)]).is_ok(), "it is root's own");
        std::os::unix::fs::lchown(&link, Some(4343), Some(4343)).unwrap();
        let refused = targets(&[at(&link)]).unwrap_err().to_string();
        assert!(refused.contains("another user's link"), "{refused}");
    }

    /// A user who may change the way to it could have any folder hidden from the job.
    #[test]
    fn what_is_mounted_on_is_what_was_opened() {
        let root = tempfile::tempdir().unwrap();
        let (named, moved) = (root.path().join("data"), root.path().join("moved"));
        std::fs::create_dir(&named).unwrap();
        let target = Target::open(&named).unwrap();
        let (server, _theirs) = UnixStream::pair().unwrap();
        let prepared = Prepared {
            way: names_of(&target.path).unwrap(),
            target: target.folder,
            source: c"x".into(),
            fs_type: c"no-such-file-system".into(),
            data: c"".into(),
            _device: std::fs::File::open("/dev/null").unwrap().into(),
            server,
        };
        let before = prepared.mount().unwrap_err();
        assert!([Errno::NODEV, Errno::PERM].contains(&before), "it comes to the mount: {before}");
        std::fs::rename(&named, &moved).unwrap();
        std::fs::create_dir(&named).unwrap();
        assert_eq!(prepared.mount(), Err(Errno::STALE), "another folder has the name");
        std::fs::remove_dir(&named).unwrap();
        std::os::unix::fs::symlink(&moved, &named).unwrap();
        assert_eq!(prepared.mount(), Err(Errno::NOTDIR), "a link has it");
    }

    #[test]
    fn an_open_folder_has_a_path() {
        let root = tempfile::tempdir().unwrap();
        let opened = OwnedFd::from(std::fs::File::open(root.path()).unwrap());
        for number in [opened.as_raw_fd(), 99, 700] {
            let opened = rustix::io::fcntl_dupfd_cloexec(&opened, number).unwrap();
            let path = path_of(&opened);
            let path = CStr::from_bytes_until_nul(&path).unwrap().to_str().unwrap();
            assert_eq!(path, format!("/proc/self/fd/{}", opened.as_raw_fd()));
            assert_eq!(std::fs::read_link(path).unwrap(), root.path().canonicalize().unwrap());
        }
    }

    #[test]
    fn more_packs_than_have_numbers_are_refused() {
        let refused = PrivateMounts::start(&vec![at("/nowhere"); 254], None).unwrap_err().to_string();
        assert_eq!(
            refused,
            "254 packs, and a job can have 253 by `--pack`: put data sets together into fewer"
        );
    }
}
