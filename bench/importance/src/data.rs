//! Three data sets, made anew for each seed: a mixture of Gaussians with long tails, real handwritten digits under small
//! distortions, and small pictures of shifted templates among clutter. Labels of the training part may be wrong in a share.

use crate::noise::Noise;
use anyhow::{Context, ensure};
use std::path::Path;

pub(crate) const CLASSES: usize = 10;

/// Samples of `width` numbers each, one behind the other, and their classes.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    pub(crate) width: usize,
    pub(crate) values: Vec<f32>,
    pub(crate) classes: Vec<u8>,
}

impl Samples {
    fn new(width: usize) -> Samples {
        Samples { width, ..Samples::default() }
    }

    fn add(&mut self, values: impl IntoIterator<Item = f32>, class: usize) {
        self.values.extend(values);
        self.classes.push(class as u8);
    }

    pub(crate) fn len(&self) -> usize {
        self.classes.len()
    }

    pub(crate) fn sample(&self, id: usize) -> &[f32] {
        &self.values[id * self.width..][..self.width]
    }

    /// Mean 0 and variance 1 over all numbers of `like`.
    fn normalise(&mut self, like: &[f32]) {
        let mean = like.iter().sum::<f32>() / like.len() as f32;
        let variance = like.iter().map(|value| (value - mean).powi(2)).sum::<f32>() / like.len() as f32;
        self.values.iter_mut().for_each(|value| *value = (*value - mean) / variance.sqrt());
    }
}

#[derive(Debug)]
pub(crate) struct DataSet {
    pub(crate) train: Samples,
    /// With right labels.
    pub(crate) test: Samples,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Mixture,
    Digits,
    Pictures,
}

impl Kind {
    pub(crate) const ALL: [Kind; 3] = [Kind::Mixture, Kind::Digits, Kind::Pictures];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Mixture => "mixture",
            Kind::Digits => "digits",
            Kind::Pictures => "pictures",
        }
    }

    /// The highest learning rate of the cosine, about the best of a coarse search for the plain shuffle.
    pub(crate) fn learning_rate(self) -> f32 {
        match self {
            Kind::Mixture => 0.2,
            Kind::Digits | Kind::Pictures => 0.1,
        }
    }

    pub(crate) fn make(self, digits: &Digits, wrong_share: f32, seed: u64) -> DataSet {
        let mut noise = Noise::new(seed, self as u64 + 1);
        let mut set = match self {
            Kind::Mixture => mixture(&mut noise),
            Kind::Digits => distorted(digits, &mut noise),
            Kind::Pictures => pictures(&mut noise),
        };
        let like = set.train.values.clone();
        set.train.normalise(&like);
        set.test.normalise(&like);
        for class in &mut set.train.classes {
            if noise.unit() < wrong_share {
                *class = ((usize::from(*class) + 1 + noise.below(CLASSES - 1)) % CLASSES) as u8;
            }
        }
        set
    }
}

/// 10 classes of 6 modes each, of which the first is about nine times as frequent as the last.
fn mixture(noise: &mut Noise) -> DataSet {
    const WIDTH: usize = 32;
    const MODES: usize = 6;
    let centres: Vec<f32> = (0..CLASSES * MODES * WIDTH).map(|_| noise.normal() * 0.85).collect();
    let frequency: Vec<f32> = (1..=MODES).map(|mode| (mode as f32).powf(-1.2)).collect();
    let mut make = |count: usize| {
        let mut samples = Samples::new(WIDTH);
        for _ in 0..count {
            let class = noise.below(CLASSES);
            let mut left = noise.unit() * frequency.iter().sum::<f32>();
            let mode = frequency.iter().position(|share| {
                left -= share;
                left < 0.0
            });
            let centre = &centres[(class * MODES + mode.unwrap_or(MODES - 1)) * WIDTH..][..WIDTH];
            samples.add(centre.iter().map(|value| value + noise.normal()).collect::<Vec<f32>>(), class);
        }
        samples
    };
    DataSet { train: make(12_000), test: make(6_000) }
}

