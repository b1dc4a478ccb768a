//! Where recordings are: names, the spool for targets that SQLite cannot be trusted on, and the way back.

use crate::alive::is_written;
use crate::files::beside;
use crate::opening;
use crate::spot::{Made, Spot};
use stallscope_folder::file_user;
use std::collections::BinaryHeap;
use std::fs::{self, DirBuilder, File};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// Ends every recording's name.
const EXTENSION: &str = "stall";
/// Begins a file that stands in for a recording while that is written in the spool of some host.
const POINTER: &str = "stallscope recording, written elsewhere until the run ends\n";
const POINTER_BYTES: u64 = 8192;
/// Databases are whole multiples of it, pointers never.
const SECTOR: usize = 512;

/// Recordings in `directory`, by name.
///
/// # Errors
/// When the directory cannot be listed.
pub fn recordings_in(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found: Vec<PathBuf> = entries(directory)?.map(|entry| entry.path()).collect();
    found.sort();
    Ok(found)
}

/// Recordings in a directory, which may have any number of them.
#[derive(Debug, PartialEq, Eq)]
pub struct Recordings {
    /// By name.
    pub paths: Vec<PathBuf>,
    /// How many more there are.
    pub more: usize,
}

/// At most `most` recordings in `directory`, this user's before others', in memory by that number alone: anybody may fill a folder with
/// names.
///
/// # Errors
/// When the directory cannot be listed.
pub fn some_recordings_in(directory: &Path, most: usize) -> io::Result<Recordings> {
    let (mut found, mut more) = (BinaryHeap::new(), 0);
    for entry in entries(directory)? {
        let is_own = entry.metadata().is_ok_and(|facts| facts.uid() == file_user());
        found.push((!is_own, entry.path()));
        if found.len() > most {
            found.pop();
            more += 1;
        }
    }
    let mut paths: Vec<PathBuf> = found.into_iter().map(|(_, path)| path).collect();
    paths.sort();
    Ok(Recordings { paths, more })
}

fn entries(directory: &Path) -> io::Result<impl Iterator<Item = fs::DirEntry>> {
    // Where a link leads is not looked at: there may be a file system that does not answer.
    let may_be =
        |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_file() || kind.is_symlink());
    Ok(fs::read_dir(directory)?
        .filter_map(Result::ok)
        .filter(|entry| Path::new(&entry.file_name()).extension().is_some_and(|of| of == EXTENSION))
        .filter(may_be))
}

/// Recordings of this user that are being written on this host, wherever they are.
pub fn live_recordings() -> Vec<PathBuf> {
    live_below(&spool_parents())
}

fn live_below(parents: &[PathBuf]) -> Vec<PathBuf> {
    let usual = parents.iter().map(|parent| parent.join(spool_name())).filter(|spool| is_private(spool));
    let spools = usual.chain(parents.iter().flat_map(|parent| other_spools(parent)));
    let mut live: Vec<PathBuf> = spools.flat_map(|spool| live_in(&spool)).collect();
    live.sort();
    live.dedup();
    live
}

pub(crate) fn live_in(spool: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(spool) else { return Vec::new() };
    let mut live = Vec::new();
    for link in entries.filter_map(|entry| entry.ok().map(|entry| entry.path())) {
        let Ok(recording) = fs::read_link(&link) else { continue };
        if is_written(&recording) {
            live.push(recording);
        } else {
            // A killed recorder left the link behind. Another process may remove it first, so errors are ignored.
            let _ = fs::remove_file(&link);
        }
    }
    live.sort();
    live
}

/// Tells [`live_recordings`] about `recording`; the link is to be removed when it is finished.
pub(crate) fn announce(spool: &Path, recording: &Path) -> Option<PathBuf> {
    (1..1000)
        .map(|nth| spool.join(format!("live-{}-{nth}", std::process::id())))
        .find(|link| symlink(recording, link).is_ok())
}

/// `target` with the extension every recording has, in its directory, which is held open.
pub(crate) fn normalise(target: &Path) -> io::Result<Spot> {
    let spot = Spot::named(target)?;
    if spot.path().extension().is_some_and(|extension| extension == EXTENSION) {
        return Ok(spot);
    }
    let mut name = spot.name().to_owned();
    name.push(".");
    name.push(EXTENSION);
    Ok(spot.sibling(name))
}

