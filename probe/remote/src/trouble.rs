//! Why something could not be read from a store, whether it is worth trying again, and the sentence on it.

use crate::as_io;
use crate::location::{Kind, Location};
use crate::service::{Answer, NoCredentials};
use object_store::client::HttpError;
use stallscope_pack::Error;
use std::error::Error as StdError;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    Gone,
    NoBucket,
    /// It is another object than when it was read first.
    Changed,
    /// It ends before what was asked for.
    Short,
    /// It has more than is read of it.
    TooLarge {
        bytes: u64,
        most_bytes: u64,
    },
    /// The server gives objects whole.
    NoRanges,
    NoCredentials,
    WrongCredentials(String),
    Denied(String),
    OtherRegion(Option<String>),
    Untrusted(String),
    /// What another try may get: the store is busy, or the connection was lost.
    Passing {
        what: String,
        after: Option<Duration>,
    },
    /// All of the time is over; what was wrong at last.
    TooLate(Option<String>),
    Interrupted,
    Other(String),
}

/// Codes of stores for credentials that are not valid, at whatever status.
const WRONG: [&str; 9] = [
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "ExpiredToken",
    "InvalidToken",
    "TokenRefreshRequired",
    "RequestTimeTooSkewed",
    "AuthenticationFailed",
    "InvalidAuthenticationInfo",
    "InvalidSecurity",
];
const OF_BUCKETS: [&str; 3] = ["NoSuchBucket", "ContainerNotFound", "InvalidBucketName"];
const OF_REGIONS: [&str; 3] =
    ["PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"];

/// Characters of an error that are shown.
const MOST_SHOWN: usize = 300;

impl Trouble {
    pub(crate) fn of(error: &object_store::Error) -> Trouble {
        let chain = || sources(error);
        if let Some(answer) = chain().find_map(|error| error.downcast_ref::<Answer>()) {
            return Trouble::of_answer(answer);
        }
        if chain().any(|error| error.is::<NoCredentials>()) {
            return Trouble::NoCredentials;
        }
        // What lies deepest says most.
        let what = shown(&chain().last().map_or_else(|| error.to_string(), ToString::to_string));
        let is_of_http = chain().any(|error| error.is::<HttpError>());
        if is_of_http && what.to_ascii_lowercase().contains("certificate") {
            return Trouble::Untrusted(what);
        }
        // The service of a machine answers that it has none for it.
        if chain().any(|error| error.to_string().contains("169.254.169.254")) {
            return Trouble::NoCredentials;
        }
        match is_of_http {
            true => Trouble::passing(what),
            false => Trouble::Other(what),
        }
    }

    fn of_answer(answer: &Answer) -> Trouble {
        let Answer { status, code, after, region } = answer;
        let word = code.as_deref().unwrap_or_default();
        let named = match word {
            "" => status.to_string(),
            word => format!("{status} {word}"),
        };
        match status {
            200..=299 => Trouble::NoRanges,
            _ if WRONG.contains(&word) => Trouble::WrongCredentials(word.to_owned()),
            _ if OF_BUCKETS.contains(&word) => Trouble::NoBucket,
            300..=399 => Trouble::OtherRegion(region.clone()),
            _ if OF_REGIONS.contains(&word) => Trouble::OtherRegion(region.clone()),
            401 => Trouble::WrongCredentials(named),
            403 => Trouble::Denied(named),
            404 | 410 => Trouble::Gone,
            412 => Trouble::Changed,
            416 => Trouble::Short,
            408 | 429 | 500..=599 => Trouble::Passing { what: named, after: *after },
            _ => Trouble::Other(format!("the store answered {named}")),
        }
    }

    pub(crate) fn passing(what: impl Into<String>) -> Trouble {
        Trouble::Passing { what: what.into(), after: None }
    }

