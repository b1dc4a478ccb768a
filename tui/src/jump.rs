//! Moves the time shown to a decision, a finding or the worst step.

use crate::app::{App, View};
use crate::rows;

impl App {
    /// Shows the moment at which the chosen line of the audit was written.
    pub(crate) fn open_decision(&mut self) {
        let Some(event) = rows::audit(self).get(rows::audit_place(self)).copied().cloned() else { return };
        self.time.look_at(event.time_ns, self.extent());
        self.view = View::Job;
        let what = stallscope_look::tuning::change(&event, &[]);
        self.message = Some(format!("around {} {what}", event.act.name()));
    }

    /// Shows the moment at which the cause of the chosen finding took most time.
    pub(crate) fn open_diagnosis(&mut self) {
        let place = self.line_at[View::Diagnoses as usize];
        let Some(diagnosis) = rows::diagnoses(self).get(place).copied().cloned() else { return };
        let moment = diagnosis.cause.and_then(|cause| {
            let window = &self.shown()?.window;
            let most = window.bins.iter().enumerate().max_by_key(|(_, bin)| bin.causes[cause])?;
            let (place, bin) = most;
            (bin.causes[cause] > 0).then(|| window.from_ns + window.bin_ns * place as u64 + window.bin_ns / 2)
        });
        match moment {
            Some(at_ns) => {
                self.time.look_at(at_ns, self.extent());
                self.view = View::Job;
                self.message = Some(format!("here {} cost most of the time shown before", diagnosis.name));
            }
            None => {
                self.message = Some(format!("{} has no moment of its own in the time shown", diagnosis.name))
            }
        }
    }

    pub(crate) fn worst(&mut self) {
        if self.recording.is_none() {
            self.choose();
        }
        self.view = View::Step;
        self.filters[View::Step as usize].clear();
        let Some(run) = self.shown() else {
            self.seek_worst = self.recording.is_some();
            return;
        };
        let extent = self.extent();
        let (first, longest) = match &run.steps {
            None => {
                self.seek_worst = true;
                return;
            }
            Some(steps) => (steps.first().map(|step| (step.rank, step.start_ns, step.end_ns)), run.worst),
        };
        match (first, longest) {
            (Some((rank, start_ns, end_ns)), _) => {
                self.step_at = Some((rank, start_ns));
                self.time.look_at(end_ns, extent);
            }
            (None, Some((at_ns, took_ns))) => {
                self.time.look_at(at_ns, extent);
                let took = stallscope_units::duration(took_ns);
                self.message = Some(format!(
                    "the longest step took {took} and ended about here; it was not kept in full"
                ));
            }
            (None, None) => self.message = Some("there is no step yet".into()),
        }
    }
}
