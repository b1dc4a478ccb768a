//! How a knob is turned, over borrowed atomics, so that the same lines run in shared memory and under loom.
//!
//! A knob has four words and its page one more; each word has one writer:
//!
//! | word        | written by | says |
//! |---|---|---|
//! | `requested` | collector  | the value that is asked for |
//! | `request`   | collector  | the number of that request |
//! | `applied`   | job        | the value in force |
//! | `answer`    | job        | the number of the request that this answers, and how |
//! | `turned`    | collector  | something else with each request, of whichever knob |
//!
//! Why that is right. The collector stores `requested`, then `request`, then `turned`, the last two with release
//! order. A job that loads (with acquire order) a new `turned` therefore finds that request's number or a later
//! one, and beside a number its value or a later one. Should it find a later value beside an earlier number, the
//! later number and another `turned` are still to come, so it looks again: in the end the value asked for last is
//! in force and answered. The job stores `applied`, then `answer` with release order: who finds an answer finds
//! the value of then or a later one, and `applied` alone always is the value in force.
//!
//! There is no lock, so either side may be killed between any two stores. A collector killed before `request` has
//! asked for nothing; one killed before `turned` has asked without ringing, and the next one rings. A job's value
//! never depends on a living collector.
//!
//! The other side may write anything: numbers are only compared, an answer that is none of ours counts as none,
//! and the job checks every value against bounds that only it knows.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering};

/// The ordinal of a request to a slot, and the generation of the knob that it is for. A slot is used again after its knob is
/// gone, and a request for the former knob must not reach the later one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestNumber(u64);

const GENERATION_BITS: u32 = 24;
const STATE_BITS: u32 = 8;

impl RequestNumber {
    /// Before the first request to the knob of `generation`, whose lowest 24 bits count.
    pub const fn none(generation: u32) -> RequestNumber {
        RequestNumber((generation as u64 & ((1 << GENERATION_BITS) - 1)) << 32)
    }

    /// Of the next request to the same knob.
    pub const fn next(self) -> RequestNumber {
        let count = (self.0 as u32).wrapping_add(1);
        RequestNumber(self.0 & !(u32::MAX as u64) | if count == 0 { 1 } else { count as u64 })
    }

    /// Whether something has been asked for.
    pub const fn is_some(self) -> bool {
        self.0 as u32 != 0
    }

    pub const fn same_knob(self, other: RequestNumber) -> bool {
        self.0 >> 32 == other.0 >> 32
    }

    /// As one word, for messages.
    pub const fn word(self) -> u64 {
        self.0
    }
}

/// How the job stands to a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Answer {
    /// The value is the job's own: nothing was asked for, or the job has changed it since.
    #[default]
    Own,
    /// It is in force.
    Applied,
    /// It will be.
    Pending,
    /// It will not be.
    Refused,
}

impl Answer {
    const ALL: [Answer; 4] = [Answer::Own, Answer::Applied, Answer::Pending, Answer::Refused];

    fn of(word: u64) -> Option<Answer> {
        let state = (word & ((1 << STATE_BITS) - 1)) as usize;
        Answer::ALL.get(state).copied()
    }
}

/// What a slot says of its knob, as the job has left it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// In force.
    pub value: u64,
    /// The request that is answered, and how; `None` where the word is no answer.
    pub answered: Option<(RequestNumber, Answer)>,
}

impl Standing {
    /// Value, request and answer, where they are those of the knob of this generation.
    pub fn of(self, generation: u32) -> Option<(u64, RequestNumber, Answer)> {
        let (number, answer) = self.answered?;
        number.same_knob(RequestNumber::none(generation)).then_some((self.value, number, answer))
    }
}

/// The words of one knob.
#[derive(Clone, Copy)]
pub(crate) struct Slot<'a> {
    pub(crate) requested: &'a AtomicU64,
    pub(crate) request: &'a AtomicU64,
    pub(crate) applied: &'a AtomicU64,
    pub(crate) answer: &'a AtomicU64,
}

impl Slot<'_> {
    /// Collector: asks for `value`. The job learns of it once `turned` has changed.
    pub(crate) fn ask(self, number: RequestNumber, value: u64) {
        self.requested.store(value, Ordering::Relaxed);
        self.request.store(number.0, Ordering::Release);
    }

    /// What was asked for last, by whichever collector.
    pub(crate) fn request(self) -> (RequestNumber, u64) {
        let number = RequestNumber(self.request.load(Ordering::Acquire));
        (number, self.requested.load(Ordering::Relaxed))
    }

    /// Job: `value` is in force, and that is how request `number` stands.
    pub(crate) fn answer(self, number: RequestNumber, answer: Answer, value: u64) {
        self.applied.store(value, Ordering::Relaxed);
        self.answer.store(number.0 << STATE_BITS | answer as u64, Ordering::Release);
    }

    /// Collector: how the knob stands.
    pub(crate) fn standing(self) -> Standing {
        let word = self.answer.load(Ordering::Acquire);
        Standing {
            value: self.applied.load(Ordering::Relaxed),
            answered: Answer::of(word).map(|answer| (RequestNumber(word >> STATE_BITS), answer)),
        }
    }
}

#[cfg(all(test, loom))]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    const GENERATION: u32 = 7;
    const REQUESTS: u64 = 2;

    #[derive(Default)]
    struct Words {
        slot: [AtomicU64; 4],
        turned: AtomicU64,
    }

    impl Words {
        fn slot(&self) -> Slot<'_> {
            let [requested, request, applied, answer] = &self.slot;
            Slot { requested, request, applied, answer }
        }
    }

    /// The job's side: takes up what is there, if somebody rang.
    fn look(words: &Words, seen: &mut u64) {
        let turned = words.turned.load(Ordering::Acquire);
        if turned == *seen {
            return;
        }
        *seen = turned;
        let (number, value) = words.slot().request();
        let count = number.0 & u64::from(u32::MAX);
        assert!(count >= turned, "rang for request {turned}, and found number {count}");
        assert!(value >= count * 10, "request {count} came with an earlier one's value {value}");
        words.slot().answer(number, Answer::Applied, value);
    }

    #[test]
    fn in_every_interleaving_the_last_request_comes_into_force_and_no_answer_is_early() {
        loom::model(|| {
            let words = Arc::new(Words::default());
            let job = thread::spawn({
                let words = words.clone();
                move || {
                    let mut seen = 0;
                    look(&words, &mut seen);
                    look(&words, &mut seen);
                    seen
                }
            });
            let mut number = RequestNumber::none(GENERATION);
            for n in 1..=REQUESTS {
                number = number.next();
                words.slot().ask(number, n * 10);
                words.turned.store(n, Ordering::Release);
            }
            let Standing { value, answered } = words.slot().standing();
            if let Some((answered, Answer::Applied)) = answered {
                assert!(value >= (answered.0 & u64::from(u32::MAX)) * 10, "answered before it was in force");
            }
            let mut seen = job.join().unwrap();
            look(&words, &mut seen);
            let standing = words.slot().standing();
            assert_eq!(
                standing,
                Standing { value: REQUESTS * 10, answered: Some((number, Answer::Applied)) }
            );
        });
    }
}
