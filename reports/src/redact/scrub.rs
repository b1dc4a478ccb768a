//! Takes out of sentences what must not be in them.
//!
//! A recording may come from anywhere, and may have hundred thousands of names and as many sentences: each sentence is read once for
//! all names together, and where that is too much, nothing of it is shown.

use aho_corasick::{AhoCorasick, AhoCorasickKind};
use std::collections::BTreeMap;

/// In place of a sentence that cannot be searched.
const NOT_SHOWN: &str = "[not shown: there is too much in it to hide]";
/// Bytes of all secrets together: some thousands of paths, which take about a hundred times as much memory to be searched for.
const MOST_SECRET_BYTES: usize = 1 << 20;
/// Places where a secret is found in all sentences together, be it a part of another or of a longer word.
const MOST_FOUND: usize = 10_000_000;

/// Everything that is known to be a secret, and the words that stand for it.
#[derive(Debug)]
pub(super) struct Scrubber<'a> {
    /// None where there is too much.
    search: Option<AhoCorasick>,
    words: Vec<&'a str>,
    left: usize,
}

impl<'a> Scrubber<'a> {
    pub(super) fn new(by_secret: &'a BTreeMap<String, String>) -> Scrubber<'a> {
        let fits = by_secret.keys().map(String::len).sum::<usize>() <= MOST_SECRET_BYTES;
        // Of the kind whose size is that of the secrets: that for few of them is a thousand times as large.
        let builder =
            || AhoCorasick::builder().kind(Some(AhoCorasickKind::ContiguousNFA)).build(by_secret.keys());
        let search = fits.then(builder).and_then(Result::ok);
        Scrubber { search, words: by_secret.values().map(String::as_str).collect(), left: MOST_FOUND }
    }

    /// Replaces what is known, then what looks like a path.
    pub(super) fn scrub(&mut self, text: &mut String) {
        *text = match self.without_secrets(text) {
            Some(text) => without_paths(&text),
            None => NOT_SHOWN.to_owned(),
        };
    }

    fn without_secrets(&mut self, text: &str) -> Option<String> {
        let mut whole = Vec::new();
        for found in self.search.as_ref()?.find_overlapping_iter(text) {
            self.left = self.left.checked_sub(1)?;
            if is_whole(text, found.start(), found.end()) {
                whole.push(found);
            }
        }
        // The longest first: others may be parts of it.
        whole.sort_by_key(|found| (std::cmp::Reverse(found.len()), found.start()));
        let mut hidden = vec![false; text.len()];
        whole.retain(|found| {
            // No shorter one is hidden yet, so that one which is hidden in its midst is at one of its ends, too.
            let is_free = !hidden[found.start()] && !hidden[found.end() - 1];
            if is_free {
                hidden[found.range()].fill(true);
            }
            is_free
        });
        whole.sort_by_key(aho_corasick::Match::start);
        let (mut scrubbed, mut at) = (String::with_capacity(text.len()), 0);
        for found in whole {
            scrubbed.push_str(&text[at..found.start()]);
            scrubbed.push_str(self.words[found.pattern().as_usize()]);
            at = found.end();
        }
        scrubbed.push_str(&text[at..]);
        Some(scrubbed)
    }
}

/// Whether it is not a part of a longer word.
fn is_whole(text: &str, start: usize, end: usize) -> bool {
    let part_of_word = |char: Option<char>| char.is_some_and(|char| char.is_alphanumeric() || char == '_');
    !part_of_word(text[..start].chars().next_back()) && !part_of_word(text[end..].chars().next())
}

/// Puts `[path]` for what begins like a path: `/x`, `~/x`, `./x`, `../x`, but not for the slash of `samples/s`.
fn without_paths(text: &str) -> String {
    let ends = |char: char| char.is_whitespace() || "\"'`()[]{}<>;,|".contains(char);
    let mut clean = String::with_capacity(text.len());
    for piece in text.split_inclusive(ends) {
        let word = piece.trim_end_matches(ends);
        let from = word
            .char_indices()
            .find(|(at, char)| {
                let before = word[..*at].chars().next_back();
                *char == '/'
                    && word[at + 1..].starts_with(|next: char| !next.is_whitespace())
                    && !before.is_some_and(char::is_alphanumeric)
            })
            .map(|(at, _)| word[..at].trim_end_matches(['.', '~']).len());
        match from {
            Some(at) => {
                clean.push_str(&word[..at]);
                clean.push_str("[path]");
                clean.push_str(&piece[word.len()..]);
            }
            // Two slashes and more are no unit.
            None if word.matches('/').count() > 1 => {
                clean.push_str("[path]");
                clean.push_str(&piece[word.len()..]);
            }
            None => clean.push_str(piece),
        }
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secrets(secrets: &[(&str, &str)]) -> BTreeMap<String, String> {
        secrets.iter().map(|(secret, word)| ((*secret).to_owned(), (*word).to_owned())).collect()
    }

    fn scrubbed(by_secret: &BTreeMap<String, String>, text: &str) -> String {
        let mut text = text.to_owned();
        Scrubber::new(by_secret).scrub(&mut text);
        text
    }

    #[test]
    fn paths_are_found_and_units_are_not() {
        for (text, clean) in [
            ("reads /data/x.jpg slowly", "reads [path] slowly"),
            ("from ~/data, ../x and ./y.", "from [path], [path] and [path]"),
            ("file=/a/b (4.4 MiB/s, 120 samples/s)", "file=[path] (4.4 MiB/s, 120 samples/s)"),
            ("in data/train/x and/or not", "in [path] and/or not"),
            ("a / b", "a / b"),
            ("", ""),
        ] {
            assert_eq!(without_paths(text), clean, "{text}");
        }
    }

    #[test]
    fn only_whole_words_are_replaced() {
        let known = secrets(&[("vm", "host-1")]);
        assert_eq!(scrubbed(&known, "vm and vms, vm"), "host-1 and vms, host-1");
        assert_eq!(scrubbed(&known, "xvmvm vm."), "xvmvm host-1.");
        assert_eq!(
            scrubbed(&known, "\u{e4}vm vm\u{e4} \u{bb}vm\u{ab}"),
            "\u{e4}vm vm\u{e4} \u{bb}host-1\u{ab}"
        );
    }

    #[test]
    fn of_secrets_in_each_other_the_longest_is_hidden() {
        let known =
            secrets(&[("vm", "host-1"), ("vm-7", "host-2"), ("7-vm-7", "host-3"), ("vm-7x", "host-4")]);
        assert_eq!(scrubbed(&known, "vm vm-7 7-vm-7 vm-7xy"), "host-1 host-2 host-3 host-1-7xy");
    }

    /// Each of so many secrets was searched for in each of so many sentences: a recording of a megabyte had kept a report busy for
    /// minutes.
    #[test]
    fn sentences_with_more_than_can_be_hidden_are_not_shown() {
        let nested: Vec<String> = (1..=1000).map(|length| "-".repeat(length)).collect();
        let by_secret = nested.iter().map(|secret| (secret.clone(), "path-1".to_owned())).collect();
        let mut scrubber = Scrubber::new(&by_secret);
        let mut first = "a --- b".to_owned();
        scrubber.scrub(&mut first);
        assert_eq!(first, "a path-1 b");
        let mut long = "-".repeat(100_000);
        scrubber.scrub(&mut long);
        assert_eq!(long, NOT_SHOWN);
        let mut later = "a --- b".to_owned();
        scrubber.scrub(&mut later);
        assert_eq!(later, NOT_SHOWN, "all of it is used up");
        let many = (0..20_000).map(|nth| (format!("{nth:060}"), "path-1".to_owned())).collect();
        assert_eq!(scrubbed(&many, "anything"), NOT_SHOWN);
    }
}