/// Creates an empty file at `target`, or at the first free of `NAME.2.stall`, `NAME.3.stall`, …
pub(crate) fn reserve(target: &Spot) -> io::Result<Made> {
    let stem = target.path().file_stem().unwrap_or_default();
    for nth in 1..100_000 {
        let spot = match nth {
            1 => target.clone(),
            _ => {
                let mut name = stem.to_owned();
                name.push(format!(".{nth}.{EXTENSION}"));
                target.sibling(name)
            }
        };
        let is_taken = |suffix: &&str| beside(spot.path(), suffix).symlink_metadata().is_ok();
        // A log left beside a recording that somebody removed would be taken for ours, and so would what another user left.
        if ["-wal", "-shm", "-journal"].iter().any(is_taken) {
            continue;
        }
        match Made::create(spot) {
            Ok((made, _)) => return Ok(made),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other("every name is taken"))
}

/// Whether the file system of `directory` keeps locks and shared memory as SQLite's log needs them.
pub(crate) fn is_local(directory: &Path) -> bool {
    // NFS, SMB, CIFS, SMB2, Ceph, Lustre, GPFS, BeeGFS, AFS (two), 9p, FUSE, GFS2, OCFS2, PanFS, Coda, OrangeFS.
    const REMOTE: [u64; 17] = [
        0x6969,
        0x517b,
        0xff53_4d42,
        0xfe53_4d42,
        0x00c3_6400,
        0x0bd0_0bd0,
        0x4750_4653,
        0x1983_0326,
        0x5346_414f,
        0x6b41_4653,
        0x0102_1997,
        0x6573_5546,
        0x0116_1970,
        0x7461_636f,
        0xaad7_aaea,
        0x7375_7245,
        0x2003_0528,
    ];
    rustix::fs::statfs(directory).is_ok_and(|facts| !REMOTE.contains(&(facts.f_type as u64 & 0xffff_ffff)))
}

/// A directory of this user alone on a local file system; `chosen` instead of the usual ones if given.
pub(crate) fn spool(chosen: Option<&Path>) -> io::Result<PathBuf> {
    match chosen {
        Some(directory) => private_directory(directory).map(|()| directory.to_path_buf()),
        None => spool_below(&spool_parents()),
    }
}

/// `/var/tmp` comes first: it survives a reboot, and the runtime directory is memory that goes at logout.
fn spool_parents() -> Vec<PathBuf> {
    let shared = ["/var/tmp", "/tmp"].into_iter().map(PathBuf::from);
    shared.chain(std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from)).collect()
}

/// The one of the usual name where it can be had. Any user may have made something of that name first, in any of the
/// parents that all may write to; of a name that nobody can foresee they cannot.
fn spool_below(parents: &[PathBuf]) -> io::Result<PathBuf> {
    let mut reason = io::Error::other("no directory to spool to");
    for directory in parents.iter().map(|parent| parent.join(spool_name())) {
        match private_directory(&directory) {
            Ok(()) if is_local(&directory) => return Ok(directory),
            Ok(()) => {}
            Err(error) => reason = error,
        }
    }
    let local = || parents.iter().filter(|parent| is_local(parent));
    if let Some(found) = local().flat_map(|parent| other_spools(parent)).next() {
        return Ok(found);
    }
    local().find_map(|parent| new_spool(parent).ok()).ok_or(reason)
}

fn spool_name() -> String {
    format!("stallscope-{}", file_user())
}

/// Those of this user in `parent` that have a name of their own.
fn other_spools(parent: &Path) -> Vec<PathBuf> {
    let begin = spool_name() + "-";
    let Ok(entries) = fs::read_dir(parent) else { return Vec::new() };
    let mut found: Vec<PathBuf> = entries
        .filter_map(|entry| entry.ok())
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(&begin))
        .map(|entry| entry.path())
        .filter(|path| is_private(path))
        .collect();
    found.sort();
    found
}

fn new_spool(parent: &Path) -> io::Result<PathBuf> {
    // Keys of hash tables are random numbers of the system's.
    let random = RandomState::new().hash_one(0);
    let directory = parent.join(format!("{}-{random:016x}", spool_name()));
    DirBuilder::new().mode(0o700).create(&directory).map(|()| directory)
}

/// A directory, and no link, that nobody but this user may look into.
fn is_private(directory: &Path) -> bool {
    fs::symlink_metadata(directory).is_ok_and(|facts| {
        facts.is_dir() && facts.uid() == file_user() && facts.permissions().mode() & 0o077 == 0
    })
}

fn private_directory(directory: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            // In a directory anyone may write to, somebody else may have been first.
            if is_private(directory) {
                Ok(())
            } else {
                Err(io::Error::other(format!(
                    "{} is not a directory of this user alone",
                    directory.display()
                )))
            }
        }
        Err(error) => Err(error),
    }
}

/// Where a recording is while its target only holds a pointer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Pointer {
    pub(crate) host: String,
    pub(crate) live: PathBuf,
}

