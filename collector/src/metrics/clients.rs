//! Which clients are answered at a time, so that a peer that keeps connections busy keeps no other from its answers.

use super::peer::Peer;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::AbortHandle;

/// Clients that are answered at a time, in all and of one peer.
pub(super) const MOST: usize = 16;
const MOST_OF_ONE: usize = 8;
/// Of one peer within [`WINDOW`]: a scraper asks once in some seconds.
const MOST_IN_WINDOW: u32 = 100;
const WINDOW: Duration = Duration::from_secs(1);

/// Connections that are open, oldest first.
#[derive(Debug, Default)]
pub(super) struct Clients(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    open: Vec<Client>,
    next: u64,
    begun: Option<Instant>,
    /// How many each has made since then.
    made: HashMap<Peer, u32>,
}

#[derive(Debug)]
struct Client {
    number: u64,
    peer: Peer,
    task: Option<AbortHandle>,
}

impl Clients {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a client of `peer`, by its number; `None` where that has its share. Where all places are taken the oldest
    /// client of the peer with most clients goes.
    pub(super) fn admit(&self, peer: Peer, now: Instant) -> Option<u64> {
        let mut state = self.state();
        if state.begun.is_none_or(|begun| now.duration_since(begun) >= WINDOW) {
            state.begun = Some(now);
            state.made.clear();
        }
        let made = state.made.entry(peer).or_default();
        *made = made.saturating_add(1);
        let own = state.open.iter().filter(|client| client.peer == peer).count();
        if state.made[&peer] > MOST_IN_WINDOW || own >= MOST_OF_ONE {
            return None;
        }
        let mut evicted = None;
        if state.open.len() >= MOST {
            let mut counts: HashMap<Peer, usize> = HashMap::new();
            state.open.iter().for_each(|client| *counts.entry(client.peer).or_default() += 1);
            let most = *counts.values().max()?;
            let oldest = state.open.iter().position(|client| counts[&client.peer] == most)?;
            if most <= own + 1 {
                return None;
            }
            evicted = state.open.remove(oldest).task;
        }
        let number = state.next;
        state.next += 1;
        state.open.push(Client { number, peer, task: None });
        drop(state);
        // What ends takes the same lock.
        evicted.inspect(AbortHandle::abort);
        Some(number)
    }

    /// What answers the client ends when its place is needed.
    pub(super) fn is_answered_by(&self, number: u64, task: AbortHandle) {
        let mut state = self.state();
        if let Some(client) = state.open.iter_mut().find(|client| client.number == number) {
            client.task = Some(task);
        }
    }

    pub(super) fn leaves(&self, number: u64) {
        self.state().open.retain(|client| client.number != number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_keeps_connections_open_leaves_others_theirs() {
        let (clients, now) = (Clients::default(), Instant::now());
        let admitted = |uid: u32| clients.admit(Peer::User(uid), now).is_some();
        assert_eq!((0..40).filter(|_| admitted(1)).count(), MOST_OF_ONE);
        assert_eq!((0..40).filter(|_| admitted(2)).count(), MOST_OF_ONE, "all places are taken");
        // Each that comes finds one, of the peers with most.
        assert!((3..10).all(&admitted));
        let most = |uid| clients.state().open.iter().filter(|client| client.peer == Peer::User(uid)).count();
        assert_eq!((most(1) + most(2), clients.state().open.len()), (9, MOST));
        let newest = clients.admit(Peer::User(77), now);
        clients.leaves(newest.unwrap_or_default());
        assert_eq!(clients.state().open.len(), MOST - 1);
        // A peer with one client does not lose it to another with one.
        (100..120).for_each(|uid| {
            admitted(uid);
        });
        assert!((3..10).all(|uid| most(uid) == 1));
        assert!(!admitted(200), "all places are taken by as many");
    }

    #[test]
    fn who_asks_without_end_waits_for_the_next_second() {
        let (clients, now) = (Clients::default(), Instant::now());
        let ask = |uid: u32, now| {
            let number = clients.admit(Peer::User(uid), now);
            number.inspect(|number| clients.leaves(*number)).is_some()
        };
        assert_eq!((0..1000).filter(|_| ask(1, now)).count(), MOST_IN_WINDOW as usize);
        assert!(ask(2, now) && ask(1, now + WINDOW));
    }
}
