//! What is taken from the shelf is what was packed, whatever is read ahead, damaged, given up or taken out of turn.

use super::*;
use crate::shuffle::{Epoch, Layout, Recipe, Share};
use crate::{Disk, Options};
use std::path::PathBuf;

const RECIPE: Recipe = Recipe { seed: 1, lanes: 1, window: 4 };
const WHOLE: Share = Share { rank: 0, world: 1, batch: 8, start: 0 };

fn packed(files: usize) -> (tempfile::TempDir, PathBuf) {
    packed_as(files, Options { shuffle: Some(7), zstd: None, chunk_bytes: 4000 })
}

fn packed_as(files: usize, options: Options) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    std::fs::create_dir(&source).unwrap();
    for number in 0..files {
        // Some are empty.
        std::fs::write(source.join(format!("{number:04}")), vec![number as u8; number * 37 % 500]).unwrap();
    }
    let made = dir.path().join("made.pack");
    crate::ingest::pack(&source, &made, options, &Disk, &mut |_| {}).unwrap();
    (dir, made)
}

struct Reader {
    pack: Arc<Pack>,
    layout: Layout,
}

impl Reader {
    fn new(made: &Path) -> Reader {
        let pack = Arc::new(Pack::open(made).unwrap());
        let layout = Layout::of(&pack, 0..pack.snapshot().records()).unwrap();
        Reader { pack, layout }
    }

    /// Places, and what is read for them.
    fn plan(&self, recipe: Recipe, share: Share, skip: usize, ring: u64) -> (Vec<u32>, Plan) {
        let mut epoch = Epoch::new(&self.layout, recipe, 0);
        let places = epoch.places(share);
        let plan = Plan::of(&epoch, &places, skip, ring, &self.pack).unwrap();
        (places, plan)
    }

    /// Takes it from the shelf if it is there, and says whether it was; its bytes are compared.
    fn take(&self, shelf: &Shelf, place: u32) -> bool {
        let entry = self.pack.snapshot().entry(self.layout.record(place) as usize).unwrap();
        let number: usize = std::str::from_utf8(entry.name).unwrap().parse().unwrap();
        let mut bytes = vec![0xff; entry.bytes as usize];
        let found = self.pack.shelved(shelf, &entry);
        match found {
            Some(place) => self.pack.take(shelf, place, &entry, &mut bytes).unwrap(),
            None => self.pack.read(&entry, &mut bytes).unwrap(),
        }
        assert_eq!(bytes, vec![number as u8; number * 37 % 500]);
        found.is_some() || entry.stored_bytes == 0
    }
}

#[test]
fn all_samples_come_from_the_least_memory_in_turn_and_by_many_at_a_time() {
    let (_dir, made) = packed(600);
    let reader = Reader::new(&made);
    let ring = reader.layout.bytes_of(RECIPE.window);
    assert!(ring < reader.layout.bytes() / 3, "it goes round several times");
    let shelf = Shelf::new(&reader.pack, ring).unwrap();
    let (places, plan) = reader.plan(RECIPE, WHOLE, 0, ring);
    assert_eq!(plan.apart, 0);
    let reads = plan.reads.len() as u64;
    shelf.begin(reader.pack.clone(), plan.clone()).unwrap();
    assert!(places.iter().all(|place| reader.take(&shelf, *place)));
    assert_eq!(shelf.read(), reads, "each part once");
    // Each takes every fourth.
    shelf.begin(reader.pack.clone(), plan).unwrap();
    std::thread::scope(|scope| {
        for first in 0..4 {
            let (reader, shelf, places) = (&reader, &shelf, &places);
            scope.spawn(move || {
                places.iter().skip(first).step_by(4).for_each(|place| _ = reader.take(shelf, *place))
            });
        }
    });
}

