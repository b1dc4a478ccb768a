//! What the workers did with their time: load, whether or not training waited for it.

use super::fill::Fill;
use super::rows::{self, Row};
use super::section::{Block, Chart, Legend, Section};
use super::svg::{Anchor, Svg};
use super::table::{Cell, Table, figures};
use super::worker_lanes;
use crate::run::Run;
use stallscope_model::{Doing, WorkerLoad};
use stallscope_units as units;

/// Workers shown when there are more than a page is good for.
pub(super) const SHOWN: usize = 32;

struct Worker<'a> {
    rank: u32,
    load: &'a WorkerLoad,
    /// JSON pointer.
    source: String,
}

pub(super) fn section(run: &Run) -> Section {
    let mut workers: Vec<Worker<'_>> = Vec::new();
    for (place, rank) in run.summary.ranks.iter().enumerate() {
        workers.extend(rank.workers.iter().enumerate().map(|(nth, load)| Worker {
            rank: rank.facts.rank,
            load,
            source: format!("/ranks/{place}/workers/{nth}"),
        }));
    }
    let all = workers.len();
    let mut blocks = Vec::new();
    let mut lead = String::new();
    if all == 0 {
        blocks.push(Block::Note(
            "No worker process was seen: the trainer makes its batches itself.".to_owned(),
        ));
    } else {
        let who =
            if run.summary.workers_heading() == "Processes" { "each one's main thread" } else { "each" };
        lead = format!("What {who} did with its time, whether or not training waited for it.");
        if all > SHOWN {
            workers.sort_by(|a, b| idle(a.load).total_cmp(&idle(b.load)));
            workers.truncate(SHOWN);
            lead.push_str(&format!(" Shown are the {SHOWN} busiest of {}.", units::count(all as u64)));
            workers.sort_by_key(|worker| (worker.rank, worker.load.pid));
        }
        blocks.push(Block::Chart(chart(&workers, run.summary.ranks.len() > 1)));
        blocks.extend(worker_lanes::chart(run).map(Block::Chart));
        blocks.push(Block::Table(table(&workers)));
    }
    Section { id: "workers", heading: run.summary.workers_heading(), lead, blocks }
}

fn idle(load: &WorkerLoad) -> f64 {
    units::share(load.idle_ns, load.wall_ns)
}

/// What a load is made of, in the order of the bar. Idle time is the page's own colour.
pub(super) fn parts(load: &WorkerLoad) -> [(Fill, u64); 3] {
    [
        (Fill::Doing(Doing::Reading), load.fetch_ns),
        (Fill::Doing(Doing::Computing), load.cpu_ns),
        (Fill::Doing(Doing::Runnable), load.runnable_ns),
    ]
}

fn chart(workers: &[Worker<'_>], ranks: bool) -> Chart {
    let rows: Vec<Row> = workers
        .iter()
        .map(|Worker { rank, load, .. }| {
            let name = if ranks { format!("{rank} · {}", load.pid) } else { format!("pid {}", load.pid) };
            let part = |(fill, ns): (Fill, u64)| {
                let share = units::share(ns, load.wall_ns);
                (fill, share, format!("{name}: {} {}", fill.name(), units::percent_exact(share)))
            };
            let parts = parts(load).map(part).into();
            Row { name, marked: false, parts }
        })
        .collect();
    let height = rows::height(rows.len());
    let desc = format!(
        "A bar each for {} workers: reading, computing, without a CPU; the rest is idle.",
        rows.len()
    );
    let mut svg = Svg::new("workers-chart", height + 22.0, "Load of the workers", &desc);
    for (share, label, anchor) in
        [(0.0, "0%", Anchor::Start), (0.5, "50%", Anchor::Middle), (1.0, "100%", Anchor::End)]
    {
        svg.line((share, 0.0), (share, height + 4.0), "grid");
        svg.text(share, 0.0, height + 17.0, anchor, "label", label);
    }
    rows::draw(&mut svg, &rows);
    Chart {
        svg: svg.finish(),
        legends: Legend::only(rows::legend(
            &rows,
            [Doing::Reading, Doing::Computing, Doing::Runnable].into_iter().map(Fill::Doing),
        )),
        margin: "names",
        caption: format!(
            "Share of each worker's time; the rest is idle.{}",
            if ranks { " Rank · pid." } else { "" }
        ),
    }
}

fn table(workers: &[Worker<'_>]) -> Table {
    let columns = vec![
        figures("Rank"),
        figures("Pid"),
        figures("Reading"),
        figures("On CPU"),
        figures("No CPU"),
        figures("Idle"),
        figures("Batches"),
        figures("Samples"),
        figures("Read"),
    ];
    let row = |worker: &Worker<'_>| {
        let Worker { rank, load, source } = worker;
        let part = |ns: u64, field: &str| {
            let text = units::percent(units::share(ns, load.wall_ns));
            Cell { text, ..Cell::duration(ns) }.of(format!("{source}/{field}"))
        };
        let made = |count: Option<u64>, field: &str| match count {
            Some(count) => Cell::count(count).of(format!("{source}/{field}")),
            None => Cell::words("unknown"),
        };
        vec![
            Cell::number((*rank).into()),
            Cell::number(load.pid.into()).of(format!("{source}/pid")),
            part(load.fetch_ns, "fetch_ns"),
            part(load.cpu_ns, "cpu_ns"),
            part(load.runnable_ns, "runnable_ns"),
            part(load.idle_ns, "idle_ns"),
            made(load.batches, "batches"),
            made(load.samples, "samples"),
            Cell::bytes(load.read_bytes).of(format!("{source}/read_bytes")),
        ]
    };
    Table::new(
        "Workers, as shares of the time that each was there",
        columns,
        workers.iter().map(row).collect(),
    )
}
