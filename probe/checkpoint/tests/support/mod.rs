//! A made-up job: named vectors that it saves and gets back.

#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use stallscope_checkpoint::{
    Checkpoint, Dtype, Error, Files, Folder, Newest, Options, Out, Plan, Saved, Saver, Source, Store,
    TensorSpec,
};
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::time::Duration;

pub(crate) const MIB: usize = 1 << 20;

/// Bytes that no two seeds share and that do not compress.
pub(crate) fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let page: Vec<u8> = (0..512).flat_map(|_| next().to_le_bytes()).collect();
    let mut out = page.repeat(bytes.div_ceil(page.len()));
    for page in out.chunks_exact_mut(page.len()) {
        page[..8].copy_from_slice(&next().to_le_bytes());
    }
    out.truncate(bytes);
    out
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Job {
    pub(crate) tensors: Vec<(String, Vec<u8>)>,
}

impl Job {
    /// Tensors of these sizes, each filled by the step.
    pub(crate) fn new(sizes: &[usize]) -> Job {
        let tensors =
            sizes.iter().enumerate().map(|(at, size)| (format!("layer.{at}"), noise(at as u64, *size)));
        Job { tensors: tensors.collect() }
    }

    /// Changes tensor `at` into what it is at `step`.
    pub(crate) fn train(&mut self, at: usize, step: u64) {
        let bytes = self.tensors[at].1.len();
        self.tensors[at].1 = noise(step * 1000 + at as u64, bytes);
    }

    pub(crate) fn train_all(&mut self, step: u64) {
        (0..self.tensors.len()).for_each(|at| self.train(at, step));
    }

    pub(crate) fn plan(&self) -> Plan {
        self.plan_with_still(&[])
    }

    pub(crate) fn plan_with_still(&self, still: &[usize]) -> Plan {
        let spec = |(name, bytes): &(String, Vec<u8>)| TensorSpec {
            name: name.clone(),
            dtype: Dtype::U8,
            shape: vec![bytes.len() as u64],
        };
        Plan::of(self.tensors.iter().map(spec).collect(), still).unwrap()
    }

    /// Hands a save in.
    pub(crate) fn begin(&self, saver: &Saver, plan: &Plan, step: u64) {
        let sources: Vec<Source> =
            self.tensors.iter().map(|(_, bytes)| Source::Now(bytes.as_ptr())).collect();
        // SAFETY: the vectors live and stay as they are until this returns, which is all that `Now` asks for.
        let snapshot = unsafe { saver.snapshot(plan, &sources).unwrap() };
        saver.persist(snapshot, saver.ticket(step), format!("position {step}").into_bytes()).unwrap();
    }

    pub(crate) fn save(&self, saver: &Saver, step: u64) -> Result<Saved, Error> {
        self.save_by(saver, &self.plan(), step)
    }

    pub(crate) fn save_by(&self, saver: &Saver, plan: &Plan, step: u64) -> Result<Saved, Error> {
        self.begin(saver, plan, step);
        assert!(saver.wait(Duration::from_secs(120)), "a save ends");
        saver.outcomes().into_iter().find(|outcome| outcome.ticket.step == step).unwrap().result
    }

    /// Whether a checkpoint holds exactly this.
    pub(crate) fn is_in(&self, checkpoint: &Checkpoint) -> bool {
        let of_rank = checkpoint.parts[0].tensors.len() == self.tensors.len();
        of_rank && self.tensors.iter().all(|(name, bytes)| checkpoint.read(0, name).unwrap() == *bytes)
    }
}

/// A folder in memory where there is one: for tests that save hundreds of times, and sync.
pub(crate) fn fast_dir() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

pub(crate) fn one(keep: usize) -> Options {
    Options { keep: Some(keep), ..Options::default() }
}

pub(crate) fn newest(dir: &Path) -> Newest {
    Store::open(dir).newest_verified(&|_, _, _| {}, &|| true).unwrap()
}

/// Waits until a saver has read back and collected, too.
pub(crate) fn idle(saver: &Saver) {
    while saver.working() {
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// File operations of which some fail, as asked.
pub(crate) struct Faulty<F> {
    pub(crate) under: std::sync::Arc<dyn Files>,
    /// Gets the operation and the path; an error is what the operation then gives.
    pub(crate) fail: std::sync::Arc<F>,
}

impl<F> std::fmt::Debug for Faulty<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Faulty")
    }
}

/// What a faulty file system does with an operation.
pub(crate) enum Fault {
    None,
    Error(io::ErrorKind),
    /// A write takes this many bytes at most.
    Short(usize),
}

impl<F: Fn(&'static str, &Path) -> Fault + Send + Sync + 'static> Faulty<F> {
    fn check(&self, operation: &'static str, path: &Path) -> io::Result<()> {
        match (self.fail)(operation, path) {
            Fault::Error(kind) => Err(kind.into()),
            _ => Ok(()),
        }
    }
}

impl<F: Fn(&'static str, &Path) -> Fault + Send + Sync + 'static> Files for Faulty<F> {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.check("create_dir", path)?;
        self.under.create_dir(path)
    }
    fn create(&self, path: &Path, direct: bool) -> io::Result<Box<dyn Out>> {
        self.check("create", path)?;
        let out = self.under.create(path, direct)?;
        Ok(Box::new(FaultyOut { out, path: path.to_owned(), fail: self.fail.clone() }))
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.check("rename", to)?;
        self.under.rename(from, to)
    }
    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.check("link", to)?;
        self.under.link(from, to)
    }
    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.check("sync_dir", path)?;
        self.under.sync_dir(path)
    }
    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.check("remove_file", path)?;
        self.under.remove_file(path)
    }
    fn remove_in(&self, folder: &Folder, name: &OsStr) -> io::Result<()> {
        self.check("remove_file", &folder.path().join(name))?;
        self.under.remove_in(folder, name)
    }
    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.check("remove_dir", path)?;
        self.under.remove_dir(path)
    }
}

struct FaultyOut<F> {
    out: Box<dyn Out>,
    path: std::path::PathBuf,
    fail: std::sync::Arc<F>,
}

impl<F> std::fmt::Debug for FaultyOut<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FaultyOut")
    }
}

impl<F: Fn(&'static str, &Path) -> Fault + Send + Sync> Out for FaultyOut<F> {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        match (self.fail)("write", &self.path) {
            Fault::Error(kind) => Err(kind.into()),
            Fault::Short(most) => self.out.write_at(&bytes[..most.min(bytes.len())], offset),
            Fault::None => self.out.write_at(bytes, offset),
        }
    }
    fn direct(&self) -> bool {
        self.out.direct()
    }
    fn go_buffered(&self) -> io::Result<()> {
        self.out.go_buffered()
    }
    fn reserve(&self, offset: u64, bytes: u64) -> io::Result<()> {
        match (self.fail)("reserve", &self.path) {
            Fault::Error(kind) => Err(kind.into()),
            _ => self.out.reserve(offset, bytes),
        }
    }
    fn release(&self, offset: u64, bytes: u64) -> io::Result<()> {
        match (self.fail)("release", &self.path) {
            Fault::Error(kind) => Err(kind.into()),
            _ => self.out.release(offset, bytes),
        }
    }
    fn set_len(&self, bytes: u64) -> io::Result<()> {
        match (self.fail)("set_len", &self.path) {
            Fault::Error(kind) => Err(kind.into()),
            _ => self.out.set_len(bytes),
        }
    }
    fn sync(&self) -> io::Result<()> {
        match (self.fail)("sync", &self.path) {
            Fault::Error(kind) => Err(kind.into()),
            _ => self.out.sync(),
        }
    }
}
