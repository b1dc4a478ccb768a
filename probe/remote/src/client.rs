//! What one process has to speak to a store: connections, and the times that it has seen.
//!
//! The runtime has no thread of its own: it runs in the threads that read, for as long as they do. So the kernel sees a worker that waits for
//! the store wait for the network, and a process that is forked lacks no thread.

use crate::fetch::{Part, part};
use crate::http::Times;
use crate::location::{Kind, Location};
use crate::patience::Seen;
use crate::service::Connector;
use crate::trouble::Trouble;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::client::ClientConfigKey;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::http::HttpBuilder;
use object_store::path::Path;
use object_store::{ObjectStore, RetryConfig};
use stallscope_pack::Got;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

/// More is read by several requests at once.
const MOST_PART_BYTES: u64 = 8 << 20;
/// Requests in flight, of one process.
const MOST_IN_FLIGHT: usize = 32;
const LONGEST_CONNECTING: Duration = Duration::from_secs(5);
/// Without a byte: the connection is taken for lost, and another one is tried.
const LONGEST_SILENCE: Duration = Duration::from_secs(10);
/// How often a signal is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(100);

static INTERRUPT: OnceLock<fn() -> bool> = OnceLock::new();

/// While a read waits, `is_interrupted` is called again and again in its thread; where it gives true the read ends.
pub fn interrupt_by(is_interrupted: fn() -> bool) {
    // The first one stays.
    let _ = INTERRUPT.set(is_interrupted);
}

/// What all clients of a process share.
pub(crate) fn prepare() {
    // One that is there already is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

#[derive(Debug)]
pub(crate) struct Client {
    /// Of the process that it is for.
    pub(crate) generation: u64,
    /// None while it is dropped.
    runtime: Option<Runtime>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) folder: Path,
    pub(crate) permits: Semaphore,
    pub(crate) longest: Duration,
    seen: Mutex<Seen>,
    /// What each object is by the store (ETag), once it was read: a number made of it, as a store may call it anything.
    tags: Mutex<HashMap<String, u64>>,
    chances: RandomState,
}

impl Shared {
    pub(crate) fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tags(&self) -> MutexGuard<'_, HashMap<String, u64>> {
        self.tags.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether an object is the one that was read first; stores that do not name it are believed.
    pub(crate) fn is_same(&self, name: &str, tag: Option<String>) -> bool {
        let Some(tag) = tag.map(|tag| self.chances.hash_one(tag)) else { return true };
        let mut tags = self.tags();
        match tags.get(name) {
            Some(first) => *first == tag,
            None => {
                tags.insert(name.to_owned(), tag);
                true
            }
        }
    }

    /// From 0 to 1.
    pub(crate) fn chance(&self) -> f64 {
        let mut hasher = self.chances.build_hasher();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        hasher.write_u128(now.as_nanos());
        hasher.write_u32(std::process::id());
        hasher.finish() as f64 / u64::MAX as f64
    }
}

