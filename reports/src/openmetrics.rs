//! A run, or a node's collector, as OpenMetrics text 1.0: what Prometheus scrapes. Labels are a job's name, ranks,
//! phases, causes and reasons, so that there are few of them: never pids or paths.

mod caches;
mod held;
mod page;

use crate::{Error, Run};
use page::{Kind, Page, Part};
use stallscope_model::{
    EvidenceState, Loss, NodeSummary, Overhead, Phase, PhaseSummary, RankSummary, RunSummary,
};
use stallscope_wire::{NodeJob, NodeState};
use std::io::Write;

/// Writes what [`render`] gives.
///
/// # Errors
/// `out` cannot be written to.
pub fn write(run: &Run, out: &mut dyn Write) -> Result<(), Error> {
    Ok(out.write_all(render(&run.summary).as_bytes())?)
}

/// The job's figures so far.
pub fn render(summary: &RunSummary) -> String {
    let job = [("job", summary.job.name.as_str())];
    let mut page = page_of_this_program();
    let help = "When the job was started, or attached to, since the Unix epoch.";
    page.family(Kind::Gauge, "job_start_time", "seconds", help, |start| {
        start.add(&job, summary.job.started_wall_ns)
    });
    let help = "Whether this source of evidence sees the job.";
    page.family(Kind::Gauge, "evidence_on", "", help, |evidence| {
        for (source, state) in [("kernel", &summary.kernel), ("shim", &summary.shim)] {
            let on = matches!(state, EvidenceState::On | EvidenceState::Partial(_));
            evidence.add(&[job[0], ("source", source)], on.into());
        }
    });
    of_job(&mut page, job[0], &summary.phases);
    let mut ranks = Ranks { page: &mut page, job: job[0], ranks: &summary.ranks };
    ranks.steps();
    ranks.workers();
    ranks.checkpoints();
    caches::write(&mut page, job[0], summary);
    held::write(&mut page, job[0], summary);
    tuning(&mut page, job[0], summary);
    losses(&mut page, "losses", &job, &summary.losses);
    overhead(&mut page, &job, &summary.overhead);
    page.finish()
}

/// How much the node's collector does and what that costs.
pub fn render_node(node: &NodeSummary) -> String {
    let mut page = page_of_this_program();
    for (name, help, value) in [
        ("node_sessions", "Sessions that get kernel evidence.", node.sessions),
        ("node_trees", "Process trees that they watch.", node.trees),
        ("node_tasks", "Tasks of these trees whose time is followed.", node.tasks),
    ] {
        page.family(Kind::Gauge, name, "", help, |gauge| gauge.add(&[], value));
    }
    let help = "Whether this kernel program is attached; while nobody needs it, it is not.";
    page.family(Kind::Gauge, "node_program_on", "", help, |programs| {
        node.programs
            .iter()
            .for_each(|program| programs.add(&[("program", &program.name)], program.on.into()));
    });
    losses(&mut page, "node_losses", &[], &node.losses);
    overhead(&mut page, &[], &node.overhead);
    page.finish()
}

/// What the node's service does with each job. Jobs of one user that have one name are added up.
pub fn render_jobs(state: &NodeState) -> String {
    let mut page = page_of_this_program();
    let help = "Whether nothing is changed on the whole node.";
    page.family(Kind::Gauge, "node_paused", "", help, |paused| {
        paused.add(&[], state.paused.is_some().into())
    });
    let help = "Jobs that the node's policy knows, by what it may do to them.";
    page.family(Kind::Gauge, "node_jobs", "", help, |jobs| {
        state.jobs.iter().for_each(|job| jobs.add(&[("mode", &job.mode)], 1));
    });
    type Value = fn(&NodeJob) -> u64;
    let of_jobs: [(&str, &str, &str, Value); 4] = [
        ("node_job_cache_limit", "bytes", "Most that the job's caches may be raised to.", |job| {
            job.cache_bytes
        }),
        ("node_job_saved", "seconds", "Time that proven changes have saved in the job.", |job| {
            (job.saved_s.max(0.0) * 1e9) as u64
        }),
        ("node_job_frozen", "", "Whether nothing is tried, for changes that had to be undone.", |job| {
            job.frozen.is_some().into()
        }),
        ("node_job_paused", "", "Whether nothing is changed in the job.", |job| job.paused.is_some().into()),
    ];
    for (name, unit, help, value) in of_jobs {
        page.family(Kind::Gauge, name, unit, help, |figure| {
            for job in &state.jobs {
                figure.add(&[("job", &job.name), ("user", &job.user)], value(job));
            }
        });
    }
    page.finish()
}

