//! `stallscope run` as a user meets it: the job's output, exit code and files are as without us.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use crate::support::{Sandbox, causes_ns, job, privileged, python, signal, text, wait_until};
use std::io::{BufRead, Read};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

#[test]
fn the_jobs_output_and_exit_code_are_its_own() {
    let sandbox = Sandbox::new("exit");
    let bare = Command::new(python()).arg(job("train.py")).output().unwrap();
    let output = sandbox.run(&["run", "--", &python(), &job("train.py"), "--exit", "7"]);
    assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
    assert_eq!(
        text(&output.stdout),
        text(&bare.stdout),
        "stdout belongs to the job, and it computes the same"
    );
    let screen = text(&output.stderr);
    assert!(screen.contains("train.stall"), "the screen says where the recording is:\n{screen}");
    assert!(sandbox.path("train.stall").is_file());
}

#[test]
fn a_stack_that_is_too_small_is_a_sentence_and_no_abort() {
    let words = format!("ulimit -s 100; exec {} run -- true", env!("CARGO_BIN_EXE_stallscope"));
    let output = Command::new("sh").args(["-c", &words]).output().unwrap();
    let printed = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{printed}");
    assert!(printed.contains("512 KiB of stack") && printed.contains("ulimit -s"), "{printed}");
}

