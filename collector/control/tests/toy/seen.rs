//! Some jobs, and what is seen of them.

use super::Toy;
use stallscope_control::{Profile, Profiles};
use stallscope_model::{Knob, LoaderFacts};

pub(crate) fn job(cpu_ms: f64, compute_ms: f64) -> Toy {
    Toy {
        samples: 16,
        read_ms: 0.0,
        limited: false,
        cpu_ms,
        late_ms: 0.0,
        compute_ms,
        trainer_threads: 1,
        cores: 8,
    }
}

/// Reads take 64 ms a batch, however many are under way.
pub(crate) fn far(cpu_ms: f64, compute_ms: f64) -> Toy {
    Toy { read_ms: 64.0, ..job(cpu_ms, compute_ms) }
}

/// Storage takes 50 ms for a batch, and does one thing at a time.
pub(crate) fn narrow(cpu_ms: f64, compute_ms: f64) -> Toy {
    Toy { read_ms: 50.0, limited: true, ..job(cpu_ms, compute_ms) }
}

impl Toy {
    /// What is seen of it with these many workers, one after the other; the last setting is the one of now.
    pub(crate) fn seen(self, settings: &[u32]) -> Profile {
        self.profiles(settings).training()[0].clone()
    }

    pub(crate) fn profiles(self, settings: &[u32]) -> Profiles {
        let mut profiles = Profiles::new(self.cores as f64);
        profiles
            .loader(0, &LoaderFacts { workers: settings[0], prefetch_factor: Some(2), ..Default::default() });
        let mut from_ns = 0;
        for workers in settings {
            for (name, value) in [("workers", *workers), ("prefetch", 2 * workers)] {
                let loader = Some(0);
                profiles.knob(&Knob { name: name.into(), value: value.into(), loader, ..Knob::default() });
            }
            let seen = self.run(*workers as usize, 150, from_ns, u64::from(*workers) + 5);
            seen.services.iter().for_each(|service| profiles.service(service));
            seen.steps.iter().for_each(|step| profiles.step(step));
            from_ns = seen.steps.last().unwrap().end_ns;
        }
        profiles
    }
}

pub(crate) fn knobs(profile: &Profile) -> Vec<Knob> {
    let knob = |name: &str, value: u32| Knob {
        name: name.into(),
        loader: Some(0),
        value: value.into(),
        min: 1,
        max: 64,
        ..Knob::default()
    };
    vec![knob("workers", profile.workers), knob("prefetch", profile.prefetch)]
}
