//! Jobs and recordings, one a line.

use crate::style::{Line, Style, left, right};
use stallscope_folder::file_user;
use stallscope_store::{Head, State};
use stallscope_units as units;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use unicode_width::UnicodeWidthStr;

/// Characters of a sentence that a row keeps: there may be thousands of rows, and a foreign recording may have one of 32 MiB.
const SENTENCE: usize = 500;

/// The recordings at `paths`, in this order, each of which may be anybody's and lie anywhere. This user's are read first, and what is
/// not read `within` that time is listed without anything from it: a thousand foreign ones that each take long do not hold up a list,
/// nor does one whose file system does not answer.
pub fn of_recordings(paths: &[PathBuf], within: Duration) -> Vec<Row> {
    let until = Instant::now() + within;
    let mut order: Vec<(usize, PathBuf)> = paths.iter().cloned().enumerate().collect();
    order.sort_by_key(|(_, path)| !is_own(path));
    let (send, rows) = mpsc::sync_channel(1);
    // Without another thread none is read. It ends with the process, or as soon as nobody takes its rows.
    let _ = std::thread::Builder::new().spawn(move || {
        for (nth, path) in order {
            if send.send((nth, Row::of_recording(&path))).is_err() {
                return;
            }
        }
    });
    let mut read: Vec<Option<Row>> = vec![None; paths.len()];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match rows.recv_timeout(left) {
            Ok((nth, row)) if !left.is_zero() => read[nth] = Some(row),
            _ => break,
        }
    }
    read.into_iter().zip(paths).map(|(row, path)| row.unwrap_or_else(|| Row::unread(path))).collect()
}

/// By whom the name itself was made, whatever it leads to.
fn is_own(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|facts| facts.uid() == file_user())
}

/// A job or a recording in the list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    pub name: String,
    /// "running", "finished", "killed", "unreadable", "not read", …
    pub state: String,
    pub pid: Option<u32>,
    pub started_wall_ns: Option<u64>,
    pub duration_ns: Option<u64>,
    /// The verdict's sentence, or why there is none.
    pub verdict: String,
}

impl Row {
    /// The recording at `path`; one that cannot be read is listed with the reason.
    pub fn of_recording(path: &Path) -> Row {
        let name = name_of(path);
        match read(path) {
            Ok(row) => Row { name, ..row },
            Err(error) => {
                let verdict = beginning(&error.to_string());
                Row { name, state: "unreadable".to_owned(), verdict, ..Row::default() }
            }
        }
    }

    fn unread(path: &Path) -> Row {
        let name = name_of(path);
        let verdict =
            format!("not read: it and those before it took too long; `stallscope report {name}` reads it");
        Row { name, state: "not read".to_owned(), verdict, ..Row::default() }
    }
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

/// A new text, as one that is cut in place keeps its memory.
fn beginning(text: &str) -> String {
    text.chars().take(SENTENCE).collect()
}

fn read(path: &Path) -> Result<Row, stallscope_store::Error> {
    let Head { state, job, verdict, written_wall_ns } = Head::read(path)?;
    let state = match state {
        State::Running => "running",
        State::Finished => "finished",
        State::Killed => "killed",
    };
    let ended_wall_ns = job.ended_wall_ns.unwrap_or(written_wall_ns);
    Ok(Row {
        name: String::new(),
        state: state.to_owned(),
        pid: Some(job.pid),
        started_wall_ns: (job.started_wall_ns > 0).then_some(job.started_wall_ns),
        duration_ns: (job.started_wall_ns > 0).then(|| ended_wall_ns.saturating_sub(job.started_wall_ns)),
        verdict: beginning(&verdict.sentence),
    })
}

/// A table with a heading; `now_wall_ns` is what "ago" is counted from. Empty without rows.
pub fn table(rows: &[Row], now_wall_ns: u64, style: &Style) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let columns = style.columns();
    let cells: Vec<[String; 6]> = rows.iter().map(|row| cells(row, now_wall_ns, style)).collect();
    let heading = ["NAME", "STATE", "PID", "STARTED", "TOOK", "VERDICT"].map(str::to_owned);
    let widest =
        |column: usize| cells.iter().chain([&heading]).map(|row| row[column].width()).max().unwrap_or(0);
    let name = widest(0).min((columns / 4).max(10));
    let widths = [name, widest(1), widest(2), widest(3), widest(4)];
    // On a narrow terminal the verdict goes to a line of its own.
    let before: usize = widths.iter().map(|width| width + 2).sum();
    let beside = columns >= before + 24;

    let mut text = String::new();
    for (nth, row) in [&heading].into_iter().chain(&cells).enumerate() {
        let facts = format!(
            "{}  {}  {}  {}  {}",
            left(&style.clip(&row[0], name), name),
            left(&row[1], widths[1]),
            right(&row[2], widths[2]),
            left(&row[3], widths[3]),
            right(&row[4], widths[4]),
        );
        let line = match (nth, beside) {
            (0, true) => Line::default().bold(format!("{facts}  {}", row[5])),
            (0, false) => Line::default().bold(facts),
            (_, true) => Line::new(facts).plain("  ").plain(style.clip(&row[5], columns - before)),
            (_, false) => Line::new(facts),
        };
        line.render(style, &mut text);
        if nth > 0 && !beside && !row[5].is_empty() {
            Line::new("  ").dim(style.clip(&row[5], columns - 2)).render(style, &mut text);
        }
    }
    text
}

fn cells(row: &Row, now_wall_ns: u64, style: &Style) -> [String; 6] {
    let nothing = || "-".to_owned();
    [
        style.clean(&row.name),
        style.clean(&row.state),
        row.pid.map_or_else(nothing, |pid| pid.to_string()),
        row.started_wall_ns.map_or_else(nothing, |started_ns| {
            format!("{} ago", units::duration(coarse(now_wall_ns.saturating_sub(started_ns))))
        }),
        row.duration_ns.map_or_else(nothing, units::duration),
        style.clean(&row.verdict),
    ]
}

/// Whole seconds: nobody wants to know how many milliseconds ago.
fn coarse(ns: u64) -> u64 {
    ns - ns % 1_000_000_000
}
