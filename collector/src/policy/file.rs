//! The configuration's file: TOML, of which each key is known.

use super::{Amount, CacheBounds, Export, Mode, Pattern, Policy, Recordings, Rule};
use crate::exporting::Endpoint;
use crate::metrics::metrics_address;
use serde::Deserialize;
use stallscope_store::Retention;
use stallscope_units::{parse_bytes, parse_duration, parse_share};
use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longer ones are none of ours.
const MOST_BYTES: u64 = 1 << 20;

/// Why a configuration is not taken, in one sentence that names line and key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unreadable(String);

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Whole {
    jobs: Jobs,
    node: Node,
    recordings: Option<Kept>,
    export: Exported,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Jobs {
    rule: Vec<OneRule>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct OneRule {
    #[serde(default, rename = "match")]
    jobs: Matched,
    mode: Mode,
    cache: Option<Cache>,
    checkpoint_overhead: Option<Overhead>,
    #[serde(default)]
    cores: Cores,
    #[serde(default)]
    without_run: bool,
}

/// Those that added workers may use.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Cores {
    #[default]
    Idle,
    All,
}

/// In millionths.
#[derive(Debug, Deserialize)]
#[serde(try_from = "f64")]
struct Overhead(u32);

impl TryFrom<f64> for Overhead {
    type Error = String;

    fn try_from(share: f64) -> Result<Overhead, String> {
        match (share * 1e6).round() {
            ppm if (1.0..=1e6).contains(&ppm) => Ok(Overhead(ppm as u32)),
            _ => Err(format!("{share} is no share of training; say 0.02 for 2%")),
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Matched {
    user: Option<Pattern>,
    cgroup: Option<Pattern>,
    label: Option<Pattern>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Cache {
    max: Most,
    min: Option<Most>,
    /// Whose shares these are; there is one answer, which the file may give for its reader.
    #[serde(default)]
    #[allow(dead_code, reason = "checked where it is read")]
    of: Option<OfNode>,
}

#[derive(Debug, Deserialize)]
#[serde(try_from = "String")]
struct Most(Amount);

impl TryFrom<String> for Most {
    type Error = String;

    fn try_from(text: String) -> Result<Most, String> {
        let amount = match text.ends_with('%') {
            true => parse_share(&text).map(Amount::OfNode).map_err(|error| error.to_string()),
            false => parse_bytes(&text)
                .map(Amount::Bytes)
                .map_err(|_| "say a size as 8GiB, or a share of the node's memory as 25%".to_owned()),
        };
        Ok(Most(amount?))
    }
}

#[derive(Debug, Deserialize)]
#[serde(try_from = "String")]
struct OfNode;

impl TryFrom<String> for OfNode {
    type Error = &'static str;

    fn try_from(text: String) -> Result<OfNode, &'static str> {
        match text.as_str() {
            "node memory" => Ok(OfNode),
            _ => Err("a share is of \"node memory\"; nothing else can be written here"),
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Node {
    memory_reserve: Reserve,
}

#[derive(Debug, Default, Deserialize)]
#[serde(try_from = "String")]
struct Reserve(u64);

impl TryFrom<String> for Reserve {
    type Error = String;

    fn try_from(text: String) -> Result<Reserve, String> {
        match text.as_str() {
            "0" => Ok(Reserve(0)),
            text => parse_bytes(text).map(Reserve).map_err(|error| error.to_string()),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    dir: WholePath,
    #[serde(default)]
    keep: Keep,
    #[serde(default)]
    max: Size,
}

#[derive(Debug, Deserialize)]
#[serde(try_from = "PathBuf")]
struct WholePath(PathBuf);

impl TryFrom<PathBuf> for WholePath {
    type Error = &'static str;

    fn try_from(path: PathBuf) -> Result<WholePath, &'static str> {
        // Launcher, collectors and editors of the file have different current folders.
        if path.is_absolute() { Ok(WholePath(path)) } else { Err("say the whole path, from /") }
    }
}

#[derive(Debug, Deserialize)]
#[serde(try_from = "String")]
struct Keep(Duration);

impl Default for Keep {
    fn default() -> Keep {
        Keep(Duration::from_secs(14 * 86_400))
    }
}

impl TryFrom<String> for Keep {
    type Error = String;

    fn try_from(text: String) -> Result<Keep, String> {
        match parse_duration(&text) {
            // In whole seconds it goes to the launcher, in 32 bits.
            Ok(keep) if (1..=u64::from(u32::MAX)).contains(&keep.as_secs()) => Ok(Keep(keep)),
            _ => Err("say a time as 14d or 12h".into()),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(try_from = "String")]
struct Size(u64);

impl Default for Size {
    fn default() -> Size {
        Size(20 << 30)
    }
}

impl TryFrom<String> for Size {
    type Error = String;

    fn try_from(text: String) -> Result<Size, String> {
        parse_bytes(&text).map(Size).map_err(|error| error.to_string())
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Named {
    prometheus: Option<Address>,
    prometheus_token: Option<WholePath>,
    otlp: Option<Receiver>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(try_from = "Named")]
struct Exported(Export);

impl TryFrom<Named> for Exported {
    type Error = &'static str;

    fn try_from(named: Named) -> Result<Exported, &'static str> {
        let Named { prometheus, prometheus_token, otlp } = named;
        if prometheus.is_none() && prometheus_token.is_some() {
            return Err("prometheus_token is for prometheus, which is missing");
        }
        Ok(Exported(Export {
            prometheus: prometheus.map(|address| address.0),
            prometheus_token: prometheus_token.map(|path| path.0),
            otlp: otlp.map(|receiver| receiver.0),
        }))
    }
}

#[derive(Debug, Deserialize)]
#[serde(try_from = "String")]
struct Address(SocketAddr);

impl TryFrom<String> for Address {
    type Error = String;

    fn try_from(text: String) -> Result<Address, String> {
        metrics_address(&text).map(Address)
    }
}

#[derive(Debug, Deserialize)]
#[serde(try_from = "String")]
struct Receiver(Endpoint);

impl TryFrom<String> for Receiver {
    type Error = String;

    fn try_from(text: String) -> Result<Receiver, String> {
        text.parse().map(Receiver).map_err(|error: anyhow::Error| error.to_string())
    }
}

impl Policy {
    /// # Errors
    /// The file can't be read, is no TOML, or has a key or a value that nothing is known of.
    pub fn read(path: &Path) -> Result<Policy, Unreadable> {
        let shown = path.display();
        let mut bytes = Vec::new();
        let read =
            std::fs::File::open(path).and_then(|file| file.take(MOST_BYTES + 1).read_to_end(&mut bytes));
        read.map_err(|error| Unreadable(format!("cannot read {shown}: {error}")))?;
        if bytes.len() as u64 > MOST_BYTES {
            return Err(Unreadable(format!(
                "{shown} has more than 1 MiB and is no configuration of stallscope"
            )));
        }
        let text =
            String::from_utf8(bytes).map_err(|_| Unreadable(format!("{shown} is no text in UTF-8")))?;
        Policy::parse(&text).map_err(|Unreadable(why)| Unreadable(format!("{shown}, {why}")))
    }

    /// # Errors
    /// As [`Policy::read`], without the file's name.
    pub fn parse(text: &str) -> Result<Policy, Unreadable> {
        let read = toml::Deserializer::parse(text).map_err(|error| unreadable(text, "", &error))?;
        let whole: Whole = serde_path_to_error::deserialize(read).map_err(|error| {
            let path = error.path().to_string();
            unreadable(text, &path, error.inner())
        })?;
        let rules = whole.jobs.rule.into_iter().map(|rule| Rule {
            user: rule.jobs.user,
            cgroup: rule.jobs.cgroup,
            label: rule.jobs.label,
            mode: rule.mode,
            cache: rule
                .cache
                .map(|cache| CacheBounds { most: cache.max.0, least: cache.min.map(|least| least.0) }),
            checkpoint_ppm: rule.checkpoint_overhead.map_or(0, |overhead| overhead.0),
            all_cores: rule.cores == Cores::All,
            without_run: rule.without_run,
        });
        let recordings = whole.recordings.map(|kept| Recordings {
            dir: kept.dir.0,
            retention: Retention { keep: kept.keep.0, most_bytes: kept.max.0 },
        });
        let (reserve_bytes, Exported(export)) = (whole.node.memory_reserve.0, whole.export);
        Ok(Policy { rules: rules.collect(), reserve_bytes, recordings, export })
    }
}

/// "line 7, jobs.rule[0].mode: …"
fn unreadable(text: &str, key: &str, error: &toml::de::Error) -> Unreadable {
    let at = error.span().map_or(0, |span| span.start.min(text.len()));
    let line = text.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count() + 1;
    let key = if key.is_empty() || key == "." { String::new() } else { format!(", {key}") };
    // The parser's own messages may have several lines.
    let why = error.message().trim().replace('\n', "; ");
    Unreadable(format!("line {line}{key}: {why}"))
}
