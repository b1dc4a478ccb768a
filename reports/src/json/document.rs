//! What is in the document. Fields are called as in the tables; lists that are tables there are made from them.

use crate::tables::{self, Table, Value, ns_of, phase_name};
use crate::{Error, Run};
use serde::ser::{SerializeMap, SerializeSeq};
use serde::{Serialize, Serializer};
use stallscope_model::{
    Causes, Checkpoints, Diagnosis, EvidenceState, FileWait, HostFacts, JobFacts, Loss, MountWait, Overhead,
    PhaseSummary, Probe, RankFacts, RankSummary, StepDetail, StepLane, TuneMode, Verdict, WorkerLoad,
};

#[derive(Serialize)]
pub(super) struct Document<'a> {
    schema: u32,
    verdict: &'a Verdict,
    notes: &'a [String],
    job: &'a JobFacts,
    host: &'a HostFacts,
    hosts: &'a [HostFacts],
    recordings: Rows<'a>,
    phases: Vec<Phase<'a>>,
    diagnoses: &'a [Diagnosis],
    ranks: Vec<Rank<'a>>,
    kernel: &'a EvidenceState,
    shim: &'a EvidenceState,
    disagreement_share: Option<f64>,
    probes: &'a [Probe],
    losses: &'a [Loss],
    overhead: &'a Overhead,
    files: &'a [FileWait],
    mounts: &'a [MountWait],
    tune: Option<&'static str>,
    knobs: Rows<'a>,
    rates: Rows<'a>,
    advice: Rows<'a>,
    audit: Rows<'a>,
    cache: Rows<'a>,
    cache_periods: Rows<'a>,
    cache_curve: Rows<'a>,
    checkpoints: Rows<'a>,
    step_walls: Vec<Walls>,
    slow_steps: Vec<Step<'a>>,
    rollups: Rows<'a>,
}

#[derive(Serialize)]
struct Rank<'a> {
    facts: &'a RankFacts,
    phases: Vec<Phase<'a>>,
    workers: &'a [WorkerLoad],
    checkpoints: &'a Checkpoints,
}

#[derive(Serialize)]
struct Phase<'a> {
    phase: &'static str,
    loader: Option<u16>,
    steps: u64,
    samples: u64,
    wall_ns: u64,
    #[serde(flatten)]
    causes: Named<'a>,
    hidden_ns: Option<u64>,
    step_p50_ns: u64,
    step_p95_ns: u64,
    step_max_ns: u64,
}

/// `compute_ns`, `fetch_ns`, …
struct Named<'a>(&'a Causes);

#[derive(Serialize)]
struct Walls {
    rank: u32,
    low_ns: u64,
    high_ns: u64,
    steps: u64,
}

#[derive(Serialize)]
struct Step<'a> {
    rank: u32,
    loader: Option<u16>,
    phase: &'static str,
    index: u64,
    start_wall_ns: u64,
    end_wall_ns: u64,
    critical: Vec<Piece>,
    lanes: Vec<Lane<'a>>,
}

#[derive(Serialize)]
struct Piece {
    start_wall_ns: u64,
    end_wall_ns: u64,
    cause: &'static str,
    lane: usize,
}

#[derive(Serialize)]
struct Lane<'a> {
    pid: u32,
    role: &'a str,
    segments: Vec<Segment>,
}

#[derive(Serialize)]
struct Segment {
    start_wall_ns: u64,
    end_wall_ns: u64,
    doing: &'static str,
}

/// A table as a list of objects.
struct Rows<'a> {
    table: Table,
    run: &'a Run,
}