#[test]
fn every_batch_is_a_step_and_causes_add_up() {
    let sandbox = Sandbox::new("steps");
    let output =
        sandbox.run(&["run", "--", &python(), &job("train.py"), "--epochs", "3", "--save", "model.pt"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let run = sandbox.report("train.stall");
    let phases = run["phases"].as_array().unwrap();
    let training = phases.iter().find(|phase| phase["phase"] == "training").expect("training was seen");
    // 64 samples in batches of 4, three times over.
    assert_eq!(training["steps"], 3 * 16);
    assert_eq!(training["samples"], 3 * 64);
    for phase in phases {
        assert_eq!(causes_ns(phase), phase["wall_ns"].as_u64().unwrap());
    }
    assert_eq!(run["ranks"][0]["checkpoints"]["count"], 3);
    assert_eq!(run["losses"].as_array().unwrap().len(), 0, "{}", run["losses"]);

    // What lies behind the sums.
    let recording = stallscope_store::Recording::open(&sandbox.path("train.stall")).unwrap();
    let checkpoints = recording.checkpoints().unwrap();
    assert_eq!(checkpoints.iter().filter(|event| event.saver == "torch.save").count(), 3);
    let batches =
        recording.worker_periods().unwrap().iter().filter_map(|period| period.load.batches).sum::<u64>();
    assert_eq!(batches, 3 * 16);
    let details = recording.step_details().unwrap();
    assert!(details.len() >= 3, "{details:?}");
    let steps: Vec<_> = recording.steps(&Default::default()).unwrap().map(|row| row.unwrap().step).collect();
    for detail in details {
        let mut causes = stallscope_model::Causes::default();
        detail.critical.iter().for_each(|piece| causes[piece.cause] += piece.end_ns - piece.start_ns);
        let of = |step: &&stallscope_model::StepLedger| {
            (step.rank, step.phase, step.index) == (detail.rank, detail.phase, detail.index)
        };
        assert_eq!(steps.iter().find(of).map(|step| step.causes), Some(causes));
        assert_eq!(detail.lanes[0].role, "trainer");
    }
}

#[test]
fn a_command_that_cannot_start_says_so() {
    let sandbox = Sandbox::new("nostart");
    let output = sandbox.run(&["run", "--", "no-such-program"]);
    assert_eq!(output.status.code(), Some(127));
    assert!(text(&output.stderr).contains("no command no-such-program"), "{}", text(&output.stderr));
    let output = sandbox.run(&["run", "--", "/etc/passwd"]);
    assert_eq!(output.status.code(), Some(126));
    let output = sandbox.run(&["run"]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_script_that_is_not_there_fails_as_without_us() {
    let sandbox = Sandbox::new("noscript");
    let output = sandbox.run(&["run", "--", &python(), "not-there.py"]);
    assert_eq!(output.status.code(), Some(2), "Python's own exit code");
    assert!(text(&output.stderr).contains("can't open file"));
}

#[test]
fn a_job_that_is_not_python_runs_and_is_shown_as_such() {
    let sandbox = Sandbox::new("sh");
    let output = sandbox.run(&["run", "--no-kernel", "--", "sh", "-c", "echo hello; exit 3"]);
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(text(&output.stdout), "hello\n");
    assert!(text(&output.stderr).contains("no process of the job loaded it"), "{}", text(&output.stderr));
}

#[test]
fn an_isolated_interpreter_runs_without_the_shim() {
    let sandbox = Sandbox::new("isolated");
    for flag in ["-I", "-S"] {
        let output = sandbox.run(&["run", "--no-kernel", "--", &python(), flag, "-c", "print('ran')"]);
        assert_eq!(output.status.code(), Some(0));
        assert_eq!(text(&output.stdout), "ran\n");
        assert!(text(&output.stderr).contains("no process of the job loaded it"), "{}", text(&output.stderr));
    }
}

#[test]
fn a_killed_job_exits_as_in_a_shell() {
    let sandbox = Sandbox::new("killed");
    let output = sandbox.run(&["run", "--", "sh", "-c", "kill -9 $$"]);
    assert_eq!(output.status.code(), Some(128 + 9));
    assert!(sandbox.path("sh.stall").is_file());
}

#[test]
fn signals_reach_the_job_and_the_screen_still_comes() {
    let sandbox = Sandbox::new("term");
    let script = "trap 'echo caught; exit 5' TERM; echo ready; while true; do sleep 0.05; done";
    let mut child = sandbox
        .stallscope(&["run", "--", "sh", "-c", script])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut ready = [0; 6];
    stdout.read_exact(&mut ready).unwrap();
    let mut stderr = std::io::BufReader::new(child.stderr.take().unwrap());
    signal(child.id(), "USR1");
    let mut screen = String::new();
    while !screen.contains("sh.stall") {
        assert_ne!(stderr.read_line(&mut screen).unwrap(), 0, "a screen while the job runs: {screen}");
    }
    signal(child.id(), "TERM");
    let mut rest = String::new();
    stderr.read_to_string(&mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(5));
    assert!(rest.contains("sh.stall"), "and one at the end: {rest}");
}

#[test]
fn a_recording_is_never_overwritten() {
    let sandbox = Sandbox::new("again");
    for _ in 0..2 {
        assert!(sandbox.run(&["run", "--name", "twice", "--", "true"]).status.success());
    }
    assert!(sandbox.path("twice.stall").is_file());
    assert!(sandbox.path("twice.2.stall").is_file());
}

#[test]
fn a_target_that_cannot_be_written_costs_the_recording_only() {
    let sandbox = Sandbox::new("target");
    let output =
        sandbox.run(&["run", "-o", "/proc/no/such/place.stall", "--", "sh", "-c", "echo ran; exit 4"]);
    assert_eq!(output.status.code(), Some(4));
    assert_eq!(text(&output.stdout), "ran\n");
}

#[test]
fn the_job_outlives_a_killed_collector() {
    let sandbox = Sandbox::new("kill9");
    let total = sandbox.path("total");
    let script = format!("{} {} --epochs 6 > {}", python(), job("train.py"), total.display());
    let mut child = sandbox
        .stallscope(&["run", "--name", "orphan", "--", "sh", "-c", &script])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("a first step in the recording", || {
        let output = sandbox.run(&["report", "orphan.stall", "--format", "json"]);
        let run: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        run["ranks"].as_array().is_some_and(|ranks| !ranks.is_empty())
    });
    signal(child.id(), "KILL");
    child.wait().unwrap();
    wait_until("the job's own end", || {
        std::fs::read_to_string(&total).is_ok_and(|text| text.contains("total loss"))
    });
    let bare = Command::new(python()).args([&job("train.py"), "--epochs", "6"]).output().unwrap();
    assert_eq!(std::fs::read_to_string(&total).unwrap(), text(&bare.stdout));
    let run = sandbox.report("orphan.stall");
    assert_eq!(run["job"]["name"], "orphan");
}

#[test]
fn two_runs_of_one_slurm_step_share_a_recording() {
    let sandbox = Sandbox::new("slurm");
    let run = |rank: &str| {
        let mut command = sandbox.stallscope(&["run", "--name", "step", "--", &python(), &job("train.py")]);
        command.env("SLURM_JOB_ID", "77").env("SLURM_STEP_ID", "0").env("SLURM_PROCID", rank);
        command.env("RANK", rank).env("WORLD_SIZE", "2");
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let children = [run("0"), run("1")];
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
    let report = sandbox.report("step.stall");
    let ranks: Vec<u64> = report["ranks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|rank| rank["facts"]["rank"].as_u64().unwrap())
        .collect();
    assert_eq!(ranks, [0, 1]);
    assert!(!sandbox.path("step.2.stall").exists());
    if privileged("two_runs_of_one_slurm_step_share_a_recording, its kernel half") {
        for rank in report["ranks"].as_array().unwrap() {
            let reads =
                rank["workers"].as_array().unwrap().iter().map(|load| load["wall_ns"].as_u64().unwrap());
            assert!(reads.sum::<u64>() > 0, "kernel evidence of both tasks: {rank}");
        }
    }
}

#[test]
fn a_job_under_nohup_outlives_its_terminal() {
    let sandbox = Sandbox::new("nohup");
    let mut command =
        sandbox.stallscope(&["run", "--", "sh", "-c", "while [ ! -e stop ]; do sleep 0.05; done; exit 6"]);
    let mut nohup = Command::new("nohup");
    nohup.arg(command.get_program()).args(command.get_args()).current_dir(sandbox.path("."));
    nohup.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    nohup.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command = nohup;
    let mut child = command.spawn().unwrap();
    wait_until("the recording", || sandbox.path("sh.stall").exists());
    signal(child.id(), "HUP");
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(child.try_wait().unwrap().is_none(), "it still runs");
    std::fs::write(sandbox.path("stop"), "").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(6));
}

#[test]
fn a_terminal_that_is_gone_costs_the_screen_only() {
    let sandbox = Sandbox::new("epipe");
    let mut child = sandbox
        .stallscope(&["run", "--", "sh", "-c", "while [ ! -e stop ]; do sleep 0.05; done; exit 8"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stderr.take());
    std::fs::write(sandbox.path("stop"), "").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(8));
    assert!(sandbox.path("sh.stall").is_file());
}

#[test]
fn a_job_that_forks_a_thousand_processes_is_left_alone() {
    let sandbox = Sandbox::new("forks");
    let script = "i=0; while [ $i -lt 1000 ]; do (exit 0) & i=$((i+1)); done; wait; echo done";
    let output = sandbox.run(&["run", "--", "sh", "-c", script]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "done\n");
    // The kernel refuses storage to a new task while one that it preempted on that CPU gives its own back: some of a thousand.
    let report = sandbox.report("sh.stall");
    let losses = report["losses"].as_array().unwrap();
    assert!(losses.iter().all(|loss| loss["reason"] == "no task storage"), "{losses:?}");
}

#[test]
fn an_unknown_torch_costs_figures_not_the_job() {
    let sandbox = Sandbox::new("oddtorch");
    // A torch whose loader has another shape than any that the hooks know.
    let package = sandbox.path("torch/utils/data");
    std::fs::create_dir_all(&package).unwrap();
    for (file, content) in [
        ("torch/__init__.py", "__version__ = '99.0'\n"),
        ("torch/utils/__init__.py", ""),
        ("torch/utils/data/__init__.py", "from .dataloader import DataLoader\n"),
        (
            "torch/utils/data/dataloader.py",
            "class DataLoader:\n    def __iter__(self):\n        return iter([1, 2, 3])\n",
        ),
        ("odd.py", "import torch.utils.data as d\nprint(sum(d.DataLoader()))\n"),
    ] {
        std::fs::write(sandbox.path(file), content).unwrap();
    }
    let output = sandbox.run(&["run", "--no-kernel", "--", "/usr/bin/python3", "odd.py"]);
    assert_eq!(text(&output.stdout), "6\n", "{}", text(&output.stderr));
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn a_stranger_at_the_socket_is_refused_and_harms_nothing() {
    use std::io::{Read, Write};
    let sandbox = Sandbox::new("stranger");
    let mut child = sandbox
        .stallscope(&[
            "run",
            "--name",
            "host",
            "--",
            "sh",
            "-c",
            "while [ ! -e stop ]; do sleep 0.05; done; exit 9",
        ])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let jobs = sandbox.path("run/jobs");
    let mut socket = None;
    wait_until("the job's socket", || {
        socket = std::fs::read_dir(&jobs)
            .ok()
            .and_then(|mut entries| entries.next())
            .map(|entry| entry.unwrap().path().join("sock"))
            // It is there before anybody listens.
            .filter(|socket| std::os::unix::net::UnixStream::connect(socket).is_ok());
        socket.is_some()
    });
    let socket = socket.unwrap();
    for noise in
        [&b"GET / HTTP/1.1\r\n\r\n"[..], b"{\"stallscope\":77,\"role\":\"viewer\"}\n", &[0xff; 70_000], b"\n"]
    {
        let mut stream = std::os::unix::net::UnixStream::connect(&socket).unwrap();
        // It may hang up while we still write.
        let _ = stream.write_all(noise);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
    }
    let live = sandbox.run(&["report", "host", "--format", "json"]);
    assert!(live.status.success(), "it still answers: {}", text(&live.stderr));
    std::fs::write(sandbox.path("stop"), "").unwrap();
    let output = child.wait().unwrap();
    assert_eq!(output.code(), Some(9));
}

#[test]
fn a_limit_on_file_sizes_ends_the_recording_and_not_the_job() {
    let sandbox = Sandbox::new("fsize");
    let stallscope = sandbox.stallscope(&["run", "--", &python(), &job("train.py"), "--exit", "7"]);
    let mut limited = Command::new("prlimit");
    limited
        .arg("--fsize=4096")
        .arg(stallscope.get_program())
        .args(stallscope.get_args())
        .current_dir(sandbox.path(""))
        .envs(stallscope.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = limited.output().unwrap();
    assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("train.stall cannot be written"), "{}", text(&output.stderr));
}

/// As a shell has it, where PATH has a folder that the user may not look into.
#[test]
fn a_command_that_is_not_there_is_named_as_such() {
    let sandbox = Sandbox::new("no-command");
    let output = sandbox.run(&["run", "--", "no-such-command"]);
    assert_eq!(output.status.code(), Some(127));
    assert_eq!(text(&output.stderr).lines().last(), Some("stallscope: there is no command no-such-command"));
    if !privileged("a_command_that_is_not_there_is_named_as_such") {
        return;
    }
    let locked = sandbox.path("locked");
    std::fs::create_dir(&locked).unwrap();
    std::fs::set_permissions(&locked, std::fs::Permissions::from_mode(0o700)).unwrap();
    let mut command = sandbox.stallscope_as_nobody(&["run", "--", "no-such-command"]);
    let output = command.env("PATH", format!("{}:/usr/bin:/bin", locked.display())).output().unwrap();
    assert_eq!(output.status.code(), Some(127), "{}", text(&output.stderr));
    let refused = sandbox.path("refused");
    std::fs::write(&refused, "").unwrap();
    let output = sandbox.run(&["run", "--", refused.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(126));
    assert!(text(&output.stderr).contains("may not be executed"), "{}", text(&output.stderr));
}

/// The kernel programs are there before the job: one that lasts a second is seen, and nothing else is counted as its time.
#[test]
fn a_job_of_a_second_is_seen_from_its_first_moment() {
    if !privileged("a_job_of_a_second_is_seen_from_its_first_moment") {
        return;
    }
    let sandbox = Sandbox::new("second");
    let output = sandbox.run(&["run", "--", "sleep", "1"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let recording = stallscope_store::Recording::open(&sandbox.path("sleep.stall")).unwrap();
    let summary = recording.summary().unwrap();
    let slept_ns = summary.main_threads.sleeps_ns;
    assert!(slept_ns > 500_000_000, "{slept_ns} of a second: {:?}", summary.main_threads);
}
