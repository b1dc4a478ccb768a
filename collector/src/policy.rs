//! What the node's configuration allows: which jobs may be tuned, how far, and with how much memory. Pure, so that each
//! rule can be tested without a node.

mod file;
mod pattern;
#[cfg(test)]
mod tests;

use crate::exporting::Endpoint;
use crate::options::first_cache_of;
pub use file::Unreadable;
use pattern::Pattern;
use serde::{Deserialize, Serialize};
use stallscope_store::Retention;
use stallscope_units::{duration, memory, percent};
use std::fmt::Write;
use std::net::SocketAddr;
use std::path::PathBuf;

/// What may be done to a job. Each allows what those before it do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", try_from = "String")]
pub enum Mode {
    /// Nothing; `stallscope node` does not show it either.
    Off,
    /// It is shown, and left alone.
    #[default]
    Observe,
    /// A controller writes into the job's audit what it would change.
    Advise,
    /// A controller changes one setting at a time and keeps proven gains.
    Act,
}

impl Mode {
    const ALL: [Mode; 4] = [Mode::Off, Mode::Observe, Mode::Advise, Mode::Act];

    pub fn name(self) -> &'static str {
        match self {
            Mode::Off => "off",
            Mode::Observe => "observe",
            Mode::Advise => "advise",
            Mode::Act => "act",
        }
    }

    /// `None` where `text` names no mode.
    pub fn named(text: &str) -> Option<Mode> {
        Mode::ALL.into_iter().find(|mode| mode.name() == text)
    }
}

impl TryFrom<String> for Mode {
    type Error = String;

    fn try_from(text: String) -> Result<Mode, String> {
        Mode::named(&text).ok_or_else(|| format!("{text:?} is no mode; say off, observe, advise or act"))
    }
}

/// An amount of the node's memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Amount {
    Bytes(u64),
    /// From 0 to 1.
    OfNode(f64),
}

impl Amount {
    fn bytes(self, node_bytes: u64) -> u64 {
        match self {
            Amount::Bytes(bytes) => bytes,
            Amount::OfNode(share) => (node_bytes as f64 * share) as u64,
        }
    }
}

/// A rule for the jobs that have all of what it names.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rule {
    pub(crate) user: Option<Pattern>,
    pub(crate) cgroup: Option<Pattern>,
    pub(crate) label: Option<Pattern>,
    pub(crate) mode: Mode,
    /// `None`: the job's caches stay as they are.
    pub(crate) cache: Option<CacheBounds>,
    /// Of training, what saves may cost at most, in millionths; 0: what the script says.
    pub(crate) checkpoint_ppm: u32,
    /// Workers may be added on cores that others need, too.
    pub(crate) all_cores: bool,
    /// Whether it is also for jobs that nobody launched with `run`.
    pub(crate) without_run: bool,
}

/// What a job's caches may be raised to, all together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CacheBounds {
    pub(crate) most: Amount,
    /// Left to the job whatever others would gain by it; `None`: what a first cache takes.
    pub(crate) least: Option<Amount>,
}

/// What the rules are matched with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobKnown {
    /// Login name of its owner.
    pub user: String,
    /// Paths of its control groups, one for each hierarchy.
    pub cgroups: Vec<String>,
    /// `STALLSCOPE_LABEL` of its environment; empty where that is not set.
    pub label: String,
}

impl Rule {
    fn matches(&self, job: &JobKnown) -> bool {
        let is_any = |pattern: &Option<Pattern>, texts: &[&str]| {
            pattern.as_ref().is_none_or(|pattern| texts.iter().any(|text| pattern.matches(text)))
        };
        let cgroups: Vec<&str> = job.cgroups.iter().map(|path| path.trim_matches('/')).collect();
        is_any(&self.user, &[&job.user])
            && is_any(&self.cgroup, &cgroups)
            && is_any(&self.label, &[&job.label])
    }

    /// "user ml-*, label nightly: act, caches up to 25% of the node's memory (3.9 GiB)"
    fn in_words(&self, node_bytes: u64) -> String {
        let named = [("user", &self.user), ("cgroup", &self.cgroup), ("label", &self.label)];
        let named: Vec<String> = named
            .into_iter()
            .filter_map(|(name, pattern)| Some(format!("{name} {}", pattern.as_ref()?.text())))
            .collect();
        let jobs = if named.is_empty() { "every job".to_owned() } else { named.join(", ") };
        let in_words = |amount: Amount| match amount {
            Amount::Bytes(bytes) => memory(bytes),
            Amount::OfNode(share) => {
                format!("{} of the node's memory ({})", percent(share), memory(amount.bytes(node_bytes)))
            }
        };
        let cache = match self.cache {
            Some(CacheBounds { most, least: None }) => format!(", caches up to {}", in_words(most)),
            Some(CacheBounds { most, least: Some(least) }) => {
                format!(", caches up to {}, of which {} are the job's own", in_words(most), in_words(least))
            }
            None if self.mode >= Mode::Advise => ", caches stay as they are".to_owned(),
            None => String::new(),
        };
        let saves = match self.checkpoint_ppm {
            0 => String::new(),
            ppm => format!(", saves up to {} of training", percent(f64::from(ppm) / 1e6)),
        };
        let cores = if self.all_cores { ", workers on all cores" } else { "" };
        let all = if self.without_run { ", also where it was not started with `run`" } else { "" };
        format!("{jobs}: {}{cache}{saves}{cores}{all}", self.mode.name())
    }
}

