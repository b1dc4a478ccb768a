//! What is kept of the job's files in the page cache.

use super::Label;
use super::page::{Kind, Page};
use stallscope_model::{HeldSummary, RunSummary};

type Figure = (Kind, &'static str, &'static str, &'static str, fn(&HeldSummary) -> u64);

const FIGURES: [Figure; 7] = [
    (Kind::Gauge, "held", "bytes", "Of the job's files, locked in the page cache.", |held| held.bytes),
    (
        Kind::Gauge,
        "held_target",
        "bytes",
        "What there is memory for at the moment, within --cache.",
        |held| held.target_bytes,
    ),
    (Kind::Gauge, "held_files", "", "Files of which something is locked.", |held| held.files),
    (Kind::Counter, "held_brought", "bytes", "Read from storage to hold files.", |held| held.brought_bytes),
    (
        Kind::Counter,
        "held_changed",
        "",
        "Files let go as they were written to, replaced or deleted.",
        |held| held.changed_files,
    ),
    (Kind::Counter, "held_released", "", "Files let go for want of memory.", |held| held.released_files),
    (
        Kind::Counter,
        "held_lost",
        "",
        "Opens and notices of the kernel of which no account was kept.",
        |held| held.lost,
    ),
];

pub(super) fn write(page: &mut Page, job: Label<'_>, summary: &RunSummary) {
    let Some(held) = &summary.held else { return };
    for (kind, name, unit, help, of) in FIGURES {
        page.family(kind, name, unit, help, |family| family.add(&[job], of(held)));
    }
}