    /// The error of it: a sentence that names the object and the way out.
    pub(crate) fn about(self, location: &Location, path: &Path, longest: Duration) -> Error {
        let shown = path.display();
        let refused = |what: String| Error::Refused(format!("cannot read {shown}: {what}"));
        let kind = location.kind;
        match self {
            Trouble::Gone => as_io(path, ErrorKind::NotFound, "there is no such object".into()),
            Trouble::Changed => as_io(
                path,
                ErrorKind::StaleNetworkFileHandle,
                "it was replaced since it was read first; what a pack has is never changed in place: open the pack anew".into(),
            ),
            Trouble::Short => Error::Damaged { path: path.to_owned(), what: "it is cut".into() },
            Trouble::NoBucket => refused(format!(
                "there is no bucket {}; {}",
                location.bucket(),
                match kind {
                    Kind::Amazon => "look at its name, and at AWS_ENDPOINT_URL where it is not Amazon's",
                    _ => "look at its name, and at the account that the environment names",
                }
            )),
            Trouble::TooLarge { bytes, most_bytes } => refused(format!(
                "by the store it has {bytes} bytes, and at most {most_bytes} are taken into memory; copy the pack to a folder, where it is mapped"
            )),
            Trouble::NoRanges => refused(
                "the server gives no ranges of bytes; use one that does, as an object store or nginx".into(),
            ),
            Trouble::NoCredentials => {
                refused(format!("there are no credentials; set {}", of_environment(kind)))
            }
            Trouble::WrongCredentials(what) => refused(format!(
                "the store does not accept the credentials ({what}); look at {}, and whether they have expired",
                of_environment(kind)
            )),
            Trouble::Denied(what) => refused(format!(
                "the store does not allow it ({what}): these credentials may not read it, or it is not there and they may not list; allow them to read and list what is below {}",
                location.url()
            )),
            Trouble::OtherRegion(region) => refused(match region {
                Some(region) => format!("the bucket is in another region; set AWS_REGION={region}"),
                None if kind == Kind::Http => "the server sends elsewhere, and redirects are not followed; name the URL that the objects have there".into(),
                None => "the store sends elsewhere, as for a bucket in another region; set AWS_REGION, or the endpoint".into(),
            }),
            Trouble::Untrusted(what) => refused(format!(
                "{what}; SSL_CERT_FILE=FILE names the certificates that are trusted, and the package ca-certificates has those of public servers"
            )),
            Trouble::Passing { what, .. } | Trouble::Other(what) => refused(what),
            Trouble::TooLate(last) => refused(format!(
                "no whole answer within {} s{}; look at the network and the store, or set {}=SECONDS to wait longer",
                longest.as_secs_f64(),
                last.map_or_else(String::new, |last| format!(" (at last: {last})")),
                crate::LONGEST_BY
            )),
            Trouble::Interrupted => refused("interrupted".into()),
        }
    }
}

/// Of what is wrong: a header or a certificate may be quoted in it, which are the store's to choose.
fn shown(what: &str) -> String {
    let plain = |c: char| if c == ' ' || c.is_ascii_graphic() { c } else { '?' };
    what.chars().take(MOST_SHOWN).map(plain).collect()
}

/// An error and what it comes from.
fn sources<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    let mut next = Some(error);
    std::iter::from_fn(move || {
        let this = next?;
        next = this.source();
        Some(this)
    })
}

