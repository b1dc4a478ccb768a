use unicode_width::UnicodeWidthChar;

/// A foreign or finished text as it can be shown on one line: nothing in it moves the cursor, hides or turns what
/// follows, and without `unicode` it is ASCII.
pub fn clean(text: &str, unicode: bool) -> String {
    let mut clean = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            ' '..='~' => clean.push(char),
            '\n' | '\t' => clean.push(' '),
            _ if is_unsafe(char) => clean.extend(char.escape_default()),
            _ if unicode => clean.push(char),
            '…' => clean.push_str("..."),
            '→' => clean.push_str("->"),
            '–' | '—' | '·' | '−' => clean.push('-'),
            '×' => clean.push('x'),
            'µ' | 'μ' => clean.push('u'),
            '‘' | '’' => clean.push('\''),
            '“' | '”' => clean.push('"'),
            _ => clean.push('?'),
        }
    }
    clean
}

/// JSON of which no text is obeyed by a terminal, turns what follows or hides it. What writes JSON escapes the controls of ASCII only.
pub fn clean_json(json: &str) -> String {
    let mut clean = String::with_capacity(json.len());
    for char in json.chars() {
        match char {
            // Between values; within one they are escaped already.
            '\n' => clean.push(char),
            _ if is_unsafe(char) => {
                for unit in char.encode_utf16(&mut [0; 2]) {
                    clean.push_str(&format!("\\u{unit:04x}"));
                }
            }
            _ => clean.push(char),
        }
    }
    clean
}

fn is_unsafe(char: char) -> bool {
    char.is_control()
        || char.width().unwrap_or(0) == 0
        || matches!(char, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn nothing_that_moves_a_cursor_is_left(text in any::<String>(), unicode in any::<bool>()) {
            let clean = clean(&text, unicode);
            prop_assert!(!clean.chars().any(is_unsafe), "{clean:?}");
            prop_assert!(unicode || clean.is_ascii(), "{clean:?}");
        }

        #[test]
        fn what_is_clean_stays_as_it_is(text in "[ -~]*") {
            prop_assert_eq!(clean(&text, false), text);
        }
    }

    proptest! {
        #[test]
        fn any_text_comes_back_from_json(text in any::<String>()) {
            let json = clean_json(&serde_json::json!([text]).to_string());
            prop_assert!(!json.chars().any(is_unsafe), "{json}");
            prop_assert_eq!(serde_json::from_str::<[String; 1]>(&json).unwrap(), [text]);
        }
    }

    #[test]
    fn an_escape_is_shown_not_obeyed() {
        assert_eq!(clean("\x1b[2Jtrain\u{202e}", true), "\\u{1b}[2Jtrain\\u{202e}");
    }
}
