//! What people ask of the node's service, by `stallscope node`.

use crate::runtime::node_socket;
use anyhow::{Context, Result, bail, ensure};
use stallscope_wire::{
    LogPage, LogPlace, NODE_LINE_BYTES, NodeClient, NodeEvent, NodeHello, NodeReply, NodeState, VERSION,
    Whose,
};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// An answer that takes longer does not come.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Of an answer.
const MOST_BYTES: u64 = 8 << 20;
const SOMETHING_ELSE: &str = "the node's service answered something else";

/// What the node's service does, as far as the caller may know: root all jobs, others their own.
///
/// # Errors
/// No service runs here, or it does not answer.
pub fn node_state() -> Result<NodeState> {
    Way::Socket.state()
}

/// Has nothing changed any more, of one job (a name, or a pid) or of the whole node; gives what is so now, in a sentence.
///
/// # Errors
/// No service runs here, the caller may not, or there is no such job.
pub fn pause_node(job: Option<&str>) -> Result<String> {
    done(NodeClient::Pause(Whose { job: job.map(str::to_owned) }))
}

/// Takes a pause back.
///
/// # Errors
/// As [`pause_node`], or there is no pause.
pub fn resume_node(job: Option<&str>) -> Result<String> {
    done(NodeClient::Resume(Whose { job: job.map(str::to_owned) }))
}

fn done(client: NodeClient) -> Result<String> {
    match ask(client)? {
        NodeReply::Done(sentence) => Ok(sentence),
        _ => bail!(SOMETHING_ELSE),
    }
}

/// The node's audit, page by page, of what the caller may know.
#[derive(Debug, Default)]
pub struct NodeLog {
    after: Option<LogPlace>,
}

impl NodeLog {
    /// The lines since the last call; empty where there is nothing new.
    ///
    /// # Errors
    /// No service runs here, or it does not answer.
    pub fn more(&mut self) -> Result<Vec<NodeEvent>> {
        self.more_by(&Way::Socket)
    }

    pub(crate) fn more_by(&mut self, way: &Way) -> Result<Vec<NodeEvent>> {
        loop {
            let NodeReply::Log(LogPage { events, next, more }) =
                way.ask(NodeClient::Log { after: self.after })?
            else {
                bail!(SOMETHING_ELSE)
            };
            self.after = Some(next);
            // A page may have none that the caller may know.
            if !events.is_empty() || !more {
                return Ok(events);
            }
        }
    }
}

/// By which way the service is asked.
#[derive(Debug)]
pub(crate) enum Way {
    /// Its socket, as the user that this process is of.
    Socket,
    /// A connection that the service gave this process, by which it tells of all jobs.
    Given(Mutex<BufReader<UnixStream>>),
}

impl Way {
    /// By stdin.
    ///
    /// # Errors
    /// Stdin is no socket.
    pub(crate) fn given() -> Result<Way> {
        let stream = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
        stream.local_addr().context("stdin is no connection to the node's service")?;
        Ok(Way::Given(Mutex::new(BufReader::new(stream))))
    }

    pub(crate) fn state(&self) -> Result<NodeState> {
        match self.ask(NodeClient::List)? {
            NodeReply::Node(state) => Ok(state),
            _ => bail!(SOMETHING_ELSE),
        }
    }

    fn ask(&self, client: NodeClient) -> Result<NodeReply> {
        match self {
            Way::Socket => ask(client),
            // Without a limit on how long that takes: what came later would be taken for the answer to the next question.
            Way::Given(stream) => {
                ask_over(&mut stream.lock().unwrap_or_else(PoisonError::into_inner), client)
            }
        }
    }
}

fn ask(client: NodeClient) -> Result<NodeReply> {
    let socket = node_socket();
    let stream = UnixStream::connect(&socket).with_context(|| {
        format!(
            "no service of this node listens at {}; `stallscope collect --config FILE` starts one",
            socket.display()
        )
    })?;
    stream.set_read_timeout(Some(ANSWER_WITHIN))?;
    ask_over(&mut BufReader::new(stream), client)
}

fn ask_over(stream: &mut BufReader<UnixStream>, client: NodeClient) -> Result<NodeReply> {
    let line = stallscope_wire::encode(&NodeHello { stallscope: VERSION, client });
    ensure!(line.len() <= NODE_LINE_BYTES, "the question is too long");
    stream.get_mut().write_all(&line)?;
    let mut answer = Vec::new();
    let read = stream.take(MOST_BYTES).read_until(b'\n', &mut answer);
    read.context("the node's service does not answer")?;
    match stallscope_wire::decode(&answer)? {
        NodeReply::Error(sentence) => bail!(sentence),
        reply => Ok(reply),
    }
}
