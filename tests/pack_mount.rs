//! Packs as folders: `pack mount` and `run --pack`, read by programs that know nothing of packs.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

mod support;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use support::{Killed, Sandbox, python, signal, skipped, text, wait_until};

const EIO: i32 = 5;
const ENOTCONN: i32 = 107;

/// Whether this process may mount; the test is counted as skipped when not.
fn can_mount(test: &str) -> bool {
    let is_root = fs::metadata("/proc/self").unwrap().uid() == 0;
    let device = fs::File::options().read(true).write(true).open("/dev/fuse");
    let missing = match (is_root, &device) {
        (false, _) => "root, to mount",
        (true, Err(_)) => "/dev/fuse",
        (true, Ok(_)) => return true,
    };
    skipped::skipped(format_args!("{test} needs {missing}"));
    false
}

/// Bytes that lie nowhere else.
fn noise(seed: u64, count: usize) -> Vec<u8> {
    let mut state = seed;
    let step = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(seed | 1);
        (state >> 56) as u8
    };
    std::iter::repeat_with(step).take(count).collect()
}

/// A folder `set` with files of two classes, packed into `set.pack`, and an empty folder `at`.
fn packed(name: &str) -> Sandbox {
    let sandbox = Sandbox::new(name);
    for number in 0..60 {
        let class = sandbox.path(["set/cat", "set/dog/deep"][number % 2]);
        fs::create_dir_all(&class).unwrap();
        fs::write(class.join(format!("{number:04}.bin")), noise(number as u64, 3_000 * number)).unwrap();
    }
    fs::write(sandbox.path("set").join(OsStr::from_bytes(b"cat/\xff\xfe\x1b .bin")), b"odd").unwrap();
    // Read in many requests.
    fs::write(sandbox.path("set/large"), noise(1000, 5_000_001)).unwrap();
    let before_1970 = std::time::UNIX_EPOCH - std::time::Duration::from_nanos(1_500_000_001);
    fs::File::options()
        .write(true)
        .open(sandbox.path("set/large"))
        .unwrap()
        .set_modified(before_1970)
        .unwrap();
    let output = sandbox.run(&["pack", "set", "-o", "set.pack"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    fs::create_dir(sandbox.path("at")).unwrap();
    sandbox
}

/// What a file is besides its bytes.
type Facts = (u64, i64, i64);

/// All below, by path: folders without anything, files with facts and bytes.
fn tree(root: &Path) -> BTreeMap<PathBuf, Option<(Facts, Vec<u8>)>> {
    let (mut found, mut folders) = (BTreeMap::new(), vec![root.to_owned()]);
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            let (name, facts) = (path.strip_prefix(root).unwrap().to_owned(), path.metadata().unwrap());
            if facts.is_dir() {
                found.insert(name, None);
                folders.push(path);
            } else {
                let bytes = fs::read(&path).unwrap();
                found.insert(name, Some(((facts.size(), facts.mtime(), facts.mtime_nsec()), bytes)));
            }
        }
    }
    found
}

/// `pack mount` in the background; unmounted at the end, however the test ends.
struct Mounted<'a> {
    sandbox: &'a Sandbox,
    server: Killed,
}

impl Mounted<'_> {
    fn at(sandbox: &Sandbox) -> Mounted<'_> {
        let errors = fs::File::create(sandbox.path("mount.errors")).unwrap();
        let mut command = sandbox.stallscope(&["pack", "mount", "set.pack", "at"]);
        let server = Killed(command.stdout(Stdio::null()).stderr(errors).spawn().unwrap());
        wait_until("it is mounted", || is_listed(&sandbox.path("at")));
        Mounted { sandbox, server }
    }

    fn errors(&self) -> String {
        fs::read_to_string(self.sandbox.path("mount.errors")).unwrap()
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        if is_listed(&self.sandbox.path("at")) {
            self.sandbox.run(&["pack", "unmount", "at"]);
        }
    }
}

/// Whether something is mounted there, as this process sees it.
fn is_listed(path: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    mounts.lines().any(|line| line.split(' ').nth(4) == path.to_str())
}

