//! What Prometheus is given adds up to what the summary says, and names nobody's processes or paths.

mod support;

use stallscope_model::*;
use stallscope_reports::openmetrics::{render, render_jobs, render_node};
use stallscope_wire::{NodeJob, NodeState};
use std::collections::BTreeMap;

/// Samples by name and labels; panics where the text is not OpenMetrics.
fn samples(text: &str) -> BTreeMap<String, f64> {
    let mut family = String::new();
    let mut samples = BTreeMap::new();
    let body = text.strip_suffix("# EOF\n").expect("the text says where it ends");
    for line in body.lines() {
        if let Some(described) = line.strip_prefix("# ") {
            let mut words = described.split(' ');
            let (what, name) = (words.next().expect("a word"), words.next().expect("a name"));
            match what {
                "TYPE" => family = name.to_owned(),
                "UNIT" => assert!(name.ends_with(words.next().expect("a unit")), "{line}"),
                "HELP" => assert!(described.ends_with('.'), "{line}"),
                other => panic!("{other}"),
            }
            assert_eq!(name, family, "a family's lines stay together");
        } else {
            let (sample, value) = line.rsplit_once(' ').expect("a sample has a value");
            assert!(sample.starts_with(&family), "{line} is not of {family}");
            let value: f64 = value.parse().expect("a number");
            assert!(samples.insert(sample.to_owned(), value).is_none(), "{sample} is there twice");
        }
    }
    samples
}

/// The sum of all samples whose names begin with `name` and whose labels have `labels`.
fn sum(samples: &BTreeMap<String, f64>, name: &str, labels: &[&str]) -> f64 {
    let of_it = samples.iter().filter(|(sample, _)| {
        sample.split('{').next() == Some(name) && labels.iter().all(|label| sample.contains(label))
    });
    of_it.map(|(_, value)| value).sum()
}

fn close(one: f64, ns: u64) {
    let other = ns as f64 / 1e9;
    assert!((one - other).abs() <= 1e-9 * other.abs().max(1.0), "{one} s, not {other} s");
}

#[test]
fn figures_are_those_of_the_summary() {
    let run = support::straggler(4);
    let samples = samples(&render(&run));
    for rank in &run.ranks {
        let number = format!("rank=\"{}\"", rank.facts.rank);
        for (phase, name) in [(Phase::Training, "training"), (Phase::Startup, "startup")] {
            let phases = || rank.phases.iter().filter(|summary| summary.phase == phase);
            let name = format!("phase=\"{name}\"");
            let labels = [number.as_str(), name.as_str()];
            close(
                sum(&samples, "stallscope_time_seconds_total", &labels),
                phases().map(|summary| summary.wall_ns).sum(),
            );
            let steps: u64 = phases().map(|summary| summary.steps).sum();
            assert_eq!(sum(&samples, "stallscope_steps_total", &labels), steps as f64);
        }
        close(
            sum(&samples, "stallscope_worker_load_seconds_total", &[&number, "doing=\"fetch\""]),
            rank.workers.iter().map(|worker| worker.fetch_ns).sum(),
        );
    }
    close(
        sum(&samples, "stallscope_job_time_seconds_total", &["cause=\"fetch\""]),
        run.phases.iter().map(|phase| phase.causes[Cause::Fetch]).sum(),
    );
    let training = run.phases.iter().find(|phase| phase.phase == Phase::Training).expect("a training phase");
    close(
        sum(&samples, "stallscope_step_seconds", &["phase=\"training\"", "quantile=\"0.95\""]),
        training.step_p95_ns,
    );
    assert_eq!(sum(&samples, "stallscope_build_info", &[env!("CARGO_PKG_VERSION")]), 1.0);
}

