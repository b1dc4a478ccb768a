//! Ranks side by side, the one that the others wait for marked.

use super::axis::{self, Span};
use super::fill::Fill;
use super::pointer;
use super::rows::{self, Row};
use super::section::{Block, Chart, Legend, Section};
use super::svg::Svg;
use super::table::{Cell, Column, Table, figures, words};
use crate::run::Run;
use crate::text::training;
use stallscope_model::{Cause, PhaseSummary, RankSummary};
use stallscope_units as units;

/// Ranks shown when there are more than a page is good for.
const SHOWN: usize = 32;
/// A rank that takes up to this many times the mean is not called slow.
const ALIKE: f64 = 1.05;

/// A rank that trained.
struct Trained<'a> {
    /// Its place in the summary.
    place: usize,
    rank: &'a RankSummary,
    total: PhaseSummary,
}

impl Trained<'_> {
    fn mean_ns(&self) -> u64 {
        self.total.wall_ns / self.total.steps.max(1)
    }

    /// Mean time of a step without the wait for other ranks: what the rank itself takes.
    fn own_ns(&self) -> u64 {
        self.total.wall_ns.saturating_sub(self.total.causes[Cause::Peer]) / self.total.steps.max(1)
    }
}

pub(super) fn section(run: &Run) -> Section {
    let mut ranks: Vec<Trained<'_>> = run
        .summary
        .ranks
        .iter()
        .enumerate()
        .filter_map(|(place, rank)| Some(Trained { place, rank, total: training(&rank.phases)? }))
        .collect();
    let all = ranks.len();
    let (mut lead, mut blocks) = (String::new(), Vec::new());
    if let Some(slowest) = ranks.iter().max_by_key(|rank| rank.own_ns()).filter(|_| all > 1) {
        let (number, own_ns, mean_ns) = (slowest.rank.facts.rank, slowest.own_ns(), mean_own_ns(&ranks));
        let (own, mean) = (units::duration(own_ns), units::duration(mean_ns));
        let every = units::count(all as u64);
        let slowest = (own_ns as f64 > mean_ns as f64 * ALIKE).then_some(number);
        lead = match slowest {
            Some(rank) => format!(
                "Rank {rank} is the slowest: a step takes it {own} without the wait for others, and {mean} in the \
                 mean of all {every} ranks."
            ),
            None => {
                format!(
                    "All {every} ranks take about as long for a step: {mean} without the wait for others."
                )
            }
        };
        let summary = together(&ranks);
        if all > SHOWN {
            ranks.sort_by_key(|rank| (std::cmp::Reverse(rank.own_ns()), rank.rank.facts.rank));
            ranks.truncate(SHOWN);
            lead.push_str(&format!(
                " Shown are the {SHOWN} slowest; the last row of the table is all of them."
            ));
        }
        ranks.sort_by_key(|rank| rank.rank.facts.rank);
        blocks.push(Block::Chart(chart(&ranks, slowest)));
        blocks.push(Block::Table(table(&ranks, slowest, summary, all)));
    } else {
        let note = match ranks.first() {
            Some(_) => {
                "There is one rank; its figures are those of the job. Several recordings of one job can be \
                        given together: stallscope report A.stall B.stall"
            }
            None => "Not shown: no rank was seen in training.",
        };
        blocks.push(Block::Note(note.to_owned()));
    }
    Section { id: "ranks", heading: "Ranks", lead, blocks }
}

