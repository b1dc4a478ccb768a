//! Files and mounts by the time that tasks of the job were blocked on them.

use super::section::{Block, Section};
use super::table::{Cell, Table, figures, words};
use crate::run::Run;
use stallscope_model::EvidenceState;
use stallscope_units as units;

/// Files in plain sight; the others unfold.
const LISTED: usize = 12;

pub(super) fn section(run: &Run) -> Section {
    let (files, mounts) = (&run.summary.files, &run.summary.mounts);
    let all_ns = mounts.iter().fold(0u64, |sum, mount| sum.saturating_add(mount.wait_ns));
    let mut blocks = Vec::new();
    let mut lead = "";
    if mounts.is_empty() && files.is_empty() {
        blocks.push(Block::Note(missing(run).to_owned()));
    } else {
        lead = "Time that trainers and workers were blocked on each, whether or not training waited for it.";
    }
    if !mounts.is_empty() {
        let rows = mounts.iter().enumerate().map(|(place, mount)| {
            let names = [Cell::path(&mount.mount), Cell::words(&mount.fs_type)];
            row(names, mount.wait_ns, mount.waits, all_ns, &format!("/mounts/{place}"))
        });
        blocks.push(Block::Table(table("Mounts", ["Mount", "Type"], rows.collect())));
    }
    if !files.is_empty() {
        let rows = files.iter().enumerate().map(|(place, file)| {
            let names = [Cell::path(&file.path), Cell::words(&file.mount)];
            row(names, file.wait_ns, file.waits, all_ns, &format!("/files/{place}"))
        });
        let mut listed: Vec<Vec<Cell>> = rows.collect();
        let more = listed.split_off(listed.len().min(LISTED));
        blocks.push(Block::Table(table("Files waited for longest", ["File", "Mount"], listed)));
        if !more.is_empty() {
            let more = table("Files waited for less", ["File", "Mount"], more);
            blocks.push(Block::Table(Table { folded: true, ..more }));
        }
    }
    Section { id: "files", heading: "Files and mounts", lead: lead.to_owned(), blocks }
}

fn missing(run: &Run) -> &'static str {
    let old = run.sources.iter().any(|source| source.format < 2);
    match run.summary.kernel {
        EvidenceState::On | EvidenceState::Partial(_) if old => {
            "Not shown: which files were waited for is in recordings from format 2 on; this one is older."
        }
        EvidenceState::On | EvidenceState::Partial(_) => {
            "No task of the job was seen blocked on a file. What is in memory already is not waited for."
        }
        EvidenceState::Off | EvidenceState::Missing(_) => {
            "Not shown: which files were waited for is seen by the kernel side alone. To get it, start sudo \
             stallscope collect on the node, or the job with stallscope run --kernel."
        }
    }
}

fn table(caption: &'static str, names: [&'static str; 2], rows: Vec<Vec<Cell>>) -> Table {
    let [name, beside] = names.map(words);
    let columns = vec![name, beside, figures("Blocked"), figures("Share"), figures("Times"), figures("Each")];
    Table::new(caption, columns, rows)
}

fn row(names: [Cell; 2], wait_ns: u64, waits: u64, all_ns: u64, source: &str) -> Vec<Cell> {
    let [name, beside] = names;
    vec![
        name,
        beside,
        Cell::duration(wait_ns).of(format!("{source}/wait_ns")),
        Cell::share(units::share(wait_ns, all_ns)),
        Cell::count(waits).of(format!("{source}/waits")),
        wait_ns.checked_div(waits).map_or_else(Cell::nothing, Cell::duration),
    ]
}
