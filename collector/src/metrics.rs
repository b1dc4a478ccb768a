//! Figures for Prometheus over HTTP, from a thread of their own: no client, however slow or hostile, can hold up a
//! session or cost the node more than a bounded part of a core.

mod address;
mod clients;
mod host;
mod page;
mod peer;
mod token;

pub use address::metrics_address;
pub use token::Token;

use anyhow::{Result, anyhow};
use clients::Clients;
use host::OwnName;
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderName, HeaderValue, WWW_AUTHENTICATE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use page::Page;
use peer::Peers;
use std::convert::Infallible;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

/// Connections that the kernel takes up for us while we are busy with others.
const QUEUE: i32 = 4096;
/// Between two looks at which peers have connected: at least so long, and four times as long as the last took, so that many
/// connections a second cost a part of a core.
const PAUSE: Duration = Duration::from_millis(2);
const LOOK_FOR: Duration = Duration::from_millis(10);
/// How long a client may take to say what it wants, and to have its answer.
const HEAD_WITHIN: Duration = Duration::from_secs(1);
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// The least that hyper can do with.
const HEAD_LIMIT_BYTES: usize = 8192;

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN: &str = "text/plain; charset=utf-8";

/// Where to serve figures, to which user, and how they are written.
#[derive(Clone, Debug)]
pub struct Metrics<T> {
    /// Port 0 means any that is free.
    pub address: SocketAddr,
    /// Figures as OpenMetrics text 1.0.
    pub render: fn(&T) -> String,
    /// Without one, to everybody who can connect.
    pub token: Option<Token>,
}

/// An address that is ours, at which nobody is answered yet.
#[derive(Debug)]
pub(crate) struct Bound<T> {
    listener: TcpListener,
    peers: Peers,
    own_name: OwnName,
    render: fn(&T) -> String,
    token: Option<Token>,
}

impl<T> Metrics<T> {
    /// # Errors
    /// The address is taken, not ours, or not allowed.
    pub(crate) fn bind(self) -> Result<Bound<T>> {
        let Metrics { address, render, token } = self;
        let listener = TcpListener::bind(address).map_err(|error| {
            let why = in_words(&error, address, token.is_some());
            anyhow!("cannot serve metrics at {address} ({why}); name another, or port 0 for any")
        })?;
        listener.set_nonblocking(true)?;
        // One user's connections are not to fill it.
        rustix::net::listen(&listener, QUEUE)?;
        Ok(Bound { listener, peers: Peers::open(), own_name: OwnName::find(), render, token })
    }
}

/// Why there is no `address` for us. Who has it instead is asked for the figures, and is shown the token for them.
fn in_words(error: &io::Error, address: SocketAddr, has_token: bool) -> String {
    if error.kind() != ErrorKind::AddrInUse {
        return error.kind().to_string();
    }
    let holder = Peers::open().holder_of(address);
    let holder = holder.map_or("another program".to_owned(), |uid| format!("a program of user {uid}"));
    let shown = if has_token { ", to which scrapers show the token: make another one" } else { "" };
    format!("{} by {holder}{shown}", error.kind())
}

/// What was last published, served until this is dropped.
#[derive(Debug)]
pub(crate) struct Publisher<T> {
    latest: watch::Sender<Option<Arc<T>>>,
    address: SocketAddr,
}

/// What clients are answered from.
struct Source<T> {
    latest: watch::Receiver<Option<Arc<T>>>,
    render: fn(&T) -> String,
    /// What was last published, and as it was written: each is written once, however many ask.
    written: Mutex<Option<(Arc<T>, Page)>>,
    token: Option<Token>,
    own_name: OwnName,
}

impl<T> Source<T> {
    fn figures(&self) -> Option<Page> {
        // Let go before rendering: the session publishes through the same lock.
        let latest = self.latest.borrow().clone()?;
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((figures, text)) = &*written
            && Arc::ptr_eq(figures, &latest)
        {
            return Some(text.clone());
        }
        let text = Page::from((self.render)(&latest));
        *written = Some((latest, text.clone()));
        Some(text)
    }
}

