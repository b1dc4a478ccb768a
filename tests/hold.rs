//! `attach --cache`: a job that runs already, and has less memory than its files take.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use crate::support::memory::MemoryGroup;
use crate::support::node::PYTHON;
use crate::support::{self, Killed, Sandbox, job, privileged, text, wait_until};
use rustix::fs::{Advice, fadvise};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Whose job it is.
const ANNA: u32 = 4747;
const FILES: usize = 320;
const FILE_BYTES: usize = 100 << 10;
const DATA_BYTES: u64 = (FILES * FILE_BYTES) as u64;
/// Of the job's group: its process, and less than half of the data.
const GROUP_BYTES: u64 = 24 << 20;
const BUDGET_BYTES: u64 = 16 << 20;

/// Whose job it is, and where its files are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum As {
    Anna,
    Root,
    /// Root of a mount namespace, as in a container: the folder of its data is there alone.
    RootWithin,
    /// The same through overlayfs, as what an image has.
    RootOfImage,
}

/// A job in a memory group of its own.
struct Shuffled {
    sandbox: Sandbox,
    _group: MemoryGroup,
    job: Killed,
    data: PathBuf,
}

#[derive(Clone, Copy, Debug)]
struct Epoch {
    from_device_bytes: u64,
    sum: u64,
}

impl Shuffled {
    /// `None` where no group can be made.
    fn new(name: &str, by: As) -> Option<Shuffled> {
        Shuffled::with(name, by, &[])
    }

    /// The same; what else the job is asked for.
    fn with(name: &str, by: As, how: &[&str]) -> Option<Shuffled> {
        let group = MemoryGroup::new(name, GROUP_BYTES)?;
        let sandbox = Sandbox::new(name);
        let data = sandbox.path("data");
        fs::create_dir(&data).unwrap();
        let script = sandbox.path("shuffled.py");
        fs::copy(job("shuffled.py"), &script).unwrap();
        (0..FILES).for_each(|number| write(&data.join(format!("{number}.bin")), &content(number)));
        let anna = ANNA.to_string();
        let within = "mount --bind \"$0\" /mnt && exec \"$@\"";
        let image = "mount -t tmpfs none /media && mkdir /media/upper /media/work && mount -t overlay none -o \
                     \"lowerdir=$0,upperdir=/media/upper,workdir=/media/work\" /mnt && exec \"$@\"";
        let mut command = Command::new(match by {
            As::Anna => "setpriv",
            As::Root => "env",
            As::RootWithin | As::RootOfImage => "unshare",
        });
        match by {
            As::Anna => command.args(["--reuid", &anna, "--regid", &anna, "--clear-groups"]),
            As::Root => &mut command,
            As::RootWithin => command.args(["--mount", "sh", "-c", within]).arg(&data),
            As::RootOfImage => command.args(["--mount", "sh", "-c", image]).arg(&data),
        };
        let seen = if matches!(by, As::Anna | As::Root) { data.as_path() } else { Path::new("/mnt") };
        command.arg(PYTHON).arg(script).arg(seen).arg(sandbox.path("stop")).args(how).current_dir(&data);
        let mut command = group.around(&command);
        command.stdin(Stdio::null()).stdout(File::create(sandbox.path("epochs")).unwrap());
        let job = Killed(command.spawn().unwrap());
        // Before that it is setpriv or unshare, and root's.
        wait_until("it is Python", || {
            fs::read_to_string(format!("/proc/{}/comm", job.0.id()))
                .is_ok_and(|name| name.starts_with("python"))
        });
        Some(Shuffled { sandbox, _group: group, job, data })
    }

    fn epochs(&self) -> Vec<Epoch> {
        let printed = fs::read_to_string(self.sandbox.path("epochs")).unwrap();
        let whole = printed.rfind('\n').map_or("", |end| &printed[..end]);
        let epoch = |line: &str| {
            let numbers: Vec<u64> = line.split(' ').map(|number| number.parse().unwrap()).collect();
            Epoch { from_device_bytes: numbers[1], sum: numbers[2] }
        };
        whole.lines().map(epoch).collect()
    }

    /// So many more epochs that begin from now on.
    fn runs(&self, more: usize) -> Vec<Epoch> {
        // That which is under way is none of them.
        let from = self.epochs().len() + 1;
        wait_until("the job goes on", || self.epochs().len() >= from + more);
        self.epochs()[from..from + more].to_vec()
    }

