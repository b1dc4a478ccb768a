use crate::ls::MOST_RECORDINGS;
use crate::terminal::{self, Colour};
use anyhow::Result;
use clap::Args;
use stallscope_collector::RuntimeDir;
use stallscope_store::some_recordings_in;
use stallscope_tui::{Colours, Ended, Place, Places, Theme};
use std::collections::HashSet;
use std::io::IsTerminal;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

/// Watch jobs live, or replay a recording.
///
/// Without a name it lists your jobs on this node and the recordings in this folder. It attaches nothing, and changes
/// nothing but the knobs that you change (t). Press ? for keys, : for commands and q to quit; the job runs on.
#[derive(Debug, Args)]
pub(crate) struct Top {
    /// Running job's name, prefix or PID, or a recording (NAME.stall) to replay
    #[arg(value_name = "JOB|FILE")]
    run: Option<PathBuf>,
}

pub(crate) fn main(verb: Top, colour: Colour) -> Result<ExitCode> {
    if !std::io::stdout().is_terminal() {
        terminal::say("top needs a terminal; `stallscope report` and `stallscope ls` write text");
        return Ok(ExitCode::from(2));
    }
    let runtime = RuntimeDir::of_this_user();
    let recording = match verb.run {
        None => None,
        Some(run) if run.is_file() || run.extension().is_some_and(|extension| extension == "stall") => {
            // An unreadable file fails here, not in a screen that has to be left first.
            stallscope_store::Recording::open(&run)?;
            Some(run)
        }
        Some(job) => {
            let (_, card) = match &runtime {
                Ok(runtime) => runtime.find(&job.to_string_lossy())?,
                Err(error) => anyhow::bail!("{error:#}"),
            };
            anyhow::ensure!(
                !card.recording.as_os_str().is_empty(),
                "{} is not recorded, so there is nothing to show; `kill -USR1` makes it print its summary",
                card.name
            );
            Some(card.recording)
        }
    };
    let style = terminal::style(&std::io::stdout(), colour);
    let millions = std::env::var("COLORTERM").is_ok_and(|term| term == "truecolor" || term == "24bit");
    let colours = match (style.colour, millions) {
        (false, _) => Colours::None,
        (true, false) => Colours::Sixteen,
        (true, true) => Colours::Millions,
    };
    let theme = Theme { colours, unicode: style.unicode };
    let turn = Arc::new(|recording: &Path, settings: &str| {
        turn(recording, settings).unwrap_or_else(|error| format!("{error:#}"))
    });
    match stallscope_tui::show(recording, Box::new(Here { runtime: runtime.ok() }), turn, theme)? {
        Ended::ByUser => Ok(ExitCode::SUCCESS),
        Ended::BySignal(signal) => Ok(ExitCode::from(128 + signal as u8)),
    }
}

/// Turns knobs of the running job that writes this recording.
fn turn(recording: &Path, settings: &str) -> Result<String> {
    let real = recording.canonicalize().unwrap_or_else(|_| recording.to_path_buf());
    let running = RuntimeDir::of_this_user()?.running();
    let job = running.into_iter().find(|(_, card)| card.recording == real || card.recording == recording);
    let Some((socket, _)) = job else {
        anyhow::bail!("no job of yours that runs here writes this recording")
    };
    crate::knobs::turn_by_words(&socket, settings)
}

/// Another user's link may lead into a file system that does not answer, where the list would wait for ever.
fn is_anothers_link(path: &Path) -> bool {
    let own = rustix::process::geteuid().as_raw();
    path.symlink_metadata().is_ok_and(|facts| facts.is_symlink() && ![0, own].contains(&facts.uid()))
}

/// The jobs of this user on this node, and the recordings in this folder.
struct Here {
    /// `None` where no folder for running jobs can be had: then none runs.
    runtime: Option<RuntimeDir>,
}

impl Places for Here {
    fn places(&mut self) -> Vec<Place> {
        let running = self.runtime.as_ref().map(RuntimeDir::running).unwrap_or_default();
        let mut places: Vec<Place> = running
            .into_iter()
            .map(|(_, card)| Place {
                name: card.name,
                pid: Some(card.pid),
                recording: card.recording,
                running: true,
            })
            .collect();
        let known: HashSet<PathBuf> = places.iter().map(|place| place.recording.clone()).collect();
        let found = some_recordings_in(Path::new("."), MOST_RECORDINGS)
            .map_or_else(|_| Vec::new(), |found| found.paths);
        for recording in found.into_iter().filter(|path| !is_anothers_link(path)) {
            // The recording of a running job is there already.
            if known.is_empty() || recording.canonicalize().map_or(true, |real| !known.contains(&real)) {
                let name = recording.file_name().unwrap_or_default().to_string_lossy().into_owned();
                places.push(Place { name, recording, ..Place::default() });
            }
        }
        places
    }
}
