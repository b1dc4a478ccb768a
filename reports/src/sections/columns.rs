//! The columns of a chart over time: intervals of equal length, with the time of each cause in them.

use super::axis::{Span, round_step, time_step};
use crate::run::Run;
use stallscope_model::{Cause, Causes, Phase};

/// The most columns in a chart.
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
struct Interval {
    span: Span,
    phase: Phase,
    causes: Causes,
}

impl Columns {
    /// `None` where no step is known by its time.
    pub(super) fn of(run: &Run) -> Option<Columns> {
        let period_ns = run.rollups.first()?.period.ns();
        let rollups: Vec<Interval> = run
            .rollups
            .iter()
            .map(|rollup| {
                let end_ns = rollup.start_ns.saturating_add(period_ns);
                // A step that ended within the period may have begun long before, though not before the job.
                let took_ns = rollup.causes.0.iter().fold(0u64, |sum, ns| sum.saturating_add(*ns));
                let began_ns = end_ns.saturating_sub(took_ns).max(run.summary.job.started_wall_ns);
                let start_ns = rollup.start_ns.min(began_ns);
                Interval { span: Span::new(start_ns, end_ns), phase: rollup.phase, causes: rollup.causes }
            })
            .collect();
        let span = all(&rollups)?;
        if span.length_ns() / period_ns < COARSE {
            let mut steps = Vec::new();
            let read = run.each_step(|row| {
                let span = Span::new(row.step.start_ns, row.step.end_ns);
                steps.push(Interval { span, phase: row.step.phase, causes: row.step.causes });
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

    fn filled(span: Span, width_ns: u64, intervals: &[Interval]) -> Columns {
        let count = span.length_ns().div_ceil(width_ns).clamp(1, COLUMNS);
        let mut columns = Columns { span, width_ns, columns: vec![Column::default(); count as usize] };
        for interval in intervals {
            columns.spread(interval);
        }
        columns
    }

    /// Spreads the time of an interval's causes evenly over its columns.
    fn spread(&mut self, interval: &Interval) {
        let nth = |ns: u64| (ns.saturating_sub(self.span.start_ns) / self.width_ns) as usize;
        let last = nth(interval.span.end_ns - 1).min(self.columns.len() - 1);
        for place in nth(interval.span.start_ns)..=last {
            let start_ns = self.start_ns(place);
            let within = interval.span.part(start_ns, start_ns.saturating_add(self.width_ns));
            let Some((_, share)) = within else { continue };
            let column = &mut self.columns[place];
            for (sum, ns) in column.causes_ns.iter_mut().zip(interval.causes.0) {
                *sum += ns as f64 * share;
                column.phases_ns[interval.phase as usize] += ns as f64 * share;
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

/// From the first moment of all intervals to the last.
fn all(intervals: &[Interval]) -> Option<Span> {
    let start_ns = intervals.iter().map(|interval| interval.span.start_ns).min()?;
    let end_ns = intervals.iter().map(|interval| interval.span.end_ns).max()?;
    Some(Span::new(start_ns, end_ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(start_ns: u64, end_ns: u64, phase: Phase, cause: Cause, ns: u64) -> Interval {
        let mut causes = Causes::default();
        causes[cause] = ns;
        Interval { span: Span::new(start_ns, end_ns), phase, causes }
    }

    #[test]
    fn time_is_spread_over_the_columns_it_was_measured_in() {
        let intervals = [
            interval(0, 25, Phase::Startup, Cause::Compute, 25),
            interval(25, 30, Phase::Training, Cause::Fetch, 15),
            interval(50, 60, Phase::Training, Cause::Prep, 10),
        ];
        let columns = Columns::filled(all(&intervals).unwrap(), 10, &intervals);
        let totals: Vec<f64> = columns.columns.iter().map(Column::total_ns).collect();
        assert_eq!(totals, [10.0, 10.0, 20.0, 0.0, 0.0, 10.0]);
        assert_eq!(columns.columns[2].share(Cause::Fetch), 0.75);
        let phases: Vec<_> = columns.columns.iter().map(Column::phase).collect();
        assert_eq!(phases[1..4], [Some(Phase::Startup), Some(Phase::Training), None]);
        assert_eq!(columns.place(5), (5.0 / 6.0, 1.0 - 5.0 / 6.0));
    }

    #[test]
    fn no_interval_is_too_long() {
        let intervals = [interval(0, u64::MAX, Phase::Training, Cause::Fetch, u64::MAX)];
        let columns = Columns::filled(all(&intervals).unwrap(), 10, &intervals);
        assert_eq!(columns.columns.len() as u64, COLUMNS);
    }
}