    fn attach(&self, recording: &str) -> Killed {
        let words = ["attach", &self.job.0.id().to_string(), "--cache", "16MiB", "-o", recording];
        let mut attach = self.sandbox.stallscope(&words);
        let printed = File::create(self.sandbox.path(&format!("{recording}.printed"))).unwrap();
        Killed(attach.stderr(printed).stdout(Stdio::null()).spawn().unwrap())
    }

    /// Files that a process has mapped: their names, and what the kernel adds to those of deleted ones.
    fn mapped(&self, pid: u32) -> BTreeSet<String> {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        let folder = format!("{}/", self.data.display());
        maps.lines().filter_map(|line| Some(line.split_once(&folder)?.1.to_owned())).collect()
    }
}

/// No two files are the same.
fn content(number: usize) -> Vec<u8> {
    (0..FILE_BYTES).map(|at| ((at * 31 + number * 7919) >> 3) as u8).collect()
}

/// Onto the disk, and out of memory.
fn write(path: &Path, content: &[u8]) {
    let mut file = File::create(path).unwrap();
    file.write_all(content).unwrap();
    file.sync_all().unwrap();
    fadvise(&file, 0, None, Advice::DontNeed).unwrap();
}

fn children(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let children = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    children
        .flat_map(|pids| pids.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<_>>())
        .collect()
}

fn status(pid: u32, name: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ")
}

fn locked_bytes(pid: u32) -> u64 {
    status(pid, "VmLck").split(' ').next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) << 10
}

fn mean(epochs: &[Epoch]) -> u64 {
    epochs.iter().map(|epoch| epoch.from_device_bytes).sum::<u64>() / epochs.len() as u64
}

#[test]
fn a_job_reads_less_by_what_is_held_of_its_files_and_goes_on_whatever_ends() {
    if !privileged("a_job_reads_less_by_what_is_held_of_its_files_and_goes_on_whatever_ends") {
        return;
    }
    let Some(job) = Shuffled::new("hold", As::Anna) else { return };
    let before = job.runs(2);
    let mut attach = job.attach("first.stall");
    wait_until("there is a holder", || !children(attach.0.id()).is_empty());
    let holder = children(attach.0.id())[0];
    wait_until("the budget is held", || locked_bytes(holder) + 2 * FILE_BYTES as u64 > BUDGET_BYTES);
    assert!(locked_bytes(holder) <= BUDGET_BYTES);
    let after = job.runs(2);
    println!("epochs before {before:?}, after {after:?}");
    assert!(mean(&before) > DATA_BYTES / 2, "the job had too much memory: {before:?}");
    assert!(mean(&after) <= DATA_BYTES - BUDGET_BYTES + (1 << 20), "{after:?}");
    assert!(mean(&before) - mean(&after) > BUDGET_BYTES * 7 / 10, "{before:?} {after:?}");

    // A process of the job's user, with no right but to lock that much.
    let anna = [ANNA; 4].map(|uid| uid.to_string()).join(" ");
    assert_eq!([status(holder, "Uid"), status(holder, "Gid")], [anna.clone(), anna]);
    assert_eq!(status(holder, "Groups"), "");
    // None, or CAP_IPC_LOCK alone where root of a container may not raise the limit instead.
    let capabilities = status(holder, "CapPrm");
    assert_eq!(capabilities, status(holder, "CapEff"));
    assert!(["0000000000000000", "0000000000004000"].contains(&&*capabilities), "{capabilities}");
    assert_eq!(status(holder, "NoNewPrivs"), "1");
    let first = fs::read_to_string(format!("/proc/{holder}/oom_score_adj")).unwrap();
    assert_eq!(first.trim(), "1000");

    // Nobody can type into root's terminal through it.
    let stat = fs::read_to_string(format!("/proc/{holder}/stat")).unwrap();
    let session = stat.rsplit(") ").next().unwrap().split(' ').nth(3).unwrap();
    assert_eq!(session, holder.to_string(), "{stat}");

    // The budget is a knob: less is held at once, and as much as before again.
    let pid = job.job.0.id().to_string();
    let turn = |size: &str| {
        let done = job.sandbox.run(&["knobs", &pid, "set", &format!("held.bytes={size}")]);
        assert!(done.status.success(), "{}", text(&done.stderr));
    };
    turn("4MiB");
    wait_until("the rest is let go", || locked_bytes(holder) <= 4 << 20);
    turn("16MiB");
    wait_until("it is held again", || locked_bytes(holder) + 2 * FILE_BYTES as u64 > BUDGET_BYTES);
    assert_eq!(job.sandbox.run(&["knobs", &pid, "set", "held.bytes=17MiB"]).status.code(), Some(1));

    // One file is written to, in place, and another one replaced; the job reads the same as before.
    let held = job.mapped(holder);
    let [written, replaced] = [0, 1].map(|nth| held.iter().nth(nth).unwrap().clone());
    let of = |name: &str| content(name.trim_end_matches(".bin").parse().unwrap());
    File::options().write(true).open(job.data.join(&written)).unwrap().write_all(&of(&written)).unwrap();
    let other = job.sandbox.path("other");
    write(&other, &of(&replaced));
    fs::rename(&other, job.data.join(&replaced)).unwrap();
    wait_until("both are let go", || {
        let now = job.mapped(holder);
        !now.contains(&written) && !now.iter().any(|name| name.ends_with(" (deleted)"))
    });

    let recorded = || {
        stallscope_store::Recording::open(&job.sandbox.path("first.stall")).unwrap().summary().unwrap().held
    };
    wait_until("that is recorded", || recorded().is_some_and(|held| held.changed_files >= 2));

    // Its user stops the holder, which is to let go then, and is ended for that: the job and its measurement go on.
    support::signal(holder, "STOP");
    turn("1MiB");
    wait_until("its locks are gone", || !Path::new(&format!("/proc/{holder}")).exists());
    let printed = || fs::read_to_string(job.sandbox.path("first.stall.printed")).unwrap();
    wait_until("it is heard of", || printed().contains("none are held any more"));
    let without = job.runs(2);
    support::signal(attach.0.id(), "INT");
    assert!(attach.0.wait().unwrap().success());
    assert!(printed().contains("Files held in memory"), "{}", printed());
    let figures = recorded().expect("it was asked for");
    assert!(figures.most_bytes <= BUDGET_BYTES && figures.most_files >= 150, "{figures:?}");
    assert!(figures.brought_bytes > 0 && figures.bytes == 0, "{figures:?}");

    // The collector is killed: nothing stays locked behind it.
    let second = job.attach("second.stall");
    wait_until("there is a holder again", || !children(second.0.id()).is_empty());
    let holder = children(second.0.id())[0];
    wait_until("it holds", || locked_bytes(holder) > 0);
    support::signal(second.0.id(), "KILL");
    wait_until("the holder ends", || !Path::new(&format!("/proc/{holder}")).exists());
    let last = job.runs(1);

    let sums: BTreeSet<u64> =
        [before, after, without, last].concat().into_iter().map(|epoch| epoch.sum).collect();
    assert_eq!(sums.len(), 1, "the job reads what it read before");
}

