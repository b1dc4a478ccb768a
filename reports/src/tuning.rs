//! What was turned, what came of it, and how fast each part could go, in sentences.

use stallscope_look::tuning::{
    PARTS, Turn, gain, gain_with_interval, narrowest, of_the_last, rate, rate_with_interval, turns,
    turns_in_words,
};
use stallscope_model::{Act, AuditEvent, Cause, Causes, Phase, Rates, RunSummary, TuneMode};
use stallscope_units as units;

/// The newest turns are shown one by one, at most so many.
const TURNS: usize = 6;

/// The section on tuning: nothing where nobody turned or knew anything. What would help stands on the list of remedies.
pub(crate) struct Tuning {
    /// Mode of the controller, and how often knobs were turned.
    pub(crate) facts: String,
    /// One sentence for each turn of knobs.
    pub(crate) turned: Vec<String>,
    /// Rates of the parts of the input pipeline, of the first rank and loader with known rates.
    pub(crate) rates: Option<String>,
}

impl Tuning {
    pub(crate) fn of(summary: &RunSummary, audit: &[AuditEvent]) -> Option<Tuning> {
        let all = turns(audit);
        let ranks = summary.ranks.len() > 1;
        let rates = summary.rates.iter().find_map(|rates| {
            let sentence = rates_in_words(rates, !summary.caches.is_empty(), without_cpu(summary))?;
            let sentence = match of_the_last(rates, summary) {
                Some(steps) => format!("{steps}: {sentence}"),
                None => sentence,
            };
            let rank = ranks.then(|| format!("rank {}", rates.rank));
            let loader = summary.several_loaders_train().then(|| format!("loader {}", rates.loader));
            let whose: Vec<String> = rank.into_iter().chain(loader).collect();
            Some(if whose.is_empty() { sentence } else { format!("{}: {sentence}", whose.join(", ")) })
        });
        if all.is_empty() && rates.is_none() {
            return None;
        }
        let earlier = all.len().saturating_sub(TURNS);
        let mut turned: Vec<String> =
            all.iter().skip(earlier).map(|turn| turned_in_full(turn, summary, ranks)).collect();
        if earlier > 0 {
            let before = units::counted(earlier as u64, "earlier turn");
            turned.insert(0, format!("{before}: `stallscope audit` shows all"));
        }
        let mut facts: Vec<String> = mode(summary, audit).map(str::to_owned).into_iter().collect();
        facts.push(match (all.is_empty(), facts.is_empty()) {
            (false, _) => turns_in_words(&all),
            (true, false) => "nothing was turned".to_owned(),
            (true, true) => "no controller ran, and no knob was turned".to_owned(),
        });
        Some(Tuning { facts: facts.join("; "), turned, rates })
    }
}

/// What a controller may do, or did; nothing without one.
fn mode(summary: &RunSummary, audit: &[AuditEvent]) -> Option<&'static str> {
    let by_controller = |act: Act| audit.iter().any(|event| event.by == "controller" && event.act == act);
    let over = summary.job.ended_wall_ns.is_some();
    Some(match (summary.tune, over) {
        (Some(TuneMode::Act), false) => "a controller acts",
        (Some(TuneMode::Advise), false) => "a controller advises",
        (Some(TuneMode::Observe), false) => "a controller observes",
        (Some(TuneMode::Act), true) => "a controller acted",
        (Some(TuneMode::Advise), true) => "a controller advised",
        (Some(TuneMode::Observe), true) => "a controller observed",
        (None, _) if by_controller(Act::Request) => "a controller acted",
        (None, _) if by_controller(Act::Advise) => "a controller advised (`stallscope audit` shows what)",
        (None, _) => return None,
    })
}

fn turned_in_full(turn: &Turn<'_>, summary: &RunSummary, ranks: bool) -> String {
    let mut sentence = turn.in_words(&summary.knobs, ranks);
    if let (Some(measured), Some(predicted)) = (&turn.last.measured, turn.predicted()) {
        // The figure itself is shown already.
        let ends = gain_with_interval(measured).replacen(&gain(measured.value), "", 1);
        sentence.push_str(&format!("{ends}, expected {}", gain(predicted.value)));
    }
    let why = [turn.last, turn.asked[0]].map(|line| line.why.as_str());
    if let Some(why) = why.into_iter().find(|why| !why.is_empty()) {
        sentence.push_str(&format!(": {why}"));
    }
    sentence
}

/// The share of training in which its trainer gets no CPU, which counts as its own work in the rates.
fn without_cpu(summary: &RunSummary) -> f64 {
    let training = summary.phases.iter().filter(|phase| phase.phase == Phase::Training);
    let mut causes = Causes::default();
    training.for_each(|phase| causes += &phase.causes);
    causes.share(Cause::Preempted)
}