impl<'a> Document<'a> {
    pub(super) fn of(run: &'a Run) -> Document<'a> {
        let summary = &run.summary;
        let rows = |table| Rows { table, run };
        Document {
            schema: super::SCHEMA,
            verdict: &summary.verdict,
            notes: &run.notes,
            job: &summary.job,
            host: &summary.host,
            hosts: &run.hosts,
            recordings: rows(tables::RECORDINGS),
            phases: summary.phases.iter().map(Phase::of).collect(),
            diagnoses: &summary.diagnoses,
            ranks: summary.ranks.iter().map(Rank::of).collect(),
            kernel: &summary.kernel,
            shim: &summary.shim,
            disagreement_share: summary.disagreement_share,
            probes: &summary.probes,
            losses: &summary.losses,
            overhead: &summary.overhead,
            files: &summary.files,
            mounts: &summary.mounts,
            tune: summary.tune.map(TuneMode::name),
            knobs: rows(tables::KNOBS),
            rates: rows(tables::RATES),
            advice: rows(tables::ADVICE),
            audit: rows(tables::AUDIT),
            cache: rows(tables::CACHE),
            cache_periods: rows(tables::CACHE_PERIODS),
            cache_curve: rows(tables::CACHE_CURVE),
            checkpoints: rows(tables::CHECKPOINTS),
            step_walls: run
                .step_walls
                .iter()
                .map(|walls| Walls {
                    rank: walls.rank,
                    low_ns: walls.low_ns,
                    high_ns: walls.high_ns,
                    steps: walls.steps,
                })
                .collect(),
            slow_steps: run.details.iter().map(Step::of).collect(),
            rollups: rows(tables::ROLLUPS),
        }
    }
}

impl<'a> Rank<'a> {
    fn of(rank: &'a RankSummary) -> Rank<'a> {
        Rank {
            facts: &rank.facts,
            phases: rank.phases.iter().map(Phase::of).collect(),
            workers: &rank.workers,
            checkpoints: &rank.checkpoints,
        }
    }
}

impl<'a> Phase<'a> {
    fn of(phase: &'a PhaseSummary) -> Phase<'a> {
        Phase {
            phase: phase_name(phase.phase),
            loader: phase.loader,
            steps: phase.steps,
            samples: phase.samples,
            wall_ns: phase.wall_ns,
            causes: Named(&phase.causes),
            hidden_ns: phase.hidden_ns,
            step_p50_ns: phase.step_p50_ns,
            step_p95_ns: phase.step_p95_ns,
            step_max_ns: phase.step_max_ns,
        }
    }
}

impl<'a> Step<'a> {
    fn of(step: &'a StepDetail) -> Step<'a> {
        let lane = |lane: &'a StepLane| Lane {
            pid: lane.pid,
            role: &lane.role,
            segments: lane
                .segments
                .iter()
                .map(|segment| Segment {
                    start_wall_ns: segment.start_ns,
                    end_wall_ns: segment.end_ns,
                    doing: segment.doing.name(),
                })
                .collect(),
        };
        Step {
            rank: step.rank,
            loader: tables::loader(step.loader),
            phase: phase_name(step.phase),
            index: step.index,
            start_wall_ns: step.start_ns,
            end_wall_ns: step.end_ns,
            critical: step
                .critical
                .iter()
                .map(|piece| Piece {
                    start_wall_ns: piece.start_ns,
                    end_wall_ns: piece.end_ns,
                    cause: piece.cause.name(),
                    lane: piece.lane,
                })
                .collect(),
            lanes: step.lanes.iter().map(lane).collect(),
        }
    }
}

impl Serialize for Named<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(cause, ns)| (ns_of(cause), ns)))
    }
}

impl Serialize for Rows<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let columns = self.table.columns();
        let mut rows = serializer.serialize_seq(None)?;
        let mut failed = None;
        let done = self.table.each_row(self.run, |cells| {
            let row = Row { columns: &columns, cells };
            rows.serialize_element(&row).map_err(|error| {
                failed = Some(error);
                Error::Output(std::io::ErrorKind::Other.into())
            })
        });
        match (failed, done) {
            (Some(error), _) => Err(error),
            (None, Err(error)) => Err(serde::ser::Error::custom(error)),
            (None, Ok(())) => rows.end(),
        }
    }
}

struct Row<'a> {
    columns: &'a [tables::Column],
    cells: &'a [Value<'a>],
}

impl Serialize for Row<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut row = serializer.serialize_map(Some(self.columns.len()))?;
        for (column, cell) in self.columns.iter().zip(self.cells) {
            row.serialize_entry(column.name, cell)?;
        }
        row.end()
    }
}

impl Serialize for Value<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Value::Empty => serializer.serialize_none(),
            Value::Count(count) => serializer.serialize_u64(*count),
            Value::Code(code) => serializer.serialize_i64(*code),
            Value::Real(number) => serializer.serialize_f64(*number),
            Value::Flag(flag) => serializer.serialize_bool(*flag),
            Value::Text(text) => serializer.serialize_str(text),
        }
    }
}
