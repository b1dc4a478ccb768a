//! Nothing on disk is trusted: whatever is there instead of what was saved, it is refused, or it is what was saved.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod support;

use proptest::prelude::*;
use serde_json::Value;
use stallscope_checkpoint::{
    Check, Checkpoint, Dtype, Options, Plan, Saver, State, Store, TensorSpec, mark_verified,
};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use support::{Job, MIB, fast_dir, idle, newest, one};

fn job() -> Job {
    Job::new(&[4 * MIB, 33, 700_000])
}

/// A checkpoint with all that one can have: a shard, a linked file, user state.
fn original() -> &'static Path {
    static MADE: OnceLock<tempfile::TempDir> = OnceLock::new();
    let dir = MADE.get_or_init(|| {
        let dir = fast_dir();
        let saver = Saver::open(dir.path(), one(1)).unwrap();
        for step in 1..=2 {
            let mut job = job();
            job.train(2, step);
            job.save_by(&saver, &job.plan_with_still(&[0]), step).unwrap();
        }
        idle(&saver);
        dir
    });
    dir.path()
}

fn expected() -> Job {
    let mut job = job();
    job.train(2, 2);
    job
}

/// A copy that may be spoilt: its folder, and that of the checkpoint in it.
fn copy() -> (tempfile::TempDir, PathBuf) {
    let dir = fast_dir();
    let into = dir.path().join("step-000000002");
    std::fs::create_dir(&into).unwrap();
    for entry in std::fs::read_dir(original().join("step-000000002")).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), into.join(entry.file_name())).unwrap();
    }
    (dir, into)
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// Seen: 298 links to one manifest of 2 MB made a list take gigabytes.
#[test]
fn the_manifests_of_a_folder_are_read_up_to_a_bound() {
    let dir = fast_dir();
    for step in 1..=8 {
        let into = dir.path().join(format!("step-{step:09}"));
        std::fs::create_dir(&into).unwrap();
        let manifest = std::fs::File::create(into.join("manifest.json")).unwrap();
        manifest.set_len(40 << 20).unwrap();
    }
    let listed = Store::open(dir.path()).list().unwrap();
    let too_many = listed
        .iter()
        .filter(|entry| matches!(&entry.state, State::Bad(why) if why.contains("more than 256 MiB of text")));
    assert_eq!((listed.len(), too_many.count()), (8, 2));
}

/// Whatever was done to it: either it is refused, or all of it is as it was.
fn is_refused_or_right(root: &Path, dir: &Path) -> Result<bool, TestCaseError> {
    // The tables must stand any of it, too.
    let listed = Store::open(root).list().unwrap();
    prop_assert_eq!(listed.len(), 1);
    let checked = Checkpoint::open(dir).and_then(|checkpoint| {
        checkpoint.verify(Check::Full, &|_, _| {})?;
        Ok(checkpoint)
    });
    let Ok(checkpoint) = checked else { return Ok(false) };
    prop_assert!(expected().is_in(&checkpoint));
    prop_assert_eq!(checkpoint.user(0).unwrap().unwrap(), b"position 2");
    Ok(true)
}

/// A place in a file, in 65,536ths of it.
type Place = u16;

#[derive(Clone, Debug)]
enum Spoil {
    Flip(Place, u8),
    Cut(Place),
    Overwrite(Place, Vec<u8>),
    Grow(Vec<u8>),
    Delete,
    Folder,
    Link,
}

fn spoil() -> impl Strategy<Value = Spoil> {
    let bytes = || prop::collection::vec(any::<u8>(), 1..200);
    prop_oneof![
        4 => (any::<Place>(), 0..8_u8).prop_map(|(at, bit)| Spoil::Flip(at, bit)),
        2 => any::<Place>().prop_map(Spoil::Cut),
        2 => (any::<Place>(), bytes()).prop_map(|(at, bytes)| Spoil::Overwrite(at, bytes)),
        1 => bytes().prop_map(Spoil::Grow),
        1 => Just(Spoil::Delete),
        1 => Just(Spoil::Folder),
        1 => Just(Spoil::Link),
    ]
}

