//! What a report shows below its verdict, described once: HTML has all of it, markdown all but the charts.

mod axis;
mod cache;
mod checkpoints;
pub(crate) mod clock;
mod columns;
mod curve;
mod diagnoses;
mod distribution;
mod evidence;
mod facts;
mod files;
mod fill;
mod ledger;
mod over_time;
pub(crate) mod pointer;
mod ranks;
mod rows;
mod section;
mod svg;
mod table;
mod tuning;
mod worker_lanes;
mod workers;
mod worst;

pub(crate) use fill::patterns;
pub(crate) use section::{Block, Section};
pub(crate) use table::{Cell, Table};

use crate::run::Run;
use columns::Columns;

/// In the order in which they are read.
pub(crate) fn of(run: &Run) -> Vec<Section> {
    let columns = Columns::of(run);
    vec![
        ledger::section(run),
        over_time::section(run, columns.as_ref()),
        tuning::section(run, columns.as_ref()),
        ranks::section(run),
        distribution::section(run),
        worst::section(run),
        workers::section(run),
        cache::section(run),
        files::section(run),
        checkpoints::section(run),
        diagnoses::section(run),
        facts::section(run),
        evidence::section(run),
    ]
}
