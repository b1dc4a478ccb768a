//! Does one known thing, for the tests and for trying out the `trace` example.
//!
//! `workload DEED [N] [FILE]` prints "ready", waits for a line on its standard input, does it, and leaves.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, Read, Seek, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_millis(60);
const TURN: Duration = Duration::from_millis(3);
const FILE_BYTES: usize = 16 << 20;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let deed = arguments.next().ok_or("usage: workload DEED [N] [FILE]")?;
    let count: usize = arguments.next().map_or(Ok(1), |n| n.parse())?;
    let path = arguments.next().unwrap_or_default();

    let prepared = prepare(&deed, count, &path)?;
    let cold = matches!(deed.as_str(), "read" | "read-warm" | "fault" | "reader" | "reader-lock");
    if cold {
        make_file(&path, deed != "read-warm")?;
    }
    if deed != "execed" {
        println!("ready");
        let mut line = String::new();
        io::stdin().lock().read_line(&mut line)?;
    }

    match deed.as_str() {
        "sleep" | "sleep-after-competing" => thread::sleep(PAUSE),
        "naps" => naps(count, &path)?,
        "works-and-naps" => works_and_naps(count, &path)?,
        "burn" => burn(),
        "compete" => compete(count, &path)?,
        "read" => read_from_disk(&path)?,
        "read-warm" => read_warm(&path, count)?,
        "read-open" | "read-hidden" | "read-in-namespace" => read_open(count as RawFd)?,
        "fault" => fault(&path)?,
        "write-sync" => write_sync(&path)?,
        "pipe" => pipe(false)?,
        "poll" => pipe(true)?,
        "unix" => unix()?,
        "tcp" => tcp()?,
        "futex" => futex(),
        "peer" => peer(count)?,
        "reader" => reader(count, &path, PAUSE * 1000)?,
        "reader-lock" => reader(count, &path, PAUSE * 4)?,
        "hand-over" => hand_over(count)?,
        "pin" => pin(PAUSE * 1000)?,
        "pin-lock" => pin(PAUSE * 4)?,
        "threads" => threads(count),
        "fork" => fork(count)?,
        "rename" => rename(count),
        "rename-and-fork" => rename_and_fork(count)?,
        "fork-at-once" => fork_at_once(count)?,
        "exec" => return Err(Command::new("/proc/self/exe").arg("execed").exec().into()),
        "exec-in-thread" => {
            let thread = thread::spawn(|| Command::new("/proc/self/exe").arg("execed").exec());
            return Err(thread.join().map_err(|_| "the thread failed")?.into());
        }
        "execed" | "crowded" => {}
        "answers" => answers()?,
        "read-as" | "answer" | "answer-hidden" => prepared.ok_or("nothing is prepared")?.goes_on()?,
        other => return Err(format!("no deed {other}").into()),
    }
    Ok(())
}

/// What a deed needs to be so before it is watched.
fn prepare(deed: &str, count: usize, path: &str) -> Result<Option<Helper>> {
    match deed {
        "read-hidden" => hide()?,
        // SAFETY: takes no pointers.
        "read-in-namespace" => succeeded(unsafe { libc::unshare(libc::CLONE_NEWUSER) })?,
        "read-as" => {
            let mut command = Command::new("/proc/self/exe");
            return Helper::start(command.args(["read-open", path]).uid(count as u32)).map(Some);
        }
        "answer" | "answer-hidden" => {
            let words = ["answers", &u8::from(deed == "answer-hidden").to_string()];
            return Helper::start(Command::new("/proc/self/exe").args(words)).map(Some);
        }
        "answers" if count > 0 => hide()?,
        "sleep-after-competing" => compete(count, path)?,
        "crowded" => crowd(count)?,
        _ => {}
    }
    Ok(None)
}

/// Its own user may not look into it from now on, as into a program that gained privilege.
fn hide() -> io::Result<()> {
    // SAFETY: takes no pointers.
    succeeded(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0) })
}

