//! What the node's service does and says, pushed to a receiver of OpenTelemetry (OTLP over HTTP) and shown to Prometheus.
//!
//! Metrics that do not arrive are lost, as the next ones replace them. Lines of the audit are read from the service one page at a
//! time, and the next page only once the last one has arrived, so that a receiver that is away costs no memory.

mod beginning;
mod shown;

pub use beginning::{Asked, export_as_configured, export_node};

use crate::host;
use crate::node_service::{NodeLog, Way};
use anyhow::{Context, Result, anyhow, bail, ensure};
use hyper::client::conn::http1;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use stallscope_wire::{NodeEvent, NodeState};
use std::convert::Infallible;
use std::str::FromStr;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::runtime;
use tokio::time::timeout;

/// Of OTLP over HTTP.
const PORT: u16 = 4318;
/// A receiver that takes longer does not answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
const ANSWERS_AGAIN: &str = "the node's service answers again";

/// A receiver, such as an OpenTelemetry collector: `http://HOST[:PORT][/PATH]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    host: String,
    port: u16,
    /// As it is named in a request.
    authority: String,
    /// Without a slash at its end.
    path: String,
}

impl FromStr for Endpoint {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Endpoint> {
        let form = || anyhow!("a receiver is named as http://HOST:PORT, as in http://127.0.0.1:{PORT}");
        let uri: Uri = text.parse().map_err(|_| form())?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => bail!(
                "nothing is encrypted here: name an OpenTelemetry collector on this machine, which sends on by https"
            ),
            _ => return Err(form()),
        }
        let authority = uri.authority().ok_or_else(form)?;
        ensure!(
            !authority.as_str().contains('@'),
            "a password in an address is visible to every user; leave it out"
        );
        ensure!(uri.query().is_none(), "the address of a receiver has no `?`");
        Ok(Endpoint {
            host: authority.host().trim_start_matches('[').trim_end_matches(']').to_owned(),
            port: authority.port_u16().unwrap_or(PORT),
            authority: authority.to_string(),
            path: uri.path().trim_end_matches('/').to_owned(),
        })
    }
}

/// How what is exported is written: what is pushed of a machine of this name, at this moment (nanoseconds since 1970), and what is
/// shown.
#[derive(Clone, Copy, Debug)]
pub struct Written {
    pub metrics: fn(&NodeState, &str, u64) -> String,
    pub logs: fn(&[NodeEvent], &str, u64) -> String,
    pub figures: fn(&NodeState) -> String,
}

/// Pushes the node's jobs every `every`, and each line of its audit, as far as the caller may know of them, until the process ends.
/// `from_now`: from here on, or all that there is. Where the service or the receiver does not answer it says so once, and goes on
/// once it does.
fn push(
    endpoint: &Endpoint,
    every: Duration,
    written: Written,
    way: &Way,
    from_now: bool,
    say: fn(&str),
) -> Result<Infallible> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build().context("cannot start")?;
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let mut exporter =
        Exporter { log: NodeLog::default(), has_begun: !from_now, waiting: Vec::new(), refused: 0 };
    let (mut service, mut receiver) = (Trouble::default(), Trouble::default());
    loop {
        let send =
            |path: &str, document: String| runtime.block_on(send(endpoint, path, document, ANSWER_WITHIN));
        let turn = exporter.turn(&host, written, way, send);
        if !matches!(turn, Err(Failed::Service(_))) {
            service.over(ANSWERS_AGAIN, say);
        }
        match turn {
            Ok(()) => receiver.over("the receiver takes what it is sent again", say),
            Err(Failed::Service(why)) => service.begun(&why, say),
            Err(Failed::Later(why)) => receiver.begun(&format!("{endpoint}: {why}; it is tried again"), say),
            Err(Failed::Refused(why)) => {
                receiver.begun(&format!("{endpoint} refuses what it is sent: {why}"), say)
            }
        }
        // Each time, as each are others.
        match std::mem::take(&mut exporter.refused) {
            0 => {}
            lines => {
                say(&format!("{endpoint} has refused {lines} lines of the audit, which are not sent again"))
            }
        }
        std::thread::sleep(every);
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "http://{}{}", self.authority, self.path)
    }
}

