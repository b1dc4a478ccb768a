//! How fast each part of a rank could go by itself, and what follows from that.

use crate::snapshot::RunView;
use crate::text::{clip, heading, ink, labelled, left, plain, right};
use crate::theme::Theme;
use ratatui::text::{Line, Span};
use stallscope_look::tuning::{self, PARTS};
use stallscope_model::{Cause, Estimate, Knob, Rates};
use unicode_width::UnicodeWidthStr;

/// What is expected to help, on at most `height` lines, its heading included.
pub(super) fn advice(run: &RunView, theme: &Theme, width: usize, height: usize) -> Vec<Line<'static>> {
    let all = &run.summary.advice;
    if all.is_empty() {
        let why = match run.summary.rates.is_empty() {
            true => "none so far: the job is not known well enough",
            false => "none: no knob is expected to help",
        };
        return vec![heading("Advice", why, width, theme)];
    }
    let mut lines = vec![heading("Advice", "what is expected to help, best first", width, theme)];
    let ranks = run.summary.ranks.len() > 1;
    for advice in all.iter().take(height.saturating_sub(1).max(1)) {
        let unit = tuning::unit_of(&advice.knob, &run.summary.knobs);
        let [now, to] = [advice.now, advice.to].map(|value| tuning::amount(value, unit));
        let whose = if ranks { format!("rank {}: ", advice.rank) } else { String::new() };
        let what = left(&format!("{whose}{} {now} → {to}", advice.knob), 26.min(width / 3), theme);
        let gain = match width {
            ..70 => right(&tuning::gain(advice.gain.value), 5, theme),
            _ => right(&tuning::gain_with_interval(&advice.gain), 22, theme),
        };
        let used = 2 + what.width() + 1 + gain.width() + 2;
        lines.push(Line::from(vec![
            plain("  "),
            ink(what, theme.bold()),
            ink(format!(" {gain}  "), theme.good()),
            plain(clip(&advice.why, width.saturating_sub(used), theme)),
        ]));
    }
    lines
}

/// How fast each part of the chosen knob's loader could go by itself.
pub(super) fn rates(run: &RunView, chosen: Option<&Knob>, theme: &Theme, width: usize) -> Vec<Line<'static>> {
    let all = &run.summary.rates;
    let of_knob = |rates: &&Rates| {
        chosen.is_some_and(|knob| {
            knob.rank == rates.rank && knob.loader.is_none_or(|loader| loader == rates.loader)
        })
    };
    let Some(rates) = all.iter().find(of_knob).or(all.first()) else {
        return vec![heading("Rates", "not known so far: they come with the steps", width, theme)];
    };
    let narrowest = tuning::narrowest(rates).map(|part| part.name);
    let mut facts = Vec::new();
    facts.extend((all.len() > 1).then(|| format!("rank {}", rates.rank)));
    facts.extend(run.summary.several_loaders_train().then(|| format!("loader {}", rates.loader)));
    let part = tuning::of_the_last(rates, &run.summary).map_or(String::new(), |steps| format!(" {steps}"));
    facts.extend(
        rates.actual.map(|actual| format!("{} samples/s reached{part}", tuning::rate_with_interval(&actual))),
    );
    facts.extend(narrowest.map(|part| format!("{part} is the narrowest")));
    facts.push(format!("{} workers, prefetch {}", rates.workers, rates.prefetch));
    let mut lines = vec![heading("Rates", &facts.join("; "), width, theme)];
    let least = PARTS.iter().filter_map(|part| (part.of)(rates)).map(|rate| rate.value);
    // A bar ends at four times the narrowest rate: beyond that, more length says nothing more.
    let full = 4.0 * least.filter(|value| *value > 0.0).min_by(f64::total_cmp).unwrap_or(0.0);
    let interval = if width >= 70 { 18 } else { 0 };
    let meaning = if width >= 130 { 44 } else { 11 };
    let bar_width = width.saturating_sub(20 + interval + meaning).clamp(6, 60);
    for part in PARTS {
        let Some(rate) = (part.of)(rates) else { continue };
        let is_narrowest = narrowest == Some(part.name);
        let shown = tuning::rate_with_interval(&rate);
        let ends = shown.split_once(' ').map_or("", |(_, ends)| ends);
        let mut spans = vec![
            ink(format!("  {} ", part.letter), theme.dim()),
            plain(left(part.name, 8, theme)),
            ink(right(&tuning::rate(rate.value), 7, theme), theme.bold()),
            ink(left(&format!(" {ends}"), interval, theme), theme.dim()),
            plain(" "),
        ];
        spans.extend(bar(&rate, full, bar_width, is_narrowest, theme));
        spans.push(match (is_narrowest, meaning > 11) {
            (true, false) => ink(" narrowest", theme.alarm()),
            (true, true) => ink(format!(" narrowest: {}", part.meaning), theme.alarm()),
            (false, true) => ink(format!(" {}", part.meaning), theme.dim()),
            (false, false) => plain(""),
        });
        lines.push(Line::from(spans));
    }
    for sentence in &rates.unknown {
        lines.extend(labelled("  ? ", sentence, theme.dim(), width, theme));
    }
    lines
}

/// A figure as a bar: solid up to where it surely goes, lighter up to where it may go.
fn bar(rate: &Estimate, full: f64, width: usize, narrowest: bool, theme: &Theme) -> Vec<Span<'static>> {
    let upto = |value: f64| match full > 0.0 && value > 0.0 {
        true => ((value / full * width as f64).round() as usize).min(width),
        false => 0,
    };
    let beyond = rate.value > full;
    let sure = upto(rate.low.min(rate.value));
    let may = upto(rate.high.max(rate.value)).max(sure);
    let style = theme.cause(if narrowest { Cause::Fetch } else { Cause::Compute });
    let solid = theme.either('█', '#').to_string().repeat(sure - usize::from(beyond && sure == width));
    let light = theme.either('░', '-').to_string().repeat(may - sure);
    let more = if beyond && sure == width { theme.either("»", ">") } else { "" };
    let pad = " ".repeat(width - may);
    vec![ink(format!("{solid}{more}{light}"), style), plain(pad)]
}
