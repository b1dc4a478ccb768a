//! What the terminal shows of a prediction.

use stallscope_control::Missed;
use stallscope_control::{Outlook, Prediction, Profile, Smallest};
use stallscope_look::{clean, tuning};
use stallscope_model::{Estimate, Rates, WORTHWHILE};
use stallscope_reports::Style;
use stallscope_units as units;

pub(super) const TWICE_THE_CORES: &str = "twice the cores";

/// Widest line.
const COLUMNS: usize = 100;

pub(crate) struct Page<'a> {
    style: &'a Style,
    pub(crate) text: String,
}

impl Page<'_> {
    pub(crate) fn new(style: &Style) -> Page<'_> {
        Page { style, text: String::new() }
    }

    pub(super) fn line(&mut self, line: &str) {
        self.text.push_str(line.trim_end());
        self.text.push('\n');
    }

    fn bold(&mut self, line: &str) {
        let line = if self.style.colour { format!("\x1b[1m{line}\x1b[0m") } else { line.to_owned() };
        self.line(&line);
    }

    /// Broken at spaces; what follows the first line is set in.
    pub(super) fn sentence(&mut self, sentence: &str) {
        let columns = self.style.width.clamp(40, COLUMNS);
        let mut line = String::new();
        for word in sentence.split(' ') {
            if !line.trim().is_empty() && line.chars().count() + 1 + word.chars().count() > columns {
                self.line(&line);
                line = "  ".to_owned();
            }
            if !line.trim().is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
        self.line(&line);
    }

    /// Name of the job, without its loader.
    pub(super) fn job(&mut self, job: &str) {
        self.sentence(&clean(job, self.style.unicode));
    }

    /// The head of a table of what is and what would be.
    pub(super) fn now_and_then(&mut self, then: &str) {
        self.line("");
        self.bold(&format!("  {:<16}{:<24}{then}", "", "now"));
    }

    pub(super) fn row(&mut self, name: &str, now: &str, then: &str) {
        self.line(&format!("  {name:<16}{now:<24}{then}"));
    }

    pub(crate) fn heading(&mut self, job: &str, whose: &str, profile: &Profile, prediction: &Prediction) {
        let workers = match profile.workers {
            0 => "the trainer makes its batches itself".to_owned(),
            workers => format!(
                "{}, {} in advance",
                units::counted(workers.into(), "worker"),
                tuning::amount_in_full(profile.prefetch.into(), "batches")
            ),
        };
        let step = units::duration(prediction.step_now_ns.value as u64);
        let job = clean(job, self.style.unicode);
        self.sentence(&format!(
            "{job}{whose}: {workers}; a step takes {step}, {} of it waiting for data, held up most by {}; learnt from \
             {} and {}",
            units::percent(prediction.stall_share_now),
            prediction.bottleneck_now.name(),
            units::counted(profile.steps() as u64, "step"),
            tuning::amount_in_full(profile.services() as u64, "batches"),
        ));
    }

    pub(crate) fn prediction(&mut self, prediction: &Prediction) {
        let then = match (prediction.then == prediction.now, prediction.then.workers) {
            (true, _) => "then".to_owned(),
            (false, 0) => "then: no workers".to_owned(),
            (false, workers) => format!(
                "then: {}, {} in advance",
                units::counted(workers.into(), "worker"),
                tuning::amount_in_full(prediction.then.prefetch.into(), "batches")
            ),
        };
        self.now_and_then(&then);
        let step = |ns: &Estimate| {
            let [value, low, high] = [ns.value, ns.low, ns.high].map(|ns| units::duration(ns as u64));
            format!("{value} ({low} to {high})")
        };
        let now = units::duration(prediction.step_now_ns.value as u64);
        self.row("a step", &now, &step(&prediction.step_ns));
        if let Some(rate) = &prediction.samples_per_s {
            let per_s = 1.0 + prediction.gain.value;
            self.row("samples/s", &tuning::rate(rate.value / per_s), &tuning::rate_with_interval(rate));
        }
        let gain = tuning::gain_with_interval(&prediction.gain);
        self.row("gain", "", &gain);
        let shares = [prediction.stall_share_now, prediction.stall_share].map(units::percent);
        let [now, then] = shares;
        self.row("waits for data", &now, &then);
        let names = [prediction.bottleneck_now, prediction.bottleneck].map(|one| one.name().to_owned());
        let [now, then] = names;
        self.row("held up by", &now, &then);
    }

    pub(crate) fn missed(&mut self, missed: &Missed) {
        let [now, then] = [(missed.now_bytes, missed.now), (missed.then_bytes, missed.then)]
            .map(|(bytes, ratio)| format!("{} with {}", units::percent(ratio), units::memory(bytes)));
        self.sentence(&format!("By its miss-ratio curve the cache misses {now}, and would miss {then}"));
    }

    pub(crate) fn rates(&mut self, rates: &Rates) {
        self.line("");
        self.bold("How fast each part can go by itself, samples a second (95% interval)");
        for (name, what, rate) in [
            ("reached", "", &rates.actual),
            ("G compute", "were every batch there at once", &rates.compute),
            ("P preparation", "the workers of now, were every read free", &rates.prep),
            ("F fetch", "the workers of now, were decoding free", &rates.fetch),
            ("S storage", "were there workers enough", &rates.storage),
            ("C cache", "the workers of now, all in memory, decoding free", &rates.cache),
        ] {
            let shown = rate.as_ref().map_or_else(|| "not known".to_owned(), tuning::rate_with_interval);
            self.line(&format!("  {name:<15}{shown:<28} {what}"));
        }
        rates.unknown.iter().for_each(|sentence| self.sentence(&format!("- {sentence}")));
    }

    /// `cpus_are_spare`: where some of the node were idle, as those are that are simulated.
    pub(crate) fn singles(&mut self, singles: &[(String, Prediction)], cpus_are_spare: bool) {
        self.line("");
        self.bold("What single changes would bring");
        for (name, prediction) in singles {
            // As advice has it: one figure for each reading, not one between them.
            if let Some(either) = &prediction.either {
                let slow = tuning::gain_with_interval(&either.if_slow);
                self.line(&format!("  {name:<24}{slow:<28}if each read is merely slow"));
                let at_limit = match either.if_limited.value >= WORTHWHILE {
                    true => tuning::gain_with_interval(&either.if_limited),
                    false => "nothing".to_owned(),
                };
                self.line(&format!("  {:<24}{at_limit:<28}if storage is at its limit", ""));
                continue;
            }
            let brings = prediction.gain.value >= WORTHWHILE;
            if name == TWICE_THE_CORES && brings && !cpus_are_spare {
                self.line(&format!(
                    "  {name:<24}{:<28}no CPUs of the node were seen idle for it",
                    "not known"
                ));
                continue;
            }
            let gain = tuning::gain_with_interval(&prediction.gain);
            let next = match prediction.bottleneck == prediction.bottleneck_now {
                true => String::new(),
                false => format!("then held up by {}", prediction.bottleneck.name()),
            };
            self.line(&format!("  {name:<24}{gain:<28}{next}"));
        }
    }

    fn smallest(&mut self, smallest: &Smallest, profile: &Profile) {
        self.line("");
        self.bold("Smallest that is as good as any more, each with all else as it is");
        let cache = match smallest.cached_share {
            Some(share) if profile.cached_share() > 0.0 => {
                let now = units::percent(profile.cached_share());
                format!("{} of the samples (now {now})", units::percent(share))
            }
            Some(share) => format!("{} of what is read from storage now", units::percent(share)),
            None => "none: a cache brings nothing".to_owned(),
        };
        self.line(&format!("  cache    {cache}"));
        self.line(&format!("  workers  {} (now {})", smallest.workers, profile.workers));
        if let Some(cores) = smallest.cores {
            self.line(&format!("  cores    {cores} (now {})", profile.cores));
        }
    }

    pub(crate) fn outlook(&mut self, outlook: &Outlook, profile: &Profile) {
        if let Some(smallest) = &outlook.smallest {
            self.smallest(smallest, profile);
        }
        let Estimate { value, low, high } = outlook.difference_share;
        let [direct, difference, low, high] = [outlook.direct_share, value, low, high].map(units::percent);
        self.sentence(&format!(
            "Gap to an ideal loader: training waits {direct} of its time for batches; with batches that are in memory \
             and take nobody's cores its steps would be {difference} shorter ({low} to {high})"
        ));
    }

    pub(crate) fn doubts(&mut self, doubts: &[String]) {
        doubts.iter().for_each(|doubt| self.sentence(&format!("- {doubt}")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stallscope_control::{Bottleneck, Setting};
    use stallscope_model::Either;

    fn estimate(value: f64) -> Estimate {
        Estimate { value, low: value - 0.1, high: value + 0.1 }
    }

    fn prediction(either: Option<Either>) -> Prediction {
        let setting = Setting { workers: 4, prefetch: 8 };
        Prediction {
            now: setting,
            then: setting,
            step_now_ns: estimate(1e8),
            step_ns: estimate(1e8),
            samples_per_s: None,
            gain: estimate(0.37),
            either,
            bottleneck_now: Bottleneck::Latency,
            bottleneck: Bottleneck::Latency,
            stall_share_now: 0.5,
            stall_share: 0.2,
            calibration: 0.0,
            doubts: Vec::new(),
        }
    }

    fn singles(name: &str, prediction: Prediction, cpus_are_spare: bool) -> String {
        let style = Style { width: 100, colour: false, unicode: true };
        let mut page = Page::new(&style);
        page.singles(&[(name.to_owned(), prediction)], cpus_are_spare);
        page.text
    }

    /// "twice the workers +37%" had stood beside advice of "+85%, nothing if storage is at its limit".
    #[test]
    fn a_change_that_two_readings_fit_has_the_figures_of_both_as_in_advice() {
        let either = |limited: f64| Either {
            if_slow: estimate(0.85),
            if_limited: estimate(limited),
            bytes_per_s: None,
        };
        let shown = |either: Option<Either>| singles("twice the workers", prediction(either), true);
        let both = shown(Some(either(0.0)));
        assert!(both.contains("+85%") && !both.contains("+37%"), "{both}");
        assert!(both.contains("if each read is merely slow"), "{both}");
        let at_limit = both.lines().last().unwrap();
        assert!(at_limit.contains("nothing") && at_limit.ends_with("if storage is at its limit"), "{both}");
        assert!(shown(Some(either(0.2))).lines().last().unwrap().contains("+20%"));
        assert!(shown(None).contains("+37%"));
    }

    /// Of twice the CPUs +99% was expected on a busy node, and they brought +4%.
    #[test]
    fn what_more_cores_bring_is_given_where_some_were_idle() {
        let shown = |spare| singles(TWICE_THE_CORES, prediction(None), spare);
        assert!(shown(true).contains("+37%"));
        assert!(shown(false).contains("no CPUs of the node were seen idle") && !shown(false).contains('%'));
        let nothing = Prediction { gain: estimate(0.0), ..prediction(None) };
        assert!(singles(TWICE_THE_CORES, nothing, false).contains("+0%"));
    }
}
