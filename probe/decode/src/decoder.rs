//! From the bytes of a JPEG to the pixels of a sample.

use crate::jpeg::{Header, Opened, Reason, Region, scaled};
use crate::resize::{Axis, Between, Pixels, Span, resample};

/// Memory for the pixels of a larger picture is given back.
const MOST_KEPT_BYTES: usize = 64 << 20;

/// The marker at the end of a file that is whole. It is nowhere within the codes of pixels.
const END_OF_IMAGE: [u8; 2] = [0xFF, 0xD9];

/// What of a picture becomes a sample, and how large. Lengths are in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// The part of the picture that is resized; within it.
    pub left: u32,
    pub top: u32,
    pub width: u32,
    pub height: u32,
    /// To what size it is resized.
    pub to_width: u32,
    pub to_height: u32,
    /// Where in that the sample begins.
    pub at_left: u32,
    pub at_top: u32,
    /// Whether it is mirrored, left to right.
    pub flip: bool,
}

/// What is the same for all samples of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Form {
    /// Size of a sample, in pixels.
    pub width: u32,
    pub height: u32,
    /// Whether pictures may be decoded at a half, a quarter or an eighth of their size, if a sample needs no more: faster,
    /// and not the pixels of resizing all of it.
    pub scaled: bool,
    /// Pictures of more pixels are refused.
    pub most_pixels: u64,
}

impl Form {
    /// Bytes of a sample: three planes.
    pub fn sample_bytes(&self) -> usize {
        3 * self.width as usize * self.height as usize
    }
}

/// How large a picture is, without decoding it.
///
/// # Errors
/// It is no JPEG that is decoded here; the reason is in words.
pub fn header(data: &[u8]) -> Result<Header, Reason> {
    Opened::new(data).map(|opened| opened.header)
}

/// Decodes one picture after the other; keeps its memory for the next one.
#[derive(Debug, Default)]
pub struct Decoder {
    pixels: Vec<u8>,
    across: Axis,
    down: Axis,
    between: Between,
}

impl Decoder {
    /// Makes a sample: a plane of red, one of green and one of blue, row by row.
    ///
    /// # Errors
    /// The picture cannot be decoded, is too large or does not have what is cut out; what is in `to` then is without meaning.
    pub fn decode(&mut self, data: &[u8], cut: &Cut, form: &Form, to: &mut [u8]) -> Result<(), Reason> {
        if to.len() != form.sample_bytes() {
            return Err("the sample has other bytes than there is memory for".into());
        }
        let opened = Opened::new(data)?;
        let header = opened.header;
        if u64::from(header.width) * u64::from(header.height) > form.most_pixels {
            return Err(format!("it has more than {} pixels", form.most_pixels));
        }
        cut.check(&header, form)?;
        let divisor = if form.scaled { cut.divisor() } else { 1 };
        let (across, down) = cut.spans(&header, form, divisor);
        self.across.set(&across);
        self.down.set(&down);
        // Within what has a weight for the sample, in the picture at the size at which it is decoded.
        let origin = if divisor == 1 { (cut.left, cut.top) } else { (0, 0) };
        let (left, right) = self.across.extent();
        let (top, bottom) = self.down.extent();
        let needed =
            Region { left: origin.0 + left, top: origin.1 + top, width: right - left, height: bottom - top };
        let mut region = region_around(&needed, &header, divisor);
        // Below a region nothing is decoded, so that a file that is cut there would not show it.
        if let Some(region) = region.as_mut().filter(|_| !data.ends_with(&END_OF_IMAGE)) {
            region.height = scaled(header.height, divisor) - region.top;
        }
        opened.decode(divisor, region.as_ref(), &mut self.pixels)?;
        let decoded =
            region.unwrap_or(Region { left: 0, top: 0, width: scaled(header.width, divisor), height: 0 });
        // As the axes count: from the part's begin, or the picture's.
        let source = Pixels {
            bytes: &self.pixels,
            width: decoded.width as usize,
            left: i64::from(decoded.left) - i64::from(origin.0),
            top: i64::from(decoded.top) - i64::from(origin.1),
        };
        resample(&source, &self.across, &self.down, cut.flip, &mut self.between, to);
        if self.pixels.len() > MOST_KEPT_BYTES {
            self.pixels = Vec::new();
        }
        Ok(())
    }
}

impl Cut {
    fn check(&self, header: &Header, form: &Form) -> Result<(), Reason> {
        let fits =
            |at: u32, count: u32, of: u32| count > 0 && at.checked_add(count).is_some_and(|end| end <= of);
        let within = fits(self.left, self.width, header.width) && fits(self.top, self.height, header.height);
        if !within {
            return Err(format!(
                "it is {} x {} pixels, and does not have what is cut out",
                header.width, header.height
            ));
        }
        let has_sample =
            fits(self.at_left, form.width, self.to_width) && fits(self.at_top, form.height, self.to_height);
        if !has_sample {
            return Err("the sample is larger than what the picture is resized to".into());
        }
        Ok(())
    }

    /// The largest of 8, 4 and 2 by which the sides may be divided so that the part has as many pixels as it is resized to.
    /// These are what Pillow's `draft` has, and what libjpeg-turbo has instructions for.
    fn divisor(&self) -> u32 {
        let enough = |by: &u32| self.width / by >= self.to_width && self.height / by >= self.to_height;
        [8, 4, 2].into_iter().find(enough).unwrap_or(1)
    }

    /// Of both axes. At full size the part is all that there is, as after a crop; at a smaller one the picture is.
    fn spans(&self, header: &Header, form: &Form, divisor: u32) -> (Span, Span) {
        let span = |at: u32, count: u32, side: u32, size: u32, first: u32, wanted: u32| {
            let (within, from, to) = if divisor == 1 {
                (count, 0.0, count as f32)
            } else {
                let within = scaled(side, divisor);
                let at_size = |at: u32| f64::from(at) / f64::from(divisor);
                (within, at_size(at) as f32, at_size(at + count).min(f64::from(within)) as f32)
            };
            Span { within, from, to, size, first, count: wanted }
        };
        let across = span(self.left, self.width, header.width, self.to_width, self.at_left, form.width);
        let down = span(self.top, self.height, header.height, self.to_height, self.at_top, form.height);
        (across, down)
    }
}

/// What to decode for some pixels to be as if all were decoded: whole blocks, and one more on each side, because colours are
/// smoothed over the edges of blocks. None: all of it.
fn region_around(needed: &Region, header: &Header, divisor: u32) -> Option<Region> {
    let (across, down) = header.block?;
    let (across, down) = (scaled(across, divisor), scaled(down, divisor));
    let part = |at: u32, count: u32, block: u32, side: u32| {
        let first = (at / block).saturating_sub(1) * block;
        let end = (u64::from(at + count).div_ceil(u64::from(block)) + 1) * u64::from(block);
        (first, end.min(u64::from(side)) as u32 - first)
    };
    let (left, width) = part(needed.left, needed.width, across, scaled(header.width, divisor));
    let (top, height) = part(needed.top, needed.height, down, scaled(header.height, divisor));
    Some(Region { left, top, width, height })
}
