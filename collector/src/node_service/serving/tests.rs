#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::peer::Peer;
use super::*;
use stallscope_wire::{JobHello, NodeJob, NodeState, ShimHello, Whose};
use std::io::{BufRead, BufReader as StdReader, Write};
use std::process::{Child, Command, Stdio};

const POLICY: &str = "[[jobs.rule]]\nmode = \"act\"\n";
/// Root's own jobs are left alone; for another user root may speak.
const SOMEBODY: u32 = 4242;

/// A service in a folder of its own, and the launcher's end.
fn serving(name: &str) -> (std::path::PathBuf, StdStream) {
    let (socket, given, ours) = given(name);
    std::thread::spawn(move || serve(given, Path::new("/nowhere"), |_| {}));
    (socket, ours)
}

fn given(name: &str) -> (std::path::PathBuf, Given, StdStream) {
    let socket = std::env::temp_dir().join(format!("ss-{name}-{}.sock", std::process::id()));
    let _ = std::fs::remove_file(&socket);
    let listener = StdListener::bind(&socket).unwrap();
    listener.set_nonblocking(true).unwrap();
    let (ours, theirs) = StdStream::pair().unwrap();
    // A few orders fill it.
    rustix::net::sockopt::set_socket_send_buffer_size(&theirs, 1).unwrap();
    let (policy, book) =
        (Policy::parse(POLICY).unwrap(), Book::open(&socket.with_extension("state")).unwrap());
    let login_name = crate::host::login_name;
    let given = Given { listener, launcher: theirs, policy, book, own_uid: None, exports: false, login_name };
    (socket, given, ours)
}

/// What is left of it goes.
fn end(socket: &Path) {
    std::fs::remove_file(socket).unwrap();
    std::fs::remove_dir_all(socket.with_extension("state")).unwrap();
}

fn say(stream: &mut StdReader<StdStream>, line: &[u8]) {
    stream.get_mut().write_all(line).unwrap();
}

fn call(socket: &Path, client: NodeClient) -> (StdReader<StdStream>, NodeReply) {
    let mut stream = StdReader::new(StdStream::connect(socket).unwrap());
    stream.get_mut().set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    say(&mut stream, &stallscope_wire::encode(&NodeHello { stallscope: VERSION, client }));
    let mut answer = Vec::new();
    stream.read_until(b'\n', &mut answer).unwrap();
    (stream, stallscope_wire::decode(&answer).unwrap())
}

fn introduce(socket: &Path, pid: u32) -> StdReader<StdStream> {
    let job = JobHello { name: "train".into(), owner: Some(SOMEBODY), ..JobHello::default() };
    let (mut stream, _) = call(socket, NodeClient::Job(job));
    say(&mut stream, &stallscope_wire::encode(&JobSays::Started { pid }));
    stream
}

fn wait_for(socket: &Path, is_so: impl Fn(&[NodeJob]) -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let (_, NodeReply::Node(NodeState { jobs, .. })) = call(socket, NodeClient::List) else {
            panic!("no list")
        };
        if is_so(&jobs) {
            return;
        }
        assert!(Instant::now() < until, "{jobs:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn job() -> Ended {
    Ended(Command::new("sleep").arg("300").stdout(Stdio::null()).spawn().unwrap())
}

#[test]
fn users_are_heard_while_the_launcher_is_busy() {
    let (socket, _launcher) = serving("busy");
    let job = job();
    let jobs: Vec<_> = (0..60).map(|_| introduce(&socket, job.0.id())).collect();
    wait_for(&socket, |found| found.len() == jobs.len() && found.iter().all(|job| job.state == "tuned"));
    end(&socket);
}

#[test]
fn all_who_wait_in_the_queue_are_heard() {
    let (socket, given, _launcher) = given("queue");
    let hello = stallscope_wire::encode(&NodeHello { stallscope: VERSION, client: NodeClient::List });
    let waiting: Vec<_> = (0..100)
        .map(|_| {
            let mut stream = StdReader::new(StdStream::connect(&socket).unwrap());
            say(&mut stream, &hello);
            stream
        })
        .collect();
    std::thread::spawn(move || serve(given, Path::new("/nowhere"), |_| {}));
    for (nth, mut stream) in waiting.into_iter().enumerate() {
        let mut answer = Vec::new();
        let read = stream.read_until(b'\n', &mut answer);
        assert!(read.is_ok_and(|read| read > 0), "caller {nth}");
    }
    end(&socket);
}

#[test]
fn the_queue_is_short() {
    let (socket, given, _launcher) = given("short");
    shorten_queue(&given.listener).unwrap();
    let address = rustix::net::SocketAddrUnix::new(&socket).unwrap();
    let connect = || {
        let (of, kind) = (rustix::net::AddressFamily::UNIX, rustix::net::SocketType::STREAM);
        let one = rustix::net::socket_with(of, kind, rustix::net::SocketFlags::NONBLOCK, None).unwrap();
        rustix::net::connect(&one, &address).is_ok().then_some(one)
    };
    let waiting: Vec<_> = (0..200).map_while(|_| connect()).collect();
    // The kernel takes one more than is asked for.
    assert_eq!(waiting.len(), QUEUE as usize + 1);
    end(&socket);
}

/// Of this thread alone, for good.
fn become_user(uid: u32) {
    // SAFETY: without the C library, which would have all threads become that user.
    unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) };
}

