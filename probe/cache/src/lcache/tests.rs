use super::labels::low;
use super::*;
use proptest::prelude::*;

const SIZE: u32 = 10;
/// Its packages hold four samples.
const CACHE_BYTES: u64 = 800;

fn used(at: u64, id: u32, next_at: u64) -> Use {
    Use { id, bytes: SIZE, at, next_at }
}

#[test]
fn the_less_important_are_low_and_what_is_unknown_is_not() {
    let draws = [9, 8, 7, 6, 5, 4, 3, 2, 1, 0];
    let score = |id: u32| (id != 1).then_some(f64::from(id));
    assert_eq!(low(&draws, Selection::Corrected, &score), [0, 2, 3].into());
    assert_eq!(low(&draws, Selection::Corrected, &|_| None), HashSet::new(), "nothing was trained on yet");
}

/// Sorted are places in the order, by the importance of the samples that have these numbers.
#[test]
fn as_published_labels_are_those_of_other_samples() {
    let draws = [9, 8, 7, 6, 5, 4, 3, 2, 1, 0];
    let found = low(&draws, Selection::AsPublished, &|id| Some(f64::from(id)));
    assert_eq!(found, [9, 8, 7].into(), "the most important of all");
}

#[test]
fn as_published_a_low_draw_gets_any_sample_even_where_its_own_is_kept() {
    let mut lcache = LCache::new(Selection::AsPublished, CACHE_BYTES, 10, 1);
    assert_eq!(lcache.bytes(), CACHE_BYTES / 10);
    lcache.begin(&[0; 9], &|_| Some(1.0));
    let mut given: Vec<u32> = (0..10)
        .map(|at| {
            let fetched = lcache.fetch(&used(at, 0, Use::UNKNOWN), true).unwrap();
            assert_eq!((fetched.requests, fetched.bytes), (1, SIZE.into()), "no package was ever written");
            fetched.id
        })
        .collect();
    given.sort_unstable();
    assert_eq!(given, Vec::from_iter(0..10), "a pass over all samples");
    assert_eq!(lcache.end(9), [], "nor is one now");
    assert!(!lcache.may_be_replaced(0, false) && !lcache.may_be_given(0), "it goes by no quota");
}

#[test]
fn low_samples_that_were_read_come_back_together_in_the_order_of_their_next_draws() {
    let mut lcache = LCache::new(Selection::Corrected, CACHE_BYTES, 10, 1);
    lcache.low = (0..6).collect();
    for (at, next_at) in [16, 11, 14, 12, 17, 13].into_iter().enumerate() {
        let alone = lcache.fetch(&used(at as u64, at as u32, next_at), false);
        assert_eq!(alone, Some(Fetched { id: at as u32, requests: 1, bytes: SIZE.into() }));
    }
    assert_eq!(lcache.fetch(&used(6, 7, 10), false).unwrap().requests, 1, "an important one is not packed");
    assert_eq!(lcache.end(6), [40, 20]);
    let requests = |lcache: &mut LCache, draws: &[u32]| -> Vec<u64> {
        let fetch = |id: &u32| lcache.fetch(&used(10, *id, Use::UNKNOWN), false).unwrap();
        draws.iter().map(fetch).map(|fetched| fetched.requests).collect()
    };
    assert!(!lcache.may_be_replaced(1, false), "its package brings others too");
    assert_eq!(requests(&mut lcache, &[7, 1]), [1, 1]);
    assert!(lcache.may_be_given(3) && !lcache.may_be_given(1) && !lcache.may_be_given(0));
    assert_eq!(requests(&mut lcache, &[3, 5, 2, 0, 4]), [0, 0, 0, 1, 0]);
    assert_eq!(requests(&mut lcache, &[1]), [1], "a second use was packed nowhere");
    assert_eq!(lcache.end(17), [], "no next draw was known");
}

#[test]
fn kept_samples_come_from_the_h_cache() {
    let mut lcache = LCache::new(Selection::Corrected, CACHE_BYTES, 10, 1);
    lcache.low = [1].into();
    assert_eq!(lcache.fetch(&used(0, 1, 5), true), None);
    assert!(!lcache.may_be_replaced(1, true) && lcache.may_be_replaced(1, false));
    assert_eq!(lcache.end(0), [], "and are not packed");
}

/// A pass over all samples: the order, and which are low.
fn pass() -> impl Strategy<Value = (Vec<u32>, HashSet<u32>)> {
    let order = Just(Vec::from_iter(0..40u32)).prop_shuffle();
    (order, prop::collection::hash_set(0..40u32, 0..40))
}

proptest! {
    /// Whatever is drawn: a draw gets its own sample; each package that was written is read once, and all that came in it is
    /// used before the next is read, so that one package's memory is enough.
    #[test]
    fn all_that_a_package_brings_is_drawn_next(passes in prop::collection::vec(pass(), 1..6)) {
        let mut lcache = LCache::new(Selection::Corrected, CACHE_BYTES, 40, 1);
        let next_at = |number: usize, id: u32| {
            let (order, _) = passes.get(number + 1)?;
            Some((40 * (number + 1) + order.iter().position(|other| *other == id)?) as u64)
        };
        let mut written: Vec<u64> = Vec::new();
        for (number, (order, low)) in passes.iter().enumerate() {
            lcache.low = low.clone();
            let (mut packages, mut waiting_bytes) = (Vec::new(), 0);
            for (place, id) in order.iter().enumerate() {
                let used = used((40 * number + place) as u64, *id, next_at(number, *id).unwrap_or(Use::UNKNOWN));
                let comes_packed = lcache.may_be_given(*id);
                let fetched = lcache.fetch(&used, false).unwrap();
                prop_assert_eq!(fetched.id, *id);
                prop_assert_eq!(fetched.requests == 0, fetched.bytes == 0);
                prop_assert!(fetched.requests == 0 || !comes_packed);
                if fetched.bytes > SIZE.into() {
                    prop_assert_eq!(waiting_bytes, 0, "what came before was used");
                    prop_assert!(fetched.bytes <= CACHE_BYTES / 20);
                    packages.push(fetched.bytes);
                    waiting_bytes = fetched.bytes - u64::from(SIZE);
                } else if fetched.requests == 0 {
                    waiting_bytes -= u64::from(SIZE);
                }
            }
            prop_assert_eq!(&packages, &written);
            prop_assert_eq!(waiting_bytes, 0);
            written = lcache.end((40 * number + 39) as u64);
        }
        prop_assert_eq!(written, Vec::<u64>::new(), "no pass follows");
    }
}
