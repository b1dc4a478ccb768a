use crate::terminal;
use crate::working::Working;
use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use rustix::fs::{FileType, Mode, OFlags};
use stallscope_cache::{
    Caching, DrawKind, Figures, Generated, Point, PolicyKind, Selection, Sweep, Trace, percent, replay, train,
};
use stallscope_reports::{target::Place, write_whole};
use stallscope_units::parse_share;
use std::fs::File;
use std::io::BufReader;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Simulate the hit rate of a cache, by sampler, policy and size.
///
/// Hits count the sample that was asked for. Bytes are read per byte of the data set and epoch, requests made per sample of
/// it and epoch, once the cache is full. Synthetic jobs have synthetic losses: the effect of a sampler on accuracy is not
/// simulated.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Simulate {
    /// Trace to replay instead of a synthetic job: recorded by stallscope.DataLoader(cache_trace=FILE), or your own CSV
    /// with the columns epoch,id,bytes,score and a line per use
    trace: Option<PathBuf>,
    /// Samples of the synthetic job
    #[arg(long, default_value_t = 20_000, conflicts_with = "trace", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    samples: u32,
    /// Epochs of the synthetic job, of which the later half is shown
    #[arg(long, default_value_t = 12, conflicts_with = "trace", value_parser = clap::value_parser!(u32).range(2..=1000))]
    epochs: u32,
    /// Samplers of the synthetic job
    #[arg(long, value_delimiter = ',', default_value = "plain", conflicts_with = "trace")]
    sampling: Vec<Sampling>,
    /// Cache policies
    #[arg(long, value_delimiter = ',', default_value = "lru,minio,min")]
    policy: Vec<Policy>,
    /// Also show importance, iis and shade with at most this share of draws substituted by another sample of the class
    #[arg(long, value_name = "SHARE", conflicts_with = "trace", value_parser = share)]
    substitute: Option<f64>,
    /// Cache sizes, as shares of the data set
    #[arg(long, value_delimiter = ',', default_value = "5%,10%,20%,50%", value_parser = share)]
    cache: Vec<f64>,
    /// Seed of the synthetic job
    #[arg(long, default_value_t = 0, conflicts_with = "trace")]
    seed: u64,
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
    /// Write to this file instead of the terminal
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Samplings: plain (each sample once an epoch), importance (with replacement, weighted), iis and shade (iCACHE's and
SHADE's, corrected; iis-published and shade-published as their authors have them), reuse and reuse3 (each sample that
was read is used two or three times while it is in memory).
With --substitute a sample that is not kept is given another of its class that is, up to that share of the draws.
Policies: lru, minio (what came first stays), shade, icache (its H-cache alone), icache-packed (and its L-cache, corrected:
samples of low importance that were read are written to packages in the order of their next draws, each read by one
request; icache-packed-published as its authors have it), min (who is used again last goes first).
Each sampling, policy and size is a run of its own, of about 3 s for a million uses (samples times epochs); memory is about
100 bytes a sample, and 24 bytes a use of a trace.

Examples:
  stallscope simulate
  stallscope simulate --sampling plain,importance,reuse --policy min --cache 5%,20%,50%
  stallscope simulate --sampling importance --policy min --substitute 10%
  stallscope simulate --sampling iis,importance,reuse --policy icache-packed,min
  stallscope simulate trace.csv --format svg -o hits.svg";

