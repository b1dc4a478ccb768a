//! Bilinear resampling with antialiasing, across and then down, with the very pixels of Pillow's `Image.resize` where that does
//! so: its filter, its fixed point and its rounding between the two passes (its Resample.c defines them).

/// Bits behind the point of a weight: as many as 32 hold beside the sum over 8-bit pixels.
const WEIGHT_BITS: u32 = 32 - 8 - 2;
const HALF: i32 = 1 << (WEIGHT_BITS - 1);
/// Bytes of a pixel: red, green, blue and one that nobody reads, so that four lanes are one pixel.
pub(crate) const PIXEL: usize = 4;
/// Bytes of a row that are summed at a time, in registers.
const LANES: usize = 32;

/// Which part of an axis is resampled to how many pixels, and which of these are wanted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Span {
    /// Pixels that there are; none beyond them has a weight.
    pub(crate) within: u32,
    /// From where to where, in pixels. Single precision, as Pillow has it.
    pub(crate) from: f32,
    pub(crate) to: f32,
    /// To how many pixels all of that is resampled.
    pub(crate) size: u32,
    /// The first that is wanted of these, and how many are.
    pub(crate) first: u32,
    pub(crate) count: u32,
}

/// Of each pixel of an axis, the pixels that it is made of and their weights.
#[derive(Debug, Default)]
pub(crate) struct Axis {
    firsts: Vec<u32>,
    counts: Vec<u32>,
    weights: Vec<i32>,
    /// Weights for each pixel, of which `counts` are used.
    taps: usize,
    /// Source pixels that there are.
    within: u32,
    real: Vec<f64>,
}

impl Axis {
    pub(crate) fn set(&mut self, span: &Span) {
        let scale = f64::from(span.to - span.from) / f64::from(span.size);
        // A triangle of two pixels, or of two output pixels where there are fewer of these.
        let support = scale.max(1.0);
        self.taps = support.ceil() as usize * 2 + 1;
        self.within = span.within;
        self.firsts.clear();
        self.counts.clear();
        self.weights.clear();
        self.weights.resize(self.taps * span.count as usize, 0);
        for (at, number) in (span.first..span.first + span.count).enumerate() {
            let center = f64::from(span.from) + (f64::from(number) + 0.5) * scale;
            // Casts cut off what is behind the point, and what is below zero.
            let first = (center - support + 0.5) as u32;
            let end = ((center + support + 0.5) as u32).min(span.within);
            let count = end.saturating_sub(first);
            self.real.clear();
            self.real.extend((0..count).map(|tap| {
                let distance = (f64::from(tap + first) - center + 0.5) * (1.0 / support);
                (1.0 - distance.abs()).max(0.0)
            }));
            let sum: f64 = self.real.iter().sum();
            let fixed = &mut self.weights[at * self.taps..][..count as usize];
            for (fixed, real) in fixed.iter_mut().zip(&self.real) {
                let share = if sum == 0.0 { *real } else { real / sum };
                *fixed = (share * f64::from(1 << WEIGHT_BITS) + 0.5) as i32;
            }
            self.firsts.push(first);
            self.counts.push(count);
        }
    }

    /// From which source pixel on one has a weight, and behind which none has.
    pub(crate) fn extent(&self) -> (u32, u32) {
        let ends = self.firsts.iter().zip(&self.counts).map(|(first, count)| first + count);
        (self.firsts.first().copied().unwrap_or(0), ends.max().unwrap_or(0))
    }

    fn len(&self) -> usize {
        self.firsts.len()
    }

    /// The first source pixel of an output pixel, and the weights from it on.
    fn of(&self, number: usize) -> (usize, &[i32]) {
        let weights = &self.weights[number * self.taps..][..self.counts[number] as usize];
        (self.firsts[number] as usize, weights)
    }
}

/// An axis across a row, two source pixels at a time, which fill a register: where their number is odd, there is another
/// one with no weight.
#[derive(Debug, Default)]
pub(crate) struct Pairs {
    firsts: Vec<u32>,
    counts: Vec<u32>,
    weights: Vec<[i32; 2 * PIXEL]>,
    /// Pairs for each pixel, of which `counts` are used.
    most: usize,
}

