//! Files and mounts by the time that tasks of the job were blocked on them.

use super::page::{Block, Section};
use super::table::{Cell, Table, figures, words};
use crate::run::Run;
use stallscope_look::units;

pub(super) fn section(run: &Run) -> Section {
    let (files, mounts) = (&run.summary.files, &run.summary.mounts);
    let all_ns = mounts.iter().fold(0u64, |sum, mount| sum.saturating_add(mount.wait_ns));
    let each = |wait_ns: u64, waits: u64| match waits {
        0 => Cell::nothing(),
        _ => Cell::duration(wait_ns / waits),
    };
    let mut blocks = Vec::new();
    let mut lead = String::new();
    if mounts.is_empty() && files.is_empty() {
        let missing = "Not shown: which files were waited for is seen by the kernel side alone. Get it with \
                       `sudo stallscope collect` on the node, or `stallscope run --kernel`.";
        blocks.push(Block::Note(missing.to_owned()));
    } else {
        lead = "Time that trainers and workers were blocked on each, whether or not training waited for it."
            .to_owned();
    }
    if !mounts.is_empty() {
        let columns = vec![
            words("Mount"),
            words("Type"),
            figures("Blocked"),
            figures("Share"),
            figures("Times"),
            figures("Each"),
        ];
        let rows = mounts.iter().enumerate().map(|(place, mount)| {
            let source = |field: &str| format!("/mounts/{place}/{field}");
            vec![
                Cell::path(&mount.mount),
                Cell::words(&mount.fs_type),
                Cell::duration(mount.wait_ns).of(source("wait_ns")),
                Cell::share(units::share(mount.wait_ns, all_ns)),
                Cell::count(mount.waits).of(source("waits")),
                each(mount.wait_ns, mount.waits),
            ]
        });
        blocks.push(Block::Table(Table::new("Mounts", columns, rows.collect())));
    }
    if !files.is_empty() {
        let columns = vec![
            words("File"),
            words("Mount"),
            figures("Blocked"),
            figures("Share"),
            figures("Times"),
            figures("Each"),
        ];
        let rows = files.iter().enumerate().map(|(place, file)| {
            let source = |field: &str| format!("/files/{place}/{field}");
            vec![
                Cell::path(&file.path),
                Cell::words(&file.mount),
                Cell::duration(file.wait_ns).of(source("wait_ns")),
                Cell::share(units::share(file.wait_ns, all_ns)),
                Cell::count(file.waits).of(source("waits")),
                each(file.wait_ns, file.waits),
            ]
        });
        blocks.push(Block::Table(Table::new("Files waited for longest", columns, rows.collect())));
    }
    Section { id: "files", heading: "Files and mounts", lead, blocks }
}
