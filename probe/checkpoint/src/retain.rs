//! Which checkpoints of a run stay besides its newest ones.

use crate::manifest::Listed;
use crate::short;
use crate::store::{Entry, State};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;

/// What stays besides the newest, for as long as nobody removes it. Each manifest carries its run's, so that any process that
/// collects later knows it too.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retain {
    /// The first checkpoint at or after every so many steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every_steps: Option<u64>,
    /// The first checkpoint of every so many seconds since 1970: with 86400, of each day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every_s: Option<u64>,
    /// Those with the best values of a metric.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best: Option<Best>,
}

/// By which metric checkpoints are the best.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Best {
    /// Its name in the manifests' `metrics`.
    #[serde(deserialize_with = "short::text")]
    pub metric: String,
    /// Whether less is better or more.
    pub mode: Mode,
    /// How many stay.
    pub keep: usize,
}

/// Which values of a metric are better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The lower ones: losses.
    Min,
    /// The higher ones: accuracies.
    Max,
}

impl Best {
    /// The committed checkpoints that have the metric, the best first; of equal ones the earlier.
    pub(crate) fn ranked<'a>(&self, entries: &[&'a Entry]) -> Vec<&'a Entry> {
        let value = |entry: &Entry| {
            let found = *entry.manifest.as_ref()?.metrics.get(&self.metric)?;
            // Of the two zeros there are, which are equal and would not be in a total order, this makes one.
            Some(if self.mode == Mode::Min { found } else { -found } + 0.0)
        };
        let mut ranked: Vec<(f64, &Entry)> = committed(entries)
            .filter_map(|(entry, _)| Some((value(entry)?, entry)))
            .filter(|(value, _)| !value.is_nan())
            .collect();
        // Entries come newest first, and a stable sort keeps the order of equals.
        ranked.reverse();
        ranked.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        ranked.into_iter().map(|(_, entry)| entry).collect()
    }
}

impl Retain {
    /// What it takes in memory beside its own fields.
    pub(crate) fn bytes(&self) -> u64 {
        self.best.as_ref().map_or(0, |best| best.metric.len() as u64)
    }

    /// Names of those that stay, of the checkpoints of one run, newest first. What nobody has read back yet takes no
    /// other's place: it may be damaged.
    pub(crate) fn stays(&self, entries: &[&Entry]) -> HashSet<String> {
        let mut stays = HashSet::new();
        if let Some(best) = &self.best {
            let mut verified = 0;
            for entry in best.ranked(entries) {
                if verified == best.keep {
                    break;
                }
                verified += usize::from(entry.state == State::Verified);
                stays.insert(entry.name.clone());
            }
        }
        let period = |every: Option<u64>| every.filter(|every| *every > 0);
        if let Some(every) = period(self.every_steps) {
            // What comes before the first such step says nothing yet.
            let number = |manifest: &Listed| Some(manifest.step / every).filter(|number| *number > 0);
            stays.extend(first_of_each(entries, number));
        }
        if let Some(every) = period(self.every_s) {
            stays.extend(first_of_each(entries, |manifest| {
                Some(manifest.saved_wall_ns / 1_000_000_000 / every)
            }));
        }
        stays
    }
}

fn committed<'a>(entries: &[&'a Entry]) -> impl DoubleEndedIterator<Item = (&'a Entry, &'a Listed)> {
    let committed = |entry: &&Entry| matches!(entry.state, State::Verified | State::Committed);
    entries.iter().copied().filter(committed).filter_map(|entry| Some((entry, entry.manifest.as_ref()?)))
}

