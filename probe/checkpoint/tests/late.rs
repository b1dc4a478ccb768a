//! A copier that comes late: what forward changes is copied at once, what only the optimiser changes until the fence, and
//! the checkpoint is the one that a synchronous copy would have given.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod support;

use stallscope_checkpoint::{Dtype, Options, Plan, Saver, Source, TensorSpec};
use std::time::Duration;
use support::{newest, one};

const NAMES: [&str; 4] = ["conv.weight", "norm.weight", "norm.running_mean", "norm.running_var"];
/// Of them: buffers, which forward changes.
const BUFFERS: [usize; 2] = [2, 3];

/// A network with a batch norm: its tensors, by name.
struct Network {
    tensors: [Vec<f32>; 4],
}

impl Network {
    fn new() -> Network {
        Network { tensors: [1 << 20, 5000, 5000, 5000].map(|elements| vec![1.0; elements]) }
    }

    /// A forward pass: the running statistics change, and nothing else.
    fn forward(&mut self, batch: f32) {
        for buffer in BUFFERS {
            self.tensors[buffer].iter_mut().for_each(|value| *value = 0.9 * *value + 0.1 * batch);
        }
    }

    fn optimizer_step(&mut self) {
        for (place, tensor) in self.tensors.iter_mut().enumerate() {
            if !BUFFERS.contains(&place) {
                tensor.iter_mut().for_each(|value| *value -= 0.25 * *value);
            }
        }
    }

    fn plan(&self) -> Plan {
        let spec = |(name, tensor): (&&str, &Vec<f32>)| TensorSpec {
            name: (*name).into(),
            dtype: Dtype::F32,
            shape: vec![tensor.len() as u64],
        };
        Plan::of(NAMES.iter().zip(&self.tensors).map(spec).collect(), &[]).unwrap()
    }

    fn sources(&self) -> Vec<Source> {
        let source = |(place, tensor): (usize, &Vec<f32>)| match BUFFERS.contains(&place) {
            true => Source::Now(tensor.as_ptr().cast()),
            false => Source::Late(tensor.as_ptr().cast()),
        };
        self.tensors.iter().enumerate().map(source).collect()
    }
}

#[test]
fn a_copier_that_is_late_saves_what_a_synchronous_copy_would() {
    // One thread: nothing is copied late but by the thread that waits at the fence.
    for threads in [1, 4] {
        let dir = tempfile::tempdir().unwrap();
        let saver = Saver::open(dir.path(), Options { threads, ..one(3) }).unwrap();
        let mut network = Network::new();
        let plan = network.plan();
        for step in 1..=5 {
            network.forward(step as f32);
            network.optimizer_step();
            let synchronous = network.tensors.clone();
            // SAFETY: the tensors live until the fence; until then nothing below writes to those that are copied late.
            let snapshot = unsafe { saver.snapshot(&plan, &network.sources()).unwrap() };
            network.forward(1e6);
            if threads == 1 {
                assert!(!snapshot.copied(), "the copier was to be late");
            }
            snapshot.fence();
            assert!(snapshot.copied());
            network.optimizer_step();
            saver.persist(snapshot, saver.ticket(step), Vec::new()).unwrap();
            assert!(saver.wait(Duration::from_secs(60)));
            let checkpoint = newest(dir.path()).checkpoint.unwrap();
            assert_eq!(checkpoint.manifest.step, step);
            for (name, before) in NAMES.iter().zip(&synchronous) {
                let mut read = vec![0_f32; before.len()];
                let target = [(*name, read.as_mut_ptr().cast::<u8>(), 4 * read.len())];
                // SAFETY: the vector is that long and nobody else's.
                unsafe { checkpoint.read_into(0, &target).unwrap() };
                assert!(read == *before, "{name} of step {step} is not what it was");
            }
        }
    }
}
