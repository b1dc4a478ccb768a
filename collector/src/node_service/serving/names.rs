//! Login names of users, by which rules name them. A directory service may have them, which may take its time or not answer: its
//! answers are waited for beside the service's one loop, and by nobody but the user in question.

use stallscope_ebpf::Subordinates;
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedMutexGuard, Semaphore, oneshot};
use tokio::time::timeout;

/// Who calls waits no longer for a name, and finds it when calling again.
const WITHIN: Duration = Duration::from_secs(2);
/// Look-ups at a time: each has a thread, which nothing can end.
const AT_A_TIME: usize = 8;
/// The directory may just have been away, as at boot, or a user be new.
const NAMELESS_FOR: Duration = Duration::from_secs(60);
/// Names that are kept: a user's ids alone may be 65,536.
const KEPT: usize = 65_536;

/// As `host::login_name`.
pub(super) type LooksUp = fn(u32) -> nix::Result<Option<String>>;

struct Known {
    name: String,
    /// Of a number in the place of a name: there may be one later.
    until: Option<Instant>,
}

pub(super) struct Names {
    looks_up: LooksUp,
    say: fn(&str),
    known: Mutex<HashMap<u32, Known>>,
    /// One user may have 65,536 ids, which are looked up one after the other.
    subordinates: Subordinates,
    turns: Mutex<HashMap<u32, Arc<tokio::sync::Mutex<()>>>>,
    places: Arc<Semaphore>,
    /// The log has that there is no answer.
    is_slow: AtomicBool,
}

impl Names {
    pub(super) fn new(looks_up: LooksUp, subordinates: Subordinates, say: fn(&str)) -> Arc<Names> {
        Arc::new(Names {
            looks_up,
            say,
            known: Mutex::default(),
            subordinates,
            turns: Mutex::default(),
            places: Arc::new(Semaphore::new(AT_A_TIME)),
            is_slow: AtomicBool::new(false),
        })
    }

    /// `None`: there is no answer yet.
    pub(super) async fn of(self: &Arc<Names>, uid: u32) -> Option<String> {
        if let Some(name) = self.known(uid) {
            return Some(name);
        }
        let name = timeout(WITHIN, Arc::clone(self).look_up(uid)).await.ok().flatten();
        if name.is_none() && !self.is_slow.swap(true, Ordering::Relaxed) {
            (self.say)(&format!(
                "there is no answer to who user {uid} is (nsswitch.conf): jobs of users whose names are not known yet wait for that, and \
                 no other job does"
            ));
        }
        name
    }

    /// The names of those of `uids` to whom there is an answer.
    pub(super) async fn of_all(self: &Arc<Names>, uids: impl Iterator<Item = u32>) -> HashMap<u32, String> {
        let uids: BTreeSet<u32> = uids.collect();
        let asks = |uid| {
            let names = Arc::clone(self);
            tokio::spawn(async move { Some((uid, names.of(uid).await?)) })
        };
        // Each is asked for before the first answer is waited for.
        let asked: Vec<_> = uids.into_iter().map(asks).collect();
        let mut found = HashMap::new();
        for one in asked {
            found.extend(one.await.ok().flatten());
        }
        found
    }

