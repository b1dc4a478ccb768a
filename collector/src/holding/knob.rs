//! `held.bytes`, the budget of what is held for a job: a knob as those of its loaders, whose page this process makes and answers itself.

use crate::knobs::Knobs;
use anyhow::{Context, Result};
use stallscope_ring::{Answer, JobSide, KnobFact, RequestNumber};

/// Not `cache.bytes`: a loader of the same job may have a cache of its own.
pub(crate) const NAME: &str = "held.bytes";
const SLOT: u32 = 0;
/// No shim has this number: theirs are counted up from the first.
const CONNECTION: u64 = u64::MAX;
const RANK: u32 = 0;

#[derive(Debug)]
pub(super) struct BudgetKnob {
    page: JobSide,
    most_bytes: u64,
    answered: RequestNumber,
}

impl BudgetKnob {
    /// A knob that takes up to what was asked for.
    pub(super) fn new(most_bytes: u64, knobs: &mut Knobs) -> Result<BudgetKnob> {
        let (page, fd) = JobSide::create().context("cannot make a page for held.bytes")?;
        knobs.process(CONNECTION, RANK);
        knobs.arrived(CONNECTION, &fd).context("cannot use the page for held.bytes")?;
        knobs.report(
            CONNECTION,
            KnobFact {
                slot: SLOT,
                generation: 1,
                name: NAME.into(),
                unit: "bytes".into(),
                loader: None,
                value: most_bytes,
                initial: most_bytes,
                min: 0,
                max: most_bytes,
                available: true,
                reason: String::new(),
                answered: 0,
            },
        );
        Ok(BudgetKnob { page, most_bytes, answered: RequestNumber::default() })
    }

    /// What somebody asks for since the last look, which is in force from now on.
    pub(super) fn turned(&mut self) -> Option<u64> {
        let (number, value) = self.page.request(SLOT);
        if number == self.answered {
            return None;
        }
        self.answered = number;
        let value = value.min(self.most_bytes);
        self.page.answer(SLOT, number, Answer::Applied, value);
        Some(value)
    }

    /// Nothing is held any more.
    pub(super) fn withdraw(knobs: &mut Knobs) {
        knobs.remove(CONNECTION, SLOT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stallscope_model::{KnobRequest, KnobState};

    #[test]
    fn what_is_asked_for_is_in_force_at_the_next_look_and_never_more_than_there_was() {
        let mut knobs = Knobs::default();
        let mut knob = BudgetKnob::new(1 << 30, &mut knobs).unwrap();
        assert_eq!(knob.turned(), None);
        let request = |value| KnobRequest { rank: None, loader: None, knob: NAME.into(), value };
        let ask = |knobs: &mut Knobs, value| {
            let resolved = knobs.resolve(&[request(value)], &|_, _| false)?;
            knobs.ask(&resolved, "ada");
            Ok::<(), String>(())
        };
        ask(&mut knobs, 1 << 20).unwrap();
        assert_eq!((knob.turned(), knob.turned()), (Some(1 << 20), None));
        let shown = &knobs.state()[0];
        assert_eq!((shown.value, shown.state, &*shown.set_by), (1 << 20, KnobState::Applied, "ada"));
        assert!(ask(&mut knobs, (1 << 30) + 1).unwrap_err().contains("out of bounds"));
        ask(&mut knobs, 1 << 30).unwrap();
        assert_eq!(knob.turned(), Some(1 << 30));
        BudgetKnob::withdraw(&mut knobs);
        assert!(ask(&mut knobs, 1 << 20).is_err());
    }
}
