//! What may be done about a finding, and what the model of the job expects of it.

use crate::{Diagnosis, Estimate, RunSummary};
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RemedyKind {
    MoreWorkers,
    FewerWorkers,
    MorePrefetch,
    /// A cache of the data set, or a larger one.
    Cache,
    FasterStorage,
    MoreCores,
    /// Less CPU time for each sample.
    CheaperSamples,
    /// Anything that the model of the job cannot judge.
    Other,
}

/// Something to do about a finding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Remedy {
    pub kind: RemedyKind,
    /// What to do, with what is expected of it or the condition under which it helps; without a full stop.
    pub sentence: String,
    /// Share by which samples a second rise, as far as that is certain; `None` where the model of the job cannot judge it.
    pub gain: Option<Estimate>,
    /// It puts a plain misconfiguration right, so that it comes before all others, whatever is expected of those.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub comes_first: bool,
}

/// What the model of the job expects of a single change of one rank's loader.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Expected {
    pub rank: u32,
    pub loader: u16,
    pub kind: RemedyKind,
    /// Workers, batches in advance over all workers, bytes of a cache; 0 where a factor of two is meant.
    pub now: u64,
    pub to: u64,
    /// Share by which samples a second rise.
    pub gain: Estimate,
    /// What it would be in each case, where nothing tells whether storage is slow or at its limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub either: Option<Either>,
    /// Only a change of the script brings it: of a cache, where nothing can be kept of the data set as it is.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_script: bool,
    /// Sentence.
    pub why: String,
}

/// Gains under the two readings of the same waits.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Either {
    /// Each read takes its time, however many are under way.
    pub if_slow: Estimate,
    /// All reads together get no more than now.
    pub if_limited: Estimate,
    /// What all workers of the rank read from storage now; `None` where it was not counted.
    pub bytes_per_s: Option<f64>,
}

/// Smaller gains are not worth anybody's time, and hard to tell from none.
pub const WORTHWHILE: f64 = 0.02;

impl Expected {
    /// Worth doing under every reading of what was seen.
    pub fn is_worthwhile(&self) -> bool {
        let certain = self.certain();
        certain.value >= WORTHWHILE && certain.low > 0.0
    }

    /// Worth doing if each read is merely slow.
    pub fn may_be_worthwhile(&self) -> bool {
        let slow = self.either.map_or(self.gain, |either| either.if_slow);
        slow.value >= WORTHWHILE && slow.low > 0.0
    }

    /// What holds under either reading.
    pub fn certain(&self) -> Estimate {
        match self.either {
            Some(Either { if_slow, if_limited, .. }) if if_slow.value < if_limited.value => if_slow,
            Some(Either { if_limited, .. }) => if_limited,
            None => self.gain,
        }
    }
}

impl Diagnosis {
    /// Whether the model of the job expects something of any of its remedies.
    fn is_judged(&self) -> bool {
        self.remedies.iter().any(|remedy| remedy.gain.is_some())
    }

    /// Share of training time that doing each of its remedies saves, as far as that is known: what cannot be judged could save all
    /// that is at stake, but no more than what was judged for the same finding.
    fn saved_shares(&self) -> impl Iterator<Item = (f64, &Remedy)> {
        let judged = |gain: Estimate| gain.value / (1.0 + gain.value).max(f64::MIN_POSITIVE);
        let least =
            self.remedies.iter().filter_map(|remedy| remedy.gain.map(judged)).fold(self.share, f64::min);
        self.remedies.iter().map(move |remedy| (remedy.gain.map_or(least, judged), remedy))
    }
}

impl RunSummary {
    /// Everything that may be done about all findings, by what is expected of it.
    pub fn remedies(&self) -> Vec<&Remedy> {
        // The first finding is the verdict's, which may sum several: by itself it can have less at stake than another one.
        let unjudged = self.diagnoses.iter().filter(|found| !found.is_judged());
        let most = unjudged.map(|found| found.share).fold(0.0, f64::max);
        let mut all: Vec<(f64, &Remedy)> = Vec::new();
        for (nth, found) in self.diagnoses.iter().enumerate() {
            let is_first = nth == 0 && !found.is_judged();
            all.extend(
                found.saved_shares().map(|(saved, remedy)| (if is_first { most } else { saved }, remedy)),
            );
        }
        all.sort_by(|a, b| b.1.comes_first.cmp(&a.1.comes_first).then(b.0.total_cmp(&a.0)));
        all.into_iter().map(|(_, remedy)| remedy).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(share: f64, gains: &[Option<f64>]) -> Diagnosis {
        let remedy = |gain: &Option<f64>| Remedy {
            kind: RemedyKind::Other,
            sentence: format!("{gain:?} of {share}"),
            gain: gain.map(|value| Estimate { value, low: value, high: value }),
            comes_first: false,
        };
        Diagnosis { share, remedies: gains.iter().map(remedy).collect(), ..Diagnosis::default() }
    }

    /// As a foreign recording may have them: by the square of their number this would take hours.
    #[test]
    fn half_a_million_remedies_of_one_finding_are_one_list() {
        let diagnoses = vec![found(0.5, &vec![Some(0.1); 500_000])];
        assert_eq!(RunSummary { diagnoses, ..RunSummary::default() }.remedies().len(), 500_000);
    }

    #[test]
    fn remedies_are_one_list_by_what_they_save() {
        let diagnoses =
            vec![found(0.5, &[None, Some(0.1), Some(0.5)]), found(0.3, &[None]), found(0.2, &[Some(1.0)])];
        let summary = RunSummary { diagnoses, ..RunSummary::default() };
        let sentences: Vec<&str> = summary.remedies().iter().map(|remedy| remedy.sentence.as_str()).collect();
        assert_eq!(
            sentences,
            ["Some(1.0) of 0.2", "Some(0.5) of 0.5", "None of 0.3", "None of 0.5", "Some(0.1) of 0.5"]
        );
    }

    #[test]
    fn a_plain_misconfiguration_comes_before_what_a_gain_is_expected_of() {
        let mut diagnoses = vec![found(0.5, &[Some(1.0)]), found(0.2, &[None])];
        diagnoses[1].remedies[0].comes_first = true;
        let summary = RunSummary { diagnoses, ..RunSummary::default() };
        assert!(summary.remedies()[0].comes_first && summary.remedies().len() == 2);
    }

    #[test]
    fn what_the_verdict_names_is_advised_first_though_it_has_less_at_stake_by_itself() {
        let diagnoses = vec![found(0.41, &[None]), found(0.44, &[None]), found(0.04, &[Some(1.0)])];
        let summary = RunSummary { diagnoses, ..RunSummary::default() };
        let sentences: Vec<&str> = summary.remedies().iter().map(|remedy| remedy.sentence.as_str()).collect();
        assert_eq!(sentences, ["Some(1.0) of 0.04", "None of 0.41", "None of 0.44"]);
    }

    #[test]
    fn only_what_holds_under_both_readings_is_certain() {
        let estimate = |value: f64| Estimate { value, low: value - 0.01, high: value + 0.01 };
        let either = Some(Either { if_slow: estimate(0.5), if_limited: estimate(0.0), bytes_per_s: None });
        let expected = Expected {
            rank: 0,
            loader: 0,
            kind: RemedyKind::MoreWorkers,
            now: 2,
            to: 6,
            gain: estimate(0.5),
            either,
            by_script: false,
            why: String::new(),
        };
        assert!(!expected.is_worthwhile() && expected.may_be_worthwhile());
        assert!(Expected { either: None, ..expected }.is_worthwhile());
    }
}
