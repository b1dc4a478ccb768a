//! Asking a running job's collector.

use crate::runtime::RuntimeDir;
use anyhow::{Context, Result, bail};
use stallscope_model::RunSummary;
use stallscope_wire::{Client, Hello, LINE_LIMIT_BYTES, Reply, Request};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// The state of the job whose collector listens at `socket`.
///
/// # Errors
/// Nobody listens there, or it speaks another version.
pub fn ask(socket: &Path) -> Result<RunSummary> {
    let mut stream = UnixStream::connect(socket)
        .with_context(|| format!("the job's collector does not answer at {}", socket.display()))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(&stallscope_wire::encode(&Hello::new(Client::Viewer)))?;
    stream.write_all(&stallscope_wire::encode(&Request::Summary))?;
    let mut line = Vec::new();
    BufReader::new(stream.take(LINE_LIMIT_BYTES as u64)).read_until(b'\n', &mut line)?;
    match stallscope_wire::decode(&line)? {
        Reply::Summary(summary) => Ok(*summary),
        Reply::Error(sentence) => bail!(sentence),
        _ => bail!("the job's collector answered something else"),
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
