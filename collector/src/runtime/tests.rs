use super::*;
use std::os::unix::net::UnixListener;
use std::process::{Child, Command};
use std::time::Instant;

#[test]
fn keys_become_short_safe_names() {
    assert_eq!(shorten("train-4821"), "train-4821");
    assert_eq!(shorten("../../etc/passwd"), "_.._etc_passwd");
    assert_eq!(shorten(""), "job");
    assert!(shorten(&"é".repeat(300)).len() <= NAME_LIMIT_BYTES);
    assert!(shorten(&format!("{}-77", "x".repeat(300))).ends_with("-77"));
}

fn here(name: &str) -> (PathBuf, RuntimeDir) {
    let dir = std::env::temp_dir().join(format!("stallscope-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    (dir.clone(), RuntimeDir { base: dir.clone(), jobs: dir })
}

/// Polls until `ready` holds; the limit only ends a test that would hang. What another test forks has this one's descriptors,
/// and with them its locks and sockets, until it runs a program.
fn until(what: &str, mut ready: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !ready() {
        assert!(begun.elapsed() < Duration::from_secs(60), "never happened: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_folder_that_somebody_else_made_is_passed_over() {
    let (dir, _) = here("squatted");
    let uid = rustix::process::geteuid().as_raw();
    let [link, theirs, ours] = ["link", "theirs", "ours"].map(|name| dir.join(name));
    fs::create_dir_all(dir.join("elsewhere")).unwrap();
    std::os::unix::fs::symlink(dir.join("elsewhere"), &link).unwrap();
    fs::create_dir(&theirs).unwrap();
    let places = match std::os::unix::fs::chown(&theirs, Some(4242), None) {
        Ok(()) => vec![link, theirs, ours.clone()],
        // Only root can give it away.
        Err(_) => vec![link, ours.clone()],
    };
    for _ in 0..2 {
        assert_eq!(RuntimeDir::first_of(places.clone(), uid).unwrap().path(), ours);
    }
    let refused = RuntimeDir::first_of(places[..1].to_vec(), uid).unwrap_err();
    assert!(refused.to_string().contains("belongs to another user"), "{refused}");
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_job_has_one_collector_and_leaves_nothing_behind() {
    let (dir, runtime) = here("runtime");
    let Claim::Mine(job) = runtime.claim("train-1").unwrap() else { panic!("nobody else has it") };
    let listener = UnixListener::bind(job.socket()).unwrap();
    assert!(matches!(runtime.claim("train-1").unwrap(), Claim::Taken(_)));
    let card = Card { name: "train".into(), pid: 1, recording: "train.stall".into(), started_wall_ns: 5 };
    job.write_card(&card).unwrap();
    assert_eq!(job.granted_bytes(), None);
    job.keep_granted(7 << 30);
    assert_eq!(job.granted_bytes(), Some(7 << 30));
    assert_eq!(runtime.running().len(), 1);
    drop((listener, job));
    assert!(runtime.running().is_empty());
    assert!(fs::read_dir(&dir).unwrap().next().is_none());
    fs::remove_dir(&dir).unwrap();
}

#[test]
fn a_lock_without_a_listener_is_no_collector() {
    let (dir, _) = here("stale");
    let path = dir.join("train-1");
    fs::create_dir(&path).unwrap();
    // As a killed collector leaves it, with somebody who looks at this moment.
    let lock = File::create(path.join("lock")).unwrap();
    lock.lock().unwrap();
    drop(UnixListener::bind(path.join("sock")).unwrap());
    until("nobody listens", || !listens(&path.join("sock")));
    assert!(try_claim(&path).unwrap().is_none(), "its holder may let go of the lock");
    drop(lock);
    until("it is ours", || matches!(try_claim(&path).unwrap(), Some(Claim::Mine(_))));
    fs::remove_dir_all(&dir).unwrap();
}

/// Ended with the test, however that ends.
struct Job(Child);

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn who_looks_for_jobs_takes_no_lock_of_one_that_lives_on() {
    let (dir, runtime) = here("looking");
    let socket = dir.join("train-1/sock");
    let child = Job(Command::new("sleep").arg("600").env("STALLSCOPE_SOCKET", &socket).spawn().unwrap());
    let Claim::Mine(job) = runtime.claim("train-1").unwrap() else { panic!("nobody else has it") };
    let card =
        Card { name: "train".into(), pid: child.0.id(), recording: "train.stall".into(), started_wall_ns: 5 };
    job.write_card(&card).unwrap();
    let listener = UnixListener::bind(job.socket()).unwrap();
    let name = |found: Option<Card>| found.map(|card| card.name);
    assert_eq!(runtime.running().len(), 1);
    assert_eq!(name(runtime.abandoned("train")), None);
    // Killed: the lock, which is another's now, says nothing.
    drop(listener);
    until("nobody listens", || runtime.running().is_empty());
    assert_eq!(name(runtime.abandoned("train")).as_deref(), Some("train"));
    drop((child, job));
    fs::remove_dir(&dir).unwrap();
}

/// A process whose environment names `socket`.
fn caller(socket: &Path) -> Child {
    Command::new("sleep").arg("600").env("STALLSCOPE_SOCKET", socket).spawn().unwrap()
}

#[test]
fn only_a_folder_of_ours_is_taken_over_from_a_process_of_ours() {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    let (dir, _) = here("taken-over");
    let [jobs, open, link] = ["jobs", "open", "link"].map(|name| dir.join(name));
    for folder in [&jobs, &open] {
        fs::create_dir_all(folder.join("train-1")).unwrap();
    }
    symlink(&jobs, &link).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
    let taken = |folder: PathBuf| {
        let mut process = caller(&folder.join("sock"));
        until("the program runs", || socket_of(process.id()).is_some());
        let taken = take_over(process.id()).map(|(dir, _)| dir.socket());
        process.kill().unwrap();
        process.wait().unwrap();
        taken
    };
    assert_eq!(taken(open.join("train-1")), None, "others may write there");
    // Not where the link leads by then.
    assert_eq!(taken(link.join("train-1")), Some(jobs.join("train-1/sock")));
    let theirs = jobs.join("theirs");
    fs::create_dir(&theirs).unwrap();
    // Only root can give it away. Its parent is ours all the same, as /home is root's.
    if chown(&theirs, Some(4242), None).is_ok() {
        symlink("/nowhere/job.json", theirs.join("job.json")).unwrap();
        assert_eq!(taken(theirs.clone()), None, "it is another user's");
    }
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_process_that_another_user_started_is_not_ours_whatever_owner_its_folder_in_proc_has() {
    use std::os::unix::process::CommandExt;
    let uid = rustix::process::geteuid().as_raw();
    assert!(trusted::is_wholly_of(std::process::id(), uid));
    if uid != 0 {
        eprintln!("SKIPPED: only root can start a process of another user");
        return;
    }
    let mut sleeping = Command::new("sleep");
    // Root's rights and another user's start, as a set-uid program has them.
    // SAFETY: between fork and exec there is one system call.
    unsafe {
        sleeping.arg("600").pre_exec(|| Ok(nix::unistd::setresuid(4242.into(), 0.into(), 0.into())?));
    }
    let mut process = sleeping.spawn().unwrap();
    assert!(!trusted::is_wholly_of(process.id(), 0));
    process.kill().unwrap();
    process.wait().unwrap();
}
