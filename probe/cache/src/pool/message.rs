//! What crosses the pool's socket. Both sides are on one machine, and numbers lie in its order of bytes.
//!
//! A client says who it is ([`Greeting`]) and gets the space's descriptors or a sentence. These first two messages begin
//! alike in every version: magic, version, length. After that the client sends [`Request`]s, some of which are answered by
//! 8 bytes: the request's number and how.

mod joint;

use crate::policy::PolicyKind;

pub(crate) use joint::Joint;
pub use joint::Member;

pub(crate) const MAGIC: u64 = u64::from_ne_bytes(*b"stallpoo");
pub(crate) const VERSION: u32 = 2;

/// Magic, version, length of the rest.
pub(crate) const FIRST_BYTES: usize = 16;
/// Length of the rest, and what it is.
pub(crate) const HEADER_BYTES: usize = 8;
pub(crate) const ANSWER_BYTES: usize = 8;

/// A longer message ends the conversation.
pub(crate) const MOST_BYTES: usize = 64 * 1024;
/// Of what tells data sets apart.
pub(crate) const MOST_KEY_BYTES: usize = 4096;

/// How a request is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Answer {
    Yes = 1,
    No = 2,
    /// A fill is wanted: its bytes may come.
    Send = 3,
}

impl Answer {
    fn of(number: u32) -> Option<Answer> {
        [Answer::Yes, Answer::No, Answer::Send].into_iter().find(|answer| *answer as u32 == number)
    }

    pub(crate) fn encode(self, request: u32, to: &mut Vec<u8>) {
        to.extend_from_slice(&request.to_ne_bytes());
        to.extend_from_slice(&(self as u32).to_ne_bytes());
    }

    pub(crate) fn decode(bytes: [u8; ANSWER_BYTES]) -> Option<(u32, Answer)> {
        let mut fields = Fields(&bytes);
        Some((fields.u32()?, Answer::of(fields.u32()?)?))
    }
}

/// Which space a client wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Greeting {
    pub(crate) samples: u64,
    pub(crate) capacity_bytes: u64,
    pub(crate) policy: PolicyKind,
    pub(crate) key: Vec<u8>,
}

/// What the pool says to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Welcome {
    /// The index and the data come as descriptors.
    Here {
        data_bytes: u64,
        cgroup: String,
    },
    Refused(String),
}

/// How the other side began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum First {
    /// Of our version, with so many bytes to come.
    Ours(usize),
    Version(u32),
    Foreign,
}

pub(crate) fn first(bytes: [u8; FIRST_BYTES]) -> First {
    let mut fields = Fields(&bytes);
    match (fields.u64(), fields.u32(), fields.u32()) {
        (Some(MAGIC), Some(VERSION), Some(length)) if length as usize <= MOST_BYTES => {
            First::Ours(length as usize)
        }
        (Some(MAGIC), Some(version), _) if version != VERSION => First::Version(version),
        _ => First::Foreign,
    }
}

fn with_first(rest: &[u8]) -> Vec<u8> {
    let mut message = MAGIC.to_ne_bytes().to_vec();
    message.extend_from_slice(&VERSION.to_ne_bytes());
    message.extend_from_slice(&(rest.len() as u32).to_ne_bytes());
    message.extend_from_slice(rest);
    message
}

impl Greeting {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut rest = self.samples.to_ne_bytes().to_vec();
        rest.extend_from_slice(&self.capacity_bytes.to_ne_bytes());
        rest.push(PolicyKind::ALL.iter().position(|kind| *kind == self.policy).unwrap_or(0) as u8);
        rest.extend_from_slice(&self.key);
        with_first(&rest)
    }

    pub(crate) fn decode(rest: &[u8]) -> Option<Greeting> {
        let mut fields = Fields(rest);
        let (samples, capacity_bytes) = (fields.u64()?, fields.u64()?);
        let policy = *PolicyKind::ALL.get(usize::from(fields.u8()?))?;
        let key = fields.0.to_vec();
        (key.len() <= MOST_KEY_BYTES).then_some(Greeting { samples, capacity_bytes, policy, key })
    }
}

impl Welcome {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let rest = match self {
            Welcome::Here { data_bytes, cgroup } => {
                [&[1], &data_bytes.to_ne_bytes()[..], clipped(cgroup).as_bytes()].concat()
            }
            Welcome::Refused(why) => [&[0], clipped(why).as_bytes()].concat(),
        };
        with_first(&rest)
    }

    pub(crate) fn decode(rest: &[u8]) -> Option<Welcome> {
        let mut fields = Fields(rest);
        let here = fields.u8()? == 1;
        let data_bytes = if here { fields.u64()? } else { 0 };
        let text = String::from_utf8_lossy(fields.0).into_owned();
        Some(if here { Welcome::Here { data_bytes, cgroup: text } } else { Welcome::Refused(text) })
    }
}

fn clipped(text: &str) -> &str {
    &text[..text.floor_char_boundary(MOST_BYTES / 2)]
}

