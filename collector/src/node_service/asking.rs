//! What people ask of the node's service, by `stallscope node`.

use crate::runtime::node_socket;
use anyhow::{Context, Result, bail, ensure};
use stallscope_wire::{
    LogPage, LogPlace, NODE_LINE_BYTES, NodeClient, NodeEvent, NodeHello, NodeReply, NodeState, VERSION,
    Whose,
};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
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
    match ask(NodeClient::List)? {
        NodeReply::Node(state) => Ok(state),
        _ => bail!(SOMETHING_ELSE),
    }
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
        loop {
            let NodeReply::Log(LogPage { events, next, more }) = ask(NodeClient::Log { after: self.after })?
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

fn ask(client: NodeClient) -> Result<NodeReply> {
    let socket = node_socket();
    let mut stream = UnixStream::connect(&socket).with_context(|| {
        format!(
            "no service of this node listens at {}; `stallscope collect --config FILE` starts one",
            socket.display()
        )
    })?;
    stream.set_read_timeout(Some(ANSWER_WITHIN))?;
    let line = stallscope_wire::encode(&NodeHello { stallscope: VERSION, client });
    ensure!(line.len() <= NODE_LINE_BYTES, "the question is too long");
    stream.write_all(&line)?;
    let mut answer = Vec::new();
    let read = BufReader::new(stream).take(MOST_BYTES).read_until(b'\n', &mut answer);
    read.context("the node's service does not answer")?;
    match stallscope_wire::decode(&answer)? {
        NodeReply::Error(sentence) => bail!(sentence),
        reply => Ok(reply),
    }
}
