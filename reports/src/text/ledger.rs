//! Where training time went: the job, its loaders, its ranks.

use super::{Page, shares, total_ns, training};
use crate::palette;
use crate::style::{Ink, Line, Style, left, right};
use stallscope_look::{meaning, steps_from_outside};
use stallscope_model::{Cause, Causes, LoaderFacts, Phase, PhaseSummary, RunSummary};
use stallscope_units as units;
use unicode_width::UnicodeWidthStr;

pub(super) fn write(summary: &RunSummary, page: &mut Page<'_>) {
    let Some(total) = training(&summary.phases) else { return };
    page.heading("Training", &facts(&total, summary));
    let from_outside = steps_from_outside(summary).map(str::to_owned);
    for setting in spread(&total).into_iter().chain(from_outside).chain(loaders(summary)) {
        page.labelled("", 2, &setting, Ink::Dim);
    }
    let bar = bar(&total.causes, page.style.columns() - 2, page.style);
    page.line(Line::new("  ").then(bar));
    causes(&total, page);
    if let Some(hidden_ns) = total.hidden_ns.filter(|ns| *ns > 0) {
        let text = format!(
            "of the waits, {} ({}) were hidden: the device still had work",
            units::duration(hidden_ns),
            units::percent_exact(units::share(hidden_ns, total.wall_ns))
        );
        page.labelled("", 2, &text, Ink::Plain);
    }
    by_loader(summary, page);
    by_rank(summary, &total, page);
}

fn facts(total: &PhaseSummary, summary: &RunSummary) -> String {
    let mean = units::duration(total.wall_ns / total.steps.max(1));
    let mut facts =
        format!("{} in {} of {mean}", units::duration(total.wall_ns), units::counted(total.steps, "step"));
    if total.samples > 0 {
        facts.push_str(&format!(", {} samples/s", units::per_second(total.samples, total.wall_ns)));
    }
    if summary.ranks.len() > 1 {
        facts.push_str(&format!(", {}", units::counted(summary.ranks.len() as u64, "rank")));
    }
    facts
}

/// Quantiles are known of one loader's steps only.
fn spread(total: &PhaseSummary) -> Option<String> {
    (total.step_p50_ns > 0).then(|| {
        format!(
            "steps: median {}, p95 {}, longest {}",
            units::duration(total.step_p50_ns),
            units::duration(total.step_p95_ns),
            units::duration(total.step_max_ns)
        )
    })
}

/// How the first rank's loaders are set; the others' are the same script's.
fn loaders(summary: &RunSummary) -> Vec<String> {
    let Some(rank) = summary.ranks.first() else { return Vec::new() };
    let several = rank.facts.loaders.len() > 1;
    rank.facts.loaders.iter().map(|loader| loader_in_words(loader, several)).collect()
}

/// How a loader is set; by its number where there are several.
pub(crate) fn loader_in_words(loader: &LoaderFacts, several: bool) -> String {
    let mut facts = Vec::new();
    if !loader.dataset.is_empty() {
        facts.push(match loader.dataset_len {
            Some(len) => format!("{} ({})", loader.dataset, units::count(len)),
            None => loader.dataset.clone(),
        });
    }
    match (loader.workers, loader.start_method.as_str()) {
        (0, _) => facts.push("no workers".to_owned()),
        (workers, "") => facts.push(units::counted(workers.into(), "worker")),
        (workers, method) => facts.push(format!("{} ({method})", units::counted(workers.into(), "worker"))),
    }
    facts.extend(loader.batch_size.map(|size| format!("batch {size}")));
    facts.extend(loader.prefetch_factor.map(|factor| format!("prefetch {factor}")));
    facts.extend(loader.pin_memory.then(|| "pinned".to_owned()));
    facts.extend(loader.persistent_workers.then(|| "persistent".to_owned()));
    let name = if several { format!("loader {}", loader.loader) } else { "loader".to_owned() };
    format!("{name}: {}", facts.join(", "))
}

/// One line a cause: the legend of the bar.
fn causes(total: &PhaseSummary, page: &mut Page<'_>) {
    let style = *page.style;
    let meanings = style.columns() >= 76;
    for (cause, share) in shares(&total.causes).into_iter().filter(|(_, share)| *share > 0.0) {
        let mut line = Line::new("  ")
            .ink(fill(cause, &style).to_string(), ink(cause))
            .plain(format!(" {:<9}", cause.name()))
            .plain(right(&units::duration(total.causes[cause]), 9))
            .bold(right(&units::percent_exact(share), 8))
            .plain(right(&units::duration(total.causes[cause] / total.steps.max(1)), 9))
            .dim(" a step");
        if meanings {
            line = line.dim(format!("   {}", meaning(cause)));
        }
        page.line(line);
    }
}

fn by_loader(summary: &RunSummary, page: &mut Page<'_>) {
    let phases: Vec<&PhaseSummary> =
        summary.phases.iter().filter(|phase| phase.phase == Phase::Training && phase.steps > 0).collect();
    if phases.len() < 2 {
        return;
    }
    let rows = phases.iter().map(|phase| {
        let label = phase.loader.map_or_else(|| "no loader".to_owned(), |loader| format!("loader {loader}"));
        (label, (*phase).clone())
    });
    table(&rows.collect::<Vec<_>>(), page);
}

