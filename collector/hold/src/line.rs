//! What a holder prints of itself: a line each time that something changes.

use stallscope_model::HeldSummary;

/// Longest sentence of a line, in bytes.
const SENTENCE: usize = 300;

/// What a holder knows of itself, with its end of line.
pub fn line(held: &HeldSummary) -> String {
    let HeldSummary { bytes, files, known_files, brought_bytes, .. } = held;
    let HeldSummary { changed_files, released_files, lost, limit, .. } = held;
    format!("{bytes} {files} {known_files} {brought_bytes} {changed_files} {released_files} {lost} {limit}\n")
}

/// Takes a line into what its session knows; one that is none changes nothing. The sentence may be anybody's.
pub fn hear(held: &mut HeldSummary, line: &str) {
    let mut words = line.splitn(8, ' ');
    let mut numbers = [0; 7];
    for number in &mut numbers {
        let Some(word) = words.next().and_then(|word| word.parse().ok()) else { return };
        *number = word;
    }
    let mut limit = String::new();
    for char in words.next().unwrap_or_default().chars().filter(|char| !char.is_control()) {
        if limit.len() + char.len_utf8() > SENTENCE {
            break;
        }
        limit.push(char);
    }
    let [bytes, files, known_files, brought_bytes, changed_files, released_files, lost] = numbers;
    let (mut most_bytes, mut most_files) = (held.most_bytes, held.most_files);
    if bytes >= most_bytes {
        (most_bytes, most_files) = (bytes, files);
    }
    *held = HeldSummary {
        budget_bytes: held.budget_bytes,
        target_bytes: held.target_bytes,
        bytes,
        most_bytes,
        files,
        most_files,
        known_files,
        brought_bytes,
        changed_files,
        released_files,
        lost,
        limit,
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_line_is_heard_as_it_was_written() {
        let written = HeldSummary {
            bytes: 4096,
            files: 2,
            known_files: 3,
            brought_bytes: u64::MAX,
            changed_files: 5,
            released_files: 6,
            lost: 7,
            limit: "two words".into(),
            ..HeldSummary::default()
        };
        let session = HeldSummary { budget_bytes: 8, target_bytes: 7, ..HeldSummary::default() };
        let mut heard = session.clone();
        hear(&mut heard, line(&written).trim_end());
        assert_eq!(
            heard,
            HeldSummary { budget_bytes: 8, target_bytes: 7, most_bytes: 4096, most_files: 2, ..written }
        );
        let before = heard.clone();
        hear(&mut heard, "1 2 3 4 5 6");
        assert_eq!(heard, before, "half a line");
        hear(&mut heard, line(&session).trim_end());
        assert_eq!((heard.bytes, heard.most_bytes, heard.most_files), (0, 4096, 2));
    }

    proptest! {
        #[test]
        fn any_line_is_taken_and_what_people_see_of_it_is_bounded(line in ".{0,600}", sentence in ".{0,600}") {
            let mut held = HeldSummary::default();
            hear(&mut held, &line);
            hear(&mut held, &format!("1 2 3 4 5 6 7 {sentence}"));
            prop_assert!(held.bytes == 1 && held.limit.len() <= SENTENCE);
            prop_assert!(!held.limit.contains(char::is_control));
        }
    }
}
