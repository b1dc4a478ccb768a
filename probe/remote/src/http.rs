//! The client of HTTP, with what a store may not do by it: it sends nobody elsewhere. object_store's own follows where a store redirects, and
//! takes all headers along but the signature: a token of the session went to whatever server it named, and what only this machine
//! reaches could be asked by any store.

use object_store::ClientOptions;
use object_store::client::{ClientConfigKey, HttpClient};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::redirect::Policy;
use reqwest::{Certificate, ClientBuilder, NoProxy, Proxy};
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// What is on this machine, or next to it, answers soon.
const LONGEST_CONNECTING_HERE: Duration = Duration::from_secs(2);

/// As object_store takes it from the environment.
const YES: [&str; 5] = ["1", "true", "on", "yes", "y"];

/// How long a client waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) all: Duration,
    pub(crate) connecting: Duration,
    /// Without a byte.
    pub(crate) silence: Duration,
}

fn begun(options: &ClientOptions, times: Times) -> ClientBuilder {
    let is_set =
        |key| options.get_config_value(&key).is_some_and(|value| YES.contains(&&*value.to_lowercase()));
    ClientBuilder::new()
        .redirect(Policy::none())
        // As object_store has it: a connection for each request in flight is faster.
        .http1_only()
        .user_agent(concat!("stallscope/", env!("CARGO_PKG_VERSION")))
        .timeout(times.all)
        .connect_timeout(times.connecting)
        .read_timeout(times.silence)
        .https_only(!is_set(ClientConfigKey::AllowHttp))
        .tls_danger_accept_invalid_certs(is_set(ClientConfigKey::AllowInvalidCertificates))
}

/// By the proxies that the environment names.
pub(crate) fn client(options: &ClientOptions, times: Times) -> object_store::Result<HttpClient> {
    let mut builder = begun(options, times).dns_resolver(Arc::new(Spread));
    let value = |key| options.get_config_value(&key);
    if let Some(proxy) = value(ClientConfigKey::ProxyUrl) {
        let excluded = value(ClientConfigKey::ProxyExcludes);
        let excluded = excluded.and_then(|excluded| NoProxy::from_string(&excluded));
        builder = builder.proxy(Proxy::all(proxy).map_err(wrong)?.no_proxy(excluded));
    }
    if let Some(certificate) = value(ClientConfigKey::ProxyCaCertificate) {
        builder = builder.tls_certs_merge([Certificate::from_pem(certificate.as_bytes()).map_err(wrong)?]);
    }
    Ok(HttpClient::new(builder.build().map_err(wrong)?))
}

/// To what is on this machine or gives it credentials, by no proxy: a proxy would be handed what is for this machine, or ask its own.
pub(crate) fn direct(options: &ClientOptions, times: Times) -> object_store::Result<HttpClient> {
    let times = Times { connecting: times.connecting.min(LONGEST_CONNECTING_HERE), ..times };
    Ok(HttpClient::new(begun(options, times).no_proxy().build().map_err(wrong)?))
}

fn wrong(error: reqwest::Error) -> object_store::Error {
    object_store::Error::Generic { store: "HTTP", source: Box::new(error) }
}

/// A store has many addresses, and not all workers are to go to the first.
struct Spread;

impl Resolve for Spread {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let mut found: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            let chance = RandomState::new().hash_one(0) as usize;
            let first = chance.checked_rem(found.len()).unwrap_or_default();
            found.rotate_left(first);
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}