fn succeeded(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A process that was there before it is watched.
struct Helper {
    process: Child,
    output: ChildStdout,
}

impl Helper {
    fn start(command: &mut Command) -> Result<Helper> {
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut output = process.stdout.take().ok_or("no output")?;
        output.read_exact(&mut [0; "ready\n".len()])?;
        Ok(Helper { process, output })
    }

    /// Lets it begin, and waits for what it says.
    fn goes_on(mut self) -> Result<()> {
        self.process.stdin.take().ok_or("no input")?.write_all(b"\n")?;
        self.output.read_to_end(&mut Vec::new())?;
        if self.process.wait()?.success() { Ok(()) } else { Err("the helper failed".into()) }
    }
}

/// Reads a file that is open past the page cache.
fn read_open(descriptor: RawFd) -> Result<()> {
    let mut piece = Box::new(Piece([0; 65536]));
    // SAFETY: the parent process left the descriptor open for this one, and nothing else here uses it.
    let mut file = unsafe { File::from_raw_fd(descriptor) };
    file.rewind()?;
    while file.read(&mut piece.0)? > 0 {}
    Ok(())
}

/// Answers after a pause.
fn answers() -> Result<()> {
    thread::sleep(PAUSE);
    io::stdout().write_all(b"1234")?;
    Ok(())
}

/// Sleeps `count` times, and writes its schedstat to the file.
fn naps(count: usize, path: &str) -> Result<()> {
    for _ in 0..count {
        thread::sleep(Duration::from_micros(200));
    }
    fs::copy("/proc/thread-self/schedstat", path)?;
    Ok(())
}

/// Works and sleeps, `count` times, and writes its schedstat before and after to the file.
fn works_and_naps(count: usize, path: &str) -> Result<()> {
    let before = fs::read_to_string("/proc/thread-self/schedstat")?;
    for _ in 0..count {
        burn_for(TURN);
        thread::sleep(TURN);
    }
    fs::write(path, before + &fs::read_to_string("/proc/thread-self/schedstat")?)?;
    Ok(())
}

/// Writes the file that a deed reads, and, when `cold`, drops it from the page cache.
fn make_file(path: &str, cold: bool) -> Result<()> {
    let mut file = File::create(path)?;
    file.write_all(&vec![7; FILE_BYTES])?;
    file.sync_all()?;
    if cold {
        // SAFETY: plain system call on a descriptor that is open.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    }
    Ok(())
}

fn burn() {
    burn_for(PAUSE);
}

fn burn_for(length: Duration) {
    let start = Instant::now();
    while start.elapsed() < length {
        std::hint::spin_loop();
    }
}

/// `count` processes share one CPU with this one, so that each is preempted.
fn compete(count: usize, path: &str) -> Result<()> {
    // SAFETY: the set is initialised by zeroing, and lives through the call.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(libc::sched_getcpu() as usize, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
    let children = (0..count).map(|_| child(burn)).collect::<Result<Vec<_>>>()?;
    let before = fs::read_to_string("/proc/thread-self/schedstat")?;
    burn();
    fs::write(path, before + &fs::read_to_string("/proc/thread-self/schedstat")?)?;
    children.into_iter().try_for_each(reap)
}

#[repr(align(4096))]
struct Piece([u8; 65536]);

/// Reads a file past the page cache, so that every read waits for the disk.
fn read_from_disk(path: &str) -> Result<()> {
    let mut piece = Box::new(Piece([0; 65536]));
    let mut file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path)?;
    while file.read(&mut piece.0)? > 0 {}
    Ok(())
}

/// Reads a file that the page cache holds, in small pieces and without ever blocking.
fn read_warm(path: &str, count: usize) -> Result<()> {
    let mut piece = [0; 4096];
    for _ in 0..count {
        let mut file = File::open(path)?;
        while file.read(&mut piece)? > 0 {}
    }
    Ok(())
}

fn fault(path: &str) -> Result<()> {
    let file = File::open(path)?;
    // SAFETY: a fresh private mapping of a file that nobody truncates, read within its length.
    let sum: u64 = unsafe {
        let at = libc::mmap(
            std::ptr::null_mut(),
            FILE_BYTES,
            libc::PROT_READ,
            libc::MAP_PRIVATE,
            file.as_raw_fd(),
            0,
        );
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error().into());
        }
        (0..FILE_BYTES).step_by(4096).map(|i| u64::from(at.cast::<u8>().add(i).read_volatile())).sum()
    };
    if sum == 0 { Err("the file is empty".into()) } else { Ok(()) }
}

