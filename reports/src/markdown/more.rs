//! What is folded away: ranks, other phases, workers, checkpoints, files, and how far to trust the figures.

use super::escape::{cell, text};
use super::line;
use crate::Run;
use crate::text::{cost, delivered, stalls, training};
use stallscope_look::{cache, tuning};
use stallscope_model::{CacheSummary, CacheUses, Estimate, EvidenceState, Phase, RunSummary, WorkerLoad};
use stallscope_units as units;

pub(super) fn write(run: &Run, page: &mut String) {
    let summary = &run.summary;
    ranks(summary, page);
    phases(summary, page);
    workers(summary, page);
    checkpoints(summary, page);
    caches(summary, page);
    files(summary, page);
    knobs(summary, page);
    audit(run, page);
    trust(run, page);
}

/// A table that is folded away; nothing without rows.
fn folded(page: &mut String, title: &str, columns: &[&str], rows: &[Vec<String>]) {
    if rows.is_empty() {
        return;
    }
    line(page, format_args!("<details><summary>{title}</summary>\n"));
    line(page, format_args!("| {} |", columns.join(" | ")));
    // The first column names, the others are figures.
    line(page, format_args!("|:--{}|", "|--:".repeat(columns.len().saturating_sub(1))));
    for row in rows.iter().take(ROWS) {
        line(page, format_args!("| {} |", row.join(" | ")));
    }
    if let Some(more) = rows.len().checked_sub(ROWS).filter(|more| *more > 0) {
        line(page, format_args!("\nand {} more", units::count(more as u64)));
    }
    line(page, format_args!("\n</details>\n"));
}

/// A comment in a forge may have 65,536 characters.
const ROWS: usize = 32;

fn ranks(summary: &RunSummary, page: &mut String) {
    if summary.ranks.len() < 2 {
        return;
    }
    let mut ranks: Vec<_> =
        summary.ranks.iter().filter_map(|rank| Some((rank, training(&rank.phases)?))).collect();
    // Those that the others wait for first: they have the least time to wait themselves.
    let peer = |causes: &stallscope_model::Causes| causes[stallscope_model::Cause::Peer];
    ranks.sort_by_key(|(rank, total)| (peer(&total.causes), rank.facts.rank));
    let rows: Vec<Vec<String>> = ranks
        .into_iter()
        .map(|(rank, total)| {
            let stalls: Vec<String> = stalls(&total.causes)
                .into_iter()
                .map(|(cause, share)| format!("{} {}", cause.name(), units::percent(share)))
                .collect();
            vec![
                rank.facts.rank.to_string(),
                cell(&rank.facts.host),
                units::count(total.steps),
                units::duration(total.wall_ns / total.steps.max(1)),
                stalls.join(", "),
            ]
        })
        .collect();
    folded(page, "Ranks", &["rank", "host", "steps", "a step", "stalls"], &rows);
}

fn phases(summary: &RunSummary, page: &mut String) {
    let rows: Vec<Vec<String>> = summary
        .phases
        .iter()
        .filter(|phase| phase.phase != Phase::Training && phase.wall_ns > 0)
        .map(|phase| {
            let stalls: Vec<String> = stalls(&phase.causes)
                .into_iter()
                .map(|(cause, share)| format!("{} {}", cause.name(), units::percent(share)))
                .collect();
            vec![
                phase.phase.name().to_owned(),
                units::count(phase.steps),
                units::duration(phase.wall_ns),
                stalls.join(", "),
            ]
        })
        .collect();
    folded(page, "Other phases", &["phase", "steps", "time", "stalls"], &rows);
}

