//! One job: its time by cause, its ranks, its workers, what they wait for.

use super::bars::{area, by_share, legend};
use super::{Page, cache, chrome, clock, parts};
use crate::app::{App, Part};
use crate::rows;
use crate::series::Sum;
use crate::snapshot::RunView;
use crate::text::{clip, heading, ink, labelled, plain, right};
use crate::theme::Theme;
use ratatui::style::Style;
use ratatui::text::Line;
use stallscope_look::{meaning, tuning};
use stallscope_model::TuneMode;
use stallscope_units as units;

/// Columns from which ranks, workers and files stand beside the ledger.
const WIDE: usize = 120;
/// Lines of the ledger from which the hits of a cache have one.
const WITH_HITS: usize = 8;
/// Lines of the view from which the curve of a cache has one, and its uses in numbers.
const WITH_CURVE: usize = 16;
const WITH_USES: usize = 30;
/// Columns that the scale of the ledger takes.
pub(super) const SCALE: usize = 5;

pub(super) fn page(app: &App, run: &RunView, theme: &Theme, width: usize, height: usize) -> Page {
    if let Some(part) = app.part {
        let mut page = Page::default();
        let facts = format!("alone; p goes on, Esc shows all{}", chrome::columns_in_words(app.columns));
        page.push(heading(chrome::part_name(part), &facts, width, theme));
        let rest = height.saturating_sub(1);
        page.append(match part {
            Part::Ledger => ledger(run, theme, width, rest),
            Part::Ranks => parts::ranks(app, run, theme, width, rest),
            Part::Workers => parts::workers(app, run, theme, width, rest),
            Part::Files => parts::files(run, theme, width, rest),
        });
        return page;
    }
    let mut page = Page::default();
    page.append(verdict(run, theme, width, if height > 24 { 2 } else { 1 }));
    page.lines.extend(tuning(app, run, theme, width));
    page.lines.extend(cache::line(run, theme, width));
    page.lines.extend(cache::held(run, theme, width));
    if height >= WITH_USES {
        page.lines.extend(cache::uses(run, theme, width));
    }
    if height >= WITH_CURVE {
        page.lines.extend(cache::curve(run, theme, width));
    }
    let rest = height.saturating_sub(page.lines.len());
    if width >= WIDE {
        let beside = (width * 2 / 5).clamp(50, 90);
        let left = ledger(run, theme, width - beside - 2, rest);
        let right = others(app, run, theme, beside, rest);
        page.append(side_by_side(left, right, width - beside));
        return page;
    }
    let ledger_height = (rest * 2 / 5).clamp(7, 18).min(rest);
    page.append(ledger(run, theme, width, ledger_height));
    let rest = height.saturating_sub(page.lines.len());
    page.append(others(app, run, theme, width, rest));
    page
}

fn verdict(run: &RunView, theme: &Theme, width: usize, lines: usize) -> Page {
    let sentence = match run.summary.verdict.sentence.as_str() {
        "" => "not measured yet: no step was seen",
        sentence => sentence,
    };
    let mut page = Page::default();
    let mut wrapped = labelled("", sentence, theme.bold(), width, theme);
    if wrapped.len() > lines {
        wrapped = vec![Line::from(ink(clip(sentence, width, theme), theme.bold()))];
    }
    page.lines = wrapped;
    page
}

/// The knob that was turned last, where one was; that a controller acts, where one does.
fn tuning(app: &App, run: &RunView, theme: &Theme, width: usize) -> Option<Line<'static>> {
    let turns = tuning::turns(rows::audit_to_date(app));
    let text = match (turns.last(), run.summary.tune) {
        (Some(turn), _) => {
            let when = clock(turn.last.time_ns.saturating_sub(run.begin_ns));
            let turned = turn.in_words(&run.summary.knobs, run.summary.ranks.len() > 1);
            format!("{turned} ({when})")
        }
        (None, Some(TuneMode::Act)) => "a controller acts, and has turned nothing yet".to_owned(),
        (None, _) => return None,
    };
    let columns = width.saturating_sub(8);
    Some(Line::from(vec![ink("tuning: ", theme.dim()), plain(clip(&text, columns, theme))]))
}