fn apply(spoil: &Spoil, path: &Path) {
    let mut bytes = std::fs::read(path).unwrap();
    match spoil {
        Spoil::Flip(at, bit) => {
            let at = *at as usize * bytes.len() / 65_536;
            bytes[at] ^= 1 << bit;
        }
        Spoil::Cut(at) => bytes.truncate(*at as usize * bytes.len() / 65_536),
        Spoil::Overwrite(at, with) => {
            let at = *at as usize * bytes.len() / 65_536;
            let end = (at + with.len()).min(bytes.len());
            bytes[at..end].copy_from_slice(&with[..end - at]);
        }
        Spoil::Grow(with) => bytes.extend(with),
        Spoil::Delete | Spoil::Folder | Spoil::Link => {}
    }
    std::fs::remove_file(path).unwrap();
    match spoil {
        Spoil::Delete => {}
        Spoil::Folder => std::fs::create_dir(path).unwrap(),
        Spoil::Link => symlink("/etc/passwd", path).unwrap(),
        _ => std::fs::write(path, bytes).unwrap(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn spoilt_files_are_refused(which in any::<prop::sample::Index>(), spoil in spoil()) {
        let (root, dir) = copy();
        let files = files(&dir);
        apply(&spoil, &files[which.index(files.len())]);
        is_refused_or_right(root.path(), &dir)?;
    }

    /// Manifests whose seals fit, made by somebody who means ill.
    #[test]
    fn sealed_lies_are_refused(
        part in any::<bool>(),
        which in any::<prop::sample::Index>(),
        lie in lie(),
    ) {
        let (root, dir) = copy();
        let mut manifest = content(&dir.join("manifest.json"));
        let mut rank = content(&dir.join("rank-0.json"));
        let target = if part { &mut rank } else { &mut manifest };
        let mut leaves = Vec::new();
        pointers(target, String::new(), &mut leaves);
        let leaf = &leaves[which.index(leaves.len())];
        *target.pointer_mut(leaf).unwrap() = lie;
        let hash = seal(&dir.join("rank-0.json"), &rank);
        if part {
            manifest["parts"][0] = hash.into();
        }
        seal(&dir.join("manifest.json"), &manifest);
        // A lie may be harmless (the name of the tool, say): then all the rest is right. Where tensors are described
        // otherwise, what comes back is what the lie describes, and nothing from outside.
        let known_otherwise = part && leaf.starts_with("/tensors") || leaf == "/tensors";
        if known_otherwise {
            if let Ok(checkpoint) = Checkpoint::open(&dir) {
                for tensor in &checkpoint.parts[0].tensors {
                    let bytes = checkpoint.read(0, &tensor.spec.name);
                    prop_assert!(bytes.map_or(true, |bytes| bytes.len() <= 6 * MIB));
                }
                let _ = checkpoint.export(None, &root.path().join("out"));
            }
        } else if leaf.starts_with("/user") || leaf == "/save" {
            let _ = Checkpoint::open(&dir).map(|checkpoint| checkpoint.verify(Check::Full, &|_, _| {}));
        } else {
            is_refused_or_right(root.path(), &dir)?;
        }
    }

    #[test]
    fn anything_for_a_manifest_is_refused(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        let (root, dir) = copy();
        std::fs::write(dir.join("manifest.json"), bytes).unwrap();
        prop_assert!(!is_refused_or_right(root.path(), &dir)?);
    }
}

fn lie() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<u64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        prop::sample::select(vec![
            0_u64,
            1,
            2,
            4095,
            4096,
            1 << 20,
            1 << 40,
            (1 << 62) - 1,
            u64::MAX / 8,
            u64::MAX
        ])
        .prop_map(Value::from),
        prop::sample::select(vec![
            "",
            ".",
            "..",
            "../../../etc/passwd",
            "/etc/passwd",
            "manifest.json",
            "a/b",
            "__metadata__",
            "\u{1b}[2J",
            "layer.1",
        ])
        .prop_map(Value::from),
        Just(Value::Null),
        Just(Value::Bool(true)),
        Just(Value::Array(Vec::new())),
        Just(Value::Array(vec![Value::from(u64::MAX); 70])),
        Just(Value::Object(serde_json::Map::new())),
    ]
}

