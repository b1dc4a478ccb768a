//! Asking a running job's collector.

use crate::runtime::RuntimeDir;
use anyhow::{Context, Result, bail};
use stallscope_model::RunSummary;
use stallscope_wire::{Client, Hello, LINE_LIMIT_BYTES, Reply, Request};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// A collector that is silent for longer is taken for gone.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// A connection to the collector of a running job. What was begun over it (a controller) ends with it.
#[derive(Debug)]
pub struct Connection {
    stream: BufReader<UnixStream>,
}

impl Connection {
    /// # Errors
    /// Nobody listens at `socket`.
    pub fn open(socket: &Path) -> Result<Connection> {
        let mut stream = UnixStream::connect(socket)
            .with_context(|| format!("the job's collector does not answer at {}", socket.display()))?;
        stream.set_read_timeout(Some(ANSWER_WITHIN))?;
        stream.write_all(&stallscope_wire::encode(&Hello::new(Client::Viewer)))?;
        Ok(Connection { stream: BufReader::new(stream) })
    }

    /// # Errors
    /// The collector refused, in one sentence; or it is gone, or speaks another version.
    pub fn ask(&mut self, request: &Request) -> Result<Reply> {
        self.stream
            .get_mut()
            .write_all(&stallscope_wire::encode(request))
            .context("the job's collector is gone")?;
        let mut line = Vec::new();
        let read = (&mut self.stream).take(LINE_LIMIT_BYTES as u64).read_until(b'\n', &mut line);
        if read.context("the job's collector does not answer")? == 0 {
            bail!("the job's collector is gone: the job has ended, or its collector was killed");
        }
        match stallscope_wire::decode(&line)? {
            Reply::Error(sentence) => bail!(sentence),
            reply => Ok(reply),
        }
    }
}

/// What a collector answers to another request than it was asked.
pub(crate) const SOMETHING_ELSE: &str = "the job's collector answered something else";

/// The state of the job whose collector listens at `socket`.
///
/// # Errors
/// Nobody listens there, or it speaks another version.
pub fn ask(socket: &Path) -> Result<RunSummary> {
    match Connection::open(socket)?.ask(&Request::Summary)? {
        Reply::Summary(summary) => Ok(*summary),
        _ => bail!(SOMETHING_ELSE),
    }
}

/// The state of the running job that `job` means: a pid, a name, or a prefix of one name.
///
/// # Errors
/// None or several are called so, or its collector does not answer.
pub fn running_job(job: &str) -> Result<RunSummary> {
    let (socket, _) = RuntimeDir::of_this_user()?.find(job)?;
    ask(&socket)
}
