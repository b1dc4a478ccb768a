//! What is one row a run, recording, host, rank, loader, phase, worker, file or mount.

use super::{Column, Table, Value, cause_columns, code, count, flag, phase_name, real, text};
use crate::run::state_name;
use stallscope_model::{EvidenceState, PhaseSummary, WorkerLoad};

pub(super) const RUN: Table = Table {
    name: "run",
    columns: || {
        vec![
            text("name"),
            text("command"),
            text("user"),
            count("pid"),
            count("started_wall_ns"),
            count("ended_wall_ns"),
            code("exit_code"),
            flag("attached"),
            count("ranks"),
            text("finding"),
            text("sentence"),
            text("kernel"),
            text("shim"),
            real("disagreement_share"),
            count("records"),
            count("lost"),
            count("wall_ns"),
            count("collector_cpu_ns"),
            count("start_cpu_ns"),
            count("collector_rss_bytes"),
            count("kernel_cpu_ns"),
        ]
    },
    rows: |run, each| {
        let summary = &run.summary;
        let (job, overhead) = (&summary.job, &summary.overhead);
        each(&[
            Value::foreign(&job.name),
            Value::foreign(&job.command.join(" ")),
            Value::foreign(&job.user),
            job.pid.into(),
            job.started_wall_ns.into(),
            job.ended_wall_ns.into(),
            job.exit_code.into(),
            job.attached.into(),
            (summary.ranks.len() as u64).into(),
            Value::foreign(&summary.verdict.finding),
            Value::foreign(&summary.verdict.sentence),
            evidence(&summary.kernel),
            evidence(&summary.shim),
            summary.disagreement_share.into(),
            overhead.records.into(),
            summary.losses.iter().fold(0u64, |sum, loss| sum.saturating_add(loss.count)).into(),
            overhead.wall_ns.into(),
            overhead.collector_cpu_ns.into(),
            overhead.start_cpu_ns.into(),
            overhead.collector_rss_bytes.into(),
            overhead.kernel_cpu_ns.into(),
        ])
    },
};

fn evidence(state: &EvidenceState) -> Value<'static> {
    match state {
        EvidenceState::Off => Value::word("off"),
        EvidenceState::On => Value::word("on"),
        EvidenceState::Partial(why) => Value::foreign(&format!("partial: {why}")),
        EvidenceState::Missing(why) => Value::foreign(&format!("missing: {why}")),
    }
}

pub(crate) const RECORDINGS: Table = Table {
    name: "recordings",
    columns: || vec![text("path"), text("host"), text("state"), count("format"), count("written_wall_ns")],
    rows: |run, each| {
        run.sources.iter().try_for_each(|source| {
            each(&[
                Value::foreign(&source.path.to_string_lossy()),
                Value::foreign(&source.host),
                Value::word(state_name(source.state)),
                source.format.unsigned_abs().into(),
                source.written_wall_ns.into(),
            ])
        })
    },
};

pub(super) const HOSTS: Table = Table {
    name: "hosts",
    columns: || {
        vec![
            text("host"),
            text("kernel"),
            count("cpus"),
            text("cpu_model"),
            count("memory_bytes"),
            text("gpus"),
        ]
    },
    rows: |run, each| {
        run.hosts.iter().try_for_each(|host| {
            each(&[
                Value::foreign(&host.host),
                Value::foreign(&host.kernel),
                host.cpus.into(),
                Value::foreign(&host.cpu_model),
                host.memory_bytes.into(),
                Value::foreign(&host.gpus.join("; ")),
            ])
        })
    },
};

pub(super) const RANKS: Table = Table {
    name: "ranks",
    columns: || {
        vec![
            count("rank"),
            count("world_size"),
            count("pid"),
            text("host"),
            text("torch_version"),
            text("python_version"),
            text("unavailable"),
            count("checkpoints"),
            count("checkpoint_bytes"),
            count("checkpoint_blocked_ns"),
            count("checkpoint_background_ns"),
            count("checkpoint_files"),
            count("checkpoint_failures"),
        ]
    },
    rows: |run, each| {
        run.summary.ranks.iter().try_for_each(|rank| {
            let (facts, saved) = (&rank.facts, &rank.checkpoints);
            let version = |text: &Option<String>| text.as_deref().map_or(Value::Empty, Value::foreign);
            each(&[
                facts.rank.into(),
                facts.world_size.into(),
                facts.pid.into(),
                Value::foreign(&facts.host),
                version(&facts.torch_version),
                version(&facts.python_version),
                Value::foreign(&facts.unavailable.join("; ")),
                saved.count.into(),
                saved.bytes.into(),
                saved.blocked_ns.into(),
                saved.background_ns.into(),
                saved.files.into(),
                saved.failed.into(),
            ])
        })
    },
};

