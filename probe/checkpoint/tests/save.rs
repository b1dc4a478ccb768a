//! What is saved comes back: whole, from the newest that is good, and without writing twice what is there.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod support;

use stallscope_checkpoint::{
    Best, Check, Dtype, Error, Mode, Options, Plan, Retain, Saver, Source, State, Store, TensorSpec,
};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;
use support::{Job, MIB, idle, newest, noise, one};

fn files(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn what_was_saved_is_what_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let saver = Saver::open(dir.path(), one(3)).unwrap();
    let mut job = Job::new(&[0, 1, 4095, 5 * MIB + 7, 9 * MIB, 100]);
    for step in [10, 20] {
        job.train_all(step);
        let saved = job.save(&saver, step).unwrap();
        assert!(saved.committed);
        assert_eq!(saved.image_bytes, saved.written_bytes);
    }
    let found = newest(dir.path());
    let checkpoint = found.checkpoint.unwrap();
    assert!(found.passed.is_empty());
    assert_eq!((checkpoint.manifest.step, checkpoint.manifest.world()), (20, 1));
    assert!(job.is_in(&checkpoint));
    assert_eq!(checkpoint.user(0).unwrap().unwrap(), b"position 20");
    assert_eq!(std::fs::read_to_string(dir.path().join("latest")).unwrap(), "step-000000020\n");
}

#[test]
fn a_shard_with_every_byte_is_a_plain_safetensors_file() {
    let dir = tempfile::tempdir().unwrap();
    let saver = Saver::open(dir.path(), one(3)).unwrap();
    let weights: Vec<f32> = (0..1000).map(|at| at as f32).collect();
    let spec = TensorSpec { name: "weights".into(), dtype: Dtype::F32, shape: vec![10, 100] };
    let plan = Plan::of(vec![spec], &[]).unwrap();
    // SAFETY: the vector outlives the fence and stays as it is.
    let snapshot = unsafe { saver.snapshot(&plan, &[Source::Late(weights.as_ptr().cast())]).unwrap() };
    snapshot.fence();
    saver.persist(snapshot, saver.ticket(1), Vec::new()).unwrap();
    assert!(saver.wait(Duration::from_secs(60)));
    let file = std::fs::read(dir.path().join("step-000000001/shard-0.safetensors")).unwrap();
    let header_bytes = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&file[8..8 + header_bytes]).unwrap();
    assert_eq!(header["weights"]["shape"], serde_json::json!([10, 100]));
    assert_eq!(header["weights"]["data_offsets"], serde_json::json!([0, 4000]));
    let bytes: Vec<u8> = weights.iter().flat_map(|weight| weight.to_le_bytes()).collect();
    assert_eq!(file[8 + header_bytes..], bytes);
    assert!(Store::open(dir.path()).checkpoint("1").unwrap().user(0).unwrap().is_none());
}

#[test]
fn unchanged_chunks_are_linked_and_stay_whole_when_the_older_checkpoints_go() {
    let dir = tempfile::tempdir().unwrap();
    let saver = Saver::open(dir.path(), one(1)).unwrap();
    let mut job = Job::new(&[40 * MIB, 4 * MIB]);
    let plan = job.plan();
    let mut written = Vec::new();
    for step in 1..=5 {
        job.train(1, step);
        written.push(job.save_by(&saver, &plan, step).unwrap().written_bytes);
        idle(&saver);
    }
    let image = plan.bytes();
    assert_eq!(
        written[..2],
        [image, image],
        "the second save sees what stays, and writes it once more apart"
    );
    for later in &written[2..] {
        assert!(*later < 9 * MIB as u64, "{later} of {image}");
    }
    assert_eq!(Store::open(dir.path()).list().unwrap().len(), 1, "the older ones are collected");
    let checkpoint = newest(dir.path()).checkpoint.unwrap();
    assert!(job.is_in(&checkpoint));
    assert!(checkpoint.parts[0].files.iter().any(|file| file.linked));
}

#[test]
fn what_is_declared_frozen_is_linked_from_the_second_save_on_also_by_the_next_run() {
    let dir = tempfile::tempdir().unwrap();
    let mut job = Job::new(&[40 * MIB, 4 * MIB]);
    let plan = job.plan_with_still(&[0]);
    for step in 1..=4 {
        // A run a step.
        let saver = Saver::open(dir.path(), one(1)).unwrap();
        job.train(1, step);
        let saved = job.save_by(&saver, &plan, step).unwrap();
        assert_eq!(saved.reused_bytes > 30 * MIB as u64, step > 1, "step {step}: {saved:?}");
    }
    assert!(job.is_in(&newest(dir.path()).checkpoint.unwrap()));
}