type Label<'a> = (&'static str, &'a str);

fn page_of_this_program() -> Page {
    let mut page = Page::default();
    let version = [("version", env!("CARGO_PKG_VERSION"))];
    page.family(Kind::Info, "build", "", "The program that measures.", |build| build.add(&version, 1));
    page
}

fn of_job(page: &mut Page, job: Label<'_>, phases: &[PhaseSummary]) {
    let help =
        "Where the job's time went, at each step the slowest rank's; the causes add up to the steps' time.";
    page.family(Kind::Counter, "job_time", "seconds", help, |time| {
        for phase in phases {
            for (cause, ns) in phase.causes.iter() {
                time.add(&[job, label(phase), ("cause", cause.name())], ns);
            }
        }
    });
    let help = "How long the job's steps took, over the whole run; quantile 1 is the longest.";
    page.family(Kind::Summary, "step", "seconds", help, |step| {
        for phase in phases.iter().filter(|phase| phase.steps > 0) {
            let loader = phase.loader.map(|loader| loader.to_string()).unwrap_or_default();
            let labels = [job, label(phase), ("loader", &loader)];
            step.add_part(&labels, Part::Quantile("0.5"), phase.step_p50_ns);
            step.add_part(&labels, Part::Quantile("0.95"), phase.step_p95_ns);
            step.add_part(&labels, Part::Quantile("1"), phase.step_max_ns);
            step.add_part(&labels, Part::Count, phase.steps);
            step.add_part(&labels, Part::Sum, phase.wall_ns);
        }
    });
}

/// As a recording names it.
fn label(phase: &PhaseSummary) -> Label<'static> {
    let name = match phase.phase {
        Phase::Startup => "startup",
        Phase::Training => "training",
        Phase::Evaluation => "evaluation",
        Phase::Between => "between",
        Phase::After => "after",
    };
    ("phase", name)
}

/// Families with a sample or more for every rank.
struct Ranks<'a> {
    page: &'a mut Page,
    job: Label<'a>,
    ranks: &'a [RankSummary],
}

/// Takes the labels beyond job and rank, and the value.
type Emit<'a> = dyn FnMut(&[Label<'_>], u64) + 'a;

