//! What the service keeps in its folder: the node's audit, and which pauses there are.

use super::journal::{self, Journal, Most};
use super::pauses::Pauses;
use crate::host;
use anyhow::Result;
use stallscope_ebpf::Subordinates;
use stallscope_wire::{LogPage, LogPlace, NodeEvent};
use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// A part of the audit, of which there are two.
const AUDIT: Most = Most { file: 8 << 20, line: 16 << 10 };
/// A line has all pauses that there are.
const PAUSES: Most = Most { file: 2 << 20, line: 1 << 20 };
/// Lines that one user's jobs may add at once, and the time in which one more may: the audit is everybody's.
const AT_ONCE: u32 = 400;
const ONE_MORE: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct Book {
    audit: Journal,
    pauses: Journal,
    users: HashMap<u32, Allowance>,
    /// One user may have 65,536 ids, and has one share with all of them.
    subordinates: Subordinates,
    /// Lines that the disk did not take, since the last that it took.
    unwritten: u64,
}

#[derive(Debug)]
struct Allowance {
    /// Its number where no line had its name: to look that up, all would wait for a directory service.
    user: String,
    lines: u32,
    at: Instant,
    left_out: u64,
}

impl Book {
    /// # Errors
    /// The folder can't be used, in a sentence.
    pub(super) fn open(path: &Path) -> Result<Book> {
        let folder = journal::folder(path)?;
        let audit = Journal::open(&folder, "audit", AUDIT)?;
        let pauses = Journal::open(&folder, "pauses", PAUSES)?;
        let subordinates = Subordinates::of_this_machine();
        Ok(Book { audit, pauses, users: HashMap::new(), subordinates, unwritten: 0 })
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

    /// Adds a line, unless its job's user has had theirs; what is left out is counted in a line of its own. What root asked for
    /// is nobody's to leave out.
    pub(super) fn note(&mut self, mut event: NodeEvent, now: Instant) {
        event.wall_ns = host::wall_ns();
        if event.uid != 0 && event.by_uid != Some(0) {
            let payer = self.payer(event.uid);
            let left_out = self.allows(payer, now);
            if let Some(allowance) = self.users.get_mut(&payer).filter(|_| payer == event.uid) {
                allowance.user.clone_from(&event.user);
            }
            let Some(left_out) = left_out else { return };
            self.write_lost(payer, left_out);
        }
        self.write(event);
    }

    /// Once a second: what was left out is known once there is a place for that, whether another line comes or not.
    pub(super) fn second(&mut self, now: Instant) {
        let waits = |user: &Allowance| user.left_out > 0 && user.left(now) > 0;
        let due: Vec<u32> = self.users.iter().filter(|(_, user)| waits(user)).map(|(uid, _)| *uid).collect();
        for uid in due {
            let left_out = self.allows(uid, now).unwrap_or(0);
            self.write_lost(uid, left_out);
        }
    }

    /// Whose share of what all users have together `uid` takes of.
    pub(super) fn payer(&self, uid: u32) -> u32 {
        self.subordinates.payer(uid)
    }

    pub(super) fn subordinates(&self) -> &Subordinates {
        &self.subordinates
    }

    fn write_lost(&mut self, uid: u32, left_out: u64) {
        if left_out > 0 {
            let user = self.users.get(&uid).map_or_else(|| uid.to_string(), |user| user.user.clone());
            self.write(NodeEvent { uid, user, ..lost(left_out, "its user's jobs had too many lines") });
        }
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
        let user = self.users.entry(uid).or_insert(Allowance {
            user: uid.to_string(),
            lines: AT_ONCE,
            at: now,
            left_out: 0,
        });
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

    /// Where what is noted from now on begins.
    pub(super) fn end(&self) -> LogPlace {
        self.audit.end()
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
    use stallscope_wire::Paused;

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
        // The directory service is not asked by the service's one loop.
        assert_eq!(lost.user, "user 7");
        assert_eq!(book.pauses(), Pauses::default());
        let _ = std::fs::remove_dir_all(&path);
    }

    #[test]
    fn the_nodes_pause_is_kept_beside_as_many_of_jobs_as_there_may_be() {
        let path = std::env::temp_dir().join(format!("ss-book-pauses-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        let mut book = Book::open(&path).expect("a folder in the temporary folder");
        let by = |uid| Paused { by: "u".repeat(32), uid, since_wall_ns: u64::MAX };
        let mut pauses = Pauses::default();
        let most = (1..u32::MAX).take_while(|pid| pauses.pause_job((*pid, u64::MAX), by(*pid), *pid).is_ok());
        assert!(most.count() > 4000);
        pauses.set_node(Some(by(0)));
        for _ in 0..5 {
            book.keep(&pauses).expect("it is kept");
        }
        drop(book);
        let kept = Book::open(&path).expect("it is there").pauses();
        assert_eq!(kept.of_node(), Some(&by(0)));
        let _ = std::fs::remove_dir_all(&path);
    }

    #[test]
    fn what_root_does_is_noted_whatever_the_jobs_user_had_noted() {
        let path = std::env::temp_dir().join(format!("ss-book-root-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        let mut book = Book::open(&path).expect("a folder in the temporary folder");
        let now = Instant::now();
        (0..1000).for_each(|_| book.note(of(7, "again"), now));
        book.note(NodeEvent { act: "pause".into(), by_uid: Some(0), ..of(7, "by root") }, now);
        book.note(NodeEvent { act: "pause".into(), by_uid: Some(7), ..of(7, "by the owner") }, now);
        let last = book.page(None, 0).events.pop().expect("a line");
        assert_eq!((last.act.as_str(), last.why.as_str()), ("pause", "by root"));
        // What is missing is counted once there is a place for it, whether the user comes again or not.
        book.second(now + ONE_MORE);
        let last = book.page(None, 7).events.pop().expect("a line");
        assert_eq!((last.act.as_str(), last.saw.as_str()), ("lost", "601 lines are missing here"));
        let _ = std::fs::remove_dir_all(&path);
    }

    #[test]
    fn all_ids_of_one_user_have_one_users_lines() {
        let path = std::env::temp_dir().join(format!("ss-book-ids-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        let mut book = Book::open(&path).expect("a folder in the temporary folder");
        book.subordinates = Subordinates::parse(b"7:100000:65536", b"");
        let now = Instant::now();
        (0..1000).for_each(|nth| book.note(of(100_000 + nth, "mine, too"), now));
        assert_eq!(book.page(None, 0).events.len(), AT_ONCE as usize);
        let _ = std::fs::remove_dir_all(&path);
    }
}
