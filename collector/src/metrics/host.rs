//! Under which name a loopback address was asked: a page of another site, in a browser of this machine, may have its own name
//! lead here, and then read what it is answered (DNS rebinding). Numbers and names of this machine can't be led elsewhere.

use hyper::HeaderMap;
use hyper::header::HOST;
use std::net::IpAddr;

pub(super) const ELSEWHERE: &str =
    "the figures are this machine's own; ask for them at 127.0.0.1, localhost or the machine's name";

/// What this machine is called.
#[derive(Debug)]
pub(super) struct OwnName(String);

impl OwnName {
    /// To be asked before there is no right to any more.
    pub(super) fn find() -> OwnName {
        OwnName(rustix::system::uname().nodename().to_string_lossy().into_owned())
    }

    /// Whether the request was for a name of this machine, or for none: browsers say one.
    pub(super) fn is_asked(&self, headers: &HeaderMap) -> bool {
        headers.get_all(HOST).iter().all(|host| host.to_str().is_ok_and(|host| self.is_own(host)))
    }

    fn is_own(&self, host: &str) -> bool {
        let in_brackets =
            host.strip_prefix('[').and_then(|host| host.split_once(']')).map(|(address, _)| address);
        let name = in_brackets.or_else(|| host.split(':').next()).unwrap_or_default();
        let is_name = |own: &str| !name.is_empty() && name.eq_ignore_ascii_case(own);
        name.parse::<IpAddr>().is_ok()
            || is_name("localhost")
            || name.to_ascii_lowercase().ends_with(".localhost")
            || is_name(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_may_lead_elsewhere_are_not_this_machines() {
        let node = OwnName("node7".into());
        for own in [
            "127.0.0.1",
            "127.0.0.1:9400",
            "[::1]:9400",
            "localhost",
            "LocalHost:9400",
            "node7:9400",
            "a.localhost",
        ] {
            assert!(node.is_own(own), "{own}");
        }
        for other in [
            "",
            ":9400",
            "evil.example",
            "evil.example:9400",
            "node7.evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "[evil]:1",
        ] {
            assert!(!node.is_own(other), "{other}");
        }
    }
}
