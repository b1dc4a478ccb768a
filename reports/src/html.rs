//! A run as one HTML page that needs nothing else: its charts are in it, and it asks no server for anything.

mod verdict;

use self::verdict::Verdict;
use crate::Error;
use crate::run::Run;
use crate::sections::{self, Block, Section, patterns};
use askama::Template;
use stallscope_look::clean;
use std::io::{self, Write};

const STYLE: &str = include_str!("../templates/page.css");
const SCRIPT: &str = include_str!("../templates/sort.js");
/// What the page's policy lets in, and nothing beside it; `tests/html/page.rs` says what they have to be.
const STYLE_HASH: &str = "sha256-W3dYkH9aHVqnRCSZgAIXSkEGrT06LC5uvUj5FNGg0dQ=";
const SCRIPT_HASH: &str = "sha256-VXp7ocFeBsnStu6iSrsaZE/Ne+xx/lbVqc29KcE/+pA=";

#[derive(Template)]
#[template(path = "page.html")]
struct Page {
    title: String,
    style: &'static str,
    script: &'static str,
    /// Patterns that the charts are filled with.
    patterns: String,
    verdict: Verdict,
    sections: Vec<Section>,
    /// The run as the JSON report has it, in a form that cannot end the element it stands in.
    json: String,
    made_by: &'static str,
}

/// Writes the page.
///
/// # Errors
/// `out` cannot be written to.
pub fn write(run: &Run, out: &mut dyn Write) -> Result<(), Error> {
    let mut json = Vec::new();
    crate::json::write(run, &mut json)?;
    let json = String::from_utf8_lossy(&json);
    let name = &run.summary.job.name;
    let page = Page {
        title: if name.is_empty() { "stallscope".to_owned() } else { format!("{name} · stallscope") },
        style: STYLE,
        script: SCRIPT,
        patterns: patterns(),
        verdict: verdict::verdict(run),
        sections: sections::of(run),
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
