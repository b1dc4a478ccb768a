//! How far the figures can be trusted, and what it cost to get them.

use super::section::{Block, Fact, Section};
use super::table::{Cell, Table, figures, words};
use crate::run::Run;
use crate::text::{cost, delivered, evidence_in_words, unseen};
use stallscope_units as units;

pub(super) fn section(run: &Run) -> Section {
    let summary = &run.summary;
    let mut facts: Vec<Fact> = [("Kernel", &summary.kernel), ("Loader shim", &summary.shim)]
        .into_iter()
        .map(|(name, state)| Fact::new(name, evidence_in_words(state)))
        .collect();
    if let Some(share) = summary.disagreement_share {
        let text =
            format!("differ by at most {} of training time, for any cause", units::percent_exact(share));
        facts.push(Fact::new("The two", text));
    }
    facts.push(Fact::new("Delivered", delivered(summary)));
    let overhead = match summary.overhead.wall_ns {
        0 => "not known of this run".to_owned(),
        _ => cost(summary),
    };
    facts.push(Fact::new("Cost", overhead));
    let mut blocks = vec![Block::Facts(facts)];
    if summary.probes.is_empty() {
        let missing = "Which probes were on is not in this recording: it is of an older format.";
        blocks.push(Block::Note(missing.to_owned()));
    } else {
        let rows = summary.probes.iter().map(|probe| {
            let state = if probe.on { "on" } else { "off" };
            vec![
                Cell::words(&probe.name),
                Cell::words(state).marked_if(!probe.on),
                Cell::words(&probe.reason),
            ]
        });
        let columns = vec![words("Probe"), words("State"), words("Why")];
        blocks.push(Block::Table(Table::new("Sources of evidence", columns, rows.collect())));
    }
    let lost: Vec<Vec<Cell>> = summary
        .losses
        .iter()
        .enumerate()
        .filter(|(_, loss)| loss.count > 0)
        .map(|(place, loss)| {
            vec![Cell::words(&loss.reason), Cell::count(loss.count).of(format!("/losses/{place}/count"))]
        })
        .collect();
    if !lost.is_empty() {
        blocks.push(Block::Table(Table::new(
            "Seen and not delivered",
            vec![words("Reason"), figures("Records")],
            lost,
        )));
    }
    blocks.extend(unseen(summary).into_iter().map(|sentence| Block::Note(sentence.to_owned())));
    Section { id: "evidence", heading: "Evidence", lead: String::new(), blocks }
}
