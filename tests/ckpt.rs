//! `stallscope ckpt` on folders as a job leaves them, good and bad.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use crate::support::{Sandbox, text};
use serde_json::Value;
use stallscope_checkpoint::{Dtype, Options, Plan, Saver, Source, TensorSpec};
use std::process::Command;
use std::time::Duration;

/// A folder `ckpts` with checkpoints of these steps.
fn saved(name: &str, steps: &[u64]) -> Sandbox {
    let sandbox = Sandbox::new(name);
    let saver = Saver::open(&sandbox.path("ckpts"), Options { keep: None, ..Options::default() }).unwrap();
    let spec = |name: &str, shape: &[u64]| TensorSpec {
        name: name.into(),
        dtype: Dtype::F32,
        shape: shape.to_vec(),
    };
    let plan = Plan::of(vec![spec("head.weight", &[3, 200]), spec("head\u{1b}[2J.bias", &[3])], &[]).unwrap();
    for &step in steps {
        let (weight, bias) = (vec![step as f32; 600], vec![2.5_f32; 3]);
        let sources = [Source::Now(weight.as_ptr().cast()), Source::Now(bias.as_ptr().cast())];
        // SAFETY: the vectors live and stay as they are until this returns.
        let snapshot = unsafe { saver.snapshot(&plan, &sources).unwrap() };
        saver.persist(snapshot, saver.ticket(step), b"position".to_vec()).unwrap();
        assert!(saver.wait(Duration::from_secs(60)));
    }
    sandbox
}

fn json(sandbox: &Sandbox, words: &[&str]) -> Value {
    let output = sandbox.run(words);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output.stderr)))
}

fn spoil(sandbox: &Sandbox, step: u64) {
    let shard = sandbox.path(&format!("ckpts/step-{step:09}/shard-0.safetensors"));
    let mut bytes = std::fs::read(&shard).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(shard, bytes).unwrap();
}

#[test]
fn a_folder_is_listed_newest_first() {
    let sandbox = saved("ckpt-ls", &[10, 20]);
    std::fs::create_dir(sandbox.path("ckpts/step-000000030")).unwrap();
    let output = sandbox.run(&["ckpt", "ls", "ckpts"]);
    let lines: Vec<String> = text(&output.stdout).lines().map(str::to_owned).collect();
    assert!(lines[0].starts_with("CHECKPOINT  "), "{lines:?}");
    assert!(lines[1].starts_with("step-000000020    20  "), "{lines:?}");
    assert!(lines[1].contains(" ago  verified "), "{lines:?}");
    assert!(lines[3].starts_with("step-000000030") && lines[3].contains("incomplete"), "{lines:?}");
    let listed = json(&sandbox, &["ckpt", "ls", "ckpts", "--json"]);
    assert_eq!(listed["checkpoints"][1]["step"], 10);
    assert_eq!(listed["checkpoints"][0]["state"], "verified");
}

/// They took 1 GB: all that each says was in memory, once more as JSON, and as its text.
#[test]
fn manifests_as_long_as_they_may_be_take_little_memory() {
    let sandbox = Sandbox::new("ckpt-long");
    let saver = Saver::open(&sandbox.path("ckpts"), Options { keep: None, ..Options::default() }).unwrap();
    let spec = TensorSpec { name: "weight".into(), dtype: Dtype::F32, shape: vec![1] };
    let plan = Plan::of(vec![spec], &[]).unwrap();
    let weight = 1.0_f32;
    // SAFETY: the number lives and stays as it is until this returns.
    let snapshot =
        unsafe { saver.snapshot(&plan, &[Source::Now(std::ptr::from_ref(&weight).cast())]).unwrap() };
    let metrics = (0..1000).map(|number| (format!("{number:0200}"), 1e300)).collect();
    saver.persist_measured(snapshot, saver.ticket(1), Vec::new(), metrics).unwrap();
    assert!(saver.wait(Duration::from_secs(60)));
    drop(saver);
    let manifest = sandbox.path("ckpts/step-000000001/manifest.json");
    for step in 2..=1200 {
        let folder = sandbox.path(&format!("ckpts/step-{step:09}"));
        std::fs::create_dir(&folder).unwrap();
        std::fs::hard_link(&manifest, folder.join("manifest.json")).unwrap();
    }
    let measure = "
import resource, subprocess, sys
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
";
    for words in [&["ls", "--json"][..], &["ls"], &["show", "1", "--json"], &["gc", "--dry-run"]] {
        let mut words = words.to_vec();
        words.insert(1, "ckpts");
        words.insert(0, "ckpt");
        let command = sandbox.stallscope(&words);
        let mut outer = Command::new("python3");
        outer.args(["-c", measure]).arg(command.get_program()).args(command.get_args());
        outer.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let output = outer.current_dir(sandbox.path(".")).output().unwrap();
        let kib: u64 = text(&output.stdout).trim().parse().unwrap_or_else(|_| panic!("{output:?}"));
        assert!(kib < 256 << 10, "{words:?} took {} MiB", kib >> 10);
    }
}

