//! The text format. Written here because it is small and no library at hand escapes label values.

use stallscope_look::clean;
use std::collections::BTreeMap;
use std::fmt::Write;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Info,
    Summary,
}

/// Which figure of a summary; all other kinds have one [`Part::Value`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    Value,
    Quantile(&'static str),
    Count,
    Sum,
}

#[derive(Default)]
pub(super) struct Page(String);

/// Samples by their labels, so that none is there twice.
#[derive(Default)]
pub(super) struct Family(BTreeMap<(String, Part), u64>);

impl Family {
    /// Adds to the sample with these labels; seconds in nanoseconds, ratios in millionths.
    pub(super) fn add(&mut self, labels: &[(&str, &str)], value: u64) {
        self.add_part(labels, Part::Value, value);
    }

    pub(super) fn add_part(&mut self, labels: &[(&str, &str)], part: Part, value: u64) {
        let sample = self.0.entry((text_of(labels), part)).or_default();
        *sample = sample.saturating_add(value);
    }
}

impl Page {
    /// One metric family, its `name` without prefix, unit and the kind's suffix; nothing where `fill` adds nothing.
    pub(super) fn family(
        &mut self,
        kind: Kind,
        name: &str,
        unit: &str,
        help: &str,
        fill: impl FnOnce(&mut Family),
    ) {
        let mut family = Family::default();
        fill(&mut family);
        if family.0.is_empty() {
            return;
        }
        let name =
            if unit.is_empty() { format!("stallscope_{name}") } else { format!("stallscope_{name}_{unit}") };
        let (kind_name, suffix) = match kind {
            Kind::Counter => ("counter", "_total"),
            Kind::Gauge => ("gauge", ""),
            Kind::Info => ("info", "_info"),
            Kind::Summary => ("summary", ""),
        };
        self.line(format_args!("# TYPE {name} {kind_name}"));
        if !unit.is_empty() {
            self.line(format_args!("# UNIT {name} {unit}"));
        }
        self.line(format_args!("# HELP {name} {help}"));
        for ((labels, part), value) in family.0 {
            let of_unit = match unit {
                "seconds" => Some(1e9),
                "ratio" => Some(1e6),
                _ => None,
            };
            let (suffix, labels, divisor) = match part {
                Part::Value => (suffix, labels, of_unit),
                Part::Quantile(quantile) => {
                    ("", joined(labels, &text_of(&[("quantile", quantile)])), Some(1e9))
                }
                Part::Count => ("_count", labels, None),
                Part::Sum => ("_sum", labels, Some(1e9)),
            };
            let labels = if labels.is_empty() { labels } else { format!("{{{labels}}}") };
            match divisor {
                Some(divisor) => self.line(format_args!("{name}{suffix}{labels} {}", value as f64 / divisor)),
                None => self.line(format_args!("{name}{suffix}{labels} {value}")),
            }
        }
    }

    pub(super) fn finish(mut self) -> String {
        self.line(format_args!("# EOF"));
        self.0
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // Into a string nothing fails.
        let _ = writeln!(self.0, "{line}");
    }
}

fn joined(mut labels: String, more: &str) -> String {
    if !labels.is_empty() {
        labels.push(',');
    }
    labels.push_str(more);
    labels
}

/// `name="value",…`; values come from outside.
fn text_of(labels: &[(&str, &str)]) -> String {
    labels.iter().fold(String::new(), |text, (name, value)| {
        let value = clean(value, true).replace('\\', "\\\\").replace('"', "\\\"");
        joined(text, &format!("{name}=\"{value}\""))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_has_its_kind_unit_and_samples_once() {
        let mut page = Page::default();
        page.family(Kind::Counter, "nothing", "", "Nobody adds to it.", |_| {});
        page.family(Kind::Counter, "time", "seconds", "Time.", |time| {
            time.add(&[("rank", "0")], 1_500_000_000);
            time.add(&[("rank", "0")], 500_000_000);
        });
        page.family(Kind::Summary, "step", "seconds", "Steps.", |step| {
            step.add_part(&[], Part::Count, 3);
            step.add_part(&[], Part::Quantile("0.5"), 1);
        });
        let expected = "# TYPE stallscope_time_seconds counter\n\
            # UNIT stallscope_time_seconds seconds\n\
            # HELP stallscope_time_seconds Time.\n\
            stallscope_time_seconds_total{rank=\"0\"} 2\n\
            # TYPE stallscope_step_seconds summary\n\
            # UNIT stallscope_step_seconds seconds\n\
            # HELP stallscope_step_seconds Steps.\n\
            stallscope_step_seconds{quantile=\"0.5\"} 0.000000001\n\
            stallscope_step_seconds_count 3\n\
            # EOF\n";
        assert_eq!(page.finish(), expected);
    }

    #[test]
    fn what_comes_from_outside_stays_within_its_quotes() {
        let hostile = "a\"} 1\nup 7\u{1b}[2J\\";
        assert_eq!(text_of(&[("job", hostile)]), r#"job="a\"} 1 up 7\\u{1b}[2J\\""#);
    }
}