#[test]
fn compressed_samples_come_from_memory_too() {
    let (_dir, made) = packed_as(600, Options { shuffle: Some(7), zstd: Some(3), chunk_bytes: 300 });
    let reader = Reader::new(&made);
    let entries = reader.pack.snapshot().entries();
    assert!(entries.filter(|entry| entry.as_ref().unwrap().is_compressed()).count() > 500);
    let ring = reader.layout.bytes_of(RECIPE.window);
    let shelf = Shelf::new(&reader.pack, ring).unwrap();
    let (places, plan) = reader.plan(RECIPE, WHOLE, 0, ring);
    assert_eq!(plan.apart, 0);
    shelf.begin(reader.pack.clone(), plan).unwrap();
    assert!(places.iter().all(|place| reader.take(&shelf, *place)));
}

#[test]
fn a_plan_fits_the_memory_that_is_stated_for_its_window() {
    let (_dir, made) = packed(600);
    let reader = Reader::new(&made);
    for (window, seed) in (1..12).flat_map(|window| (0..20).map(move |seed| (window, seed))) {
        let recipe = Recipe { seed, window, lanes: 1 };
        let (_, plan) = reader.plan(recipe, WHOLE, 0, reader.layout.bytes_of(window));
        assert_eq!(plan.apart, 0, "window {window}, seed {seed}");
    }
}

#[test]
fn what_has_no_memory_is_left_to_who_needs_it() {
    let (_dir, made) = packed(300);
    let reader = Reader::new(&made);
    for ring in [1, 5000, 9000] {
        let (places, plan) = reader.plan(RECIPE, WHOLE, 0, ring);
        assert!(plan.apart > 0);
        let shelf = Shelf::new(&reader.pack, ring).unwrap();
        shelf.begin(reader.pack.clone(), plan).unwrap();
        places.iter().for_each(|place| _ = reader.take(&shelf, *place));
    }
}

#[test]
fn only_what_is_left_of_an_epoch_is_read() {
    let (_dir, made) = packed(600);
    let reader = Reader::new(&made);
    let ring = reader.layout.bytes_of(RECIPE.window);
    let (places, plan) = reader.plan(RECIPE, WHOLE, 300, ring);
    let (_, whole) = reader.plan(RECIPE, WHOLE, 0, ring);
    assert!(plan.reads.len() < whole.reads.len() * 3 / 4);
    let shelf = Shelf::new(&reader.pack, ring).unwrap();
    shelf.begin(reader.pack.clone(), plan).unwrap();
    let shelved = places[300..].iter().filter(|place| reader.take(&shelf, **place)).count();
    assert!(shelved > 250, "{shelved}");
}

/// Those that nobody takes from here, as they are in a cache, hold nobody up.
#[test]
fn samples_that_are_not_taken_are_let_go() {
    let (_dir, made) = packed(600);
    let reader = Reader::new(&made);
    let ring = reader.layout.bytes_of(RECIPE.window);
    let (places, plan) = reader.plan(RECIPE, WHOLE, 0, ring);
    let shelf = Shelf::new(&reader.pack, ring).unwrap();
    shelf.begin(reader.pack.clone(), plan).unwrap();
    for (number, place) in places.iter().enumerate() {
        shelf.reached(number as u64);
        if number % 3 == 0 {
            assert!(reader.take(&shelf, *place), "sample {number}");
        }
    }
}

#[test]
fn samples_of_another_order_are_read_by_themselves() {
    let (_dir, made) = packed(600);
    let reader = Reader::new(&made);
    let ring = reader.layout.bytes_of(RECIPE.window);
    let (places, plan) = reader.plan(RECIPE, WHOLE, 0, ring);
    let shelf = Shelf::new(&reader.pack, ring).unwrap();
    shelf.begin(reader.pack.clone(), plan).unwrap();
    places.iter().rev().for_each(|place| _ = reader.take(&shelf, *place));
    // And none after it has ended.
    shelf.stop();
    places.iter().for_each(|place| _ = reader.take(&shelf, *place));
}

