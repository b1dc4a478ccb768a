//! Knobs, rates and decisions in words: the same in terminal, text and page.

mod over_time;
mod turns;

pub use over_time::{Mark, values};
pub use turns::{Became, Turn, turns, turns_in_words};

use stallscope_model::{AuditEvent, Estimate, Knob, Phase, PhaseSummary, Rates, RunSummary};
use stallscope_units as units;

/// A value of a knob in its shortest form: "16", "1.2 GiB", "30 s"; `unit` is [`Knob::unit`]. Bytes are a budget
/// of memory, as people set it.
pub fn amount(value: u64, unit: &str) -> String {
    match unit {
        "bytes" => units::memory(value),
        "ns" => units::duration(value),
        // An interval of checkpoints that is the script's own again.
        "seconds" if value == 0 => "auto".to_owned(),
        "seconds" => units::duration(value.saturating_mul(1_000_000_000)),
        _ => units::count(value),
    }
}

/// The same with its unit: "16 batches".
pub fn amount_in_full(value: u64, unit: &str) -> String {
    match unit {
        "bytes" | "ns" | "seconds" | "" => amount(value, unit),
        _ => format!("{} {unit}", amount(value, unit)),
    }
}

/// Knobs are listed by rank, and each rank has the same: every name is among so many of the first. This is asked for each line of an
/// audit, and a foreign recording may have a hundred thousand of both.
const NAMED: usize = 512;

/// The unit that a knob of this name is counted in, as its job says; one that the job does not have yet may say it in its
/// name. Empty when it is not known.
pub fn unit_of<'a>(knob: &str, knobs: &'a [Knob]) -> &'a str {
    let named = match knob.rsplit_once('.') {
        Some((_, "bytes")) => "bytes",
        Some((_, "interval")) => "seconds",
        _ => "",
    };
    knobs.iter().take(NAMED).find(|known| known.name == knob).map_or(named, |known| &known.unit)
}

/// A share by which samples a second rise or fall: "+31%", "-2%".
pub fn gain(share: f64) -> String {
    if !share.is_finite() {
        return "?".to_owned();
    }
    let percent = (share.clamp(-1.0, 99.99) * 100.0).round();
    // Not "-0%".
    format!("{:+.0}%", percent + 0.0)
}

/// "+31% (+24% to +38%)".
pub fn gain_with_interval(estimate: &Estimate) -> String {
    format!("{}{}", gain(estimate.value), interval(estimate, gain))
}

/// Samples a second: "118", "12,004".
pub fn rate(per_second: f64) -> String {
    if per_second.is_finite() && per_second >= 0.0 {
        units::per_second((per_second * 1e3).round() as u64, 1_000_000_000_000)
    } else {
        "?".to_owned()
    }
}

/// "118 (112 to 125)".
pub fn rate_with_interval(estimate: &Estimate) -> String {
    format!("{}{}", rate(estimate.value), interval(estimate, rate))
}

/// What follows a figure; nothing where the interval has no width, or no ends.
fn interval(estimate: &Estimate, shown: fn(f64) -> String) -> String {
    let Estimate { low, high, .. } = *estimate;
    match (low.is_finite(), high.is_finite()) {
        (true, true) if low < high => format!(" ({} to {})", shown(low), shown(high)),
        (true, false) => format!(" (at least {})", shown(low)),
        (false, true) => format!(" (at most {})", shown(high)),
        _ => String::new(),
    }
}

/// A part of a rank whose speed by itself is known.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// As in the literature on data stalls: G, P, F, S, C.
    pub letter: &'static str,
    pub name: &'static str,
    /// Under which condition a rank would be as fast as that.
    pub meaning: &'static str,
    pub of: fn(&Rates) -> Option<Estimate>,
}

/// The parts, in the order they are shown.
pub const PARTS: [Part; 5] = [
    Part {
        letter: "G",
        name: "compute",
        meaning: "the trainer, were every batch there at once",
        of: |rates| rates.compute,
    },
    Part {
        letter: "P",
        name: "prep",
        meaning: "the workers of now, were every read free",
        of: |rates| rates.prep,
    },
    Part {
        letter: "F",
        name: "fetch",
        meaning: "the workers of now, were decoding free",
        of: |rates| rates.fetch,
    },
    Part {
        letter: "S",
        name: "storage",
        meaning: "storage, were there workers enough",
        of: |rates| rates.storage,
    },
    Part { letter: "C", name: "cache", meaning: "the same from memory", of: |rates| rates.cache },
];

