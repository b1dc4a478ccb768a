//! The unprivileged half of kernel evidence: asks a kernel service for one process tree and passes on what it
//! sends. A service that goes away is called again once a second.

use crate::KernelChoice;
use crate::engine::Engine;
use crate::foreign_text;
use crate::kernel_service::Within;
use crate::runtime::kernel_socket;
use anyhow::{Context, Result, anyhow};
use stallscope_model::EvidenceState;
use stallscope_wire::{Accepted, Client, Hello, Layer, ProgramState, Reply, Request};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as BlockingStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::sync::oneshot;
use tokio::time::Instant;

const CALL_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// How long the service may take to answer; the session stands still meanwhile.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// Of that, how long one may wait for a place among those who call the service.
const PLACE_WITHIN: Duration = Duration::from_millis(500);

/// Where kernel evidence comes from, or why it does not.
pub(crate) struct KernelSource(Result<Option<Source>>);

enum Source {
    /// The node's collector, or one that sudo started for us.
    Service(PathBuf),
    /// A thread of our own, because we may load the programs ourselves. They were loaded unless it serves already.
    Within(Option<Box<Within>>),
}

impl KernelSource {
    /// Looks for one, has sudo start one, or loads the programs into this process. Comes before the job, so that nothing of
    /// it is missed: sudo may have to ask, and loading takes a second or two. A thread does both, and is left behind
    /// where this future is dropped.
    ///
    /// # Errors
    /// It was asked for by name and can't be had: better no job than one that is not measured as asked.
    pub(crate) async fn find(choice: KernelChoice) -> Result<KernelSource> {
        let (sender, found) = oneshot::channel();
        std::thread::Builder::new().name("kernel start".into()).spawn(move || sender.send(find(choice)))?;
        let found = found.await?;
        if choice == KernelChoice::Sudo { Ok(KernelSource(Ok(found?))) } else { Ok(KernelSource(found)) }
    }
}

pub(crate) struct KernelClient {
    source: Option<Source>,
    /// Roots of the job's process trees.
    watch: Vec<u32>,
    syscalls: bool,
    /// The user for whom root asks.
    reader: Option<u32>,
    stream: Option<UnixStream>,
    answered: bool,
    call_again: Instant,
    buffer: Vec<u8>,
}

/// The service's own sentence: it has heard us, and says no.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refused(String);

/// What [`KernelClient::next`] found.
pub(crate) enum Heard<'a> {
    Bytes(&'a [u8]),
    /// The evidence's state changed, and what there is of programs.
    State(EvidenceState, Vec<ProgramState>),
}

impl KernelClient {
    /// Calls the source for the process tree of `watch`, for user `reader` where root asks for another.
    pub(crate) fn start(
        source: KernelSource,
        watch: u32,
        syscalls: bool,
        reader: Option<u32>,
        engine: &mut Engine,
    ) -> KernelClient {
        let mut client = KernelClient {
            source: None,
            watch: vec![watch],
            syscalls,
            reader,
            stream: None,
            answered: false,
            call_again: Instant::now(),
            buffer: vec![0; 256 << 10],
        };
        let (state, programs) = match source.0 {
            Ok(Some(source)) => client.first_call(source),
            Ok(None) => (EvidenceState::Off, Vec::new()),
            Err(error) => (EvidenceState::Missing(format!("{error:#}")), Vec::new()),
        };
        engine.kernel_is(state);
        engine.kernel_has(programs);
        client
    }

    /// What fails for a reason (no privilege, no BTF, somebody else's process) would fail again. A service that has no time
    /// to answer is called again, as one that went away.
    fn first_call(&mut self, source: Source) -> (EvidenceState, Vec<ProgramState>) {
        let may_answer_later = matches!(source, Source::Service(_));
        self.source = Some(source);
        self.call().unwrap_or_else(|error| {
            if !may_answer_later || error.is::<Refused>() {
                self.source = None;
            }
            self.call_again = Instant::now() + CALL_AGAIN_AFTER;
            (EvidenceState::Missing(format!("{error:#}")), Vec::new())
        })
    }

