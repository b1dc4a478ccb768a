//! `run --pack`: a pack as a folder that one job alone sees.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use crate::support::packs::{can_mount, is_anywhere, is_done, is_listed, pack_at, packed, servers};
use crate::support::{Killed, Sandbox, python, signal, text, wait_until};
use std::fs;
use std::process::Stdio;

/// Nobody serves the mount any more; a read that was under way is aborted.
const ENOTCONN: i32 = 107;
const ECONNABORTED: i32 = 103;

/// Reads a folder of pictures by torchvision, with workers, and prints what it has.
const PICTURES: &str = "
import hashlib, os, sys, time
import torch, torchvision
from torchvision.transforms.functional import pil_to_tensor
dataset = torchvision.datasets.ImageFolder(sys.argv[1], transform=pil_to_tensor)
loader = torch.utils.data.DataLoader(dataset, batch_size=4, num_workers=2)
digest = hashlib.sha256()
for pictures, classes in loader:
    digest.update(pictures.numpy().tobytes() + classes.numpy().tobytes())
    print(*dataset.classes, digest.hexdigest(), flush=True)
    if len(sys.argv) > 2:
        open(sys.argv[2], 'w').close()
        while not os.path.exists('go on'):
            time.sleep(0.02)
";

const DRAW: &str = "
import os
from PIL import Image
for number in range(24):
    folder = f'set/{\"abc\"[number % 3]}'
    os.makedirs(folder, exist_ok=True)
    Image.effect_noise((32, 24), 50 + number).convert('RGB').save(f'{folder}/{number}.png')
";

#[test]
fn an_unmodified_script_reads_the_same_pixels_and_nobody_else_sees_the_pack() {
    if !can_mount("an_unmodified_script_reads_the_same_pixels_and_nobody_else_sees_the_pack") {
        return;
    }
    let sandbox = Sandbox::new("run-pack");
    let in_sandbox = |words: &[&str]| {
        let mut command = std::process::Command::new(python());
        command.args(words).current_dir(sandbox.path(""));
        command.output().unwrap()
    };
    is_done(&in_sandbox(&["-c", DRAW]));
    is_done(&sandbox.run(&["pack", "set", "-o", "set.pack"]));
    fs::write(sandbox.path("pictures.py"), PICTURES).unwrap();
    let expected = in_sandbox(&["pictures.py", "set"]);
    is_done(&expected);
    // What a folder has is hidden.
    let at = sandbox.path("at");
    fs::create_dir(&at).unwrap();
    fs::write(at.join("hidden"), "").unwrap();

    let pack_at = pack_at(&sandbox);
    let python = python();
    let words = [
        "run",
        "--pack",
        &pack_at,
        "--cache",
        "64MiB",
        "-o",
        "run.stall",
        "--",
        &python,
        "pictures.py",
        "at",
        "reading",
    ];
    let mut command = sandbox.stallscope(&words);
    let errors = fs::File::create(sandbox.path("errors")).unwrap();
    let job = command.stdout(Stdio::piped()).stderr(errors).spawn().unwrap();
    wait_until("it reads", || sandbox.path("reading").exists());
    assert!(is_anywhere(&at));
    assert!(!is_listed(&at));
    let seen: Vec<_> = fs::read_dir(&at).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(seen, ["hidden"]);
    assert_eq!(servers(&sandbox).len(), 1);
    fs::write(sandbox.path("go on"), "").unwrap();
    let output = job.wait_with_output().unwrap();
    let errors = fs::read_to_string(sandbox.path("errors")).unwrap();
    assert!(output.status.success(), "{errors}");
    assert_eq!(text(&output.stdout), text(&expected.stdout));
    assert!(text(&output.stdout).starts_with("a b c "));
    wait_until("nothing is left of it", || !is_anywhere(&at) && servers(&sandbox).is_empty());
    assert_eq!(sandbox.report("run.stall")["shim"], "on", "{errors}");
}

/// Reads all files again and again, without the page cache's help, until `go on` is there; the error's number is its exit code.
const READER: &str = "
import os, sys
names = [os.path.join(at, name) for at, _, names in os.walk('at') for name in names]
open('reading', 'w').close()
try:
    while not os.path.exists('go on'):
        for name in names:
            with open(name, 'rb') as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                file.read()
except OSError as error:
    sys.exit(error.errno)
open('done', 'w').write(str(len(names)))
";

#[test]
fn a_job_whose_server_was_killed_gets_errors_and_ends() {
    if !can_mount("a_job_whose_server_was_killed_gets_errors_and_ends") {
        return;
    }
    let sandbox = packed("run-pack-killed");
    let pack_at = pack_at(&sandbox);
    let words = ["run", "--no-shim", "--pack", &pack_at, "--", "python3", "-c", READER];
    let mut job = Killed(sandbox.stallscope(&words).stderr(Stdio::null()).spawn().unwrap());
    wait_until("it reads", || sandbox.path("reading").exists());
    let servers = servers(&sandbox);
    assert_eq!(servers.len(), 1);
    signal(servers[0], "KILL");
    let code = job.0.wait().unwrap().code();
    assert!([Some(ENOTCONN), Some(ECONNABORTED)].contains(&code), "{code:?}");
    wait_until("nothing is left of it", || !is_anywhere(&sandbox.path("at")));
}