/// Of those with the same number the first that was verified, and what came before it.
fn first_of_each(entries: &[&Entry], number: impl Fn(&Listed) -> Option<u64>) -> Vec<String> {
    let mut done = HashSet::new();
    let mut names = Vec::new();
    for (entry, manifest) in committed(entries).rev() {
        let Some(number) = number(manifest) else { continue };
        if done.contains(&number) {
            continue;
        }
        if entry.state == State::Verified {
            done.insert(number);
        }
        names.push(entry.name.clone());
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::Ranks;
    use crate::names::folder;

    /// Step, second saved, value of the metric "loss", whether it was read back; given oldest first.
    fn entries(saved: &[(u64, u64, Option<f64>, bool)]) -> Vec<Entry> {
        let entry =
            |(sequence, &(step, at_s, loss, verified)): (usize, &(u64, u64, Option<f64>, bool))| Entry {
                name: folder(step, 1),
                step,
                attempt: 1,
                state: if verified { State::Verified } else { State::Committed },
                manifest: Some(Listed {
                    save: String::new(),
                    step,
                    sequence: sequence as u64,
                    saved_wall_ns: at_s * 1_000_000_000,
                    tool: String::new(),
                    parts: Ranks(0),
                    image_bytes: 0,
                    written_bytes: 0,
                    reused_bytes: 0,
                    run: None,
                    metrics: loss.map(|loss| ("loss".to_owned(), loss)).into_iter().collect(),
                    retain: Retain::default(),
                }),
            };
        saved.iter().enumerate().map(entry).rev().collect()
    }

    fn stays(retain: &Retain, entries: &[Entry]) -> HashSet<String> {
        retain.stays(&entries.iter().collect::<Vec<_>>())
    }

    fn steps(stays: &HashSet<String>) -> Vec<u64> {
        let mut steps: Vec<u64> =
            stays.iter().map(|name| crate::names::parse(name).expect("a name of ours").0).collect();
        steps.sort_unstable();
        steps
    }

    #[test]
    fn the_first_at_or_after_each_multiple_stays() {
        let retain = Retain { every_steps: Some(100), ..Retain::default() };
        let saved = [7, 98, 103, 150, 199, 205, 420, 430].map(|step| (step, 0, None, true));
        assert_eq!(steps(&stays(&retain, &entries(&saved))), [103, 205, 420]);
        let mut unread = saved;
        unread[2].3 = false;
        assert_eq!(steps(&stays(&retain, &entries(&unread))), [103, 150, 205, 420], "103 may be damaged");
        assert!(stays(&Retain { every_steps: Some(0), ..retain }, &entries(&saved)).is_empty());
    }

    #[test]
    fn the_first_of_each_interval_of_time_stays() {
        let retain = Retain { every_s: Some(60), ..Retain::default() };
        let saved = [(1, 30, None, true), (2, 59, None, true), (3, 60, None, true), (4, 200, None, true)];
        assert_eq!(steps(&stays(&retain, &entries(&saved))), [1, 3, 4]);
    }

    #[test]
    fn the_best_stay_and_what_is_no_number_is_none_of_them() {
        let best = |mode, keep| Retain {
            best: Some(Best { metric: "loss".into(), mode, keep }),
            ..Retain::default()
        };
        let loss = |loss| if loss == 9.0 { None } else { Some(loss) };
        let saved: Vec<_> = [(1, 0.5), (2, 0.3), (3, f64::NAN), (4, 9.0), (5, 0.3), (6, 0.9)]
            .map(|(step, value)| (step, 0, loss(value), true))
            .into();
        let found = entries(&saved);
        assert_eq!(steps(&stays(&best(Mode::Min, 1), &found)), [2], "of equals the earlier");
        assert_eq!(steps(&stays(&best(Mode::Min, 2), &found)), [2, 5]);
        assert_eq!(steps(&stays(&best(Mode::Max, 2), &found)), [1, 6]);
        let infinite: Vec<_> = [(1, f64::INFINITY), (2, 0.3), (3, f64::NEG_INFINITY), (4, f64::INFINITY)]
            .map(|(step, value)| (step, 0, Some(value), true))
            .into();
        let found_infinite = entries(&infinite);
        assert_eq!(
            steps(&stays(&best(Mode::Max, 1), &found_infinite)),
            [1],
            "more than any number, and the earlier"
        );
        assert_eq!(steps(&stays(&best(Mode::Min, 2), &found_infinite)), [2, 3]);
        for (mode, zeros) in [(Mode::Min, [0.0, -0.0]), (Mode::Max, [-0.0, 0.0])] {
            let found = entries(&[1, 2].map(|step| (step, 0, Some(zeros[step as usize - 1]), true)));
            assert_eq!(steps(&stays(&best(mode, 1), &found)), [1], "both are nought");
        }
        let mut unread = saved;
        unread[1].3 = false;
        assert_eq!(steps(&stays(&best(Mode::Min, 1), &entries(&unread))), [2, 5], "2 may be damaged");
    }
}