#[test]
fn files_that_stay_open_are_held_once_the_job_has_read_them_again() {
    if !privileged("files_that_stay_open_are_held_once_the_job_has_read_them_again") {
        return;
    }
    let Some(job) = Shuffled::with("hold-kept", As::Anna, &["kept"]) else { return };
    let before = job.runs(2);
    let attach = job.attach("kept.stall");
    wait_until("there is a holder", || !children(attach.0.id()).is_empty());
    let holder = children(attach.0.id())[0];
    wait_until("the budget is held", || locked_bytes(holder) + 2 * FILE_BYTES as u64 > BUDGET_BYTES);
    let after = job.runs(2);
    println!("epochs before {before:?}, after {after:?}");
    assert!(mean(&before) > DATA_BYTES / 2, "the job had too much memory: {before:?}");
    assert!(mean(&before) - mean(&after) > BUDGET_BYTES * 7 / 10, "{before:?} {after:?}");
    let sums: BTreeSet<u64> = [before, after].concat().into_iter().map(|epoch| epoch.sum).collect();
    assert_eq!(sums.len(), 1, "the job reads what it read before");
}

#[test]
fn a_holder_ends_with_its_job() {
    if !privileged("a_holder_ends_with_its_job") {
        return;
    }
    let Some(mut job) = Shuffled::new("hold-end", As::Anna) else { return };
    let mut attach = job.attach("end.stall");
    wait_until("it holds", || children(attach.0.id()).first().is_some_and(|pid| locked_bytes(*pid) > 0));
    let holder = children(attach.0.id())[0];
    fs::write(job.sandbox.path("stop"), "").unwrap();
    assert!(job.job.0.wait().unwrap().success());
    wait_until("its locks are gone", || locked_bytes(holder) == 0);
    assert!(attach.0.wait().unwrap().success());
    wait_until("the holder is gone", || !Path::new(&format!("/proc/{holder}")).exists());
}