#[test]
fn knobs_and_decisions_are_exported() {
    let run = support::tuned();
    let samples = samples(&render(&run));
    let labels = ["rank=\"0\"", "loader=\"0\"", "knob=\"workers\"", "unit=\"workers\""];
    assert_eq!(sum(&samples, "stallscope_knob_value", &labels), 4.0);
    assert_eq!(sum(&samples, "stallscope_decisions_total", &["act=\"undo\""]), 1.0);
    let lines: u64 = run.acts.values().sum();
    assert_eq!(sum(&samples, "stallscope_decisions_total", &["job=\"resnet\""]), lines as f64);
}

#[test]
fn jobs_of_the_nodes_policy_are_named_by_job_and_user() {
    let job = |name: &str, user: &str| NodeJob {
        name: name.into(),
        pid: 41_277,
        user: user.into(),
        place: "Slurm job 71".into(),
        mode: "act".into(),
        cache_bytes: 16 << 30,
        saved_s: 2.5,
        frozen: (user == "mira").then(|| "for 3 m".into()),
        ..NodeJob::default()
    };
    let jobs = vec![job("train", "mira"), job("train", "otto"), job("a\"b", "otto"), job("train", "otto")];
    let text = render_jobs(&NodeState { paused: None, jobs });
    let samples = samples(&text);
    let of = |name: &str, job: &str, user: &str| {
        samples[&format!("stallscope_node_{name}{{job=\"{job}\",user=\"{user}\"}}")]
    };
    assert_eq!(
        (samples["stallscope_node_paused"], samples["stallscope_node_jobs{mode=\"act\"}"]),
        (0.0, 4.0)
    );
    assert_eq!(of("job_cache_limit_bytes", "train", "mira"), (16_u64 << 30) as f64);
    assert_eq!(of("job_saved_seconds", "train", "otto"), 5.0, "two of one name are added up");
    assert_eq!((of("job_frozen", "train", "mira"), of("job_frozen", "train", "otto")), (1.0, 0.0));
    assert_eq!(of("job_paused", "a\\\"b", "otto"), 0.0);
    assert!(!text.contains("41277") && !text.contains("Slurm"), "{text}");
}

#[test]
fn substitutions_and_evaluation_are_no_hits() {
    let run = support::cached();
    let samples = samples(&render(&run));
    let of = |name: &str, loader: &str| {
        samples[&format!("stallscope_cache_{name}{{job=\"resnet\",rank=\"0\",loader=\"{loader}\"}}")]
    };
    assert_eq!(of("hits_total", "0"), 21_961.0);
    assert_eq!(of("reuses_total", "0") + of("prefetched_total", "0"), 21_961.0);
    assert_eq!((of("substitutions_total", "0"), of("misses_total", "0")), (385.0, 16_182.0));
    assert_eq!((of("misses_total", "1"), of("other_misses_total", "1")), (0.0, 3_840.0));
    assert_eq!((of("kept_bytes", "0"), of("capacity_bytes", "0")), (2_040_000_000.0, 2_147_483_648.0));
    assert_eq!((of("pool_bytes_total", "0"), of("source_bytes_total", "0")), (2.4e9, 1.78e9));
    assert!(!samples.contains_key("stallscope_cache_kept_bytes{job=\"resnet\",rank=\"0\",loader=\"1\"}"));
    assert!(!render(&support::fetch_bound()).contains("cache_"), "a job without a cache has no such figures");
}

#[test]
fn a_curve_is_given_by_times_the_present_size() {
    let run = support::cached();
    let text = render(&run);
    assert!(text.contains("# UNIT stallscope_cache_curve_miss_ratio ratio\n"), "{text}");
    let samples = samples(&text);
    let of = |name: &str, times: &str| {
        let labels = format!("job=\"resnet\",rank=\"0\",loader=\"0\",times=\"{times}\"");
        samples[&format!("stallscope_cache_curve_{name}{{{labels}}}")]
    };
    assert_eq!((of("capacity_bytes", "1"), of("capacity_bytes", "2")), (2_147_483_648.0, 4_294_967_296.0));
    for (times, misses) in [("0.25", 1_880.0), ("0.5", 1_700.0), ("1", 1_360.0), ("2", 720.0), ("all", 0.0)] {
        assert!((of("miss_ratio", times) - misses / 2_048.0).abs() < 1e-6, "{times}");
    }
    let series = |run: &RunSummary| render(run).matches("cache_curve_miss_ratio{").count();
    assert_eq!(series(&run), 5, "only of the loader that trains");
    assert_eq!(series(&support::divided()), 5, "once for all ranks that share the cache");
    assert_eq!(series(&support::mixed()), 0, "and no series stands for an unknown curve");
}

