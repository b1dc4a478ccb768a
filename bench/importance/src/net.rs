//! A network with one hidden layer of 64, trained by stochastic gradient descent with momentum on weighted cross-entropy.

use crate::data::{CLASSES, Samples};
use crate::noise::Noise;

pub(crate) const BATCH: usize = 64;
const HIDDEN: usize = 64;
const MOMENTUM: f32 = 0.9;
const WEIGHT_DECAY: f32 = 1e-4;
/// Standard deviation of what is added to each use of a sample: its augmentation.
const AUGMENTATION: f32 = 0.2;

/// What a batch was like, sample by sample.
#[derive(Debug, Default)]
pub(crate) struct Feedback {
    pub(crate) losses: Vec<f32>,
    /// Of the loss by the outputs: `|softmax - one-hot|`, an upper bound of a sample's gradient up to a factor.
    pub(crate) gradient_norms: Vec<f32>,
}

#[derive(Debug)]
struct Layer {
    /// Row by row, one a unit.
    weights: Vec<f32>,
    biases: Vec<f32>,
    moving_weights: Vec<f32>,
    moving_biases: Vec<f32>,
}

impl Layer {
    fn new(inputs: usize, units: usize, noise: &mut Noise) -> Layer {
        let scale = (2.0 / inputs as f32).sqrt();
        Layer {
            weights: (0..inputs * units).map(|_| noise.normal() * scale).collect(),
            biases: vec![0.0; units],
            moving_weights: vec![0.0; inputs * units],
            moving_biases: vec![0.0; units],
        }
    }

    fn apply(&self, inputs: &[f32], outputs: &mut [f32]) {
        for ((output, row), bias) in
            outputs.iter_mut().zip(self.weights.chunks_exact(inputs.len())).zip(&self.biases)
        {
            *output = bias + dot(row, inputs);
        }
    }

    fn step(&mut self, weights: &[f32], biases: &[f32], rate: f32) {
        let one = |value: &mut f32, moving: &mut f32, gradient: f32, decay: f32| {
            *moving = MOMENTUM * *moving + gradient + decay * *value;
            *value -= rate * *moving;
        };
        for ((value, moving), gradient) in self.weights.iter_mut().zip(&mut self.moving_weights).zip(weights)
        {
            one(value, moving, *gradient, WEIGHT_DECAY);
        }
        for ((value, moving), gradient) in self.biases.iter_mut().zip(&mut self.moving_biases).zip(biases) {
            one(value, moving, *gradient, 0.0);
        }
    }
}

/// Eight sums side by side, which the compiler makes one instruction of.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; 8];
    let (a, b) = (a.chunks_exact(8), b.chunks_exact(8));
    let rest: f32 = a.remainder().iter().zip(b.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in a.zip(b) {
        (0..8).for_each(|lane| sums[lane] += a[lane] * b[lane]);
    }
    sums.iter().sum::<f32>() + rest
}

/// `to += scale * from`.
fn add(to: &mut [f32], from: &[f32], scale: f32) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to += scale * from);
}

#[derive(Debug)]
pub(crate) struct Net {
    hidden: Layer,
    output: Layer,
    noise: Noise,
    input: Vec<f32>,
    hidden_gradient: (Vec<f32>, Vec<f32>),
    output_gradient: (Vec<f32>, Vec<f32>),
}

impl Net {
    pub(crate) fn new(width: usize, seed: u64) -> Net {
        let mut noise = Noise::new(seed, 77);
        Net {
            hidden: Layer::new(width, HIDDEN, &mut noise),
            output: Layer::new(HIDDEN, CLASSES, &mut noise),
            noise,
            input: vec![0.0; width],
            hidden_gradient: (vec![0.0; width * HIDDEN], vec![0.0; HIDDEN]),
            output_gradient: (vec![0.0; HIDDEN * CLASSES], vec![0.0; CLASSES]),
        }
    }

