//! A run cut into stretches of equal length, with the time of each cause in them.

use super::axis::{Span, round_step, time_step};
use crate::run::Run;
use stallscope_model::{Cause, Causes, Phase};

/// Columns a chart has room for.
const COLUMNS: u64 = 160;
/// Where roll-ups give fewer columns than this, single steps are used.
const COARSE: u64 = 40;

#[derive(Debug)]
pub(super) struct Columns {
    /// On the wall clock.
    pub(super) span: Span,
    pub(super) width_ns: u64,
    pub(super) columns: Vec<Column>,
}

/// Time by cause and by phase within one column; parts of steps, so not whole nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Column {
    causes_ns: [f64; Cause::COUNT],
    phases_ns: [f64; Phase::ALL.len()],
}

/// What was measured from one moment to another.
#[derive(Debug)]
struct Stretch {
    span: Span,
    phase: Phase,
    causes: Causes,
}

impl Columns {
    /// `None` where no step is known by its time.
    pub(super) fn of(run: &Run) -> Option<Columns> {
        let period_ns = run.rollups.first()?.period.ns();
        let rollups: Vec<Stretch> = run
            .rollups
            .iter()
            .map(|rollup| {
                let end_ns = rollup.start_ns.saturating_add(period_ns);
                // A step that ended within the period may have begun long before, though not before the job.
                let took_ns = rollup.causes.0.iter().fold(0u64, |sum, ns| sum.saturating_add(*ns));
                let began_ns = end_ns.saturating_sub(took_ns).max(run.summary.job.started_wall_ns);
                let start_ns = rollup.start_ns.min(began_ns);
                Stretch { span: Span::new(start_ns, end_ns), phase: rollup.phase, causes: rollup.causes }
            })
            .collect();
        let span = all(&rollups)?;
        if span.length_ns() / period_ns < COARSE {
            let mut steps = Vec::new();
            let read = run.each_step(|row| {
                let span = Span::new(row.step.start_ns, row.step.end_ns);
                steps.push(Stretch { span, phase: row.step.phase, causes: row.step.causes });
                Ok(())
            });
            // Where steps are damaged, roll-ups may not be.
            if let (Ok(()), Some(span)) = (read, all(&steps)) {
                let width_ns = round_step(span.length_ns().div_ceil(COLUMNS));
                return Some(Columns::filled(span, width_ns, &steps));
            }
        }
        let width_ns = time_step(span.length_ns().div_ceil(COLUMNS), period_ns);
        Some(Columns::filled(span, width_ns, &rollups))
    }

    fn filled(span: Span, width_ns: u64, stretches: &[Stretch]) -> Columns {
        let count = span.length_ns().div_ceil(width_ns).clamp(1, COLUMNS);
        let mut columns = Columns { span, width_ns, columns: vec![Column::default(); count as usize] };
        for stretch in stretches {
            columns.spread(stretch);
        }
        columns
    }

    /// Spreads the time of a stretch's causes evenly over it.
    fn spread(&mut self, stretch: &Stretch) {
        let nth = |ns: u64| (ns.saturating_sub(self.span.start_ns) / self.width_ns) as usize;
        let last = nth(stretch.span.end_ns - 1).min(self.columns.len() - 1);
        for place in nth(stretch.span.start_ns)..=last {
            let start_ns = self.start_ns(place);
            let within = stretch.span.part(start_ns, start_ns.saturating_add(self.width_ns));
            let Some((_, share)) = within else { continue };
            let column = &mut self.columns[place];
            for (sum, ns) in column.causes_ns.iter_mut().zip(stretch.causes.0) {
                *sum += ns as f64 * share;
                column.phases_ns[stretch.phase as usize] += ns as f64 * share;
            }
        }
    }

    pub(super) fn start_ns(&self, place: usize) -> u64 {
        self.span.start_ns.saturating_add((place as u64).saturating_mul(self.width_ns))
    }

    /// Where a column begins and how wide it is, as shares of the chart's width.
    pub(super) fn place(&self, place: usize) -> (f64, f64) {
        let start_ns = self.start_ns(place);
        self.span.part(start_ns, start_ns.saturating_add(self.width_ns)).unwrap_or_default()
    }
}

impl Column {
    pub(super) fn total_ns(&self) -> f64 {
        self.causes_ns.iter().sum()
    }

    pub(super) fn share(&self, cause: Cause) -> f64 {
        let total_ns = self.total_ns();
        if total_ns > 0.0 { self.causes_ns[cause as usize] / total_ns } else { 0.0 }
    }

    /// The phase with most of the time; none where there was no time at all.
    pub(super) fn phase(&self) -> Option<Phase> {
        let time_ns = |phase: &Phase| self.phases_ns[*phase as usize];
        let most = Phase::ALL.into_iter().max_by(|a, b| time_ns(a).total_cmp(&time_ns(b)))?;
        (time_ns(&most) > 0.0).then_some(most)
    }
}

/// From the first moment of all stretches to the last.
fn all(stretches: &[Stretch]) -> Option<Span> {
    let start_ns = stretches.iter().map(|stretch| stretch.span.start_ns).min()?;
    let end_ns = stretches.iter().map(|stretch| stretch.span.end_ns).max()?;
    Some(Span::new(start_ns, end_ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stretch(start_ns: u64, end_ns: u64, phase: Phase, cause: Cause, ns: u64) -> Stretch {
        let mut causes = Causes::default();
        causes[cause] = ns;
        Stretch { span: Span::new(start_ns, end_ns), phase, causes }
    }

    #[test]
    fn time_is_spread_over_the_columns_it_was_measured_in() {
        let stretches = [
            stretch(0, 25, Phase::Startup, Cause::Compute, 25),
            stretch(25, 30, Phase::Training, Cause::Fetch, 15),
            stretch(50, 60, Phase::Training, Cause::Prep, 10),
        ];
        let columns = Columns::filled(all(&stretches).unwrap(), 10, &stretches);
        let totals: Vec<f64> = columns.columns.iter().map(Column::total_ns).collect();
        assert_eq!(totals, [10.0, 10.0, 20.0, 0.0, 0.0, 10.0]);
        assert_eq!(columns.columns[2].share(Cause::Fetch), 0.75);
        let phases: Vec<_> = columns.columns.iter().map(Column::phase).collect();
        assert_eq!(phases[1..4], [Some(Phase::Startup), Some(Phase::Training), None]);
        assert_eq!(columns.place(5), (5.0 / 6.0, 1.0 - 5.0 / 6.0));
    }

    #[test]
    fn no_stretch_is_too_long() {
        let stretches = [stretch(0, u64::MAX, Phase::Training, Cause::Fetch, u64::MAX)];
        let columns = Columns::filled(all(&stretches).unwrap(), 10, &stretches);
        assert_eq!(columns.columns.len() as u64, COLUMNS);
    }
}
