//! What the workers did over time, a lane each: how full it is says how busy that worker was.

use super::axis::{self, Span};
use super::clock;
use super::section::{Chart, Legend};
use super::svg::{Anchor, COVERED, Svg};
use super::workers;
use crate::run::Run;
use stallscope_model::{WorkerLoad, WorkerPeriod};
use stallscope_units as units;
use std::collections::{BTreeMap, BTreeSet};

/// With fewer periods than this there is nothing to see of the time.
const FEWEST: usize = 4;
/// The most columns in a lane.
const COLUMNS: u64 = 160;

const LANE: f64 = 16.0;
const PITCH: f64 = 20.0;

/// Rank, loader and number of a worker.
type WorkerId = (u32, u16, u32);

/// `None` where the run was too short, or its workers' periods are not known.
pub(super) fn chart(run: &Run) -> Option<Chart> {
    let starts: BTreeSet<u64> = run.workers.iter().map(|period| period.start_ns).collect();
    let (first_ns, last_ns) = (*starts.first()?, *starts.last()?);
    if starts.len() < FEWEST {
        return None;
    }
    let span = Span::new(first_ns, last_ns.saturating_add(WorkerPeriod::LENGTH_NS));
    let width_ns = axis::time_step(span.length_ns().div_ceil(COLUMNS), WorkerPeriod::LENGTH_NS);
    let mut lanes: BTreeMap<WorkerId, BTreeMap<u64, WorkerLoad>> = BTreeMap::new();
    for period in &run.workers {
        let lane = lanes.entry((period.rank, period.loader, period.worker)).or_default();
        *lane.entry((period.start_ns - first_ns) / width_ns).or_default() += &period.load;
    }
    let all = lanes.len();
    let lanes = busiest(lanes);
    let bottom = lanes.len() as f64 * PITCH;
    let desc = format!("A lane each for {}; the fuller, the busier.", units::counted(all as u64, "worker"));
    let mut svg = Svg::new("worker-lanes", bottom + 22.0, "Load of the workers over time", &desc);
    axis::wall_clock(&mut svg, span, 0.0, bottom);
    let names = Names::of(&lanes);
    for (place, (id, columns)) in lanes.iter().enumerate() {
        let y = place as f64 * PITCH + 2.0;
        let name = names.name(*id);
        svg.text(0.0, -8.0, y + LANE - 4.0, Anchor::End, "name", &name);
        svg.plain_rect(0.0, y, 1.0, LANE, "track", "");
        for (column, load) in columns {
            let start_ns = first_ns.saturating_add(column * width_ns);
            if let Some((x, width)) = span.part(start_ns, start_ns.saturating_add(width_ns)) {
                let covered = (width + COVERED).min(1.0 - x);
                draw(&mut svg, load, (x, covered), y, &format!("{name}, {}", clock::time(start_ns)));
            }
        }
    }
    Some(Chart {
        svg: svg.finish(),
        legends: Legend::only(workers::parts(&WorkerLoad::default()).map(|(fill, _)| fill).into()),
        margin: "names",
        caption: format!("{} over time, in intervals of {}.", names.caption(), units::duration(width_ns)),
    })
}

/// One column of a lane, filled from below.
fn draw(svg: &mut Svg, load: &WorkerLoad, (x, width): (f64, f64), y: f64, whose: &str) {
    let (mut share, mut floor) = (0.0, y + LANE);
    for (fill, ns) in workers::parts(load) {
        share += units::share(ns, load.wall_ns);
        let top = (y + LANE * (1.0 - share.min(1.0))).round();
        if top < floor {
            let hint = format!("{whose}: {} {}", fill.name(), units::percent(units::share(ns, load.wall_ns)));
            svg.rect(x, top, width, floor - top, fill, &hint);
            floor = top;
        }
    }
}

/// As many lanes as a page is good for.
fn busiest(
    lanes: BTreeMap<WorkerId, BTreeMap<u64, WorkerLoad>>,
) -> Vec<(WorkerId, BTreeMap<u64, WorkerLoad>)> {
    let mut lanes: Vec<_> = lanes.into_iter().collect();
    if lanes.len() > workers::SHOWN {
        lanes.sort_by_cached_key(|(_, columns)| {
            let mut sum = WorkerLoad::default();
            columns.values().for_each(|load| sum += load);
            // Idle time in parts of ten thousand: shares have no order of their own.
            (units::share(sum.idle_ns, sum.wall_ns) * 1e4) as u64
        });
        lanes.truncate(workers::SHOWN);
        lanes.sort_by_key(|(id, _)| *id);
    }
    lanes
}

/// The parts of a worker's name that differ between the lanes; the others are left out.
struct Names {
    ranks: bool,
    loaders: bool,
}

impl Names {
    fn of(lanes: &[(WorkerId, BTreeMap<u64, WorkerLoad>)]) -> Names {
        let differ =
            |one: &dyn Fn(&WorkerId) -> u32| lanes.windows(2).any(|two| one(&two[0].0) != one(&two[1].0));
        Names { ranks: differ(&|id| id.0), loaders: differ(&|id| id.1.into()) }
    }

    fn name(&self, (rank, loader, worker): WorkerId) -> String {
        let mut parts = Vec::new();
        if self.ranks {
            parts.push(rank.to_string());
        }
        // Without a shim neither loader nor number is known, and a worker goes by its pid.
        if self.loaders && loader != u16::MAX {
            parts.push(loader.to_string());
        }
        parts.push(worker.to_string());
        parts.join(" · ")
    }

    fn caption(&self) -> &'static str {
        match (self.ranks, self.loaders) {
            (false, false) => "Workers, by their numbers,",
            (true, false) => "Workers (rank · number)",
            (false, true) => "Workers (loader · number)",
            (true, true) => "Workers (rank · loader · number)",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_named_by_no_more_than_it_takes() {
        let lanes = |all: &[WorkerId]| all.iter().map(|id| (*id, BTreeMap::new())).collect::<Vec<_>>();
        assert_eq!(Names::of(&lanes(&[(0, 0, 0), (0, 0, 1)])).name((0, 0, 1)), "1");
        assert_eq!(Names::of(&lanes(&[(0, 0, 0), (7, 0, 0)])).name((7, 0, 0)), "7 · 0");
        let names = Names::of(&lanes(&[(0, 0, 0), (0, 1, 0), (7, u16::MAX, 4821)]));
        assert_eq!([names.name((0, 1, 0)), names.name((7, u16::MAX, 4821))], ["0 · 1 · 0", "7 · 4821"]);
    }
}