fn workers(summary: &RunSummary, page: &mut String) {
    let rows: Vec<Vec<String>> = summary
        .ranks
        .iter()
        .filter(|rank| !rank.workers.is_empty())
        .map(|rank| {
            let mut load = WorkerLoad::default();
            rank.workers.iter().for_each(|worker| load += worker);
            let part = |ns: u64| units::percent(units::share(ns, load.wall_ns));
            vec![
                rank.facts.rank.to_string(),
                rank.workers_at_once().to_string(),
                part(load.fetch_ns),
                part(load.cpu_ns),
                part(load.runnable_ns),
                part(load.idle_ns),
                load.batches.map_or("unknown".to_owned(), units::count),
                units::bytes(load.read_bytes),
            ]
        })
        .collect();
    let columns = ["rank", "workers", "reading", "on CPU", "no CPU", "idle", "batches", "read"];
    let title = format!("{}: their load, whether or not training waited for it", summary.workers_heading());
    folded(page, &title, &columns, &rows);
}

fn checkpoints(summary: &RunSummary, page: &mut String) {
    let rows: Vec<Vec<String>> = summary
        .ranks
        .iter()
        .filter(|rank| rank.checkpoints.count > 0)
        .map(|rank| {
            let saved = &rank.checkpoints;
            vec![
                rank.facts.rank.to_string(),
                units::count(saved.count),
                units::bytes(saved.bytes),
                units::duration(saved.blocked_ns),
                units::duration(saved.background_ns),
            ]
        })
        .collect();
    folded(page, "Checkpoints", &["rank", "number", "size", "blocked", "in the background"], &rows);
}

fn caches(summary: &RunSummary, page: &mut String) {
    let row = |cache: &CacheSummary, whose: &str, uses: &CacheUses| {
        vec![
            cache.rank.to_string(),
            cache.loader.to_string(),
            whose.to_owned(),
            units::count(uses.draws()),
            uses.hit_share().map(units::percent_exact).unwrap_or_default(),
            units::count(uses.reuses()),
            units::count(uses.prefetched),
            units::count(uses.late),
            units::count(uses.substitutions),
            units::count(uses.misses),
            units::bytes(uses.pool_bytes),
            units::bytes(uses.source_bytes),
        ]
    };
    let rows: Vec<Vec<String>> = summary
        .caches
        .iter()
        .flat_map(|cache| {
            [("training", &cache.training), ("evaluation", &cache.other)]
                .into_iter()
                .filter(|(_, uses)| uses.draws() > 0)
                .map(|(whose, uses)| row(cache, whose, uses))
        })
        .collect();
    let columns = [
        "rank",
        "loader",
        "for",
        "drawn",
        "hits",
        "reused",
        "fetched ahead",
        "late",
        "substituted",
        "missed",
        "from memory",
        "read",
    ];
    folded(page, "Cache", &columns, &rows);
    kept(summary, page);
    curves(summary, page);
}

fn kept(summary: &RunSummary, page: &mut String) {
    let stated = summary.caches.iter().filter_map(|cache| Some((cache, cache.state?)));
    let rows: Vec<Vec<String>> = stated
        .map(|(cache, state)| {
            vec![
                cache.rank.to_string(),
                cache.loader.to_string(),
                units::memory(state.kept_bytes),
                units::memory(state.capacity_bytes),
                units::count(state.kept_samples),
                units::count(state.evictions),
            ]
        })
        .collect();
    let columns = ["rank", "loader", "kept", "of", "samples", "evictions"];
    folded(page, "What caches keep: ranks of one machine share it", &columns, &rows);
}

fn curves(summary: &RunSummary, page: &mut String) {
    let rows: Vec<Vec<String>> = summary
        .cache_curves()
        .into_iter()
        .zip(cache::curves(summary))
        .flat_map(|(of, curve)| {
            let row = move |size: cache::Size| {
                let now = if size.is_now { "now" } else { "" };
                vec![of.rank.to_string(), of.loader.to_string(), size.size, now.to_owned(), size.missed]
            };
            curve.sizes.into_iter().map(row)
        })
        .collect();
    folded(page, "What other sizes would miss", &["rank", "loader", "cache of", "", "missed"], &rows);
}