fn pointers(value: &Value, at: String, into: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            map.iter().for_each(|(key, value)| pointers(value, format!("{at}/{key}"), into))
        }
        Value::Array(list) => {
            list.iter().enumerate().for_each(|(n, value)| pointers(value, format!("{at}/{n}"), into))
        }
        _ => {}
    }
    into.push(at);
}

fn content(path: &Path) -> Value {
    serde_json::from_slice::<Value>(&std::fs::read(path).unwrap()).unwrap()["content"].clone()
}

fn seal(path: &Path, content: &Value) -> String {
    let text = content.to_string();
    let hash = blake3::hash(text.as_bytes()).to_hex().to_string();
    std::fs::write(path, format!("{{\"format\":1,\"blake3\":\"{hash}\",\"content\":{text}}}")).unwrap();
    hash
}

#[test]
fn a_shard_that_is_a_link_to_the_right_bytes_is_refused_all_the_same() {
    let (root, dir) = copy();
    let shard = files(&dir).into_iter().find(|path| path.to_string_lossy().contains("/shard-")).unwrap();
    let elsewhere = root.path().join("elsewhere");
    std::fs::rename(&shard, &elsewhere).unwrap();
    symlink(&elsewhere, &shard).unwrap();
    assert!(Checkpoint::open(&dir).unwrap_err().is_damage());
}

#[test]
fn a_linked_folder_is_never_entered_nor_removed() {
    let (root, dir) = copy();
    let other = fast_dir();
    symlink(&dir, other.path().join("step-000000002")).unwrap();
    symlink(&dir, other.path().join("step-000000003")).unwrap();
    let store = Store::open(other.path());
    assert!(store.list().unwrap().iter().all(|entry| matches!(entry.state, State::Bad(_))));
    store.collect(1, false).unwrap();
    drop(Saver::open(other.path(), one(1)).unwrap());
    assert!(is_refused_or_right(root.path(), &dir).unwrap());
}

/// Who may write to a folder around it had an administrator's `ckpt verify` take the mark of another checkpoint away.
#[test]
fn a_mark_goes_into_the_folder_that_was_read() {
    let ((root, dir), (_elsewhere, victim)) = (copy(), copy());
    std::fs::write(victim.join("verified"), "theirs").unwrap();
    let _ = std::fs::remove_file(dir.join("verified"));
    let checkpoint = Checkpoint::open(&dir).unwrap();
    let aside = root.path().join("aside");
    std::fs::rename(&dir, &aside).unwrap();
    std::fs::rename(&victim, &dir).unwrap();
    mark_verified(&checkpoint);
    assert_eq!(std::fs::read_to_string(dir.join("verified")).unwrap(), "theirs");
    assert_eq!(std::fs::read_to_string(aside.join("verified")).unwrap().trim().len(), 64);
    // It is read there as well.
    std::fs::remove_dir_all(&dir).unwrap();
    checkpoint.verify(Check::Full, &|_, _| {}).unwrap();
}

#[test]
fn a_later_format_is_not_called_damaged() {
    let (_root, dir) = copy();
    std::fs::write(dir.join("manifest.json"), "{\"format\": 2, \"body\": 1}").unwrap();
    let error = Checkpoint::open(&dir).unwrap_err();
    assert!(!error.is_damage() && error.to_string().contains("format 2"), "{error}");
}

#[test]
fn bad_ones_are_set_aside_with_their_reason_and_the_next_older_loads() {
    let dir = fast_dir();
    let saver = Saver::open(dir.path(), one(9)).unwrap();
    for step in 1..=4 {
        let mut job = job();
        job.train_all(step);
        job.save(&saver, step).unwrap();
        idle(&saver);
    }
    let spoil = |step: u64, file: &str, spoil: Spoil| {
        apply(&spoil, &dir.path().join(format!("step-00000000{step}/{file}")))
    };
    spoil(4, "shard-0.safetensors", Spoil::Flip(20_000, 3));
    spoil(3, "rank-0.json", Spoil::Delete);
    spoil(2, "manifest.json", Spoil::Cut(30_000));
    let found = newest(dir.path());
    assert_eq!(found.checkpoint.unwrap().manifest.step, 1);
    let passed: Vec<&str> = found.passed.iter().map(|passed| &*passed.name).collect();
    assert_eq!(passed, ["step-000000002", "step-000000004", "step-000000003"]);
    for passed in &found.passed {
        let reason = std::fs::read_to_string(passed.moved_to.as_ref().unwrap().join("reason.txt")).unwrap();
        assert_eq!(reason.trim(), passed.reason);
    }
    assert!(newest(dir.path()).passed.is_empty(), "each is set aside once");
}

