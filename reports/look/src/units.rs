//! Figures for people: the same quantity looks the same everywhere.

/// "800 ns", "3.2 ms", "41 s", "7.2 h": two digits or three, never more.
pub fn duration(ns: u64) -> String {
    const STEPS: [(f64, &str, f64); 7] = [
        (1.0, "ns", 999.5),
        (1e3, "us", 999.5),
        (1e6, "ms", 999.5),
        (1e9, "s", 59.5),
        (60e9, "min", 59.5),
        (3600e9, "h", 47.5),
        (86_400e9, "d", f64::INFINITY),
    ];
    if ns == 0 {
        return "0 s".to_owned();
    }
    STEPS
        .into_iter()
        .map(|(unit_ns, unit, below)| (ns as f64 / unit_ns, unit, below))
        .find(|(value, _, below)| value < below)
        .map_or_else(String::new, |(value, unit, _)| match unit {
            "ns" => format!("{ns} ns"),
            _ => format!("{} {unit}", short(value)),
        })
}

/// "512 B", "1.2 MB"; powers of ten.
pub fn bytes(bytes: u64) -> String {
    scaled(bytes as f64, &[(1e3, "kB"), (1e6, "MB"), (1e9, "GB"), (1e12, "TB"), (1e15, "PB")])
        .unwrap_or_else(|| format!("{bytes} B"))
}

/// A size of memory, as people set it: "2.0 GiB", "512 MiB"; powers of two.
pub fn memory(bytes: u64) -> String {
    let (unit, name) = binary(bytes);
    match unit {
        1 => format!("{bytes} B"),
        _ => format!("{} {name}", short(bytes as f64 / unit as f64)),
    }
}

/// "1.9 of 2.0 GiB": both in the unit that suits the whole.
pub fn memory_of(part: u64, whole: u64) -> String {
    let (unit, name) = binary(whole.max(part));
    match unit {
        1 => format!("{part} of {whole} B"),
        _ => format!("{} of {} {name}", short(part as f64 / unit as f64), short(whole as f64 / unit as f64)),
    }
}

fn binary(bytes: u64) -> (u64, &'static str) {
    let units = [(1u64 << 50, "PiB"), (1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    units.into_iter().find(|(unit, _)| bytes >= *unit).unwrap_or((1, "B"))
}

/// "1,204", "12.3 M".
pub fn count(count: u64) -> String {
    if count < 10_000_000 {
        return grouped(count);
    }
    scaled(count as f64, &[(1e6, "M"), (1e9, "G"), (1e12, "T"), (1e15, "P")]).unwrap_or_default()
}

/// `count` with its noun, in the plural unless one: "1 step", "1,204 steps".
pub fn counted(number: u64, noun: &str) -> String {
    format!("{} {noun}{}", count(number), if number == 1 { "" } else { "s" })
}

/// A rate per second without its unit: "3.2", "891", "12,004".
pub fn per_second(number: u64, wall_ns: u64) -> String {
    let rate = if wall_ns == 0 { 0.0 } else { number as f64 / (wall_ns as f64 / 1e9) };
    if rate < 99.5 { short(rate) } else { count(rate.round() as u64) }
}

/// "61%", "<1%", "0%".
pub fn percent(share: f64) -> String {
    let share = sound(share) * 100.0;
    if share > 0.0 && share < 0.5 { "<1%".to_owned() } else { format!("{share:.0}%") }
}

/// "61.0%", "<0.1%", "0.0%".
pub fn percent_exact(share: f64) -> String {
    let share = sound(share) * 100.0;
    if share > 0.0 && share < 0.05 { "<0.1%".to_owned() } else { format!("{share:.1}%") }
}

/// `part` of `whole`, 0 when there is no whole.
pub fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// Shares come from files too.
fn sound(share: f64) -> f64 {
    if share.is_finite() { share.clamp(0.0, 9.99) } else { 0.0 }
}

fn short(value: f64) -> String {
    if value < 9.95 { format!("{value:.1}") } else { format!("{value:.0}") }
}

fn scaled(value: f64, steps: &[(f64, &str)]) -> Option<String> {
    steps.iter().rev().map(|(unit, name)| (value / unit, name)).find(|(value, _)| *value >= 0.9995).map(
        |(value, name)| format!("{} {name}", if value < 99.5 { short(value) } else { format!("{value:.0}") }),
    )
}

fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// What the largest difference between kernel and shim on one cause, as a share of training time, comes to.
pub fn agreement(disagreement_share: f64) -> String {
    let says = if disagreement_share > 0.03 { "differ by" } else { "agree within" };
    format!("they {says} {} of training time", percent_exact(disagreement_share))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_naturally() {
        let table = [
            (0, "0 s"),
            (800, "800 ns"),
            (3_240_000, "3.2 ms"),
            (9_960_000, "10 ms"),
            (999_600_000, "1.0 s"),
            (41_300_000_000, "41 s"),
            (59_700_000_000, "1.0 min"),
            (25_900_000_000_000, "7.2 h"),
            (259_200_000_000_000, "3.0 d"),
            (u64::MAX, "213504 d"),
        ];
        for (ns, text) in table {
            assert_eq!(duration(ns), text);
        }
    }

    #[test]
    fn other_quantities_read_naturally() {
        assert_eq!(
            [bytes(0), bytes(999), bytes(15_000), bytes(1_234_567_890)],
            ["0 B", "999 B", "15 kB", "1.2 GB"]
        );
        assert_eq!(
            [memory(0), memory(1023), memory(3 << 20), memory(u64::MAX)],
            ["0 B", "1023 B", "3.0 MiB", "16384 PiB"]
        );
        assert_eq!([memory_of(0, 0), memory_of(1 << 29, 2 << 30)], ["0 of 0 B", "0.5 of 2.0 GiB"]);
        assert_eq!(
            [count(0), count(1204), count(9_999_999), count(12_345_678)],
            ["0", "1,204", "9,999,999", "12 M"]
        );
        assert_eq!(
            [percent(0.0), percent(0.001), percent(0.614), percent(1.0)],
            ["0%", "<1%", "61%", "100%"]
        );
        assert_eq!(
            [percent_exact(0.0), percent_exact(0.0001), percent_exact(f64::NAN)],
            ["0.0%", "<0.1%", "0.0%"]
        );
        assert_eq!([per_second(10, 0), per_second(891, 1_000_000_000)], ["0.0", "891"]);
        assert_eq!([counted(1, "step"), counted(2, "step")], ["1 step", "2 steps"]);
    }
}