fn files(summary: &RunSummary, page: &mut String) {
    let mounts: Vec<Vec<String>> = summary
        .mounts
        .iter()
        .map(|mount| {
            vec![
                cell(&mount.mount),
                cell(&mount.fs_type),
                units::duration(mount.wait_ns),
                units::count(mount.waits),
            ]
        })
        .collect();
    folded(
        page,
        "Mounts: time that tasks were blocked in their files",
        &["mount", "type", "blocked", "times"],
        &mounts,
    );
    let files: Vec<Vec<String>> = summary
        .files
        .iter()
        .map(|file| {
            vec![cell(&file.path), cell(&file.mount), units::duration(file.wait_ns), units::count(file.waits)]
        })
        .collect();
    folded(page, "Files", &["file", "mount", "blocked", "times"], &files);
}

fn knobs(summary: &RunSummary, page: &mut String) {
    let rows: Vec<Vec<String>> = summary
        .knobs
        .iter()
        .map(|knob| {
            let shown = |value: u64| tuning::amount(value, &knob.unit);
            vec![
                cell(&knob.name),
                knob.rank.to_string(),
                knob.loader.map(|loader| loader.to_string()).unwrap_or_default(),
                shown(knob.value),
                shown(knob.initial),
                format!("{} to {}", shown(knob.min), shown(knob.max)),
                knob.requested.map(shown).unwrap_or_default(),
                knob.state.name().to_owned(),
                cell(&knob.set_by),
                cell(&knob.reason),
            ]
        })
        .collect();
    let columns =
        ["knob", "rank", "loader", "now", "script", "bounds", "asked", "state", "set by", "why not"];
    folded(page, "Knobs", &columns, &rows);
}

/// The newest lines.
fn audit(run: &Run, page: &mut String) {
    let begun_ns = run.summary.job.started_wall_ns;
    let rows: Vec<Vec<String>> = run
        .audit
        .iter()
        .rev()
        .map(|event| {
            let gain = |estimate: &Option<Estimate>| {
                estimate.map(|estimate| tuning::gain_with_interval(&estimate)).unwrap_or_default()
            };
            vec![
                units::duration(event.time_ns.saturating_sub(begun_ns)),
                event.decision.to_string(),
                event.act.name().to_owned(),
                event.rank.map(|rank| rank.to_string()).unwrap_or_default(),
                cell(&tuning::change(event, &run.summary.knobs)),
                gain(&event.predicted),
                gain(&event.measured),
                cell(if event.why.is_empty() { &event.saw } else { &event.why }),
            ]
        })
        .collect();
    let columns = ["after", "decision", "done", "rank", "knob", "expected", "measured", "why"];
    folded(page, "Audit, the newest first", &columns, &rows);
}

fn trust(run: &Run, page: &mut String) {
    let summary = &run.summary;
    line(page, format_args!("<details><summary>Evidence and cost</summary>\n"));
    for (source, state) in [("kernel", &summary.kernel), ("loader shim", &summary.shim)] {
        let state = match state {
            EvidenceState::On => "on".to_owned(),
            EvidenceState::Off => "not used".to_owned(),
            EvidenceState::Partial(why) => format!("partly; {}", text(why)),
            EvidenceState::Missing(why) => format!("missing; {}", text(why)),
        };
        line(page, format_args!("- {source}: {state}"));
    }
    if let Some(share) = summary.disagreement_share {
        line(page, format_args!("- they differ by {} of training time at most", units::percent_exact(share)));
    }
    line(page, format_args!("- {}", text(&delivered(summary))));
    if summary.overhead.wall_ns > 0 {
        line(page, format_args!("- {}", text(&cost(summary))));
    }
    for source in &run.sources {
        let name = cell(&crate::run::name(&source.path));
        line(page, format_args!("- recording {name}, {}", crate::run::state_name(source.state)));
    }
    line(page, format_args!("\n</details>"));
}
