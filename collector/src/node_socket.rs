//! Where the privileged collector listens.
//!
//! Its path is chosen by the user who starts it, and the folders on it may be another user's, who can put links in their
//! place between any two looks. So the socket's folder is opened once and all else happens in that very folder, as its owner
//! would do it; and the socket is made with its mode, not given one by path afterwards.

use crate::descriptors;
use crate::kernel_client;
use crate::socket_remover::SocketRemover;
use crate::sudo;
use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{Mode, OFlags};
use stallscope_folder::file_user;
use std::ffi::OsString;
use std::fs;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

pub(crate) struct NodeSocket {
    pub(crate) listener: UnixListener,
    removal: Removal,
}

/// How the socket is taken away at the end.
enum Removal {
    /// By its maker, or it stays: the next collector takes its place.
    NotByUs,
    /// We can, as the user who made it.
    ByUs { folder: OwnedFd, shown: PathBuf, name: OsString },
    /// Made by root, whom we cease to be.
    ByRemover(SocketRemover),
}

/// The first descriptor that systemd hands over (sd_listen_fds(3)).
const FIRST_PASSED: i32 = 3;

impl NodeSocket {
    /// The one that systemd listens at for us, if it does.
    ///
    /// # Errors
    /// There are several, or it is of another kind.
    pub(crate) fn passed() -> Result<Option<NodeSocket>> {
        let number = |name| std::env::var(name).ok().and_then(|value| value.parse::<u32>().ok());
        let Some(count) = number("LISTEN_FDS").filter(|_| number("LISTEN_PID") == Some(std::process::id()))
        else {
            return Ok(None);
        };
        ensure!(count == 1, "{count} sockets were passed; the unit's .socket takes one ListenStream=");
        // SAFETY: the process that started us has opened it for us, and nobody else here knows of it.
        let passed = unsafe { OwnedFd::from_raw_fd(FIRST_PASSED) };
        let listens = rustix::net::sockopt::socket_acceptconn(&passed).unwrap_or(false)
            && rustix::net::sockopt::socket_domain(&passed) == Ok(rustix::net::AddressFamily::UNIX);
        ensure!(
            listens,
            "what was passed is no Unix socket that listens; the unit's .socket takes ListenStream=/PATH"
        );
        rustix::io::fcntl_setfd(&passed, rustix::io::FdFlags::CLOEXEC)?;
        let listener = UnixListener::from(passed);
        listener.set_nonblocking(true)?;
        descriptors::refuse(&listener);
        Ok(Some(NodeSocket { listener, removal: Removal::NotByUs }))
    }

    /// Listens at `path` for every user, or for members of `group`: what they get is decided by who they are. `ends_by_itself`:
    /// it has to go then. To be called while the process has one thread.
    ///
    /// # Errors
    /// Its folder can't be made, something else is at `path`, or there is no such group.
    pub(crate) fn bind(path: &Path, group: Option<&str>, ends_by_itself: bool) -> Result<NodeSocket> {
        let group = group.map(group_of).transpose()?;
        let shown = path.display();
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            bail!("{shown} names no socket; name a file in a folder with --socket");
        };
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        if !parent.exists() {
            make_folder(parent).with_context(|| format!("cannot create {}", parent.display()))?;
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(parent, flags, Mode::empty())
            .with_context(|| format!("cannot open {}", parent.display()))?;
        let here = within(&folder, name);
        let bound = sudo::as_owner(&folder, || {
            if kernel_client::is_served(&here) {
                bail!("a collector already serves {shown}; one a node is enough");
            }
            let own = [file_user(), rustix::process::geteuid().as_raw()];
            match fs::symlink_metadata(&here) {
                Ok(meta) if !meta.file_type().is_socket() => {
                    bail!("{shown} is there and is no socket; name another place with --socket")
                }
                // What another program made is in use, or is not ours to remove. The folder may have got another owner since.
                Ok(meta) if !own.contains(&meta.uid()) || !kernel_client::is_left(&here) => bail!(
                    "another program's socket is at {shown}; name another place with --socket, or remove it if \
                     nothing uses it"
                ),
                Ok(_) => fs::remove_file(&here)?,
                Err(_) => {}
            }
            let umask = if group.is_some() { 0o117 } else { 0o111 };
            let listener = with_umask(umask, || UnixListener::bind(&here))
                .with_context(|| format!("cannot listen at {shown}"))?;
            if let Some(group) = group {
                // Until then it is open to its owner's group alone.
                std::os::unix::fs::lchown(&here, None, Some(group))
                    .with_context(|| format!("cannot give {shown} to the group {group}"))?;
            }
            Ok(listener)
        });
        let listener = bound?;
        listener.set_nonblocking(true)?;
        descriptors::refuse(&listener);
        let removal = if !ends_by_itself {
            Removal::NotByUs
        } else if rustix::process::geteuid().is_root() {
            Removal::ByRemover(SocketRemover::start(&folder, name)?)
        } else {
            Removal::ByUs { folder, shown: parent.to_owned(), name: name.to_owned() }
        };
        Ok(NodeSocket { listener, removal })
    }

