//! The state of the dashboard, and how keys change it. It knows neither terminal nor disk: keys and snapshots come
//! in; what has to be read and drawn follows from the state.

use crate::command::{self, Command};
use crate::key::Key;
use crate::read::Ask;
use crate::rows;
use crate::snapshot::{JobRow, JobState, RunView, Update, Wanted};
use crate::time::{Extent, Time};
pub(crate) use crate::view::{Columns, Part, Sort, View};
use std::path::PathBuf;
use std::sync::Arc;

/// What the loop has to do after a key or a click.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Redraw,
    Quit,
    /// Change knobs of the job with this recording; the outcome comes as [`Update::Answer`].
    Turn {
        recording: PathBuf,
        settings: String,
    },
}

/// A line that is being typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Prompt {
    Filter { before: String },
    Palette { text: String, picked: usize },
}

#[derive(Clone, Debug, Default)]
pub(crate) struct App {
    pub view: View,
    pub jobs: Option<Arc<Vec<JobRow>>>,
    /// The recording shown in every view but the list of jobs.
    pub recording: Option<PathBuf>,
    pub run: Option<Arc<RunView>>,
    /// Why that recording cannot be read (any more).
    pub lost: Option<String>,
    pub time: Time,
    pub filters: [String; View::ALL.len()],
    pub sorts: [Sort; View::ALL.len()],
    pub columns: Columns,
    pub part: Option<Part>,
    pub prompt: Option<Prompt>,
    /// A sentence on the last line until the next key.
    pub message: Option<String>,
    /// The cursors hold the thing that they are on, not its line, so that they stay on it when lines move.
    pub job_at: Option<PathBuf>,
    pub rank_at: Option<u32>,
    /// Rank and start of a step.
    pub step_at: Option<(u32, u64)>,
    /// Line of the audit; `None`: the newest.
    pub audit_at: Option<u64>,
    pub line_at: [usize; View::ALL.len()],
    /// Lines that fit on the screen.
    pub page: usize,
    /// Go to the worst step as soon as steps have been read.
    pub(crate) seek_worst: bool,
}

impl App {
    /// Begins with all jobs, or with one.
    pub(crate) fn new(recording: Option<PathBuf>) -> App {
        let view = if recording.is_some() { View::Job } else { View::Jobs };
        App { view, recording, page: 10, ..App::default() }
    }

    /// What has to be read for what is shown.
    pub(crate) fn ask(&self) -> Ask {
        let steps = self.view == View::Step || self.seek_worst;
        Ask {
            jobs: self.view == View::Jobs,
            run: self.recording.clone().filter(|_| self.view != View::Jobs).map(|recording| Wanted {
                recording,
                to_ns: self.time.at_ns,
                span_ns: self.time.span_ns(),
                rank: rows::rank_at(self),
                steps,
            }),
        }
    }

    /// The run that is shown, once it is read.
    pub(crate) fn shown(&self) -> Option<&RunView> {
        self.run.as_deref().filter(|run| Some(&run.recording) == self.recording.as_ref())
    }

    pub(crate) fn extent(&self) -> Extent {
        self.shown().map_or_else(Extent::default, |run| Extent {
            begin_ns: run.begin_ns,
            end_ns: run.end_ns,
            running: run.state == JobState::Running,
        })
    }

    pub(crate) fn filter(&self) -> &str {
        &self.filters[self.view as usize]
    }

    pub(crate) fn on_update(&mut self, update: Update) {
        match update {
            Update::Jobs(jobs) => self.jobs = Some(jobs),
            Update::Run(run) if Some(&run.recording) == self.recording.as_ref() => {
                if self.shown().is_none() && run.state == JobState::Running {
                    self.time.recent();
                }
                self.lost = None;
                self.run = Some(run);
                // The default rank is chosen once, so that the cursor does not move without a key.
                self.rank_at = self.rank_at.or_else(|| rows::rank_at(self));
                if self.seek_worst && self.shown().is_some_and(|run| run.steps.is_some()) {
                    self.seek_worst = false;
                    self.worst();
                }
            }
            Update::Lost { recording, reason } if Some(&recording) == self.recording.as_ref() => {
                self.lost = Some(reason);
            }
            Update::Answer(sentence) => self.message = Some(sentence),
            // These are of a recording that is not shown any more.
            Update::Run(_) | Update::Lost { .. } => {}
        }
    }