/// The slowest part: nothing else makes the rank faster. Memory is no part of the way that batches take now. A trainer that
/// hardly waits is itself the slowest, however rough the estimates of what it does not wait for are.
pub fn narrowest(rates: &Rates) -> Option<&'static Part> {
    if rates.data_bound == Some(false) && rates.compute.is_some() {
        return PARTS.iter().find(|part| part.letter == "G");
    }
    let value = |part: &Part| (part.of)(rates).map(|rate| rate.value).filter(|value| value.is_finite());
    let known = PARTS.iter().filter(|part| part.letter != "C").filter_map(|part| Some((part, value(part)?)));
    known.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(part, _)| part)
}

/// "workers 2 → 4"; the knob alone, or nothing, where the line has no more.
pub fn change(event: &AuditEvent, knobs: &[Knob]) -> String {
    let shown = |value: u64| amount(value, unit_of(&event.knob, knobs));
    match (event.from, event.to) {
        (Some(from), Some(to)) => format!("{} {} → {}", event.knob, shown(from), shown(to)),
        (None, Some(value)) | (Some(value), None) => format!("{} {}", event.knob, shown(value)),
        (None, None) => event.knob.clone(),
    }
}

/// "in the last 1,024 steps", where rates are of a part of training: beside figures of the whole run.
pub fn of_the_last(rates: &Rates, summary: &RunSummary) -> Option<String> {
    let of_rank = summary.ranks.iter().find(|rank| rank.facts.rank == rates.rank);
    let phases = of_rank.map_or(&summary.phases, |rank| &rank.phases);
    let trains = |phase: &&PhaseSummary| {
        phase.phase == Phase::Training && phase.loader.is_none_or(|loader| loader == rates.loader)
    };
    let all = phases.iter().filter(trains).fold(0, |all: u64, phase| all.saturating_add(phase.steps));
    // The first steps and those around a change of settings are in no rate.
    let is_part = rates.steps > 0 && u64::from(rates.steps) < all / 10 * 9;
    is_part.then(|| format!("in the last {}", units::counted(rates.steps.into(), "step")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn estimate(value: f64, low: f64, high: f64) -> Estimate {
        Estimate { value, low, high }
    }

    #[test]
    fn figures_read_naturally() {
        assert_eq!([gain(0.314), gain(-0.02), gain(-0.001), gain(f64::NAN)], ["+31%", "-2%", "+0%", "?"]);
        assert_eq!([gain(1e300), gain(-7.0)], ["+9999%", "-100%"]);
        assert_eq!(gain_with_interval(&estimate(0.31, 0.24, 0.38)), "+31% (+24% to +38%)");
        assert_eq!(gain_with_interval(&estimate(0.31, 0.24, f64::INFINITY)), "+31% (at least +24%)");
        assert_eq!(rate_with_interval(&estimate(118.2, 3.04, 1200.0)), "118 (3.0 to 1,200)");
        assert_eq!(rate_with_interval(&estimate(118.2, 118.2, 118.2)), "118");
        assert_eq!(amount_in_full(16, "batches"), "16 batches");
        assert_eq!([amount(1_500_000_000, "bytes"), amount(2_000_000_000, "ns")], ["1.4 GiB", "2.0 s"]);
        assert_eq!(unit_of("ckpt.interval", &[]), "seconds");
        assert_eq!([0, 8, 600].map(|value| amount(value, "seconds")), ["auto", "8.0 s", "10 min"]);
    }

    #[test]
    fn the_narrowest_part_is_the_slowest_on_the_way() {
        let known = |value| Some(estimate(value, value * 0.9, value * 1.1));
        let mut rates =
            Rates { compute: known(400.0), storage: known(120.0), cache: known(90.0), ..Rates::default() };
        assert_eq!(narrowest(&rates).map(|part| part.name), Some("storage"));
        rates.storage = known(f64::NAN);
        assert_eq!(narrowest(&rates).map(|part| part.name), Some("compute"));
        assert!(narrowest(&Rates::default()).is_none());
        // What training does not wait for is not its bottleneck, however roughly it is known.
        let rates = Rates { data_bound: Some(false), storage: Some(estimate(60.0, 40.0, 90.0)), ..rates };
        assert_eq!(narrowest(&rates).map(|part| part.name), Some("compute"));
    }
}