#[test]
fn who_calls_again_and_again_is_answered_in_the_end_and_others_are_too() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: who_calls_again_and_again_is_answered_in_the_end_and_others_are_too takes root");
        return;
    }
    let (socket, _launcher) = serving("storm");
    std::fs::set_permissions(&socket, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    let hello = JobHello { name: "n".repeat(200), owner: Some(SOMEBODY), ..JobHello::default() };
    let jobs: Vec<_> = (0..100).map(|_| call(&socket, NodeClient::Job(hello.clone()))).collect();
    let of = |uid: u32| {
        let socket = socket.clone();
        move || {
            become_user(uid);
            asked(&socket)
        }
    };
    std::thread::scope(|threads| {
        for call in 0..100 {
            assert!(threads.spawn(of(SOMEBODY)).join().unwrap(), "call {call}");
        }
        assert!(threads.spawn(of(SOMEBODY + 1)).join().unwrap(), "another user");
    });
    assert!(asked(&socket), "root");
    drop(jobs);
    end(&socket);
}

/// Whether there was an answer.
fn asked(socket: &Path) -> bool {
    let mut stream = StdReader::new(StdStream::connect(socket).unwrap());
    let hello = stallscope_wire::encode(&NodeHello { stallscope: VERSION, client: NodeClient::List });
    // It may have been hung up on already.
    let _ = stream.get_mut().write_all(&hello);
    let mut answer = Vec::new();
    stream.read_until(b'\n', &mut answer).is_ok_and(|read| read > 0)
}

#[test]
fn a_job_is_a_process_that_the_caller_has_started() {
    let (socket, mut launcher) = serving("foreign");
    let job = job();
    let _foreign = introduce(&socket, 1);
    wait_for(&socket, |found| found.len() == 1 && found[0].state.contains("is not seen from here"));
    let _own = introduce(&socket, job.0.id());
    launcher.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut order = [0; 48];
    std::io::Read::read_exact(&mut launcher, &mut order).unwrap();
    let Some(ToLauncher::Start(start)) = ToLauncher::decode(&order) else { panic!("{order:?}") };
    assert_eq!((start.id, start.pid), (1, job.0.id()), "the first of all");
    end(&socket);
}

#[test]
fn users_who_have_all_they_may_leave_places_for_others() {
    let (mut of_all, places) = (0, 1024 - 128);
    for user in 0..7 {
        let mut own = 0;
        while own < most_of_a_user(of_all, places) {
            (own, of_all) = (own + 1, of_all + 1);
        }
        assert!(own > 0 && own <= OF_A_USER && of_all < places, "user {user} has {own}, all {of_all}");
    }
}

#[test]
fn a_shim_speaks_for_its_own_process_and_those_that_it_comes_from() {
    let (own, child) = (std::process::id(), job());
    let ticks = |pid| procfs::start_ticks(pid).unwrap();
    let uid = rustix::process::geteuid().as_raw();
    let of = |caller: u32, uid: u32| Peer { uid, pid: Some(caller), is_root: false };
    let root = |caller: u32, pid: u32, start_ticks: u64| {
        of(caller, uid).root(&ShimHello { pid, start_ticks, ..ShimHello::default() })
    };
    let parent = procfs::parent(own).unwrap();
    let other = child.0.id();
    assert_eq!(root(own, own, ticks(own)), Some((own, ticks(own))));
    assert_eq!(root(other, own, ticks(own)), Some((own, ticks(own))));
    assert_eq!(root(own, other, ticks(other)), None, "one that it has started");
    assert_eq!(root(own, own, ticks(own) + 1), None, "an earlier process of its number");
    assert_eq!(root(own, 1, ticks(1)), None);
    assert_eq!(root(own, parent, ticks(parent)).is_some(), parent > 1);
    // The caller has ended, and another user's process has its number.
    let shim = ShimHello { pid: own, start_ticks: ticks(own), ..ShimHello::default() };
    assert_eq!((of(other, uid + 1).root(&shim), of(other, uid + 1).started(own)), (None, None));
    assert_eq!(of(other, uid).started(own), Some(ticks(own)));
    assert!(Peer { is_root: true, ..of(other, uid + 1) }.started(own).is_some(), "root speaks for others");
}