#[test]
fn space_made_ahead_for_chunks_that_were_not_written_is_given_back() {
    let dir = tempfile::tempdir().unwrap();
    let saver = Saver::open(dir.path(), one(1)).unwrap();
    let mut job = Job::new(&[30 * MIB, 4 * MIB, 30 * MIB]);
    let plan = job.plan();
    for step in 1..=3 {
        job.train(1, step);
        job.save_by(&saver, &plan, step).unwrap();
        idle(&saver);
    }
    let checkpoint = newest(dir.path()).checkpoint.unwrap();
    assert!(job.is_in(&checkpoint));
    let changed = checkpoint.parts[0].files.iter().find(|file| !file.linked).unwrap();
    let folder = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
    let file = folder.map(|dir| dir.join(&changed.name)).find(|path| path.exists()).unwrap();
    let takes = std::os::unix::fs::MetadataExt::blocks(&file.metadata().unwrap()) * 512;
    // Two chunks of 4 MiB have a part of what changed, and windows of 64 MiB were made for them.
    assert!(
        changed.stored_bytes <= takes && takes < changed.stored_bytes + MIB as u64,
        "{takes}: {changed:?}"
    );
}

#[test]
fn space_held_for_unchanged_chunks_is_bounded_when_they_begin_to_change() {
    let dir = tempfile::tempdir().unwrap();
    let saver = Saver::open(dir.path(), one(1)).unwrap();
    let mut job = Job::new(&[8 * MIB; 8]);
    let plan = job.plan_with_still(&[0, 1, 2, 3, 4, 5, 6, 7]);
    for step in 1..=12 {
        // One layer more thaws with each step.
        for at in 0..(step as usize).min(8) {
            job.train(at, step);
        }
        job.save_by(&saver, &plan, step).unwrap();
        idle(&saver);
        let checkpoint = newest(dir.path()).checkpoint.unwrap();
        assert!(job.is_in(&checkpoint));
        let on_disk: u64 = files(checkpoint.dir())
            .iter()
            .map(|name| checkpoint.dir().join(name).metadata().unwrap().blocks() * 512)
            .sum();
        assert!(on_disk <= 2 * plan.bytes() + 5 * MIB as u64, "step {step}: {on_disk} of {}", plan.bytes());
    }
}

#[test]
fn no_step_is_ever_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let saver = Saver::open(dir.path(), one(9)).unwrap();
    let mut job = Job::new(&[100]);
    for round in 1..=3 {
        job.train_all(round);
        job.save(&saver, 7).unwrap();
    }
    idle(&saver);
    let names: Vec<String> =
        Store::open(dir.path()).list().unwrap().into_iter().map(|entry| entry.name).collect();
    assert_eq!(names, ["step-000000007.3", "step-000000007.2", "step-000000007"]);
    assert!(job.is_in(&newest(dir.path()).checkpoint.unwrap()));
}

#[test]
fn the_newest_is_the_one_committed_last_even_after_going_back_to_an_earlier_step() {
    let dir = tempfile::tempdir().unwrap();
    let mut job = Job::new(&[100]);
    for step in [100, 200, 150] {
        let saver = Saver::open(dir.path(), one(9)).unwrap();
        job.train_all(step);
        job.save(&saver, step).unwrap();
    }
    assert_eq!(newest(dir.path()).checkpoint.unwrap().manifest.step, 150);
}

#[test]
fn as_many_verified_ones_are_kept_as_asked_for_and_the_rest_goes() {
    let dir = tempfile::tempdir().unwrap();
    let saver = Saver::open(dir.path(), one(2)).unwrap();
    let job = Job::new(&[5 * MIB]);
    for step in 1..=5 {
        job.save(&saver, step).unwrap();
        idle(&saver);
    }
    let list = Store::open(dir.path()).list().unwrap();
    assert_eq!(list.iter().map(|entry| entry.step).collect::<Vec<_>>(), [5, 4]);
    assert!(list.iter().all(|entry| entry.state == State::Verified));
}

