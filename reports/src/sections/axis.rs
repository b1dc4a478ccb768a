//! Where axes have their marks, and what is written there.

use super::clock;
use super::svg::{Anchor, Svg};
use stallscope_units as units;

const SECOND_NS: u64 = 1_000_000_000;
const MINUTE_NS: u64 = 60 * SECOND_NS;
const HOUR_NS: u64 = 60 * MINUTE_NS;
const DAY_NS: u64 = 24 * HOUR_NS;

/// Lengths of time that people count in.
const STEPS_NS: [u64; 19] = [
    SECOND_NS,
    2 * SECOND_NS,
    5 * SECOND_NS,
    10 * SECOND_NS,
    15 * SECOND_NS,
    30 * SECOND_NS,
    MINUTE_NS,
    2 * MINUTE_NS,
    5 * MINUTE_NS,
    10 * MINUTE_NS,
    15 * MINUTE_NS,
    30 * MINUTE_NS,
    HOUR_NS,
    2 * HOUR_NS,
    3 * HOUR_NS,
    6 * HOUR_NS,
    12 * HOUR_NS,
    DAY_NS,
    7 * DAY_NS,
];

/// Marks that fit on an axis of a narrow page.
const MARKS: u64 = 5;

/// An interval of time across the width of a chart; never empty.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) start_ns: u64,
    pub(super) end_ns: u64,
}

impl Span {
    pub(super) fn new(start_ns: u64, end_ns: u64) -> Span {
        let start_ns = start_ns.min(u64::MAX - 1);
        Span { start_ns, end_ns: end_ns.max(start_ns + 1) }
    }

    pub(super) fn length_ns(&self) -> u64 {
        self.end_ns - self.start_ns
    }

    /// A moment as a share of the width: 0 at the start, 1 at the end, beyond them outside.
    pub(super) fn at(&self, ns: u64) -> f64 {
        (ns as f64 - self.start_ns as f64) / self.length_ns() as f64
    }

    /// The part of `start_ns` to `end_ns` that is within: where it begins, and how wide it is.
    pub(super) fn part(&self, start_ns: u64, end_ns: u64) -> Option<(f64, f64)> {
        let (start_ns, end_ns) = (start_ns.max(self.start_ns), end_ns.min(self.end_ns));
        (start_ns < end_ns).then(|| (self.at(start_ns), self.at(end_ns) - self.at(start_ns)))
    }
}

/// Marks on the wall clock below `y`, and thin lines up to `top`.
pub(super) fn wall_clock(svg: &mut Svg, span: Span, top: f64, y: f64) {
    let enough = |step_ns: &u64| span.length_ns() / step_ns < MARKS;
    let step_ns = STEPS_NS.into_iter().find(enough).unwrap_or(span.length_ns() / (MARKS - 1));
    let label = |ns: u64| match step_ns {
        DAY_NS.. => clock::day(ns),
        MINUTE_NS.. => clock::hour(ns),
        _ => clock::time(ns),
    };
    marks(svg, steps(span.start_ns, span.end_ns, step_ns).map(|ns| (span.at(ns), label(ns))), top, y);
}

/// Marks of the time that went by since `zero_ns`, as for a single step.
pub(super) fn elapsed(svg: &mut Svg, span: Span, zero_ns: u64, top: f64, y: f64) {
    let step_ns = round_step(span.length_ns() / (MARKS - 1));
    let places = steps(0, span.end_ns.saturating_sub(zero_ns), step_ns);
    let label = |ns: u64| if ns == 0 { "0".to_owned() } else { units::duration(ns) };
    marks(svg, places.map(|ns| (span.at(zero_ns.saturating_add(ns)), label(ns))), top, y);
}

/// Marks of durations from `low_ns` to `high_ns`, equal ratios equally far apart.
pub(super) fn logarithmic(svg: &mut Svg, low_ns: f64, high_ns: f64, top: f64, y: f64) {
    let place = |ns: f64| (ns / low_ns).ln() / (high_ns / low_ns).ln();
    let candidates = |factors: &[f64]| -> Vec<f64> {
        (0..20)
            .flat_map(|power| factors.iter().map(move |factor| factor * 10f64.powi(power)))
            .filter(|ns| (low_ns..=high_ns).contains(ns))
            .collect()
    };
    let fine = candidates(&[1.0, 2.0, 5.0]);
    let coarse = candidates(&[1.0]);
    let all = if fine.len() as u64 <= MARKS { fine } else { coarse };
    let every = all.len().div_ceil(MARKS as usize).max(1);
    let shown = all.into_iter().step_by(every);
    marks(svg, shown.map(|ns| (place(ns), units::duration(ns as u64))), top, y);
}

/// Marks of sizes from 0 to `most` bytes, powers of two apart as people give them.
pub(super) fn memory(svg: &mut Svg, most: u64, top: f64, y: f64) {
    let most = most.max(1);
    let step = most.div_ceil(MARKS).checked_next_power_of_two().unwrap_or(1 << 63);
    let label = |bytes: u64| if bytes == 0 { "0".to_owned() } else { units::memory(bytes) };
    marks(svg, steps(0, most, step).map(|bytes| (bytes as f64 / most as f64, label(bytes))), top, y);
}

