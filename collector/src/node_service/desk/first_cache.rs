//! What a job may begin with that nobody launched with `run`: its shim asks before anything is known of it but its process. Until
//! it introduces itself, or a while has passed, so much is kept for it.

use super::introduced::Begins;
use super::{BEGINS_WITHIN, Bounds, Desk, Process};
use crate::options::first_cache_of;
use crate::policy::{JobKnown, Mode};
use std::time::Instant;

/// In the ledger as a job of its own.
#[derive(Debug)]
pub(super) struct Promise {
    id: u64,
    process: Process,
    bytes: u64,
    until: Instant,
}

impl Desk {
    /// What a cache that a job begins with may take, whose shim asks and which is `known` so; 0: none.
    pub(in crate::node_service) fn first_cache(
        &mut self,
        payer: u32,
        process: Process,
        known: &JobKnown,
        now: Instant,
    ) -> u64 {
        if let Some(promise) = self.promises.iter().find(|promise| promise.process == process) {
            return promise.bytes;
        }
        let allowed = self.policy.allows(known, self.node_bytes);
        let bytes = first_cache_of(allowed.cache_bytes);
        let begins = allowed.mode == Mode::Act && bytes <= allowed.cache_bytes;
        if !begins || self.pauses.of_node().is_some() || !self.collectors.pays(Begins::Collector, payer, now)
        {
            return 0;
        }
        self.last_job += 1;
        let id = self.last_job;
        self.shares.enter(id, Bounds { floor: bytes, most: bytes }, None);
        if self.shares.granted(id) != Some(bytes) {
            self.shares.leave(id);
            return 0;
        }
        self.promises.push(Promise { id, process, bytes, until: now + BEGINS_WITHIN });
        bytes
    }

    /// Promises to this process, and those that were not taken up in time, are none any more.
    pub(super) fn drop_promises(&mut self, process: Option<Process>, now: Instant) {
        let shares = &mut self.shares;
        self.promises.retain(|promise| {
            let stays = Some(promise.process) != process && now < promise.until;
            if !stays {
                shares.leave(promise.id);
            }
            stays
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{GIB, MIRA, MIRAS, OTTO, desk, of};
    use super::*;
    use crate::policy::Policy;

    const PROCESS: Process = (70, 9);

    fn known(user: &str) -> JobKnown {
        JobKnown { user: user.into(), ..JobKnown::default() }
    }

    #[test]
    fn a_job_is_kept_its_first_cache_until_it_introduces_itself_or_does_not() {
        let mut desk = desk(MIRAS);
        let now = Instant::now();
        desk.tick(now);
        let free = desk.shares.free();
        assert_eq!(desk.first_cache(OTTO, PROCESS, &known("otto"), now), 0);
        assert_eq!(desk.first_cache(MIRA, PROCESS, &known("mira"), now), 64 << 20);
        assert_eq!(desk.first_cache(MIRA, PROCESS, &known("mira"), now), 64 << 20, "it asks again");
        assert_eq!(desk.shares.free(), free - (64 << 20));
        desk.tick(now + BEGINS_WITHIN);
        assert_eq!(desk.shares.free(), free);

        let later = now + 2 * BEGINS_WITHIN;
        assert_eq!(desk.first_cache(MIRA, PROCESS, &known("mira"), later), 64 << 20);
        let (job, _) = desk.arrive(of(MIRA, ""));
        desk.collected(job, MIRA, PROCESS);
        assert_eq!(desk.shares.free(), free - desk.granted(job), "it is the job's own now");
    }

    #[test]
    fn nothing_is_kept_that_others_have() {
        let mut desk = desk(MIRAS);
        let now = Instant::now();
        let jobs: Vec<u64> = (0..4).map(|_| desk.arrive(of(MIRA, "")).0).collect();
        assert_eq!((jobs.len(), desk.shares.free()), (4, 0), "16 GiB each, of {} GiB", desk.node_bytes / GIB);
        assert_eq!(desk.first_cache(MIRA, PROCESS, &known("mira"), now), 0);
        assert_eq!(desk.promises.len(), 0);
        desk.reload(Policy::default());
        assert_eq!(desk.first_cache(MIRA, PROCESS, &known("mira"), now), 0);
    }
}
