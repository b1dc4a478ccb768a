//! What proven changes have gained a job: by its audit, and by how long it has trained with them.

use stallscope_model::{Act, AuditEvent};

/// A share that no change brings: what is more is a figure gone wrong.
const MOST: f64 = 99.0;
/// The knob of a cache's memory.
const CACHE: &str = "cache.bytes";
/// The controller's name in the audit.
const CONTROLLER: &str = "controller";

/// Of one job.
#[derive(Debug, Default)]
pub(crate) struct Gained {
    /// Changes that are proven and in force, the newest last.
    kept: Vec<Kept>,
    trained_ns: u64,
    saved_s: f64,
}

#[derive(Debug)]
struct Kept {
    rank: Option<u32>,
    loader: Option<u16>,
    knob: String,
    from: u64,
    to: u64,
    /// Share by which samples a second rose.
    gain: f64,
}

impl Kept {
    fn is_of(&self, event: &AuditEvent) -> bool {
        (self.rank, self.loader, &self.knob) == (event.rank, event.loader, &event.knob)
            && (Some(self.from), Some(self.to)) == (event.from, event.to)
    }
}

impl Gained {
    /// The next line of the job's audit.
    pub(crate) fn line(&mut self, event: &AuditEvent) {
        let theirs = event.by != CONTROLLER;
        match event.act {
            Act::Keep => {
                let gain = event.measured.map(|measured| measured.value).filter(|gain| gain.is_finite());
                if let (Some(from), Some(to), Some(gain)) = (event.from, event.to, gain) {
                    let (rank, loader, knob) = (event.rank, event.loader, event.knob.clone());
                    self.kept.push(Kept { rank, loader, knob, from, to, gain: gain.clamp(-0.5, MOST) });
                }
            }
            Act::Undo => {
                if let Some(at) = self.kept.iter().rposition(|kept| kept.is_of(event)) {
                    self.kept.remove(at);
                } else if let (CACHE, Some(from), Some(to)) = (event.knob.as_str(), event.from, event.to)
                    && to < from
                {
                    self.keep_part(to);
                }
            }
            // Somebody else's value is in its place, and what it gains is not known.
            Act::Request if theirs => self.kept.retain(|kept| kept.knob != event.knob),
            Act::Hold if !event.knob.is_empty() => self.kept.retain(|kept| kept.knob != event.knob),
            _ => {}
        }
    }

    /// Memory of a cache was taken back, but for `to` bytes: so much of what it gained is thought to stay.
    fn keep_part(&mut self, to: u64) {
        for kept in self.kept.iter_mut().filter(|kept| kept.knob == CACHE && kept.to > to.max(kept.from)) {
            kept.gain *= to.saturating_sub(kept.from) as f64 / (kept.to - kept.from) as f64;
            kept.to = to.max(kept.from);
        }
    }

    /// The job has trained for so long by now, since it began.
    pub(crate) fn trained(&mut self, trained_ns: u64) {
        let before_ns = std::mem::replace(&mut self.trained_ns, trained_ns);
        // What was done in this time would have taken so much longer.
        self.saved_s += trained_ns.saturating_sub(before_ns) as f64 / 1e9 * self.faster().max(0.0);
    }

    /// Seconds that proven changes have saved.
    pub(crate) fn saved_s(&self) -> f64 {
        self.saved_s
    }

    /// Share by which samples a second are more than without the changes that are in force.
    pub(crate) fn faster(&self) -> f64 {
        (self.kept.iter().map(|kept| 1.0 + kept.gain).product::<f64>() - 1.0).clamp(-0.99, MOST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stallscope_model::Estimate;

    const SECOND_NS: u64 = 1_000_000_000;

    fn line(act: Act, from: u64, to: u64, gain: f64) -> AuditEvent {
        AuditEvent {
            act,
            by: CONTROLLER.into(),
            rank: Some(0),
            knob: "workers".into(),
            from: Some(from),
            to: Some(to),
            measured: Some(Estimate { value: gain, low: gain, high: gain }),
            ..AuditEvent::default()
        }
    }

    fn near(value: f64, expected: f64) {
        assert!((value - expected).abs() < 1e-9, "{value}, not {expected}");
    }

    #[test]
    fn only_proven_changes_gain_and_only_while_they_are_in_force() {
        let mut gained = Gained::default();
        gained.line(&line(Act::Request, 2, 4, 9.0));
        gained.trained(10 * SECOND_NS);
        near(gained.saved_s(), 0.0);
        gained.line(&line(Act::Keep, 2, 4, 0.5));
        gained.line(&line(Act::Keep, 4, 6, 0.1));
        near(gained.faster(), 0.65);
        gained.trained(20 * SECOND_NS);
        near(gained.saved_s(), 6.5);
        // Another trial of the same knob ends: what was kept before stays.
        gained.line(&line(Act::Undo, 6, 8, -0.1));
        near(gained.faster(), 0.65);
        gained.line(&line(Act::Undo, 4, 6, 0.0));
        near(gained.faster(), 0.5);
        gained.line(&AuditEvent { by: "mira".into(), ..line(Act::Request, 4, 3, 0.0) });
        gained.trained(90 * SECOND_NS);
        near(gained.saved_s(), 6.5);
    }

    #[test]
    fn of_a_cache_that_is_taken_back_in_part_a_part_of_the_gain_stays() {
        let of_cache = |event: AuditEvent| AuditEvent { knob: CACHE.into(), ..event };
        let mut gained = Gained::default();
        gained.line(&of_cache(line(Act::Keep, 100, 300, 0.4)));
        gained.line(&of_cache(line(Act::Keep, 300, 500, 0.1)));
        gained.line(&of_cache(line(Act::Undo, 500, 200, 0.0)));
        near(gained.faster(), 0.2);
        gained.line(&of_cache(line(Act::Undo, 200, 100, 0.0)));
        near(gained.faster(), 0.0);
    }

    #[test]
    fn figures_gone_wrong_gain_nothing_beyond_reason() {
        let mut gained = Gained::default();
        gained.line(&line(Act::Keep, 1, 2, f64::NAN));
        near(gained.faster(), 0.0);
        gained.line(&line(Act::Keep, 1, 2, f64::MAX));
        gained.line(&line(Act::Keep, 2, 3, f64::MAX));
        gained.trained(SECOND_NS);
        // A clock that ran backwards.
        gained.trained(0);
        near(gained.saved_s(), MOST);
        gained.line(&line(Act::Keep, 2, 3, -7.0));
        assert!(gained.faster() > -1.0);
    }
}
