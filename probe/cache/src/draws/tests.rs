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
        let (mut sum, mut epochs) = (0.0, 0.0);
        for _ in 0..300 {
            let drawn = epoch(draws.as_mut());
            sum += drawn.iter().map(|draw| f64::from(draw.weight) * figure(draw.id)).sum::<f64>() / 200.0;
            epochs += 1.0;
        }
        let mean = sum / epochs;
        assert!((mean / truth - 1.0).abs() < 0.02, "{kind:?}: {mean} for {truth}");
    }
}

#[test]
fn importance_keeps_an_effective_sample_size_of_half_the_draws() {
    let mut draws = DrawKind::Importance.make(1000, 3);
    (0..20).for_each(|_| train(draws.as_mut(), |id| if id < 5 { 1e6 } else { 1e-3 }));
    let drawn = epoch(draws.as_mut());
    let (sum, squares) = drawn.iter().fold((0.0, 0.0), |(sum, squares), draw| {
        let weight = f64::from(draw.weight);
        (sum + weight, squares + weight * weight)
    });
    assert!(sum * sum / squares >= 0.45 * drawn.len() as f64, "{}", sum * sum / squares);
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
