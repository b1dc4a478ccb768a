//! Texts of a job's processes: as long as they say, and with anything in them. Each is kept, shown and written again and again.

use stallscope_ring::{Greeting, LoaderFact};
use stallscope_wire::ProgramState;
use std::collections::BTreeMap;

/// A class, a version.
const NAME: usize = 200;
/// Why something cannot be measured.
const SENTENCE: usize = 500;

/// The first `most` characters, of which none moves a cursor; the last is "…" where there are more.
pub(crate) fn short(text: &str, most: usize) -> String {
    let shown = |c: char| if c.is_control() { '?' } else { c };
    let mut short: String = text.chars().take(most).map(shown).collect();
    if text.chars().nth(most).is_some() {
        short.pop();
        short.push('…');
    }
    short
}

/// Bytes of a command line, which is kept for as long as its job runs and written each second.
const COMMAND_BYTES: usize = 4 << 10;

/// The beginning of a command line; its last word is "…" where there is more.
pub(crate) fn shorten_command(command: &mut Vec<String>) {
    let mut bytes = 0;
    let fits = |word: &&String| {
        bytes += word.len() + 1;
        bytes <= COMMAND_BYTES
    };
    let whole = command.iter().take_while(fits).count();
    if whole < command.len() {
        // A list of its own: one that is cut keeps what memory all of it took.
        *command = command[..whole].iter().cloned().chain(["…".to_owned()]).collect();
    }
}

pub(crate) fn sentence(text: &str) -> String {
    short(text, SENTENCE)
}

/// Reasons for losses that are kept; a kernel service has ten.
const LOSSES: usize = 64;

/// The count of a loss whose reason somebody else says; `None` where there are enough others.
pub(crate) fn loss<'a>(losses: &'a mut BTreeMap<String, u64>, reason: &str) -> Option<&'a mut u64> {
    let reason = short(reason, NAME);
    let has_place = losses.len() < LOSSES || losses.contains_key(&reason);
    has_place.then(|| losses.entry(reason).or_default())
}

/// Kernel programs; there are some thirty.
const PROGRAMS: usize = 256;

pub(crate) fn shorten_programs(programs: &mut Vec<ProgramState>) {
    programs.truncate(PROGRAMS);
    for program in programs {
        (program.program, program.reason) = (short(&program.program, NAME), sentence(&program.reason));
    }
}

/// Sentences of a process on what cannot be measured.
const UNAVAILABLE: usize = 64;

pub(crate) fn shorten_greeting(greeting: &mut Greeting) {
    for version in [&mut greeting.torch, &mut greeting.python].into_iter().flatten() {
        *version = short(version, NAME);
    }
    // A list of its own: one that is cut keeps what memory all of it took.
    greeting.unavailable = greeting.unavailable.iter().take(UNAVAILABLE).map(|what| sentence(what)).collect();
}

pub(crate) fn shorten_loader(loader: &mut LoaderFact) {
    for text in [&mut loader.start_method, &mut loader.dataset] {
        *text = short(text, NAME);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_is_kept_up_to_some_words() {
        let mut command = vec!["python".to_owned(), "train.py".to_owned()];
        shorten_command(&mut command);
        assert_eq!(command, ["python", "train.py"]);
        command.push("x".repeat(1 << 20));
        shorten_command(&mut command);
        assert_eq!(command, ["python", "train.py", "…"]);
        let mut many = vec!["word".to_owned(); 10_000];
        shorten_command(&mut many);
        assert_eq!(many.len(), COMMAND_BYTES / 5 + 1);
    }

    /// "or memory changes there that" had ended a sentence.
    #[test]
    fn what_is_cut_off_shows() {
        assert_eq!(short("abc", 3), "abc");
        assert_eq!(short("abcd", 3), "ab…");
    }

    #[test]
    fn what_a_process_says_is_kept_in_part() {
        let long = "\u{1b}[2J\u{e4}".repeat(9999);
        let mut greeting =
            Greeting { torch: Some(long.clone()), unavailable: vec![long.clone(); 3], ..Greeting::default() };
        shorten_greeting(&mut greeting);
        let mut empty = Greeting { unavailable: vec![String::new(); 20_000], ..Greeting::default() };
        shorten_greeting(&mut empty);
        assert!(empty.unavailable.capacity() <= UNAVAILABLE);
        let mut loader = LoaderFact { dataset: long.clone(), start_method: long, ..LoaderFact::default() };
        shorten_loader(&mut loader);
        let kept = [greeting.torch.unwrap_or_default(), loader.dataset, loader.start_method];
        for text in kept.iter().chain(&greeting.unavailable) {
            assert!(
                text.len() < 1000 && text.starts_with("?[2J\u{e4}") && !text.contains('\u{1b}'),
                "{text}"
            );
        }
    }
}
