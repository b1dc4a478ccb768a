//! A job introduces itself to the node's service, which may then start a session that tunes it, and reports to it. Nothing of the
//! job waits for that, but for a moment at its start.

use crate::runtime::node_socket;
use stallscope_wire::{
    Beside, JobHello, JobReport, JobSays, NODE_LINE_BYTES, NodeClient, NodeHello, NodeReply, VERSION,
};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};

/// How long the start of a job may take longer because of a service that does not answer.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);
/// Between tries to get into its queue.
const FULL: Duration = Duration::from_millis(10);
/// A service that was restarted learns of its jobs again within this time.
const CALL_AGAIN: Duration = Duration::from_secs(2);
/// Reports that wait for the service.
const REPORTS: usize = 64;
/// The variable of a job's environment that may lower what the policy allows.
const LABEL: &str = "STALLSCOPE_LABEL";

/// A job that is, or would be, known to the node's service.
#[derive(Debug)]
pub(crate) struct Registration {
    hello: JobHello,
    connection: Option<BufReader<UnixStream>>,
    /// What a cache that the job begins with may take; 0: none.
    pub(crate) first_cache_bytes: u64,
}

/// To the node's service, whether there is one now or not. The job is known to it for as long as this is held.
#[derive(Debug)]
pub(crate) struct NodeLink {
    reports: mpsc::Sender<JobReport>,
    granted: watch::Receiver<Option<u64>>,
    beside: watch::Receiver<Option<Beside>>,
}

/// Where what the service says goes.
struct News {
    grants: watch::Sender<Option<u64>>,
    beside: watch::Sender<Option<Beside>>,
}

impl NodeLink {
    /// Whether the report is on its way: not, where others wait already.
    pub(crate) fn report(&self, report: JobReport) -> bool {
        self.reports.try_send(report).is_ok()
    }

    /// What the job's caches may be raised to, as the service last granted it; `None`: it has not yet.
    pub(crate) fn granted_bytes(&self) -> Option<u64> {
        *self.granted.borrow()
    }

    /// What other jobs read from the same storage, as the service last knew; `None`: it has not yet, or is not there.
    pub(crate) fn beside(&self) -> Option<Beside> {
        *self.beside.borrow()
    }

    /// What is granted, as it changes.
    pub(crate) fn grants(&self) -> watch::Receiver<Option<u64>> {
        self.granted.clone()
    }
}

/// This job's label; what is no UTF-8 is none.
pub(crate) fn label() -> String {
    std::env::var(LABEL).unwrap_or_default()
}

impl Registration {
    /// Before the job starts. Where no service answers in time the job starts without.
    pub(crate) async fn open(hello: JobHello) -> Registration {
        let called = timeout(ANSWER_WITHIN, call(&hello)).await.ok().flatten();
        let (connection, first_cache_bytes) = called.map_or((None, 0), |(one, bytes)| (Some(one), bytes));
        Registration { hello, connection, first_cache_bytes }
    }

    /// The job has started as process `pid`. Stays connected, and calls again, for as long as the link is held.
    pub(crate) fn keep(self, pid: u32) -> NodeLink {
        let (reports, mut waiting) = mpsc::channel(REPORTS);
        let (grants, granted) = watch::channel(None);
        let (others_read, beside) = watch::channel(None);
        let news = News { grants, beside: others_read };
        tokio::spawn(async move {
            let Registration { mut hello, mut connection, .. } = self;
            loop {
                if let Some(mut open) = connection.take() {
                    let started = stallscope_wire::encode(&JobSays::Started { pid });
                    if open.get_mut().write_all(&started).await.is_ok() {
                        stay(open, &mut waiting, &news).await;
                        news.beside.send_replace(None);
                    }
                }
                if waiting.is_closed() {
                    return;
                }
                sleep(CALL_AGAIN).await;
                hello.granted_bytes = news.grants.borrow().or(hello.granted_bytes);
                let called = timeout(ANSWER_WITHIN, call(&hello)).await.ok().flatten();
                connection = called.map(|(open, _)| open);
            }
        });
        NodeLink { reports, granted, beside }
    }
}

/// Until the service hangs up, or nobody reports any more.
async fn stay(open: BufReader<UnixStream>, waiting: &mut mpsc::Receiver<JobReport>, news: &News) {
    // The service says nothing more before it hears that the job has started.
    let (read, mut write) = open.into_inner().into_split();
    let hears = async {
        let mut lines = BufReader::new(read);
        loop {
            let mut line = Vec::new();
            let read = (&mut lines).take(NODE_LINE_BYTES as u64).read_until(b'\n', &mut line).await;
            if !read.is_ok_and(|read| read > 0) {
                return;
            }
            match stallscope_wire::decode(&line) {
                Ok(NodeReply::Granted { cache_bytes }) => drop(news.grants.send_replace(Some(cache_bytes))),
                Ok(NodeReply::Beside(beside)) => drop(news.beside.send_replace(Some(beside))),
                _ => {}
            }
        }
    };
    let says = async {
        while let Some(report) = waiting.recv().await {
            let line = stallscope_wire::encode(&JobSays::Report(Box::new(report)));
            if write.write_all(&line).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = hears => {}
        () = says => {}
    }
}

async fn call(hello: &JobHello) -> Option<(BufReader<UnixStream>, u64)> {
    let mut stream = loop {
        match UnixStream::connect(node_socket()).await {
            Ok(stream) => break stream,
            // Others fill its queue for a moment.
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => sleep(FULL).await,
            Err(_) => return None,
        }
    };
    let hello = NodeHello { stallscope: VERSION, client: NodeClient::Job(hello.clone()) };
    stream.write_all(&stallscope_wire::encode(&hello)).await.ok()?;
    let mut stream = BufReader::new(stream);
    let mut line = Vec::new();
    (&mut stream).take(NODE_LINE_BYTES as u64).read_until(b'\n', &mut line).await.ok()?;
    match stallscope_wire::decode(&line).ok()? {
        NodeReply::Allowed { first_cache_bytes } => Some((stream, first_cache_bytes)),
        _ => None,
    }
}
