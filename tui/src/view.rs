//! What can be chosen to be seen, and how.

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum View {
    #[default]
    Jobs,
    Job,
    Step,
    Knobs,
    Audit,
    Diagnoses,
    Health,
    Help,
}

impl View {
    pub(crate) const ALL: [View; 8] = [
        View::Jobs,
        View::Job,
        View::Step,
        View::Knobs,
        View::Audit,
        View::Diagnoses,
        View::Health,
        View::Help,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            View::Jobs => "jobs",
            View::Job => "job",
            View::Step => "step",
            View::Knobs => "knobs",
            View::Audit => "audit",
            View::Diagnoses => "diagnoses",
            View::Health => "health",
            View::Help => "help",
        }
    }
}

/// What tables show of each line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Columns {
    #[default]
    Bars,
    Shares,
    Times,
}

/// A part of the job that is shown alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Ledger,
    Ranks,
    Workers,
    Files,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sort {
    /// Index of the view's columns in [`crate::rows::SORTS`].
    pub column: usize,
    pub reversed: bool,
}