#[test]
fn a_checkpoint_in_quarantine_leads_to_no_file_of_the_user() {
    let (_root, dir) = copy();
    let folder = dir.parent().unwrap();
    let victim = folder.join("victim");
    std::fs::write(&victim, "mine").unwrap();
    apply(&Spoil::Flip(30, 3), &dir.join("manifest.json"));
    std::os::unix::fs::symlink(&victim, dir.join("reason.txt")).unwrap();
    let found = newest(folder);
    let moved = found.passed[0].moved_to.as_ref().unwrap();
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "mine");
    let reason = moved.join("reason.txt");
    assert!(std::fs::symlink_metadata(&reason).unwrap().is_file());
    assert_eq!(std::fs::read_to_string(&reason).unwrap().trim(), found.passed[0].reason);
}

#[test]
fn a_quarantine_that_is_a_link_takes_nothing_in() {
    let (_root, dir) = copy();
    let folder = dir.parent().unwrap();
    let victim = folder.join("victim");
    std::fs::create_dir(&victim).unwrap();
    symlink(&victim, folder.join("quarantine")).unwrap();
    apply(&Spoil::Flip(30, 3), &dir.join("manifest.json"));
    let found = newest(folder);
    assert!(found.checkpoint.is_none() && found.passed[0].moved_to.is_none());
    assert!(dir.exists() && victim.read_dir().unwrap().next().is_none());
    std::fs::write(victim.join("private"), "").unwrap();
    assert!(Store::open(folder).quarantined().named.is_empty());
}

/// A bad checkpoint takes as much space as a good one.
#[test]
fn what_was_set_aside_goes_once_all_that_is_kept_is_newer() {
    let (_root, dir) = copy();
    let folder = dir.parent().unwrap().to_owned();
    apply(&Spoil::Flip(30, 3), &dir.join("manifest.json"));
    let moved = newest(&folder).passed.remove(0).moved_to.unwrap();
    // Somebody else's, and a link out of the folder.
    let others = folder.join("others");
    std::fs::create_dir(&others).unwrap();
    std::fs::write(others.join("manifest.json"), "mine").unwrap();
    symlink(&others, moved.with_file_name("link")).unwrap();
    let odd = moved.with_file_name("odd");
    std::fs::create_dir_all(odd.join("inner")).unwrap();

    let saver = Saver::open(&folder, Options { keep: Some(2), ..one(1) }).unwrap();
    let save = |step| {
        std::thread::sleep(std::time::Duration::from_millis(20));
        job().save(&saver, step).unwrap();
        idle(&saver);
    };
    save(3);
    assert!(moved.exists(), "one good one is no two");
    save(4);
    assert!(!moved.exists());
    assert!(odd.join("inner").exists() && others.join("manifest.json").exists());
    assert_eq!(std::fs::read_to_string(others.join("manifest.json")).unwrap(), "mine");
}

#[test]
fn what_does_not_fit_a_restore_is_named_in_a_sentence() {
    let (_root, dir) = copy();
    let checkpoint = Checkpoint::open(&dir).unwrap();
    let mut small = [0_u8; 3];
    // SAFETY: an array of that many bytes.
    let error =
        unsafe { checkpoint.read_into(0, &[("layer.1", small.as_mut_ptr(), 3)]) }.unwrap_err().to_string();
    assert_eq!(error, "step-000000002 has 33 bytes of tensor \"layer.1\" and 3 are asked for");
    let error = checkpoint.read(0, "head.weight").unwrap_err().to_string();
    assert_eq!(error, "step-000000002 has no tensor \"head.weight\" of rank 0");
    let error = checkpoint.read(7, "layer.1").unwrap_err().to_string();
    assert_eq!(error, "step-000000002 was saved by 1 ranks and has no rank 7");
}