/// Whether any process of this machine has something mounted there, and so some job.
fn is_anywhere(path: &Path) -> bool {
    let point = format!(" {} ", path.display());
    let processes = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path().join("mountinfo"));
    processes.filter_map(|table| fs::read_to_string(table).ok()).any(|table| table.contains(&point))
}

/// The processes that serve packs of this sandbox to jobs.
fn servers(sandbox: &Sandbox) -> Vec<u32> {
    let pack = sandbox.path("set.pack").display().to_string();
    let processes =
        fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    let serves = |pid: &u32| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = words.split(|byte| *byte == 0).collect();
        words.contains(&&b"serve"[..]) && words.contains(&pack.as_bytes())
    };
    processes.filter(serves).collect()
}

fn pack_at(sandbox: &Sandbox) -> String {
    format!("{}={}", sandbox.path("set.pack").display(), sandbox.path("at").display())
}

/// Flips a bit of this file, wherever in the pack it lies.
fn spoil(sandbox: &Sandbox, file: &str, at: usize) {
    let content = fs::read(sandbox.path("set").join(file)).unwrap();
    for path in fs::read_dir(sandbox.path("set.pack")).unwrap().map(|entry| entry.unwrap().path()) {
        let chunk = fs::read(&path).unwrap();
        if path.extension().is_some_and(|kind| kind == "chunk")
            && let Some(begin) = chunk.windows(content.len()).position(|window| window == content)
        {
            let spoilt = [chunk[begin + at] ^ 4];
            fs::File::options()
                .write(true)
                .open(&path)
                .unwrap()
                .write_at(&spoilt, (begin + at) as u64)
                .unwrap();
            return;
        }
    }
    panic!("{file} is in no chunk");
}

fn is_done(output: &Output) {
    assert_eq!(output.status.code(), Some(0), "{}{}", text(&output.stdout), text(&output.stderr));
}

#[test]
fn a_mounted_pack_is_the_folder_that_was_packed() {
    if !can_mount("a_mounted_pack_is_the_folder_that_was_packed") {
        return;
    }
    let sandbox = packed("mount");
    let (source, at) = (sandbox.path("set"), sandbox.path("at"));
    let mut numbers = Vec::new();
    for _ in 0..2 {
        let mut mounted = Mounted::at(&sandbox);
        assert_eq!(tree(&at), tree(&source));
        // In pieces, from anywhere, and again from memory.
        let (file, whole) =
            (fs::File::open(at.join("large")).unwrap(), fs::read(source.join("large")).unwrap());
        for begin in [4_999_000, 0, 1, 2_500_000, whole.len(), 6_000_000] {
            let mut piece = vec![0; 70_000];
            let read = file.read_at(&mut piece, begin as u64).unwrap();
            let end = (begin + piece.len()).min(whole.len());
            let expected = whole.get(begin..end).unwrap_or_default();
            assert!(read <= expected.len() && (read > 0) != expected.is_empty(), "{begin}: {read}");
            assert_eq!(piece[..read], expected[..read], "from {begin}");
        }
        drop(file);
        for (path, error) in [("cat/gone", 2), ("large/x", 20)] {
            assert_eq!(fs::metadata(at.join(path)).unwrap_err().raw_os_error(), Some(error), "{path}");
        }
        assert_eq!(fs::write(at.join("cat/new"), "").unwrap_err().raw_os_error(), Some(30));
        assert_eq!(fs::remove_file(at.join("large")).unwrap_err().raw_os_error(), Some(30));
        numbers.push(["", "cat", "dog/deep", "large"].map(|name| at.join(name).metadata().unwrap().ino()));

        let again = sandbox.run(&["pack", "mount", "set.pack", "at"]);
        assert_eq!(again.status.code(), Some(1));
        assert!(text(&again.stderr).contains("mounted on at already"), "{}", text(&again.stderr));
        is_done(&sandbox.run(&["pack", "unmount", "at"]));
        assert!(mounted.server.0.wait().unwrap().success());
        assert!(!is_listed(&at));
    }
    assert_eq!(numbers[0], numbers[1], "numbers of files are the same each time");
}