fn write_sync(path: &str) -> Result<()> {
    let mut file = OpenOptions::new().create(true).truncate(true).write(true).open(path)?;
    for _ in 0..8 {
        file.write_all(&vec![7; FILE_BYTES / 8])?;
        file.sync_all()?;
        fs::rename(path, format!("{path}.new"))?;
        fs::rename(format!("{path}.new"), path)?;
    }
    Ok(())
}

/// Waits for a child's bytes in a pipe.
fn pipe(poll: bool) -> Result<()> {
    let (mut reader, mut writer) = io::pipe()?;
    let child = child(move || {
        thread::sleep(PAUSE);
        let _ = writer.write_all(b"1234");
    })?;
    if poll {
        let mut polled = libc::pollfd { fd: reader.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor, which lives through the call.
        unsafe { libc::poll(&mut polled, 1, 5000) };
    }
    let mut header = [0; 4];
    reader.read_exact(&mut header)?;
    reap(child)
}

fn unix() -> Result<()> {
    let (mut ours, mut theirs) = UnixStream::pair()?;
    let child = child(move || {
        thread::sleep(PAUSE);
        let _ = theirs.write_all(b"1234");
    })?;
    ours.read_exact(&mut [0; 4])?;
    reap(child)
}

fn tcp() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let child = child(move || {
        if let Ok(mut stream) = TcpStream::connect(address) {
            thread::sleep(PAUSE);
            let _ = stream.write_all(b"1234");
        }
    })?;
    listener.accept()?.0.read_exact(&mut [0; 4])?;
    reap(child)
}

fn futex() {
    let (sender, receiver) = mpsc::channel();
    let thread = thread::spawn(move || {
        thread::sleep(PAUSE);
        sender.send(())
    });
    let _ = receiver.recv();
    let _ = thread.join();
}

/// The main thread waits for a thread that waits for the network, or for so many of which the last does: what waiting for
/// another rank looks like.
fn peer(threads: usize) -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let child = child(move || {
        if let Ok(mut stream) = TcpStream::connect(address) {
            // Long enough for the thread to be there first, on a slow machine too.
            thread::sleep(PAUSE * 10);
            let _ = stream.write_all(b"1234");
        }
    })?;
    let mut stream = listener.accept()?.0;
    let (sender, mut receiver) = mpsc::channel();
    thread::spawn(move || {
        let _ = stream.read_exact(&mut [0; 4]);
        sender.send(())
    });
    for _ in 1..threads {
        let (sender, next) = mpsc::channel();
        let before = std::mem::replace(&mut receiver, next);
        thread::spawn(move || {
            let _ = before.recv();
            sender.send(())
        });
    }
    let _ = receiver.recv();
    reap(child)
}

/// The leader sleeps twice, each time until a thread hands on to it, the last one of `threads` in a row: once while the first
/// reads, once while that sleeps.
fn reader(threads: usize, path: &str, deadline: Duration) -> Result<()> {
    let (sender, mut receiver) = mpsc::channel();
    let path = path.to_owned();
    thread::spawn(move || {
        let read = read_from_disk(&path).is_ok();
        let _ = sender.send(read);
        thread::sleep(PAUSE);
        sender.send(read)
    });
    for _ in 1..threads {
        let (sender, next) = mpsc::channel();
        let before = std::mem::replace(&mut receiver, next);
        thread::spawn(move || before.into_iter().try_for_each(|read| sender.send(read)));
    }
    for _ in 0..2 {
        // A deadline that passes is no end of the reading.
        while let Err(mpsc::RecvTimeoutError::Timeout) = receiver.recv_timeout(deadline) {}
    }
    Ok(())
}