#[test]
fn verifying_says_which_is_bad_and_exits_with_1() {
    let sandbox = saved("ckpt-verify", &[10, 20]);
    let whole = sandbox.run(&["ckpt", "verify", "ckpts"]);
    assert_eq!(whole.status.code(), Some(0), "{}", text(&whole.stderr));
    spoil(&sandbox, 20);
    let bad = sandbox.run(&["ckpt", "verify", "ckpts"]);
    assert_eq!(bad.status.code(), Some(1));
    let printed = text(&bad.stdout);
    assert!(
        printed.contains("shard-0.safetensors is damaged: the chunk at byte 0 does not hold what was saved"),
        "{printed}"
    );
    assert!(printed.contains("step-000000010: whole"), "{printed}");
    assert_eq!(sandbox.run(&["ckpt", "verify", "ckpts", "10"]).status.code(), Some(0));
    assert_eq!(json(&sandbox, &["ckpt", "verify", "ckpts", "latest", "--json"])[0]["whole"], false);
}

#[test]
fn a_checkpoint_shows_its_tensors_and_no_name_reaches_the_terminal_raw() {
    let sandbox = saved("ckpt-show", &[10]);
    let shown = text(&sandbox.run(&["ckpt", "show", "ckpts"]).stdout);
    assert!(shown.starts_with("step-000000010: step 10, "), "{shown}");
    assert!(
        shown.contains("head.weight") && shown.contains("3 x 200") && shown.contains("2.4 kB"),
        "{shown}"
    );
    assert!(!shown.contains('\u{1b}'), "{shown}");
    let shown = json(&sandbox, &["ckpt", "show", "ckpts", "10", "--json"]);
    assert_eq!(shown["ranks"][0]["tensors"][0]["dtype"], "F32");
}

#[test]
fn collecting_keeps_so_many_good_ones_however_many_bad_ones_there_are() {
    let sandbox = saved("ckpt-gc", &[10, 20, 30, 40]);
    spoil(&sandbox, 40);
    std::fs::remove_file(sandbox.path("ckpts/step-000000040/verified")).unwrap();
    std::fs::create_dir(sandbox.path("ckpts/step-000000050")).unwrap();
    let would = json(&sandbox, &["ckpt", "gc", "ckpts", "--keep", "2", "--dry-run", "--json"]);
    assert_eq!(would["removed"], serde_json::json!(["step-000000010"]));
    let printed = text(&sandbox.run(&["ckpt", "gc", "ckpts", "--keep", "2"]).stdout);
    assert!(printed.starts_with("step-000000010: removed\nstep-000000050: removed, the rest"), "{printed}");
    let listed = json(&sandbox, &["ckpt", "ls", "ckpts", "--json"]);
    assert_eq!(listed["checkpoints"].as_array().unwrap().len(), 3);
    assert_eq!(sandbox.run(&["ckpt", "gc", "ckpts", "--keep", "0"]).status.code(), Some(2));
}

/// What a terminal obeys, and what turns what follows, in names and in what a checkpoint says of itself.
#[test]
fn no_text_of_a_folder_is_obeyed_by_the_terminal() {
    let sandbox = saved("ckpt-obeyed", &[10, 20]);
    let evil = "\u{1b}]0;x\u{7}\u{9b}31m\u{85}\u{202e}";
    for (place, reason) in [("step-000000005", Some(evil)), ("step-000000006", None)] {
        let folder = sandbox.path(&format!("ckpts/quarantine/{place}{evil}"));
        std::fs::create_dir_all(&folder).unwrap();
        reason.into_iter().for_each(|reason| std::fs::write(folder.join("reason.txt"), reason).unwrap());
        let long_ago = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1);
        std::fs::File::open(folder).unwrap().set_modified(long_ago).unwrap();
    }
    for words in [
        &["ls"][..],
        &["ls", "--json"],
        &["show", "20"],
        &["show", "20", "--json"],
        &["gc", "--keep", "1", "--dry-run", "--json"],
        &["gc", "--keep", "1"],
    ] {
        let mut words = words.to_vec();
        words.insert(1, "ckpts");
        words.insert(0, "ckpt");
        let output = sandbox.run(&words);
        let shown = text(&output.stdout) + &text(&output.stderr);
        assert!(shown.contains("step-0000000"), "{words:?}: {shown:?}");
        let obeyed = |char: char| (char.is_control() && char != '\n') || char == '\u{202e}';
        assert!(!shown.contains(obeyed), "{words:?}: {shown:?}");
    }
}

#[test]
fn an_export_is_a_safetensors_file_and_replaces_none() {
    let sandbox = saved("ckpt-export", &[10]);
    let export = || sandbox.run(&["ckpt", "export", "ckpts", "latest", "model.safetensors"]);
    assert_eq!(export().status.code(), Some(0));
    let file = std::fs::read(sandbox.path("model.safetensors")).unwrap();
    let header = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&file[8..8 + header]).unwrap();
    assert_eq!(header["head.weight"]["shape"], serde_json::json!([3, 200]));
    let again = export();
    assert_eq!(again.status.code(), Some(1));
    assert!(text(&again.stderr).contains("model.safetensors is there already"), "{}", text(&again.stderr));
}

#[test]
fn what_is_not_there_is_named_in_a_sentence() {
    let sandbox = saved("ckpt-none", &[10]);
    let printed = |words: &[&str]| {
        let output = sandbox.run(words);
        assert_eq!(output.status.code(), Some(1));
        text(&output.stderr)
    };
    assert!(printed(&["ckpt", "ls", "nowhere"]).starts_with("stallscope: nowhere is no folder; "));
    let missing = printed(&["ckpt", "show", "ckpts", "11"]);
    assert!(missing.contains("has no checkpoint \"11\"; there is step-000000010"), "{missing}");
}
