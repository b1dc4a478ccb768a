//! What lies behind the sums comes back, also while it grows, and an older format is still read.

#![allow(clippy::unwrap_used, reason = "helpers of tests too")]

use crate::support::{checkpoint, detail, job, options, second, step, steps, summary};
use stallscope_model::{Cause, CheckpointEvent};
use stallscope_store::{Recorder, Recording, RollupPeriod, State};
use std::fs;
use std::path::Path;

fn recorder(directory: &Path) -> Recorder {
    Recorder::create(&directory.join("run.stall"), &job(), options(directory))
}

fn finish(recorder: Recorder) -> Recording {
    Recording::open(&recorder.finish(&summary()).path.unwrap()).unwrap()
}

#[test]
fn of_each_rank_and_minute_the_three_slowest_steps_are_kept() {
    let directory = tempfile::tempdir().unwrap();
    let mut recorder = recorder(directory.path());
    for (rank, longer_ns) in [(0, 1), (0, 5), (0, 2), (1, 0), (0, 4), (0, 3)] {
        recorder.step_detail(detail(rank, 10 + longer_ns, longer_ns));
        recorder.flush(&summary());
    }
    // The next minute has its own.
    recorder.step_detail(detail(0, 600, 0));
    let recording = finish(recorder);
    let kept = [detail(0, 15, 5), detail(0, 14, 4), detail(0, 13, 3), detail(1, 10, 0), detail(0, 600, 0)];
    assert_eq!(recording.step_details().unwrap(), kept);
}

#[test]
fn a_checkpoint_stands_for_those_within_it() {
    let directory = tempfile::tempdir().unwrap();
    let mut recorder = recorder(directory.path());
    let background = CheckpointEvent { background: true, cause: Cause::Snapshot, ..checkpoint(0, 120, 130) };
    recorder.checkpoint(background.clone());
    recorder.checkpoint(checkpoint(0, 120, 130));
    recorder.flush(&summary());
    recorder.checkpoint(checkpoint(0, 120, 160));
    recorder.checkpoint(checkpoint(0, 170, 180));
    recorder.checkpoint(CheckpointEvent { saver: "dcp.save".into(), ..checkpoint(0, 110, 180) });
    recorder.checkpoint(checkpoint(1, 115, 120));
    recorder.checkpoint(checkpoint(0, 180, 190));
    let recording = finish(recorder);
    let outer = CheckpointEvent { saver: "dcp.save".into(), ..checkpoint(0, 110, 180) };
    let kept = [outer, checkpoint(1, 115, 120), background, checkpoint(0, 180, 190)];
    assert_eq!(recording.checkpoints().unwrap(), kept);
}

#[test]
fn a_workers_period_is_seen_to_grow() {
    let directory = tempfile::tempdir().unwrap();
    let mut recorder = recorder(directory.path());
    let reader = Recording::open(&directory.path().join("run.stall")).unwrap();
    let mut sums = second(7, 3);
    recorder.worker_period(second(6, 3));
    recorder.worker_period(second(7, 3));
    recorder.flush(&summary());
    assert_eq!(reader.worker_periods().unwrap(), [second(6, 3), sums.clone()]);
    for _ in 0..2 {
        recorder.worker_period(second(7, 3));
        sums.load += &second(7, 3).load;
    }
    recorder.flush(&summary());
    assert_eq!(reader.worker_periods_from(second(7, 3).start_ns).unwrap(), [sums]);
}

#[test]
fn a_reader_who_keeps_up_reads_what_is_new_alone() {
    let directory = tempfile::tempdir().unwrap();
    let mut recorder = recorder(directory.path());
    let reader = Recording::open(&directory.path().join("run.stall")).unwrap();
    assert_eq!(reader.last_step_id().unwrap(), 0);
    assert_eq!(reader.format(), stallscope_store::VERSION);
    let (mut seen, mut last, mut version) = (Vec::new(), 0, reader.data_version().unwrap());
    assert_eq!(reader.data_version().unwrap(), version, "nothing was written");
    for index in 0..250 {
        recorder.step(step(0, index));
        if index % 100 == 99 {
            recorder.flush(&summary());
            let now = reader.data_version().unwrap();
            assert_ne!(std::mem::replace(&mut version, now), now);
            loop {
                let rows = reader.steps_after(last, 64).unwrap();
                let Some((id, _)) = rows.last() else { break };
                last = *id;
                seen.extend(rows.into_iter().map(|(_, row)| row));
            }
            assert_eq!(last, reader.last_step_id().unwrap());
        }
    }
    assert_eq!(seen, steps(&reader));
    let all = reader.rollups(RollupPeriod::TenSeconds).unwrap();
    let tail = reader.rollups_from(RollupPeriod::TenSeconds, all[1].start_ns).unwrap();
    assert_eq!(tail, all[1..]);
}

#[test]
fn a_recording_of_the_first_format_is_still_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("old.stall");
    fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/format1.stall"), &path).unwrap();
    let recording = Recording::open(&path).unwrap();
    assert_eq!((recording.format(), recording.state().unwrap()), (1, State::Finished));
    let summary = recording.summary().unwrap();
    assert_eq!((summary.job.name.as_str(), summary.ranks.len()), ("swarm", 2));
    assert_eq!((summary.probes, summary.files, summary.mounts), (vec![], vec![], vec![]));
    assert_eq!(steps(&recording).len(), 32);
    assert_eq!(recording.steps_after(30, 10).unwrap().len(), 2);
    assert_eq!(recording.step_details().unwrap(), []);
    assert_eq!(recording.checkpoints().unwrap(), []);
    assert_eq!(recording.worker_periods().unwrap(), []);
    assert_eq!(recording.cache_periods().unwrap(), []);
    assert_eq!((recording.audit(0).unwrap(), recording.batch_services().unwrap()), (vec![], vec![]));
}
