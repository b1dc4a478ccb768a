//! What was kept of the job's files in the page cache.

use super::Page;
use crate::style::{Ink, Line};
use stallscope_model::{HeldSummary, RunSummary};
use stallscope_units as units;

pub(super) fn write(summary: &RunSummary, page: &mut Page<'_>) {
    let Some(held) = &summary.held else { return };
    page.heading("Files held in memory", &facts(held).join(page.style.dot()));
    if held.lost > 0 {
        let lost = format!("  {} opens or notices of the kernel were lost", units::count(held.lost));
        page.line(Line::new(lost));
    }
    if !held.limit.is_empty() {
        page.labelled("  -", 4, &held.limit, Ink::Plain);
    }
}

/// In one line.
pub(crate) fn held_in_words(held: &HeldSummary) -> String {
    let limit = Some(held.limit.clone()).filter(|limit| !limit.is_empty());
    facts(held).into_iter().chain(limit).collect::<Vec<_>>().join("; ")
}

fn facts(held: &HeldSummary) -> Vec<String> {
    let files = |count: u64| format!("{} file{}", units::count(count), if count == 1 { "" } else { "s" });
    let mut facts = vec![format!(
        "up to {}, of {}",
        units::memory_of(held.most_bytes, held.budget_bytes),
        files(held.most_files)
    )];
    if held.most_bytes == 0 {
        // Where something else kept it from holding any, that is on the page.
        let is_reason = held.limit.is_empty() && held.released_files == 0 && held.target_bytes > 0;
        let why = if is_reason { ": no file was read again" } else { "" };
        let budget = units::memory(held.budget_bytes);
        facts = vec![format!("nothing of {budget}{why}, of {} seen", files(held.known_files))];
    }
    if held.brought_bytes > 0 {
        facts.push(format!("{} read for it", units::bytes(held.brought_bytes)));
    }
    if held.changed_files > 0 {
        facts.push(format!("{} let go as changed", files(held.changed_files)));
    }
    if held.released_files > 0 {
        facts.push(format!("{} let go for want of memory", files(held.released_files)));
    }
    facts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_held_is_one_line() {
        let held = HeldSummary {
            budget_bytes: 8 << 30,
            most_bytes: 6 << 30,
            most_files: 1,
            brought_bytes: 7 << 30,
            changed_files: 2,
            released_files: 3,
            ..HeldSummary::default()
        };
        assert_eq!(
            facts(&held).join("; "),
            "up to 6.0 of 8.0 GiB, of 1 file; 7.5 GB read for it; 2 files let go as changed; 3 files let go for want of memory"
        );
        let nothing = HeldSummary {
            budget_bytes: 8 << 30,
            target_bytes: 8 << 30,
            known_files: 40,
            ..HeldSummary::default()
        };
        assert_eq!(facts(&nothing), ["nothing of 8.0 GiB: no file was read again, of 40 files seen"]);
        let elsewhere = HeldSummary { limit: "files are not held on NFS".into(), ..nothing };
        assert_eq!(facts(&elsewhere), ["nothing of 8.0 GiB, of 40 files seen"]);
    }
}
