//! Bytes that are to be a JPEG, and what is to be cut out of it: whatever they are, nothing is written outside of the sample,
//! nothing panics, and nothing of the picture before shows.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stallscope_decode::{Cut, Decoder, Form, header};
use std::cell::RefCell;

const SIDE: u32 = 16;
/// What is beyond takes memory that a picture of a training set does not.
const MOST_PIXELS: u64 = 1 << 20;
/// Bytes before those of the picture.
const HEAD: usize = 6;
/// Around the sample, and as it was afterwards.
const MARGIN: usize = 64;
const UNTOUCHED: u8 = 0xA5;

thread_local! {
    // Used for one picture after the other, as in a job: what one leaves must not harm the next.
    static DECODER: RefCell<Decoder> = RefCell::new(Decoder::default());
}

fuzz_target!(|data: &[u8]| {
    let Some((head, picture)) = data.split_at_checked(HEAD) else { return };
    DECODER.with_borrow_mut(|decoder| {
        let Ok(header) = header(picture) else { return };
        let part = |byte: u8, side: u32| (u32::from(byte) * side) >> 8;
        let (left, top) = (part(head[0], header.width), part(head[1], header.height));
        let flags = head[4];
        let (wide, high) = (header.width - left, header.height - top);
        let cut = Cut {
            left,
            top,
            width: part(head[2], wide) + 1,
            // Now and then more than there is.
            height: part(head[3], high) + 1 + u32::from(flags & 4 != 0 && head[3] == 255),
            to_width: SIDE + u32::from(head[5]),
            to_height: SIDE,
            at_left: u32::from(head[5]) / 2,
            at_top: 0,
            flip: flags & 1 != 0,
        };
        let form = Form { width: SIDE, height: SIDE, scaled: flags & 2 != 0, most_pixels: MOST_PIXELS };
        let mut memory = vec![UNTOUCHED; form.sample_bytes() + 2 * MARGIN];
        let done = decoder.decode(picture, &cut, &form, &mut memory[MARGIN..][..form.sample_bytes()]);
        let (before, rest) = memory.split_at(MARGIN);
        assert!(before.iter().chain(&rest[form.sample_bytes()..]).all(|byte| *byte == UNTOUCHED));
        if done.is_ok() {
            let mut again = vec![0; form.sample_bytes()];
            let same = Decoder::default().decode(picture, &cut, &form, &mut again);
            assert!(same.is_ok() && again == rest[..form.sample_bytes()], "what was decoded before shows");
        }
    });
});
