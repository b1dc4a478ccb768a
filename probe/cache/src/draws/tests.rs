use super::*;
use proptest::prelude::*;

const NOBODY: World<'static> = World { resident: &|_| false };

fn kinds() -> Vec<DrawKind> {
    let both = [Selection::AsPublished, Selection::Corrected];
    let mut kinds = vec![
        DrawKind::Plain,
        DrawKind::Importance,
        DrawKind::Reuse { uses: 2, window_share: 0.1, pinned_share: 0.1 },
        DrawKind::Reuse { uses: 3, window_share: 1.0, pinned_share: 1.0 },
    ];
    kinds.extend(both.map(DrawKind::Iis));
    kinds.extend(both.map(|selection| DrawKind::Shade { selection, copies: 1.0 }));
    kinds.extend(both.map(|selection| DrawKind::Shade { selection, copies: 2.5 }));
    kinds
}

fn epoch(draws: &mut dyn Draws) -> Vec<Draw> {
    (0..draws.chunks_an_epoch()).flat_map(|_| draws.chunk(&NOBODY)).collect()
}

/// Tells every sample's loss, as an epoch of batches of 10 would.
fn train(draws: &mut dyn Draws, loss: impl Fn(u32) -> f32) {
    let drawn = epoch(draws);
    for (number, batch) in drawn.chunks(10).enumerate() {
        let ids: Vec<u32> = batch.iter().map(|draw| draw.id).collect();
        let losses: Vec<f32> = ids.iter().map(|id| loss(*id)).collect();
        draws.trained(number * 10, &ids, &losses);
    }
}

#[test]
fn plain_draws_each_sample_once_an_epoch_and_never_in_the_same_order() {
    let mut draws = DrawKind::Plain.make(100, 7);
    let orders: Vec<Vec<u32>> =
        (0..3).map(|_| epoch(draws.as_mut()).iter().map(|draw| draw.id).collect()).collect();
    for order in &orders {
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..100).collect::<Vec<_>>());
    }
    assert!(orders[0] != orders[1] && orders[1] != orders[2]);
}

#[test]
fn the_same_seed_draws_the_same() {
    for kind in kinds() {
        let run = |seed| {
            let mut draws = kind.make(60, seed);
            (0..4).for_each(|_| train(draws.as_mut(), |id| id as f32));
            epoch(draws.as_mut())
        };
        assert_eq!(run(1), run(1), "{kind:?}");
        assert_ne!(run(1), run(2), "{kind:?}");
    }
}

/// The weighted mean of any figure over the draws is that over all samples, on average.
#[test]
fn weights_make_draws_unbiased() {
    let figure = |id: u32| f64::from(id % 7) + f64::from(id) / 100.0;
    let truth = (0..200).map(figure).sum::<f64>() / 200.0;
    for kind in [DrawKind::Importance, DrawKind::Iis(Selection::Corrected)] {
        let mut draws = kind.make(200, 3);
        (0..12).for_each(|_| train(draws.as_mut(), |id| (id % 13) as f32));
        let drawn: Vec<Draw> = (0..300).flat_map(|_| epoch(draws.as_mut())).collect();
        let mean = drawn.iter().map(|draw| f64::from(draw.weight) * figure(draw.id)).sum::<f64>()
            / drawn.len() as f64;
        let weights = drawn.iter().map(|draw| f64::from(draw.weight)).sum::<f64>() / drawn.len() as f64;
        assert!((weights - 1.0).abs() < 0.02, "{kind:?}: {weights}");
        assert!((mean / truth - 1.0).abs() < 0.02, "{kind:?}: {mean} for {truth}");
    }
}

#[test]
fn importance_keeps_an_effective_sample_size_of_half_the_draws() {
    let mut draws = DrawKind::Importance.make(1000, 3);
    // Not for so long that they are cooled.
    (0..3).for_each(|_| train(draws.as_mut(), |id| if id < 5 { 1e6 } else { 1e-3 }));
    let drawn = epoch(draws.as_mut());
    let (sum, squares) = drawn.iter().fold((0.0, 0.0), |(sum, squares), draw| {
        let weight = f64::from(draw.weight);
        (sum + weight, squares + weight * weight)
    });
    assert!(sum * sum / squares >= 0.45 * drawn.len() as f64, "{}", sum * sum / squares);
}

