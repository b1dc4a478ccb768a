//! What the caches of loaders gave.

use super::Page;
use crate::style::{Line, left, right};
use stallscope_look::cache;
use stallscope_model::{CacheUses, RunSummary};
use stallscope_units as units;
use unicode_width::UnicodeWidthStr;

/// At most so many curves are shown; the tables have all.
const CURVES: usize = 4;
/// Of what follows the heading.
const INDENT: usize = "Cache  ".len();

pub(super) fn write(summary: &RunSummary, page: &mut Page<'_>) {
    let Some(job) = summary.cache() else { return };
    let (mut facts, dot) = (cache::facts(&job), page.style.dot());
    let columns = page.style.columns().saturating_sub(INDENT);
    // Facts that do not fit go to the line below, so that none is cut.
    let fitting =
        (1..=facts.len()).rev().find(|count| facts[..*count].join(dot).width() <= columns).unwrap_or(1);
    let below = facts.split_off(fitting);
    page.heading("Cache", &facts.join(dot));
    if !below.is_empty() {
        page.line(Line::new(" ".repeat(INDENT)).plain(page.style.clip(&below.join(dot), columns)));
    }
    let rows: Vec<(&str, &CacheUses)> = [("training", &job.training), ("evaluation", &job.other)]
        .into_iter()
        .filter(|(_, uses)| uses.draws() > 0)
        .collect();
    if rows.is_empty() {
        return;
    }
    let wide = page.style.columns() >= 76;
    let heading = match wide {
        true => "     drawn    reused  fetched ahead  substituted    missed    read",
        false => "     drawn    reused    missed    read",
    };
    page.line(Line::default().dim(format!("  {}{heading}", left("", 10))));
    for (name, uses) in rows {
        let count = |count: u64, columns: usize| right(&units::count(count), columns);
        let middle = match wide {
            true => format!("{}{}", count(uses.prefetched, 15), count(uses.substitutions, 13)),
            false => String::new(),
        };
        page.line(Line::new(format!(
            "  {}{}{}{middle}{}{}",
            left(name, 10),
            count(uses.draws(), 10),
            count(uses.reuses(), 10),
            count(uses.misses, 10),
            right(&units::bytes(uses.source_bytes), 8)
        )));
    }
    let columns = page.style.columns().saturating_sub(4);
    let curves = cache::curves(summary).into_iter().take(CURVES).map(|curve| {
        let whose = if curve.whose.is_empty() { String::new() } else { format!("{} ", curve.whose) };
        format!("{whose}would miss with {}", curve.in_words())
    });
    for sentence in curves.chain(cache::no_curve(summary).map(str::to_owned)) {
        for (nth, line) in page.style.wrap(&sentence, columns).into_iter().enumerate() {
            page.line(Line::new(if nth == 0 { "  " } else { "    " }).plain(line));
        }
    }
}
