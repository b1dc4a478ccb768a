//! `stallscope pack mount`, `unmount` and, behind both it and `run --pack`, the server.

use crate::terminal;
use anyhow::{Context, Result, bail};
use clap::Args;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use stallscope_collector::{PrivateMount, READY, caller_uid, open_fuse};
use stallscope_mount::{FS_TYPE, Place, Served};
use std::ffi::{OsStr, OsString};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Show the files of a pack in a folder, to programs that stay as they are.
///
/// Nobody can write to it; names, sizes, times of change and bytes are those of the folder that was packed. Runs until Ctrl-C or
/// `stallscope pack unmount FOLDER`; files that are open then can be read to their end. A file whose bytes are damaged
/// cannot be read (I/O error), and a line says which. As root, all who may read the pack's own files see it; else
/// this user alone, by fusermount3 (package fuse3). For one job alone, use `stallscope run --pack PACK=FOLDER -- COMMAND`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Mount {
    /// Folder of the pack
    pack: PathBuf,
    /// An empty folder
    folder: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  stallscope pack mount /fast/imagenet.pack /mnt/imagenet &    show it in the background
  python train.py --data /mnt/imagenet                         any program reads it
  stallscope pack unmount /mnt/imagenet                        end it
  findmnt -t fuse.stallscope-pack                              list packs that are mounted";

/// End a mount that `pack mount` made, also one whose server was killed.
///
/// Files that are open can be read to their end.
#[derive(Debug, Args)]
pub(crate) struct Unmount {
    /// The folder that the pack is mounted on
    folder: PathBuf,
}

/// Serve a pack to the kernel by the device that is standard input.
#[derive(Debug, Args)]
#[command(hide = true)]
pub(crate) struct Serve {
    pack: PathBuf,
}

pub(crate) fn mount(verb: &Mount) -> Result<ExitCode> {
    let caller = caller_uid();
    let place = Place::of(&verb.folder, caller)?;
    let served = Served::open(&verb.pack, terminal::say)?;
    // Before there are threads that would inherit them unhandled, and before there is a mount to be left behind.
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let mounted = match rustix::process::geteuid().is_root() {
        true => served.mount_for_all(&place, open_fuse()?)?,
        false => {
            // Says what is missing more clearly than the helper does.
            drop(open_fuse()?);
            served.mount(&place)?
        }
    };
    // It would hold the folder below the mount.
    drop(place);
    let (folder, end) = (verb.folder.display().to_string(), mounted.end());
    terminal::say(&format!("{folder} shows {}; Ctrl-C ends it", verb.pack.display()));
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        let mut asked = signals.forever();
        asked.next();
        match end() {
            Ok(()) => terminal::say(
                "not mounted any more; a second Ctrl-C takes it from programs that still have files open",
            ),
            // Somebody else was first.
            Err(_) => return,
        }
        asked.next();
        std::process::exit(1);
    })?;
    mounted.serve().with_context(|| format!("{folder} is not served any more"))?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn unmount(verb: &Unmount) -> Result<ExitCode> {
    stallscope_mount::unmount(&verb.folder)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn serve(verb: &Serve) -> Result<ExitCode> {
    // Out of the way of what else uses standard input.
    let device = std::io::stdin().as_fd().try_clone_to_owned()?;
    let socket = std::io::stdout().as_fd().try_clone_to_owned()?;
    let mut socket = std::fs::File::from(socket);
    let served = match Served::open(&verb.pack, terminal::say) {
        Ok(served) => served,
        Err(error) => {
            // In one line, to the program that started this one.
            writeln!(socket, "{}", error.to_string().replace('\n', " "))?;
            return Ok(ExitCode::FAILURE);
        }
    };
    writeln!(socket, "{READY}")?;
    // None comes where there is to be no job.
    if socket.read(&mut [0])? == 1 {
        drop(socket);
        served.serve(device)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// `PACK=FOLDER` of `run --pack`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PackAt {
    pack: PathBuf,
    folder: PathBuf,
}

impl PackAt {
    /// Both may have `=` in their names: the pack ends at the first one before which there is a folder.
    pub(crate) fn parse(text: OsString) -> Result<PackAt, String> {
        let bytes = text.as_bytes();
        let places: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at] == b'=').collect();
        let is_folder = |at: &&usize| Path::new(OsStr::from_bytes(&bytes[..**at])).is_dir();
        let at = places.iter().find(is_folder).or(places.first());
        let parts = at.map(|at| (&bytes[..*at], &bytes[at + 1..]));
        match parts.filter(|(pack, folder)| !pack.is_empty() && !folder.is_empty()) {
            Some((pack, folder)) => Ok(PackAt {
                pack: PathBuf::from(OsString::from_vec(pack.to_vec())),
                folder: PathBuf::from(OsString::from_vec(folder.to_vec())),
            }),
            None => {
                Err("write PACK=FOLDER: the pack, and the folder where the job looks for its files".into())
            }
        }
    }

    /// With this program as its server.
    pub(crate) fn mount(&self) -> Result<PrivateMount> {
        if let Err(error) = self.pack.metadata() {
            bail!("cannot open the pack {}: {error}", self.pack.display());
        }
        // With the links on its way, which the server judges: it opens no pack to which another user's link leads.
        let pack = std::path::absolute(&self.pack)?;
        Ok(PrivateMount {
            target: self.folder.clone(),
            source: pack.clone().into_os_string(),
            fs_type: FS_TYPE.into(),
            server: std::env::current_exe().context("cannot find this program's own file")?,
            arguments: ["pack".into(), "serve".into(), "--".into(), pack.into_os_string()].into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Option<(String, String)> {
        let at = PackAt::parse(text.into()).ok()?;
        Some((at.pack.display().to_string(), at.folder.display().to_string()))
    }

    #[test]
    fn a_pack_ends_at_an_equals_sign_behind_a_folder() {
        let pair = |pack: &str, folder: &str| Some((pack.to_owned(), folder.to_owned()));
        assert_eq!(parsed("x.pack=/data/x"), pair("x.pack", "/data/x"));
        assert_eq!(parsed("x.pack=/data/lr=1"), pair("x.pack", "/data/lr=1"));
        let dir = std::env::temp_dir().join(format!("ss-at=1-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a folder in the temporary folder");
        let pack = dir.display().to_string();
        assert_eq!(parsed(&format!("{pack}=/data/a=b")), pair(&pack, "/data/a=b"));
        std::fs::remove_dir(&dir).expect("it was made here");
        for bad in ["x.pack", "=/data", "x.pack=", "", "="] {
            assert_eq!(parsed(bad), None, "{bad}");
        }
    }
}
