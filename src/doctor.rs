use crate::terminal::{self, Colour};
use anyhow::Result;
use clap::Args;
use stallscope_reports::clean;
use std::fmt::Write;
use std::process::ExitCode;

/// Check what works on this machine, and how to get the rest.
///
/// Changes nothing. Exits with 1 if something is missing that measuring a job in full requires, else with 0.
#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn main(verb: &Doctor, colour: Colour) -> Result<ExitCode> {
    let checks = stallscope_collector::doctor();
    let text = if verb.json {
        terminal::json(&checks)?
    } else {
        let style = terminal::style(&std::io::stdout(), colour);
        let paint = |code: &str, text: &str| {
            if style.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_string() }
        };
        let width = checks.iter().map(|check| check.name.chars().count()).max().unwrap_or(0);
        let mut text = String::new();
        for check in &checks {
            let mark = match (check.ok, check.needed) {
                (true, _) => paint("32", "ok     "),
                (false, true) => paint("31", "missing"),
                (false, false) => paint("33", "note   "),
            };
            // Some of it is a service's answer, at a socket that the environment may name.
            let [detail, remedy] = [&check.detail, &check.remedy].map(|text| clean(text, style.unicode));
            writeln!(text, "{mark}  {:width$}  {detail}", check.name)?;
            if !remedy.is_empty() {
                writeln!(text, "{:9}{:width$}  {}", "", "", paint("1", &remedy))?;
            }
        }
        text
    };
    terminal::print(&text)?;
    Ok(if checks.iter().all(|check| check.ok || !check.needed) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
