//! Who watched whom: a line for each tree that somebody begins to watch, and one for its end, to the collector's
//! output (a journal, where systemd runs it).
//!
//! What one user can have written is bounded; what was left out is counted, and stands in the next line of that user's.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Lines of a user that may come at once, and the time in which one more may.
const AT_ONCE: u32 = 40;
const ONE_MORE: Duration = Duration::from_secs(15);

/// A caller and the tree that it watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Watch {
    pub(crate) uid: u32,
    /// Who has these user numbers: subordinate ones are their owner's.
    pub(crate) payer: u32,
    /// Of the caller.
    pub(crate) pid: u32,
    pub(crate) root: u32,
    /// When the tree's root was started, since boot.
    pub(crate) root_start_ns: u64,
}

#[derive(Default)]
pub(crate) struct WatchAudit {
    since: HashMap<Watch, Instant>,
    users: HashMap<u32, Allowance>,
    lines: Vec<String>,
}

struct Allowance {
    lines: u32,
    at: Instant,
    left_out: u64,
}

impl WatchAudit {
    pub(crate) fn begins(&mut self, watch: Watch, syscalls: bool, now: Instant) {
        self.since.insert(watch, now);
        let Watch { uid, payer, pid, root, root_start_ns } = watch;
        let hooks = if syscalls { "with system calls hooked" } else { "without system calls" };
        let started = root_start_ns / 1_000_000_000;
        let line = format!(
            "user {uid} (process {pid}) watches the tree of process {root}, started {started} s after boot, {hooks}"
        );
        self.say(payer, line, now);
    }

    pub(crate) fn ends(&mut self, watch: Watch, now: Instant) {
        let Watch { uid, payer, pid, root, .. } = watch;
        let Some(since) = self.since.remove(&watch) else { return };
        let lasted = now.saturating_duration_since(since).as_secs();
        let line = format!(
            "user {uid} (process {pid}) watches the tree of process {root} no more, after {lasted} s"
        );
        self.say(payer, line, now);
    }

    /// The lines since this was last asked.
    pub(crate) fn take(&mut self) -> Vec<String> {
        std::mem::take(&mut self.lines)
    }

    fn say(&mut self, payer: u32, line: String, now: Instant) {
        // A user with the whole allowance again is as one who never came.
        if !self.users.contains_key(&payer) {
            self.users.retain(|_, user| user.allowed(now) < AT_ONCE || user.left_out > 0);
        }
        let user = self.users.entry(payer).or_insert(Allowance { lines: AT_ONCE, at: now, left_out: 0 });
        let allowed = user.allowed(now);
        if allowed > user.lines {
            (user.lines, user.at) = (allowed, now);
        }
        if user.lines == 0 {
            user.left_out += 1;
            return;
        }
        user.lines -= 1;
        if user.left_out > 0 {
            let left_out = std::mem::take(&mut user.left_out);
            self.lines.push(format!("user {payer}: {left_out} lines of what was watched were left out"));
        }
        self.lines.push(line);
    }
}

impl Allowance {
    fn allowed(&self, now: Instant) -> u32 {
        let more = now.saturating_duration_since(self.at).as_secs() / ONE_MORE.as_secs();
        self.lines.saturating_add(u32::try_from(more).unwrap_or(u32::MAX)).min(AT_ONCE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIRA: Watch = Watch { uid: 4242, payer: 4242, pid: 311, root: 300, root_start_ns: 12_900_000_000 };

    #[test]
    fn who_watches_whom_is_written_at_its_beginning_and_its_end() {
        let (mut audit, now) = (WatchAudit::default(), Instant::now());
        audit.begins(MIRA, true, now);
        audit.ends(MIRA, now + Duration::from_secs(61));
        // Of what has not begun there is no end.
        audit.ends(MIRA, now);
        let lines = [
            "user 4242 (process 311) watches the tree of process 300, started 12 s after boot, with system calls hooked",
            "user 4242 (process 311) watches the tree of process 300 no more, after 61 s",
        ];
        assert_eq!(audit.take(), lines);
        assert!(audit.take().is_empty());
    }

    #[test]
    fn one_users_lines_are_bounded_and_what_is_left_out_is_counted() {
        let (mut audit, now) = (WatchAudit::default(), Instant::now());
        for root in 0..1000 {
            audit.begins(Watch { root, ..MIRA }, false, now);
        }
        assert_eq!(audit.take().len(), AT_ONCE as usize);
        audit.begins(Watch { uid: 4343, payer: 4343, ..MIRA }, false, now);
        assert_eq!(audit.take().len(), 1, "another user's is written");
        (0..100).for_each(|uid| audit.begins(Watch { uid, ..MIRA }, false, now));
        assert!(audit.take().is_empty(), "under numbers that are theirs as well");
        audit.begins(MIRA, false, now + ONE_MORE);
        let lines = audit.take();
        assert_eq!(lines[0], "user 4242: 1060 lines of what was watched were left out");
        assert_eq!(lines.len(), 2);
        audit.begins(MIRA, false, now + ONE_MORE);
        assert!(audit.take().is_empty());
    }
}
