//! What the service keeps in its folder: the node's audit, and which pauses there are.

use super::journal::{self, Journal};
use super::pauses::Pauses;
use crate::host;
use anyhow::Result;
use stallscope_wire::{LogPage, LogPlace, NodeEvent};
use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// A part of the audit, of which there are two.
const AUDIT_BYTES: u64 = 8 << 20;
/// All pauses that there may be take half of it.
const PAUSES_BYTES: u64 = 2 << 20;
/// Lines that one user's jobs may add at once, and the time in which one more may: the audit is everybody's.
const AT_ONCE: u32 = 400;
const ONE_MORE: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct Book {
    audit: Journal,
    pauses: Journal,
    users: HashMap<u32, Allowance>,
    /// Lines that the disk did not take, since the last that it took.
    unwritten: u64,
}

#[derive(Debug)]
struct Allowance {
    lines: u32,
    at: Instant,
    left_out: u64,
}

impl Book {
    /// # Errors
    /// The folder can't be used, in a sentence.
    pub(super) fn open(path: &Path) -> Result<Book> {
        let folder = journal::folder(path)?;
        let audit = Journal::open(&folder, "audit", AUDIT_BYTES)?;
        let pauses = Journal::open(&folder, "pauses", PAUSES_BYTES)?;
        Ok(Book { audit, pauses, users: HashMap::new(), unwritten: 0 })
    }

    pub(super) fn pauses(&self) -> Pauses {
        let mut pauses: Pauses = self.pauses.last().unwrap_or_default();
        pauses.forget_ended();
        pauses
    }

    /// # Errors
    /// They would be gone with the service, in a sentence.
    pub(super) fn keep(&mut self, pauses: &Pauses) -> Result<(), String> {
        let kept = self.pauses.add(pauses).and_then(|()| self.pauses.sync());
        kept.map_err(|error| {
            format!("it holds until the service ends, and not longer, as it cannot be written down: {error}")
        })
    }

    /// Adds a line, unless its job's user has had theirs; what is left out is counted in the next.
    pub(super) fn note(&mut self, mut event: NodeEvent, now: Instant) {
        event.wall_ns = host::wall_ns();
        if event.uid != 0 {
            let Some(left_out) = self.allows(event.uid, now) else { return };
            if left_out > 0 {
                let (uid, user) = (event.uid, event.user.clone());
                self.write(NodeEvent { uid, user, ..lost(left_out, "its user's jobs had too many lines") });
            }
        }
        self.write(event);
    }

    fn write(&mut self, event: NodeEvent) {
        if self.unwritten > 0 {
            let missing = lost(self.unwritten, "they could not be written: is the disk full?");
            if self.audit.add(&missing).is_err() {
                self.unwritten += 1;
                return;
            }
            self.unwritten = 0;
        }
        if self.audit.add(&event).is_err() {
            self.unwritten += 1;
        }
    }

    /// How many lines of the user's were left out before this one, which may be added; `None`: it may not.
    fn allows(&mut self, uid: u32, now: Instant) -> Option<u64> {
        if !self.users.contains_key(&uid) {
            // A user with the whole allowance again is as one who never came.
            self.users.retain(|_, user| user.left(now) < AT_ONCE || user.left_out > 0);
        }
        let user = self.users.entry(uid).or_insert(Allowance { lines: AT_ONCE, at: now, left_out: 0 });
        let left = user.left(now);
        if left > user.lines {
            (user.lines, user.at) = (left, now);
        }
        if user.lines == 0 {
            user.left_out += 1;
            return None;
        }
        user.lines -= 1;
        Some(std::mem::take(&mut user.left_out))
    }

    /// A page of what user `uid` may know: root of all, others of their jobs and of the node.
    pub(super) fn page(&self, after: Option<LogPlace>, uid: u32) -> LogPage {
        let (mut events, next, more) = self.audit.page::<NodeEvent>(after.unwrap_or_default());
        events.retain(|event| uid == 0 || event.uid == uid || event.user.is_empty());
        LogPage { events, next, more }
    }
}

impl Allowance {
    fn left(&self, now: Instant) -> u32 {
        let more = now.saturating_duration_since(self.at).as_secs() / ONE_MORE.as_secs();
        self.lines.saturating_add(u32::try_from(more).unwrap_or(u32::MAX)).min(AT_ONCE)
    }
}

fn lost(lines: u64, why: &str) -> NodeEvent {
    NodeEvent {
        wall_ns: host::wall_ns(),
        act: "lost".into(),
        by: "the service".into(),
        saw: format!("{lines} lines are missing here"),
        why: why.into(),
        ..NodeEvent::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(uid: u32, why: &str) -> NodeEvent {
        NodeEvent {
            uid,
            user: format!("user {uid}"),
            act: "keep".into(),
            why: why.into(),
            ..NodeEvent::default()
        }
    }

    #[test]
    fn one_users_lines_are_bounded_and_each_user_reads_their_own() {
        let path = std::env::temp_dir().join(format!("ss-book-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        let mut book = Book::open(&path).expect("a folder in the temporary folder");
        let now = Instant::now();
        (0..1000).for_each(|_| book.note(of(7, "again"), now));
        book.note(of(8, "another's"), now);
        book.note(NodeEvent { act: "pause".into(), ..NodeEvent::default() }, now);
        let count = |book: &Book, uid| book.page(None, uid).events.len();
        let all = AT_ONCE as usize + 2;
        assert_eq!([0, 7, 8, 9].map(|uid| count(&book, uid)), [all, all - 1, 2, 1]);
        book.note(of(7, "later"), now + ONE_MORE);
        let page = book.page(None, 7);
        let [.., lost, last] = &page.events[..] else { panic!("{page:?}") };
        assert_eq!((lost.saw.as_str(), last.why.as_str()), ("600 lines are missing here", "later"));
        assert_eq!(book.pauses(), Pauses::default());
        let _ = std::fs::remove_dir_all(&path);
    }
}
