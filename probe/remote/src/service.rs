//! The client of HTTP with which object_store speaks, with a bound on what an answer may have.
//!
//! object_store reads bodies as they come, and makes text of what is no success: here a body has no more bytes than were asked for, and
//! what a store answers otherwise is an error with a type.

use crate::http::{Times, client, direct};
use hyper::body::{Body, Bytes};
use hyper::header::{HeaderMap, RANGE, RETRY_AFTER};
use hyper::{StatusCode, Uri};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody,
    HttpService,
};
use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::LazyLock;
use std::time::Duration;

/// Of an answer that is no success: so much of it is looked at.
const MOST_ERROR_BYTES: usize = 64 << 10;
/// Of an answer to what asks for no range, as for a token.
const MOST_OTHER_BYTES: usize = 1 << 20;
const MOST_WORD_BYTES: usize = 64;

/// An answer that is no success.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the store answered {status}")]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// The store's own word for it, as `NoSuchKey`.
    pub(crate) code: Option<String>,
    /// How long it asks to wait.
    pub(crate) after: Option<Duration>,
    /// The region in which it has the bucket.
    pub(crate) region: Option<String>,
}

/// There is no service on this machine that gives credentials.
#[derive(Debug, thiserror::Error)]
#[error("no credentials of this machine: {0}")]
pub(crate) struct NoCredentials(String);

#[derive(Debug)]
pub(crate) struct Connector(pub(crate) Times);

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let endpoint = std::env::var("AWS_METADATA_ENDPOINT").ok().and_then(|endpoint| endpoint.parse().ok());
        let (options, times) = (options.clone(), self.0);
        let client = client(&options, times)?;
        // Most need none, and it reads the system's certificates.
        let direct = LazyLock::new(Box::new(move || direct(&options, times)) as MakesDirect);
        Ok(HttpClient::new(Bounded { client, direct, endpoint }))
    }
}

type MakesDirect = Box<dyn FnOnce() -> object_store::Result<HttpClient> + Send>;

#[derive(Debug)]
struct Bounded {
    client: HttpClient,
    /// By no proxy.
    direct: LazyLock<object_store::Result<HttpClient>, MakesDirect>,
    /// Of the service that gives this machine credentials, where it is another one.
    endpoint: Option<Uri>,
}

type Answered<'a> = Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'a>>;

impl HttpService for Bounded {
    fn call<'a, 'b>(&'a self, request: HttpRequest) -> Answered<'b>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(async move {
            let asked = asked(request.headers());
            let authority = |uri: &Uri| uri.authority().cloned();
            let is_named = self
                .endpoint
                .as_ref()
                .and_then(authority)
                .is_some_and(|own| authority(request.uri()) == Some(own));
            let of_machine = is_named || is_of_machine(request.uri());
            let client = match of_machine || is_here(request.uri()) {
                false => &self.client,
                true => self.direct.as_ref().map_err(|error| {
                    HttpError::new(HttpErrorKind::Unknown, std::io::Error::other(error.to_string()))
                })?,
            };
            let answer = client.execute(request).await;
            let (parts, body) = match answer {
                Err(error) if of_machine => {
                    return Err(HttpError::new(error.kind(), NoCredentials(error.to_string())));
                }
                other => other?.into_parts(),
            };
            // What these answer object_store reads itself.
            if of_machine {
                if parts.status == StatusCode::NOT_FOUND {
                    return Err(HttpError::new(HttpErrorKind::Unknown, NoCredentials("404".into())));
                }
                let bytes = collected(body, MOST_OTHER_BYTES).await?;
                return Ok(HttpResponse::from_parts(parts, bytes.into()));
            }
            // Without the range there may be any number of bytes.
            let is_whole = asked.is_some() && parts.status != StatusCode::PARTIAL_CONTENT;
            if !parts.status.is_success() || is_whole {
                let body =
                    if is_whole && parts.status.is_success() { Vec::new() } else { begin_of(body).await };
                let answer = Answer {
                    status: parts.status.as_u16(),
                    code: code_in(&String::from_utf8_lossy(&body)),
                    after: seconds_in(&parts.headers),
                    region: word_in(&parts.headers, "x-amz-bucket-region"),
                };
                return Err(HttpError::new(HttpErrorKind::Unknown, answer));
            }
            let bytes = collected(body, asked.unwrap_or(MOST_OTHER_BYTES)).await?;
            Ok(HttpResponse::from_parts(parts, bytes.into()))
        })
    }
}

/// How many bytes a request asks for; none where it asks for no range.
fn asked(headers: &HeaderMap) -> Option<usize> {
    let range = headers.get(RANGE)?.to_str().ok()?.strip_prefix("bytes=")?;
    let (begin, end) = range.split_once('-')?;
    let (begin, end): (u64, u64) = (begin.parse().ok()?, end.parse().ok()?);
    usize::try_from(end.checked_sub(begin)?.checked_add(1)?).ok()
}

