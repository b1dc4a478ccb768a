//! URLs of packs.

use object_store::ObjectStoreScheme as Scheme;
use object_store::path::Path;
use url::Url;

const SCHEMES: [&str; 10] = ["s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss", "http", "https"];

/// Whether a path is the URL of an object store, and no path.
pub fn is_url(path: &[u8]) -> bool {
    let scheme = path.windows(3).position(|part| part == b"://").map(|end| &path[..end]);
    scheme.is_some_and(|scheme| SCHEMES.iter().any(|one| one.as_bytes() == scheme))
}

/// Where a pack's objects are.
#[derive(Debug)]
pub(crate) struct Location {
    text: String,
    pub(crate) url: Url,
    pub(crate) kind: Kind,
    /// Of the pack, in its bucket.
    pub(crate) folder: Path,
}

/// What speaks to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Amazon,
    Google,
    Azure,
    Http,
}

impl Location {
    /// Or a sentence on what is wrong with it.
    pub(crate) fn of(text: &str) -> Result<Location, String> {
        let text = text.trim_end_matches('/');
        let url = Url::parse(text).map_err(|error| format!("what is given for a pack is no URL: {error}"))?;
        // Sentences and pickles have the URL.
        let is_container = ["abfs", "abfss"].contains(&url.scheme());
        if url.password().is_some() || !url.username().is_empty() && !is_container {
            return Err("a URL with a user or a password in it goes into sentences and workers; credentials are taken from the environment".into());
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(format!(
                "{text} has a query or a fragment, and each object of a pack a URL of its own; name the folder alone"
            ));
        }
        let (scheme, folder) =
            Scheme::parse(&url).map_err(|error| format!("{text} names no pack in a store: {error}"))?;
        let kind = match scheme {
            Scheme::AmazonS3 => Kind::Amazon,
            Scheme::GoogleCloudStorage => Kind::Google,
            Scheme::MicrosoftAzure => Kind::Azure,
            Scheme::Http => Kind::Http,
            _ => return Err(format!("{text} names no pack in a store that is known here")),
        };
        Ok(Location { text: text.to_owned(), url, kind, folder })
    }

    pub(crate) fn url(&self) -> &str {
        &self.text
    }

    /// What is before the folder: of S3 the bucket.
    pub(crate) fn bucket(&self) -> &str {
        self.url.host_str().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

    use super::*;

    #[test]
    fn a_url_is_known_from_a_path() {
        for url in ["s3://bucket/pack", "gs://b/p", "az://c/p", "https://host/p", "http://127.0.0.1:1/p"] {
            assert!(is_url(url.as_bytes()), "{url}");
        }
        for path in ["/data/s3://bucket", "s3:/bucket", "pack", "ftp://host/p", "file:///p", "://", ""] {
            assert!(!is_url(path.as_bytes()), "{path}");
        }
    }

    #[test]
    fn a_url_names_the_folder_of_a_pack() {
        let location = Location::of("s3://bucket/some/imagenet.pack/").unwrap();
        assert_eq!(location.url(), "s3://bucket/some/imagenet.pack");
        assert_eq!(location.folder.as_ref(), "some/imagenet.pack");
        assert_eq!((location.kind, location.bucket()), (Kind::Amazon, "bucket"));
        let location = Location::of("http://host:81/a%20b/p.pack").unwrap();
        assert_eq!((location.kind, location.folder.as_ref()), (Kind::Http, "a b/p.pack"));
        let location = Location::of("abfss://container@account.dfs.core.windows.net/p.pack").unwrap();
        assert_eq!((location.kind, location.folder.as_ref()), (Kind::Azure, "p.pack"));
        // What climbs is resolved as any browser does it, and stays in the bucket.
        let folder = |url| Location::of(url).map(|location| location.folder.to_string());
        assert_eq!(folder("s3://bucket/a/../../%2e%2e/b").as_deref(), Ok("b"));
        assert_eq!(folder("s3://bucket/a%3Fb%23c").as_deref(), Ok("a?b#c"));
        for (url, word) in [
            ("s3://", "URL"),
            ("https://host/p?X-Amz-Signature=1", "query"),
            ("http://user:secret@host/p", "password"),
            ("https://secret@host/p", "password"),
            ("s3://secret@bucket/p", "password"),
            ("s3://bucket/a//b", "no pack"),
        ] {
            let sentence = Location::of(url).unwrap_err();
            assert!(sentence.contains(word) && !sentence.contains("secret"), "{sentence}");
        }
    }
}
