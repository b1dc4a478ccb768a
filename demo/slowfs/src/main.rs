//! Shows a folder at another place, read-only and as slow as asked. Needs no root, only fusermount3.
//!
//! Runs until it is unmounted; SIGTERM and SIGINT unmount.

mod pace;
mod tree;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use fuser::{Config, MountOption, Session, SessionACL};
use nix::sys::signal::{SigSet, Signal};

use pace::Pacer;
use tree::Tree;

/// As many reads can wait at once; more readers than that queue in the kernel.
const THREADS: usize = 32;

/// Shows a folder at another place, read-only and as slow as asked.
#[derive(Debug, Parser)]
struct Flags {
    /// The folder to show
    source: PathBuf,
    /// An empty folder elsewhere, to show it at
    mountpoint: PathBuf,
    /// What all readers together get, in MiB/s
    #[arg(long, value_parser = rate)]
    mib_per_s: f64,
    /// What each read takes besides, in milliseconds
    #[arg(long, default_value_t = 0)]
    latency_ms: u64,
    /// Show it to every user, not to yours alone; root may
    #[arg(long)]
    for_all: bool,
}

fn rate(text: &str) -> Result<f64> {
    let rate: f64 = text.parse()?;
    ensure!(rate.is_finite() && rate >= 0.001, "a rate is a number of MiB/s from 0.001 up");
    Ok(rate)
}

fn main() -> ExitCode {
    match serve(&Flags::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("slowfs: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn serve(flags: &Flags) -> Result<()> {
    let source = folder(&flags.source)?;
    let mountpoint = folder(&flags.mountpoint)?;
    // A tree that contained itself would wait for its own answers.
    if mountpoint.starts_with(&source) {
        bail!("{} lies in {}; choose a mount point elsewhere", mountpoint.display(), source.display());
    }

    // Before any thread starts, so that all of them leave the signals to the one that waits.
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTERM);
    signals.add(Signal::SIGINT);
    signals.thread_block().context("cannot block signals")?;

    let tree = Tree::new(
        source,
        Pacer::new(flags.mib_per_s * f64::from(1 << 20), Duration::from_millis(flags.latency_ms)),
    );
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::RO,
        MountOption::DefaultPermissions,
        MountOption::FSName("slowfs".into()),
        MountOption::Subtype("slowfs".into()),
    ];
    config.n_threads = Some(THREADS);
    if flags.for_all {
        config.acl = SessionACL::All;
    }
    let session = Session::new(tree, &mountpoint, &config).with_context(|| {
        format!(
            "cannot mount on {}; FUSE needs the package fuse3 and access to /dev/fuse",
            mountpoint.display()
        )
    })?;
    thread::spawn(move || {
        if signals.wait().is_ok() {
            std::process::exit(i32::from(!unmount(&mountpoint)));
        }
    });
    session.run().context("the kernel ended the mount")
}

// Lazily: a reader may still hold a file open, which ends with this process.
fn unmount(mountpoint: &Path) -> bool {
    Command::new("fusermount3")
        .args(["-u", "-z", "--"])
        .arg(mountpoint)
        .status()
        .is_ok_and(|done| done.success())
}

fn folder(path: &Path) -> Result<PathBuf> {
    let full = path
        .canonicalize()
        .with_context(|| format!("cannot open the folder {}; name one that exists", path.display()))?;
    ensure!(full.is_dir(), "{} is not a folder; name one", path.display());
    Ok(full)
}