pub(super) const LOADERS: Table = Table {
    name: "loaders",
    columns: || {
        vec![
            count("rank"),
            count("loader"),
            count("workers"),
            count("batch_size"),
            count("prefetch_factor"),
            flag("pin_memory"),
            flag("persistent_workers"),
            text("start_method"),
            text("dataset"),
            count("dataset_len"),
        ]
    },
    rows: |run, each| {
        let of_ranks = run.summary.ranks.iter().map(|rank| &rank.facts);
        of_ranks.flat_map(|facts| facts.loaders.iter().map(|loader| (facts.rank, loader))).try_for_each(
            |(rank, loader)| {
                each(&[
                    rank.into(),
                    loader.loader.into(),
                    loader.workers.into(),
                    loader.batch_size.into(),
                    loader.prefetch_factor.into(),
                    loader.pin_memory.into(),
                    loader.persistent_workers.into(),
                    Value::foreign(&loader.start_method),
                    Value::foreign(&loader.dataset),
                    loader.dataset_len.into(),
                ])
            },
        )
    },
};

pub(super) const PHASES: Table = Table {
    name: "phases",
    columns: || {
        let mut columns = vec![
            count("rank"),
            text("phase"),
            count("loader"),
            count("steps"),
            count("samples"),
            count("wall_ns"),
        ];
        columns.extend(cause_columns());
        columns.extend(["hidden_ns", "step_p50_ns", "step_p95_ns", "step_max_ns"].map(count));
        columns
    },
    rows: |run, each| {
        run.summary.phases.iter().try_for_each(|phase| each(&of_phase(None, phase)))?;
        run.summary.ranks.iter().try_for_each(|rank| {
            rank.phases.iter().try_for_each(|phase| each(&of_phase(Some(rank.facts.rank), phase)))
        })
    },
};

fn of_phase(rank: Option<u32>, phase: &PhaseSummary) -> Vec<Value<'static>> {
    let mut row = vec![
        rank.into(),
        Value::word(phase_name(phase.phase)),
        phase.loader.into(),
        phase.steps.into(),
        phase.samples.into(),
        phase.wall_ns.into(),
    ];
    row.extend(Value::causes(&phase.causes));
    row.push(phase.hidden_ns.into());
    row.extend([phase.step_p50_ns, phase.step_p95_ns, phase.step_max_ns].map(Value::from));
    row
}

pub(super) const WORKERS: Table = Table {
    name: "workers",
    columns: || {
        let mut columns = vec![count("rank")];
        columns.extend(load_columns());
        columns
    },
    rows: |run, each| {
        run.summary.ranks.iter().try_for_each(|rank| {
            rank.workers.iter().try_for_each(|worker| {
                let mut row = vec![rank.facts.rank.into()];
                row.extend(load(worker));
                each(&row)
            })
        })
    },
};

const LOAD: [&str; 9] =
    ["pid", "batches", "samples", "wall_ns", "fetch_ns", "cpu_ns", "runnable_ns", "idle_ns", "read_bytes"];

pub(super) fn load_columns() -> [Column; 9] {
    LOAD.map(count)
}

pub(super) fn load(load: &WorkerLoad) -> [Value<'static>; 9] {
    [
        load.pid.into(),
        load.batches.into(),
        load.samples.into(),
        load.wall_ns.into(),
        load.fetch_ns.into(),
        load.cpu_ns.into(),
        load.runnable_ns.into(),
        load.idle_ns.into(),
        load.read_bytes.into(),
    ]
}

pub(super) const FILES: Table = Table {
    name: "files",
    columns: || vec![text("path"), text("mount"), count("wait_ns"), count("waits")],
    rows: |run, each| {
        run.summary.files.iter().try_for_each(|file| {
            each(&[
                Value::foreign(&file.path),
                Value::foreign(&file.mount),
                file.wait_ns.into(),
                file.waits.into(),
            ])
        })
    },
};

pub(super) const MOUNTS: Table = Table {
    name: "mounts",
    columns: || vec![text("mount"), text("fs_type"), count("wait_ns"), count("waits")],
    rows: |run, each| {
        run.summary.mounts.iter().try_for_each(|mount| {
            each(&[
                Value::foreign(&mount.mount),
                Value::foreign(&mount.fs_type),
                mount.wait_ns.into(),
                mount.waits.into(),
            ])
        })
    },
};

pub(super) const PROBES: Table = Table {
    name: "probes",
    columns: || vec![text("name"), flag("on"), text("reason")],
    rows: |run, each| {
        run.summary.probes.iter().try_for_each(|probe| {
            each(&[Value::foreign(&probe.name), probe.on.into(), Value::foreign(&probe.reason)])
        })
    },
};
