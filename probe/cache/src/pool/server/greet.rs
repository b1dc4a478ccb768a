//! Who comes, which space they mean, and whether there is memory for it.

use super::super::layout::Layout;
use super::super::message::{FIRST_BYTES, First, Greeting, VERSION, Welcome, first};
use super::super::peer::{Goes, Peer};
use super::super::space::Space;
use super::{MANNERS_MS, Server};

impl Server {
    /// Brings a client to its space; `None`: go on with what else it has sent.
    pub(super) fn greet(&mut self, peer: &mut Peer) -> Option<Goes> {
        let mut head = [0; FIRST_BYTES];
        if peer.input.len() < FIRST_BYTES {
            return Some(Goes::On);
        }
        head.iter_mut().zip(&peer.input).for_each(|(to, from)| *to = *from);
        let until_ms = self.now_ms() + MANNERS_MS;
        let length = match first(head) {
            First::Ours(length) => length,
            First::Version(version) => {
                let ours = VERSION;
                refuse(
                    peer,
                    format!("it speaks version {ours}, the job version {version}; end what uses it"),
                    until_ms,
                );
                return None;
            }
            First::Foreign => return Some(Goes::Closed),
        };
        if peer.input.len() < FIRST_BYTES + length {
            return Some(Goes::On);
        }
        peer.input.drain(..FIRST_BYTES);
        let rest: Vec<u8> = peer.input.drain(..length).collect();
        let Some(greeting) = Greeting::decode(&rest) else { return Some(Goes::Closed) };
        match self.space_for(greeting) {
            Ok(number) => {
                let space = self.spaces.get_mut(&number)?;
                let data_bytes = space.data_bytes();
                let welcome = Welcome::Here { data_bytes, cgroup: self.limits.cgroup.clone() }.encode();
                if peer.welcome(&welcome, space) == Goes::Closed {
                    return Some(Goes::Closed);
                }
                space.joined();
                self.empty.remove(&number);
                peer.space = Some(number);
                peer.until_ms = None;
            }
            Err(why) => refuse(peer, why, until_ms),
        }
        None
    }

    fn space_for(&mut self, greeting: Greeting) -> Result<u64, String> {
        let known =
            self.spaces.iter().find(|(_, space)| space.is_meant(&greeting)).map(|(number, _)| *number);
        if let Some(number) = known {
            let unused = self.spaces.get(&number).is_some_and(|space| space.clients() == 0);
            if unused {
                self.fits(Some(number), greeting.capacity_bytes)?;
                let now_ms = self.now_ms();
                self.spaces.entry(number).and_modify(|space| space.resize(greeting.capacity_bytes, now_ms));
            }
            return Ok(number);
        }
        self.fits(None, greeting.capacity_bytes)?;
        let layout = Layout::new(greeting.samples, self.limits.most_bytes).ok_or_else(|| {
            format!("a data set of {} samples is larger than it can tell apart", greeting.samples)
        })?;
        let space = Space::new(greeting, layout).map_err(|error| error.to_string())?;
        let number = self.next;
        self.next += 1;
        self.spaces.insert(number, space);
        Ok(number)
    }

    /// Whether a space may have so many bytes beside the others.
    fn fits(&self, space: Option<u64>, capacity_bytes: u64) -> Result<(), String> {
        let others = self.spaces.iter().filter(|(number, _)| Some(**number) != space);
        let others = others.fold(0, |sum: u64, (_, space)| sum.saturating_add(space.capacity_bytes()));
        let most = self.limits.most_bytes;
        if others.saturating_add(capacity_bytes) <= most {
            return Ok(());
        }
        let beside =
            if others > 0 { format!(" beside the {others} of other data sets") } else { String::new() };
        Err(format!(
            "a cache of {capacity_bytes} bytes{beside} is more than the {most} bytes of memory that this machine or control \
             group has; ask for less"
        ))
    }

    pub(super) fn resize(&mut self, peer: &Peer, capacity_bytes: u64) -> bool {
        let (fits, now_ms) = (self.fits(peer.space, capacity_bytes).is_ok(), self.now_ms());
        if fits && let Some(space) = peer.space.and_then(|number| self.spaces.get_mut(&number)) {
            space.resize(capacity_bytes, now_ms);
        }
        fits
    }
}

pub(super) fn refuse(peer: &mut Peer, why: String, until_ms: u64) {
    peer.say(&Welcome::Refused(why).encode());
    peer.leaving = true;
    peer.until_ms = Some(until_ms);
    // What does not go at once goes when the socket takes it; the turn after this one sees to that.
    let _ = peer.send();
}
