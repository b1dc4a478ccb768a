//! A rank's part in the joint miss-ratio curve: what it sends to the pool, which never makes it wait, and the curve that it gets.

use super::super::board::{JointCurve, Read};
use super::super::message::{Joint, MOST_LISTED, Member, Request};
use super::Client;
use crate::ghost::Tracked;

/// What waits for a pool that takes nothing. Of more all is dropped, and the curve begins anew.
const MOST_WAITING_BYTES: usize = 1 << 20;

/// Of one loader, in the process that trains.
#[derive(Debug)]
pub struct Feed {
    /// A forked child feeds nothing.
    pid: u32,
    member: Member,
    tracked: Tracked,
    epochs: u64,
    /// The connection over which it has joined, or is going to with what waits.
    joined: Option<u64>,
    waiting: Vec<u8>,
    /// Next uses, to be sent behind the uses that they follow.
    planned: Vec<(u32, u64)>,
    last: Option<JointCurve>,
}

impl Feed {
    pub fn new(member: Member) -> Feed {
        Feed {
            pid: std::process::id(),
            tracked: Tracked::of(member.samples),
            member,
            epochs: 0,
            joined: None,
            waiting: Vec::new(),
            planned: Vec::new(),
            last: None,
        }
    }

    /// Which samples it wants to hear of.
    pub fn tracked(&self) -> Tracked {
        self.tracked
    }

    /// A batch of so many samples was handed over, with these of those that stand for all: id, place of the use, and of
    /// the next.
    pub fn used(&mut self, client: &Client, count: u64, tracked: &[(u32, u64, u64)]) {
        let (first, more) = tracked.split_at(tracked.len().min(MOST_LISTED));
        self.put(Joint::Used { count, tracked: first.to_vec() });
        for some in more.chunks(MOST_LISTED) {
            self.put(Joint::Used { count: 0, tracked: some.to_vec() });
        }
        let planned = std::mem::take(&mut self.planned);
        planned.chunks(MOST_LISTED).for_each(|some| self.put(Joint::Planned(some.to_vec())));
        self.tell(client);
    }

    /// Next uses that became known. Sent behind the next batch.
    pub fn planned(&mut self, planned: impl IntoIterator<Item = (u32, u64)>) {
        let tracked = self.tracked;
        self.planned.extend(planned.into_iter().filter(|(id, _)| tracked.has(*id)));
    }

    /// How important samples are from now on.
    pub fn scored(&mut self, client: &Client, scored: impl IntoIterator<Item = (u32, f64)>) {
        let tracked = self.tracked;
        let scored: Vec<(u32, f64)> = scored.into_iter().filter(|(id, _)| tracked.has(*id)).collect();
        scored.chunks(MOST_LISTED).for_each(|some| self.put(Joint::Scored(some.to_vec())));
        self.tell(client);
    }

    /// An epoch begins.
    pub fn epoch(&mut self, client: &Client) {
        self.epochs += 1;
        self.put(Joint::Epoch(self.epochs));
        self.tell(client);
    }

    fn put(&mut self, joint: Joint) {
        Request::Joint(joint).encode(&mut self.waiting);
    }

    fn tell(&mut self, client: &Client) {
        if self.pid != std::process::id() || !self.sent(client) && self.waiting.len() > MOST_WAITING_BYTES {
            self.waiting.clear();
            self.joined = None;
        }
    }

    /// Whether nothing waits any more.
    fn sent(&mut self, client: &Client) -> bool {
        let Some(connection) = client.connected() else { return false };
        if self.joined != Some(connection.serial()) {
            let mut message = Vec::new();
            Request::Joint(Joint::Join(self.member)).encode(&mut message);
            message.append(&mut self.waiting);
            self.waiting = message;
            self.joined = Some(connection.serial());
        }
        let taken = connection.offer(&self.waiting);
        if taken {
            self.waiting.clear();
        }
        taken
    }

    /// The curve of all ranks; `None` before anything is.
    pub fn curve(&mut self, client: &Client) -> Option<&JointCurve> {
        match client.view().map(|view| view.joint(self.member.loader)) {
            Some(Read::Here(curve)) => self.last = Some(curve),
            Some(Read::Other) => self.last = None,
            // The curve before is as good.
            Some(Read::Torn) | None => {}
        }
        self.last.as_ref()
    }

    pub fn rank(&self) -> u32 {
        self.member.rank
    }
}