#[test]
fn files_are_held_for_root_and_where_a_container_sees_them() {
    if !privileged("files_are_held_for_root_and_where_a_container_sees_them") {
        return;
    }
    for by in [As::Root, As::RootWithin, As::RootOfImage] {
        let Some(job) = Shuffled::new(&format!("hold-{by:?}").to_lowercase(), by) else { return };
        let before = job.runs(1);
        let attach = job.attach("held.stall");
        wait_until("there is a holder", || !children(attach.0.id()).is_empty());
        let holder = children(attach.0.id())[0];
        wait_until("the budget is held", || locked_bytes(holder) + 2 * FILE_BYTES as u64 > BUDGET_BYTES);
        let after = job.runs(2);
        println!("{by:?}: {before:?}, then {after:?}");
        assert!(mean(&after) <= DATA_BYTES - BUDGET_BYTES + (1 << 20), "{by:?}: {after:?}");
        assert!(before.iter().chain(&after).all(|epoch| epoch.sum == before[0].sum), "{by:?}");
        // Root, with no right but to read root's own files.
        assert_eq!(status(holder, "Uid"), "0 0 0 0");
        assert!(["0000000000000000", "0000000000004000"].contains(&&*status(holder, "CapEff")), "{by:?}");
    }
}

/// There may lie a pipe, or bytes without end, for which root's session would wait, or the machine's memory go.
#[test]
fn what_lies_in_a_container_where_the_kernels_own_files_were_is_not_read() {
    if !privileged("what_lies_in_a_container_where_the_kernels_own_files_were_is_not_read") {
        return;
    }
    let sandbox = Sandbox::new("hold-within");
    let pipe = sandbox.path("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let within = "mount --bind \"$0\" /proc/sys/fs/inotify/max_user_watches && exec cat";
    let mut container = Command::new("unshare");
    container.args(["--mount", "sh", "-c", within]).arg(&pipe).stdin(Stdio::piped());
    let job = Killed(container.spawn().unwrap());
    let pid = job.0.id().to_string();
    let comm = format!("/proc/{pid}/comm");
    wait_until("it runs", || fs::read_to_string(&comm).is_ok_and(|name| name == "cat\n"));
    let output = sandbox.run(&["attach", &pid, "--cache", "16MiB", "--for", "1s", "-o", "held.stall"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
}

/// Who waits for its server keeps what it has locked, also when it is killed, and a link may lead any path there.
#[test]
fn what_holds_files_sees_no_file_system_that_a_user_serves() {
    if !privileged("what_holds_files_sees_no_file_system_that_a_user_serves") {
        return;
    }
    let sandbox = Sandbox::new("hold-fuse");
    // Nobody ever answers there.
    let within = "exec 3<>/dev/fuse && mount -i -t fuse -o fd=3,rootmode=40000,user_id=0,group_id=0 none /mnt && exec cat";
    let mut container = Command::new("unshare");
    container.args(["--mount", "sh", "-c", within]).stdin(Stdio::piped());
    let job = Killed(container.spawn().unwrap());
    let pid = job.0.id();
    wait_until("it runs", || {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "cat\n")
    });
    let mut attach =
        sandbox.stallscope(&["attach", &pid.to_string(), "--cache", "16MiB", "-o", "held.stall"]);
    let attach = Killed(attach.stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap());
    wait_until("there is a holder", || {
        children(attach.0.id()).first().is_some_and(|pid| status(*pid, "NoNewPrivs") == "1")
    });
    let has_fuse = |pid: u32| {
        let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap();
        mounts.contains(" / /mnt ") && mounts.contains(" - fuse none ")
    };
    assert!(has_fuse(pid) && !has_fuse(children(attach.0.id())[0]));
}

#[test]
fn what_cannot_be_held_is_refused_in_a_sentence_before_anything_is_recorded() {
    if !privileged("what_cannot_be_held_is_refused_in_a_sentence_before_anything_is_recorded") {
        return;
    }
    let sandbox = Sandbox::new("hold-refused");
    let anna = ANNA.to_string();
    let mut of_two = Command::new("setpriv");
    let job = Killed(
        of_two.args(["--ruid", &anna, "--clear-groups", "cat"]).stdin(Stdio::piped()).spawn().unwrap(),
    );
    let pid = job.0.id().to_string();
    let comm = format!("/proc/{pid}/comm");
    wait_until("it runs", || fs::read_to_string(&comm).is_ok_and(|name| name == "cat\n"));
    let output = sandbox.run(&["attach", &pid, "--cache", "16MiB", "-o", "no.stall"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(!sandbox.path("no.stall").exists());
    assert_eq!(
        text(&output.stderr),
        "stallscope: --cache: the job's process is of several users at once: nothing is held for it\n"
    );
    let output = sandbox.run(&["attach", "1", "--cache", "much"]);
    assert_eq!(output.status.code(), Some(2));
}