#[test]
fn a_file_that_is_open_is_read_to_its_end_when_the_mount_ends() {
    if !can_mount("a_file_that_is_open_is_read_to_its_end_when_the_mount_ends") {
        return;
    }
    let sandbox = packed("mount-end");
    let mut mounted = Mounted::at(&sandbox);
    let mut file = fs::File::open(sandbox.path("at/large")).unwrap();
    signal(mounted.server.0.id(), "INT");
    wait_until("it is not mounted", || !is_listed(&sandbox.path("at")));
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).unwrap();
    assert!(bytes == fs::read(sandbox.path("set/large")).unwrap());
    assert!(mounted.server.0.try_wait().unwrap().is_none(), "it serves who has a file open");
    drop(file);
    assert!(mounted.server.0.wait().unwrap().success());
}

#[test]
fn a_mount_whose_server_was_killed_gives_errors_and_can_be_removed() {
    if !can_mount("a_mount_whose_server_was_killed_gives_errors_and_can_be_removed") {
        return;
    }
    let sandbox = packed("mount-killed");
    let mut mounted = Mounted::at(&sandbox);
    mounted.server.0.kill().unwrap();
    mounted.server.0.wait().unwrap();
    let error = fs::read(sandbox.path("at/large")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(ENOTCONN), "{error}");
    let again = sandbox.run(&["pack", "mount", "set.pack", "at"]);
    assert!(text(&again.stderr).contains("pack unmount at"), "{}", text(&again.stderr));
    is_done(&sandbox.run(&["pack", "unmount", "at"]));
    assert!(!is_listed(&sandbox.path("at")));
}

#[test]
fn a_damaged_file_is_an_error_and_the_others_are_read() {
    if !can_mount("a_damaged_file_is_an_error_and_the_others_are_read") {
        return;
    }
    let sandbox = packed("mount-damaged");
    spoil(&sandbox, "cat/0010.bin", 17);
    // Behind what the first read asks for.
    spoil(&sandbox, "large", 4_900_000);
    let mounted = Mounted::at(&sandbox);
    for bad in ["cat/0010.bin", "large"] {
        let mut first = [0; 10];
        let file = fs::File::open(sandbox.path("at").join(bad)).unwrap();
        let error = file.read_at(&mut first, 0).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(EIO), "{bad}: {error}");
        let line = format!("stallscope: {bad} cannot be read: ");
        let errors = mounted.errors();
        let line =
            errors.lines().find(|shown| shown.starts_with(&line)).unwrap_or_else(|| panic!("{errors}"));
        assert!(line.contains(".chunk is damaged"), "{line}");
    }
    for number in (0..60).filter(|number| *number != 10) {
        let name = format!("{}/{number:04}.bin", ["cat", "dog/deep"][number % 2]);
        let read = fs::read(sandbox.path("at").join(&name)).unwrap();
        assert!(read == fs::read(sandbox.path("set").join(&name)).unwrap(), "{name}");
    }
}

#[test]
fn what_cannot_be_mounted_has_a_sentence() {
    let sandbox = packed("mount-wrong");
    let full = sandbox.path("set").display().to_string();
    for (words, sentence) in [
        (["set.pack", "gone"], "there is no folder gone; make it first: mkdir -p gone"),
        (["set.pack", "set/large"], "is no folder"),
        (["set.pack", &full], "is not empty"),
        (["set", "at"], "is no pack"),
        (["gone.pack", "at"], "is no folder, and so no pack"),
    ] {
        let output = sandbox.run(&[&["pack", "mount"], &words[..]].concat());
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        let errors = text(&output.stderr);
        assert!(errors.contains(sentence) && errors.lines().count() == 1, "{words:?}: {errors}");
    }
    for folder in ["at", "gone", "/"] {
        let output = sandbox.run(&["pack", "unmount", folder]);
        assert_eq!(output.status.code(), Some(1), "{folder}");
        assert!(text(&output.stderr).contains("no pack is mounted on"), "{}", text(&output.stderr));
    }
}

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
    // A read that was under way is aborted (103), one that comes later finds nobody.
    assert!([Some(ENOTCONN), Some(103)].contains(&code), "{code:?}");
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
