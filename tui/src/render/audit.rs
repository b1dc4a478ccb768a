//! The audit: decisions with the expected and the measured gain, the newest at the bottom, the chosen line in full.

use super::{Page, clock, first_shown, knobs, stall};
use crate::app::App;
use crate::rows;
use crate::snapshot::RunView;
use crate::text::{clip, heading, ink, labelled, left, plain, right};
use crate::theme::Theme;
use ratatui::style::Style;
use ratatui::text::Line;
use stallscope_look::tuning;
use stallscope_model::{Act, AuditEvent, Estimate};
use stallscope_units as units;

/// First format of recordings that keeps an audit.
const SINCE: i64 = 3;
/// Columns of the time, and of the act.
const WHEN: usize = 8;
const ACT: usize = 9;

pub(super) fn page(app: &App, run: &RunView, theme: &Theme, width: usize, height: usize) -> Page {
    let mut page = Page::default();
    let rows = rows::audit(app);
    let facts = match rows.is_empty() {
        true => knobs::mode(run).to_owned(),
        false => {
            let newest = "the newest at the bottom";
            format!("{}, {newest}; {}", units::counted(rows.len() as u64, "line"), knobs::mode(run))
        }
    };
    page.push(heading("Audit", &facts, width, theme));
    if rows.is_empty() {
        page.lines.extend(labelled("  ", &nothing(app, run), theme.dim(), width, theme));
    }
    let gap = || (height >= 30).then(Line::default);
    if height >= 18 {
        page.lines.extend(gap());
        page.append(stall::strip(app, run, theme, width, (height / 4).clamp(stall::LEAST, stall::MOST)));
    }
    if rows.is_empty() {
        return page.cut(height);
    }
    let cursor = rows::audit_place(app);
    let mut chosen = in_full(rows[cursor], run, theme, width);
    // A minimum height for the chosen line's text keeps the list from jumping while the cursor moves.
    let below = (height / 3).clamp(3, 8);
    let gaps = 2 * gap().iter().count();
    let capacity = height.saturating_sub(page.lines.len() + gaps + 1 + below).max(1);
    chosen.truncate(height.saturating_sub(page.lines.len() + gaps + 1 + capacity.min(rows.len())));
    page.lines.extend(gap());
    page.append(table(&rows, cursor, run, theme, width, capacity));
    page.lines.extend(gap());
    page.lines.extend(chosen);
    page.page = capacity;
    page.cut(height)
}

fn nothing(app: &App, run: &RunView) -> String {
    let any = !rows::audit_to_date(app).is_empty();
    match (any && !app.filter().is_empty(), run.format) {
        (true, _) => format!("no line matches /{}", app.filter()),
        (_, ..SINCE) => "this recording was made by an older stallscope, which kept no audit".to_owned(),
        _ => "nothing was decided and nothing was changed so far: `stallscope tune JOB` gives advice, `stallscope tune \
              JOB --act` acts on it; what was found is in 6, diagnoses"
            .to_owned(),
    }
}

fn table(
    rows: &[&AuditEvent],
    cursor: usize,
    run: &RunView,
    theme: &Theme,
    width: usize,
    height: usize,
) -> Page {
    let ranks = run.summary.ranks.len() > 1 && width >= 76;
    // The chosen line is shown in full below, so narrow screens lose no column for good.
    let number = if width >= 90 { 5 } else { 0 };
    let expected = if width >= 70 { 9 } else { 0 };
    let change = (width * 3 / 10).clamp(14, 34);
    let why = width.saturating_sub(WHEN + 2 + number + ACT + change + 1 + expected + 9 + 2);
    let mut page = Page::default();
    let titles = [
        left("  WHEN", WHEN + 2, theme),
        left("NO", number, theme),
        left("DONE", ACT, theme),
        left("KNOB", change + 1, theme),
        right("EXPECTED", expected, theme),
        right("MEASURED", 9, theme),
        left("  WHY", why + 2, theme),
    ];
    page.push(Line::from(ink(titles.concat(), theme.dim())));
    let first = first_shown(rows.len(), cursor, height);
    for (place, event) in rows.iter().enumerate().skip(first).take(height) {
        let gain = |estimate: &Option<Estimate>| {
            estimate.map_or_else(String::new, |estimate| tuning::gain(estimate.value))
        };
        let whose = event.rank.filter(|_| ranks).map(|rank| format!("rank {rank}: ")).unwrap_or_default();
        let done = left(event.act.name(), ACT - 1, theme);
        let mut line = vec![
            plain(left(&clock(event.time_ns.saturating_sub(run.begin_ns)), WHEN, theme)),
            plain("  "),
            ink(left(&number_of(event), number, theme), theme.dim()),
            ink(done, if place == cursor { theme.chosen() } else { style(event.act, theme) }),
            plain(" "),
            ink(
                left(&format!("{whose}{}", tuning::change(event, &run.summary.knobs)), change + 1, theme),
                theme.bold(),
            ),
        ];
        if expected > 0 {
            line.push(plain(right(&gain(&event.predicted), expected, theme)));
        }
        line.push(ink(right(&gain(&event.measured), 9, theme), theme.bold()));
        let reason = if event.why.is_empty() { &event.saw } else { &event.why };
        line.push(plain(format!("  {}", clip(reason, why, theme))));
        page.row(Line::from(line), place);
    }
    page
}

fn number_of(event: &AuditEvent) -> String {
    event.decision.to_string()
}

fn style(act: Act, theme: &Theme) -> Style {
    match act {
        Act::Keep => theme.good(),
        Act::Undo | Act::Refused | Act::Freeze => theme.alarm(),
        Act::Mode | Act::Hold | Act::Advise | Act::Drift => theme.dim(),
        Act::Request | Act::Applied | Act::Release => Style::new(),
    }
}

/// Every field of the chosen line.
fn in_full(event: &AuditEvent, run: &RunView, theme: &Theme, width: usize) -> Vec<Line<'static>> {
    let change = tuning::change(event, &run.summary.knobs);
    let mut done = vec![format!("{} {change}", event.act.name()).trim_end().to_owned()];
    if !event.by.is_empty() {
        done.push(format!("by {}", event.by));
    }
    done.extend(event.rank.map(|rank| match event.loader {
        Some(loader) => format!("rank {rank}, loader {loader}"),
        None => format!("rank {rank}"),
    }));
    done.push(format!("decision {}", event.decision));
    let mut lines = labelled("done      ", &done.join("; "), theme.bold(), width, theme);
    let gain = |estimate: &Option<Estimate>| {
        let samples = |gain: String| format!("{gain} samples a second");
        estimate.map(|estimate| samples(tuning::gain_with_interval(&estimate))).unwrap_or_default()
    };
    for (label, text) in [
        ("why       ", event.why.clone()),
        ("saw       ", event.saw.clone()),
        ("expected  ", gain(&event.predicted)),
        ("measured  ", gain(&event.measured)),
    ] {
        if !text.is_empty() {
            lines.extend(labelled(label, &text, Style::new(), width, theme));
        }
    }
    lines
}
