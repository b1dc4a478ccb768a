//! The smaller outputs: progress, list.

mod support;

use stallscope_model::RunSummary;
use stallscope_reports::{Style, list, progress};
use stallscope_store::{Options, Recorder};
use std::time::Duration;
use support::PLAIN;

#[test]
fn progress_drops_what_does_not_fit() {
    let run = support::fetch_bound();
    insta::assert_snapshot!(progress::line(&run, 120), @"58 s  1,204 steps  36 ms a step  884 samples/s  fetch 61%  prep 4%  persist 2%");
    insta::assert_snapshot!(progress::line(&run, 60), @"58 s  1,204 steps  36 ms a step  884 samples/s  fetch 61%");
    insta::assert_snapshot!(progress::line(&run, 12), @"58 s");
    insta::assert_snapshot!(progress::line(&support::no_steps(), 80), @"58 s  no step yet");
    insta::assert_snapshot!(progress::line(&RunSummary::default(), 80), @"0 s  nothing to see it by");
}

fn rows() -> Vec<list::Row> {
    let hour = 3_600_000_000_000;
    vec![
        list::Row {
            name: "resnet".into(),
            state: "running".into(),
            pid: Some(4821),
            started_wall_ns: Some(1000 * hour),
            duration_ns: Some(hour / 2),
            verdict: "fetch-bound: 61% of training time waits for storage; about 26 of 44 seconds".into(),
        },
        list::Row {
            name: "a-name-that-is-much-too-long-for-any-column-of-a-table.stall".into(),
            state: "killed".into(),
            ..list::Row::default()
        },
    ]
}

#[test]
fn list_in_columns() {
    let now_wall_ns = 1002 * 3_600_000_000_000;
    insta::assert_snapshot!(list::table(&rows(), now_wall_ns, &Style { width: 110, ..PLAIN }));
    insta::assert_snapshot!(list::table(&rows(), now_wall_ns, &Style { width: 60, unicode: false, ..PLAIN }));
    assert_eq!(list::table(&[], 0, &PLAIN), "");
}

#[test]
fn recordings_are_listed_with_what_they_say() {
    let directory = tempfile::tempdir().unwrap();
    let target = directory.path().join("resnet.stall");
    let run = support::fetch_bound();
    let options = Options { spool: Some(directory.path().join("spool")), ..Options::default() };
    let mut recorder = Recorder::create(&target, &run.job, options);
    recorder.flush(&run);
    let row = list::Row::of_recording(&target);
    assert_eq!((row.name.as_str(), row.state.as_str(), row.pid), ("resnet.stall", "running", Some(4821)));
    assert_eq!(row.duration_ns, Some(58_000_000_000));
    assert_eq!(row.verdict, run.verdict.sentence);
    drop(recorder);
    assert_eq!(list::Row::of_recording(&target).state, "killed");
    let recorder = Recorder::create(&target, &run.job, Options::default());
    assert_eq!(list::Row::of_recording(&recorder.finish(&run).path.unwrap()).state, "finished");
    std::fs::write(&target, "something else").unwrap();
    let row = list::Row::of_recording(&target);
    assert_eq!(row.state, "unreadable");
    assert!(row.verdict.ends_with("is not a stallscope recording"), "{}", row.verdict);
}

/// A folder may be another user's, with a thousand recordings that each take long and have a sentence of megabytes.
#[test]
fn a_list_is_bounded_in_time_and_keeps_no_long_text() {
    let folder = tempfile::tempdir().unwrap();
    let paths: Vec<_> = (0..3)
        .map(|number| {
            let path = folder.path().join(format!("{number}.stall"));
            let mut run = RunSummary::default();
            run.verdict.sentence = "long ".repeat(1 << 18);
            let options = Options { spool: Some(folder.path().to_owned()), ..Options::default() };
            let _ = Recorder::create(&path, &run.job, options).finish(&run);
            path
        })
        .collect();
    let all = list::of_recordings(&paths, Duration::from_secs(60));
    let names: Vec<&str> = all.iter().map(|row| row.name.as_str()).collect();
    assert_eq!(names, ["0.stall", "1.stall", "2.stall"]);
    assert!(all.iter().all(|row| row.state == "finished" && row.verdict.capacity() < 4000), "{all:?}");
    for row in list::of_recordings(&paths, Duration::ZERO) {
        assert!(row.state == "not read" && row.verdict.contains("stallscope report"), "{row:?}");
    }
}