/// Something that did not work: in one sentence when it begins, and in another when it is over.
#[derive(Debug, Default)]
struct Trouble {
    lasts: bool,
}

impl Trouble {
    fn begun(&mut self, why: &str, say: impl Fn(&str)) {
        if !std::mem::replace(&mut self.lasts, true) {
            say(why);
        }
    }

    fn over(&mut self, sentence: &str, say: impl Fn(&str)) {
        if std::mem::take(&mut self.lasts) {
            say(sentence);
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Failed {
    Service(String),
    /// What was sent may be sent again.
    Later(String),
    /// It would be refused again.
    Refused(String),
}

#[derive(Debug)]
struct Exporter {
    log: NodeLog,
    /// What is older than the beginning is not sent.
    has_begun: bool,
    /// Lines that have not arrived yet.
    waiting: Vec<NodeEvent>,
    /// How many lines the receiver has refused since that was last reported.
    refused: usize,
}

impl Exporter {
    fn turn(
        &mut self,
        host: &str,
        written: Written,
        way: &Way,
        send: impl Fn(&str, String) -> Result<(), Failed>,
    ) -> Result<(), Failed> {
        let service = |error: anyhow::Error| Failed::Service(format!("{error:#}"));
        while !self.has_begun {
            self.has_begun = self.log.more_by(way).map_err(service)?.is_empty();
        }
        let state = way.state().map_err(service)?;
        let metrics = send("/v1/metrics", (written.metrics)(&state, host, host::wall_ns()));
        // One that refuses metrics may take lines.
        if matches!(metrics, Err(Failed::Later(_))) {
            return metrics;
        }
        loop {
            if self.waiting.is_empty() {
                self.waiting = self.log.more_by(way).map_err(service)?;
            }
            if self.waiting.is_empty() {
                return metrics;
            }
            let sent = send("/v1/logs", (written.logs)(&self.waiting, host, host::wall_ns()));
            self.refused += self.after(&sent);
            sent?;
        }
    }

    /// What waits has arrived, or is to be sent again, or was refused: how many lines that are.
    fn after(&mut self, sent: &Result<(), Failed>) -> usize {
        let lines = self.waiting.len();
        if !matches!(sent, Err(Failed::Later(_))) {
            self.waiting.clear();
        }
        if matches!(sent, Err(Failed::Refused(_))) { lines } else { 0 }
    }
}

async fn send(endpoint: &Endpoint, path: &str, document: String, within: Duration) -> Result<(), Failed> {
    match timeout(within, post(endpoint, path, document)).await {
        Err(_) => Err(Failed::Later(format!("no answer within {} s", within.as_secs()))),
        Ok(Err(error)) => Err(Failed::Later(format!("{error:#}"))),
        Ok(Ok(status)) if status.is_success() => Ok(()),
        // The answers after which OTLP has a request sent again.
        Ok(Ok(status)) if [429, 502, 503, 504].contains(&status.as_u16()) => {
            Err(Failed::Later(format!("it answers {status}")))
        }
        Ok(Ok(status)) => Err(Failed::Refused(format!("it answers {status}"))),
    }
}

async fn post(endpoint: &Endpoint, path: &str, document: String) -> Result<StatusCode> {
    let stream =
        TcpStream::connect((endpoint.host.as_str(), endpoint.port)).await.context("it cannot be reached")?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let request = Request::post(format!("{}{path}", endpoint.path))
        .header(HOST, &endpoint.authority)
        .header(CONTENT_TYPE, "application/json")
        .body(document)?;
    let answer = sender.send_request(request).await;
    // What it says beside the status is not read.
    connection.abort();
    Ok(answer?.status())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    #[test]
    fn a_receiver_is_named_by_its_address() {
        let endpoint: Endpoint = "http://127.0.0.1:4318".parse().unwrap();
        assert_eq!((endpoint.host.as_str(), endpoint.port, endpoint.path.as_str()), ("127.0.0.1", 4318, ""));
        let endpoint: Endpoint = "http://[::1]/otlp/".parse().unwrap();
        assert_eq!((endpoint.host.as_str(), endpoint.port, endpoint.path.as_str()), ("::1", PORT, "/otlp"));
        assert_eq!(endpoint.to_string(), "http://[::1]/otlp");
        let refused = [
            "",
            "collector:4318",
            "ftp://collector",
            "https://collector",
            "http://a:b@collector",
            "http://collector?x=1",
            "http://",
        ];
        for text in refused {
            assert!(text.parse::<Endpoint>().is_err(), "{text}");
        }
    }

    /// What the receiver got, and what became of it.
    fn sent_to(answer: &'static str, within: Duration) -> (String, Result<(), Failed>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint: Endpoint = format!("http://{}/otlp", listener.local_addr().unwrap()).parse().unwrap();
        let receiver = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let (mut got, mut bytes) = (String::new(), [0; 1024]);
            while !got.ends_with("{}") {
                let read = stream.read(&mut bytes).unwrap();
                assert!(read > 0, "{got}");
                got.push_str(std::str::from_utf8(&bytes[..read]).unwrap());
            }
            stream.write_all(answer.as_bytes()).unwrap();
            if answer.is_empty() {
                // Until the sender gives up.
                let _ = stream.read(&mut bytes);
            }
            got
        });
        let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let sent = runtime.block_on(send(&endpoint, "/v1/logs", "{}".to_owned(), within));
        drop(runtime);
        (receiver.join().unwrap(), sent)
    }

    #[test]
    fn a_document_is_posted_and_the_answer_says_whether_it_may_be_sent_again() {
        let long = Duration::from_secs(60);
        let (got, sent) = sent_to("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", long);
        assert_eq!(sent, Ok(()));
        assert!(got.starts_with("POST /otlp/v1/logs HTTP/1.1\r\n"), "{got}");
        let head = got.to_lowercase();
        for line in ["content-type: application/json\r\n", "content-length: 2\r\n", "host: 127.0.0.1:"] {
            assert!(head.contains(line), "{got}");
        }
        let (_, sent) = sent_to("HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n", long);
        assert!(matches!(sent, Err(Failed::Later(_))), "{sent:?}");
        let (_, sent) = sent_to("HTTP/1.1 400 No\r\ncontent-length: 0\r\n\r\n", long);
        assert!(matches!(sent, Err(Failed::Refused(_))), "{sent:?}");
        let (_, sent) = sent_to("nonsense\r\n\r\n", long);
        assert!(matches!(sent, Err(Failed::Later(_))), "{sent:?}");
        let (_, sent) = sent_to("", Duration::from_millis(200));
        assert!(matches!(&sent, Err(Failed::Later(why)) if why.contains("no answer")), "{sent:?}");
    }

    #[test]
    fn a_receiver_that_is_not_there_may_come() {
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let endpoint: Endpoint = format!("http://{closed}").parse().unwrap();
        let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let sent = runtime.block_on(send(&endpoint, "/v1/metrics", "{}".to_owned(), Duration::from_secs(60)));
        assert!(matches!(&sent, Err(Failed::Later(why)) if why.contains("cannot be reached")), "{sent:?}");
    }

    #[test]
    fn lines_are_kept_until_they_arrive_or_are_refused() {
        let mut exporter =
            Exporter { log: NodeLog::default(), has_begun: true, waiting: Vec::new(), refused: 0 };
        let later = Err(Failed::Later("away".to_owned()));
        let refused = Err(Failed::Refused("no".to_owned()));
        for (sent, lost, kept) in [(later, 0, 2), (refused, 2, 0), (Ok(()), 0, 0)] {
            exporter.waiting = vec![NodeEvent::default(); 2];
            assert_eq!((exporter.after(&sent), exporter.waiting.len()), (lost, kept), "{sent:?}");
        }
    }

    #[test]
    fn trouble_is_named_once() {
        let heard = std::cell::RefCell::new(Vec::new());
        let say = |sentence: &str| heard.borrow_mut().push(sentence.to_owned());
        let mut trouble = Trouble::default();
        trouble.over("over", say);
        trouble.begun("first", say);
        trouble.begun("second", say);
        trouble.over("over", say);
        trouble.begun("third", say);
        assert_eq!(heard.into_inner(), ["first", "over", "third"]);
    }
}
