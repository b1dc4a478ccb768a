//! Names with `*` and `?`, as a shell has them.

use serde::Deserialize;
use wildmatch::WildMatch;

/// `*` stands for any characters, none included, and `?` for one.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Pattern {
    text: String,
    compiled: WildMatch,
}

impl Pattern {
    pub(crate) fn matches(&self, text: &str) -> bool {
        self.compiled.matches(text)
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }
}

impl TryFrom<String> for Pattern {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Pattern, &'static str> {
        match text.is_empty() {
            true => Err("an empty text matches nothing; leave the key out to match everything"),
            false => Ok(Pattern { compiled: WildMatch::new(&text), text }),
        }
    }
}