    /// Moves a replay on by the time passed; true when that changes what is shown.
    pub(crate) fn on_tick(&mut self, passed_ns: u64) -> bool {
        let before = self.time;
        self.time.pass(passed_ns, self.extent());
        self.time != before
    }

    pub(crate) fn on_key(&mut self, key: Key) -> Option<Action> {
        self.message = None;
        match self.prompt.take() {
            Some(prompt) => self.type_on(prompt, key),
            None => command::of_key(key).map(|command| self.execute(command)),
        }
    }

    fn type_on(&mut self, prompt: Prompt, key: Key) -> Option<Action> {
        if key == Key::Ctrl('c') {
            return Some(Action::Quit);
        }
        match prompt {
            Prompt::Filter { before } => {
                let filter = &mut self.filters[self.view as usize];
                match key {
                    Key::Esc => *filter = before,
                    Key::Enter => {}
                    _ => {
                        edit(filter, key);
                        self.prompt = Some(Prompt::Filter { before });
                    }
                }
            }
            Prompt::Palette { mut text, picked } => {
                let found = command::matching(&text);
                let last = found.len().saturating_sub(1);
                let picked = match key {
                    Key::Esc => return Some(Action::Redraw),
                    Key::Enter => {
                        let Some(entry) = found.get(picked) else {
                            self.message = Some(format!("there is no command {text}; ? shows them all"));
                            return Some(Action::Redraw);
                        };
                        return Some(
                            match command::settings(&text).filter(|_| entry.command == Command::Set) {
                                Some(settings) if !settings.is_empty() => self.set(settings),
                                _ => self.execute(entry.command),
                            },
                        );
                    }
                    Key::Down | Key::Tab => (picked + 1).min(last),
                    Key::Up | Key::BackTab => picked.saturating_sub(1),
                    _ => {
                        edit(&mut text, key);
                        0
                    }
                };
                self.prompt = Some(Prompt::Palette { text, picked });
            }
        }
        Some(Action::Redraw)
    }

    pub(crate) fn execute(&mut self, command: Command) -> Action {
        let extent = self.extent();
        match command {
            Command::Quit => return Action::Quit,
            Command::Jobs => self.go(View::Jobs),
            Command::Job => self.go(View::Job),
            Command::Step => self.go(View::Step),
            Command::Knobs => self.go(View::Knobs),
            Command::Audit => self.go(View::Audit),
            Command::Diagnoses => self.go(View::Diagnoses),
            Command::Health => self.go(View::Health),
            Command::Help => self.go(View::Help),
            Command::NextView => self.turn(1),
            Command::PreviousView => self.turn(View::ALL.len() - 1),
            Command::Down => rows::go(self, |at| at + 1),
            Command::Up => rows::go(self, |at| at.saturating_sub(1)),
            Command::PageDown => {
                let page = self.page;
                rows::go(self, |at| at + page);
            }
            Command::PageUp => {
                let page = self.page;
                rows::go(self, |at| at.saturating_sub(page));
            }
            Command::First => rows::go(self, |_| 0),
            Command::Last => rows::go(self, |_| usize::MAX),
            Command::Open => self.open(),
            Command::Back => self.back(),
            Command::Filter => self.prompt = Some(Prompt::Filter { before: self.filter().to_owned() }),
            Command::Set => self.prompt = Some(Prompt::Palette { text: "set ".to_owned(), picked: 0 }),
            Command::Palette => self.prompt = Some(Prompt::Palette { text: String::new(), picked: 0 }),
            Command::Sort => self.sort(),
            Command::Reverse => self.sorts[self.view as usize].reversed ^= true,
            Command::Columns => {
                self.columns = match self.columns {
                    Columns::Bars => Columns::Shares,
                    Columns::Shares => Columns::Times,
                    Columns::Times => Columns::Bars,
                }
            }
            Command::Part => {
                self.part = match self.part {
                    None => Some(Part::Ledger),
                    Some(Part::Ledger) => Some(Part::Ranks),
                    Some(Part::Ranks) => Some(Part::Workers),
                    Some(Part::Workers) => Some(Part::Files),
                    Some(Part::Files) => None,
                }
            }
            Command::Pause => self.time.pause(extent),
            Command::Earlier => self.time.seek(false, extent),
            Command::Later => self.time.seek(true, extent),
            Command::Beginning => {
                let first_ns = extent.begin_ns.saturating_add(self.time.span_ns().unwrap_or(0));
                self.time.go_to(first_ns, extent);
            }
            Command::Newest => self.time.go_to(u64::MAX, extent),
            Command::Worst => self.worst(),
            Command::ZoomIn => self.time.zoom(true, extent),
            Command::ZoomOut => self.time.zoom(false, extent),
            Command::Slower => self.time.slower(),
            Command::Faster => self.time.faster(),
        }
        Action::Redraw
    }