/// Lets `reserved` (an empty file of ours) say where its recording is being written.
pub(crate) fn point(reserved: &Path, live: &Path) -> io::Result<()> {
    let mut text = format!("{POINTER}host={}\npath={}\n", host_name(), live.display());
    if text.len().is_multiple_of(SECTOR) {
        text.push('\n');
    }
    opening::to_write(reserved)?.write_all(text.as_bytes())
}

/// Reads what [`point`] wrote; `None` when `path` is something else.
///
/// A file that SQLite may have open is not touched: closing it again would drop SQLite's locks in this process.
pub(crate) fn follow(path: &Path) -> Option<Pointer> {
    let size = fs::metadata(path).ok().filter(|facts| facts.is_file())?.len();
    if size > POINTER_BYTES || size.is_multiple_of(SECTOR as u64) {
        return None;
    }
    let mut text = String::new();
    opening::to_read(path).ok()?.take(POINTER_BYTES).read_to_string(&mut text).ok()?;
    let mut lines = text.strip_prefix(POINTER)?.lines();
    let host = lines.next()?.strip_prefix("host=")?.to_owned();
    let live = PathBuf::from(lines.next()?.strip_prefix("path=")?);
    Some(Pointer { host, live })
}

pub(crate) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Copies the closed recording `from` over `reserved` so that it is there whole or not at all.
pub(crate) fn move_into(from: &Path, reserved: &Made) -> io::Result<()> {
    let mut name = std::ffi::OsString::from(".");
    name.push(reserved.spot.name());
    name.push(format!(".{}.part", std::process::id()));
    let (part, copy) = Made::create(reserved.spot.sibling(name))?;
    let moved = copy_synced(from, copy).and_then(|()| part.replace(reserved));
    if moved.is_err() {
        part.remove();
    }
    moved
}

fn copy_synced(from: &Path, mut copy: File) -> io::Result<()> {
    let mut source = File::open(from)?;
    io::copy(&mut source, &mut copy)?;
    copy.sync_all()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::alive::Alive;

    fn make(path: &Path, mode: u32) {
        fs::create_dir(path).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_spool_that_somebody_else_made_first_is_left_to_them() {
        let folder = tempfile::tempdir().unwrap();
        let parents = [folder.path().join("var"), folder.path().join("tmp")];
        parents.iter().for_each(|parent| make(parent, 0o1777));
        // Open to others, as one that is not ours would be to its owner; and what leads elsewhere.
        make(&parents[0].join(spool_name()), 0o777);
        let elsewhere = folder.path().join("elsewhere");
        make(&elsewhere, 0o700);
        symlink(&elsewhere, parents[1].join(spool_name())).unwrap();
        make(&parents[0].join(spool_name() + "-0"), 0o755);
        symlink(&elsewhere, parents[0].join(spool_name() + "-1")).unwrap();

        let spool = spool_below(&parents).unwrap();
        assert!(spool.starts_with(&parents[0]) && is_private(&spool), "{spool:?}");
        assert!(
            spool.file_name().unwrap().len() >= spool_name().len() + 17,
            "nobody could have made it first"
        );
        assert_eq!(spool_below(&parents).unwrap(), spool, "the next recorder finds it");

        let recording = spool.join("run.stall");
        fs::write(&recording, "").unwrap();
        fs::write(beside(&recording, "-wal"), "").unwrap();
        let _alive = Alive::claim(&recording).unwrap();
        announce(&spool, &recording).unwrap();
        assert_eq!(
            live_below(&parents),
            std::slice::from_ref(&recording),
            "and so does who lists recordings"
        );
        fs::remove_dir(parents[0].join(spool_name())).unwrap();
        assert_eq!(spool_below(&parents).unwrap(), parents[0].join(spool_name()));
        assert_eq!(live_below(&parents), [recording], "also when the usual one can be had again");
        assert!(fs::read_dir(&elsewhere).unwrap().next().is_none());
    }

    /// Its folders are the caller's, as the recording is: one of root's name that is not root's would be left to them, and each run
    /// make a further one.
    #[test]
    fn with_sudo_the_spool_is_the_callers() {
        const CALLER: u32 = 4343;
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let parents = [folder.path().join("var")];
        make(&parents[0], 0o1777);
        let spool = || {
            // SAFETY: changes as whom this thread makes files, and nothing else.
            unsafe { libc::setfsuid(CALLER) };
            spool_below(&parents).unwrap()
        };
        let spools = [(); 3].map(|()| std::thread::scope(|scope| scope.spawn(spool).join().unwrap()));
        assert_eq!(spools, [(); 3].map(|()| parents[0].join(format!("stallscope-{CALLER}"))));
        assert_eq!(fs::metadata(&spools[0]).unwrap().uid(), CALLER);
        assert_eq!(fs::read_dir(&parents[0]).unwrap().count(), 1);
    }
}