impl Client {
    pub(crate) fn new(location: &Location, longest: Duration, generation: u64) -> Result<Client, Trouble> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Trouble::Other(error.to_string()))?;
        let store = opened(location, longest).map_err(|error| Trouble::of(&error))?;
        let shared = Shared {
            store,
            folder: location.folder.clone(),
            permits: Semaphore::new(MOST_IN_FLIGHT),
            longest,
            seen: Mutex::new(Seen::new()),
            tags: Mutex::default(),
            chances: RandomState::new(),
        };
        Ok(Client { generation, runtime: Some(runtime), shared: Arc::new(shared) })
    }

    /// Several ranges at once, in their order; those that are long by several requests.
    pub(crate) fn read(&self, wanted: Vec<Part>) -> Vec<Result<Got, Trouble>> {
        let mut pieces = Vec::new();
        for (number, one) in wanted.iter().enumerate() {
            let mut begin = one.range.start;
            while begin < one.range.end {
                let end = one.range.end.min(begin.saturating_add(MOST_PART_BYTES));
                pieces.push((number, Part { name: one.name.clone(), range: begin..end }));
                begin = end;
            }
        }
        let numbers: Vec<usize> = pieces.iter().map(|(number, _)| *number).collect();
        let found = self.each(pieces.into_iter().map(|(_, piece)| piece).collect());
        let mut whole: Vec<Result<Got, Trouble>> =
            wanted.iter().map(|_| Ok(Got { bytes: Vec::new(), size: 0 })).collect();
        for (number, piece) in numbers.into_iter().zip(found) {
            let so_far = std::mem::replace(&mut whole[number], Err(Trouble::Interrupted));
            whole[number] = match (so_far, piece) {
                (Ok(so_far), Ok(piece)) if so_far.bytes.is_empty() => Ok(piece),
                (Ok(mut so_far), Ok(piece)) => {
                    so_far.bytes.extend_from_slice(&piece.bytes);
                    Ok(so_far)
                }
                // Behind the end there is nothing more.
                (Ok(so_far), Err(Trouble::Short)) if !so_far.bytes.is_empty() => Ok(so_far),
                (Err(trouble), _) | (_, Err(trouble)) => Err(trouble),
            };
        }
        whole
    }

    /// All of an object that has no more than so many bytes.
    pub(crate) fn whole(&self, name: &str, most_bytes: u64) -> Result<Vec<u8>, Trouble> {
        let part = |range| Part { name: name.to_owned(), range };
        let read = || {
            // Another one may have taken its place meanwhile.
            self.shared.tags().remove(name);
            let first = self.read(vec![part(0..MOST_PART_BYTES)]).pop().unwrap_or(Err(Trouble::Gone))?;
            if first.size > most_bytes {
                return Err(Trouble::TooLarge { bytes: first.size, most_bytes });
            }
            let mut bytes = first.bytes;
            while (bytes.len() as u64) < first.size {
                // As far as memory is filled by what came: the store may name any size.
                let begin = bytes.len() as u64;
                let end = first.size.min(begin + MOST_IN_FLIGHT as u64 * MOST_PART_BYTES);
                let more = self.read(vec![part(begin..end)]).pop().unwrap_or(Err(Trouble::Gone))?;
                if more.bytes.is_empty() {
                    return Err(Trouble::Changed);
                }
                bytes.extend_from_slice(&more.bytes);
            }
            Ok(bytes)
        };
        match read() {
            Err(Trouble::Changed) => read(),
            found => found,
        }
    }

    /// Each by one request, many at once, in their order.
    fn each(&self, parts: Vec<Part>) -> Vec<Result<Got, Trouble>> {
        let mut found: Vec<Option<Result<Got, Trouble>>> = parts.iter().map(|_| None).collect();
        let lost = || Trouble::Other("the request was lost".into());
        let ended = self.runtime.as_ref().map_or_else(lost, |runtime| {
            runtime.block_on(async {
                let mut under_way = JoinSet::new();
                for (number, one) in parts.into_iter().enumerate() {
                    let shared = self.shared.clone();
                    under_way.spawn(async move { (number, part(&shared, &one).await) });
                }
                let mut looks = tokio::time::interval(LOOK_EVERY);
                looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
                looks.tick().await;
                loop {
                    tokio::select! {
                        biased;
                        done = under_way.join_next() => match done {
                            // The others would wait as long: what is read together ends together.
                            Some(Ok((_, Err(Trouble::TooLate(last))))) => break Trouble::TooLate(last),
                            Some(Ok((number, one))) => found[number] = Some(one),
                            Some(Err(_)) => {}
                            None => break lost(),
                        },
                        _ = looks.tick() => if INTERRUPT.get().is_some_and(|is_interrupted| is_interrupted()) {
                            found.fill(None);
                            break Trouble::Interrupted;
                        },
                    }
                }
            })
        });
        found.into_iter().map(|one| one.unwrap_or_else(|| Err(ended.clone()))).collect()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // A name that is being looked up is not waited for.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// By the environment, as the store's own programs take it.
fn opened(location: &Location, longest: Duration) -> object_store::Result<Arc<dyn ObjectStore>> {
    // What is tried again is decided here.
    let retry = RetryConfig { max_retries: 0, retry_timeout: longest, ..RetryConfig::default() };
    let url = location.url();
    // Who names a server without TLS means it.
    let plain = is_without_tls(location).then(|| "true".to_owned());
    let times = Times {
        all: longest,
        connecting: LONGEST_CONNECTING.min(longest),
        silence: LONGEST_SILENCE.min(longest / 2),
    };
    Ok(match location.kind {
        Kind::Amazon => {
            let mut builder = AmazonS3Builder::from_env().with_url(url).with_retry(retry);
            if let Some(yes) = plain {
                builder = builder.with_config(AmazonS3ConfigKey::Client(ClientConfigKey::AllowHttp), yes);
            }
            Arc::new(builder.with_http_connector(Connector(times)).build()?)
        }
        Kind::Google => {
            let builder = GoogleCloudStorageBuilder::from_env().with_url(url).with_retry(retry);
            Arc::new(builder.with_http_connector(Connector(times)).build()?)
        }
        Kind::Azure => {
            let builder = MicrosoftAzureBuilder::from_env().with_url(url).with_retry(retry);
            Arc::new(builder.with_http_connector(Connector(times)).build()?)
        }
        Kind::Http => {
            let mut builder =
                HttpBuilder::new().with_url(&location.url[..url::Position::BeforePath]).with_retry(retry);
            if let Some(yes) = plain {
                builder = builder.with_config(ClientConfigKey::AllowHttp, yes);
            }
            Arc::new(builder.with_http_connector(Connector(times)).build()?)
        }
    })
}

fn is_without_tls(location: &Location) -> bool {
    let endpoint = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"].map(std::env::var);
    let endpoint = endpoint.into_iter().find_map(Result::ok).unwrap_or_default();
    match location.kind {
        Kind::Amazon => endpoint.starts_with("http://"),
        Kind::Http => location.url.scheme() == "http",
        Kind::Google | Kind::Azure => false,
    }
}