/// Batch of the made-up job, and bytes of its samples: only SHADE's ranks depend on the one, nothing on the other.
const BATCH: u32 = 64;
const SAMPLE_BYTES: u32 = 100_000;

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    Text,
    Csv,
    Svg,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Sampling {
    Plain,
    Importance,
    Iis,
    IisPublished,
    Shade,
    ShadePublished,
    Reuse,
    Reuse3,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Policy {
    Lru,
    Minio,
    Shade,
    Icache,
    IcachePacked,
    IcachePackedPublished,
    Min,
}

impl Sampling {
    /// `cache_share`: half of the cache is reuse's window, the other half pinned.
    fn kind(self, cache_share: f64) -> DrawKind {
        let shade = |selection| DrawKind::Shade { selection, copies: 3.0 };
        let reuse =
            |uses| DrawKind::Reuse { uses, window_share: cache_share / 2.0, pinned_share: cache_share / 2.0 };
        match self {
            Sampling::Plain => DrawKind::Plain,
            Sampling::Importance => DrawKind::Importance,
            Sampling::Iis => DrawKind::Iis(Selection::Corrected),
            Sampling::IisPublished => DrawKind::Iis(Selection::AsPublished),
            Sampling::Shade => shade(Selection::Corrected),
            Sampling::ShadePublished => shade(Selection::AsPublished),
            Sampling::Reuse => reuse(2),
            Sampling::Reuse3 => reuse(3),
        }
    }

    /// As the loader offers it.
    fn may_substitute(self) -> bool {
        matches!(self, Sampling::Importance | Sampling::Iis | Sampling::Shade)
    }
}

impl Policy {
    fn caching(self) -> Caching {
        match self {
            Policy::Lru => Caching::Policy(PolicyKind::Lru),
            Policy::Minio => Caching::Policy(PolicyKind::MinIo),
            Policy::Shade => Caching::Policy(PolicyKind::Shade),
            Policy::Icache => Caching::Policy(PolicyKind::Icache),
            Policy::IcachePacked => Caching::Packed(Selection::Corrected),
            Policy::IcachePackedPublished => Caching::Packed(Selection::AsPublished),
            Policy::Min => Caching::Policy(PolicyKind::Min),
        }
    }
}

fn share(text: &str) -> Result<f64> {
    let share = parse_share(text)?;
    ensure!(share > 0.0, "a share of nothing holds nothing; say one above 0%");
    Ok(share)
}

pub(crate) fn main(verb: &Simulate) -> Result<ExitCode> {
    ensure!(
        verb.substitute.is_none() || verb.sampling.iter().any(|sampling| sampling.may_substitute()),
        "--substitute is for importance, iis and shade; name one of them in --sampling"
    );
    let working = Working::on("simulating".to_owned());
    let sweep = match &verb.trace {
        Some(path) => {
            let file = open(path).with_context(|| format!("cannot open {}", path.display()))?;
            let trace = Trace::read(BufReader::new(file)).with_context(|| path.display().to_string())?;
            of_trace(verb, &trace)?
        }
        None => of_made_up(verb),
    };
    drop(working);
    let text = match verb.format {
        Format::Text => sweep.table(),
        Format::Csv => sweep.csv(),
        Format::Svg => sweep.svg(),
    };
    match &verb.output {
        Some(path) => {
            let place = Place::named(path.clone());
            write_whole(&place, |out| Ok(out.write_all(text.as_bytes())?))?;
        }
        None => terminal::print(&text)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn of_made_up(verb: &Simulate) -> Sweep {
    let job = Generated {
        samples: verb.samples,
        sample_bytes: SAMPLE_BYTES,
        epochs: verb.epochs,
        batch: BATCH,
        seed: verb.seed,
        substitute: 0.0,
    };
    let dataset_bytes = u64::from(job.samples) * u64::from(job.sample_bytes);
    let mut points = Vec::new();
    for sampling in &verb.sampling {
        let other = verb.substitute.filter(|_| sampling.may_substitute());
        for substitute in std::iter::once(0.0).chain(other) {
            let job = Generated { substitute, ..job };
            for policy in &verb.policy {
                for share in &verb.cache {
                    let kind = sampling.kind(*share);
                    let cache_bytes = (share * dataset_bytes as f64) as u64;
                    let (figures, _) = train(&job, kind, policy.caching(), cache_bytes, false);
                    let name = match substitute > 0.0 {
                        true => format!("{} + substitution {}", kind.name(), percent(substitute)),
                        false => kind.name(),
                    };
                    points.push(point(name, policy.caching(), *share, &figures));
                }
            }
        }
    }
    Sweep { samples: job.samples.into(), dataset_bytes, points }
}

/// The file system of pipes without a name (linux/magic.h).
const PIPES: i64 = 0x5049_5045;

/// A pipe that a shell makes (`/dev/stdin`, `<(…)`) has a writer, who ends. At one with a name nobody may ever write. And a device
/// may act when it is opened: where a foreign link leads to one, nothing but our own input is.
fn open(path: &Path) -> Result<File> {
    let found = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let facts = rustix::fs::fstat(&found)?;
    match FileType::from_raw_mode(facts.st_mode) {
        FileType::Fifo => {
            let unnamed = rustix::fs::fstatfs(&found)?.f_type == PIPES;
            ensure!(
                unnamed,
                "it is a pipe with a name; `cat PIPE | stallscope simulate /dev/stdin` reads it"
            );
        }
        FileType::CharacterDevice | FileType::BlockDevice => {
            let input = rustix::fs::fstat(std::io::stdin());
            let is_input =
                input.is_ok_and(|input| (input.st_dev, input.st_ino) == (facts.st_dev, facts.st_ino));
            ensure!(is_input, "it is a device, and no trace");
        }
        _ => {}
    }
    // What was looked at, whatever has its name by now.
    let itself = format!("/proc/self/fd/{}", found.as_raw_fd());
    let file = File::from(rustix::fs::open(itself, OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?);
    rustix::fs::fcntl_setfl(&file, OFlags::empty())?;
    Ok(file)
}

fn of_trace(verb: &Simulate, trace: &Trace) -> Result<Sweep> {
    let (samples, dataset_bytes) = (trace.samples(), trace.dataset_bytes());
    let mut points = Vec::new();
    for policy in &verb.policy {
        let caching = policy.caching();
        let Caching::Policy(kind) = caching else {
            bail!("{} is for a synthetic job; leave out the trace or that policy", caching.name());
        };
        for share in &verb.cache {
            let figures = replay(trace, kind, (share * dataset_bytes as f64) as u64);
            points.push(point("trace".into(), caching, *share, &figures));
        }
    }
    Ok(Sweep { samples, dataset_bytes, points })
}

fn point(draws: String, caching: Caching, cache_share: f64, figures: &Figures) -> Point {
    let first = figures.epochs.len() / 2;
    Point {
        draws,
        policy: caching.name(),
        cache_share,
        later: figures.since(first),
        later_epochs: figures.epochs.len() - first,
        read_bytes: figures.since(0).read_bytes,
    }
}