/// What a client asks or tells. Those with a `request` are answered.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Request {
    /// `tag`: a sample that is kept, but of another tag, counts as none.
    Claim {
        request: u32,
        id: u32,
        limit_ms: u32,
        tag: Option<u64>,
    },
    /// Has the number of the claim, where there was one.
    Fill {
        request: u32,
        id: u32,
        tag: u64,
        bytes: u64,
        at: u64,
        next_at: u64,
    },
    /// So many bytes of this fill follow, behind the message.
    Bytes {
        request: u32,
        id: u32,
        bytes: u64,
    },
    /// The claim of this number.
    GiveUp {
        request: u32,
        id: u32,
    },
    Used(Vec<(u32, u64, u64)>),
    Planned(Vec<(u32, u64)>),
    Scored(Vec<(u32, f64)>),
    Epoch,
    Resize {
        request: u32,
        capacity_bytes: u64,
    },
    Joint(Joint),
}

/// So many of a list go into one message.
pub(crate) const MOST_LISTED: usize = 2048;

impl Request {
    pub(crate) fn encode(&self, to: &mut Vec<u8>) {
        let start = to.len();
        to.extend_from_slice(&[0; HEADER_BYTES]);
        let kind: u8 = match self {
            Request::Claim { request, id, limit_ms, tag } => {
                put32(to, &[*request, *id, *limit_ms, u32::from(tag.is_some())]);
                put64(to, &[tag.unwrap_or(0)]);
                1
            }
            Request::Fill { request, id, tag, bytes, at, next_at } => {
                put32(to, &[*request, *id]);
                put64(to, &[*tag, *bytes, *at, *next_at]);
                2
            }
            Request::Bytes { request, id, bytes } => {
                put32(to, &[*request, *id]);
                put64(to, &[*bytes]);
                3
            }
            Request::GiveUp { request, id } => {
                put32(to, &[*request, *id]);
                4
            }
            Request::Used(uses) => {
                for (id, at, next_at) in uses {
                    put32(to, &[*id]);
                    put64(to, &[*at, *next_at]);
                }
                5
            }
            Request::Planned(planned) => {
                for (id, next_at) in planned {
                    put32(to, &[*id]);
                    put64(to, &[*next_at]);
                }
                6
            }
            Request::Scored(scored) => {
                for (id, score) in scored {
                    put32(to, &[*id]);
                    put64(to, &[score.to_bits()]);
                }
                7
            }
            Request::Epoch => 8,
            Request::Resize { request, capacity_bytes } => {
                put32(to, &[*request]);
                put64(to, &[*capacity_bytes]);
                9
            }
            Request::Joint(joint) => joint.put(to),
        };
        let length = (to.len() - start - HEADER_BYTES) as u32;
        to[start..start + 4].copy_from_slice(&length.to_ne_bytes());
        to[start + 4] = kind;
    }

    /// How many bytes follow a header; `None`: more than may.
    pub(crate) fn length(header: [u8; HEADER_BYTES]) -> Option<usize> {
        let length = Fields(&header).u32()? as usize;
        (length <= MOST_BYTES).then_some(length)
    }

    /// `None`: it is no request.
    pub(crate) fn decode(header: [u8; HEADER_BYTES], rest: &[u8]) -> Option<Request> {
        let mut f = Fields(rest);
        let request = match header[4] {
            1 => {
                let (request, id, limit_ms, tagged) = (f.u32()?, f.u32()?, f.u32()?, f.u32()?);
                let tag = f.u64()?;
                Request::Claim { request, id, limit_ms, tag: (tagged != 0).then_some(tag) }
            }
            2 => Request::Fill {
                request: f.u32()?,
                id: f.u32()?,
                tag: f.u64()?,
                bytes: f.u64()?,
                at: f.u64()?,
                next_at: f.u64()?,
            },
            3 => Request::Bytes { request: f.u32()?, id: f.u32()?, bytes: f.u64()? },
            4 => Request::GiveUp { request: f.u32()?, id: f.u32()? },
            5 => Request::Used(f.list(|f| Some((f.u32()?, f.u64()?, f.u64()?)))?),
            6 => Request::Planned(f.list(|f| Some((f.u32()?, f.u64()?)))?),
            7 => Request::Scored(f.list(|f| Some((f.u32()?, f64::from_bits(f.u64()?))))?),
            8 => Request::Epoch,
            9 => Request::Resize { request: f.u32()?, capacity_bytes: f.u64()? },
            kind => Request::Joint(Joint::take(kind, &mut f)?),
        };
        f.0.is_empty().then_some(request)
    }
}

fn put32(to: &mut Vec<u8>, values: &[u32]) {
    values.iter().for_each(|value| to.extend_from_slice(&value.to_ne_bytes()));
}

fn put64(to: &mut Vec<u8>, values: &[u64]) {
    values.iter().for_each(|value| to.extend_from_slice(&value.to_ne_bytes()));
}

struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_ne_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_ne_bytes)
    }

    fn list<T>(&mut self, one: impl Fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let mut list = Vec::new();
        while !self.0.is_empty() {
            list.push(one(self)?);
        }
        Some(list)
    }
}

#[cfg(test)]
mod tests;
