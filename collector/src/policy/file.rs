//! The configuration's file: TOML, of which each key is known.

use super::{Amount, CacheBounds, Mode, Pattern, Policy, Rule};
use serde::Deserialize;
use stallscope_units::{parse_bytes, parse_share};
use std::io::Read;
use std::path::Path;

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
    without_run: bool,
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
            without_run: rule.without_run,
        });
        Ok(Policy { rules: rules.collect(), reserve_bytes: whole.node.memory_reserve.0 })
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
