//! What the node's service and the launcher say to each other: records of one length, in which any bytes are a message or none.

use super::read_exactly;
use crate::policy::Mode;
use anyhow::{Result, bail};
use stallscope_store::Retention;
use std::time::Duration;
use tokio::net::unix::OwnedReadHalf;

const TO_BYTES: usize = 48;
const FROM_BYTES: usize = 16;

/// A session to be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Start {
    /// The service's number of it.
    pub(crate) id: u64,
    pub(crate) uid: u32,
    /// Root of the job's process tree, and when that began, in ticks since the machine did.
    pub(crate) pid: u32,
    pub(crate) start_ticks: u64,
    pub(crate) acts: bool,
    /// Workers may be added on cores that others need, too.
    pub(crate) all_cores: bool,
    pub(crate) rule: u32,
    pub(crate) cache_bytes: u64,
    /// Of training, what saves may cost at most, in millionths; 0: what the script says.
    pub(crate) checkpoint_ppm: u32,
}

/// The collector of a job that nobody launched with `run`, to be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Collect {
    /// The service's number of it, from the same row as those of sessions.
    pub(crate) id: u64,
    pub(crate) uid: u32,
    /// Root of the job's process tree, and when that began, in ticks since the machine did.
    pub(crate) pid: u32,
    pub(crate) start_ticks: u64,
    /// Its shim has come; without it there is the kernel's evidence alone.
    pub(crate) has_shim: bool,
    /// Of its user's recordings, which this one joins; `None`: it is not recorded. In whole seconds, at most 2^32, and at least one.
    pub(crate) retention: Option<Retention>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ToLauncher {
    Start(Start),
    Collect(Collect),
    /// A session or a collector is to end.
    Stop {
        id: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FromLauncher {
    /// A session has ended, with its exit code; -1: by a signal.
    Ended { id: u64, code: i32 },
    /// The configuration is to be read again.
    Reload,
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

impl ToLauncher {
    pub(crate) fn encode(&self) -> [u8; TO_BYTES] {
        let words = match self {
            ToLauncher::Start(start) => [
                match (start.acts, start.all_cores) {
                    (false, false) => 1,
                    (true, false) => 2,
                    (false, true) => 6,
                    (true, true) => 7,
                },
                start.id,
                u64::from(start.uid) | u64::from(start.checkpoint_ppm) << 32,
                u64::from(start.pid) | u64::from(start.rule) << 32,
                start.start_ticks,
                start.cache_bytes,
            ],
            ToLauncher::Stop { id } => [3, *id, 0, 0, 0, 0],
            ToLauncher::Collect(collect) => {
                let Collect { id, uid, pid, start_ticks, has_shim, retention } = *collect;
                let (keep_s, most_bytes) = retention
                    .map_or((0, 0), |of| (of.keep.as_secs().min(u64::from(u32::MAX)), of.most_bytes));
                let kind = if has_shim { 4 } else { 5 };
                [kind, id, u64::from(uid), u64::from(pid) | keep_s << 32, start_ticks, most_bytes]
            }
        };
        let mut bytes = [0; TO_BYTES];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// `None` for bytes that are no message.
    pub(crate) fn decode(bytes: &[u8; TO_BYTES]) -> Option<ToLauncher> {
        let [kind, id, uid, both, start_ticks, cache_bytes] =
            [0, 8, 16, 24, 32, 40].map(|at| word(bytes, at));
        match kind {
            1 | 2 | 6 | 7 => Some(ToLauncher::Start(Start {
                id,
                uid: uid as u32,
                checkpoint_ppm: (uid >> 32) as u32,
                pid: both as u32,
                rule: (both >> 32) as u32,
                start_ticks,
                acts: kind == 2 || kind == 7,
                all_cores: kind > 5,
                cache_bytes,
            })),
            3 => Some(ToLauncher::Stop { id }),
            4 | 5 => Some(ToLauncher::Collect(Collect {
                id,
                uid: uid as u32,
                pid: both as u32,
                start_ticks,
                has_shim: kind == 4,
                retention: Some(Retention { keep: Duration::from_secs(both >> 32), most_bytes: cache_bytes })
                    .filter(|of| !of.keep.is_zero()),
            })),
            _ => None,
        }
    }

    pub(super) async fn read(from: &mut OwnedReadHalf) -> Result<ToLauncher> {
        match ToLauncher::decode(&read_exactly(from).await?) {
            Some(message) => Ok(message),
            None => bail!("it sent what is no message"),
        }
    }
}

impl FromLauncher {
    pub(crate) fn encode(&self) -> [u8; FROM_BYTES] {
        let (kind, code, id) = match self {
            FromLauncher::Ended { id, code } => (1_u32, *code, *id),
            FromLauncher::Reload => (2, 0, 0),
        };
        let mut bytes = [0; FROM_BYTES];
        bytes[..4].copy_from_slice(&kind.to_le_bytes());
        bytes[4..8].copy_from_slice(&code.to_le_bytes());
        bytes[8..].copy_from_slice(&id.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; FROM_BYTES]) -> Option<FromLauncher> {
        let first = word(bytes, 0);
        match first as u32 {
            1 => Some(FromLauncher::Ended { id: word(bytes, 8), code: (first >> 32) as u32 as i32 }),
            2 => Some(FromLauncher::Reload),
            _ => None,
        }
    }

    pub(crate) async fn read(from: &mut OwnedReadHalf) -> Result<FromLauncher> {
        match FromLauncher::decode(&read_exactly(from).await?) {
            Some(message) => Ok(message),
            None => bail!("the launcher sent what is no message"),
        }
    }
}

/// Whether a session in this mode changes anything; `None`: the mode takes no session.
pub(crate) fn acts(mode: Mode) -> Option<bool> {
    match mode {
        Mode::Off | Mode::Observe => None,
        Mode::Advise => Some(false),
        Mode::Act => Some(true),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_message_arrives_as_it_was_sent(
            id: u64, uid: u32, pid: u32, start_ticks: u64, acts: bool, all_cores: bool, rule: u32,
            cache_bytes: u64, checkpoint_ppm: u32, keep_s in 1..u32::MAX, is_recorded: bool,
        ) {
            let start = Start { id, uid, pid, start_ticks, acts, all_cores, rule, cache_bytes, checkpoint_ppm };
            let keep = Duration::from_secs(u64::from(keep_s));
            let retention = is_recorded.then_some(Retention { keep, most_bytes: cache_bytes });
            let collect = Collect { id, uid, pid, start_ticks, has_shim: acts, retention };
            for message in [ToLauncher::Start(start), ToLauncher::Collect(collect), ToLauncher::Stop { id }] {
                prop_assert_eq!(ToLauncher::decode(&message.encode()), Some(message));
            }
            for message in [FromLauncher::Ended { id, code: pid as i32 }, FromLauncher::Reload] {
                prop_assert_eq!(FromLauncher::decode(&message.encode()), Some(message));
            }
        }

        #[test]
        fn any_bytes_are_a_message_or_none(bytes in proptest::collection::vec(any::<u8>(), TO_BYTES)) {
            let bytes: [u8; TO_BYTES] = bytes.try_into().unwrap();
            let kind = word(&bytes, 0);
            prop_assert!(ToLauncher::decode(&bytes).is_none() || (1..=7).contains(&kind));
        }
    }
}
