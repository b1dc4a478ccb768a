//! The word that a scraper shows. It says who asks, and nothing of who answers.

use anyhow::{Context, Result, ensure};
use hyper::HeaderMap;
use hyper::header::{AUTHORIZATION, HeaderValue};
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Longest token, in bytes.
const TOKEN_LIMIT_BYTES: u64 = 1024;

/// What a client has to show to be given figures (RFC 6750, `Authorization: Bearer`).
#[derive(Clone)]
pub struct Token(pub(super) String);

impl Token {
    /// # Errors
    /// The file can't be read, or every user may read it, or no token is in it.
    pub fn in_file(path: &Path) -> Result<Token> {
        let shown = path.display();
        let file = File::open(path).with_context(|| format!("cannot read the token in {shown}"))?;
        let open_to_all = file.metadata()?.mode() & 0o004 != 0;
        ensure!(!open_to_all, "every user may read the token in {shown}; `chmod o-r` the file");
        let mut text = String::new();
        file.take(TOKEN_LIMIT_BYTES + 1)
            .read_to_string(&mut text)
            .with_context(|| format!("cannot read the token in {shown}"))?;
        let token = text.trim_end();
        let is_one = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
        ensure!(
            is_one && text.len() as u64 <= TOKEN_LIMIT_BYTES,
            "{shown} holds no token: one line of letters, digits and signs, as `openssl rand -hex 32` prints"
        );
        Ok(Token(token.to_owned()))
    }

    /// Takes as long for any guess of the same length.
    pub(super) fn is_shown_in(&self, headers: &HeaderMap) -> bool {
        let shown = headers.get(AUTHORIZATION).map(HeaderValue::as_bytes).unwrap_or_default();
        let (scheme, guess) = shown.split_at(shown.len().min(7));
        let differences = guess.iter().zip(self.0.bytes()).fold(0, |sum, (guess, own)| sum | (guess ^ own));
        scheme.eq_ignore_ascii_case(b"bearer ") && guess.len() == self.0.len() && differences == 0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

    use super::*;

    #[test]
    fn a_token_is_one_line_that_not_everybody_may_read() {
        use std::os::unix::fs::PermissionsExt;
        let path = std::env::temp_dir().join(format!("stallscope-token-{}", std::process::id()));
        let found = |text: &str, mode| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            Token::in_file(&path)
        };
        assert_eq!(found("s3cret\n", 0o640).unwrap().0, "s3cret");
        assert!(found("s3cret\n", 0o644).unwrap_err().to_string().contains("chmod"));
        for wrong in ["", "\n", "two words", "two\nlines", "ümlaut", &"a".repeat(2000)] {
            assert!(found(wrong, 0o600).is_err(), "{wrong}");
        }
        std::fs::remove_file(&path).unwrap();
        assert!(Token::in_file(&path).is_err());
    }
}