/// 10 x 10 pictures: one of three smooth templates a class, shifted by up to two pixels, among clutter.
fn pictures(noise: &mut Noise) -> DataSet {
    const SIDE: usize = 10;
    const TEMPLATES: usize = 3;
    const EDGE: usize = SIDE + 4;
    let templates: Vec<Vec<f32>> = (0..CLASSES * TEMPLATES)
        .map(|_| {
            let rough: Vec<f32> = (0..EDGE * EDGE).map(|_| noise.normal()).collect();
            let at = |x: usize, y: usize| rough[y.min(EDGE - 1) * EDGE + x.min(EDGE - 1)];
            let smooth = |place: usize| {
                let (x, y) = (place % EDGE, place / EDGE);
                at(x, y) + at(x + 1, y) + at(x, y + 1) + at(x + 1, y + 1)
            };
            (0..EDGE * EDGE).map(|place| smooth(place) / 2.0).collect()
        })
        .collect();
    let mut make = |count: usize| {
        let mut samples = Samples::new(SIDE * SIDE);
        for _ in 0..count {
            let class = noise.below(CLASSES);
            let template = &templates[class * TEMPLATES + noise.below(TEMPLATES)];
            let (left, top) = (noise.below(5), noise.below(5));
            let strength = 0.5 + noise.unit();
            let values: Vec<f32> = (0..SIDE * SIDE)
                .map(|place| {
                    let (x, y) = (place % SIDE + left, place / SIDE + top);
                    strength * template[y * EDGE + x] + noise.normal()
                })
                .collect();
            samples.add(values, class);
        }
        samples
    };
    DataSet { train: make(20_000), test: make(6_000) }
}

const SIDE: usize = 8;
/// Digits that training sees distorted; the others are for the test.
const TRAINED: usize = 1_200;

/// The 8 x 8 handwritten digits of the UCI repository (Alpaydin and Kaynak, CC BY 4.0), as lines of `class,64 numbers`.
#[derive(Debug)]
pub(crate) struct Digits(Samples);

impl Digits {
    pub(crate) fn read(file: &Path) -> anyhow::Result<Digits> {
        let text = std::fs::read_to_string(file)
            .with_context(|| format!("{} cannot be read; bench/importance.py writes it", file.display()))?;
        let mut samples = Samples::new(SIDE * SIDE);
        for line in text.lines() {
            let numbers = line.split(',').map(str::parse).collect::<Result<Vec<f32>, _>>()?;
            ensure!(numbers.len() == SIDE * SIDE + 1, "a line of the digits has {} numbers", numbers.len());
            samples.add(numbers[1..].iter().copied(), numbers[0] as usize);
        }
        ensure!(samples.len() > TRAINED, "there are only {} digits", samples.len());
        Ok(Digits(samples))
    }
}

fn distorted(digits: &Digits, noise: &mut Noise) -> DataSet {
    let mut order: Vec<usize> = (0..digits.0.len()).collect();
    (1..order.len()).rev().for_each(|last| order.swap(last, noise.below(last + 1)));
    let (trained, tested) = order.split_at(TRAINED);
    let mut make = |from: &[usize], count: usize| {
        let mut samples = Samples::new(SIDE * SIDE);
        for number in 0..count {
            let id = from[number % from.len()];
            samples.add(distort(digits.0.sample(id), noise), usize::from(digits.0.classes[id]));
        }
        samples
    };
    DataSet { train: make(trained, 12_000), test: make(tested, 5_970) }
}

/// Turned, scaled, sheared and shifted a little, with noise.
fn distort(digit: &[f32], noise: &mut Noise) -> Vec<f32> {
    let (turn, shear) = (noise.normal() * 0.2, noise.normal() * 0.15);
    let (scale, dx, dy) = (1.0 + noise.normal() * 0.1, noise.normal() * 0.6, noise.normal() * 0.6);
    let middle = (SIDE as f32 - 1.0) / 2.0;
    let at = |x: i32, y: i32| {
        let inside = 0..SIDE as i32;
        if inside.contains(&x) && inside.contains(&y) { digit[y as usize * SIDE + x as usize] } else { 0.0 }
    };
    (0..SIDE * SIDE)
        .map(|place| {
            let (x, y) = ((place % SIDE) as f32 - middle, (place / SIDE) as f32 - middle);
            let from_x = (turn.cos() * x + (turn.sin() + shear) * y) * scale + dx + middle;
            let from_y = (turn.cos() * y - turn.sin() * x) * scale + dy + middle;
            let (left, top) = (from_x.floor(), from_y.floor());
            let (right_share, low_share) = (from_x - left, from_y - top);
            let (left, top) = (left as i32, top as i32);
            let upper = at(left, top) * (1.0 - right_share) + at(left + 1, top) * right_share;
            let lower = at(left, top + 1) * (1.0 - right_share) + at(left + 1, top + 1) * right_share;
            upper * (1.0 - low_share) + lower * low_share + noise.normal()
        })
        .collect()
}
