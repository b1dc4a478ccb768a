//! The command line: one file a verb, no logic of its own.

mod attach;
mod audit;
mod budgets;
mod ckpt;
mod collect;
mod diff;
mod doctor;
mod hold;
mod knobs;
mod ls;
mod metrics;
mod node;
mod pack;
mod pack_change;
mod pack_mount;
mod pack_source;
mod python_stack;
mod report;
mod run;
mod shell;
mod simulate;
mod terminal;
mod top;
mod tune;
mod what_if;
mod working;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Show where a training job waits for data and checkpoints.
///
/// Start with `stallscope run -- python train.py`. Nothing in train.py changes.
#[derive(Debug, Parser)]
#[command(version, arg_required_else_help = true, after_help = EXIT_CODES)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
    /// When to use colours
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    color: terminal::Colour,
}

const EXIT_CODES: &str = "Exit codes: `run` exits as the job does (126 or 127 when it could not be started); \
all others: 0 done, 1 failed, 2 wrong arguments.";

/// Each verb is described beside its options.
#[derive(Debug, Subcommand)]
enum Verb {
    Run(run::Run),
    Attach(attach::Attach),
    Collect(collect::Collect),
    Ls(ls::Ls),
    Top(top::Top),
    Report(report::Report),
    Knobs(knobs::Knobs),
    Tune(tune::Tune),
    Audit(audit::Audit),
    WhatIf(what_if::WhatIf),
    Simulate(simulate::Simulate),
    Ckpt(ckpt::Ckpt),
    Pack(pack::PackVerb),
    Diff(diff::Diff),
    Node(node::Node),
    Doctor(doctor::Doctor),
    Completions(shell::Completions),
    #[command(hide = true)]
    HoldFiles(hold::Hold),
    #[command(hide = true)]
    ReadPythonStack(python_stack::PythonStack),
    #[command(hide = true)]
    NodeService(node::Service),
    #[command(hide = true)]
    NodeSession(node::Session),
    #[command(hide = true)]
    NodeCollect(node::Collect),
    #[command(hide = true)]
    Man(shell::Man),
}

fn main() -> ExitCode {
    stallscope_collector::note_inherited_descriptors();
    stallscope_collector::take_file_limits_as_errors();
    if let Err(sentence) = stallscope_collector::has_stack() {
        terminal::say(&sentence);
        return ExitCode::from(2);
    }
    let arguments = Arguments::parse();
    let colour = arguments.color;
    let is_its_own_user = matches!(
        arguments.verb,
        Verb::Collect(_) | Verb::HoldFiles(_) | Verb::ReadPythonStack(_) | Verb::NodeService(_)
    );
    if !is_its_own_user {
        stallscope_collector::open_files_as_caller_of_sudo();
    }
    let outcome = match arguments.verb {
        Verb::Run(verb) => run::main(verb, colour),
        Verb::Attach(verb) => attach::main(verb, colour),
        Verb::Collect(verb) => collect::main(&verb),
        Verb::Ls(verb) => ls::main(&verb, colour),
        Verb::Top(verb) => top::main(verb, colour),
        Verb::Knobs(verb) => knobs::main(verb, colour),
        Verb::Tune(verb) => tune::main(&verb, colour),
        Verb::Audit(verb) => audit::main(&verb, colour),
        Verb::WhatIf(verb) => what_if::main(&verb, colour),
        Verb::Simulate(verb) => simulate::main(&verb),
        Verb::Report(verb) => report::main(&verb, colour),
        Verb::Ckpt(verb) => ckpt::main(&verb),
        Verb::Pack(verb) => pack::main(&verb),
        Verb::Diff(verb) => diff::main(&verb, colour),
        Verb::Node(verb) => node::main(&verb, colour),
        Verb::HoldFiles(verb) => hold::main(&verb),
        Verb::ReadPythonStack(verb) => python_stack::main(&verb),
        Verb::NodeService(verb) => node::service(&verb),
        Verb::NodeSession(verb) => node::session(&verb),
        Verb::NodeCollect(verb) => node::collect(&verb),
        Verb::Doctor(verb) => doctor::main(&verb, colour),
        Verb::Completions(verb) => shell::completions(&verb),
        Verb::Man(verb) => shell::man(&verb),
    };
    outcome.unwrap_or_else(|error| {
        terminal::say(&format!("{error:#}"));
        ExitCode::FAILURE
    })
}
