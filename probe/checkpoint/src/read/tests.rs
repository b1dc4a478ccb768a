use super::*;
use crate::image::CHUNK_BYTES;
use crate::snapshot::{Plan, Source};
use crate::tensor::Dtype;
use crate::{Options, Saver};
use std::time::Duration;

/// A checkpoint of these tensors, whose bytes count up from the tensor's number on.
fn saved(dir: &std::path::Path, tensors: &[(&str, Dtype, &[u64])]) -> (Checkpoint, Vec<Vec<u8>>) {
    let specs: Vec<TensorSpec> = tensors
        .iter()
        .map(|(name, dtype, shape)| TensorSpec { name: (*name).into(), dtype: *dtype, shape: shape.to_vec() })
        .collect();
    let values: Vec<Vec<u8>> = (specs.iter().enumerate())
        .map(|(nth, spec)| (0..spec.bytes().unwrap()).map(|at| (at / 3 + at + nth as u64) as u8).collect())
        .collect();
    let plan = Plan::of(specs, &[]).unwrap();
    let saver = Saver::open(dir, Options::default()).unwrap();
    let sources: Vec<Source> = values.iter().map(|bytes| Source::Now(bytes.as_ptr())).collect();
    // SAFETY: the vectors are as long as the specs say, live on, and nobody writes to them.
    let snapshot = unsafe { saver.snapshot(&plan, &sources).unwrap() };
    saver.persist(snapshot, saver.ticket(1), Vec::new()).unwrap();
    assert!(saver.wait(Duration::from_secs(60)));
    (Checkpoint::open(&dir.join("step-000000001")).unwrap(), values)
}

fn read(
    checkpoint: &Checkpoint,
    name: &str,
    region: &Region,
    target: &mut [u8],
    window: &Window,
) -> Result<()> {
    let target = Target { name, to: target.as_mut_ptr(), bytes: target.len(), region: Some(region) };
    // SAFETY: a slice of that many bytes that is nobody else's.
    unsafe { checkpoint.read_targets(0, &[target], window) }
}

#[test]
fn any_box_of_a_tensor_is_read_into_its_place_and_nothing_else_is_touched() {
    let dir = tempfile::tempdir().unwrap();
    let shape = [5, 4, 3];
    let (checkpoint, values) = saved(
        dir.path(),
        &[("first", Dtype::U8, &[7]), ("cube", Dtype::I16, &shape), ("one", Dtype::F32, &[])],
    );
    let window = Window::default();
    let mut boxes = 0;
    let ranges =
        |size: u64| (0..=size).flat_map(move |begin| (begin..=size).map(move |end| (begin, end - begin)));
    for (a, b, c) in ranges(5).flat_map(|a| ranges(4).flat_map(move |b| ranges(3).map(move |c| (a, b, c)))) {
        let region = Region {
            from: vec![a.0, b.0, c.0],
            sizes: vec![a.1, b.1, c.1],
            into: vec![a.1 + 1, b.1, c.1 + 2],
            to: vec![1, 0, 1],
        };
        let into = &region.into;
        let mut target = vec![0xEE; (2 * into[0] * into[1] * into[2]) as usize];
        read(&checkpoint, "cube", &region, &mut target, &window).unwrap();
        for (at, found) in target.chunks_exact(2).enumerate() {
            let at = at as u64;
            let index = [at / (into[1] * into[2]), at / into[2] % into[1], at % into[2]];
            let inside = (0..3).all(|d| (region.to[d]..region.to[d] + region.sizes[d]).contains(&index[d]));
            let expected = if inside {
                let [i, j, k]: [u64; 3] = std::array::from_fn(|d| index[d] - region.to[d] + region.from[d]);
                let place = 2 * ((i * 4 + j) * 3 + k) as usize;
                &values[1][place..place + 2]
            } else {
                &[0xEE, 0xEE]
            };
            assert_eq!(found, expected, "{region:?} at {index:?}");
        }
        boxes += 1;
    }
    assert_eq!(boxes, 21 * 15 * 10);
    let scalar = Region { from: vec![], sizes: vec![], into: vec![], to: vec![] };
    let mut target = [0; 4];
    read(&checkpoint, "one", &scalar, &mut target, &window).unwrap();
    assert_eq!(target[..], values[2]);
}

#[test]
fn a_box_that_is_not_in_the_tensor_or_in_the_target_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (checkpoint, _) = saved(dir.path(), &[("plane", Dtype::U8, &[4, 4])]);
    let region = |from: [u64; 2], sizes: [u64; 2], into: [u64; 2], to: [u64; 2]| Region {
        from: from.into(),
        sizes: sizes.into(),
        into: into.into(),
        to: to.into(),
    };
    let mut wrong = vec![
        region([3, 0], [2, 1], [4, 4], [0, 0]),
        region([0, u64::MAX], [1, 2], [4, 4], [0, 0]),
        region([0, 0], [1, 4], [4, 4], [0, 1]),
        region([0, 0], [1, 1], [4, 5], [0, 0]),
        region([0, 0], [1, 1], [u64::MAX, 2], [0, 0]),
    ];
    wrong.push(Region { from: vec![0], ..region([0, 0], [1, 1], [4, 4], [0, 0]) });
    for region in wrong {
        let mut target = [7; 16];
        let error = read(&checkpoint, "plane", &region, &mut target, &Window::default()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "step-000000001 has no such region of tensor \"plane\" as is asked for"
        );
        assert_eq!(target, [7; 16]);
    }
}

#[test]
fn tensors_read_one_by_one_are_what_was_saved_and_the_window_stays_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let names: Vec<String> = (0..60).map(|nth| format!("layer.{nth}")).collect();
    // Small ones and such as end in the midst of a chunk, 120 MiB together.
    let sizes = [1, 5000, CHUNK_BYTES / 2 + 17, CHUNK_BYTES + 4097, 90 << 10];
    let shapes: Vec<[u64; 1]> = (0..60).map(|nth| [sizes[nth % 5]]).collect();
    let tensors: Vec<(&str, Dtype, &[u64])> =
        names.iter().zip(&shapes).map(|(name, shape)| (&**name, Dtype::U8, &shape[..])).collect();
    let (checkpoint, values) = saved(dir.path(), &tensors);
    let window = Window::default();
    for (name, value) in names.iter().zip(&values) {
        let mut found = vec![0; value.len()];
        let target = Target { name, to: found.as_mut_ptr(), bytes: found.len(), region: None };
        // SAFETY: a vector of that many bytes that is nobody else's.
        unsafe { checkpoint.read_targets(0, &[target], &window).unwrap() };
        assert!(found == *value, "{name}");
        let held: usize = lock(&window.0).chunks.iter().map(|kept| kept.2.len()).sum();
        assert!(held <= KEPT_BYTES, "{held}");
    }
}

#[test]
fn only_who_reads_on_is_read_ahead_for() {
    let mut kept = Kept::default();
    assert_eq!(kept.with_ahead(0, vec![5], 100), [5]);
    assert_eq!(kept.with_ahead(0, vec![6], 100), [6, 7]);
    assert_eq!(kept.with_ahead(0, vec![8], 100), [8, 9, 10]);
    assert_eq!(kept.with_ahead(0, vec![20], 100), [20]);
    assert_eq!(kept.with_ahead(1, vec![21], 100), [21], "another rank's");
    assert_eq!(kept.with_ahead(1, vec![22], 23), [22], "there is no more");
    let many: Vec<usize> = (23..40).collect();
    assert_eq!(kept.with_ahead(1, many.clone(), 100), many);
}
