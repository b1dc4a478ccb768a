#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use super::*;
use proptest::prelude::*;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

fn spans(ranges: &[(usize, Range<u64>)]) -> Vec<(usize, Range<u64>, Vec<usize>)> {
    merged(ranges).into_iter().map(|span| (span.chunk, span.range, span.of)).collect()
}

#[test]
fn what_lies_near_each_other_is_read_by_one_request() {
    let ranges = [
        (1, 0..10 * KIB),
        (0, 300 * KIB..310 * KIB),
        (0, 64..10 * KIB),
        (0, 20 * KIB..30 * KIB),
        (0, 900 * KIB..901 * KIB),
    ];
    assert_eq!(
        spans(&ranges),
        [
            (0, 64..30 * KIB, vec![2, 3]),
            (0, 300 * KIB..310 * KIB, vec![1]),
            (0, 900 * KIB..901 * KIB, vec![4]),
            (1, 0..10 * KIB, vec![0]),
        ]
    );
    let ranges = [(0, 300 * KIB..310 * KIB), (0, 60 * KIB..80 * KIB)];
    assert_eq!(spans(&ranges), [(0, 60 * KIB..310 * KIB, vec![1, 0])], "a gap of 220 KiB is read along");
}

#[test]
fn no_request_has_more_than_8_mib_unless_one_range_has() {
    let ranges: Vec<_> = (0..12).map(|number| (0, number * MIB..(number + 1) * MIB)).collect();
    let found = spans(&ranges);
    assert_eq!(found.len(), 2);
    assert_eq!((found[0].1.clone(), found[1].1.clone()), (0..8 * MIB, 8 * MIB..12 * MIB));
    let ranges = [(0, 0..20 * MIB), (0, 5 * MIB..6 * MIB), (0, 20 * MIB..21 * MIB)];
    assert_eq!(
        spans(&ranges),
        [(0, 0..20 * MIB, vec![0, 1]), (0, 20 * MIB..21 * MIB, vec![2])],
        "what is in it is read with it"
    );
    assert_eq!(spans(&[]), []);
    let same = [(3, 5..9), (3, 5..9)];
    assert_eq!(spans(&same), [(3, 5..9, vec![0, 1])]);
}

proptest! {
    #[test]
    fn each_range_is_in_one_request(ranges in prop::collection::vec((0usize..3, 0u64..40 << 20, 1u64..12 << 20), 0..40)) {
        let ranges: Vec<_> = ranges.into_iter().map(|(chunk, at, bytes)| (chunk, at..at + bytes)).collect();
        let spans = merged(&ranges);
        let mut seen: Vec<usize> = spans.iter().flat_map(|span| span.of.clone()).collect();
        seen.sort_unstable();
        prop_assert_eq!(seen, (0..ranges.len()).collect::<Vec<_>>());
        for span in &spans {
            let longest = span.of.iter().map(|one| ranges[*one].1.end - ranges[*one].1.start).max().unwrap();
            prop_assert!(span.range.end - span.range.start <= longest.max(MOST_MERGED_BYTES));
            for one in &span.of {
                let (chunk, range) = &ranges[*one];
                prop_assert!(*chunk == span.chunk && span.range.start <= range.start && range.end <= span.range.end);
            }
        }
    }
}