    /// Asks for other settings of knobs.
    fn set(&mut self, settings: &str) -> Action {
        let running = self.shown().is_some_and(|run| run.state == JobState::Running);
        match self.recording.clone().filter(|_| running) {
            Some(recording) => {
                self.message = Some(format!("asked for {settings}"));
                Action::Turn { recording, settings: settings.to_owned() }
            }
            None => {
                let why = "only a running job's knobs can be turned: 1 shows all jobs, Enter opens one";
                self.message = Some(why.to_owned());
                Action::Redraw
            }
        }
    }

    fn go(&mut self, view: View) {
        // A view of one job would be empty without a job; the one under the cursor is the best guess.
        if !matches!(view, View::Jobs | View::Help) && self.recording.is_none() {
            self.choose();
        }
        self.view = view;
    }

    fn turn(&mut self, by: usize) {
        self.go(View::ALL[(self.view as usize + by) % View::ALL.len()]);
    }

    /// Shows the job that the cursor is on.
    pub(crate) fn choose(&mut self) {
        let Some(job) = rows::jobs(self).get(rows::job_place(self)).map(|job| job.recording.clone()) else {
            return;
        };
        if self.recording.as_ref() != Some(&job) {
            self.recording = Some(job);
            self.run = None;
            self.lost = None;
            self.time = Time::default();
            self.rank_at = None;
            self.step_at = None;
            self.audit_at = None;
        }
    }

    fn open(&mut self) {
        match self.view {
            View::Jobs => {
                self.choose();
                if self.recording.is_some() {
                    self.view = View::Job;
                }
            }
            View::Job => {
                let rank = rows::rank_at(self);
                self.view = View::Step;
                self.filters[View::Step as usize] =
                    rank.map_or_else(String::new, |rank| format!("rank {rank}"));
            }
            View::Diagnoses => self.open_diagnosis(),
            View::Help => {
                let entry = rows::commands(self).get(self.line_at[View::Help as usize]).copied();
                if let Some(entry) = entry {
                    self.execute(entry.command);
                }
            }
            View::Knobs => {
                let knob =
                    rows::knobs(self).get(self.line_at[View::Knobs as usize]).map(|knob| knob.name.clone());
                self.filters[View::Audit as usize] = knob.unwrap_or_default();
                self.view = View::Audit;
            }
            View::Audit => self.open_decision(),
            View::Step | View::Health => {}
        }
    }

    fn back(&mut self) {
        let filter = &mut self.filters[self.view as usize];
        if !filter.is_empty() {
            filter.clear();
        } else if self.part.is_some() && self.view == View::Job {
            self.part = None;
        } else if !matches!(self.view, View::Jobs | View::Job) {
            self.view = View::Job;
        } else {
            self.view = View::Jobs;
        }
    }

    fn sort(&mut self) {
        let columns = rows::SORTS[self.view as usize];
        if columns.is_empty() {
            self.message = Some("there is nothing to sort here".into());
            return;
        }
        let sort = &mut self.sorts[self.view as usize];
        *sort = Sort { column: (sort.column + 1) % columns.len(), reversed: false };
        self.message = Some(format!("by {}", columns[sort.column]));
    }
}

fn edit(text: &mut String, key: Key) {
    match key {
        Key::Char(char) => text.push(char),
        Key::Backspace => drop(text.pop()),
        Key::Ctrl('u') => text.clear(),
        _ => {}
    }
}