#[test]
fn nothing_is_collected_for_the_sake_of_checkpoints_that_were_not_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let saver = Saver::open(dir.path(), Options { keep: None, ..Options::default() }).unwrap();
    let job = Job::new(&[100]);
    for step in 1..=4 {
        job.save(&saver, step).unwrap();
        idle(&saver);
    }
    let store = Store::open(dir.path());
    for step in [3, 4] {
        std::fs::remove_file(dir.path().join(format!("step-00000000{step}/verified"))).unwrap();
    }
    assert_eq!(store.collect(1, true).unwrap().removed, ["step-000000001"]);
    assert_eq!(store.list().unwrap().len(), 4, "a dry run removes nothing");
    assert_eq!(store.collect(1, false).unwrap().removed, ["step-000000001"]);
    assert_eq!(store.list().unwrap().len(), 3);
}

#[test]
fn one_process_at_a_time_saves_into_a_folder() {
    let dir = tempfile::tempdir().unwrap();
    let saver = Saver::open(dir.path(), one(3)).unwrap();
    assert!(matches!(Saver::open(dir.path(), one(3)), Err(Error::Busy { .. })));
    // Looking and collecting need no lock, and do not lose it for who has it.
    Store::open(dir.path()).collect(3, false).unwrap();
    drop(saver);
    Saver::open(dir.path(), one(3)).unwrap();
}

#[test]
fn memory_is_used_again_from_save_to_save() {
    let dir = tempfile::tempdir().unwrap();
    let saver = Saver::open(dir.path(), one(1)).unwrap();
    let job = Job::new(&[3 * MIB]);
    let plan = job.plan();
    saver.prepare(&plan);
    let source = [Source::Now(job.tensors[0].1.as_ptr())];
    let mut places = Vec::new();
    for _ in 0..3 {
        // SAFETY: the vector lives and stays as it is.
        let snapshot = unsafe { saver.snapshot(&plan, &source).unwrap() };
        places.push(snapshot.memory().0 as usize);
    }
    assert!(places.windows(2).all(|two| two[0] == two[1]), "{places:?}");
    // SAFETY: as above.
    let held = unsafe { [saver.snapshot(&plan, &source).unwrap(), saver.snapshot(&plan, &source).unwrap()] };
    assert!(!saver.ready(), "two at most");
    drop(held);
    assert!(saver.ready());
}

#[test]
fn what_the_caller_writes_itself_is_saved_too() {
    let dir = tempfile::tempdir().unwrap();
    let saver = Saver::open(dir.path(), one(1)).unwrap();
    let job = Job::new(&[10, 5 * MIB]);
    let plan = job.plan();
    let bytes = noise(77, 5 * MIB);
    // SAFETY: the vector lives and stays as it is.
    let snapshot = unsafe {
        saver.snapshot(&plan, &[Source::Now(job.tensors[0].1.as_ptr()), Source::ByCaller]).unwrap()
    };
    let (place, length) = snapshot.place(1);
    assert_eq!(length, bytes.len());
    // SAFETY: `place` gives that many bytes, and nobody else writes there.
    unsafe { place.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    saver.persist(snapshot, saver.ticket(1), Vec::new()).unwrap();
    assert!(saver.wait(Duration::from_secs(60)));
    assert_eq!(newest(dir.path()).checkpoint.unwrap().read(0, "layer.1").unwrap(), bytes);
}

#[test]
fn ranks_commit_together_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let jobs = [Job::new(&[5 * MIB]), Job::new(&[3 * MIB, 10]), Job::new(&[])];
    let open = |rank| {
        // Long enough for a busy disk to have all parts; the save that lacks one takes as long.
        let options = Options { rank, world: 3, patience: Duration::from_secs(10), ..one(2) };
        Saver::open(dir.path(), options).unwrap()
    };
    let savers: Vec<Saver> = (0..3).map(open).collect();
    let save = |ranks: &[usize], step| {
        let ticket = savers[0].ticket(step);
        for &rank in ranks {
            let sources: Vec<Source> =
                jobs[rank].tensors.iter().map(|(_, bytes)| Source::Now(bytes.as_ptr())).collect();
            // SAFETY: the vectors live and stay as they are.
            let snapshot = unsafe { savers[rank].snapshot(&jobs[rank].plan(), &sources).unwrap() };
            let ticket = ticket.to_string().parse().unwrap();
            savers[rank].persist(snapshot, ticket, format!("rank {rank}").into_bytes()).unwrap();
        }
        for &rank in ranks {
            assert!(savers[rank].wait(Duration::from_secs(60)));
        }
        savers[0].outcomes().into_iter().next().unwrap().result
    };
    save(&[2, 1, 0], 1).unwrap();
    let error = save(&[0, 2], 2).unwrap_err().to_string();
    assert!(error.contains("rank-1.json"), "{error}");
    let checkpoint = newest(dir.path()).checkpoint.unwrap();
    assert_eq!((checkpoint.manifest.step, checkpoint.manifest.world()), (1, 3));
    assert_eq!(Store::open(dir.path()).list().unwrap().len(), 1, "nothing is left of the one that failed");
    for (rank, job) in jobs.iter().enumerate() {
        for (name, bytes) in &job.tensors {
            assert_eq!(checkpoint.read(rank as u32, name).unwrap(), *bytes);
        }
        assert_eq!(checkpoint.user(rank as u32).unwrap().unwrap(), format!("rank {rank}").into_bytes());
    }
    save(&[1, 2, 0], 3).unwrap();
    assert_eq!(newest(dir.path()).checkpoint.unwrap().manifest.step, 3);
}