    /// They are looked up again.
    pub(super) fn forget(&self) {
        self.lock().clear();
        self.is_slow.store(false, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u32, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self, uid: u32) -> Option<String> {
        let known = self.lock();
        let found = known.get(&uid).filter(|known| known.until.is_none_or(|until| Instant::now() < until));
        found.map(|known| known.name.clone())
    }

    /// Turn and place are taken until there is an answer, whether somebody still waits for it or not.
    async fn look_up(self: Arc<Names>, uid: u32) -> Option<String> {
        let turn = self.turn(self.subordinates.payer(uid)).await;
        if let Some(name) = self.known(uid) {
            return Some(name);
        }
        let place = Arc::clone(&self.places).acquire_owned().await.ok()?;
        let (tell, answered) = oneshot::channel();
        let looks_up = move || {
            let found = (self.looks_up)(uid).map(|name| match name {
                Some(name) => Known { name, until: None },
                None => Known { name: uid.to_string(), until: Some(Instant::now() + NAMELESS_FOR) },
            });
            let name = found.as_ref().ok().map(|known| known.name.clone());
            if let Ok(found) = found {
                let mut known = self.lock();
                if known.len() >= KEPT {
                    known.clear();
                }
                known.insert(uid, found);
            }
            drop((turn, place));
            // Who asked may have gone.
            let _ = tell.send(name);
        };
        std::thread::Builder::new().name("names".into()).spawn(looks_up).ok()?;
        answered.await.ok().flatten()
    }

    async fn turn(&self, payer: u32) -> OwnedMutexGuard<()> {
        let turn = {
            let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
            // What nobody has or waits for is as one that was never there.
            turns.retain(|other, turn| *other == payer || Arc::strong_count(turn) > 1);
            Arc::clone(turns.entry(payer).or_default())
        };
        turn.lock_owned().await
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    /// Else rules by name would not be theirs until the configuration is read again.
    #[test]
    fn users_whom_the_directory_did_not_know_at_boot_are_looked_up_again() {
        static IS_UP: AtomicBool = AtomicBool::new(false);
        let looks_up = |uid| match (IS_UP.load(Ordering::Relaxed), uid) {
            (true, _) => Ok(Some(format!("user {uid}"))),
            (false, 7) => Err(nix::Error::EIO),
            (false, _) => Ok(None),
        };
        let names = Names::new(looks_up, Subordinates::parse(b"", b""), |_| {});
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            assert_eq!(names.of(7).await, None, "an error is no answer");
            assert_eq!(names.of(8).await.as_deref(), Some("8"));
            IS_UP.store(true, Ordering::Relaxed);
            assert_eq!(names.of(7).await.as_deref(), Some("user 7"));
            assert_eq!(names.of(8).await.as_deref(), Some("8"));
            names.lock().get_mut(&8).unwrap().until = Some(Instant::now());
            assert_eq!(names.of(8).await.as_deref(), Some("user 8"));
        });
    }

    #[test]
    fn who_is_looked_up_for_long_keeps_nobody_else_waiting() {
        const SLOW: u32 = 7;
        static ANSWERS: AtomicBool = AtomicBool::new(false);
        static ASKED: Mutex<Vec<u32>> = Mutex::new(Vec::new());
        let looks_up = |uid| {
            ASKED.lock().unwrap().push(uid);
            // Not for ever: where it is waited for, this test is to fail and not to hang.
            for _ in 0..15_000 {
                if uid != SLOW || ANSWERS.load(Ordering::Relaxed) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(2));
            }
            Ok(Some(format!("user {uid}")))
        };
        let names = Names::new(looks_up, Subordinates::parse(b"7:100000:65536", b""), |_| {});
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let asks = |uid| {
                let names = Arc::clone(&names);
                tokio::spawn(async move { names.of(uid).await })
            };
            let (slow, own) = (asks(SLOW), asks(100_001));
            // More than there are places.
            assert_eq!(names.of_all(8..28).await.len(), 20);
            assert_eq!([slow.await.unwrap(), own.await.unwrap()], [None, None], "it is waited for no longer");
            ANSWERS.store(true, Ordering::Relaxed);
            while names.known(SLOW).is_none() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            assert_eq!(names.of(SLOW).await.as_deref(), Some("user 7"));
            let times = |uid| ASKED.lock().unwrap().iter().filter(|asked| **asked == uid).count();
            assert_eq!([times(SLOW), times(100_001)], [1, 0], "a user's ids wait for each other");
            names.forget();
            assert_eq!((names.of(SLOW).await.is_some(), times(SLOW)), (true, 2));
        });
    }
}
