//! What `--fail-if` takes: `FIGURE OP LIMIT`.

use super::figure::{Figure, Unit};
use std::fmt;
use std::str::FromStr;

/// A condition under which a comparison counts as failed.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    text: String,
    pub(crate) figure: Figure,
    above: bool,
    or_equal: bool,
    pub(crate) limit: Limit,
}

/// What a figure is held against; the numbers are in the figure's unit (ns, 1/s, a share of 0 to 1).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Limit {
    /// The figure in the second run.
    Value(f64),
    /// The second run's figure less the first one's.
    Change(f64),
    /// The same as a part of the first one's.
    RelativeChange(f64),
}

/// Why a condition is not understood; one sentence with the way out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadCondition(String);

impl Condition {
    /// Whether `value`, of the kind that the limit is, passes it.
    pub(crate) fn holds(&self, value: f64) -> bool {
        let (Limit::Value(limit) | Limit::Change(limit) | Limit::RelativeChange(limit)) = self.limit;
        match self.above {
            true => value > limit || (self.or_equal && value >= limit),
            false => value < limit || (self.or_equal && value <= limit),
        }
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Condition {
    type Err = BadCondition;

    /// Reads `fetch > 10%` (the share in the second run), `fetch > +5%` (five points more than in the first),
    /// `step_p50 > 80ms`, `step_p50 > +5%` (5% more than in the first), `samples_per_s < -50`.
    fn from_str(text: &str) -> Result<Condition, BadCondition> {
        let bad = |reason: String| {
            BadCondition(format!(
                "{reason}; a condition is FIGURE OP LIMIT, such as \"fetch > 10%\", \"fetch > +5%\" or \"step_p50 > +5%\""
            ))
        };
        let at = text.find(['<', '>']).ok_or_else(|| bad("there is no < or > in it".to_owned()))?;
        let (name, rest) = text.split_at(at);
        let name = name.trim();
        let figure = Figure::named(name).ok_or_else(|| {
            let known: Vec<String> = Figure::all().map(|figure| figure.short()).collect();
            BadCondition(format!("there is no figure {name:?}; there are {}", known.join(", ")))
        })?;
        let above = rest.starts_with('>');
        let rest = &rest[1..];
        let or_equal = rest.starts_with('=');
        let limit = rest.strip_prefix('=').unwrap_or(rest).trim();
        let limit = read_limit(figure, limit).map_err(bad)?;
        Ok(Condition { text: text.trim().to_owned(), figure, above, or_equal, limit })
    }
}

fn read_limit(figure: Figure, text: &str) -> Result<Limit, String> {
    let is_change = text.starts_with(['+', '-']);
    let digits = text.find(|c: char| !matches!(c, '0'..='9' | '.' | '+' | '-')).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: f64 = number.parse().map_err(|_| format!("{text:?} does not begin with a number"))?;
    let limit = match (figure.unit(), unit.trim()) {
        (Unit::Share, "%") => Ok(number / 100.0),
        (Unit::Nanoseconds | Unit::PerSecond, "%") if is_change => {
            return Ok(Limit::RelativeChange(number / 100.0));
        }
        (Unit::Nanoseconds, "ns") => Ok(number),
        (Unit::Nanoseconds, "us") => Ok(number * 1e3),
        (Unit::Nanoseconds, "ms") => Ok(number * 1e6),
        (Unit::Nanoseconds, "s") => Ok(number * 1e9),
        (Unit::PerSecond, "") => Ok(number),
        (Unit::Share, _) => Err("takes a percentage, such as 10% or +5%"),
        (Unit::Nanoseconds, _) => Err("takes a time, such as 80ms or +4ms, or a change such as +5%"),
        (Unit::PerSecond, _) => Err("takes a number, such as 900 or -50, or a change such as -5%"),
    };
    let limit = limit.map_err(|takes| format!("{} {takes}", figure.short()))?;
    Ok(if is_change { Limit::Change(limit) } else { Limit::Value(limit) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use stallscope_model::Cause;

    proptest! {
        #[test]
        fn any_text_is_a_condition_or_a_sentence(
            text in prop_oneof![any::<String>(), "[a-z_]{0,9} ?[<>]=? ?[+-]?[0-9.]{0,5}[%a-z]{0,2}"],
        ) {
            match text.parse::<Condition>() {
                Ok(condition) => prop_assert_eq!(condition.to_string(), text.trim()),
                Err(error) => prop_assert!(!error.to_string().chars().any(char::is_control)),
            }
        }
    }

    #[test]
    fn limits_are_read_by_the_figures_unit() {
        for (text, figure, limit) in [
            ("fetch > 10%", Figure::Share(Cause::Fetch), Limit::Value(0.1)),
            ("fetch_share>10%", Figure::Share(Cause::Fetch), Limit::Value(0.1)),
            (" fetch > +5 % ", Figure::Share(Cause::Fetch), Limit::Change(0.05)),
            ("data_stall >= 20.5%", Figure::DataStall, Limit::Value(0.205)),
            ("step_p50 > +5%", Figure::StepMedian, Limit::RelativeChange(0.05)),
            ("step_p95_ns > 80ms", Figure::StepP95, Limit::Value(80e6)),
            ("step_mean > +4ms", Figure::StepMean, Limit::Change(4e6)),
            ("persist_per_step > 500us", Figure::PerStep(Cause::Persist), Limit::Value(500e3)),
            ("samples_per_s < 900", Figure::SamplesPerSecond, Limit::Value(900.0)),
            ("samples_per_s <= -5%", Figure::SamplesPerSecond, Limit::RelativeChange(-0.05)),
        ] {
            let condition: Condition = text.parse().unwrap();
            assert_eq!((condition.figure, condition.limit), (figure, limit), "{text}");
        }
    }

    #[test]
    fn what_is_not_understood_is_reported() {
        for (text, reason) in [
            ("fetch", "there is no < or > in it"),
            ("", "there is no < or > in it"),
            ("fetsch > 10%", "there is no figure \"fetsch\"; there are step_mean, step_p50,"),
            ("fetch > 10", "fetch takes a percentage"),
            ("fetch > ten%", "\"ten%\" does not begin with a number"),
            ("fetch > 1-0%", "does not begin with a number"),
            ("fetch > 1e400%", "fetch takes a percentage"),
            ("step_p50 > 5%", "step_p50 takes a time"),
            ("step_p50 > 5m", "step_p50 takes a time"),
            ("samples_per_s < 9ms", "samples_per_s takes a number"),
        ] {
            let error = text.parse::<Condition>().unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn bounds_are_strict_by_default() {
        let holds = |text: &str, value| text.parse::<Condition>().unwrap().holds(value);
        assert!(holds("fetch > 10%", 0.11) && !holds("fetch > 10%", 0.1) && holds("fetch >= 10%", 0.1));
        assert!(holds("samples_per_s < 900", 899.0) && !holds("samples_per_s < 900", 900.0));
        assert!(holds("samples_per_s <= 900", 900.0) && !holds("samples_per_s <= 900", f64::NAN));
    }
}