#[test]
fn a_job_of_another_process_takes_a_collector_that_was_started_for_it() {
    let (socket, _launcher) = serving("uninvited");
    let child = job();
    let hello = JobHello { pid: Some(child.0.id()), owner: Some(SOMEBODY), ..JobHello::default() };
    let (_, reply) = call(&socket, NodeClient::Job(hello));
    assert!(matches!(&reply, NodeReply::Error(why) if why.contains("no collector was started")), "{reply:?}");
    // Asked with another version of greetings it says so, and nothing of the policy.
    let mut stream = StdReader::new(StdStream::connect(&socket).unwrap());
    let hello = NodeHello { stallscope: u32::MAX, client: NodeClient::Shim(ShimHello::default()) };
    say(&mut stream, &stallscope_wire::encode(&hello));
    let mut answer = Vec::new();
    stream.read_until(b'\n', &mut answer).unwrap();
    let reply: NodeReply = stallscope_wire::decode(&answer).unwrap();
    assert!(matches!(&reply, NodeReply::Error(why) if why.contains("of another version")), "{reply:?}");
    end(&socket);
}

/// A TCP socket of which the last close lasts an hour, and what it waits for.
fn lingering() -> (std::net::TcpStream, std::net::TcpStream) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut sender = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (receiver, _) = listener.accept().unwrap();
    sender.set_nonblocking(true).unwrap();
    while sender.write(&[0; 4096]).is_ok() {}
    rustix::net::sockopt::set_socket_linger(&sender, Some(Duration::from_secs(3600))).unwrap();
    (sender, receiver)
}

/// As on a kernel that cannot refuse them: here nobody has asked it to.
#[test]
fn what_callers_pass_along_keeps_nobody_waiting() {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    use std::os::fd::AsFd;
    let (socket, given, _launcher) = given("passed");
    let mut receivers = Vec::new();
    let mut caller = || {
        let (lingers, receiver) = lingering();
        receivers.push(receiver);
        let caller = StdStream::connect(&socket).unwrap();
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut passed = SendAncillaryBuffer::new(&mut space);
        let fds = [lingers.as_fd()];
        passed.push(SendAncillaryMessage::ScmRights(&fds));
        sendmsg(&caller, &[std::io::IoSlice::new(b"x")], &mut passed, SendFlags::empty()).unwrap();
        caller
    };
    // Closed as it is read, and as the connection is.
    let (_stays, goes) = (caller(), caller());
    drop(goes);
    // In the main thread of its process, as ever.
    // SAFETY: the child finds the memory of this thread alone in use, and the allocator as it is after a fork.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // A test that failed would leave it behind.
        // SAFETY: of this process alone.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        let _ = serve(given, Path::new("/nowhere"), |_| {});
        // SAFETY: ends the child without anything of this process being run.
        unsafe { libc::_exit(0) };
    }
    let mut other = StdReader::new(StdStream::connect(&socket).unwrap());
    other.get_mut().set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    say(&mut other, b"{}\n");
    let mut answer = String::new();
    let heard = other.read_line(&mut answer);
    let child = rustix::process::Pid::from_raw(child).unwrap();
    rustix::process::kill_process(child, rustix::process::Signal::KILL).unwrap();
    rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty()).unwrap();
    end(&socket);
    assert!(heard.is_ok() && answer.contains("no stallscope message"), "{heard:?} {answer}");
}

