//! Names of checkpoints' folders, and which attempt to save one is.

use crate::error::{Error, Result};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::str::FromStr;

/// Steps are padded to this many digits, so that names sort.
const DIGITS: usize = 9;

/// The folder of the attempt-th checkpoint of a step, the first being 1: `step-000000123`, then `step-000000123.2`.
pub(crate) fn folder(step: u64, attempt: u64) -> String {
    let name = format!("step-{step:0DIGITS$}");
    if attempt <= 1 { name } else { format!("{name}.{attempt}") }
}

/// Whether it is the folder of a checkpoint by its name, also of one that was set aside, perhaps under a number of its own.
pub(crate) fn is_of_checkpoint(folder: &Path) -> bool {
    folder.file_name().is_some_and(|name| {
        let number = name.as_bytes().strip_prefix(b"step-").unwrap_or_default();
        number.len() >= DIGITS && number[..DIGITS].iter().all(u8::is_ascii_digit)
    })
}

/// Step and attempt of a folder with such a name.
pub(crate) fn parse(name: &str) -> Option<(u64, u64)> {
    let (step, attempt) = match name.strip_prefix("step-")?.split_once('.') {
        Some((step, attempt)) => (step, attempt.parse().ok()?),
        None => (name.strip_prefix("step-")?, 1),
    };
    let step = step.parse().ok()?;
    (folder(step, attempt) == name).then_some((step, attempt))
}

/// A save that the coordinator has decided on: what all ranks have to know of it. Its text form is one line, to be
/// broadcast; `parse` reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// Step of training.
    pub step: u64,
    /// Folder of the checkpoint.
    pub name: String,
    /// Random, so that parts of different attempts are never taken together.
    pub save: String,
    pub(crate) sequence: u64,
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.name, self.save, self.sequence)
    }
}

impl FromStr for Ticket {
    type Err = Error;

    fn from_str(text: &str) -> Result<Ticket> {
        let ticket = || {
            let mut words = text.split(' ');
            let (name, save, sequence) = (words.next()?, words.next()?, words.next()?.parse().ok()?);
            let (step, _) = parse(name)?;
            let is_id = save.len() == 16 && save.bytes().all(|byte| byte.is_ascii_hexdigit());
            let ticket = Ticket { step, name: name.into(), save: save.into(), sequence };
            (is_id && words.next().is_none()).then_some(ticket)
        };
        ticket()
            .ok_or_else(|| Error::Refused("this is no ticket of a save; broadcast rank 0's as it is".into()))
    }
}

/// 16 hexadecimal digits that nobody else has.
pub(crate) fn random_id() -> String {
    let mut bytes = [0; 8];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    if filled != Ok(bytes.len()) {
        // Distinct enough: ids only tell attempts in one folder apart.
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        bytes = (now.as_nanos() as u64 ^ (u64::from(std::process::id()) << 40)).to_le_bytes();
    }
    format!("{:016x}", u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_step_and_attempt_and_nothing_else_is_one() {
        for (step, attempt) in [(0, 1), (123, 1), (123, 2), (u64::MAX, 17)] {
            assert_eq!(parse(&folder(step, attempt)), Some((step, attempt)));
        }
        for other in [
            "step-",
            "step-12",
            "step-000000012.1",
            "step-000000012.",
            "step--00000012",
            "latest",
            "step-+00000012",
        ] {
            assert_eq!(parse(other), None, "{other}");
        }
    }

    #[test]
    fn a_ticket_survives_being_sent() {
        let ticket = Ticket { step: 7, name: folder(7, 2), save: random_id(), sequence: 9 };
        assert_eq!(ticket.to_string().parse::<Ticket>().unwrap(), ticket);
        for bad in ["", "step-000000007", "../etc 0123456789abcdef 1", "step-000000007 0123456789abcdeg 1"] {
            assert!(bad.parse::<Ticket>().is_err(), "{bad}");
        }
    }
}