/// How often samples of `of` are drawn in an epoch, against their share.
fn drawn_share(draws: &mut dyn Draws, of: impl Fn(u32) -> bool, epochs: usize) -> f64 {
    let drawn: Vec<Draw> = (0..epochs).flat_map(|_| epoch(draws)).collect();
    drawn.iter().filter(|draw| of(draw.id)).count() as f64 / drawn.len() as f64
}

#[test]
fn a_sample_that_never_gets_easier_is_left_alone_for_as_long_as_it_was_favoured() {
    let mut draws = DrawKind::Importance.make(1000, 3);
    let is_noisy = |id: u32| id < 50;
    let shares: Vec<f64> = (0..16)
        .map(|_| {
            train(draws.as_mut(), |id| if is_noisy(id) { 5.0 } else { 1.0 });
            // Looks at the draws without using them up.
            let mut state = state::Written::default();
            draws.save(&mut state);
            let mut copy = DrawKind::Importance.make(1000, 3);
            copy.load(&mut state::Read::new(&state.into_bytes())).unwrap();
            drawn_share(copy.as_mut(), is_noisy, 1)
        })
        .collect();
    assert!(shares[1] > 0.1 && shares[2] > 0.1, "favoured at first: {shares:?}");
    assert!(shares[5..7].iter().all(|share| *share < 0.08), "then drawn like any other: {shares:?}");
    assert!(shares[9..11].iter().all(|share| *share > 0.1), "then again: {shares:?}");
}

#[test]
fn scores_that_are_not_renewed_fade() {
    let mut draws = DrawKind::Importance.make(8000, 3);
    (0..3).for_each(|_| train(draws.as_mut(), |id| if id % 20 == 0 { 1.9 } else { 1.0 }));
    let fresh = drawn_share(draws.as_mut(), |id| id % 20 == 0, 1);
    drawn_share(draws.as_mut(), |id| id % 20 == 0, 40);
    let old = drawn_share(draws.as_mut(), |id| id % 20 == 0, 10);
    assert!(fresh > 0.065 && (0.047..0.053).contains(&old), "{fresh}, then {old}");
}

#[test]
fn no_class_is_drawn_less_than_half_of_its_share() {
    let class = |id: u32| if id < 2000 { 0 } else { 1 + id % 2 };
    let shares = [false, true].map(|known| {
        let mut draws = DrawKind::Importance.make(100_000, 7);
        if known {
            draws.classes(&(0..100_000).map(class).collect::<Vec<_>>());
        }
        (0..3).for_each(|_| train(draws.as_mut(), |id| if class(id) == 0 { 0.0 } else { 1.0 }));
        drawn_share(draws.as_mut(), |id| class(id) == 0, 1)
    });
    assert!(shares[0] < 0.0085 && shares[1] > 0.0091, "{shares:?} of 0.02");
}

#[test]
fn classes_leave_draws_unbiased() {
    let figure = |id: u32| f64::from(id % 7) + f64::from(id) / 100.0;
    let truth = (0..200).map(figure).sum::<f64>() / 200.0;
    let mut draws = DrawKind::Importance.make(200, 3);
    draws.classes(&(0..200).map(|id| u32::from(id < 10)).collect::<Vec<_>>());
    (0..3).for_each(|_| train(draws.as_mut(), |id| if id < 10 { 0.0 } else { (id % 13) as f32 }));
    let drawn: Vec<Draw> = (0..500).flat_map(|_| epoch(draws.as_mut())).collect();
    let mean =
        drawn.iter().map(|draw| f64::from(draw.weight) * figure(draw.id)).sum::<f64>() / drawn.len() as f64;
    assert!((mean / truth - 1.0).abs() < 0.01, "{mean} for {truth}");
}

#[test]
fn important_samples_are_drawn_more_often() {
    for kind in [
        DrawKind::Importance,
        DrawKind::Iis(Selection::Corrected),
        DrawKind::Shade { selection: Selection::Corrected, copies: 1.0 },
    ] {
        let mut draws = kind.make(2000, 11);
        (0..15).for_each(|_| train(draws.as_mut(), |id| (id % 2) as f32 + id as f32 * 1e-5));
        let drawn: Vec<Draw> = (0..20).flat_map(|_| epoch(draws.as_mut())).collect();
        let odd = drawn.iter().filter(|draw| draw.id % 2 == 1).count();
        assert!(odd as f64 > 0.52 * drawn.len() as f64, "{kind:?}: {odd} of {}", drawn.len());
    }
}

