//! What a job's cache tells of other sizes, and what its trace tells `stallscope simulate`: both against what came true.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use crate::support::{Sandbox, job, python, text};
use serde_json::Value;

/// 2,000 samples of 1 KiB; a fifth of them.
const FIFTH_BYTES: u64 = 400 * 1024;
const USES: u64 = 2000;

/// What tests/jobs/cached.py says, which trained with such a cache into a.stall.
fn trained(sandbox: &Sandbox, sampling: &str, workers: u32, cache_bytes: u64, epochs: u64) -> Value {
    let (workers, bytes, epochs) = (workers.to_string(), cache_bytes.to_string(), epochs.to_string());
    let (python, job) = (python(), job("cached.py"));
    let done = sandbox.run(&[
        "run",
        "-q",
        "--no-kernel",
        "-o",
        "a.stall",
        "--",
        &python,
        &job,
        sampling,
        &workers,
        &bytes,
        &epochs,
        "uses.csv",
    ]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    let printed = text(&done.stdout);
    serde_json::from_str(printed.lines().find(|line| line.starts_with('{')).unwrap()).unwrap()
}

/// Hits of each epoch.
fn hits(printed: &Value) -> Vec<u64> {
    counts(printed, "hits")
}

fn counts(printed: &Value, name: &str) -> Vec<u64> {
    printed[name].as_array().unwrap().iter().map(|count| count.as_u64().unwrap()).collect()
}

/// Hits of the later half of the epochs of what was recorded, with a cache of a fifth.
fn simulated(sandbox: &Sandbox, policy: &str) -> u64 {
    let done =
        sandbox.run(&["simulate", "uses.csv", "--policy", policy, "--cache", "20%", "--format", "csv"]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    let table = text(&done.stdout);
    let mut lines = table.lines();
    let column = lines.next().unwrap().split(',').position(|name| name == "hits").unwrap();
    lines.next().unwrap().split(',').nth(column).unwrap().parse().unwrap()
}

fn recorded(sandbox: &Sandbox) -> Vec<u64> {
    let file = std::fs::read_to_string(sandbox.path("uses.csv")).unwrap();
    file.lines().skip(1).map(|line| line.split(',').nth(1).unwrap().parse().unwrap()).collect()
}

#[test]
fn a_recorded_trace_gives_the_hits_that_the_job_had() {
    for workers in [0, 1] {
        let sandbox = Sandbox::new(&format!("traced-{workers}"));
        let printed = trained(&sandbox, "plain", workers, FIFTH_BYTES, 4);
        let used: Vec<u64> = serde_json::from_value(printed["used"].clone()).unwrap();
        assert_eq!(recorded(&sandbox), used);
        let hits = hits(&printed);
        assert_eq!(simulated(&sandbox, "minio"), hits[2] + hits[3], "{hits:?} with {workers} workers");
    }
}

/// A simulation knows all uses to come, a job only those that are planned: it has no more hits, and not many less.
#[test]
fn a_recorded_trace_of_importance_is_close_to_the_job() {
    let sandbox = Sandbox::new("traced-importance");
    let printed = trained(&sandbox, "importance", 0, FIFTH_BYTES, 4);
    let used: Vec<u64> = serde_json::from_value(printed["used"].clone()).unwrap();
    assert_eq!(recorded(&sandbox), used);
    let hits = hits(&printed);
    let (live, simulated) = (hits[2] + hits[3], simulated(&sandbox, "min"));
    println!("importance: {live} hits, simulated {simulated}, of {}", 2 * USES);
    assert!(simulated >= live && simulated - live < 2 * USES / 20, "{live} hits, simulated {simulated}");
}

#[test]
fn twice_the_cache_misses_what_was_predicted() {
    for sampling in ["plain", "importance"] {
        let sandbox = Sandbox::new(&format!("curve-{sampling}"));
        let printed = trained(&sandbox, sampling, 1, FIFTH_BYTES, 8);
        let own = printed["figures"]["miss_ratio"].as_array().unwrap();
        assert_eq!(own.len(), 5, "{own:?}");
        assert_eq!(own[2][0].as_u64(), Some(FIFTH_BYTES));
        let report = sandbox.report("a.stall");
        let reported = report["cache_curve"].as_array().unwrap();
        assert_eq!(reported.len(), 5, "{reported:?}");
        let printed = sandbox.run(&["what-if", "a.stall", "--cache", "2x", "--json"]);
        assert_eq!(printed.status.code(), Some(0), "{}", text(&printed.stderr));
        let printed: Value = serde_json::from_slice(&printed.stdout).unwrap();
        let curve = &printed["cache"]["curve"];
        assert_eq!(curve["then"]["capacity_bytes"], 2 * FIFTH_BYTES);
        let page = text(&sandbox.run(&["what-if", "a.stall", "--cache", "40%"]).stdout);
        assert!(page.contains("By its miss-ratio curve"), "{page}");
        let page = text(&sandbox.run(&["report", "a.stall"]).stdout);
        assert!(page.contains("would miss with"), "{page}");
        let larger = Sandbox::new(&format!("larger-{sampling}"));
        let hits = hits(&trained(&larger, sampling, 1, 2 * FIFTH_BYTES, 8));
        let uses = 4 * USES;
        let missed = (uses - hits[4..].iter().sum::<u64>()) as f64 / uses as f64;
        let reported = curve["then"]["miss_ratio"].as_f64().unwrap();
        println!("{sampling}: twice the cache misses {missed:.4}, predicted were {reported:.4}");
        assert!(
            (reported - missed).abs() < 0.03,
            "{sampling}: {missed} were missed, {reported} were predicted"
        );
    }
}

/// What each of two ranks says, which trained together and shared a cache of a fifth.
fn trained_together(sandbox: &Sandbox, sampling: &str, epochs: u64) -> Vec<Value> {
    let meeting = sandbox.path("meeting");
    let rank = |rank: u32| {
        let launched = format!("RANK={rank} LOCAL_RANK={rank} WORLD_SIZE=2 LOCAL_WORLD_SIZE=2");
        let (meeting, python, job) = (meeting.display(), python(), job("cached.py"));
        format!(
            "{launched} GLOO_SOCKET_IFNAME=lo MEETING={meeting} {python} {job} {sampling} 1 {FIFTH_BYTES} {epochs} uses.csv >printed-{rank}"
        )
    };
    let both = format!("{} & {}; wait", rank(1), rank(0));
    let done = sandbox.run(&["run", "-q", "--no-kernel", "-o", "a.stall", "--", "sh", "-c", &both]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    let printed = |rank: u32| {
        let printed = std::fs::read_to_string(sandbox.path(&format!("printed-{rank}"))).unwrap();
        serde_json::from_str(printed.trim()).unwrap_or_else(|why| panic!("{why}: {}", text(&done.stderr)))
    };
    (0..2).map(printed).collect()
}

/// Both ranks' traces as one, batch by batch.
fn merge(sandbox: &Sandbox) {
    let lines = |name: &str| -> Vec<String> {
        let file = std::fs::read_to_string(sandbox.path(name)).unwrap();
        file.lines().skip(1).map(str::to_owned).collect()
    };
    let (first, second) = (lines("uses.csv"), lines("uses-rank1.csv"));
    assert_eq!(first.len(), second.len());
    let epoch = |line: &String| line.split(',').next().unwrap().to_owned();
    let mut merged = vec!["epoch,id,bytes,score".to_owned()];
    let epochs = |of: &[String]| -> Vec<Vec<String>> {
        of.chunk_by(|one, next| epoch(one) == epoch(next)).map(<[String]>::to_vec).collect()
    };
    for (one, other) in epochs(&first).iter().zip(epochs(&second)) {
        for (one, other) in one.chunks(50).zip(other.chunks(50)) {
            merged.extend_from_slice(one);
            merged.extend_from_slice(other);
        }
    }
    std::fs::write(sandbox.path("both.csv"), merged.join("\n") + "\n").unwrap();
}

/// Of both ranks' trace, what caches of so many quarters of a fifth miss.
fn simulated_misses(sandbox: &Sandbox, policy: &str) -> Vec<f64> {
    let sizes = "5%,10%,20%,40%,80%";
    let words = ["simulate", "both.csv", "--policy", policy, "--cache", sizes, "--format", "csv"];
    let done = sandbox.run(&words);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    let table = text(&done.stdout);
    let column = |line: &str, nth: usize| line.split(',').nth(nth).unwrap().to_owned();
    let head = table.lines().next().unwrap();
    let nth = head.split(',').position(|name| name == "hit_ratio").unwrap();
    table.lines().skip(1).map(|line| 1.0 - column(line, nth).parse::<f64>().unwrap()).collect()
}

/// Each rank sees half of the uses of what both share; the curve is of all of them.
#[test]
fn two_ranks_have_one_curve_which_is_that_of_the_cache_they_share() {
    for (sampling, policy, most_off) in [("plain", "minio", 0.02), ("importance", "min", 0.06)] {
        let sandbox = Sandbox::new(&format!("joint-{sampling}"));
        let printed = trained_together(&sandbox, sampling, 8);
        // The curve is of the last epoch that had ended when it was reported.
        let both = |name| printed.iter().map(|printed| counts(printed, name)[6]).sum::<u64>() as f64;
        let missed = both("misses") / (both("hits") + both("misses"));
        let curve = |printed: &Value| -> Vec<(u64, f64)> {
            let points = printed["figures"]["miss_ratio"].as_array().unwrap();
            points.iter().map(|point| (point[0].as_u64().unwrap(), point[1].as_f64().unwrap())).collect()
        };
        let reported = curve(&printed[0]);
        assert_eq!(reported, curve(&printed[1]), "{sampling}: both get the same");
        assert_eq!((reported.len(), reported[2].0), (5, FIFTH_BYTES), "{reported:?}");
        merge(&sandbox);
        let simulated = simulated_misses(&sandbox, policy);
        println!("{sampling}: {missed:.4} were missed; predicted {reported:?}, simulated {simulated:?}");
        assert!(
            (reported[2].1 - missed).abs() < 0.03,
            "{sampling}: {missed} were missed, predicted were {reported:?}"
        );
        assert_eq!(simulated.len(), 5);
        for ((bytes, reported), simulated) in reported.iter().zip(&simulated) {
            let off = (reported - simulated).abs();
            assert!(off < most_off, "{sampling}: {bytes} bytes miss {simulated}, predicted were {reported}");
        }
        // Once, for the job.
        let report = sandbox.report("a.stall");
        assert_eq!(report["cache_curve"].as_array().unwrap().len(), 5, "{}", report["cache_curve"]);
        let page = text(&sandbox.run(&["report", "a.stall"]).stdout);
        let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(page.matches("would miss with").count(), 1, "{page}");
        assert!(!page.contains("loader 0 would miss"), "{page}");
        let printed = sandbox.run(&["what-if", "a.stall", "--cache", "2x", "--json"]);
        assert_eq!(printed.status.code(), Some(0), "{}", text(&printed.stderr));
        let printed: Value = serde_json::from_slice(&printed.stdout).unwrap();
        assert_eq!(printed["cache"]["curve"]["then"]["capacity_bytes"], 2 * FIFTH_BYTES);
    }
}