/// The leader wakes a thread that sleeps in an untimed lock, as Python's queues do (sem_wait).
fn hand_over(count: usize) -> Result<()> {
    struct Semaphore(libc::sem_t);
    // SAFETY: a semaphore is made to be shared by threads.
    unsafe impl Sync for Semaphore {}
    let semaphore = Box::leak(Box::new(Semaphore(
        // SAFETY: initialised by sem_init before its use.
        unsafe { std::mem::zeroed() },
    )));
    let at = (&raw mut semaphore.0) as usize;
    // SAFETY: the semaphore is leaked, so that it lives as long as the process.
    unsafe { libc::sem_init(at as *mut libc::sem_t, 0, 0) };
    let thread = thread::spawn(move || {
        for _ in 0..count {
            // SAFETY: as above.
            unsafe { libc::sem_wait(at as *mut libc::sem_t) };
        }
    });
    for _ in 0..count {
        thread::sleep(Duration::from_millis(5));
        // SAFETY: as above.
        unsafe { libc::sem_post(at as *mut libc::sem_t) };
    }
    thread.join().map_err(|_| "the thread failed")?;
    Ok(())
}

/// The main thread waits in a futex, at most for so long, for a thread with the name that torch gives its pin-memory thread.
fn pin(deadline: Duration) -> Result<()> {
    let (sender, receiver) = mpsc::channel();
    let thread = thread::Builder::new().name("pt_data_pin".to_owned()).spawn(move || {
        thread::sleep(PAUSE);
        sender.send(())
    })?;
    let _ = receiver.recv_timeout(deadline);
    let _ = thread.join();
    Ok(())
}

fn threads(count: usize) {
    let threads: Vec<_> = (0..count).map(|_| thread::spawn(burn)).collect();
    for thread in threads {
        let _ = thread.join();
    }
}

/// One child after the other.
fn fork(count: usize) -> Result<()> {
    (0..count).try_for_each(|_| reap(child(|| {})?))
}

/// A name set anew is a record each.
fn rename(count: usize) {
    for nth in 0..count {
        let name = [b'a' + (nth % 26) as u8, 0];
        // SAFETY: a text that ends with 0 and outlives the call.
        unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
    }
}

fn rename_and_fork(count: usize) -> Result<()> {
    (0..count).try_for_each(|_| {
        rename(2000);
        fork(1)
    })
}

/// All children before the first is waited for.
fn fork_at_once(count: usize) -> Result<()> {
    let children = (0..count).map(|_| child(|| thread::sleep(PAUSE))).collect::<Result<Vec<_>>>()?;
    children.into_iter().try_for_each(reap)
}

/// Children that are there as long as this process.
fn crowd(count: usize) -> Result<()> {
    let (mut ends, open) = io::pipe()?;
    let open = open.into_raw_fd();
    for _ in 0..count {
        child(|| {
            // SAFETY: its own copy of the descriptor, which nothing else here uses.
            unsafe { libc::close(open) };
            let _ = ends.read(&mut [0]);
        })?;
    }
    Ok(())
}

fn child(work: impl FnOnce()) -> Result<libc::pid_t> {
    // SAFETY: this process has one thread when it forks; the child does its work and leaves without unwinding.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error().into()),
        0 => {
            work();
            // SAFETY: ends the process.
            unsafe { libc::_exit(3) }
        }
        pid => Ok(pid),
    }
}

fn reap(pid: libc::pid_t) -> Result<()> {
    let mut status = 0;
    // SAFETY: `status` lives through the call.
    if unsafe { libc::waitpid(pid, &mut status, 0) } == pid { Ok(()) } else { Err("no such child".into()) }
}