impl Ranks<'_> {
    fn family(
        &mut self,
        kind: Kind,
        name: &str,
        unit: &str,
        help: &str,
        each: impl Fn(&RankSummary, &mut Emit<'_>),
    ) {
        let Ranks { page, job, ranks } = self;
        page.family(kind, name, unit, help, |family| {
            for rank in *ranks {
                let number = rank.facts.rank.to_string();
                each(rank, &mut |more, value| {
                    family.add(&[&[*job, ("rank", &number)], more].concat(), value)
                });
            }
        });
    }

    fn steps(&mut self) {
        let help = "Where a rank's time went; the causes add up to its steps' time.";
        self.family(Kind::Counter, "time", "seconds", help, |rank, emit| {
            for phase in &rank.phases {
                phase
                    .causes
                    .iter()
                    .for_each(|(cause, ns)| emit(&[label(phase), ("cause", cause.name())], ns));
            }
        });
        let help =
            "The part of a rank's waits during which its device still had work; only where one was watched.";
        self.family(Kind::Counter, "hidden", "seconds", help, |rank, emit| {
            for phase in &rank.phases {
                phase.hidden_ns.into_iter().for_each(|ns| emit(&[label(phase)], ns));
            }
        });
        self.family(Kind::Counter, "steps", "", "Steps of a rank.", |rank, emit| {
            rank.phases.iter().for_each(|phase| emit(&[label(phase)], phase.steps));
        });
        self.family(
            Kind::Counter,
            "samples",
            "",
            "Samples in the batches of a rank's steps.",
            |rank, emit| {
                rank.phases.iter().for_each(|phase| emit(&[label(phase)], phase.samples));
            },
        );
    }

    fn workers(&mut self) {
        let help = "The most loader workers that a rank has had at once.";
        self.family(Kind::Gauge, "workers", "", help, |rank, emit| emit(&[], rank.workers_at_once()));
        let help = "What a rank's workers did with their time, whether or not training waited: their load, not stall.";
        self.family(Kind::Counter, "worker_load", "seconds", help, |rank, emit| {
            for worker in &rank.workers {
                emit(&[("doing", "fetch")], worker.fetch_ns);
                emit(&[("doing", "cpu")], worker.cpu_ns);
                emit(&[("doing", "runnable")], worker.runnable_ns);
                emit(&[("doing", "idle")], worker.idle_ns);
            }
        });
        self.family(
            Kind::Counter,
            "worker_batches",
            "",
            "Batches that a rank's workers made.",
            |rank, emit| {
                rank.workers.iter().filter_map(|worker| worker.batches).for_each(|made| emit(&[], made));
            },
        );
        self.family(Kind::Counter, "worker_read", "bytes", "What they read from storage.", |rank, emit| {
            rank.workers.iter().for_each(|worker| emit(&[], worker.read_bytes));
        });
    }

    fn checkpoints(&mut self) {
        self.family(Kind::Counter, "checkpoints", "", "Checkpoints of a rank.", |rank, emit| {
            emit(&[], rank.checkpoints.count);
        });
        let help = "Saves of a stallscope.Checkpointer that failed.";
        self.family(Kind::Counter, "checkpoint_failures", "", help, |rank, emit| {
            emit(&[], rank.checkpoints.failed);
        });
        self.family(
            Kind::Counter,
            "checkpoint_size",
            "bytes",
            "Their size, as far as known.",
            |rank, emit| {
                emit(&[], rank.checkpoints.bytes);
            },
        );
        let help = "Time that the trainer stood still for them.";
        self.family(Kind::Counter, "checkpoint_blocked", "seconds", help, |rank, emit| {
            emit(&[], rank.checkpoints.blocked_ns);
        });
        let help = "Time that they took in other threads or processes.";
        self.family(Kind::Counter, "checkpoint_background", "seconds", help, |rank, emit| {
            emit(&[], rank.checkpoints.background_ns);
        });
    }
}

fn tuning(page: &mut Page, job: Label<'_>, summary: &RunSummary) {
    let help = "What a knob is set to now, in its unit; no loader where it is its rank's.";
    page.family(Kind::Gauge, "knob_value", "", help, |value| {
        for knob in &summary.knobs {
            let (rank, loader) =
                (knob.rank.to_string(), knob.loader.map(|loader| loader.to_string()).unwrap_or_default());
            let whose = [job, ("rank", &*rank), ("loader", &*loader)];
            let which: [Label<'_>; 2] = [("knob", &knob.name), ("unit", &knob.unit)];
            value.add(&[&whose[..], &which].concat(), knob.value);
        }
    });
    let help = "Lines of the audit by what they say: asked for, applied, kept, undone.";
    page.family(Kind::Counter, "decisions", "", help, |decisions| {
        for (act, lines) in &summary.acts {
            decisions.add(&[job, ("act", act.name())], *lines);
        }
    });
}

fn losses(page: &mut Page, name: &str, labels: &[Label<'_>], losses: &[Loss]) {
    page.family(Kind::Counter, name, "", "What was seen and could not be delivered, by reason.", |family| {
        for loss in losses {
            family.add(&[labels, &[("reason", &loss.reason)]].concat(), loss.count);
        }
    });
}

fn overhead(page: &mut Page, labels: &[Label<'_>], overhead: &Overhead) {
    page.family(Kind::Counter, "records", "", "Records of evidence so far.", |records| {
        records.add(labels, overhead.records);
    });
    let help = "CPU time of the process that measures.";
    page.family(Kind::Counter, "collector_cpu", "seconds", help, |cpu| {
        cpu.add(labels, overhead.collector_cpu_ns)
    });
    page.family(Kind::Gauge, "collector_memory", "bytes", "Its resident memory.", |memory| {
        memory.add(labels, overhead.collector_rss_bytes);
    });
    let help = "CPU time of the kernel programs; only while the kernel counts it (kernel.bpf_stats_enabled).";
    page.family(Kind::Counter, "kernel_cpu", "seconds", help, |cpu| {
        overhead.kernel_cpu_ns.into_iter().for_each(|ns| cpu.add(labels, ns));
    });
}