impl Pairs {
    /// Whether there are enough pixels for pairs.
    fn set(&mut self, axis: &Axis) -> bool {
        let within = axis.within as usize;
        self.most = axis.taps.div_ceil(2);
        self.firsts.clear();
        self.counts.clear();
        self.weights.clear();
        self.weights.resize(self.most * axis.len(), [0; 2 * PIXEL]);
        for number in 0..axis.len() {
            let (first, weights) = axis.of(number);
            let count = weights.len().div_ceil(2) * 2;
            // The one without a weight is behind the others, or before them at the end of the row.
            let first = first.min(within.saturating_sub(count));
            if first + count > within {
                return false;
            }
            let before = axis.firsts[number] as usize - first;
            let pairs = &mut self.weights[number * self.most..][..count / 2];
            for (tap, weight) in weights.iter().enumerate() {
                let (pair, half) = ((tap + before) / 2, (tap + before) % 2);
                pairs[pair][half * PIXEL..][..PIXEL].fill(*weight);
            }
            self.firsts.push(first as u32);
            self.counts.push(count as u32 / 2);
        }
        true
    }

    fn of(&self, number: usize) -> (usize, &[[i32; 2 * PIXEL]]) {
        let weights = &self.weights[number * self.most..][..self.counts[number] as usize];
        (self.firsts[number] as usize, weights)
    }
}

/// Rows of pixels, and maybe bytes of no meaning behind them. The first pixel of a row is at `left`, and the first row at
/// `top`, as the axes count.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pixels<'a> {
    pub(crate) bytes: &'a [u8],
    /// Pixels in a row.
    pub(crate) width: usize,
    pub(crate) left: i64,
    pub(crate) top: i64,
}

/// Memory for what is between the two passes.
#[derive(Debug, Default)]
pub(crate) struct Between {
    rows: Vec<u8>,
    row: Vec<u8>,
    sums: Vec<i32>,
    pairs: Pairs,
}

/// Resamples to three planes (red, green, blue) of the size of the two axes, mirrored if `flip`. `source` has all pixels that
/// have a weight.
///
/// # Panics
/// It does not have them, or `planes` is of another size.
pub(crate) fn resample(
    source: &Pixels<'_>,
    across: &Axis,
    down: &Axis,
    flip: bool,
    between: &mut Between,
    planes: &mut [u8],
) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2, which is all that this function asks for.
        return unsafe { resample_avx2(source, across, down, flip, between, planes) };
    }
    passes(source, across, down, flip, between, planes);
}

/// The same, compiled for wider registers: integers, and so the same pixels.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn resample_avx2(
    source: &Pixels<'_>,
    across: &Axis,
    down: &Axis,
    flip: bool,
    between: &mut Between,
    planes: &mut [u8],
) {
    passes(source, across, down, flip, between, planes);
}

// Inlined, so that each of its callers has it for its own registers.
#[inline(always)]
fn passes(
    source: &Pixels<'_>,
    across: &Axis,
    down: &Axis,
    flip: bool,
    between: &mut Between,
    planes: &mut [u8],
) {
    let (width, height) = (across.len(), down.len());
    assert_eq!(planes.len(), 3 * width * height, "memory of another size");
    if width == 0 || height == 0 {
        return;
    }
    // Whole groups of lanes; what is behind the row is never looked at.
    let row_bytes = (width * PIXEL).next_multiple_of(LANES);
    let (top, bottom) = down.extent();
    let count = (bottom - top) as usize;
    if between.rows.len() < count * row_bytes {
        between.rows.resize(count * row_bytes, 0);
    }
    between.row.resize(row_bytes, 0);
    between.sums.resize(row_bytes, 0);
    let paired = between.pairs.set(across);
    let from = (i64::from(top) - source.top) as usize;
    let source_rows = source.bytes.chunks_exact(source.width * PIXEL).skip(from);
    let mut filled = 0;
    for (row, to) in source_rows.zip(between.rows.chunks_exact_mut(row_bytes).take(count)) {
        if paired {
            row_across_in_pairs(row, source.left, &between.pairs, &mut between.sums, to);
        } else {
            row_across(row, source.left, across, to);
        }
        filled += 1;
    }
    assert_eq!(filled, count, "rows are missing");
    let plane = width * height;
    let (red, rest) = planes.split_at_mut(plane);
    let (green, blue) = rest.split_at_mut(plane);
    for number in 0..height {
        let (first, weights) = down.of(number);
        let rows = &between.rows[(first - top as usize) * row_bytes..][..weights.len() * row_bytes];
        rows_down(rows, row_bytes, weights, &mut between.row);
        let (pixels, _) = between.row[..width * PIXEL].as_chunks_mut::<PIXEL>();
        if flip {
            pixels.reverse();
        }
        let at = number * width..(number + 1) * width;
        let (red, green, blue) = (&mut red[at.clone()], &mut green[at.clone()], &mut blue[at]);
        for (((pixel, red), green), blue) in pixels.iter().zip(red).zip(green).zip(blue) {
            *red = pixel[0];
            *green = pixel[1];
            *blue = pixel[2];
        }
    }
}