#[test]
fn an_export_holds_the_same_tensors_in_one_plain_file() {
    let dir = tempfile::tempdir().unwrap();
    let saver = Saver::open(dir.path(), one(2)).unwrap();
    let mut job = Job::new(&[9 * MIB, 0, 17, 6 * MIB]);
    let plan = job.plan_with_still(&[0]);
    for step in 1..=2 {
        job.train(3, step);
        job.save_by(&saver, &plan, step).unwrap();
    }
    let checkpoint = Store::open(dir.path()).checkpoint("latest").unwrap();
    assert!(checkpoint.parts[0].files.len() > 1, "it lies in several files");
    let to = dir.path().join("model.safetensors");
    checkpoint.export(None, &to).unwrap();
    let file = std::fs::read(&to).unwrap();
    let data = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&file[8..data]).unwrap();
    for (name, bytes) in &job.tensors {
        let at = |which: usize| header[name]["data_offsets"][which].as_u64().unwrap() as usize;
        assert!(file[data + at(0)..data + at(1)] == *bytes, "{name}");
    }
    assert!(checkpoint.export(None, &to).is_err(), "nothing is overwritten");
    checkpoint.verify(Check::Full, &|_, _| {}).unwrap();
}

/// Seen: a checkpoint of 24 KB filled 3 GB.
#[test]
fn an_export_takes_no_disk_for_zeros() {
    let dir = tempfile::tempdir().unwrap();
    let saver = Saver::open(dir.path(), one(2)).unwrap();
    let mut job = Job::new(&[64 * MIB, 17]);
    job.tensors[0].1.fill(0);
    job.save(&saver, 1).unwrap();
    let to = dir.path().join("model.safetensors");
    Store::open(dir.path()).checkpoint("latest").unwrap().export(None, &to).unwrap();
    let (facts, file) = (std::fs::metadata(&to).unwrap(), std::fs::read(&to).unwrap());
    assert!(
        facts.len() > 64 << 20 && facts.blocks() * 512 < 32 << 20,
        "{} of {}",
        facts.blocks(),
        facts.len()
    );
    assert!(file.ends_with(&job.tensors[1].1) || file.windows(17).any(|part| part == job.tensors[1].1));
}

