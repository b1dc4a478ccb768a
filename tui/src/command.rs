//! The one table of the dashboard's commands, from which keys, palette and help are made.

use crate::key::Key;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Command {
    Jobs,
    Job,
    Step,
    Knobs,
    Audit,
    Diagnoses,
    Health,
    Help,
    NextView,
    PreviousView,
    Down,
    Up,
    PageDown,
    PageUp,
    First,
    Last,
    Open,
    Back,
    Filter,
    Sort,
    Reverse,
    Columns,
    Part,
    Pause,
    Earlier,
    Later,
    Beginning,
    Newest,
    Worst,
    ZoomIn,
    ZoomOut,
    Slower,
    Faster,
    Set,
    Palette,
    Quit,
}

/// A command with its name, keys and help.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub command: Command,
    /// Name in the palette.
    pub name: &'static str,
    /// Keys that run it; help shows the first one first.
    pub keys: &'static [Key],
    pub help: &'static str,
}

const fn entry(command: Command, name: &'static str, keys: &'static [Key], help: &'static str) -> Entry {
    Entry { command, name, keys, help }
}

pub(crate) const COMMANDS: &[Entry] = {
    use Key::*;
    &[
        entry(Command::Jobs, "jobs", &[Char('1')], "all jobs: what runs here, what was recorded here"),
        entry(Command::Job, "job", &[Char('2')], "one job: its time by cause, ranks, workers, files"),
        entry(Command::Step, "step", &[Char('3')], "one step: its processes, and what held it up"),
        entry(Command::Knobs, "knobs", &[Char('4')], "what can be changed while the job runs"),
        entry(Command::Audit, "audit", &[Char('5')], "what the controller decided, and what came of it"),
        entry(Command::Diagnoses, "diagnoses", &[Char('6')], "what is wrong, why, and what to do"),
        entry(Command::Health, "health", &[Char('7')], "what could be seen, what was lost, what it cost"),
        entry(Command::Help, "help", &[Char('8'), Char('?'), Function(1)], "every key"),
        entry(Command::NextView, "next-view", &[Tab], "the view to the right"),
        entry(Command::PreviousView, "previous-view", &[BackTab], "the view to the left"),
        entry(Command::Down, "down", &[Char('j'), Down], "one line down"),
        entry(Command::Up, "up", &[Char('k'), Up], "one line up"),
        entry(Command::PageDown, "page-down", &[PageDown, Ctrl('f')], "a page down"),
        entry(Command::PageUp, "page-up", &[PageUp, Ctrl('b')], "a page up"),
        entry(Command::First, "first", &[Char('g'), Home], "to the first line"),
        entry(Command::Last, "last", &[Char('G'), End], "to the last line"),
        entry(
            Command::Open,
            "open",
            &[Enter],
            "the job, a rank's slowest step, when a finding cost most, when it was decided",
        ),
        entry(Command::Back, "back", &[Esc, Backspace], "back; ends a filter"),
        entry(Command::Filter, "filter", &[Char('/'), Function(4)], "only lines that contain a text"),
        entry(Command::Sort, "sort", &[Char('s'), Function(6)], "by the next column"),
        entry(Command::Reverse, "reverse", &[Char('S')], "the other way round"),
        entry(Command::Columns, "columns", &[Char('c')], "bars, shares or times"),
        entry(Command::Part, "part", &[Char('p')], "the next part of the job alone, then all again"),
        entry(Command::Pause, "pause", &[Char(' ')], "stop or go on, live and in a replay"),
        entry(
            Command::Earlier,
            "earlier",
            &[Char('['), Char('h'), Left],
            "back in time, a quarter of what is shown",
        ),
        entry(Command::Later, "later", &[Char(']'), Char('l'), Right], "forth in time"),
        entry(Command::Beginning, "beginning", &[Char('0')], "to the beginning of the run"),
        entry(Command::Newest, "newest", &[Char('$')], "to the newest, or the end"),
        entry(Command::Worst, "worst", &[Char('w')], "to the worst step"),
        entry(Command::ZoomIn, "zoom-in", &[Char('+'), Char('=')], "less time in more detail"),
        entry(Command::ZoomOut, "zoom-out", &[Char('-')], "more time"),
        entry(Command::Slower, "slower", &[Char('<')], "replay at half the speed"),
        entry(Command::Faster, "faster", &[Char('>')], "replay at twice the speed"),
        entry(Command::Set, "set", &[Char('t')], "change knobs of a running job: set workers=6 [--rank N]"),
        entry(Command::Palette, "palette", &[Char(':')], "type any of these commands"),
        entry(Command::Quit, "quit", &[Char('q'), Function(10), Ctrl('c')], "leave; the job runs on"),
    ]
};

/// What follows "set " in the palette, as `stallscope knobs JOB set` takes it.
pub(crate) fn settings(text: &str) -> Option<&str> {
    text.trim_start().strip_prefix("set ").map(str::trim)
}

/// The command that a key runs.
pub(crate) fn of_key(key: Key) -> Option<Command> {
    COMMANDS.iter().find(|entry| entry.keys.contains(&key)).map(|entry| entry.command)
}

/// Commands that match the typed `text`: those that begin with it, then those that contain it.
pub(crate) fn matching(text: &str) -> Vec<&'static Entry> {
    let text = text.trim().to_lowercase();
    // `set` is followed by settings, so its whole text is no prefix of the command's name.
    let is_set = |entry: &Entry| entry.command == Command::Set && settings(&text).is_some();
    let begins = |entry: &&Entry| entry.name.starts_with(&text) || is_set(entry);
    let contains =
        |entry: &&Entry| !begins(entry) && (entry.name.contains(&text) || entry.help.contains(&text));
    COMMANDS.iter().filter(begins).chain(COMMANDS.iter().filter(contains)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_key_means_one_thing_and_every_command_has_one() {
        let mut keys = HashSet::new();
        let mut names = HashSet::new();
        let mut commands = HashSet::new();
        for entry in COMMANDS {
            assert!(!entry.keys.is_empty() && !entry.help.is_empty(), "{}", entry.name);
            assert!(entry.keys.iter().all(|key| keys.insert(*key)), "{} shares a key", entry.name);
            assert!(
                names.insert(entry.name) && commands.insert(entry.command),
                "{} is there twice",
                entry.name
            );
        }
    }

    #[test]
    fn the_palette_finds_by_beginning_first() {
        assert_eq!(matching("jo")[0].command, Command::Jobs);
        assert_eq!(matching("job")[1].command, Command::Job);
        assert_eq!(matching(" Zoom")[0].command, Command::ZoomIn);
        assert_eq!(matching("").len(), COMMANDS.len());
        assert!(matching("no such thing").is_empty());
        let set: Vec<Command> = matching("set workers=4").iter().map(|entry| entry.command).collect();
        assert_eq!((set, settings(" set workers=4 ")), (vec![Command::Set], Some("workers=4")));
    }
}