/// "131 samples/s reached; storage 140 (121 to 166) is the narrowest, then fetch 168, …"; `None` where no part is
/// known. The rate from memory is shown for `cached` jobs alone, which have one.
fn rates_in_words(rates: &Rates, cached: bool, without_cpu: f64) -> Option<String> {
    let first = narrowest(rates)?;
    let mut others: Vec<_> = PARTS
        .iter()
        .filter(|part| part.name != first.name && (cached || part.letter != "C"))
        .filter_map(|part| Some((part, (part.of)(rates)?)))
        .collect();
    others.sort_by(|a, b| a.1.value.total_cmp(&b.1.value));
    let mut sentence = String::new();
    if let Some(actual) = &rates.actual {
        sentence.push_str(&format!("{} samples/s reached; ", rate(actual.value)));
    }
    let narrow = (first.of)(rates).map(|estimate| rate_with_interval(&estimate)).unwrap_or_default();
    sentence.push_str(&format!("{} {narrow} is the narrowest", first.name));
    if first.letter == "G" && without_cpu >= 0.1 {
        sentence.push_str(&format!(
            " ({} of training without a CPU is part of it)",
            units::percent_in_words(without_cpu)
        ));
    }
    if !others.is_empty() {
        let others: Vec<String> =
            others.iter().map(|(part, estimate)| format!("{} {}", part.name, rate(estimate.value))).collect();
        let then =
            if rates.data_bound == Some(false) { " as training hardly waits, beside" } else { ", then" };
        sentence.push_str(&format!("{then} {}", others.join(", ")));
    }
    Some(sentence)
}

#[cfg(test)]
mod tests {
    use super::*;
    use stallscope_model::{CacheSummary, Estimate, PhaseSummary};

    fn training(loader: u16, steps: u64) -> PhaseSummary {
        PhaseSummary {
            phase: Phase::Training,
            loader: Some(loader),
            steps,
            samples: 0,
            wall_ns: 0,
            causes: Causes::default(),
            hidden_ns: None,
            step_p50_ns: 0,
            step_p95_ns: 0,
            step_max_ns: 0,
        }
    }

    #[test]
    fn the_rate_from_memory_is_shown_for_jobs_with_a_cache_alone() {
        let known = |value| Some(Estimate { value, low: value, high: value });
        let rates = vec![Rates { compute: known(32.0), cache: known(3_660_055.0), ..Rates::default() }];
        let mut summary = RunSummary { rates, ..RunSummary::default() };
        let narrowest_line = |summary: &RunSummary| {
            Tuning::of(summary, &[]).and_then(|tuning| tuning.rates).unwrap_or_default()
        };
        assert_eq!(narrowest_line(&summary), "compute 32 is the narrowest");
        summary.caches = vec![CacheSummary::default()];
        assert_eq!(narrowest_line(&summary), "compute 32 is the narrowest, then cache 3,660,055");
    }

    /// Beside the job's samples/s, which are those of all loaders.
    #[test]
    fn the_rates_of_one_of_several_loaders_are_named_after_it() {
        let known = |value| Some(Estimate { value, low: value, high: value });
        let rates = Rates { loader: 1, actual: known(30.0), compute: known(32.0), ..Rates::default() };
        let mut summary =
            RunSummary { rates: vec![rates], phases: vec![training(1, 9)], ..RunSummary::default() };
        let line = |summary: &RunSummary| {
            Tuning::of(summary, &[]).and_then(|tuning| tuning.rates).unwrap_or_default()
        };
        assert!(line(&summary).starts_with("30 samples/s reached"), "{}", line(&summary));
        summary.phases.push(training(0, 9));
        assert!(line(&summary).starts_with("loader 1: 30 samples/s reached"), "{}", line(&summary));
    }

    #[test]
    fn rates_of_a_part_of_the_run_name_it() {
        let known = |value| Some(Estimate { value, low: value, high: value });
        let rates = Rates { steps: 1024, compute: known(32.0), ..Rates::default() };
        let mut summary =
            RunSummary { rates: vec![rates], phases: vec![training(0, 1030)], ..RunSummary::default() };
        let line = |summary: &RunSummary| {
            Tuning::of(summary, &[]).and_then(|tuning| tuning.rates).unwrap_or_default()
        };
        assert_eq!(line(&summary), "compute 32 is the narrowest");
        summary.phases[0].steps = 5000;
        assert_eq!(line(&summary), "in the last 1,024 steps: compute 32 is the narrowest");
    }

    #[test]
    fn own_work_that_gets_no_cpu_is_not_called_slow() {
        let known = |value| Some(Estimate { value, low: value, high: value });
        let rates = Rates { compute: known(14.0), prep: known(127.0), ..Rates::default() };
        let sentence = |share| rates_in_words(&rates, false, share).unwrap_or_default();
        assert!(
            sentence(0.67).contains("(67% of training without a CPU is part of it)"),
            "{}",
            sentence(0.67)
        );
        assert!(!sentence(0.05).contains("without a CPU"), "{}", sentence(0.05));
    }

    /// Also where the verdict names storage.
    #[test]
    fn storage_is_not_the_narrowest_part_of_a_job_that_computes() {
        let known = |value| Some(Estimate { value, low: value, high: value });
        let (actual, compute, storage, prep) = (known(30.0), known(32.0), known(31.0), known(90.0));
        let data_bound = Some(false);
        let rates = Rates { actual, compute, storage, prep, data_bound, ..Rates::default() };
        assert_eq!(
            rates_in_words(&rates, false, 0.0).as_deref(),
            Some(
                "30 samples/s reached; compute 32 is the narrowest as training hardly waits, beside storage 31, prep 90"
            )
        );
    }
}