    /// The folder in which this process itself will remove the socket.
    pub(crate) fn is_to_be_removed_in(&self) -> Option<&Path> {
        match &self.removal {
            Removal::ByUs { shown, .. } => Some(shown),
            Removal::NotByUs | Removal::ByRemover(_) => None,
        }
    }

    /// Nobody is served any more.
    pub(crate) fn remove(self) {
        match self.removal {
            Removal::NotByUs => {}
            Removal::ByUs { folder, name, .. } => {
                // One that is gone already needs no removal.
                let _ = rustix::fs::unlinkat(&folder, &name, rustix::fs::AtFlags::empty());
            }
            Removal::ByRemover(remover) => remover.remove(),
        }
    }
}

/// A group by its name or number.
fn group_of(name: &str) -> Result<u32> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    let found = nix::unistd::Group::from_name(name)?;
    let group = found.with_context(|| format!("there is no group {name}; `groupadd {name}` makes one"))?;
    Ok(group.gid.as_raw())
}

/// `name` in the folder that is open, wherever that is by now.
fn within(folder: &OwnedFd, name: &std::ffi::OsStr) -> PathBuf {
    Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(name)
}

fn make_folder(folder: &Path) -> std::io::Result<()> {
    // Every user has to pass.
    with_umask(0, || fs::DirBuilder::new().recursive(true).mode(0o711).create(folder))
}

/// Other threads of the collector make no files meanwhile.
fn with_umask<T>(umask: u32, make: impl FnOnce() -> T) -> T {
    let before = rustix::process::umask(Mode::from_raw_mode(umask));
    let made = make();
    rustix::process::umask(before);
    made
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
    use std::os::unix::net::UnixDatagram;

    fn refusal(path: &Path) -> Option<String> {
        NodeSocket::bind(path, None, false).err().map(|error| format!("{error:#}"))
    }

    #[test]
    fn a_socket_that_is_used_or_anothers_stays() {
        let folder = std::env::temp_dir().join(format!("ss-node-socket-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let at = |name: &str| folder.join(name);
        let _hears = UnixDatagram::bind(at("datagrams")).unwrap();
        let listens = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        rustix::net::bind(&listens, &SocketAddrUnix::new(at("packets")).unwrap()).unwrap();
        rustix::net::listen(&listens, 1).unwrap();
        drop(UnixListener::bind(at("left")).unwrap());
        assert_eq!(refusal(&at("left")), None, "a killed collector left it");
        drop(UnixListener::bind(at("theirs")).unwrap());
        let has_theirs = std::os::unix::fs::chown(at("theirs"), Some(4343), Some(4343)).is_ok();
        if !has_theirs {
            eprintln!("SKIPPED: sockets are given to another user by root only");
        }
        for name in ["datagrams", "packets", "theirs"] {
            if name == "theirs" && !has_theirs {
                continue;
            }
            let sentence = refusal(&at(name)).unwrap_or_default();
            assert!(sentence.contains("another program's socket") && at(name).exists(), "{name}: {sentence}");
        }
        UnixDatagram::unbound().unwrap().send_to(b"x", at("datagrams")).unwrap();
        fs::remove_dir_all(&folder).unwrap();
    }
}