    /// One step on these samples, whose losses are weighted and divided by their number.
    pub(crate) fn train(
        &mut self,
        set: &Samples,
        ids: &[u32],
        weights: &[f32],
        rate: f32,
        feedback: &mut Feedback,
    ) {
        feedback.losses.clear();
        feedback.gradient_norms.clear();
        for gradient in [&mut self.hidden_gradient, &mut self.output_gradient] {
            gradient.0.fill(0.0);
            gradient.1.fill(0.0);
        }
        let (mut hidden, mut output) = ([0.0; HIDDEN], [0.0; CLASSES]);
        for (id, weight) in ids.iter().zip(weights) {
            for (value, clean) in self.input.iter_mut().zip(set.sample(*id as usize)) {
                *value = clean + AUGMENTATION * self.noise.rough();
            }
            self.hidden.apply(&self.input, &mut hidden);
            hidden.iter_mut().for_each(|unit| *unit = unit.max(0.0));
            self.output.apply(&hidden, &mut output);
            let class = usize::from(set.classes[*id as usize]);
            feedback.losses.push(softmax(&mut output, class));
            output[class] -= 1.0;
            feedback.gradient_norms.push(output.iter().map(|value| value * value).sum::<f32>().sqrt());
            output.iter_mut().for_each(|value| *value *= weight / ids.len() as f32);
            let mut back = [0.0; HIDDEN];
            for (unit, gradient) in output.iter().enumerate() {
                add(&mut back, &self.output.weights[unit * HIDDEN..][..HIDDEN], *gradient);
                add(&mut self.output_gradient.0[unit * HIDDEN..][..HIDDEN], &hidden, *gradient);
                self.output_gradient.1[unit] += gradient;
            }
            let width = self.input.len();
            for (unit, gradient) in back.iter().enumerate() {
                if hidden[unit] > 0.0 {
                    add(&mut self.hidden_gradient.0[unit * width..][..width], &self.input, *gradient);
                    self.hidden_gradient.1[unit] += gradient;
                }
            }
        }
        self.hidden.step(&self.hidden_gradient.0, &self.hidden_gradient.1, rate);
        self.output.step(&self.output_gradient.0, &self.output_gradient.1, rate);
    }

    /// The share of samples whose class is found, in percent.
    pub(crate) fn accuracy(&self, set: &Samples) -> f64 {
        let (mut hidden, mut output) = ([0.0; HIDDEN], [0.0; CLASSES]);
        let right = (0..set.len()).filter(|id| {
            self.hidden.apply(set.sample(*id), &mut hidden);
            hidden.iter_mut().for_each(|unit| *unit = unit.max(0.0));
            self.output.apply(&hidden, &mut output);
            let best = (0..CLASSES).max_by(|a, b| output[*a].total_cmp(&output[*b]));
            best == Some(usize::from(set.classes[*id]))
        });
        right.count() as f64 / set.len() as f64 * 100.0
    }
}

/// Makes probabilities of outputs, in place; gives the loss of `class`.
fn softmax(outputs: &mut [f32; CLASSES], class: usize) -> f32 {
    let largest = outputs.iter().copied().fold(f32::MIN, f32::max);
    outputs.iter_mut().for_each(|value| *value = (*value - largest).exp());
    let sum: f32 = outputs.iter().sum();
    outputs.iter_mut().for_each(|value| *value /= sum);
    -outputs[class].max(1e-12).ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_learns_what_can_be_learnt() {
        let mut noise = Noise::new(3, 0);
        let mut set = Samples { width: 9, ..Samples::default() };
        for number in 0..600 {
            let class = number % CLASSES;
            set.values.extend((0..9).map(|place| if place == class { 3.0 } else { 0.3 * noise.normal() }));
            set.classes.push(class as u8);
        }
        let mut net = Net::new(9, 1);
        let before = net.accuracy(&set);
        let mut feedback = Feedback::default();
        for _ in 0..300 {
            let ids: Vec<u32> = (0..BATCH).map(|_| noise.below(600) as u32).collect();
            net.train(&set, &ids, &[1.0; BATCH], 0.05, &mut feedback);
        }
        assert!(before < 40.0 && net.accuracy(&set) > 95.0, "{before} {}", net.accuracy(&set));
    }
}