impl<T: Send + Sync + 'static> Publisher<T> {
    /// Serves from here on; a client that asks before something was published gets an answer that says so.
    ///
    /// # Errors
    /// There can't be a further thread.
    pub(crate) fn start(bound: Bound<T>) -> Result<Publisher<T>> {
        let Bound { listener, peers, own_name, render, token } = bound;
        let address = listener.local_addr()?;
        let (latest, receiver) = watch::channel(None);
        let source = Source { latest: receiver, render, written: Mutex::new(None), token, own_name };
        let (tell, begun) = std::sync::mpsc::channel();
        std::thread::Builder::new().name("metrics".into()).spawn(move || {
            // The starting thread waits for this, so that sending it can't fail.
            let _ = match listening(listener) {
                Ok((runtime, listener)) => {
                    let sent = tell.send(Ok(()));
                    runtime.block_on(serve(listener, peers, source));
                    sent
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

    /// What was published is no longer so, and nobody knows what is.
    pub(crate) fn withdraw(&self) {
        self.latest.send_replace(None);
    }
}

/// A runtime for this thread, and `listener` as a part of it.
fn listening(listener: TcpListener) -> io::Result<(Runtime, tokio::net::TcpListener)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let listener = {
        let _within = runtime.enter();
        tokio::net::TcpListener::from_std(listener)?
    };
    Ok((runtime, listener))
}

/// Answers clients until the publisher is gone.
async fn serve<T: Send + Sync + 'static>(listener: tokio::net::TcpListener, peers: Peers, source: Source<T>) {
    let mut publisher = source.latest.clone();
    tokio::select! {
        () = answer_all(listener, &peers, Arc::new(source)) => {}
        () = async { while publisher.changed().await.is_ok() {} } => {}
    }
}

async fn answer_all<T: Send + Sync + 'static>(
    listener: tokio::net::TcpListener,
    peers: &Peers,
    source: Arc<Source<T>>,
) {
    let clients = Arc::new(Clients::default());
    loop {
        let first = listener.accept().await;
        let begun = Instant::now();
        let mut next = Some(first);
        // Without a descriptor to spare the connection stays in the queue, and the pause keeps us from spinning.
        while let Some(Ok((stream, address))) = next {
            take_up(stream, address, peers, &clients, &source);
            next = if begun.elapsed() < LOOK_FOR { waiting(&listener).await } else { None };
        }
        sleep(PAUSE.max(begun.elapsed() * 4)).await;
    }
}

/// The peers that have connected by now, if any have.
async fn waiting(listener: &tokio::net::TcpListener) -> Option<io::Result<(TcpStream, SocketAddr)>> {
    std::future::poll_fn(|context| {
        std::task::Poll::Ready(match listener.poll_accept(context) {
            std::task::Poll::Ready(found) => Some(found),
            std::task::Poll::Pending => None,
        })
    })
    .await
}

/// Answers a client whose peer has not more than its share; another's connection ends here.
fn take_up<T: Send + Sync + 'static>(
    stream: TcpStream,
    address: SocketAddr,
    peers: &Peers,
    clients: &Arc<Clients>,
    source: &Arc<Source<T>>,
) {
    let Ok(own) = stream.local_addr() else { return };
    let Some(number) = clients.admit(peers.of(address, own), Instant::now()) else { return };
    let (source, place) = (source.clone(), Place { clients: clients.clone(), number });
    let task = tokio::spawn(async move {
        converse(stream, own, &source).await;
        drop(place);
    });
    clients.is_answered_by(number, task.abort_handle());
}

/// Given back however the conversation ends.
struct Place {
    clients: Arc<Clients>,
    number: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.clients.leaves(self.number);
    }
}

