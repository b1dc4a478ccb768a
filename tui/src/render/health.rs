//! What could be seen, what was lost, and what the measurement itself cost.

use super::{Page, scrolled};
use crate::app::{App, View};
use crate::snapshot::RunView;
use crate::text::{heading, ink, labelled, left, plain, right};
use crate::theme::Theme;
use ratatui::style::Style;
use ratatui::text::Line;
use stallscope_model::EvidenceState;
use stallscope_units as units;

/// More than this share of a core is worth a second look.
const DEAR: f64 = 0.01;

pub(super) fn page(app: &App, run: &RunView, theme: &Theme, width: usize, height: usize) -> Page {
    let mut lines = vec![heading("Evidence", "", width, theme)];
    for (name, state) in [("kernel", &run.summary.kernel), ("shim", &run.summary.shim)] {
        lines.extend(evidence(name, state, theme, width));
    }
    if let Some(share) = run.summary.disagreement_share {
        lines.extend(labelled(
            "             ",
            &stallscope_look::agreement(share),
            theme.dim(),
            width,
            theme,
        ));
    }
    lines.push(Line::default());
    lines.extend(probes(run, theme, width));
    lines.push(Line::default());
    lines.extend(losses(run, theme, width));
    lines.push(Line::default());
    lines.extend(cost(run, theme, width));
    lines.push(Line::default());
    lines.extend(recording(run, theme, width));
    scrolled(lines, app.line_at[View::Health as usize], height)
}

fn evidence(name: &str, state: &EvidenceState, theme: &Theme, width: usize) -> Vec<Line<'static>> {
    let (mark, style, why) = match state {
        EvidenceState::On => ("on", theme.good(), ""),
        EvidenceState::Off => ("off", theme.dim(), "was not asked for"),
        EvidenceState::Partial(why) => ("partial", theme.alarm(), why.as_str()),
        EvidenceState::Missing(why) => ("missing", theme.alarm(), why.as_str()),
    };
    marked(mark, style, name, why, theme, width)
}

/// "  on      kernel      why", the reason wrapped under itself.
fn marked(
    mark: &str,
    style: Style,
    name: &str,
    why: &str,
    theme: &Theme,
    width: usize,
) -> Vec<Line<'static>> {
    let name = left(name, 22.min(width / 3), theme);
    let before = 11 + name.chars().count();
    crate::text::wrap(why, width.saturating_sub(before), theme)
        .into_iter()
        .enumerate()
        .map(|(nth, text)| match nth {
            0 => Line::from(vec![
                plain("  "),
                ink(format!("{mark:<9}"), style),
                plain(name.clone()),
                ink(text, theme.dim()),
            ]),
            _ => Line::from(ink(format!("{}{text}", " ".repeat(before)), theme.dim())),
        })
        .collect()
}

fn probes(run: &RunView, theme: &Theme, width: usize) -> Vec<Line<'static>> {
    let probes = &run.summary.probes;
    let on = probes.iter().filter(|probe| probe.on).count();
    let mut lines = vec![heading("Probes", &format!("{on} of {} are on", probes.len()), width, theme)];
    if probes.is_empty() {
        lines = vec![heading("Probes", "", width, theme)];
        let why = match run.format {
            0 | 1 => "this recording was made by an older stallscope, which did not say which probes were on",
            _ => "none is on record",
        };
        lines.extend(labelled("  ", why, theme.dim(), width, theme));
    }
    for probe in probes {
        let (mark, style) = if probe.on { ("on", theme.good()) } else { ("off", theme.alarm()) };
        lines.extend(marked(mark, style, &probe.name, &probe.reason, theme, width));
    }
    lines
}

fn losses(run: &RunView, theme: &Theme, width: usize) -> Vec<Line<'static>> {
    let records = run.summary.overhead.records;
    let lost: Vec<_> = run.summary.losses.iter().filter(|loss| loss.count > 0).collect();
    let total: u64 = lost.iter().map(|loss| loss.count).fold(0, u64::saturating_add);
    let facts = format!(
        "{}, {} lost",
        units::counted(records, "record"),
        if total == 0 { "none".into() } else { units::count(total) }
    );
    let mut lines = vec![heading("Delivered", &facts, width, theme)];
    for loss in lost {
        let count = right(&units::count(loss.count), 11, theme);
        let reason = left(&loss.reason, width.saturating_sub(14), theme);
        lines.push(Line::from(vec![ink(count, theme.alarm()), plain(format!("  {reason}"))]));
    }
    lines
}

fn cost(run: &RunView, theme: &Theme, width: usize) -> Vec<Line<'static>> {
    let overhead = &run.summary.overhead;
    let mut lines = vec![heading("Cost of measuring", "", width, theme)];
    let share = overhead.collector_share();
    let style = if share > DEAR { theme.alarm() } else { theme.bold() };
    lines.push(Line::from(vec![
        plain(format!("  {:<16}", "collector")),
        ink(units::percent_exact(share), style),
        plain(format!(" of a core, {}", units::bytes(overhead.collector_rss_bytes))),
    ]));
    let kernel = match overhead.kernel_cpu_ns {
        Some(ns) => format!("{} of a core", units::percent_exact(units::share(ns, overhead.wall_ns))),
        None => "not counted".to_owned(),
    };
    lines.extend(labelled(&format!("  {:<16}", "kernel programs"), &kernel, Style::new(), width, theme));
    if overhead.start_cpu_ns > 0 {
        let start = format!("{} of CPU time", units::duration(overhead.start_cpu_ns));
        lines.extend(labelled(&format!("  {:<16}", "to start"), &start, Style::new(), width, theme));
    }
    lines
}

fn recording(run: &RunView, theme: &Theme, width: usize) -> Vec<Line<'static>> {
    let age_ns = run.written_ago_ns;
    let age = match age_ns {
        // Written every second: anything near that is now.
        0..=3_000_000_000 => "a moment ago".to_owned(),
        _ => format!("{} ago", units::duration(age_ns - age_ns % 1_000_000_000)),
    };
    let facts = format!("{}, format {}, written {age}", run.state.name(), run.format);
    let mut lines = vec![heading("Recording", &facts, width, theme)];
    lines.extend(labelled("  ", &run.recording.display().to_string(), Style::new(), width, theme));
    lines
}