/// Where clouds give the credentials of a machine.
fn is_of_machine(uri: &Uri) -> bool {
    uri.host().is_some_and(|host| {
        host.starts_with("169.254.") || host == "metadata.google.internal" || host.starts_with("[fd00:ec2:")
    })
}

/// Whether it is on this machine.
fn is_here(uri: &Uri) -> bool {
    uri.host().is_some_and(|host| {
        let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
    })
}

async fn next(body: &mut HttpResponseBody) -> Option<Result<Bytes, HttpError>> {
    loop {
        let frame = poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await?;
        match frame.map(hyper::body::Frame::into_data) {
            Ok(Ok(bytes)) => return Some(Ok(bytes)),
            // No data.
            Ok(Err(_)) => {}
            Err(error) => return Some(Err(error)),
        }
    }
}

async fn collected(mut body: HttpResponseBody, most: usize) -> Result<Vec<u8>, HttpError> {
    let expected = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX).min(most);
    let mut bytes = Vec::with_capacity(expected);
    while let Some(more) = next(&mut body).await {
        let more = more?;
        if more.len() > most - bytes.len() {
            let error = std::io::Error::other("the answer has more bytes than were asked for");
            return Err(HttpError::new(HttpErrorKind::Decode, error));
        }
        bytes.extend_from_slice(&more);
    }
    Ok(bytes)
}

/// Of an error, as far as it comes.
async fn begin_of(mut body: HttpResponseBody) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Some(Ok(more)) = next(&mut body).await {
        bytes.extend_from_slice(&more[..more.len().min(MOST_ERROR_BYTES - bytes.len())]);
        if bytes.len() == MOST_ERROR_BYTES {
            break;
        }
    }
    bytes
}

fn seconds_in(headers: &HeaderMap) -> Option<Duration> {
    let seconds: u64 = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

fn word_in(headers: &HeaderMap, name: &str) -> Option<String> {
    word(headers.get(name)?.to_str().ok()?)
}

/// Of an answer in XML.
fn code_in(text: &str) -> Option<String> {
    let (_, rest) = text.split_once("<Code>")?;
    word(rest.split_once("</Code>")?.0)
}

/// What a store calls something: nothing else of it goes into a sentence.
fn word(text: &str) -> Option<String> {
    let is_word = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '.' | '_');
    ((1..=MOST_WORD_BYTES).contains(&text.len()) && text.chars().all(is_word)).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

    use super::*;
    use hyper::body::Frame;
    use hyper::header::HeaderValue;
    use std::task::{Context, Poll};

    /// Pieces that come one by one.
    struct Pieces(Vec<&'static [u8]>);

    impl Body for Pieces {
        type Data = Bytes;
        type Error = HttpError;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
            let piece = self.0.pop();
            Poll::Ready(piece.map(|piece| Ok(Frame::data(Bytes::from_static(piece)))))
        }
    }

    fn run<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    #[test]
    fn no_answer_has_more_bytes_than_were_asked_for() {
        let body = || HttpResponseBody::new(Pieces(vec![b"de", b"abc"]));
        assert_eq!(run(collected(body(), 5)).unwrap(), b"abcde");
        let error = run(collected(body(), 4)).unwrap_err();
        assert_eq!(error.kind(), HttpErrorKind::Decode);
        let mut headers = HeaderMap::new();
        assert_eq!(asked(&headers), None);
        for (range, bytes) in [
            ("bytes=0-0", Some(1)),
            ("bytes=64-99", Some(36)),
            ("bytes=5-4", None),
            ("bytes=0-18446744073709551615", None),
            ("bytes=-5", None),
        ] {
            headers.insert(RANGE, HeaderValue::from_static(range));
            assert_eq!(asked(&headers), bytes, "{range}");
        }
    }

    #[test]
    fn of_an_error_only_words_are_taken() {
        let code = |text: &str| code_in(text);
        assert_eq!(code("<Error><Code>NoSuchKey</Code><Key>k</Key></Error>").as_deref(), Some("NoSuchKey"));
        for text in ["", "<Code>", "<Code></Code>", "<Code>\u{1b}[2J</Code>", "<Code>a b</Code>"] {
            assert_eq!(code(text), None, "{text:?}");
        }
        assert_eq!(code(&format!("<Code>{}</Code>", "a".repeat(65))), None);
        let long: &'static [u8] = &[b'x'; 100_000];
        assert_eq!(run(begin_of(HttpResponseBody::new(Pieces(vec![long, long])))).len(), MOST_ERROR_BYTES);
    }
}