#[test]
fn a_directory_that_does_not_answer_holds_up_nobody_but_those_who_are_looked_up() {
    static ASKED: AtomicBool = AtomicBool::new(false);
    static ANSWERS: AtomicBool = AtomicBool::new(false);
    let (socket, given, _launcher) = given("directory");
    let login_name = |uid: u32| {
        ASKED.store(true, Ordering::Relaxed);
        while !ANSWERS.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(Some(format!("user {uid}")))
    };
    let given = Given { login_name, ..given };
    std::thread::spawn(move || serve(given, Path::new("/nowhere"), |_| {}));
    let calls = {
        let socket = socket.clone();
        std::thread::spawn(move || call(&socket, NodeClient::Job(JobHello::default())).1)
    };
    while !ASKED.load(Ordering::Relaxed) {
        std::thread::yield_now();
    }
    wait_for(&socket, <[NodeJob]>::is_empty);
    let (_, NodeReply::Done(_) | NodeReply::Error(_)) = call(&socket, NodeClient::Pause(Whose { job: None }))
    else {
        panic!("no pause")
    };
    let reply = calls.join().unwrap();
    assert!(matches!(&reply, NodeReply::Error(why) if why.contains("has not answered")), "{reply:?}");
    ANSWERS.store(true, Ordering::Relaxed);
    let job = job();
    let _known = introduce(&socket, job.0.id());
    wait_for(&socket, |found| found.iter().any(|job| job.user.starts_with("user ")));
    end(&socket);
}

/// A user's processes may be as many as there can be for a while, and no thread be had: the search went on for nobody after that.
#[test]
fn jobs_are_looked_for_where_no_thread_can_be_made() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: jobs_are_looked_for_where_no_thread_can_be_made takes root");
        return;
    }
    // SAFETY: the child finds the memory of this thread alone in use, and the allocator as it is after a fork.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: of this process alone.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        let found = std::panic::catch_unwind(finds_without_threads).unwrap_or(false);
        // SAFETY: ends the child without anything of this process being run.
        unsafe { libc::_exit(i32::from(!found)) };
    }
    let child = rustix::process::Pid::from_raw(child).unwrap();
    let (_, status) =
        rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty()).unwrap().unwrap();
    assert_eq!(status.exit_status(), Some(0));
}

/// In a process of its own, which becomes a user's that may have no more of them.
fn finds_without_threads() -> bool {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let subordinates = stallscope_ebpf::Subordinates::parse(b"", b"");
        let names = Names::new(|uid| Ok(Some(uid.to_string())), subordinates.clone(), |_| {});
        let finder = start(Finder::new(subordinates)).unwrap();
        let none = libc::rlimit { rlim_cur: 1, rlim_max: 1 };
        // SAFETY: a number.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NPROC, &raw const none) }, 0);
        become_user(65_014);
        assert!(std::thread::Builder::new().spawn(|| ()).is_err());
        let (sender, mut events) = mpsc::channel(EVENTS);
        let is_on = Arc::new(AtomicBool::new(true));
        tokio::spawn(look(is_on, Duration::from_millis(1), finder, names, sender));
        for _ in 0..3 {
            if !matches!(events.recv().await, Some(Event::Found { .. })) {
                return false;
            }
        }
        true
    })
}

/// A control group as a container's is called, without a container.
struct Group(std::path::PathBuf);

impl Group {
    fn new() -> Option<Group> {
        let name = format!("{:064x}", std::process::id());
        let of = |hierarchy: &str| Path::new("/sys/fs/cgroup").join(hierarchy).join(&name);
        let mut folders = ["", "unified", "systemd", "pids", "memory"].into_iter().map(of);
        folders
            .find(|folder| std::fs::create_dir(folder).is_ok() && folder.join("cgroup.procs").exists())
            .map(Group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[test]
fn root_of_a_container_is_shown_no_job_and_pauses_nothing() {
    let group = Group::new().filter(|_| rustix::process::geteuid().is_root());
    let Some(group) = group else {
        eprintln!(
            "SKIPPED: root_of_a_container_is_shown_no_job_and_pauses_nothing takes root and control groups"
        );
        return;
    };
    let (socket, _launcher) = serving("container");
    let job = job();
    let _job = introduce(&socket, job.0.id());
    let script = "import socket, sys\ns = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])\ns.sendall(sys.argv[2].encode()); print(s.makefile().readline())";
    let asks = [NodeClient::List, NodeClient::Log { after: None }, NodeClient::Pause(Whose { job: None })];
    for client in asks {
        let hello = stallscope_wire::encode(&NodeHello { stallscope: VERSION, client });
        let asked = Command::new("sh")
            .args(["-c", "echo $$ > \"$0\" && exec python3 -c \"$@\""])
            .arg(group.0.join("cgroup.procs"))
            .args([script.as_ref(), socket.as_os_str()])
            .arg(String::from_utf8(hello).unwrap())
            .output()
            .unwrap();
        let answer = String::from_utf8(asked.stdout).unwrap();
        assert!(answer.contains("root of a container"), "{answer} {:?}", asked.stderr);
    }
    // Root of the node is.
    wait_for(&socket, |found| found.len() == 1 && found[0].state == "tuned");
    end(&socket);
}
