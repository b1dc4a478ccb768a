//! Wall-clock times as text, in UTC: the page is read in other places than the one it was made in.

const SECOND_NS: u64 = 1_000_000_000;
const DAY_S: u64 = 86_400;
const MONTHS: [(&str, u64); 12] = [
    ("Jan", 31),
    ("Feb", 28),
    ("Mar", 31),
    ("Apr", 30),
    ("May", 31),
    ("Jun", 30),
    ("Jul", 31),
    ("Aug", 31),
    ("Sep", 30),
    ("Oct", 31),
    ("Nov", 30),
    ("Dec", 31),
];

/// "14:20:37".
pub(crate) fn time(wall_ns: u64) -> String {
    let second = wall_ns / SECOND_NS % DAY_S;
    format!("{:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60)
}

/// "14:20".
pub(crate) fn hour(wall_ns: u64) -> String {
    time(wall_ns)[..5].to_owned()
}

/// "20 Nov".
pub(crate) fn day(wall_ns: u64) -> String {
    let (_, month, day) = date(wall_ns);
    format!("{day} {month}")
}

/// "20 Nov 2026, 14:20:37 UTC".
pub(crate) fn moment(wall_ns: u64) -> String {
    let (year, month, day) = date(wall_ns);
    format!("{day} {month} {year}, {} UTC", time(wall_ns))
}

fn date(wall_ns: u64) -> (u64, &'static str, u64) {
    let mut days = wall_ns / SECOND_NS / DAY_S;
    let mut year = 1970;
    while days >= 365 + leap(year) {
        days -= 365 + leap(year);
        year += 1;
    }
    let mut month = "Dec";
    for (name, length) in MONTHS {
        let length = if name == "Feb" { length + leap(year) } else { length };
        if days < length {
            month = name;
            break;
        }
        days -= length;
    }
    (year, month, days + 1)
}

/// Days that a year has more than 365.
const fn leap(year: u64) -> u64 {
    (year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_those_of_the_calendar() {
        let table = [
            (0, "1 Jan 1970, 00:00:00 UTC"),
            (951_782_399, "28 Feb 2000, 23:59:59 UTC"),
            (951_782_400, "29 Feb 2000, 00:00:00 UTC"),
            (951_868_800, "1 Mar 2000, 00:00:00 UTC"),
            (1_795_184_437, "20 Nov 2026, 14:20:37 UTC"),
            (4_107_542_399, "28 Feb 2100, 23:59:59 UTC"),
            (4_107_542_400, "1 Mar 2100, 00:00:00 UTC"),
        ];
        for (second, text) in table {
            assert_eq!(moment(second * SECOND_NS), text);
        }
        assert_eq!([hour(1_795_184_437 * SECOND_NS), day(1_795_184_437 * SECOND_NS)], ["14:20", "20 Nov"]);
        assert!(moment(u64::MAX).starts_with("21 Jul 2554"));
    }
}