#[test]
fn damage_is_an_error_of_its_own_sample_alone() {
    let (_dir, made) = packed(300);
    let reader = Reader::new(&made);
    let flipped = reader.pack.snapshot().entry(10).unwrap();
    let cut =
        (0..300).map(|at| reader.pack.snapshot().entry(at).unwrap()).find(|at| at.chunk != flipped.chunk);
    let (flipped_chunk, flipped_name) = (flipped.chunk, flipped.name.to_vec());
    let cut_chunk = cut.unwrap().chunk;
    let file = |chunk| made.join(reader.pack.snapshot().chunk(chunk).unwrap().id.file_name());
    let mut bytes = std::fs::read(file(flipped_chunk)).unwrap();
    bytes[flipped.offset as usize] ^= 1;
    std::fs::write(file(flipped_chunk), bytes).unwrap();
    std::fs::remove_file(file(cut_chunk)).unwrap();
    let ring = reader.layout.bytes();
    let (places, plan) = reader.plan(RECIPE, WHOLE, 0, ring);
    let shelf = Shelf::new(&reader.pack, ring).unwrap();
    shelf.begin(reader.pack.clone(), plan).unwrap();
    for place in places {
        let entry = reader.pack.snapshot().entry(reader.layout.record(place) as usize).unwrap();
        if entry.stored_bytes == 0 {
            continue;
        }
        let mut bytes = vec![0; entry.stored_bytes as usize];
        let taken = match reader.pack.shelved(&shelf, &entry) {
            Some(place) => reader.pack.take(&shelf, place, &entry, &mut bytes),
            None => reader.pack.read(&entry, &mut bytes),
        };
        let is_damaged = entry.chunk == cut_chunk || entry.name == flipped_name;
        assert_eq!(taken.is_err(), is_damaged, "{:?}", taken);
        if let Err(error) = taken {
            let id = reader.pack.snapshot().chunk(entry.chunk).unwrap().id;
            assert!(error.to_string().contains(&id.file_name()), "{error}");
        }
    }
}

#[test]
fn another_process_finds_it_by_its_address() {
    let (_dir, made) = packed(100);
    let reader = Reader::new(&made);
    let ring = reader.layout.bytes();
    let (places, plan) = reader.plan(RECIPE, WHOLE, 0, ring);
    let shelf = Shelf::new(&reader.pack, ring).unwrap();
    let (process, fd, token) = shelf.address();
    let other = Shelf::of_other(process, fd, token).unwrap();
    assert_eq!(other.bytes(), ring);
    shelf.begin(reader.pack.clone(), plan).unwrap();
    assert!(places.iter().all(|place| reader.take(&other, *place)));
    assert!(Shelf::of_other(process, fd, token ^ 1).is_err());
    let plain = std::fs::File::open(&made).unwrap();
    assert!(Shelf::of_other(process, plain.as_raw_fd(), token).is_err());
}

/// Where the reading process was killed, its workers wait once, and not for each sample of their batches.
#[test]
fn samples_that_nobody_reads_any_more_are_waited_for_once() {
    let (_dir, made) = packed(100);
    let reader = Reader::new(&made);
    let ring = reader.layout.bytes();
    let (places, plan) = reader.plan(RECIPE, WHOLE, 0, ring);
    let shelf = Shelf::new(&reader.pack, ring).unwrap();
    // As such a process leaves it.
    shelf.words.plan(&plan.reads);
    shelf.words.running.store(1, Release);
    let entries = places
        .iter()
        .map(|place| reader.pack.snapshot().entry(reader.layout.record(*place) as usize).unwrap())
        .filter(|entry| entry.stored_bytes > 0);
    for (number, entry) in entries.enumerate() {
        // Whatever is left to wait would be waited for each of the others.
        let gone_after = if number == 0 { Duration::ZERO } else { Duration::from_secs(3600) };
        assert!(shelf.wait(entry.chunk, entry.offset, entry.stored_bytes, gone_after).is_none());
    }
}