fn mean_own_ns(ranks: &[Trained<'_>]) -> u64 {
    let sum: u128 = ranks.iter().map(|rank| u128::from(rank.own_ns())).sum();
    (sum / ranks.len().max(1) as u128) as u64
}

/// All ranks added up.
fn together(ranks: &[Trained<'_>]) -> PhaseSummary {
    let phases: Vec<PhaseSummary> = ranks.iter().map(|rank| rank.total.clone()).collect();
    training(&phases).unwrap_or_else(|| ranks[0].total.clone())
}

fn chart(ranks: &[Trained<'_>], slowest: Option<u32>) -> Chart {
    let longest_ns = ranks.iter().map(Trained::mean_ns).max().unwrap_or(0).max(1);
    let rows: Vec<Row> = ranks
        .iter()
        .map(|rank| {
            let steps = rank.total.steps.max(1);
            let part = |(cause, ns): (Cause, u64)| {
                let share = units::share(ns, rank.total.wall_ns);
                let hint = format!(
                    "rank {}, {}: {} a step, {}",
                    rank.rank.facts.rank,
                    cause.name(),
                    units::duration(ns / steps),
                    units::percent_exact(share)
                );
                (Fill::Cause(cause), units::share(ns / steps, longest_ns), hint)
            };
            Row {
                name: format!("rank {}", rank.rank.facts.rank),
                marked: Some(rank.rank.facts.rank) == slowest,
                parts: rank.total.causes.iter().map(part).collect(),
            }
        })
        .collect();
    let height = rows::height(rows.len());
    let desc = format!("Mean time of a training step by cause, a bar each for {} ranks.", rows.len());
    let mut svg = Svg::new("ranks-chart", height + 22.0, "Step time by rank and cause", &desc);
    axis::elapsed(&mut svg, Span::new(0, longest_ns), 0, 0.0, height);
    rows::draw(&mut svg, &rows);
    Chart {
        svg: svg.finish(),
        legends: Legend::only(rows::legend(&rows, Cause::ALL.into_iter().map(Fill::Cause))),
        margin: "names",
        caption: match slowest {
            Some(_) => "Mean time of a training step. ▸ marks the slowest rank.".to_owned(),
            None => "Mean time of a training step.".to_owned(),
        },
    }
}

fn table(ranks: &[Trained<'_>], slowest: Option<u32>, all: PhaseSummary, count: usize) -> Table {
    let shown: Vec<Cause> = Cause::ALL
        .into_iter()
        .filter(|cause| {
            ranks.iter().any(|rank| units::share(rank.total.causes[*cause], rank.total.wall_ns) >= 0.001)
        })
        .collect();
    let mut columns = vec![
        figures("Rank"),
        words("Host"),
        figures("Pid"),
        figures("Steps"),
        figures("A step"),
        figures("Own part"),
        figures("p95"),
    ];
    columns.extend(
        shown.iter().map(|cause| Column { fill: Some(Fill::Cause(*cause)), ..figures(cause.name()) }),
    );
    let rows = ranks.iter().map(|rank| {
        let facts = &rank.rank.facts;
        let phases = pointer::training(&format!("/ranks/{}", rank.place), &rank.rank.phases);
        let mut row = vec![
            Cell::number(facts.rank.into())
                .of(format!("/ranks/{}/facts/rank", rank.place))
                .marked_if(Some(facts.rank) == slowest),
            Cell::words(&facts.host),
            Cell::number(facts.pid.into()).of(format!("/ranks/{}/facts/pid", rank.place)),
            Cell::count(rank.total.steps).of(pointer::each(&phases, "steps")),
            Cell::duration(rank.mean_ns()),
            Cell::duration(rank.own_ns()),
        ];
        row.push(match phases.as_slice() {
            [only] => Cell::duration(rank.total.step_p95_ns).of(format!("{only}/step_p95_ns")),
            // Of several loaders together no quantile is known.
            _ => Cell::nothing(),
        });
        row.extend(shares(&shown, &rank.total));
        row
    });
    let mut foot = vec![
        Cell::words(&format!("all {}", units::count(count as u64))),
        Cell::default(),
        Cell::default(),
        Cell::count(all.steps),
        Cell::duration(all.wall_ns / all.steps.max(1)),
        Cell::duration(all.wall_ns.saturating_sub(all.causes[Cause::Peer]) / all.steps.max(1)),
        Cell::default(),
    ];
    foot.extend(shares(&shown, &all));
    Table { foot, ..Table::new("Ranks in training", columns, rows.collect()) }
}

fn shares<'a>(shown: &'a [Cause], total: &'a PhaseSummary) -> impl Iterator<Item = Cell> + 'a {
    shown.iter().map(|cause| Cell::share(units::share(total.causes[*cause], total.wall_ns)))
}