/// All may write to /tmp, and a link there may lead to any folder of this user's.
#[test]
fn an_export_does_not_go_behind_another_users_link() {
    // SAFETY: asks for this process's user.
    if unsafe { libc::geteuid() } != 0 {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let saver = Saver::open(dir.path(), one(2)).unwrap();
    Job::new(&[17]).save(&saver, 1).unwrap();
    let checkpoint = Store::open(dir.path()).checkpoint("latest").unwrap();
    let (victim, link) = (dir.path().join("victim"), dir.path().join("theirs"));
    std::fs::create_dir(&victim).unwrap();
    std::os::unix::fs::symlink(&victim, &link).unwrap();
    std::os::unix::fs::lchown(&link, Some(4343), Some(4343)).unwrap();
    let refused = checkpoint.export(None, &link.join("model.safetensors")).unwrap_err().to_string();
    assert!(refused.contains("another user's link"), "{refused}");
    assert_eq!(files(&victim), Vec::<String>::new());
    checkpoint.export(None, &victim.join("model.safetensors")).unwrap();
    assert_eq!(files(&victim), ["model.safetensors"]);
}

#[test]
fn a_run_collects_its_own_checkpoints_alone() {
    let dir = tempfile::tempdir().unwrap();
    let names = || {
        let mut names: Vec<String> =
            Store::open(dir.path()).list().unwrap().into_iter().map(|entry| entry.name).collect();
        names.sort();
        names
    };
    let save = |saver: &Saver, steps: &[u64]| {
        for &step in steps {
            Job::new(&[4096]).save(saver, step).unwrap();
        }
        idle(saver);
    };
    let first = Saver::open(dir.path(), one(1)).unwrap();
    assert!(first.of_other_runs().is_empty());
    save(&first, &[1, 2]);
    drop(first);
    assert_eq!(names(), ["step-000000002"]);
    let second = Saver::open(dir.path(), one(1)).unwrap();
    assert_eq!(second.of_other_runs(), ["step-000000002"]);
    save(&second, &[3, 4]);
    drop(second);
    assert_eq!(names(), ["step-000000002", "step-000000004"]);
    let run = Store::open(dir.path()).checkpoint("2").unwrap().manifest.run;
    assert!(run.is_some());
    let third = Saver::open(dir.path(), one(1)).unwrap();
    third.continue_run(run);
    assert_eq!(third.of_other_runs(), ["step-000000004"]);
    save(&third, &[5]);
    drop(third);
    assert_eq!(names(), ["step-000000004", "step-000000005"]);
    // Who asks for it has all runs' old ones collected.
    assert_eq!(Store::open(dir.path()).collect(1, false).unwrap().removed, ["step-000000004"]);
}

#[test]
fn what_a_run_retains_stays_whichever_run_collects() {
    retained(&[(3, 0.5), (5, 0.2), (8, f64::INFINITY), (12, 0.4), (15, 0.3), (19, 0.9)], 0.2);
}

#[test]
fn an_infinite_metric_may_be_the_best_and_nan_is_not() {
    retained(&[(3, 0.5), (5, f64::NEG_INFINITY), (8, f64::NAN), (12, 0.4), (19, 0.9)], f64::NEG_INFINITY);
}

/// Saves each step with its loss, of which that of step 5 is the least and that of step 19 the last.
fn retained(losses: &[(u64, f64)], least: f64) {
    let dir = tempfile::tempdir().unwrap();
    let best = Best { metric: "loss".into(), mode: Mode::Min, keep: 1 };
    let retain = Retain { every_steps: Some(10), every_s: None, best: Some(best) };
    let saver = Saver::open(dir.path(), Options { retain: retain.clone(), ..one(1) }).unwrap();
    let weights = [1.0_f32; 8];
    let spec = TensorSpec { name: "weights".into(), dtype: Dtype::F32, shape: vec![8] };
    let plan = Plan::of(vec![spec], &[]).unwrap();
    for &(step, loss) in losses {
        // SAFETY: the array outlives this and nobody writes to it.
        let snapshot = unsafe { saver.snapshot(&plan, &[Source::Now(weights.as_ptr().cast())]).unwrap() };
        let metrics = [("loss".to_owned(), loss)].into();
        saver.persist_measured(snapshot, saver.ticket(step), Vec::new(), metrics).unwrap();
        idle(&saver);
    }
    drop(saver);
    let store = Store::open(dir.path());
    let steps = || store.list().unwrap().into_iter().map(|entry| entry.step).collect::<Vec<_>>();
    assert_eq!(steps(), [19, 12, 5], "the newest, the first from 10 on, the best");
    assert_eq!(store.checkpoint("best").unwrap().manifest.metrics["loss"], least);
    assert_eq!(store.checkpoint("19").unwrap().manifest.retain, retain);
    assert!(store.collect(1, false).unwrap().removed.is_empty());
    assert_eq!(steps(), [19, 12, 5]);
}

/// The signals that a thread blocks, bit 0 for the first; None of a thread that has ended.
fn blocked(task: &Path) -> Option<u64> {
    let status = std::fs::read_to_string(task.join("status")).ok()?;
    let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:"))?;
    u64::from_str_radix(mask.trim(), 16).ok()
}

#[test]
fn a_signal_that_the_job_blocks_goes_to_no_thread_of_ours() {
    let (sigterm, sigsegv) = (1 << 14, 1 << 10);
    let own = Path::new("/proc/thread-self");
    let before = blocked(own);
    assert!(before.is_some());
    let dir = tempfile::tempdir().unwrap();
    let saver = Saver::open(dir.path(), one(3)).unwrap();
    Job::new(&[MIB]).save(&saver, 10).unwrap();
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let of_ours = |task: &std::path::PathBuf| {
        std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name.starts_with("ckpt-"))
    };
    let masks: Vec<_> = tasks.filter(of_ours).filter_map(|task| blocked(&task)).collect();
    assert!(!masks.is_empty());
    for mask in masks {
        assert_eq!(mask & (sigterm | sigsegv), sigterm, "{mask:x}");
    }
    assert_eq!(blocked(own), before);
}
