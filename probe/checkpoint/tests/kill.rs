//! Kills a job that saves, at any moment, over and over: what it was reported as saved loads, whole, and nothing else is
//! taken for a checkpoint. `STALLSCOPE_KILLS=1000 cargo test -p stallscope-checkpoint --test kill` for more of it.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod support;

use stallscope_checkpoint::{Error, Options, Saver, Source, State, Store, Ticket};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};
use support::{Job, MIB, newest, one};

const SIZES: [usize; 4] = [9 * MIB, 3 * MIB + 11, 100, 2 * MIB];
/// Never trained: linked from save to save.
const FROZEN: [usize; 1] = [0];

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    match &arguments[1..] {
        [role, dir] if role == "job" => job(Path::new(dir)),
        [role, dir] if role == "rank" => rank(Path::new(dir)),
        // A test runner asks for the names of the tests, and of those to be ignored.
        [list, ..] if list == "--list" => {
            if !arguments.iter().any(|argument| argument == "--ignored") {
                println!("checkpoints_survive_kill: test");
            }
        }
        // What `cargo test` passes to any test, such as a filter.
        _ => {
            let kills = std::env::var("STALLSCOPE_KILLS").map_or(60, |kills| kills.parse().unwrap());
            killed_jobs(kills);
            killed_ranks(kills / 6 + 1);
        }
    }
}

fn at_step(step: u64) -> Job {
    let mut job = Job::new(&SIZES);
    (1..SIZES.len()).for_each(|at| job.train(at, step));
    job
}

/// Saves one step after the other from the newest on, and prints which were reported as saved.
fn job(dir: &Path) {
    let mut step = newest(dir).checkpoint.map_or(0, |checkpoint| checkpoint.manifest.step);
    let saver = Saver::open(dir, one(2)).unwrap();
    let plan = Job::new(&SIZES).plan_with_still(&FROZEN);
    println!("opened");
    loop {
        step += 1;
        // Two in flight now and then.
        at_step(step).begin(&saver, &plan, step);
        if !step.is_multiple_of(3) {
            saver.wait(Duration::from_secs(60));
        }
        for outcome in saver.outcomes() {
            outcome.result.unwrap();
            println!("saved {}", outcome.ticket.step);
        }
    }
}

fn spawn(role: &str, dir: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.arg(role).arg(dir).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

/// Up to so many milliseconds, by a generator whose seed is printed.
struct Moments(u64);

impl Moments {
    fn new() -> Moments {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        println!("seed {}", now.as_nanos() as u64);
        Moments(now.as_nanos() as u64 | 1)
    }

    fn sleep(&mut self, most_ms: u64) {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        std::thread::sleep(Duration::from_micros(self.0 % (most_ms * 1000)));
    }
}

/// How long a job takes here for its first three saves, so that kills fall into all of their parts.
fn first_saves_ms(dir: &Path) -> u64 {
    let mut child = spawn("job", dir);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "opened");
    let begun = Instant::now();
    assert!(lines.nth(2).unwrap().unwrap().starts_with("saved "));
    let took = begun.elapsed();
    child.kill().unwrap();
    child.wait().unwrap();
    took.as_millis() as u64 + 1
}

fn killed_jobs(kills: u64) {
    let dir = tempfile::tempdir().unwrap();
    let mut moments = Moments::new();
    let mut reported = 0;
    let most_ms = first_saves_ms(dir.path());
    for _ in 0..kills {
        let mut child = spawn("job", dir.path());
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        assert_eq!(line, "opened\n");
        moments.sleep(most_ms);
        child.kill().unwrap();
        child.wait().unwrap();
        let mut printed = String::new();
        lines.read_to_string(&mut printed).unwrap();
        let last = printed.lines().filter_map(|line| line.strip_prefix("saved ")?.parse().ok()).next_back();
        reported = last.unwrap_or(reported);

        let found = newest(dir.path());
        assert!(found.passed.is_empty(), "torn: {:?}", found.passed);
        let step = found.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.manifest.step);
        assert!(step >= reported, "step {reported} was called saved, and the newest is {step}");
        if let Some(checkpoint) = found.checkpoint {
            assert!(at_step(step).is_in(&checkpoint), "step {step} is not what was saved");
        }
    }
    println!("{kills} kills of a job, {reported} steps saved, none torn");
    assert!(reported > 0, "no save ended between two kills: the test tests nothing");
}

/// Rank 1 of 2: saves what its standard input has tickets for.
fn rank(dir: &Path) {
    let options = Options { rank: 1, world: 2, patience: Duration::from_secs(20), ..one(2) };
    let saver = Saver::open(dir, options).unwrap();
    println!("opened");
    for line in std::io::stdin().lines() {
        let ticket: Ticket = line.unwrap().parse().unwrap();
        save(&saver, ticket);
        saver.wait(Duration::from_secs(60));
    }
}

fn save(saver: &Saver, ticket: Ticket) {
    let job = at_step(ticket.step);
    let sources: Vec<Source> = job.tensors.iter().map(|(_, bytes)| Source::Now(bytes.as_ptr())).collect();
    // SAFETY: the vectors live and stay as they are until this returns.
    let snapshot = unsafe { saver.snapshot(&job.plan(), &sources).unwrap() };
    saver.persist(snapshot, ticket, Vec::new()).unwrap();
}

fn killed_ranks(kills: u64) {
    let dir = tempfile::tempdir().unwrap();
    let mut moments = Moments::new();
    let options = Options { world: 2, patience: Duration::from_millis(1000), ..one(2) };
    let saver = Saver::open(dir.path(), options).unwrap();
    let (mut reported, mut failed) = (0, 0);
    let start = || {
        let mut child = spawn("rank", dir.path());
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        child
    };
    let mut other = start();
    let mut killed = 0;
    for step in 1.. {
        if killed == kills {
            break;
        }
        let ticket = saver.ticket(step);
        let stdin: &mut ChildStdin = other.stdin.as_mut().unwrap();
        let _ = writeln!(stdin, "{ticket}");
        save(&saver, ticket);
        // Every other save is left alone.
        if step.is_multiple_of(2) {
            moments.sleep(40);
            other.kill().unwrap();
            other.wait().unwrap();
            killed += 1;
        }
        assert!(saver.wait(Duration::from_secs(60)));
        support::idle(&saver);
        match saver.outcomes().into_iter().next().unwrap().result {
            Ok(_) => reported = step,
            Err(Error::Refused(_)) => failed += 1,
            Err(other) => panic!("{other}"),
        }
        // A rank that is alive may write on in a folder that was given up; that makes it no checkpoint.
        let entries = Store::open(dir.path()).list().unwrap();
        let fits = |state: &State| matches!(state, State::Verified | State::Incomplete);
        assert!(entries.iter().all(|entry| fits(&entry.state)), "step {step}: {entries:?}");
        let found = newest(dir.path());
        assert!(found.passed.is_empty(), "torn: {:?}", found.passed);
        assert_eq!(found.checkpoint.map_or(0, |checkpoint| checkpoint.manifest.step), reported);
        if step.is_multiple_of(2) {
            other = start();
        }
    }
    other.kill().unwrap();
    other.wait().unwrap();
    println!("{kills} kills of a rank: {failed} saves given up, none half committed");
}