#[inline(always)]
fn row_across(row: &[u8], left: i64, axis: &Axis, to: &mut [u8]) {
    let (pixels, _) = row.as_chunks::<PIXEL>();
    let (to, _) = to.as_chunks_mut::<PIXEL>();
    for (number, to) in to.iter_mut().enumerate().take(axis.len()) {
        let (first, weights) = axis.of(number);
        let at = (first as i64 - left) as usize;
        let mut sums = [HALF; PIXEL];
        for (pixel, weight) in pixels[at..][..weights.len()].iter().zip(weights) {
            for (sum, byte) in sums.iter_mut().zip(pixel) {
                *sum += i32::from(*byte) * weight;
            }
        }
        *to = sums.map(rounded);
    }
}

/// The same, faster.
#[inline(always)]
fn row_across_in_pairs(row: &[u8], left: i64, pairs: &Pairs, sums: &mut [i32], to: &mut [u8]) {
    let (of_pixels, _) = sums.as_chunks_mut::<PIXEL>();
    for (number, sums) in of_pixels.iter_mut().enumerate().take(pairs.firsts.len()) {
        let (first, weights) = pairs.of(number);
        let at = (first as i64 - left) as usize * PIXEL;
        let (pixels, _) = row[at..][..weights.len() * 2 * PIXEL].as_chunks::<{ 2 * PIXEL }>();
        let mut both = [0; 2 * PIXEL];
        for (pixels, weights) in pixels.iter().zip(weights) {
            for ((sum, byte), weight) in both.iter_mut().zip(pixels).zip(weights) {
                *sum += i32::from(*byte) * weight;
            }
        }
        let (one, other) = both.split_at(PIXEL);
        for ((sum, one), other) in sums.iter_mut().zip(one).zip(other) {
            *sum = HALF + one + other;
        }
    }
    for (to, sum) in to.iter_mut().zip(&*sums) {
        *to = rounded(*sum);
    }
}

#[inline(always)]
fn rows_down(rows: &[u8], row_bytes: usize, weights: &[i32], to: &mut [u8]) {
    let (to, _) = to.as_chunks_mut::<LANES>();
    for (group, to) in to.iter_mut().enumerate() {
        let mut sums = [HALF; LANES];
        for (row, weight) in rows.chunks_exact(row_bytes).zip(weights) {
            let (groups, _) = row.as_chunks::<LANES>();
            for (sum, byte) in sums.iter_mut().zip(&groups[group]) {
                *sum += i32::from(*byte) * weight;
            }
        }
        *to = sums.map(rounded);
    }
}