#[test]
fn as_published_the_hardest_are_never_selected_once_there_is_a_history() {
    for (selection, never) in [(Selection::AsPublished, true), (Selection::Corrected, false)] {
        let mut draws = DrawKind::Iis(selection).make(5000, 2);
        (0..6).for_each(|_| train(draws.as_mut(), |id| id as f32));
        let drawn = epoch(draws.as_mut());
        // The first 1,024 that are looked at are always drawn as published.
        let hardest = drawn.iter().skip(1100).filter(|draw| draw.id >= 4990).count();
        assert_eq!(hardest == 0, never, "{selection:?}: {hardest}");
    }
}

#[test]
fn reuse_uses_every_sample_equally_often() {
    let mut draws = DrawKind::Reuse { uses: 2, window_share: 0.1, pinned_share: 0.1 }.make(1000, 9);
    let mut uses = vec![0u32; 1000];
    (0..20).flat_map(|_| epoch(draws.as_mut())).for_each(|draw| uses[draw.id as usize] += 1);
    let (least, most) = (uses.iter().min().unwrap(), uses.iter().max().unwrap());
    assert!(*least >= 16 && *most <= 24, "{least} to {most} in 20 epochs");
}

#[test]
fn shade_repeats_residents_first_and_as_published_unweighted() {
    let resident = |id: u32| id < 50;
    let world = World { resident: &resident };
    let mut published = DrawKind::Shade { selection: Selection::AsPublished, copies: 3.0 }.make(200, 4);
    let drawn = published.chunk(&world);
    let hits = drawn.iter().filter(|draw| resident(draw.id)).count();
    assert!(hits > 100, "{hits} of {}", drawn.len());
    assert!(drawn[..hits].iter().all(|draw| resident(draw.id)), "residents come first");
    assert!(drawn.iter().all(|draw| draw.weight == 1.0));
    let mut corrected = DrawKind::Shade { selection: Selection::Corrected, copies: 3.0 }.make(200, 4);
    let drawn = corrected.chunk(&world);
    assert_eq!(drawn.len(), 200);
    let weight = |of: bool| drawn.iter().find(|draw| resident(draw.id) == of).unwrap().weight;
    assert!((weight(false) / weight(true) - 3.0).abs() < 1e-4);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn any_losses_leave_draws_in_range(
        samples in 1u32..40,
        seed: u64,
        losses in prop::collection::vec(any::<f32>(), 0..60),
        ids in prop::collection::vec(any::<u32>(), 0..60),
    ) {
        for kind in kinds() {
            let mut draws = kind.make(samples, seed);
            for round in 0..8 {
                let drawn = draws.chunk(&NOBODY);
                prop_assert!(!drawn.is_empty(), "{:?}", kind);
                for draw in &drawn {
                    prop_assert!(draw.id < samples, "{:?}", kind);
                    prop_assert!(draw.weight.is_finite() && draw.weight > 0.0, "{:?}: {}", kind, draw.weight);
                }
                draws.trained(round * 7, &ids, &losses);
                let own: Vec<u32> = drawn.iter().map(|draw| draw.id).collect();
                draws.trained(0, &own, &losses);
            }
        }
    }
}

/// A sample that is streamed is used three times while it is in the window, which is never larger than it may be.
#[test]
fn reuse_uses_what_was_read_so_often_while_it_is_in_the_window() {
    let mut draws = DrawKind::Reuse { uses: 3, window_share: 0.1, pinned_share: 0.0 }.make(500, 9);
    let order: Vec<u32> = (0..9).flat_map(|_| epoch(draws.as_mut())).map(|draw| draw.id).collect();
    let mut uses = vec![0; 500];
    let (mut inside, mut most) = (0, 0);
    for id in order {
        let used: &mut u32 = &mut uses[id as usize];
        *used += 1;
        if *used % 3 == 1 {
            inside += 1;
        }
        most = most.max(inside);
        if used.is_multiple_of(3) {
            inside -= 1;
        }
    }
    assert!((35..=50).contains(&most), "{most} were begun and not used up");
    // Three passes, the last of them with the window still half used.
    assert!(uses.iter().all(|uses| (6..=12).contains(uses)), "{uses:?}");
}