/// What has the credentials of a store.
fn of_environment(kind: Kind) -> &'static str {
    match kind {
        Kind::Amazon => {
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (AWS_SESSION_TOKEN for temporary ones), or AWS_SKIP_SIGNATURE=true for a public bucket"
        }
        Kind::Google => "GOOGLE_APPLICATION_CREDENTIALS, or GOOGLE_SKIP_SIGNATURE=true for a public bucket",
        Kind::Azure => {
            "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or AZURE_SKIP_SIGNATURE=true for a public container"
        }
        Kind::Http => "what the server asks for; credentials for plain HTTP servers are not supported",
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

    use super::*;
    use object_store::client::HttpErrorKind;

    fn answer(status: u16, code: &str) -> Trouble {
        let code = (!code.is_empty()).then(|| code.to_owned());
        let answer =
            Answer { status, code, after: Some(Duration::from_secs(7)), region: Some("eu-west-1".into()) };
        let error = HttpError::new(HttpErrorKind::Unknown, answer);
        Trouble::of(&object_store::Error::Generic { store: "S3", source: Box::new(error) })
    }

    #[test]
    fn busy_stores_and_lost_connections_are_tried_again_and_nothing_else_is() {
        for status in [408, 429, 500, 502, 503, 504] {
            let Trouble::Passing { after, .. } = answer(status, "SlowDown") else { panic!("{status}") };
            assert_eq!(after, Some(Duration::from_secs(7)));
        }
        let lost = std::io::Error::from(ErrorKind::ConnectionReset);
        let lost = HttpError::new(HttpErrorKind::Interrupted, lost);
        let lost = object_store::Error::Generic { store: "S3", source: Box::new(lost) };
        assert!(matches!(Trouble::of(&lost), Trouble::Passing { after: None, .. }));
        for (status, code, expected) in [
            (200, "", Trouble::NoRanges),
            (301, "", Trouble::OtherRegion(Some("eu-west-1".into()))),
            (400, "AuthorizationHeaderMalformed", Trouble::OtherRegion(Some("eu-west-1".into()))),
            (400, "ExpiredToken", Trouble::WrongCredentials("ExpiredToken".into())),
            (400, "", Trouble::Other("the store answered 400".into())),
            (401, "", Trouble::WrongCredentials("401".into())),
            (403, "SignatureDoesNotMatch", Trouble::WrongCredentials("SignatureDoesNotMatch".into())),
            (403, "AccessDenied", Trouble::Denied("403 AccessDenied".into())),
            (404, "NoSuchKey", Trouble::Gone),
            (404, "NoSuchBucket", Trouble::NoBucket),
            (412, "", Trouble::Changed),
            (416, "InvalidRange", Trouble::Short),
        ] {
            assert_eq!(answer(status, code), expected, "{status} {code}");
        }
    }

    #[test]
    fn no_sentence_has_what_a_store_would_have_a_terminal_do() {
        let source = format!("it is \u{1b}[2J\u{202e}{}", "x".repeat(1 << 20)).into();
        let Trouble::Other(what) = Trouble::of(&object_store::Error::Generic { store: "S3", source }) else {
            panic!("it is of no other kind")
        };
        assert!(what.len() == MOST_SHOWN && what.starts_with("it is ?[2J?x"), "{what}");
    }

    #[test]
    fn each_sentence_names_the_object_and_the_way_out() {
        let location = Location::of("s3://bucket/p.pack").unwrap();
        let path = Path::new("s3://bucket/p.pack/snapshot");
        for (trouble, words) in [
            (Trouble::NoBucket, "no bucket bucket; look at its name"),
            (Trouble::NoCredentials, "set AWS_ACCESS_KEY_ID"),
            (Trouble::WrongCredentials("InvalidToken".into()), "(InvalidToken); look at AWS_ACCESS_KEY_ID"),
            (Trouble::Denied("403".into()), "allow them to read and list what is below s3://bucket/p.pack"),
            (Trouble::OtherRegion(Some("eu-west-1".into())), "set AWS_REGION=eu-west-1"),
            (Trouble::TooLate(Some("503".into())), "within 1.5 s (at last: 503); look at the network"),
            (Trouble::Changed, "open the pack anew"),
            (Trouble::NoRanges, "use one that does"),
        ] {
            let sentence = trouble.about(&location, path, Duration::from_millis(1500)).to_string();
            assert!(
                sentence.contains(words) && sentence.contains("s3://bucket/p.pack/snapshot"),
                "{sentence}"
            );
        }
    }
}
