//! Figures for Prometheus over HTTP, from a thread of their own: no client, however slow or hostile, can hold up a
//! session or cost the node more than a bounded part of a core.

use anyhow::{Result, anyhow};
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};

/// Clients that are answered at a time; the kernel keeps further ones waiting, and refuses those beyond.
const CLIENTS: usize = 16;
/// Between two connections, so that many a second cost little.
const PAUSE: Duration = Duration::from_millis(50);
/// How long a client may take to say what it wants, and to have its answer.
const HEAD_WITHIN: Duration = Duration::from_secs(1);
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// The least that hyper can do with.
const HEAD_LIMIT_BYTES: usize = 8192;

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN: &str = "text/plain; charset=utf-8";

/// Where to serve figures, and how they are written.
#[derive(Clone, Copy, Debug)]
pub struct Metrics<T> {
    /// Port 0 means any that is free.
    pub address: SocketAddr,
    /// Figures as OpenMetrics text 1.0.
    pub render: fn(&T) -> String,
}

/// An address that is ours, at which nobody is answered yet.
#[derive(Debug)]
pub(crate) struct Bound<T> {
    listener: TcpListener,
    render: fn(&T) -> String,
}

impl<T> Metrics<T> {
    /// # Errors
    /// The address is taken, not ours, or not allowed.
    pub(crate) fn bind(self) -> Result<Bound<T>> {
        let Metrics { address, render } = self;
        let listener = TcpListener::bind(address).map_err(|error| {
            anyhow!("cannot serve metrics at {address} ({}); name another, or port 0 for any", error.kind())
        })?;
        listener.set_nonblocking(true)?;
        Ok(Bound { listener, render })
    }
}

/// What was last published, served until this is dropped.
#[derive(Debug)]
pub(crate) struct Publisher<T> {
    latest: watch::Sender<Option<Arc<T>>>,
    address: SocketAddr,
}

type Latest<T> = watch::Receiver<Option<Arc<T>>>;

impl<T: Send + Sync + 'static> Publisher<T> {
    /// Serves from here on; who asks before something was published is told so.
    ///
    /// # Errors
    /// There can't be a further thread.
    pub(crate) fn start(bound: Bound<T>) -> Result<Publisher<T>> {
        let Bound { listener, render } = bound;
        let address = listener.local_addr()?;
        let (latest, receiver) = watch::channel(None);
        let (tell, begun) = std::sync::mpsc::channel();
        std::thread::Builder::new().name("metrics".into()).spawn(move || {
            // Whoever started us waits to be told, so telling them can't fail.
            let _ = match listening(listener) {
                Ok((runtime, listener)) => {
                    let told = tell.send(Ok(()));
                    runtime.block_on(serve(listener, receiver, render));
                    told
                }
                Err(error) => tell.send(Err(error)),
            };
        })?;
        begun.recv()??;
        Ok(Publisher { latest, address })
    }

    /// One sentence for the person at the terminal.
    pub(crate) fn whereabouts(&self) -> String {
        format!("metrics at http://{}/metrics", self.address)
    }

    pub(crate) fn publish(&self, figures: T) {
        self.latest.send_replace(Some(Arc::new(figures)));
    }
}

/// A runtime for this thread, and `listener` as a part of it.
fn listening(listener: TcpListener) -> std::io::Result<(Runtime, tokio::net::TcpListener)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let listener = {
        let _within = runtime.enter();
        tokio::net::TcpListener::from_std(listener)?
    };
    Ok((runtime, listener))
}

/// Answers clients until the publisher is gone.
async fn serve<T: Send + Sync + 'static>(
    listener: tokio::net::TcpListener,
    latest: Latest<T>,
    render: fn(&T) -> String,
) {
    let mut publisher = latest.clone();
    tokio::select! {
        () = answer_all(listener, latest, render) => {}
        () = async { while publisher.changed().await.is_ok() {} } => {}
    }
}

async fn answer_all<T: Send + Sync + 'static>(
    listener: tokio::net::TcpListener,
    latest: Latest<T>,
    render: fn(&T) -> String,
) {
    let clients = Arc::new(Semaphore::new(CLIENTS));
    // Nobody closes the semaphore.
    while let Ok(turn) = clients.clone().acquire_owned().await {
        // Without a descriptor to spare the connection stays in the queue, and the pause keeps us from spinning.
        if let Ok((stream, _)) = listener.accept().await {
            let latest = latest.clone();
            tokio::spawn(async move {
                converse(stream, latest, render).await;
                drop(turn);
            });
        }
        sleep(PAUSE).await;
    }
}