#[test]
fn the_dashboards_panels_of_the_cache_ask_for_what_there_is() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../contrib/grafana/stallscope.json");
    let dashboard = std::fs::read_to_string(path).expect("the dashboard");
    let text = render(&support::cached());
    let mut asked = 0;
    for query in dashboard.split("stallscope_cache_").skip(1) {
        let name: String = query.chars().take_while(|char| char.is_alphanumeric() || *char == '_').collect();
        assert!(text.contains(&format!("\nstallscope_cache_{name}{{")), "{name}");
        asked += 1;
    }
    assert!(asked >= 10, "{asked}");
}

#[test]
fn two_trainers_of_one_number_and_two_loaders_are_one_sample() {
    let mut run = support::straggler(4);
    let mut twin = run.ranks[0].clone();
    twin.facts.pid += 1;
    let more = twin.phases[0].clone();
    twin.phases.push(PhaseSummary { loader: Some(7), ..more });
    run.ranks.push(twin);
    // Twice the same sample would make Prometheus refuse the page.
    samples(&render(&run));
}

#[test]
fn names_from_outside_break_nothing_and_name_nobody() {
    let mut run = support::straggler(4);
    run.job.name = "evil\"} 1\n# EOF\nup{job=\"x".into();
    run.losses.push(Loss { reason: "disk \"full\"\\\r\n\u{1b}[2J".into(), count: 3 });
    let text = render(&run);
    samples(&text);
    assert_eq!(text.matches("# EOF\n").count(), 1);
    assert!(!text.contains('\u{1b}'));
    for secret in [run.job.user.as_str(), &run.job.command.join(" "), &run.job.pid.to_string(), "pid", "/"] {
        assert!(secret.is_empty() || !text.contains(&format!("\"{secret}\"")), "{secret} is in the text");
    }
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        for label in line.split_once('{').map_or("", |(_, labels)| labels).split("\",") {
            let name = label.split('=').next().unwrap_or_default();
            let known = [
                "job", "rank", "phase", "cause", "loader", "quantile", "doing", "reason", "source",
                "version", "times",
            ];
            assert!(name.is_empty() || known.contains(&name) || line.contains("evil"), "{name} in {line}");
        }
    }
}

#[test]
fn a_node_tells_of_itself_alone() {
    let node = NodeSummary {
        sessions: 2,
        trees: 3,
        tasks: 40,
        programs: vec![
            Probe { name: "sched_switch".into(), on: true, reason: String::new() },
            Probe { name: "sys_enter".into(), on: false, reason: "nobody needs it now".into() },
        ],
        losses: vec![Loss { reason: "kernel ring full".into(), count: 0 }],
        overhead: Overhead {
            collector_cpu_ns: 1_500_000_000,
            collector_rss_bytes: 4096,
            ..Overhead::default()
        },
    };
    let text = render_node(&node);
    let samples = samples(&text);
    assert_eq!(samples["stallscope_node_trees"], 3.0);
    assert_eq!(samples["stallscope_node_program_on{program=\"sys_enter\"}"], 0.0);
    assert_eq!(samples["stallscope_node_losses_total{reason=\"kernel ring full\"}"], 0.0);
    assert_eq!(samples["stallscope_collector_cpu_seconds_total"], 1.5);
    assert!(!text.contains("job="));
}
