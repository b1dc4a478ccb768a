//! What the shell and `man` know of the command line, from its one definition.

use crate::{Arguments, terminal};
use anyhow::{Context, Result};
use clap::{Args, Command, CommandFactory};
use clap_complete::Shell;
use std::path::PathBuf;
use std::process::ExitCode;

/// Print shell completions.
///
/// bash: `stallscope completions bash > ~/.local/share/bash-completion/completions/stallscope`
///
/// zsh: `stallscope completions zsh > DIR/_stallscope`, DIR being one of $fpath
///
/// fish: `stallscope completions fish > ~/.config/fish/completions/stallscope.fish`
#[derive(Debug, Args)]
pub(crate) struct Completions {
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

pub(crate) fn completions(verb: &Completions) -> Result<ExitCode> {
    let all = Arguments::command();
    // Some shells' scripts would offer hidden verbs too.
    let verbs = all.get_subcommands().filter(|verb| !verb.is_hide_set());
    let mut shown = Command::new("stallscope").args(all.get_arguments()).subcommands(verbs).version("");
    let mut script = Vec::new();
    clap_complete::generate(verb.shell, &mut shown, "stallscope", &mut script);
    terminal::print(&String::from_utf8_lossy(&script))?;
    Ok(ExitCode::SUCCESS)
}

/// Write the man pages of all verbs into a folder; `make man` calls it.
#[derive(Debug, Args)]
pub(crate) struct Man {
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
}

pub(crate) fn man(verb: &Man) -> Result<ExitCode> {
    let cannot = || format!("cannot write man pages into {}", verb.folder.display());
    std::fs::create_dir_all(&verb.folder).with_context(cannot)?;
    clap_mangen::generate_to(Arguments::command(), &verb.folder).with_context(cannot)?;
    Ok(ExitCode::SUCCESS)
}
