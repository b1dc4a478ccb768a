//! Whom the ids of users belong to that are no user's own: the ranges of /etc/subuid, in which a user may run what they like
//! in containers.
//!
//! Shares of what all users have together go by user id, and a user with 65,536 of these would have as many shares. Whose
//! user namespace a process is in would be known without a file, and does not do: a set-uid file that is made within it and
//! executed outside makes a process of a subordinate id in the first namespace. Nor does it matter who made the namespace
//! where root did, as for containers of a service.
//!
//! The file is read once: who serves gives away the right to read it, and its place is taken by another at each change. Ranges
//! that are given later count when the collector is started anew.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;

/// More is no such file.
const LIMIT_BYTES: u64 = 4 << 20;
const MOST_RANGES: usize = 1 << 16;

/// Ranges of ids, each with who has it. Those that come first in the file count.
#[derive(Clone, Debug, Default)]
pub struct Subordinates {
    ranges: Vec<Range>,
    /// Users of this machine's own, whose ids are theirs wherever they lie.
    users: HashMap<String, u32>,
}

#[derive(Clone, Copy, Debug)]
struct Range {
    first: u32,
    last: u32,
    payer: u32,
}

impl Subordinates {
    /// Those of this machine; none where its files cannot be read.
    pub fn of_this_machine() -> Subordinates {
        Subordinates::parse(&text_of("/etc/subuid"), &text_of("/etc/passwd"))
    }

    /// Those of lines `NAME_OR_ID:FIRST:COUNT`, for users of lines `NAME:…:ID:…`. What is anything else is left out.
    pub fn parse(subuid: &[u8], passwd: &[u8]) -> Subordinates {
        let users: HashMap<String, u32> = lines(passwd).filter_map(user).collect();
        let ranges = lines(subuid).filter_map(|line| range(line, &users)).take(MOST_RANGES).collect();
        Subordinates { ranges, users }
    }

    /// Who is charged for what `uid` takes.
    pub fn payer(&self, uid: u32) -> u32 {
        let range = self.ranges.iter().find(|range| (range.first..=range.last).contains(&uid));
        let payer = range.map_or(uid, |range| range.payer);
        let is_a_user = || self.users.values().any(|user| *user == uid);
        if payer == uid || is_a_user() { uid } else { payer }
    }
}

fn range(line: &str, users: &HashMap<String, u32>) -> Option<Range> {
    let mut fields = line.split(':');
    let (owner, first, count) = (fields.next()?, number(fields.next()?)?, number(fields.next()?)?);
    let last = first.checked_add(count.checked_sub(1)?)?;
    let owner = number(owner).or_else(|| users.get(owner).copied());
    // Of whom a directory service alone knows, the range is one user of its own. And root, whose ranges containers of services
    // have, is not charged: nothing limits root.
    let payer = owner.filter(|uid| *uid != 0).unwrap_or(first);
    (first != 0 && fields.next().is_none()).then_some(Range { first, last, payer })
}

fn user(line: &str) -> Option<(String, u32)> {
    let mut fields = line.split(':');
    let name = fields.next().filter(|name| !name.is_empty())?;
    Some((name.to_owned(), number(fields.nth(1)?)?))
}

/// Digits alone, as shadow's tools write them.
fn number(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

fn lines(text: &[u8]) -> impl Iterator<Item = &str> {
    text.split(|byte| *byte == b'\n').filter_map(|line| std::str::from_utf8(line).ok()).map(str::trim)
}

fn text_of(path: &str) -> Vec<u8> {
    let mut text = Vec::new();
    if let Ok(file) = File::open(path) {
        // As much as there was before something went wrong.
        let _ = file.take(LIMIT_BYTES).read_to_end(&mut text);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &[u8] = b"root:x:0:0:root:/root:/bin/sh\nmira:x:1000:1000::/home/mira:/bin/sh\nlate:x:100005:100005::/:/bin/sh\n";

    #[test]
    fn ids_of_a_range_are_charged_to_who_has_it() {
        let subuid =
            b"root:900000:10\nmira:100000:65536\n1001:165536:65536\nfar:231072:65536\nmira:400000:1\n";
        let found = Subordinates::parse(subuid, PASSWD);
        for (uid, payer) in [
            (0, 0),
            (1000, 1000),
            (1001, 1001),
            (99_999, 99_999),
            (100_000, 1000),
            (165_535, 1000),
            (165_536, 1001),
            (400_000, 1000),
            (400_001, 400_001),
        ] {
            assert_eq!(found.payer(uid), payer, "{uid}");
        }
        assert_eq!((found.payer(231_072), found.payer(296_607)), (231_072, 231_072), "one share a range");
        assert_eq!((found.payer(900_000), found.payer(900_009)), (900_000, 900_000), "never root's");
        assert_eq!(found.payer(100_005), 100_005, "a user of this machine");
    }

    #[test]
    fn what_is_no_range_is_left_out() {
        let lines = [
            "",
            ":",
            "::",
            "mira",
            "mira:1",
            "mira:5000:0",
            "mira:-5000:9",
            "mira:+5000:9",
            "mira:5000:9:9",
            "mira:5000:4294967295",
            "mira:4294967296:1",
            "mira:0:9",
            "mira: 5000:9",
            "mira:5000:",
            "\u{fffd}:x:y",
        ];
        let found = Subordinates::parse(lines.join("\n").as_bytes(), PASSWD);
        assert!(found.ranges.is_empty(), "{found:?}");
        assert_eq!(Subordinates::parse(b"mira:5000:9\r\n\xff:1:2\nmira:5000", PASSWD).ranges.len(), 1);
        assert_eq!(Subordinates::parse(b"1000:4294967295:1", b"").payer(u32::MAX), 1000);
    }

    /// Cuts and changes of a good file, by a generator of its own.
    #[test]
    fn no_bytes_make_it_panic_or_charge_root() {
        let good = b"mira:100000:65536\n1001:165536:65536\nroot:900000:10\nfar:231072:65536\n";
        let mut state = 88_172_645_463_325_252_u64;
        let mut next = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % below as u64) as usize
        };
        for _ in 0..20_000 {
            let mut bytes = good.to_vec();
            for _ in 0..next(6) {
                let place = next(bytes.len());
                bytes[place] = [b':', b'\n', b'0', b'9', b'-', 0xff, 0, b' '][next(8)];
            }
            bytes.truncate(next(bytes.len() + 1));
            let found = Subordinates::parse(&bytes, PASSWD);
            let uid = [1, 1000, 100_000, 165_536, 900_005, u32::MAX][next(6)];
            assert_ne!(found.payer(uid), 0, "{:?}", String::from_utf8_lossy(&bytes));
            assert_eq!(found.payer(0), 0);
        }
    }
}