/// What the node's configuration allows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Policy {
    pub(crate) rules: Vec<Rule>,
    /// Memory of the node that no cache is given.
    pub(crate) reserve_bytes: u64,
    /// Of jobs that nobody launched with `run`; `None`: these have none.
    pub(crate) recordings: Option<Recordings>,
    /// Beside the rules, so that one file has all that a node's service does.
    pub(crate) export: Export,
}

/// Where the node's jobs and its audit are exported to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Export {
    /// Where Prometheus asks for the jobs. Port 0 means any that is free.
    pub prometheus: Option<SocketAddr>,
    /// File with the token that it shows; `None`: everybody who can connect is answered.
    pub prometheus_token: Option<PathBuf>,
    /// Receiver of the jobs and the audit.
    pub otlp: Option<Endpoint>,
}

impl Export {
    pub(crate) fn is_nowhere(&self) -> bool {
        self.prometheus.is_none() && self.otlp.is_none()
    }

    /// A line for each.
    fn in_words(&self) -> String {
        let mut text = String::new();
        if let Some(address) = self.prometheus {
            let token = self.prometheus_token.as_ref();
            let whom = token.map(|token| format!(", to who shows the token in {}", token.display()));
            let _ = writeln!(
                text,
                "the jobs are shown to Prometheus at http://{address}/metrics{}",
                whom.unwrap_or_default()
            );
        }
        if let Some(endpoint) = &self.otlp {
            let _ = writeln!(text, "the jobs and the audit are pushed to {endpoint}, by OTLP");
        }
        text
    }
}

/// Where recordings go, each user's in a folder of their own there, and how long each user's are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recordings {
    pub dir: PathBuf,
    pub retention: Retention,
}

impl Recordings {
    /// "jobs not started with `run` are recorded in /data/recordings/UID, each user's for 14 d and up to 20 GiB"
    fn in_words(&self) -> String {
        let Retention { keep, most_bytes } = self.retention;
        let keep = duration(u64::try_from(keep.as_nanos()).unwrap_or(u64::MAX));
        let (dir, most) = (self.dir.display(), memory(most_bytes));
        format!(
            "jobs not started with `run` are recorded in {dir}/UID, each user's for {keep} and up to {most}"
        )
    }
}

/// What may be done to one job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allowed {
    pub mode: Mode,
    /// The rule that it comes from, the first being 1; `None`: no rule matches.
    pub rule: Option<u32>,
    /// Most that the job's caches may be raised to.
    pub cache_bytes: u64,
    /// Of that, what is left to the job whatever others would gain by it.
    pub cache_floor_bytes: u64,
    /// Of training, what saves may cost at most, in millionths; 0: what the script says.
    pub checkpoint_ppm: u32,
    /// Workers may be added on cores that others need, too.
    pub all_cores: bool,
    /// Whether this is so where nobody launched the job with `run`: its shim may come by itself.
    pub without_run: bool,
}

impl Policy {
    /// By the first rule that matches; a job that no rule matches is observed. A label that names a mode lowers what the rule
    /// allows to that, and raises nothing.
    pub fn allows(&self, job: &JobKnown, node_bytes: u64) -> Allowed {
        let found = self.rules.iter().zip(1..).find(|(rule, _)| rule.matches(job));
        let mut allowed = found.map_or_else(Allowed::default, |(rule, number)| {
            let bytes = |amount: Amount| amount.bytes(node_bytes);
            let cache_bytes = rule.cache.map_or(0, |cache| bytes(cache.most));
            let least = rule.cache.and_then(|cache| cache.least);
            let cache_floor_bytes = least.map_or_else(|| first_cache_of(cache_bytes), bytes);
            let Rule { mode, checkpoint_ppm, all_cores, without_run, .. } = *rule;
            let rule = Some(number);
            Allowed { mode, rule, cache_bytes, cache_floor_bytes, checkpoint_ppm, all_cores, without_run }
        });

        if let Some(asked) = Mode::named(&job.label) {
            allowed.mode = allowed.mode.min(asked);
        }
        if allowed.mode < Mode::Advise {
            allowed.cache_bytes = 0;
        }
        allowed.without_run &= allowed.mode > Mode::Off;
        allowed.cache_bytes = allowed.cache_bytes.min(self.grantable_bytes(node_bytes));
        allowed.cache_floor_bytes = allowed.cache_floor_bytes.min(allowed.cache_bytes);
        allowed
    }

    /// Memory of a node with `node_bytes` that all caches together may be granted.
    pub(crate) fn grantable_bytes(&self, node_bytes: u64) -> u64 {
        node_bytes.saturating_sub(self.reserve_bytes)
    }

    /// What was understood, a line each.
    pub fn in_words(&self, node_bytes: u64) -> String {
        let mut text = String::new();
        for (rule, number) in self.rules.iter().zip(1..) {
            let _ = writeln!(text, "{number}. {}", rule.in_words(node_bytes));
        }
        let others = if self.rules.is_empty() { "every job" } else { "every other job" };
        let _ = writeln!(text, "{others}: {}", Mode::default().name());
        let _ = match self.reserve_bytes {
            0 => writeln!(text, "no memory is reserved"),
            bytes => writeln!(
                text,
                "{} of the node's {} of memory are given to no cache",
                memory(bytes),
                memory(node_bytes)
            ),
        };
        if let Some(recordings) = &self.recordings {
            let _ = writeln!(text, "{}", recordings.in_words());
        }
        text + &self.export.in_words()
    }
}