/// Ranks to show when there are too many for a screen.
const RANKS: usize = 12;

fn by_rank(summary: &RunSummary, job: &PhaseSummary, page: &mut Page<'_>) {
    let mut ranks: Vec<(u32, PhaseSummary)> =
        summary.ranks.iter().filter_map(|rank| Some((rank.facts.rank, training(&rank.phases)?))).collect();
    if ranks.len() < 2 {
        return;
    }
    let all = ranks.len();
    if all > RANKS {
        // Those the others wait for, and those that wait most.
        ranks.sort_by(|a, b| peer_share(&a.1.causes).total_cmp(&peer_share(&b.1.causes)));
        ranks.drain(RANKS / 2..all - RANKS / 2);
        ranks.sort_by_key(|(rank, _)| *rank);
    }
    let shown = ranks.len();
    let mut rows = vec![("job".to_owned(), job.clone())];
    rows.extend(ranks.into_iter().map(|(rank, phase)| (format!("rank {rank}"), phase)));
    table(&rows, page);
    if all > shown {
        let text =
            format!("and {} more; these are the ones that wait least and most for others", all - shown);
        page.labelled("", 2, &text, Ink::Dim);
    }
}

fn peer_share(causes: &Causes) -> f64 {
    units::share(causes[Cause::Peer], total_ns(causes))
}

/// Shares by cause, a row each, and a bar where the columns allow it.
fn table(rows: &[(String, PhaseSummary)], page: &mut Page<'_>) {
    let style = *page.style;
    let label = rows.iter().map(|(label, _)| label.width()).max().unwrap_or(0);
    let mut left_columns = style.columns().saturating_sub(2 + label + 9);
    let largest_share = |cause: Cause| {
        rows.iter().map(|(_, row)| units::share(row.causes[cause], total_ns(&row.causes))).fold(0.0, f64::max)
    };
    let mut largest: Vec<(Cause, f64)> = Cause::ALL
        .into_iter()
        .map(|cause| (cause, largest_share(cause)))
        .filter(|(_, share)| *share >= 0.005)
        .collect();
    largest.sort_by(|a, b| b.1.total_cmp(&a.1));
    let mut shown = Vec::new();
    for (cause, _) in largest {
        // A column stays free for what does not fit.
        if left_columns < cell(cause) + 7 {
            break;
        }
        left_columns -= cell(cause);
        shown.push(cause);
    }
    shown.sort();
    let rest = |causes: &Causes| {
        causes
            .iter()
            .filter(|(cause, _)| !shown.contains(cause))
            .map(|(_, ns)| ns)
            .fold(0, u64::saturating_add)
    };
    let other = rows.iter().any(|(_, row)| units::share(rest(&row.causes), total_ns(&row.causes)) >= 0.005);
    if other {
        left_columns = left_columns.saturating_sub(7);
    }
    let bars = left_columns.saturating_sub(2).min(30);

    page.gap();
    let mut line = format!("  {}{}", left("", label), right("a step", 9));
    for cause in &shown {
        line.push_str(&right(cause.name(), cell(*cause)));
    }
    if other {
        line.push_str(&right("other", 7));
    }
    page.line(Line::default().dim(line));
    for (name, row) in rows {
        let total = total_ns(&row.causes);
        let mut line = Line::new(format!("  {}", left(name, label)))
            .plain(right(&units::duration(row.wall_ns / row.steps.max(1)), 9));
        for cause in &shown {
            let share = units::share(row.causes[*cause], total);
            let text = if share > 0.0 { units::percent(share) } else { "-".to_owned() };
            let text = right(&text, cell(*cause));
            line = if share >= 0.10 && *cause != Cause::Compute { line.bold(text) } else { line.plain(text) };
        }
        if other {
            line = line.plain(right(&units::percent(units::share(rest(&row.causes), total)), 7));
        }
        if bars >= 8 {
            line = line.plain("  ").then(bar(&row.causes, bars, &style));
        }
        page.line(line);
    }
}

fn cell(cause: Cause) -> usize {
    cause.name().len().max(4) + 2
}

/// All causes in one bar, each cell the cause that has most of it.
fn bar(causes: &Causes, cells: usize, style: &Style) -> Line {
    let total = total_ns(causes) as f64;
    let mut line = Line::default();
    let (mut end, mut done) = (0.0, 0);
    for (cause, ns) in causes.iter() {
        end += ns as f64;
        let upto = if total > 0.0 { (end / total * cells as f64).round() as usize } else { 0 };
        line = line.ink(fill(cause, style).to_string().repeat(upto.saturating_sub(done)), ink(cause));
        done = done.max(upto);
    }
    line
}

/// What a cause's part of a bar is made of. Without colour every cause has a pattern of its own.
fn fill(cause: Cause, style: &Style) -> char {
    match (style.colour, style.unicode) {
        (true, true) if cause == Cause::Unknown => '░',
        (true, true) => '▇',
        (_, unicode) => palette::pattern(cause, unicode),
    }
}

fn ink(cause: Cause) -> Ink {
    let index = palette::index(cause);
    Ink::Colour(if index < 8 { 30 + index } else { 82 + index })
}