/// One request and its answer; a client that wants more connects again.
async fn converse<T: Send + Sync + 'static>(stream: TcpStream, own: SocketAddr, source: &Source<T>) {
    let service = service_fn(|request: Request<_>| {
        let figures = || source.figures();
        let may_mislead = own.ip().to_canonical().is_loopback();
        let answer = match may_mislead && !source.own_name.is_asked(request.headers()) {
            true => response(StatusCode::MISDIRECTED_REQUEST, PLAIN, format!("{}\n", host::ELSEWHERE).into()),
            false => answer(&request, source.token.as_ref(), figures),
        };
        std::future::ready(Ok::<_, Infallible>(answer))
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

fn answer<B>(
    request: &Request<B>,
    token: Option<&Token>,
    figures: impl Fn() -> Option<Page>,
) -> Response<Page> {
    let sentence = |status, sentence: &str| response(status, PLAIN, format!("{sentence}\n").into());
    let with = |mut refusal: Response<Page>, name: HeaderName, value| {
        refusal.headers_mut().insert(name, HeaderValue::from_static(value));
        refusal
    };
    if token.is_some_and(|token| !token.is_shown_in(request.headers())) {
        let refusal =
            sentence(StatusCode::UNAUTHORIZED, "the figures take the bearer token of --metrics-token");
        return with(refusal, WWW_AUTHENTICATE, "Bearer");
    }
    if request.uri().path() != "/metrics" {
        return sentence(StatusCode::NOT_FOUND, "the figures are at /metrics");
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let refusal = sentence(StatusCode::METHOD_NOT_ALLOWED, "the figures can only be read");
        return with(refusal, ALLOW, "GET, HEAD");
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

fn response(status: StatusCode, kind: &'static str, body: Page) -> Response<Page> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
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
    use hyper::header::AUTHORIZATION;

    fn ask(method: &str, path: &str, accept: Option<&str>) -> Response<Page> {
        let mut request = Request::builder().method(method).uri(path);
        if let Some(accept) = accept {
            request = request.header(ACCEPT, accept);
        }
        answer(&request.body(()).unwrap(), None, || Some("# EOF\n".to_owned().into()))
    }

    #[test]
    fn what_is_asked_for_wrongly_is_answered_with_a_sentence() {
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
        assert_eq!(answer(&request, None, || None).status(), 503);
    }

    #[test]
    fn however_many_clients_read_a_page_it_is_in_memory_once() {
        let (publisher, latest) = watch::channel(Some(Arc::new(7)));
        let render = |figure: &i32| figure.to_string();
        let own_name = OwnName::find();
        let source = Source { latest, render, written: Mutex::new(None), token: None, own_name };
        let request = Request::get("/metrics").body(()).unwrap();
        let served = || answer(&request, None, || source.figures()).into_body().0;
        let pages: Vec<_> = (0..clients::MOST).map(|_| served()).collect();
        assert!(pages.iter().all(|page| &page[..] == b"7" && page.as_ptr() == pages[0].as_ptr()));
        publisher.send_replace(Some(Arc::new(8)));
        assert_eq!(&served()[..], b"8");
    }

    #[test]
    fn who_has_the_port_is_named_and_what_they_were_shown() {
        let theirs = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = theirs.local_addr().unwrap();
        let refusal = |token| {
            let render = |_: &()| String::new();
            Metrics { address, render, token }.bind().unwrap_err().to_string()
        };
        let shown = refusal(Some(Token("s3cret".into())));
        assert!(shown.contains("show the token: make another one"), "{shown}");
        assert!(!shown.contains("s3cret"), "{shown}");
        let plain = refusal(None);
        assert!(plain.contains("address in use by ") && !plain.contains("token"), "{plain}");
        // Where the kernel answers at all.
        let own = Peers::open().holder_of(address);
        assert_eq!(
            own.is_some(),
            plain.contains(&format!("user {}", rustix::process::geteuid().as_raw())),
            "{plain}"
        );
    }

    #[test]
    fn with_a_token_nothing_is_answered_without_it() {
        let token = Token("s3cret".into());
        let ask = |path: &str, shown: Option<&str>| {
            let mut request = Request::builder().uri(path);
            if let Some(shown) = shown {
                request = request.header(AUTHORIZATION, shown);
            }
            answer(&request.body(()).unwrap(), Some(&token), || Some("# EOF\n".to_owned().into()))
        };
        for right in ["Bearer s3cret", "bearer s3cret"] {
            assert_eq!(ask("/metrics", Some(right)).status(), 200, "{right}");
        }
        for wrong in [
            "",
            "Bearer",
            "Bearer ",
            "s3cret",
            "Basic s3cret",
            "Bearer s3cre",
            "Bearer s3cret2",
            "Bearer S3cret",
        ] {
            let refusal = ask("/metrics", Some(wrong));
            assert_eq!(
                (refusal.status(), &refusal.headers()[WWW_AUTHENTICATE]),
                (StatusCode::UNAUTHORIZED, &HeaderValue::from_static("Bearer")),
                "{wrong}"
            );
        }
        // Not even what there would be.
        assert_eq!(ask("/other", None).status(), 401);
        assert!(!format!("{token:?}").contains("s3cret"));
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
