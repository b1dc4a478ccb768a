//! Where the privileged collector listens.
//!
//! Its path is for whoever starts it to choose, and the folders on it may be a user's, who can put links in their place
//! between any two looks. So the socket's folder is opened once and all else happens in that very folder, as its owner
//! would do it; and the socket is made with its mode, not given one by path afterwards.

use crate::sudo;
use anyhow::{Context, Result, bail};
use rustix::fs::{Mode, OFlags};
use std::ffi::OsString;
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

pub(crate) struct NodeSocket {
    pub(crate) listener: UnixListener,
    folder: OwnedFd,
    name: OsString,
}

impl NodeSocket {
    /// Listens at `path` for every user, or for members of `group`: what they get is decided by who they are.
    ///
    /// # Errors
    /// Its folder can't be made, something else is at `path`, or there is no such group.
    pub(crate) fn bind(path: &Path, group: Option<&str>) -> Result<NodeSocket> {
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
            if UnixStream::connect(&here).is_ok() {
                bail!("a collector already serves {shown}; one a node is enough");
            }
            match fs::symlink_metadata(&here) {
                Ok(meta) if meta.file_type().is_socket() => fs::remove_file(&here)?,
                Ok(_) => bail!("{shown} is there and is no socket; name another place with --socket"),
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
        Ok(NodeSocket { listener, folder, name: name.to_owned() })
    }

    pub(crate) fn remove(&self) {
        let here = within(&self.folder, &self.name);
        sudo::as_owner(&self.folder, || {
            if fs::symlink_metadata(&here).is_ok_and(|meta| meta.file_type().is_socket()) {
                // Whoever removed it meanwhile saved us the work.
                let _ = fs::remove_file(&here);
            }
        });
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