/// Time by cause over time, its scale, checkpoints, and what the colours mean.
fn ledger(run: &RunView, theme: &Theme, width: usize, height: usize) -> Page {
    let mut page = Page::default();
    page.push(pace(run, theme, width));
    let window = &run.window;
    let total = window.job;
    let table = height >= 30;
    // The table of causes, and the advice below it.
    let below = if table { by_share(&total.causes).len() + 7 } else { 1 };
    let hits = cache::hits(run, theme, width).filter(|_| height >= WITH_HITS);
    let tall = height.saturating_sub(3 + below + usize::from(hits.is_some())).clamp(2, 36);
    if total.causes.total_ns() == 0 {
        let why = match run.summary.phases.is_empty() {
            true => "no step was seen so far: the ledger begins with the first batch",
            false => "no training step ended in this time: - shows more of it, $ the newest",
        };
        page.lines.extend(labelled("  ", why, theme.dim(), width, theme));
        return page.cut(height);
    }
    let columns = window.columns(width.saturating_sub(SCALE));
    for (nth, cells) in area(&columns, tall, theme).into_iter().enumerate() {
        let scale = match nth {
            0 => "100%",
            nth if nth == tall - 1 => "0%",
            nth if nth == tall / 2 && tall > 4 => "50%",
            _ => "",
        };
        let mut spans = vec![ink(format!("{} ", right(scale, SCALE - 1, theme)), theme.dim())];
        spans.extend(cells);
        page.push(Line::from(spans));
    }
    page.push(axis(run, theme, width));
    page.push(parts::checkpoints(run, theme, width));
    page.lines.extend(hits);
    if !table {
        page.lines.extend(legend(&total.causes, width, 1, theme));
        return page.cut(height);
    }
    for (cause, share) in by_share(&total.causes) {
        page.push(Line::from(vec![
            plain("  "),
            ink(theme.fill(cause).to_string(), theme.cause(cause)),
            plain(format!(" {:<10}", cause.name())),
            ink(right(&units::percent_exact(share), 7, theme), theme.bold()),
            plain(right(&units::duration(total.causes[cause] / total.steps.max(1)), 10, theme)),
            ink(format!(" a step   {}", meaning(cause)), theme.dim()),
        ]));
    }
    page.push("");
    if let Some(diagnosis) = run.summary.diagnoses.first() {
        page.lines.extend(labelled("why  ", &diagnosis.evidence, Style::new(), width, theme));
        let remedies = run.summary.remedies();
        let best = remedies.first().map_or(diagnosis.advice.as_str(), |remedy| &remedy.sentence);
        page.lines.extend(labelled("do   ", best, theme.bold(), width, theme));
    }
    page.cut(height)
}

/// Steps, their length and samples in the time shown.
fn pace(run: &RunView, theme: &Theme, width: usize) -> Line<'static> {
    let window = &run.window;
    let span = units::duration(window.to_ns.saturating_sub(window.from_ns.max(run.begin_ns)));
    let mut all = Sum::default();
    window.ranks.iter().for_each(|(_, sum)| all.add(sum));
    let ranks = window.ranks.iter().filter(|(_, sum)| sum.steps > 0).count() as u64;
    if ranks == 0 {
        return heading("Ledger", &format!("{span} shown"), width, theme);
    }
    let steps = units::counted(all.steps / ranks, "step");
    let mut facts = format!("{span} shown: {steps} of {}", units::duration(all.step_ns()));
    if all.samples > 0 {
        let rate = units::per_second(all.samples, all.causes.total_ns() / ranks);
        facts.push_str(&format!(", {rate} samples/s"));
    }
    if ranks > 1 {
        facts.push_str(&format!(", slowest of {ranks}"));
    }
    heading("Ledger", &facts, width, theme)
}

/// When the time shown begins and ends, since the run's beginning.
fn axis(run: &RunView, theme: &Theme, width: usize) -> Line<'static> {
    let at = |ns: u64| clock(ns.saturating_sub(run.begin_ns));
    let (from, to) = (at(run.window.from_ns.max(run.begin_ns)), at(run.window.to_ns));
    let step = match run.window.bin_ns {
        0..=1_000_000_000 => "from single steps",
        1_000_000_001..=10_000_000_000 => "from roll-ups of 10 s",
        _ => "from roll-ups of a minute",
    };
    let gap = width.saturating_sub(SCALE + from.len() + to.len());
    let middle = if gap > step.len() + 4 { format!("{step:^gap$}") } else { " ".repeat(gap) };
    Line::from(ink(format!("{}{from}{middle}{to}", " ".repeat(SCALE)), theme.dim()))
}

/// Ranks, workers and files share the lines by how many each needs.
fn others(app: &App, run: &RunView, theme: &Theme, width: usize, height: usize) -> Page {
    let needs = [parts::ranks_height(app), parts::workers_height(app, run), parts::files_height(run)];
    let [ranks, workers, files] = share_out(height, needs);
    let mut page = parts::ranks(app, run, theme, width, ranks);
    page.append(parts::workers(app, run, theme, width, workers));
    page.append(parts::files(run, theme, width, files));
    page.cut(height)
}

/// Gives each a line in turn until all have what they need or nothing is left; two lines at first, for a heading and
/// what it is about.
fn share_out(height: usize, needs: [usize; 3]) -> [usize; 3] {
    let mut given = [0; 3];
    let mut left = height;
    let first = needs.map(|need| need.min(2));
    for limits in [first, needs] {
        loop {
            let mut gave = false;
            for (given, limit) in given.iter_mut().zip(limits) {
                if left > 0 && *given < limit {
                    *given += 1;
                    left -= 1;
                    gave = true;
                }
            }
            if !gave {
                break;
            }
        }
    }
    given
}

fn side_by_side(left: Page, right: Page, at: usize) -> Page {
    let mut page = Page { page: left.page.max(right.page), ..Page::default() };
    page.rows = right.rows;
    let count = left.lines.len().max(right.lines.len());
    let mut lefts = left.lines.into_iter();
    let mut rights = right.lines.into_iter();
    for _ in 0..count {
        let mut line = lefts.next().unwrap_or_default();
        let pad = at.saturating_sub(line.width());
        line.push_span(plain(" ".repeat(pad)));
        line.extend(rights.next().unwrap_or_default());
        page.push(line);
    }
    page
}

#[cfg(test)]
mod tests {
    use super::share_out;

    #[test]
    fn lines_are_shared_out_by_need() {
        assert_eq!(share_out(30, [4, 5, 6]), [4, 5, 6]);
        assert_eq!(share_out(9, [60, 9, 3]), [3, 3, 3]);
        assert_eq!(share_out(3, [60, 9, 3]), [1, 1, 1]);
        assert_eq!(share_out(0, [60, 9, 3]), [0, 0, 0]);
    }
}
