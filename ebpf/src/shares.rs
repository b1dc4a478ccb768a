//! Which of the things that users have go, where all together have too many.

use std::collections::HashMap;

/// Those that go so that at most `most` stay. Each is given with whose it is and when it was last used. They are taken from
/// the user with most until another has as many, and of one user's the one that was used last stays longest.
pub(crate) fn surplus<K>(kept: impl ExactSizeIterator<Item = (u32, u64, K)>, most: usize) -> Vec<(u32, K)> {
    if kept.len() <= most {
        return Vec::new();
    }
    let mut of_user: HashMap<u32, Vec<(u64, K)>> = HashMap::new();
    kept.for_each(|(user, last, thing)| of_user.entry(user).or_default().push((last, thing)));
    let level = level(of_user.values().map(Vec::len).collect(), most);
    let mut gone = Vec::new();
    for (user, mut things) in of_user {
        if things.len() > level {
            let stay = things.len() - level;
            things.select_nth_unstable_by_key(stay - 1, |(last, _)| *last);
            gone.extend(things.into_iter().take(stay).map(|(_, thing)| (user, thing)));
        }
    }
    gone
}

/// How many each may have where they have `counts`, and together `most`.
fn level(mut counts: Vec<usize>, most: usize) -> usize {
    counts.sort_unstable();
    let (mut left, mut users) = (most, counts.len());
    for count in counts {
        let share = left / users;
        if count > share {
            return share;
        }
        left -= count;
        users -= 1;
    }
    usize::MAX
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// How many stay of so many of each user, and the age of the oldest that does.
    fn stay(counts: &[(u32, u64)], most: usize) -> BTreeMap<u32, (u64, u64)> {
        let all: Vec<(u32, u64, (u32, u64))> = counts
            .iter()
            .flat_map(|(user, count)| (0..*count).map(|nth| (*user, nth, (*user, nth))))
            .collect();
        let gone = surplus(all.iter().copied(), most);
        assert!(gone.iter().all(|(user, thing)| *user == thing.0));
        let gone: Vec<(u32, u64)> = gone.into_iter().map(|(_, thing)| thing).collect();
        let mut stay = BTreeMap::new();
        for (user, nth, thing) in all {
            if !gone.contains(&thing) {
                stay.entry(user).or_insert((0, nth)).0 += 1;
            }
        }
        stay
    }

    #[test]
    fn the_user_with_most_gives_first_and_what_was_used_last_stays() {
        assert_eq!(stay(&[(1, 4), (2, 3)], 7), [(1, (4, 0)), (2, (3, 0))].into());
        assert_eq!(stay(&[(1, 100), (2, 3)], 20), [(1, (17, 83)), (2, (3, 0))].into());
        assert_eq!(
            stay(&[(1, 100), (2, 50), (3, 1)], 21),
            [(1, (10, 90)), (2, (10, 40)), (3, (1, 0))].into()
        );
        assert_eq!(stay(&[(1, 5), (2, 5), (3, 5)], 2), BTreeMap::new(), "none has more than another");
        assert!(stay(&[], 0).is_empty());
    }
}