    fn call(&mut self) -> Result<(EvidenceState, Vec<ProgramState>)> {
        let (stream, accepted) = self.try_call()?;
        self.stream = Some(stream);
        self.answered = true;
        Ok((state_of(&accepted), accepted.programs))
    }

    /// Watches a further task of the job, which is no descendant of the first.
    pub(crate) fn also(&mut self, pid: u32) {
        if self.watch.contains(&pid) {
            return;
        }
        self.watch.push(pid);
        if let Some(stream) = &self.stream {
            // A line is far below what a socket takes at once; a service that is gone hears it when called again.
            let _ = stream.try_write(&stallscope_wire::encode(&Request::Watch(pid)));
        }
    }

    fn try_call(&mut self) -> Result<(UnixStream, Accepted)> {
        let until = answer_until();
        let mut stream = match &mut self.source {
            Some(Source::Service(path)) => connect_in_turn(path, PLACE_WITHIN)
                .with_context(|| format!("the node's collector does not answer at {}", path.display()))?,
            Some(Source::Within(loaded)) => {
                loaded.take().map_or_else(|| Within::load().map(Box::new), Ok)?.serve()?
            }
            None => return Err(anyhow!("there is no kernel service to call")),
        };
        let (first, further) = self.watch.split_first().context("there is no process to watch")?;
        let hello =
            Hello::new(Client::Kernel { watch: *first, syscalls: self.syscalls, reader: self.reader });
        stream.write_all(&stallscope_wire::encode(&hello))?;
        let reply = stallscope_wire::decode(&read_line(&mut stream, until)?)?;
        match reply {
            Reply::Watching(mut accepted) => {
                foreign_text::shorten_programs(&mut accepted.programs);
                for pid in further {
                    stream.write_all(&stallscope_wire::encode(&Request::Watch(*pid)))?;
                }
                stream.set_nonblocking(true)?;
                Ok((UnixStream::from_std(stream)?, accepted))
            }
            Reply::Error(sentence) => Err(Refused(foreign_text::sentence(&sentence)).into()),
            _ => Err(anyhow!("the node's collector answered something else; is it another version?")),
        }
    }

    /// Waits for the next bytes or change; never returns where there is nothing to wait for.
    pub(crate) async fn next(&mut self) -> Heard<'_> {
        loop {
            match &mut self.stream {
                Some(stream) => match stream.read(&mut self.buffer).await {
                    Ok(length) if length > 0 => return Heard::Bytes(&self.buffer[..length]),
                    _ => {
                        self.stream = None;
                        self.call_again = Instant::now() + CALL_AGAIN_AFTER;
                        let gone = "the kernel collector went away while the job ran";
                        return Heard::State(EvidenceState::Partial(gone.into()), Vec::new());
                    }
                },
                None if self.source.is_some() => {
                    tokio::time::sleep_until(self.call_again).await;
                    self.call_again = Instant::now() + CALL_AGAIN_AFTER;
                    let late = !self.answered;
                    if let Ok((EvidenceState::On | EvidenceState::Partial(_), programs)) = self.call() {
                        let back = if late {
                            "the kernel collector first answered while the job ran"
                        } else {
                            "the kernel collector was restarted while the job ran"
                        };
                        return Heard::State(EvidenceState::Partial(back.into()), programs);
                    }
                }
                None => std::future::pending().await,
            }
        }
    }
}

