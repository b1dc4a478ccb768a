use std::fmt;
use std::time::Duration;

/// A text is no figure of the kind that is asked for. Displayed, it is the way out: what to write instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseError(&'static str);

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for ParseError {}

/// One letter is a power of two, as for `dd` and `ulimit`; so is `KiB`, and `kB` is a power of ten.
const SIZES: [(&str, u64); 14] = [
    ("", 1),
    ("b", 1),
    ("k", 1 << 10),
    ("m", 1 << 20),
    ("g", 1 << 30),
    ("t", 1 << 40),
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
];

const TIMES: [(&str, f64); 9] = [
    ("ns", 1.0),
    ("us", 1e3),
    ("ms", 1e6),
    ("", 1e9),
    ("s", 1e9),
    ("m", 60e9),
    ("min", 60e9),
    ("h", 3600e9),
    ("d", 86_400e9),
];

/// The number that `text` begins with, its unit, and what follows.
fn first_part(text: &str) -> Option<(f64, &str, &str)> {
    let unit_at = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, rest) = text.split_at(unit_at);
    let end = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
    Some((number.trim().parse().ok()?, &rest[..end], &rest[end..]))
}

/// Bytes of a size of at least one: "8GiB", "500MB", "1.5 g", "4096".
///
/// # Errors
/// For any other text, and beyond 2^64 bytes.
pub fn parse_bytes(text: &str) -> Result<u64, ParseError> {
    let wrong = ParseError("say a size as 8GiB or 500MB");
    let (number, unit, _) = first_part(text).filter(|(_, _, rest)| rest.is_empty()).ok_or(wrong)?;
    let (_, each) = SIZES.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)).ok_or(wrong)?;
    let bytes = number * *each as f64;
    if bytes.is_finite() && bytes >= 1.0 && bytes < u64::MAX as f64 { Ok(bytes as u64) } else { Err(wrong) }
}

/// A duration: "90s", "1.5m", "10min", "2h", "1h30m"; a number alone is seconds.
///
/// # Errors
/// For any other text, below 0, and beyond 2^64 nanoseconds.
pub fn parse_duration(text: &str) -> Result<Duration, ParseError> {
    let wrong = ParseError("say a time as 90s, 10min or 2h");
    let (mut ns, mut rest, mut before_ns) = (0.0, text, f64::INFINITY);
    loop {
        let (number, unit, following) = first_part(rest).ok_or(wrong)?;
        let (_, each_ns) = TIMES.iter().find(|(name, _)| *name == unit).ok_or(wrong)?;
        // "1h30" lacks a unit; "30m1h" is a slip.
        if number < 0.0 || *each_ns >= before_ns || unit.is_empty() && before_ns.is_finite() {
            return Err(wrong);
        }
        ns += number * each_ns;
        (rest, before_ns) = (following, *each_ns);
        if rest.is_empty() {
            break;
        }
    }
    if ns >= 0.0 && ns < u64::MAX as f64 { Ok(Duration::from_nanos(ns as u64)) } else { Err(wrong) }
}

/// A share from 0 to 1: "40%", "0.4".
///
/// # Errors
/// For any other text, and outside of 0 to 1.
pub fn parse_share(text: &str) -> Result<f64, ParseError> {
    let (digits, of) = text.strip_suffix('%').map_or((text, 1.0), |digits| (digits, 100.0));
    let share = digits.trim().parse::<f64>().ok().map(|share| share / of);
    share
        .filter(|share| (0.0..=1.0).contains(share))
        .ok_or(ParseError("say a share from 0% to 100% as 40% or 0.4"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, size) in [
            ("8GiB", 8 << 30),
            ("8g", 8 << 30),
            ("1.5 MiB", 3 << 19),
            ("2T", 2 << 40),
            ("0.5TiB", 1 << 39),
            ("500MB", 500_000_000),
            ("4096", 4096),
            ("2kb", 2_000),
        ] {
            assert_eq!(parse_bytes(text), Ok(size), "{text}");
        }
        for wrong in
            ["", "GiB", "-1GB", "8 parsecs", "0", "1e400", "1e9", "1g5", "NaNGB", "infGB", "99999999999GiB"]
        {
            assert!(parse_bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn durations_are_read_as_people_write_them() {
        for (text, ms) in [
            ("60s", 60_000),
            ("1.5m", 90_000),
            ("10min", 600_000),
            ("2h", 7_200_000),
            ("1d", 86_400_000),
            ("1h30m", 5_400_000),
            ("1d 2h 3min", 93_780_000),
            ("20", 20_000),
            ("250ms", 250),
            ("0", 0),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for wrong in [
            "",
            "s",
            "-3s",
            "5 parsecs",
            "1e400h",
            "99999999999h",
            "NaN",
            "8g",
            "1h30",
            "30m1h",
            "1h1h",
            "1h-30m",
            "1h ",
        ] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn shares_are_read_as_people_write_them() {
        assert_eq!([parse_share("40%"), parse_share("0.4"), parse_share("0")], [Ok(0.4), Ok(0.4), Ok(0.0)]);
        for wrong in ["", "%", "101%", "1.1", "-1%", "NaN", "40%%", "half"] {
            assert!(parse_share(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_formatted_can_be_parsed() {
        for bytes in [1, 1023, 3 << 20, 5 << 30, 7 << 40] {
            assert_eq!(parse_bytes(&crate::memory(bytes)), Ok(bytes));
        }
        for seconds in [1, 41, 120, 7200, 3 * 86_400] {
            let text = crate::duration(seconds * 1_000_000_000);
            assert_eq!(parse_duration(&text), Ok(Duration::from_secs(seconds)), "{text}");
        }
    }
}
