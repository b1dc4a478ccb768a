//! The thread that brings files in: storage may take its time, while what changed is let go.

use crate::dropper::Dropper;
use crate::identity;
use crate::leases::Leases;
use crate::locked::{Headroom, Locked, Means, Refused};
use crate::plan::Name;
use crate::walk::Onwards;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

/// Files under way at most.
const UNDER_WAY: usize = 64;

#[derive(Debug)]
pub(crate) struct Filler {
    orders: Sender<(Name, PathBuf)>,
    done: Receiver<(Name, Result<Locked, Refused>)>,
    under_way: usize,
    pub(crate) account: Arc<Account>,
}

/// What is held and what may be. The thread alone takes; the one that lets go gives back.
#[derive(Debug, Default)]
pub(crate) struct Account {
    held_bytes: AtomicU64,
    target_bytes: AtomicU64,
}

impl Account {
    pub(crate) fn held_bytes(&self) -> u64 {
        self.held_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn target(&self, bytes: u64) {
        self.target_bytes.store(bytes, Ordering::Relaxed);
    }

    /// `None`: no more is held than may be.
    pub(crate) fn exceeds_by(&self) -> Option<u64> {
        self.held_bytes().checked_sub(self.target_bytes.load(Ordering::Relaxed)).filter(|more| *more > 0)
    }
}

impl Headroom for Account {
    fn left_bytes(&self) -> u64 {
        self.target_bytes.load(Ordering::Relaxed).saturating_sub(self.held_bytes())
    }

    fn take(&self, bytes: u64) -> bool {
        let after = self.held_bytes().saturating_add(bytes);
        let fits = after <= self.target_bytes.load(Ordering::Relaxed);
        if fits {
            self.held_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        fits
    }

    fn give_back(&self, bytes: u64) {
        self.held_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Filler {
    /// To be called while this process has one thread.
    ///
    /// # Errors
    /// Neither a process can be made nor a thread: the job's user may have no more of them.
    pub(crate) fn start(mut onwards: Onwards, leases: Leases) -> io::Result<Filler> {
        let mut means = Means { leases, dropper: Dropper::start()? };
        let (orders, ordered) = channel::<(Name, PathBuf)>();
        let (finished, done) = channel();
        let account = Arc::new(Account::default());
        let headroom = Arc::clone(&account);
        let fills = move || {
            identity::read_when_idle();
            for (name, path) in ordered {
                if finished.send((name, Locked::new(&path, &mut onwards, &mut means, &*headroom))).is_err() {
                    break;
                }
            }
        };
        std::thread::Builder::new().name("filler".into()).spawn(fills)?;
        Ok(Filler { orders, done, under_way: 0, account })
    }

    pub(crate) fn takes_more(&self, one_by_one: bool) -> bool {
        self.under_way < if one_by_one { 1 } else { UNDER_WAY }
    }

    pub(crate) fn order(&mut self, name: Name, path: PathBuf) {
        if self.orders.send((name, path)).is_ok() {
            self.under_way += 1;
        }
    }

    pub(crate) fn next_done(&mut self) -> Option<(Name, Result<Locked, Refused>)> {
        let done = self.done.try_recv().ok()?;
        self.under_way -= 1;
        Some(done)
    }
}
