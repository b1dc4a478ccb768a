//! The job, its machines, its ranks' software, and the recordings behind the page.

use super::clock;
use super::section::{Block, Fact, Section};
use super::table::{Cell, Table, figures, words};
use crate::run::Run;
use crate::text::ending;
use stallscope_model::HostFacts;
use stallscope_store::State;
use std::collections::BTreeMap;

pub(super) fn section(run: &Run) -> Section {
    let mut blocks = vec![Block::Facts(job(run))];
    let hosts: Vec<&HostFacts> = run.hosts.iter().filter(|host| **host != HostFacts::default()).collect();
    match hosts.is_empty() {
        true => blocks.push(Block::Note("Nothing is known of the machine.".to_owned())),
        false => blocks.push(Block::Table(machines(&hosts))),
    }
    let software = software(run);
    if !software.rows.is_empty() {
        blocks.push(Block::Table(software));
    }
    if !run.sources.is_empty() {
        blocks.push(Block::Table(recordings(run)));
    }
    blocks.extend(run.notes.iter().map(|note| Block::Note(note.clone())));
    Section { id: "facts", heading: "Job and machines", lead: String::new(), blocks }
}

fn job(run: &Run) -> Vec<Fact> {
    let job = &run.summary.job;
    let mut facts = Vec::new();
    if !job.name.is_empty() {
        facts.push(Fact::new("Name", job.name.clone()));
    }
    if !job.command.is_empty() {
        facts.push(Fact { code: true, ..Fact::new("Command", job.command.join(" ")) });
    }
    facts.push(Fact::new("Pid", job.pid.to_string()));
    if !job.user.is_empty() {
        facts.push(Fact::new("User", job.user.clone()));
    }
    if job.started_wall_ns > 0 {
        facts.push(Fact::new("Started", clock::moment(job.started_wall_ns)));
    }
    if let Some(ended_ns) = job.ended_wall_ns {
        facts.push(Fact::new("Ended", clock::moment(ended_ns)));
    }
    facts.push(Fact::new("Outcome", ending(&run.summary)));
    facts
}

fn machines(hosts: &[&HostFacts]) -> Table {
    let columns =
        vec![words("Host"), figures("CPUs"), words("CPU"), figures("Memory"), words("GPUs"), words("Kernel")];
    let row = |host: &&HostFacts| {
        let gpus = if host.gpus.is_empty() { "none seen".to_owned() } else { counted(&host.gpus) };
        vec![
            Cell::words(&host.host),
            Cell::count(host.cpus.into()),
            Cell::words(&host.cpu_model),
            Cell::bytes(host.memory_bytes),
            Cell::words(&gpus),
            Cell::words(&host.kernel),
        ]
    };
    Table::new("Machines", columns, hosts.iter().map(row).collect())
}

/// "8 × NVIDIA H200", each kind once.
fn counted(names: &[String]) -> String {
    let mut kinds: BTreeMap<&str, u64> = BTreeMap::new();
    for name in names {
        *kinds.entry(name).or_default() += 1;
    }
    let kinds: Vec<String> = kinds
        .into_iter()
        .map(|(name, count)| if count == 1 { name.to_owned() } else { format!("{count} × {name}") })
        .collect();
    kinds.join(", ")
}

/// Versions, with the ranks that have them: nearly always one row.
fn software(run: &Run) -> Table {
    let mut versions: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for rank in &run.summary.ranks {
        let (torch, python) = (&rank.facts.torch_version, &rank.facts.python_version);
        if torch.is_some() || python.is_some() {
            let version = (torch.as_deref().unwrap_or("–"), python.as_deref().unwrap_or("–"));
            *versions.entry(version).or_default() += 1;
        }
    }
    let columns = vec![words("torch"), words("Python"), figures("Ranks")];
    let rows = versions
        .into_iter()
        .map(|((torch, python), ranks)| vec![Cell::words(torch), Cell::words(python), Cell::count(ranks)]);
    Table::new("Software", columns, rows.collect())
}

fn recordings(run: &Run) -> Table {
    let columns =
        vec![words("Recording"), words("Host"), words("State"), words("Last written"), figures("Format")];
    let rows = run.sources.iter().map(|source| {
        let state = match source.state {
            State::Running => "still written",
            State::Finished => "finished",
            State::Killed => "its writer was killed",
        };
        vec![
            Cell::path(&source.path.to_string_lossy()),
            Cell::words(&source.host),
            Cell::words(state),
            Cell::words(&clock::moment(source.written_wall_ns)),
            Cell::number(source.format.max(0) as u64),
        ]
    });
    Table::new("Made from", columns, rows.collect())
}