/// A connection, unless it would have to wait for its turn.
fn connect(path: &Path) -> Result<BlockingStream> {
    let socket = unix_socket(rustix::net::SocketFlags::NONBLOCK)?;
    rustix::net::connect(&socket, &rustix::net::SocketAddrUnix::new(path)?)?;
    let stream = BlockingStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// A connection. Where others have taken all places the kernel keeps the order of those who wait for one: who comes back
/// after a while instead finds them taken by users who call without end.
fn connect_in_turn(path: &Path, within: Duration) -> Result<BlockingStream> {
    let (until, address) = (std::time::Instant::now() + within, rustix::net::SocketAddrUnix::new(path)?);
    let socket = unix_socket(rustix::net::SocketFlags::empty())?;
    loop {
        let left = until.saturating_duration_since(std::time::Instant::now());
        // 0 would be for ever.
        let left = left.max(Duration::from_millis(1));
        rustix::net::sockopt::set_socket_timeout(&socket, rustix::net::sockopt::Timeout::Send, Some(left))?;
        match rustix::net::connect(&socket, &address) {
            Err(rustix::io::Errno::INTR) => {}
            connected => {
                connected?;
                return Ok(BlockingStream::from(socket));
            }
        }
    }
}

fn unix_socket(flags: rustix::net::SocketFlags) -> Result<OwnedFd> {
    let (unix, stream) = (rustix::net::AddressFamily::UNIX, rustix::net::SocketType::STREAM);
    let flags = flags | rustix::net::SocketFlags::CLOEXEC;
    Ok(rustix::net::socket_with(unix, stream, flags, None)?)
}

/// Whether the listener there is too busy: so many call that one would have to wait.
fn is_busy(error: &anyhow::Error) -> bool {
    error.downcast_ref() == Some(&rustix::io::Errno::AGAIN)
}

/// Whether somebody listens at `path`. Waits for nobody.
pub(crate) fn is_served(path: &Path) -> bool {
    connect(path).map_or_else(|error| is_busy(&error), |_| true)
}

/// Whether nobody is behind the socket at `path` any more. One of another kind than ours is in use as long as it is there.
pub(crate) fn is_left(path: &Path) -> bool {
    connect(path).is_err_and(|error| error.downcast_ref() == Some(&rustix::io::Errno::CONNREFUSED))
}

/// What the node's collector may still do, of which it tells everybody.
///
/// # Errors
/// It does not answer, or is of a release that does not know.
pub(crate) fn confinement(node: &Path) -> Result<Vec<Layer>> {
    let until = answer_until();
    let mut stream = connect_in_turn(node, PLACE_WITHIN)?;
    stream.write_all(&stallscope_wire::encode(&Hello::new(Client::Confinement)))?;
    match stallscope_wire::decode(&read_line(&mut stream, until)?)? {
        Reply::Confinement(layers) => Ok(layers),
        _ => Err(anyhow!("the node's collector does not tell; it is another release")),
    }
}

fn find(choice: KernelChoice) -> Result<Option<Source>> {
    if choice == KernelChoice::Off {
        return Ok(None);
    }
    find_at(kernel_socket(), choice)
}

fn find_at(node: PathBuf, choice: KernelChoice) -> Result<Option<Source>> {
    match connect(&node) {
        Ok(_) => return Ok(Some(Source::Service(node))),
        Err(error) if is_busy(&error) => return Ok(Some(Source::Service(node))),
        // As root, or as a user with the capabilities that it takes.
        Err(_) if rustix::process::geteuid().is_root() || stallscope_ebpf::doctor::may_load_programs() => {
            return Ok(Some(Source::Within(Some(Box::new(Within::load()?)))));
        }
        Err(error) if error.downcast_ref() == Some(&rustix::io::Errno::ACCESS) => {
            return Err(anyhow!(
                "{} is closed to you; ask who runs the collector to open its folder",
                node.display()
            ));
        }
        Err(_) => {}
    }
    if choice == KernelChoice::Sudo {
        return start_with_sudo().map(|path| Some(Source::Service(path)));
    }
    Err(anyhow!(
        "no privileged collector runs here; start `sudo stallscope collect` once per node, or this job with `stallscope run --kernel`"
    ))
}

/// Starts a collector for this job alone. sudo may ask on the terminal.
fn start_with_sudo() -> Result<PathBuf> {
    let runtime = crate::runtime::RuntimeDir::of_this_user()?;
    let socket = runtime.path().join(format!("kernel-{}.sock", std::process::id()));
    let exe = std::env::current_exe().context("cannot tell where this binary is")?;
    let mut sudo = std::process::Command::new("sudo")
        .arg("--")
        .arg(exe)
        .args(["collect", "--until-idle", "--syscalls-for-everyone", "--socket"])
        .arg(&socket)
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .spawn()
        .context("--kernel needs sudo; without it ask an administrator for `stallscope collect`")?;
    loop {
        if connect(&socket).is_ok() {
            return Ok(socket);
        }
        if let Some(status) = sudo.try_wait()? {
            return Err(anyhow!("the privileged collector did not start ({status})"));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn state_of(accepted: &Accepted) -> EvidenceState {
    let missing: Vec<String> = accepted
        .programs
        .iter()
        .filter(|program| !program.attached && !program.reason.is_empty())
        .map(|program| format!("{}: {}", program.program, program.reason))
        .collect();
    if missing.is_empty() { EvidenceState::On } else { EvidenceState::Partial(missing.join("; ")) }
}

/// Until when a service that is called now has to have answered.
fn answer_until() -> std::time::Instant {
    std::time::Instant::now() + ANSWER_WITHIN
}

/// One byte at a time, so that the frames that follow stay in the socket. All of it comes by `until`, however its bytes are
/// spread.
fn read_line(stream: &mut BlockingStream, until: std::time::Instant) -> Result<Vec<u8>> {
    let mut line = Vec::new();
    let mut byte = [0];
    while line.len() < stallscope_wire::LINE_LIMIT_BYTES {
        let left = until.saturating_duration_since(std::time::Instant::now());
        if left.is_zero() {
            return Err(anyhow!("the kernel collector's answer does not end"));
        }
        stream.set_read_timeout(Some(left))?;
        if stream.read(&mut byte)? == 0 {
            return Err(anyhow!("the kernel collector hung up; see what it printed"));
        }
        if byte[0] == b'\n' {
            return Ok(line);
        }
        line.push(byte[0]);
    }
    Err(anyhow!("the kernel collector's answer does not end; is it another program's socket?"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, listen, socket};

    #[test]
    fn an_answer_that_comes_byte_by_byte_is_not_waited_for_without_end() {
        let (mut client, mut server) = BlockingStream::pair().unwrap();
        let sent = std::thread::spawn(move || {
            // Until the client has hung up, or for several times as long as it may wait.
            let pauses = 8 * ANSWER_WITHIN.as_millis() / 100;
            (0..pauses)
                .take_while(|_| {
                    std::thread::sleep(Duration::from_millis(100));
                    server.write_all(b" ").is_ok()
                })
                .count() as u128
                == pauses
        });
        assert!(read_line(&mut client, answer_until()).is_err());
        drop(client);
        assert!(!sent.join().unwrap(), "it hung up before the other side was done");
    }

    /// A listener at which all places are taken, with what has taken them and the error that the next one gets.
    fn full_queue(name: &str) -> (PathBuf, OwnedFd, Vec<BlockingStream>, anyhow::Error) {
        let path = std::env::temp_dir().join(format!("ss-{name}-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&listener, 1).unwrap();
        let mut waiting = Vec::new();
        let full = loop {
            match connect(&path) {
                Ok(stream) => waiting.push(stream),
                Err(error) => break error,
            }
        };
        (path, listener, waiting, full)
    }

    #[test]
    fn who_calls_where_all_places_are_taken_waits_in_turn() {
        let (path, listener, _waiting, _) = full_queue("in-turn");
        let late = connect_in_turn(&path, Duration::from_millis(1)).unwrap_err();
        assert!(is_busy(&late), "not for ever: {late:#}");
        let caller = std::thread::spawn({
            let path = path.clone();
            move || connect_in_turn(&path, Duration::from_secs(60))
        });
        // Most likely it waits by then.
        std::thread::sleep(Duration::from_millis(100));
        rustix::net::accept(&listener).unwrap();
        caller.join().unwrap().unwrap();
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_collector_at_which_too_many_wait_is_there_all_the_same() {
        let (path, _listener, _waiting, full) = full_queue("full-queue");
        assert!(is_busy(&full) && is_served(&path), "{full:#}");
        let found = find_at(path.clone(), KernelChoice::Auto);
        assert!(matches!(found, Ok(Some(Source::Service(_)))), "it is called again, and no other is started");
        std::fs::remove_file(&path).unwrap();
        assert!(!is_served(&path));
    }
}