#[inline(always)]
fn rounded(sum: i32) -> u8 {
    (sum >> WEIGHT_BITS).clamp(0, 255) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(span: Span) -> Axis {
        let mut axis = Axis::default();
        axis.set(&span);
        axis
    }

    fn whole(within: u32, size: u32) -> Span {
        Span { within, from: 0.0, to: within as f32, size, first: 0, count: size }
    }

    fn resampled(bytes: &[u8], width: usize, across: Span, down: Span, flip: bool) -> Vec<u8> {
        let source = Pixels { bytes, width, left: 0, top: 0 };
        let (across, down) = (axis(across), axis(down));
        let mut planes = vec![0; 3 * across.len() * down.len()];
        resample(&source, &across, &down, flip, &mut Between::default(), &mut planes);
        planes
    }

    fn ramp(width: usize, height: usize) -> Vec<u8> {
        (0..width * height).flat_map(|n| [(n * 7) as u8, (n * 13) as u8, (n * n) as u8, 255]).collect()
    }

    #[test]
    fn the_same_size_is_the_same_picture() {
        let bytes = ramp(9, 5);
        let planes = resampled(&bytes, 9, whole(9, 9), whole(5, 5), false);
        for (number, pixel) in bytes.as_chunks::<PIXEL>().0.iter().enumerate() {
            assert_eq!([planes[number], planes[45 + number], planes[90 + number]], pixel[..3]);
        }
        let mirrored = resampled(&bytes, 9, whole(9, 9), whole(5, 5), true);
        for (row, other) in planes.chunks(9).zip(mirrored.chunks(9)) {
            assert!(row.iter().eq(other.iter().rev()));
        }
    }

    #[test]
    fn the_mean_of_two_pixels_is_rounded_up_between_the_passes() {
        // Two columns of 0 and 1 give .5, which is 1 before rows are summed; by one pass over both it would be so too
        // only by chance: of (0, 1; 0, 0) the mean is .25, and .5 after the first pass.
        let bytes = [[0, 0, 0, 0], [1, 1, 1, 0], [0; 4], [0; 4]].concat();
        assert_eq!(resampled(&bytes, 2, whole(2, 1), whole(2, 1), false), [1, 1, 1]);
    }

    #[test]
    fn a_picture_of_one_colour_stays_it_at_every_size() {
        let bytes = [255, 128, 1, 0].repeat(37 * 23);
        for size in [1, 2, 5, 36, 37, 38, 100, 333] {
            let planes = resampled(&bytes, 37, whole(37, size), whole(23, size + 1), false);
            let plane = (size * (size + 1)) as usize;
            for (plane, value) in planes.chunks(plane).zip([255, 128, 1]) {
                assert!(plane.iter().all(|pixel| *pixel == value), "{size}");
            }
        }
    }

    #[test]
    fn a_window_of_the_output_is_a_part_of_all_of_it() {
        let bytes = ramp(40, 30);
        let all = resampled(&bytes, 40, whole(40, 17), whole(30, 13), false);
        let across = Span { first: 3, count: 8, ..whole(40, 17) };
        let down = Span { first: 5, count: 4, ..whole(30, 13) };
        let part = resampled(&bytes, 40, across, down, false);
        for plane in 0..3 {
            for row in 0..4 {
                let of_all = &all[plane * 17 * 13 + (row + 5) * 17 + 3..][..8];
                assert_eq!(&part[plane * 32 + row * 8..][..8], of_all);
            }
        }
    }

    #[test]
    fn pairs_give_the_same_pixels() {
        for width in [2, 3, 4, 5, 31, 64] {
            let bytes = ramp(width, 9);
            for size in [1, 2, 7, 31, 100] {
                let (across, down) = (axis(whole(width as u32, size)), axis(whole(9, 9)));
                let source = Pixels { bytes: &bytes, width, left: 0, top: 0 };
                let mut between = Between::default();
                let mut planes = vec![0; (3 * size * 9) as usize];
                resample(&source, &across, &down, false, &mut between, &mut planes);
                let mut row = vec![0; size as usize * PIXEL];
                for (number, source) in bytes.chunks(width * PIXEL).enumerate() {
                    row_across(source, 0, &across, &mut row);
                    let at = number * size as usize;
                    let red: Vec<u8> = row.iter().step_by(PIXEL).copied().collect();
                    assert_eq!(planes[at..at + size as usize], red, "{width} to {size}, row {number}");
                }
            }
        }
    }

    #[test]
    fn wider_registers_give_the_same_pixels() {
        let bytes = ramp(61, 47);
        for size in [8, 31, 90] {
            let (across, down) = (axis(whole(61, size)), axis(whole(47, size)));
            let source = Pixels { bytes: &bytes, width: 61, left: 0, top: 0 };
            let mut one = vec![0; (3 * size * size) as usize];
            let mut other = one.clone();
            resample(&source, &across, &down, true, &mut Between::default(), &mut one);
            passes(&source, &across, &down, true, &mut Between::default(), &mut other);
            assert_eq!(one, other);
        }
    }
}