/// The least length that people count in of those that are not below `atleast_ns` and multiples of `unit_ns`.
pub(super) fn time_step(atleast_ns: u64, unit_ns: u64) -> u64 {
    let fits = |step_ns: &u64| *step_ns >= atleast_ns && step_ns.is_multiple_of(unit_ns);
    STEPS_NS.into_iter().find(fits).unwrap_or_else(|| atleast_ns.next_multiple_of(unit_ns))
}

/// Multiples of `step_ns` from `start_ns` to `end_ns`.
fn steps(start_ns: u64, end_ns: u64, step_ns: u64) -> impl Iterator<Item = u64> {
    let step_ns = step_ns.max(1);
    let first = start_ns.div_ceil(step_ns);
    (first..=end_ns / step_ns).map(move |step| step * step_ns)
}

/// The least of 1, 2, 5, 10, 20, … that is not below `atleast`.
pub(super) fn round_step(atleast: u64) -> u64 {
    let mut power = 1u64;
    loop {
        for factor in [1, 2, 5] {
            let step = power.saturating_mul(factor);
            if step >= atleast || step == u64::MAX {
                return step;
            }
        }
        power = power.saturating_mul(10);
    }
}

fn marks(svg: &mut Svg, marks: impl Iterator<Item = (f64, String)>, top: f64, y: f64) {
    for (x, label) in marks {
        svg.line((x, top), (x, y + 4.0), "grid");
        // A label in the middle of its mark would leave the page at either edge.
        let anchor = match x {
            ..0.04 => Anchor::Start,
            0.96.. => Anchor::End,
            _ => Anchor::Middle,
        };
        svg.text(x, 0.0, y + 17.0, anchor, "label", &label);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(draw: impl FnOnce(&mut Svg)) -> Vec<String> {
        let mut svg = Svg::new("x", 1.0, "", "");
        draw(&mut svg);
        let text = svg.finish();
        let texts = text.split("<text ").skip(1);
        texts.map(|text| text[text.find('>').unwrap() + 1..text.find('<').unwrap()].to_owned()).collect()
    }

    #[test]
    fn marks_are_few_and_round() {
        let at = |from_s: u64, to_s: u64| {
            let span = Span::new(from_s * SECOND_NS, to_s * SECOND_NS);
            labels(|svg| wall_clock(svg, span, 0.0, 0.0))
        };
        assert_eq!(at(3, 14), ["00:00:05", "00:00:10"]);
        assert_eq!(at(0, 3600), ["00:00", "00:15", "00:30", "00:45", "01:00"]);
        assert_eq!(at(0, 3 * 86_400), ["1 Jan", "2 Jan", "3 Jan", "4 Jan"]);
        assert!(at(0, 18_000_000_000).len() <= 6);
        let span = Span::new(1_000, 1_000 + 543_000_000);
        let texts = labels(|svg| elapsed(svg, span, 1_000, 0.0, 0.0));
        assert_eq!(texts, ["0", "200 ms", "400 ms"]);
        assert_eq!(
            labels(|svg| logarithmic(svg, 3e6, 7e8, 0.0, 0.0)),
            ["10 ms", "100 ms"],
            "fine marks would be too many"
        );
        assert_eq!(labels(|svg| logarithmic(svg, 3e6, 4e7, 0.0, 0.0)), ["5.0 ms", "10 ms", "20 ms"]);
    }

    #[test]
    fn sizes_are_marked_at_powers_of_two() {
        let of = |most| labels(|svg| memory(svg, most, 0.0, 0.0));
        assert_eq!(of(6 << 30), ["0", "2.0 GiB", "4.0 GiB", "6.0 GiB"]);
        assert_eq!(of(1 << 20), ["0", "256 KiB", "512 KiB", "768 KiB", "1.0 MiB"]);
        for most in [0, 1, 7, u64::MAX] {
            assert!(of(most).len() < 8, "{most}");
        }
    }

    #[test]
    fn intervals_have_lengths_that_people_count_in() {
        assert_eq!(time_step(11 * SECOND_NS, 10 * SECOND_NS), 30 * SECOND_NS);
        assert_eq!(time_step(540 * SECOND_NS, MINUTE_NS), 10 * MINUTE_NS);
        assert_eq!(time_step(1000 * DAY_NS, MINUTE_NS), 1000 * DAY_NS);
    }

    #[test]
    fn no_span_is_empty_and_none_overflows() {
        for (start_ns, end_ns) in [(0, 0), (5, 3), (u64::MAX, u64::MAX), (0, u64::MAX)] {
            let span = Span::new(start_ns, end_ns);
            assert!(labels(|svg| wall_clock(svg, span, 0.0, 0.0)).len() < 8);
            assert!(labels(|svg| elapsed(svg, span, start_ns, 0.0, 0.0)).len() < 8);
        }
        assert_eq!(Span::new(10, 20).part(0, 15), Some((0.0, 0.5)));
        assert_eq!(Span::new(10, 20).part(20, 25), None);
    }
}
