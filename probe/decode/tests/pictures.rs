//! Small pictures of each kind: a part that is decoded alone is as in the whole, and what is broken is an error. That the pixels
//! are Pillow's is compared by probe/python/tests/test_packed_images.py.

use stallscope_decode::{Cut, Decoder, Form, Spare, header, in_threads};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

const KINDS: [&str; 6] = ["420", "422", "444", "grey", "progressive", "restarts"];

fn picture(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pictures").join(format!("{name}.jpg"));
    std::fs::read(path).expect("a picture of the tests")
}

/// As it is, without resizing.
fn part(left: u32, top: u32, width: u32, height: u32) -> (Cut, Form) {
    let cut = Cut {
        left,
        top,
        width,
        height,
        to_width: width,
        to_height: height,
        at_left: 0,
        at_top: 0,
        flip: false,
    };
    (cut, Form { width, height, scaled: false, most_pixels: 1 << 20 })
}

fn decoded(decoder: &mut Decoder, data: &[u8], cut: &Cut, form: &Form) -> Result<Vec<u8>, String> {
    let mut planes = vec![0; form.sample_bytes()];
    decoder.decode(data, cut, form, &mut planes).map(|()| planes)
}

#[test]
fn a_part_that_is_decoded_alone_is_as_in_the_whole() {
    let mut decoder = Decoder::default();
    for kind in KINDS {
        let data = picture(kind);
        let size = header(&data).expect("a picture");
        let (cut, form) = part(0, 0, size.width, size.height);
        let whole = decoded(&mut decoder, &data, &cut, &form).expect("a picture");
        let plane = (size.width * size.height) as usize;
        let mut parts = 0;
        for left in (0..size.width).step_by(5) {
            for top in (0..size.height).step_by(7) {
                for (width, height) in [(1, 1), (9, 4), (17, 33), (size.width, size.height)] {
                    let (width, height) = (width.min(size.width - left), height.min(size.height - top));
                    let (cut, form) = part(left, top, width, height);
                    let alone = decoded(&mut decoder, &data, &cut, &form).expect("a part of it");
                    for (number, row) in alone.chunks(width as usize).enumerate() {
                        let (of_plane, y) = (number / height as usize, number % height as usize);
                        let at = of_plane * plane + (y + top as usize) * size.width as usize + left as usize;
                        let expected = &whole[at..at + width as usize];
                        assert_eq!(
                            row, expected,
                            "{kind}: {width} x {height} at {left}, {top}, row {number}"
                        );
                    }
                    parts += 1;
                }
            }
        }
        assert!(parts > 100);
    }
}

#[test]
fn a_picture_that_is_cut_anywhere_is_an_error() {
    let mut decoder = Decoder::default();
    for kind in KINDS {
        let data = picture(kind);
        let size = header(&data).expect("a picture");
        // Of a part that is whole, too.
        let (cut, form) = part(0, 0, size.width, 4);
        assert!(decoded(&mut decoder, &data, &cut, &form).is_ok());
        for end in 0..data.len() {
            assert!(decoded(&mut decoder, &data[..end], &cut, &form).is_err(), "{kind} up to {end}");
        }
        assert!(decoded(&mut decoder, &data, &cut, &form).is_ok(), "a decoder is used again after errors");
    }
}

#[test]
fn what_is_not_decoded_here_says_why() {
    let reason = |data: &[u8]| header(data).expect_err("no such picture");
    assert_eq!(reason(&picture("cmyk")), "it is not of three colours or grey");
    for data in [b"".as_slice(), b"not a picture", &[0xFF, 0xD8, 0xFF]] {
        let reason = reason(data);
        assert!(!reason.is_empty() && !reason.contains('\n'), "{reason}");
    }
}

/// In a JPEG, a segment that begins with this marker is taken out, with all others of it.
fn without(data: &[u8], marker: u8) -> Vec<u8> {
    let (mut rest, mut kept) = (&data[2..], data[..2].to_vec());
    while rest[1] != 0xDA {
        let count = 2 + usize::from(u16::from_be_bytes([rest[2], rest[3]]));
        let (segment, behind) = rest.split_at(count);
        if segment[1] != marker {
            kept.extend(segment);
        }
        rest = behind;
    }
    kept.extend(rest);
    kept
}

#[test]
fn what_one_picture_defines_no_other_one_uses() {
    let mut decoder = Decoder::default();
    let data = picture("420");
    let broken = without(&data, 0xDB);
    assert!(broken.len() < data.len());
    let (cut, form) = part(0, 0, 20, 20);
    assert!(decoded(&mut decoder, &data, &cut, &form).is_ok());
    assert!(decoded(&mut decoder, &broken, &cut, &form).is_err(), "it has no tables of frequencies");
    // Tables alone are no picture, of whatever size the last one was.
    let start = without(&data, 0xC0).windows(2).position(|pair| pair == [0xFF, 0xDA]).expect("a scan");
    let tables = [&without(&data, 0xC0)[..start], &[0xFF, 0xD9]].concat();
    assert!(header(&tables).is_err());
}

#[test]
fn what_a_picture_does_not_have_is_not_cut_out_of_it() {
    let mut decoder = Decoder::default();
    let data = picture("420");
    for (left, top, width, height) in
        [(0, 0, 76, 61), (70, 0, 6, 1), (0, 61, 1, 1), (u32::MAX, 0, 2, 1), (3, 3, 0, 1)]
    {
        let (cut, form) = part(left, top, width, height);
        assert!(decoded(&mut decoder, &data, &cut, &form).is_err(), "{cut:?}");
    }
    let (cut, form) = part(0, 0, 10, 10);
    assert!(
        decoded(&mut decoder, &data, &Cut { at_left: 1, ..cut }, &form).is_err(),
        "beyond what it is resized to"
    );
    let few = Form { most_pixels: 75 * 61 - 1, ..form };
    let reason = decoded(&mut decoder, &data, &cut, &few).expect_err("more pixels");
    assert_eq!(reason, "it has more than 4574 pixels");
    assert!(decoder.decode(&data, &cut, &form, &mut [0; 299]).is_err(), "too little memory");
}

#[test]
fn threads_share_a_batch() {
    let mut spare = Spare::default();
    for threads in [1, 2, 5] {
        let mut decoders = spare.take(threads);
        assert_eq!(decoders.len(), threads);
        let mut done = vec![0; 100];
        let calls = AtomicUsize::new(0);
        in_threads(&mut decoders, done.iter_mut().collect(), |_, done| {
            calls.fetch_add(1, Ordering::Relaxed);
            *done += 1;
        });
        assert!(done.iter().all(|times| *times == 1) && calls.into_inner() == 100);
        spare.put(decoders);
    }
    in_threads(&mut [], vec![1], |_, _| unreachable!("no decoder has anything to do"));
}
