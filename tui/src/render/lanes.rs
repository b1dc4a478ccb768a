//! Workers of one rank as lanes: what each did over the time shown, and does now.

use super::bars::spans;
use super::parts::needs_kernel;
use crate::app::App;
use crate::rows;
use crate::snapshot::RunView;
use crate::text::{ink, left, plain};
use crate::theme::Theme;
use ratatui::style::Style;
use ratatui::text::Line;
use stallscope_model::{Cause, RankSummary, WorkerLoad, WorkerPeriod};
use stallscope_units as units;
use std::collections::BTreeMap;

/// Columns of a lane's name and of what its worker does now.
const NAME: usize = 14;
const NOW: usize = 14;
/// Length of a worker's period.
const PERIOD_NS: u64 = WorkerPeriod::LENGTH_NS;

fn rank<'a>(app: &App, run: &'a RunView) -> Option<&'a RankSummary> {
    let number = rows::rank_at(app);
    let of_number = |rank: &&RankSummary| Some(rank.facts.rank) == number;
    run.summary
        .ranks
        .iter()
        .find(of_number)
        .or_else(|| run.summary.ranks.first().filter(|_| number.is_none()))
}

/// Loads by loader and worker, each with its periods.
fn periods<'a>(app: &App, run: &'a RunView) -> BTreeMap<(u16, u32), Vec<(u64, &'a WorkerLoad)>> {
    let number = rows::rank_at(app);
    let mut lanes: BTreeMap<(u16, u32), Vec<(u64, &WorkerLoad)>> = BTreeMap::new();
    for period in run.workers.iter().filter(|period| Some(period.rank) == number) {
        lanes.entry((period.loader, period.worker)).or_default().push((period.start_ns, &period.load));
    }
    lanes
}

pub(super) fn count(app: &App, run: &RunView) -> usize {
    let lanes = periods(app, run).len();
    if lanes > 0 { lanes } else { rank(app, run).map_or(0, |rank| rank.workers.len()) }
}

/// Lanes, and whether they show the whole run because its periods are not known.
pub(super) fn lines(
    app: &App,
    run: &RunView,
    theme: &Theme,
    width: usize,
    height: usize,
) -> (Vec<Line<'static>>, bool) {
    let columns = width.saturating_sub(NAME + NOW + 1);
    let lanes = periods(app, run);
    if lanes.is_empty() {
        let workers = rank(app, run).map_or(&[][..], |rank| &rank.workers);
        let lines = workers.iter().take(height).map(|load| whole(load, columns, theme)).collect();
        return (lines, true);
    }
    let several = lanes.keys().any(|(loader, _)| *loader > 0);
    let lines = lanes.iter().take(height).map(|((loader, worker), periods)| {
        let pid = periods.last().map_or(0, |(_, load)| load.pid);
        let name = match (*loader, several) {
            // Seen by the kernel alone, which does not number workers.
            (u16::MAX, _) => format!("pid {pid}"),
            (_, true) => format!("{loader}.{worker} {pid}"),
            _ => format!("{worker} pid {pid}"),
        };
        lane(&name, periods, run, columns, theme)
    });
    (lines.collect(), false)
}

fn lane(
    name: &str,
    periods: &[(u64, &WorkerLoad)],
    run: &RunView,
    columns: usize,
    theme: &Theme,
) -> Line<'static> {
    let window = &run.window;
    let length_ns = window.to_ns.saturating_sub(window.from_ns).max(1);
    let cells = (0..columns).map(|column| {
        let middle = (column as u128 * 2 + 1) * u128::from(length_ns) / (columns.max(1) as u128 * 2);
        let at_ns = window.from_ns + middle as u64;
        let period =
            periods.iter().rev().find(|(start_ns, _)| *start_ns <= at_ns && at_ns < start_ns + PERIOD_NS);
        period.map_or((' ', Style::new()), |(_, load)| cell(load, theme))
    });
    let mut line = vec![plain(left(name, NAME, theme))];
    line.extend(spans(cells));
    let now = periods.last().filter(|(start_ns, _)| start_ns + 2 * PERIOD_NS > window.to_ns);
    let text = now.map_or_else(|| "gone".to_owned(), |(_, load)| in_words(load));
    line.push(plain(format!(" {}", left(&text, NOW, theme))));
    Line::from(line)
}

/// What a worker mostly did when it was not idle; `None` when it hardly did anything.
fn most(load: &WorkerLoad) -> Option<(Cause, &'static str, u64)> {
    const HARDLY: f64 = 0.1;
    let doings = [
        (Cause::Fetch, "reading", load.fetch_ns),
        (Cause::Prep, "on CPU", load.cpu_ns),
        (Cause::Starved, "no CPU", load.runnable_ns),
    ];
    let busy_ns = doings.iter().map(|(.., ns)| *ns).fold(0, u64::saturating_add);
    let most = doings.into_iter().max_by_key(|(.., ns)| *ns);
    most.filter(|_| units::share(busy_ns, load.wall_ns) >= HARDLY)
}

fn cell(load: &WorkerLoad, theme: &Theme) -> (char, Style) {
    match most(load) {
        Some((cause, ..)) => (theme.fill(cause), theme.cause(cause)),
        None => (theme.either('·', '.'), theme.dim()),
    }
}

fn in_words(load: &WorkerLoad) -> String {
    match most(load) {
        Some((_, what, ns)) => format!("{what} {}", units::percent(units::share(ns, load.wall_ns))),
        None => format!("idle {}", units::percent(units::share(load.idle_ns, load.wall_ns))),
    }
}

/// A worker's whole time as one bar.
fn whole(load: &WorkerLoad, columns: usize, theme: &Theme) -> Line<'static> {
    let mut causes = stallscope_model::Causes::default();
    causes[Cause::Fetch] = load.fetch_ns;
    causes[Cause::Prep] = load.cpu_ns;
    causes[Cause::Starved] = load.runnable_ns;
    let busy = units::share(causes.total_ns(), load.wall_ns.max(causes.total_ns()));
    let filled = (busy * columns as f64).round() as usize;
    let mut line = vec![plain(left(&format!("pid {}", load.pid), NAME, theme))];
    line.extend(super::bars::bar(&causes, filled.min(columns), theme));
    line.push(ink(theme.either("·", ".").repeat(columns.saturating_sub(filled)), theme.dim()));
    line.push(plain(format!(" {}", left(&in_words(load), NOW, theme))));
    Line::from(line)
}

/// Why there is no lane.
pub(super) fn why_none(app: &App, run: &RunView) -> String {
    let Some(rank) = rank(app, run) else { return "no trainer process was seen so far".to_owned() };
    let loaders = &rank.facts.loaders;
    if !loaders.is_empty() && loaders.iter().all(|loader| loader.workers == 0) {
        return "the trainer makes its batches itself: num_workers is 0".to_owned();
    }
    needs_kernel(run).unwrap_or_else(|| "no worker process was seen so far".to_owned())
}
