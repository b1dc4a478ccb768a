//! Figures as people say them.

use stallscope_model::Estimate;

/// `0.614` as "61%"; below 10% with one decimal.
pub(crate) fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent < 9.95 { format!("{percent:.1}%") } else { format!("{percent:.0}%") }
}

const UNITS: [(&str, f64); 4] = [("hours", 3600e9), ("minutes", 60e9), ("seconds", 1e9), ("ms", 1e6)];

fn unit(ns: u64) -> (&'static str, f64) {
    UNITS.into_iter().find(|(_, size)| ns as f64 >= 2.0 * size).unwrap_or(UNITS[3])
}

fn number(ns: u64, size: f64) -> String {
    let value = ns as f64 / size;
    if value < 9.95 { format!("{value:.1}") } else { format!("{value:.0}") }
}

/// "7.5 minutes".
pub(crate) fn span(ns: u64) -> String {
    let (name, size) = unit(ns);
    format!("{} {name}", number(ns, size))
}

/// "7.0 of 12 hours": both in the unit that suits the whole.
pub(crate) fn part_of(part_ns: u64, whole_ns: u64) -> String {
    let (name, size) = unit(whole_ns);
    format!("{} of {} {name}", number(part_ns, size), number(whole_ns, size))
}

/// Bytes a second over `ns`.
pub(crate) fn rate(bytes: u64, ns: u64) -> String {
    rate_of(bytes as f64 / (ns as f64 / 1e9))
}

pub(crate) fn rate_of(bytes_per_s: f64) -> String {
    let mib = bytes_per_s / f64::from(1 << 20);
    if mib < 0.95 { format!("{mib:.2} MiB/s") } else { format!("{mib:.1} MiB/s") }
}

/// "+38% (+30% to +45%)".
pub(crate) fn gain(gain: &Estimate) -> String {
    let signed = |share: f64| format!("{:+.0}%", 100.0 * share);
    format!("{} ({} to {})", signed(gain.value), signed(gain.low), signed(gain.high))
}

/// A size of memory: "1.2 GiB", "300 MiB".
pub(crate) fn size(bytes: u64) -> String {
    let (number, unit) = binary(bytes);
    if number < 9.95 { format!("{number:.1} {unit}") } else { format!("{number:.0} {unit}") }
}

/// A little more than that, as `cache=` takes it: "1.3GiB".
pub(crate) fn capacity(bytes: u64) -> String {
    let (number, unit) = binary(bytes.saturating_add(bytes / 20));
    if number < 9.95 {
        format!("{:.1}{unit}", (number * 10.0).ceil() / 10.0)
    } else {
        format!("{:.0}{unit}", number.ceil())
    }
}

fn binary(bytes: u64) -> (f64, &'static str) {
    let units = [(1u64 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB")];
    let (each, unit) = units.into_iter().find(|(each, _)| bytes >= *each).unwrap_or((1 << 10, "KiB"));
    (bytes as f64 / each as f64, unit)
}

pub(crate) fn count(n: u64, one: &str, many: &str) -> String {
    if n == 1 { format!("1 {one}") } else { format!("{n} {many}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_given_in_the_unit_of_the_whole() {
        assert_eq!(part_of(7 * 3_600_000_000_000, 12 * 3_600_000_000_000), "7.0 of 12 hours");
        assert_eq!(part_of(500_000_000, 90_000_000_000), "0.5 of 90 seconds");
        assert_eq!(span(1_500_000), "1.5 ms");
        assert_eq!(span(0), "0.0 ms");
        assert_eq!([size(1_300_000_000), size(0), size(300 << 20)], ["1.2 GiB", "0.0 KiB", "300 MiB"]);
        assert_eq!([capacity(1_300_000_000), capacity(300 << 20)], ["1.3GiB", "315MiB"]);
        assert_eq!(percent(0.614), "61%");
        assert_eq!(percent(0.0999), "10%");
        assert_eq!(percent(0.0123), "1.2%");
    }
}
