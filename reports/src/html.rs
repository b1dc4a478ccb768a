//! A run as one HTML page that needs nothing else: its charts are in it, and it asks no server for anything.

mod axis;
mod cache;
mod checkpoints;
mod clock;
mod columns;
mod curve;
mod diagnoses;
mod distribution;
mod evidence;
mod facts;
mod files;
mod fill;
mod ledger;
mod over_time;
mod page;
mod pointer;
mod ranks;
mod rows;
mod svg;
mod table;
mod tuning;
mod verdict;
mod worker_lanes;
mod workers;
mod worst;

use crate::Error;
use crate::run::Run;
use askama::Template;
use columns::Columns;
use page::Page;
use stallscope_look::clean;
use std::io::{self, Write};

const STYLE: &str = include_str!("../templates/page.css");
const SCRIPT: &str = include_str!("../templates/sort.js");
/// What the page's policy lets in, and nothing beside it; `tests/html/page.rs` says what they have to be.
const STYLE_HASH: &str = "sha256-f0LBygZoo/h8ryuHjyRJgqk/ldZrn0EIeDd/o6JkyBo=";
const SCRIPT_HASH: &str = "sha256-VXp7ocFeBsnStu6iSrsaZE/Ne+xx/lbVqc29KcE/+pA=";

/// Writes the page.
///
/// # Errors
/// `out` cannot be written to.
pub fn write(run: &Run, out: &mut dyn Write) -> Result<(), Error> {
    let mut json = Vec::new();
    crate::json::write(run, &mut json)?;
    let json = String::from_utf8_lossy(&json);
    let name = &run.summary.job.name;
    let columns = Columns::of(run);
    let page = Page {
        title: if name.is_empty() { "stallscope".to_owned() } else { format!("{name} · stallscope") },
        style: STYLE,
        script: SCRIPT,
        patterns: fill::patterns(),
        verdict: verdict::verdict(run),
        sections: vec![
            ledger::section(run),
            over_time::section(run, columns.as_ref()),
            tuning::section(run, columns.as_ref()),
            ranks::section(run),
            distribution::section(run),
            worst::section(run),
            workers::section(run),
            cache::section(run),
            files::section(run),
            checkpoints::section(run),
            diagnoses::section(run),
            facts::section(run),
            evidence::section(run),
        ],
        json: in_script(&json),
        made_by: concat!("stallscope ", env!("CARGO_PKG_VERSION")),
    };
    let text = page.render().map_err(io::Error::other)?;
    // Names come from foreign files: whatever way they took, nothing that hides or turns text gets out.
    for line in text.lines() {
        writeln!(out, "{}", clean(line, true))?;
    }
    Ok(())
}

/// JSON that cannot end the script element it stands in, and needs no cleaning: what could do harm is only ever
/// within its strings, where it may be written as an escape.
fn in_script(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for char in json.chars() {
        match char {
            '<' | '>' | '&' => text.push_str(&format!("\\u{:04x}", char as u32)),
            '\n' | ' '..='~' => text.push(char),
            _ => char
                .encode_utf16(&mut [0; 2])
                .iter()
                .for_each(|unit| text.push_str(&format!("\\u{unit:04x}"))),
        }
    }
    text
}
