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

/// A little more than `bytes`, as `cache=` takes it: "1.3GiB".
pub fn memory_to_hold(bytes: u64) -> String {
    let (unit, name) = binary(bytes.saturating_add(bytes / 20).max(1 << 10));
    let value = bytes.saturating_add(bytes / 20) as f64 / unit as f64;
    if value < 9.95 {
        format!("{:.1}{name}", (value * 10.0).ceil() / 10.0)
    } else {
        format!("{:.0}{name}", value.ceil())
    }
}

/// What is read or sent in a second: "0.26 MB/s", "4.6 MB/s", "1.2 GB/s".
pub fn bytes_per_second(bytes: f64) -> String {
    match bytes / 1e6 {
        mb if !mb.is_finite() => "?".to_owned(),
        mb if mb < 0.95 => format!("{mb:.2} MB/s"),
        _ => format!("{}/s", self::bytes(bytes as u64)),
    }
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

/// In a sentence, with two digits at least: "61%", "1.2%", "-0.3%".
pub fn percent_in_words(share: f64) -> String {
    let percent = share * 100.0;
    if percent.abs() < 9.95 { format!("{percent:.1}%") } else { format!("{percent:.0}%") }
}

const SPANS: [(&str, f64); 4] = [("hours", 3600e9), ("minutes", 60e9), ("seconds", 1e9), ("ms", 1e6)];

fn span_unit(ns: u64) -> (&'static str, f64) {
    SPANS.into_iter().find(|(_, unit_ns)| ns as f64 >= 2.0 * unit_ns).unwrap_or(SPANS[3])
}

/// A duration in a sentence: "7.5 minutes".
pub fn duration_in_words(ns: u64) -> String {
    let (name, unit_ns) = span_unit(ns);
    format!("{} {name}", short(ns as f64 / unit_ns))
}

/// "7.0 of 12 hours": both in the unit that suits the whole.
pub fn duration_of(part_ns: u64, whole_ns: u64) -> String {
    let (name, unit_ns) = span_unit(whole_ns);
    format!("{} of {} {name}", short(part_ns as f64 / unit_ns), short(whole_ns as f64 / unit_ns))
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
    fn durations_in_sentences_are_in_the_unit_of_the_whole() {
        assert_eq!(duration_of(7 * 3_600_000_000_000, 12 * 3_600_000_000_000), "7.0 of 12 hours");
        assert_eq!(duration_of(500_000_000, 90_000_000_000), "0.5 of 90 seconds");
        assert_eq!([duration_in_words(1_500_000), duration_in_words(0)], ["1.5 ms", "0.0 ms"]);
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
        assert_eq!(
            [percent_in_words(0.614), percent_in_words(0.0999), percent_in_words(0.0123)],
            ["61%", "10%", "1.2%"]
        );
        assert_eq!([memory_to_hold(1_300_000_000), memory_to_hold(300 << 20)], ["1.3GiB", "315MiB"]);
        assert_eq!(
            [bytes_per_second(262_144.0), bytes_per_second(4.6e6), bytes_per_second(f64::NAN)],
            ["0.26 MB/s", "4.6 MB/s", "?"]
        );
        assert_eq!([counted(1, "step"), counted(2, "step")], ["1 step", "2 steps"]);
    }
}
