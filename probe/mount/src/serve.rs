//! The server: mounted at a place, or behind a device that the caller mounts.

use crate::files::{Files, Say};
use crate::place::{FS_TYPE, Place, Point, unmount};
use crate::tree::{Tree, in_pack};
use crate::{Error, Result};
use fuser::{Config, MountOption, Session, SessionACL};
use rustix::mount::{MountFlags, mount};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use stallscope_pack::Pack;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// As many reads wait for storage at once; further ones queue in the kernel.
const THREADS: usize = 16;

/// A pack that can be shown.
#[derive(Debug)]
pub struct Served {
    files: Files,
    dir: PathBuf,
}

impl Served {
    /// Opens a pack, and allows this process as many descriptors as it may have. `say` gets a sentence for each read that fails.
    ///
    /// # Errors
    /// It is no pack, or its snapshot is damaged.
    pub fn open(dir: &Path, say: impl Fn(&str) + Send + Sync + 'static) -> Result<Served> {
        let say: Say = Box::new(say);
        // A part of them is for chunks, which are opened at each read beyond that.
        let limit = getrlimit(Resource::Nofile);
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
        let pack = Pack::open_to_show(dir)?;
        if let Some(sentence) = pack.is_stale() {
            say(&sentence);
        }
        if let Some(sentence) = pack.other_deletions() {
            say(sentence);
        }
        let tree = Tree::of(pack.snapshot()).map_err(|error| in_pack(error, pack.dir()))?;
        if tree.hidden() > 0 {
            let (hidden, dir) = (tree.hidden(), pack.dir().display());
            say(&format!(
                "{hidden} of the files of {dir} are not shown: their names lead out of the folder, or are damaged (`stallscope pack verify {dir}`)"
            ));
        }
        let dir = pack.dir().to_owned();
        let files = Files::of(pack, tree, say)?;
        Ok(Served { files, dir })
    }

    /// Answers what comes through `/dev/fuse`, opened and mounted by the caller, until nobody can use the mount any more.
    ///
    /// # Errors
    /// The kernel speaks another protocol, or reading from it failed.
    pub fn serve(self, device: OwnedFd) -> io::Result<()> {
        Session::from_fd(self.files, device, SessionACL::All, config(SessionACL::All))?.run()
    }

    /// Mounts it by the help of `fusermount3`, for this user alone.
    ///
    /// # Errors
    /// There is no such helper, or it refused.
    pub fn mount(self, place: &Place) -> Result<Mounted> {
        let mut config = config(SessionACL::Owner);
        config.mount_options = vec![
            MountOption::RO,
            MountOption::DefaultPermissions,
            MountOption::FSName(source(&self.dir)),
            MountOption::Subtype(FS_TYPE.trim_start_matches("fuse.").into()),
        ];
        let session = Session::new(self.files, &place.path, &config).map_err(|error| {
            let why = match error.kind() {
                io::ErrorKind::NotFound => "fusermount3 is not installed (package fuse3)".into(),
                _ => error.to_string().trim().to_owned(),
            };
            Error::Refused(format!("cannot mount on {}: {why}", place.path.display()))
        })?;
        Ok(Mounted { session, at: At::Path(place.path.clone()).into() })
    }

    /// Mounts it with the right to do so, for all who may read the pack's files. `device` is `/dev/fuse`.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn mount_for_all(self, place: &Place, device: OwnedFd) -> Result<Mounted> {
        let refused = |error: io::Error| {
            let way_out = match error.kind() {
                io::ErrorKind::PermissionDenied => "; in a container it takes --cap-add SYS_ADMIN",
                _ => "",
            };
            Error::Refused(format!("cannot mount on {}: {error}{way_out}", place.path.display()))
        };
        let data = options(&device);
        let source = CString::new(source(&self.dir)).unwrap_or_default();
        let held = format!("/proc/self/fd/{}", place.folder.as_raw_fd());
        let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
        mount(source.as_c_str(), held.as_str(), FS_TYPE, flags, data.as_c_str())
            .map_err(|error| refused(error.into()))?;
        let point =
            Point::of(place).ok_or_else(|| refused(io::Error::other("the mount is not to be found")))?;
        match Session::from_fd(self.files, device, SessionACL::All, config(SessionACL::All)) {
            Ok(session) => Ok(Mounted { session, at: At::Point(point).into() }),
            Err(error) => {
                let _ = point.end();
                Err(refused(error))
            }
        }
    }
}

/// For mount(2). Modes and owners are the kernel's to compare.
fn options(device: &OwnedFd) -> CString {
    let options = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0,default_permissions,allow_other",
        device.as_raw_fd()
    );
    CString::new(options).unwrap_or_default()
}

/// What `df` and `mount` show it as. A comma or backslash would be the end of it for the helper.
fn source(dir: &Path) -> String {
    let dir = dir.to_string_lossy();
    if dir.contains([',', '\\', '\0', '\n']) { "stallscope-pack".into() } else { dir.into_owned() }
}

fn config(acl: SessionACL) -> Config {
    let mut config = Config::default();
    config.acl = acl;
    config.n_threads = Some(THREADS);
    config
}

/// A pack that is mounted, and not served yet.
#[derive(Debug)]
pub struct Mounted {
    session: Session<Files>,
    at: Arc<At>,
}

/// Where.
#[derive(Debug)]
enum At {
    Point(Point),
    /// The helper looks whether a mount is its caller's.
    Path(PathBuf),
}

impl Mounted {
    /// Answers programs until the mount has ended and no file of it is open.
    ///
    /// # Errors
    /// Reading from the kernel failed.
    pub fn serve(self) -> io::Result<()> {
        self.session.run()
    }

    /// What ends the mount, from another thread.
    pub fn end(&self) -> impl Fn() -> Result<()> + Send + use<> {
        let at = Arc::clone(&self.at);
        move || match &*at {
            At::Point(point) => point.end(),
            At::Path(path) => unmount(path),
        }
    }
}
