//! What a holder says of itself: a line each time that it changes.

use std::fmt;

/// Longest sentence of a line, in bytes.
const SENTENCE: usize = 300;

/// What a holder has, and what came before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Locked in memory, in whole pages.
    pub held_bytes: u64,
    pub held_files: u64,
    /// Files of the job's that were seen to be opened.
    pub known_files: u64,
    /// Read from storage to hold files.
    pub brought_bytes: u64,
    /// Files let go because they were written to, replaced or deleted.
    pub changed_files: u64,
    /// Files let go because there was less memory for them.
    pub released_files: u64,
    /// Opens of which no account was kept, and times at which the kernel had more to tell than it keeps.
    pub lost: u64,
    /// What limits it, for people.
    pub limit: String,
}

impl fmt::Display for Figures {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Figures { held_bytes, held_files, known_files, brought_bytes, .. } = self;
        let Figures { changed_files, released_files, lost, limit, .. } = self;
        write!(
            formatter,
            "{held_bytes} {held_files} {known_files} {brought_bytes} {changed_files} {released_files} {lost} {limit}"
        )
    }
}

impl Figures {
    /// A line; `None` where it is none. The sentence may be anybody's.
    pub fn parse(line: &str) -> Option<Figures> {
        let mut words = line.splitn(8, ' ');
        let mut number = || words.next()?.parse().ok();
        let mut figures = Figures {
            held_bytes: number()?,
            held_files: number()?,
            known_files: number()?,
            brought_bytes: number()?,
            changed_files: number()?,
            released_files: number()?,
            lost: number()?,
            limit: String::new(),
        };
        for char in words.next().unwrap_or_default().chars().filter(|char| !char.is_control()) {
            if figures.limit.len() + char.len_utf8() > SENTENCE {
                break;
            }
            figures.limit.push(char);
        }
        Some(figures)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_line_is_read_as_it_was_written() {
        let figures = Figures {
            held_bytes: u64::MAX,
            held_files: 2,
            known_files: 3,
            brought_bytes: 4,
            changed_files: 5,
            released_files: 6,
            lost: 7,
            limit: "two words".into(),
        };
        assert_eq!(Figures::parse(&figures.to_string()), Some(figures));
        assert_eq!(Figures::parse(&Figures::default().to_string()), Some(Figures::default()));
    }

    proptest! {
        #[test]
        fn any_line_is_taken_and_what_people_see_of_it_is_bounded(line in ".{0,600}", sentence in ".{0,600}") {
            Figures::parse(&line);
            let figures = Figures::parse(&format!("1 2 3 4 5 6 7 {sentence}")).unwrap();
            prop_assert!(figures.limit.len() <= SENTENCE && !figures.limit.contains(char::is_control));
        }
    }
}
