//! What the caches of loaders gave.

use super::Page;
use crate::style::{Line, left, right};
use crate::units;
use stallscope_look::cache;
use stallscope_model::{CacheUses, RunSummary};
use unicode_width::UnicodeWidthStr;

/// Curves that are told; the tables have all.
const CURVES: usize = 4;
/// Of what follows the heading.
const INDENT: usize = "Cache  ".len();

pub(super) fn write(summary: &RunSummary, page: &mut Page<'_>) {
    let Some(job) = summary.cache() else { return };
    let (mut facts, dot) = (cache::facts(&job), page.style.dot());
    let room = page.style.columns().saturating_sub(INDENT);
    // What does not fit goes below: a fact is not to be broken.
    let fitting =
        (1..=facts.len()).rev().find(|count| facts[..*count].join(dot).width() <= room).unwrap_or(1);
    let below = facts.split_off(fitting);
    page.heading("Cache", &facts.join(dot));
    if !below.is_empty() {
        page.line(Line::new(" ".repeat(INDENT)).plain(page.style.clip(&below.join(dot), room)));
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
    let room = page.style.columns().saturating_sub(4);
    let told = cache::curves(summary).into_iter().take(CURVES).map(|told| {
        let whose = if told.whose.is_empty() { String::new() } else { format!("{} ", told.whose) };
        format!("{whose}would miss with {}", told.in_words())
    });
    for said in told.chain(cache::no_curve(summary).map(str::to_owned)) {
        for (nth, line) in page.style.wrap(&said, room).into_iter().enumerate() {
            page.line(Line::new(if nth == 0 { "  " } else { "    " }).plain(line));
        }
    }
}
