//! The unprivileged half of kernel evidence: asks a kernel service for one process tree and passes on what it
//! sends. A service that goes away is called again once a second.

use crate::KernelChoice;
use crate::engine::Engine;
use crate::kernel_service;
use crate::runtime::kernel_socket;
use anyhow::{Context, Result, anyhow};
use stallscope_model::EvidenceState;
use stallscope_wire::{Accepted, Client, Hello, Reply};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream as BlockingStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::time::Instant;

const CALL_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Where kernel evidence comes from.
enum Source {
    /// The node's collector, or one that sudo started for us.
    Service(PathBuf),
    /// A thread of our own, because we are root.
    Within,
}

pub(crate) struct KernelClient {
    source: Option<Source>,
    watch: u32,
    syscalls: bool,
    stream: Option<UnixStream>,
    call_again: Instant,
    buffer: Vec<u8>,
}

/// What [`KernelClient::next`] found.
pub(crate) enum Heard<'a> {
    Bytes(&'a [u8]),
    /// The evidence's state changed.
    State(EvidenceState),
}

impl KernelClient {
    /// Finds a source and calls it once, so that the job's first tasks are seen.
    pub(crate) fn start(
        choice: KernelChoice,
        watch: u32,
        syscalls: bool,
        engine: &mut Engine,
    ) -> KernelClient {
        let mut client = KernelClient {
            source: None,
            watch,
            syscalls,
            stream: None,
            call_again: Instant::now(),
            buffer: vec![0; 256 << 10],
        };
        let state = match find(choice) {
            Ok(Some(source)) => {
                client.source = Some(source);
                client.call()
            }
            Ok(None) => EvidenceState::Off,
            Err(error) => EvidenceState::Missing(format!("{error:#}")),
        };
        if client.stream.is_none() {
            // What failed at the first call (no privilege, no BTF) would fail again: only a service that was
            // there and went away is called again.
            client.source = None;
        }
        engine.kernel_is(state);
        client
    }

    fn call(&mut self) -> EvidenceState {
        match self.try_call() {
            Ok((stream, accepted)) => {
                self.stream = Some(stream);
                state_of(&accepted)
            }
            Err(error) => EvidenceState::Missing(format!("{error:#}")),
        }
    }

    fn try_call(&self) -> Result<(UnixStream, Accepted)> {
        let mut stream = match &self.source {
            Some(Source::Service(path)) => BlockingStream::connect(path)
                .with_context(|| format!("the node's collector does not answer at {}", path.display()))?,
            Some(Source::Within) => kernel_service::serve_within()?,
            None => return Err(anyhow!("there is no kernel service to call")),
        };
        stream.write_all(&stallscope_wire::encode(&Hello::new(Client::Kernel {
            watch: self.watch,
            syscalls: self.syscalls,
        })))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        let reply = stallscope_wire::decode(&read_line(&mut stream)?)?;
        match reply {
            Reply::Watching(accepted) => {
                stream.set_nonblocking(true)?;
                Ok((UnixStream::from_std(stream)?, accepted))
            }
            Reply::Error(sentence) => Err(anyhow!(sentence)),
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
                        return Heard::State(EvidenceState::Partial(
                            "the kernel collector went away while the job ran".into(),
                        ));
                    }
                },
                None if self.source.is_some() => {
                    tokio::time::sleep_until(self.call_again).await;
                    self.call_again = Instant::now() + CALL_AGAIN_AFTER;
                    if let EvidenceState::On | EvidenceState::Partial(_) = self.call() {
                        return Heard::State(EvidenceState::Partial(
                            "the kernel collector was restarted while the job ran".into(),
                        ));
                    }
                }
                None => std::future::pending().await,
            }
        }
    }
}

fn find(choice: KernelChoice) -> Result<Option<Source>> {
    let root = rustix::process::geteuid().is_root();
    let node = kernel_socket();
    let serves = |path: &Path| BlockingStream::connect(path).is_ok();
    match choice {
        KernelChoice::Off => Ok(None),
        _ if serves(&node) => Ok(Some(Source::Service(node))),
        _ if root => Ok(Some(Source::Within)),
        KernelChoice::Sudo => start_with_sudo().map(|path| Some(Source::Service(path))),
        KernelChoice::Auto => Err(anyhow!(
            "no privileged collector runs here; start `sudo stallscope collect` once per node, or use --kernel"
        )),
    }
}

/// Starts a collector for this job alone. sudo asks on the terminal, before the job starts.
fn start_with_sudo() -> Result<PathBuf> {
    let runtime = crate::runtime::RuntimeDir::of_this_user()?;
    let socket = runtime.path().join(format!("kernel-{}.sock", std::process::id()));
    let exe = std::env::current_exe().context("cannot tell where this binary is")?;
    let mut sudo = std::process::Command::new("sudo")
        .arg("--")
        .arg(exe)
        .args(["collect", "--until-idle", "--socket"])
        .arg(&socket)
        .stdout(std::process::Stdio::null())
        .spawn()
        .context("--kernel needs sudo; without it ask an administrator for `stallscope collect`")?;
    loop {
        if BlockingStream::connect(&socket).is_ok() {
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

/// One byte at a time, so that the frames that follow stay in the socket.
fn read_line(stream: &mut BlockingStream) -> Result<Vec<u8>> {
    let mut line = Vec::new();
    let mut byte = [0];
    while line.len() < stallscope_wire::LINE_LIMIT_BYTES {
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
