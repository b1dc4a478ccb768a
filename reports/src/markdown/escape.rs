//! Foreign texts in markdown: shown, and nothing else.

/// A text between others: what is in backticks is code, and nothing else in it is markup, a table's cell, a mention
/// or a link.
pub(crate) fn text(text: &str) -> String {
    let text = stallscope_look::clean(text, true);
    let text = text.trim();
    // One that is never closed is a backtick.
    let closed = text.matches('`').count().is_multiple_of(2);
    let mut safe = String::with_capacity(text.len());
    for (nth, piece) in text.split('`').enumerate() {
        match nth {
            _ if closed && nth % 2 == 1 => safe.push_str(&code(&piece.replace('|', "¦"))),
            _ if closed || nth == 0 => safe.push_str(&words(piece)),
            _ => safe.extend(["\\`", &words(piece)]),
        }
    }
    // What would make it a list or a rule at the beginning of a line.
    let digits = safe.bytes().take_while(u8::is_ascii_digit).count();
    let numbered =
        |mark| safe[digits..].strip_prefix(mark).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '));
    if safe.starts_with(['-', '+', '=']) || digits > 0 && (numbered('.') || numbered(')')) {
        safe.insert(digits, '\\');
    }
    safe
}

/// A text without backticks.
fn words(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for (nth, word) in text.split(' ').enumerate() {
        if nth > 0 {
            safe.push(' ');
        }
        // What a forge makes links and mentions of even where it is escaped.
        let linked = word.contains('@')
            || word.contains("://")
            || word.contains("www.")
            || word.contains('#') && word.contains(|char: char| char.is_ascii_digit());
        if linked {
            safe.push_str(&code(&word.replace('|', "¦")));
        } else {
            safe.extend(word.chars().flat_map(|char| {
                let escape = "\\*_[]<>|~&$#!".contains(char).then_some('\\');
                escape.into_iter().chain([char])
            }));
        }
    }
    safe
}

/// A name, path or command as code; nothing for nothing.
pub(crate) fn code(text: &str) -> String {
    let text = stallscope_look::clean(text, true);
    let text = text.trim();
    if text.is_empty() {
        return String::new();
    }
    // More backticks around it than there are in a row within it.
    let longest = text.split(|char| char != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest + 1);
    let gap = if text.starts_with('`') || text.ends_with('`') { " " } else { "" };
    format!("{fence}{gap}{text}{gap}{fence}")
}

/// The same within a table, where a bar ends the cell even within code.
pub(crate) fn cell(name: &str) -> String {
    if name.contains('|') { text(name) } else { code(name) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_stay_sentences() {
        assert_eq!(
            text("54% waits, 4.4 MiB/s: raise num_workers"),
            "54% waits, 4.4 MiB/s: raise num\\_workers"
        );
        assert_eq!([text("- a"), text("1. a"), text("1.5 a")], ["\\- a", "1\\. a", "1.5 a"]);
        assert_eq!(text("Run `a_b | c` now"), "Run `a_b ¦ c` now");
        assert_eq!(text("a ` b"), "a \\` b");
        assert_eq!(text("<b>|x|\n# @ada fixes #12"), "\\<b\\>\\|x\\| \\# `@ada` fixes `#12`");
    }

    #[test]
    fn names_are_code() {
        assert_eq!([code(""), code("a*b"), code("a`b"), code("``")], ["", "`a*b`", "``a`b``", "``` `` ```"]);
        assert_eq!([cell("a b"), cell("a|b")], ["`a b`", "a\\|b"]);
    }
}