#[test]
fn a_number_of_a_save_after_which_none_comes_is_refused_before_anything_is_saved() {
    let (root, dir) = copy();
    for sequence in [u64::MAX, u64::MAX - 1, 1 << 63] {
        let mut manifest = content(&dir.join("manifest.json"));
        manifest["sequence"] = sequence.into();
        seal(&dir.join("manifest.json"), &manifest);
        let refused = Saver::open(root.path(), one(1)).unwrap_err().to_string();
        assert!(refused.contains("step-000000002") && refused.contains("move it away"), "{refused}");
    }
}

#[test]
fn one_flipped_byte_leaves_a_whole_one_of_those_that_are_kept() {
    for keep in [2, 3, 4] {
        let dir = fast_dir();
        let saver = Saver::open(dir.path(), one(keep)).unwrap();
        let mut job = job();
        for step in 1..=9 {
            // The first tensor is frozen, and on disk as often as copies are worth something.
            job.train(2, step);
            job.save_by(&saver, &job.plan_with_still(&[0, 1]), step).unwrap();
            idle(&saver);
            if step < keep as u64 {
                continue;
            }
            let newest = dir.path().join(format!("step-{step:09}"));
            for shared in files(&newest).iter().filter(|file| file.to_string_lossy().contains("still")) {
                let inode = |file: &Path| {
                    std::fs::metadata(file).map_or(0, |file| std::os::unix::fs::MetadataExt::ino(&file))
                };
                let with = (step + 1 - keep as u64..=step).filter(|step| {
                    let other = dir.path().join(format!("step-{step:09}"));
                    files(&other).iter().any(|file| inode(file) == inode(shared))
                });
                assert!(with.count() < keep, "{} is in all {keep}", shared.display());
            }
        }
        let written: Vec<bool> = (10 - keep as u64..=9)
            .map(|step| {
                files(&dir.path().join(format!("step-{step:09}")))
                    .iter()
                    .any(|file| file.to_string_lossy().contains("from-"))
            })
            .collect();
        assert_eq!(written.contains(&true), keep > 2, "files are still shared: {written:?}");
    }
}

/// A part of rank 0 that says of so many tensors without elements.
fn with_empty_tensors(dir: &Path, tensors: usize) {
    let (part, manifest) = (dir.join("rank-0.json"), dir.join("manifest.json"));
    let mut lie = content(&part);
    lie["tensors"] = (0..tensors)
        .map(|at| serde_json::json!({ "name": format!("t{at}"), "dtype": "F32", "shape": [0], "offset": 0 }))
        .collect();
    let hash = seal(&part, &lie);
    let mut commits = content(&manifest);
    commits["parts"][0] = hash.into();
    seal(&manifest, &commits);
}

#[test]
fn more_tensors_than_any_state_has_are_refused_as_they_are_read_and_saved() {
    let (_root, dir) = copy();
    with_empty_tensors(&dir, (1 << 19) + 1);
    let error = Checkpoint::open(&dir).err().unwrap().to_string();
    assert!(error.contains("a list of at most 524288"), "{error}");
    let spec = |at| TensorSpec { name: format!("t{at}"), dtype: Dtype::F32, shape: vec![0] };
    let error = Plan::of((0..=1 << 19).map(spec).collect(), &[]).err().unwrap().to_string();
    assert!(error.contains("524289 tensors, and a checkpoint has at most 524288 a rank"), "{error}");
}

/// Each is looked up by its name: one that is searched for among all of them takes minutes for as many.
#[test]
fn as_many_tensors_as_there_may_be_are_read_one_by_one() {
    let (_root, dir) = copy();
    with_empty_tensors(&dir, 1 << 18);
    let checkpoint = Checkpoint::open(&dir).unwrap();
    for at in 0..1 << 18 {
        assert!(checkpoint.read(0, &format!("t{at}")).unwrap().is_empty());
    }
    assert!(checkpoint.read(0, "t").is_err());
}