/// One request and its answer; a client that wants more connects again.
async fn converse<T: Send + Sync + 'static>(stream: TcpStream, latest: Latest<T>, render: fn(&T) -> String) {
    let service = service_fn(|request: Request<_>| {
        let figures = || {
            // Let go before rendering: the session publishes through the same lock.
            let latest = latest.borrow().clone();
            latest.map(|figures| render(&figures))
        };
        std::future::ready(Ok::<_, Infallible>(answer(&request, figures)))
    });
    let connection = http1::Builder::new()
        .keep_alive(false)
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_WITHIN)
        .max_buf_size(HEAD_LIMIT_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    // Whatever went wrong is the client's affair.
    let _ = timeout(ANSWER_WITHIN, connection).await;
}

fn answer<B>(request: &Request<B>, figures: impl Fn() -> Option<String>) -> Response<String> {
    let sentence = |status, sentence: &str| response(status, PLAIN, format!("{sentence}\n"));
    if request.uri().path() != "/metrics" {
        return sentence(StatusCode::NOT_FOUND, "the figures are at /metrics");
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut refusal = sentence(StatusCode::METHOD_NOT_ALLOWED, "the figures can only be read");
        refusal.headers_mut().insert(ALLOW, hyper::header::HeaderValue::from_static("GET, HEAD"));
        return refusal;
    }
    if !accepts_openmetrics(request.headers()) {
        let only = format!("the figures come as {OPENMETRICS} only");
        return sentence(StatusCode::NOT_ACCEPTABLE, &only);
    }
    match figures() {
        Some(text) => response(StatusCode::OK, OPENMETRICS, text),
        None => sentence(StatusCode::SERVICE_UNAVAILABLE, "nothing was measured yet"),
    }
}

fn response(status: StatusCode, kind: &'static str, body: String) -> Response<String> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(kind));
    response
}

/// Whether the client takes what there is, as far as it says anything.
fn accepts_openmetrics(headers: &HeaderMap) -> bool {
    let mut ranges = headers.get_all(ACCEPT).iter().flat_map(|value| value.as_bytes().split(|b| *b == b','));
    !headers.contains_key(ACCEPT) || ranges.any(|range| takes(&String::from_utf8_lossy(range)))
}

/// Whether one media range, its weight included, takes OpenMetrics.
fn takes(range: &str) -> bool {
    let mut parts = range.split(';').map(|part| part.trim().to_ascii_lowercase());
    let kind = parts.next().unwrap_or_default();
    let refused = parts
        .filter_map(|part| part.strip_prefix("q=").and_then(|weight| weight.trim().parse::<f32>().ok()))
        .any(|weight| weight == 0.0);
    matches!(kind.as_str(), "application/openmetrics-text" | "application/*" | "*/*") && !refused
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

    use super::*;

    fn ask(method: &str, path: &str, accept: Option<&str>) -> Response<String> {
        let mut request = Request::builder().method(method).uri(path);
        if let Some(accept) = accept {
            request = request.header(ACCEPT, accept);
        }
        answer(&request.body(()).unwrap(), || Some("# EOF\n".into()))
    }

    #[test]
    fn what_is_asked_for_wrongly_is_told_in_a_sentence() {
        assert_eq!(ask("GET", "/metrics?x=1", None).status(), 200);
        assert_eq!(ask("HEAD", "/metrics", None).status(), 200);
        for (method, path, status) in [
            ("GET", "/", 404),
            ("GET", "/metrics/", 404),
            ("POST", "/other", 404),
            ("POST", "/metrics", 405),
            ("DELETE", "/metrics", 405),
        ] {
            let refusal = ask(method, path, None);
            assert_eq!(refusal.status(), status, "{method} {path}");
            assert_eq!(refusal.headers()[CONTENT_TYPE], PLAIN);
            assert_eq!(refusal.headers().contains_key(ALLOW), status == 405);
        }
        let request = Request::builder().uri("/metrics").body(()).unwrap();
        assert_eq!(answer(&request, || None).status(), 503);
    }

    #[test]
    fn a_client_gets_openmetrics_unless_it_says_no() {
        let prometheus = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
            application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=0.0.4;q=0.4,*/*;q=0.3";
        let browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
        for yes in
            [prometheus, browser, "*/*", "Application/OpenMetrics-Text", "application/*", "a/b, */* ; q=0.1"]
        {
            let answered = ask("GET", "/metrics", Some(yes));
            assert_eq!(answered.status(), 200, "{yes}");
            assert_eq!(answered.headers()[CONTENT_TYPE], OPENMETRICS);
        }
        for no in
            ["", "text/plain", "text/*, image/png", "*/*;q=0", "application/openmetrics-text; q=0.0", ";;,,"]
        {
            assert_eq!(ask("GET", "/metrics", Some(no)).status(), 406, "{no:?}");
        }
    }
}