#[test]
fn a_job_reads_on_when_its_collector_was_killed() {
    if !can_mount("a_job_reads_on_when_its_collector_was_killed") {
        return;
    }
    let sandbox = packed("run-pack-alone");
    let pack_at = pack_at(&sandbox);
    let words = ["run", "--no-shim", "--pack", &pack_at, "--", "python3", "-c", READER];
    let mut run = Killed(sandbox.stallscope(&words).stderr(Stdio::null()).spawn().unwrap());
    wait_until("it reads", || sandbox.path("reading").exists());
    run.0.kill().unwrap();
    run.0.wait().unwrap();
    assert_eq!(servers(&sandbox).len(), 1);
    fs::write(sandbox.path("go on"), "").unwrap();
    wait_until("the job has ended", || sandbox.path("done").exists());
    assert_eq!(fs::read_to_string(sandbox.path("done")).unwrap(), "62");
    wait_until("nothing is left of it", || servers(&sandbox).is_empty() && !is_anywhere(&sandbox.path("at")));
}

#[test]
fn a_job_of_the_caller_of_sudo_reads_two_packs_and_gains_nothing() {
    if !can_mount("a_job_of_the_caller_of_sudo_reads_two_packs_and_gains_nothing") {
        return;
    }
    let sandbox = packed("run-pack-sudo");
    sandbox.open_to_all();
    fs::create_dir(sandbox.path("other")).unwrap();
    let program = sandbox.open_copy();
    let other = format!("set.pack={}", sandbox.path("other").display());
    let script = "id -u; grep NoNewPrivs /proc/self/status; cat at/cat/0002.bin other/dog/deep/0001.bin other/large | wc -c; pwd";
    let words =
        ["run", "--no-shim", "--pack", &pack_at(&sandbox), "--pack", &other, "--", "sh", "-c", script];
    let template = sandbox.stallscope(&words);
    let mut command = std::process::Command::new(program);
    command
        .args(words)
        .current_dir(sandbox.path(""))
        .envs(template.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.envs([("SUDO_UID", "65534"), ("SUDO_GID", "65534"), ("SUDO_USER", "nobody")]);
    let output = command.output().unwrap();
    assert_eq!(
        text(&output.stdout).split_whitespace().collect::<Vec<_>>(),
        ["65534", "NoNewPrivs:", "1", "5009001", sandbox.path("").to_str().unwrap().trim_end_matches('/')],
        "{}",
        text(&output.stderr)
    );
    // Who may not read the pack may not read it by way of sudo.
    fs::set_permissions(sandbox.path("set.pack"), std::os::unix::fs::PermissionsExt::from_mode(0o700))
        .unwrap();
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("Permission denied"), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "");
}

#[test]
fn a_job_that_starts_in_the_folder_finds_the_pack_there() {
    if !can_mount("a_job_that_starts_in_the_folder_finds_the_pack_there") {
        return;
    }
    let sandbox = packed("run-pack-cwd");
    let run = |folder: &str| {
        let words =
            ["run", "--no-shim", "-o", "../run.stall", "--pack", &pack_at(&sandbox), "--", "cat", "0002.bin"];
        fs::create_dir_all(sandbox.path(folder)).unwrap();
        let mut command = sandbox.stallscope(&words);
        command.current_dir(sandbox.path(folder));
        command.output().unwrap()
    };
    let output = run("at/cat");
    assert!(output.stdout == fs::read(sandbox.path("set/cat/0002.bin")).unwrap(), "{}", text(&output.stderr));
    let output = run("at/only here");
    assert_eq!(output.status.code(), Some(126));
    assert!(
        text(&output.stderr).contains("the current folder is below a pack's"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn wrong_packs_of_a_run_have_a_sentence_and_no_job_starts() {
    if !can_mount("wrong_packs_of_a_run_have_a_sentence_and_no_job_starts") {
        return;
    }
    let sandbox = packed("run-pack-wrong");
    let run = |packs: &[&str]| {
        let packs = packs.iter().flat_map(|pack| ["--pack", pack]);
        let words: Vec<&str> = ["run"].into_iter().chain(packs).chain(["--", "touch", "started"]).collect();
        sandbox.run(&words)
    };
    for (packs, code, sentence) in [
        (&["set.pack"][..], 2, "write PACK=FOLDER"),
        (&["=at"], 2, "write PACK=FOLDER"),
        (&["gone.pack=at"], 1, "cannot open the pack gone.pack"),
        (&["set=at"], 1, "is no pack"),
        (&["set.pack=gone"], 1, "there is no folder gone to show a pack at; make it first: mkdir -p gone"),
        (&["set.pack=set/large"], 1, "set/large is no folder"),
        (&["set.pack=/"], 1, "would hide everything else"),
        (&["set.pack=set", "set.pack=set/cat"], 1, "lie in one another"),
    ] {
        let output = run(packs);
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{packs:?}: {errors}");
        let lines = errors.lines().filter(|line| line.contains(sentence)).count();
        assert_eq!(lines, 1, "{packs:?}: {errors}");
        assert!(code == 2 || errors.lines().count() == 1, "{packs:?}: {errors}");
    }
    let mut command =
        sandbox.stallscope_as_nobody(&["run", "--pack", "set.pack=at", "--", "touch", "started"]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("which takes root"), "{}", text(&output.stderr));
    assert!(!sandbox.path("started").exists());
    let missing = sandbox.run(&["run", "--pack", "set.pack=at", "--", "no-such-command-at-all"]);
    assert_eq!(missing.status.code(), Some(127));
    wait_until("no server is left", || servers(&sandbox).is_empty());
}
