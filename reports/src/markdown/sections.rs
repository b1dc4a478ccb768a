//! The sections of a report: the ledger is open, the others are folded away. Charts are left to the page.

use super::escape::{code, text};
use super::line;
use crate::Run;
use crate::sections::{self, Block, Cell, Section, Table};
use stallscope_units as units;

/// A comment in a forge may have 65,536 characters.
const CHARACTERS: usize = 60_000;
/// Of a table.
const ROWS: usize = 32;
/// In the head already; charts alone; machines, users and commands, which a page for others need not have.
const LEFT_TO_OTHERS: [&str; 3] = ["diagnoses", "worst-steps", "facts"];

pub(super) fn write(run: &Run, page: &mut String) {
    let mut left_out = Vec::new();
    for section in sections::of(run) {
        if LEFT_TO_OTHERS.contains(&section.id) || !has_figures(&section) {
            continue;
        }
        let written = if section.id == "ledger" { body(&section) } else { folded(&section) };
        match page.len() + written.len() < CHARACTERS {
            true => page.push_str(&written),
            false => left_out.push(section.heading),
        }
    }
    for source in &run.sources {
        let name = code(&crate::run::name(&source.path));
        line(page, format_args!("- recording {name}, {}", crate::run::state_name(source.state)));
    }
    if !left_out.is_empty() {
        line(page, format_args!("\nLeft out, as this would be too long: {}", left_out.join(", ")));
    }
}

/// Whether there is more than a remark on why there is nothing.
fn has_figures(section: &Section) -> bool {
    !section.lead.is_empty()
        || section.blocks.iter().any(|block| matches!(block, Block::Table(_) | Block::Facts(_)))
}

fn folded(section: &Section) -> String {
    format!("<details><summary>{}</summary>\n\n{}</details>\n\n", section.heading, body(section))
}

fn body(section: &Section) -> String {
    let mut page = String::new();
    if !section.lead.is_empty() {
        line(&mut page, format_args!("{}\n", text(&section.lead)));
    }
    for block in &section.blocks {
        match block {
            Block::Table(rows) => table(rows, &mut page),
            Block::Note(note) => line(&mut page, format_args!("{}\n", text(note))),
            Block::Facts(facts) => {
                for fact in facts {
                    line(&mut page, format_args!("- {}: {}", fact.name, text(&fact.value)));
                }
                page.push('\n');
            }
            // A heading is a chart's or a table's, which has a caption.
            Block::Chart(_) | Block::Heading(_) | Block::Findings(_) => {}
        }
    }
    page
}

fn table(table: &Table, page: &mut String) {
    line(page, format_args!("{}:\n", text(&table.caption)));
    let headings: Vec<&str> = table.columns.iter().map(|column| column.heading).collect();
    line(page, format_args!("| {} |", headings.join(" | ")));
    let alignment = |figures: bool| if figures { "--:|" } else { ":--|" };
    let alignments: String = table.columns.iter().map(|column| alignment(column.figures)).collect();
    line(page, format_args!("|{alignments}"));
    for row in table.rows.iter().take(ROWS) {
        line(page, format_args!("| {} |", row.iter().map(shown).collect::<Vec<_>>().join(" | ")));
    }
    if !table.foot.is_empty() {
        let bold =
            |cell: &Cell| if cell.text.is_empty() { String::new() } else { format!("**{}**", shown(cell)) };
        line(page, format_args!("| {} |", table.foot.iter().map(bold).collect::<Vec<_>>().join(" | ")));
    }
    if let Some(more) = table.rows.len().checked_sub(ROWS).filter(|more| *more > 0) {
        line(page, format_args!("\nand {} more", units::count(more as u64)));
    }
    page.push('\n');
}

fn shown(cell: &Cell) -> String {
    let safe = if cell.long { super::escape::cell(&cell.text) } else { text(&cell.text) };
    if cell.marked && !safe.is_empty() { format!("**{safe}**") } else { safe }
}
