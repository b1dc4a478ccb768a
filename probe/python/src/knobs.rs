//! What can be turned in this process: knobs are shown to the collector, its requests taken up and answered.
//!
//! The owner of a knob asks [`turned`] once a batch, and only where that says so [`requests`]. Values go through the
//! process's page, words through the connection, which [`introduce`] fills anew for a collector that comes later.

use crate::own_fd::OwnFd;
use crate::{connection, fork, guard};
use pyo3::prelude::*;
use rustix::fd::BorrowedFd;
use stallscope_ring::{Answer, Fact, JobSide, KnobFact, PAGE_VERSION, RequestNumber, SLOTS};
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// The number of a knob that could not even be shown; every function ignores it.
const NOWHERE: u32 = u32::MAX;

/// Knobs that cannot be turned: a process that keeps making new ones shows the latest.
const SHOWN: usize = 64;

/// The page that is in use, never freed; null before the first knob and in a forked child.
static PAGE: AtomicPtr<JobSide> = AtomicPtr::new(ptr::null_mut());
/// [`JobSide::turned`] when requests were last taken up.
static SEEN: AtomicU64 = AtomicU64::new(0);

static KNOBS: Mutex<Option<Knobs>> = Mutex::new(None);

struct Knobs {
    forks: u64,
    page: Option<OwnFd>,
    knobs: Vec<Knob>,
    /// Of the knob shown last.
    generation: u32,
}

struct Knob {
    fact: KnobFact,
    /// The request that was handed out last, and how the last one that was answered stands.
    taken: RequestNumber,
    answered: (RequestNumber, Answer),
}

/// Shows a knob with what is in force now, and gives its slot. One of the same name and loader that is shown
/// already keeps its slot and what is known of it, and is reported as by [`knob_is`].
#[pyfunction]
#[pyo3(signature = (name, unit, value, low, high, loader = None))]
pub(crate) fn knob(name: &str, unit: &str, value: u64, low: u64, high: u64, loader: Option<u16>) -> u32 {
    with(NOWHERE, |knobs| {
        match knobs.called(name, loader) {
            Some(known) if known.fact.available => {
                known.is(value, low, high);
                return known.fact.slot;
            }
            Some(known) => {
                let slot = known.fact.slot;
                knobs.gone(slot);
            }
            None => {}
        }
        let (min, max) = (low, high);
        let mut fact = KnobFact {
            name: name.into(),
            unit: unit.into(),
            loader,
            value,
            initial: value,
            min,
            max,
            available: true,
            ..KnobFact::default()
        };
        match knobs.free_slot() {
            Ok(slot) => fact.slot = slot,
            Err(reason) => {
                fact.available = false;
                fact.reason = reason.into();
            }
        }
        knobs.show(fact)
    })
}

/// The script or the job itself has set the knob, or its bounds are others now.
#[pyfunction]
pub(crate) fn knob_is(slot: u32, value: u64, low: u64, high: u64) {
    with((), |knobs| {
        if let Some(knob) = knobs.at(slot) {
            knob.is(value, low, high);
        }
    });
}

/// Shows a knob that cannot be turned here, and why: a sentence. Gives a number for [`knob_gone`].
#[pyfunction]
#[pyo3(signature = (name, unit, value, loader, reason))]
pub(crate) fn knob_unavailable(name: &str, unit: &str, value: u64, loader: Option<u16>, reason: &str) -> u32 {
    with(NOWHERE, |knobs| {
        let mut initial = value;
        if let Some(known) = knobs.called(name, loader) {
            if !known.fact.available && known.fact.value == value && known.fact.reason == reason {
                return known.fact.slot;
            }
            initial = known.fact.initial;
            let slot = known.fact.slot;
            knobs.gone(slot);
        }
        let reason = reason.into();
        let (name, unit) = (name.into(), unit.into());
        knobs.show(KnobFact { name, unit, loader, value, initial, reason, ..KnobFact::default() })
    })
}

/// The knob is no more.
#[pyfunction]
pub(crate) fn knob_gone(slot: u32) {
    with((), |knobs| knobs.gone(slot));
}

/// Whether a request waits that nobody has taken up.
#[pyfunction]
pub(crate) fn turned() -> bool {
    guard::observe(false, || page().is_some_and(|page| page.turned() != SEEN.load(Ordering::Relaxed)))
}

/// `(slot, value)` of all requests that are not answered yet.
#[pyfunction]
pub(crate) fn requests() -> Vec<(u32, u64)> {
    with(Vec::new(), |knobs| {
        let Some(page) = page() else { return Vec::new() };
        // Before the requests: one that comes meanwhile rings again.
        SEEN.store(page.turned(), Ordering::Relaxed);
        let mut waiting = Vec::new();
        for knob in knobs.knobs.iter_mut().filter(|knob| knob.fact.available) {
            let (number, value) = page.request(knob.fact.slot);
            let (answered, _) = knob.answered;
            if !number.is_some() || !number.same_knob(answered) || number == answered {
                continue;
            }
            knob.taken = number;
            let KnobFact { min, max, value: in_force, .. } = knob.fact;
            if (min..=max).contains(&value) {
                waiting.push((knob.fact.slot, value));
            } else {
                let reason = format!("{value} is out of its bounds, {min} to {max}.");
                knob.answer(Answer::Refused, in_force, &reason);
            }
        }
        waiting
    })
}

/// How the request that [`requests`] gave for this knob stands ("applied", "pending", "refused"), the value in force
/// now, and a sentence where there is something to say.
#[pyfunction]
pub(crate) fn answer(slot: u32, value: u64, state: &str, reason: &str) {
    let answer = match state {
        "applied" => Answer::Applied,
        "pending" => Answer::Pending,
        "refused" => Answer::Refused,
        _ => return,
    };
    with((), |knobs| {
        if let Some(knob) = knobs.at(slot) {
            knob.answer(answer, value, reason);
        }
    });
}

/// Hands the page to a collector that knows nothing yet, and gives what there is to say of the knobs; `None` where
/// `hand_over` gave up.
pub(crate) fn introduce(hand_over: impl FnOnce(&Fact, BorrowedFd<'_>) -> Option<()>) -> Option<Vec<Fact>> {
    let Ok(mut guard) = KNOBS.try_lock() else { return Some(Vec::new()) };
    let Some(knobs) = guard.as_mut().filter(|knobs| knobs.forks == fork::generation()) else {
        return Some(Vec::new());
    };
    if let Some(old) = page()
        && knobs.page.as_ref().is_none_or(|fd| fd.checked().is_none())
    {
        let (page, fd) = old.copy().ok()?;
        knobs.page = Some(OwnFd::adopt(fd)?);
        PAGE.store(Box::leak(Box::new(page)), Ordering::Release);
    }
    if let Some(page) = &knobs.page {
        hand_over(&Fact::Page { version: PAGE_VERSION }, page.checked()?)?;
    }
    Some(knobs.knobs.iter().map(|knob| Fact::Knob(knob.fact.clone())).collect())
}

/// In a forked child: the knobs are the parent's.
pub(crate) fn forget() {
    PAGE.store(ptr::null_mut(), Ordering::Release);
    if let Ok(mut guard) = KNOBS.try_lock() {
        *guard = None;
    }
}

#[inline]
fn page() -> Option<&'static JobSide> {
    // SAFETY: null, or a page that was leaked and thus lives as long as the process.
    unsafe { PAGE.load(Ordering::Acquire).as_ref() }
}

fn with<T: Clone>(otherwise: T, work: impl FnOnce(&mut Knobs) -> T) -> T {
    guard::observe(otherwise.clone(), || {
        let Ok(mut guard) = KNOBS.try_lock() else { return otherwise };
        let forks = fork::generation();
        let knobs = guard.take_if(|knobs| knobs.forks == forks).unwrap_or_else(|| Knobs {
            forks,
            page: None,
            knobs: Vec::new(),
            generation: 0,
        });
        work(guard.insert(knobs))
    })
}

impl Knobs {
    fn called(&mut self, name: &str, loader: Option<u16>) -> Option<&mut Knob> {
        self.knobs.iter_mut().find(|knob| knob.fact.name == name && knob.fact.loader == loader)
    }

    fn at(&mut self, slot: u32) -> Option<&mut Knob> {
        self.knobs.iter_mut().find(|knob| knob.fact.slot == slot && knob.fact.available)
    }

    /// A place in the page, which is made where there is none; else why there is no place.
    fn free_slot(&mut self) -> Result<u32, &'static str> {
        if page().is_none() {
            let (page, fd) = JobSide::create().map_err(|_| "The kernel gives no memory for its page.")?;
            self.page = Some(OwnFd::adopt(fd).ok_or("The kernel cannot name its page.")?);
            SEEN.store(page.turned(), Ordering::Relaxed);
            PAGE.store(Box::leak(Box::new(page)), Ordering::Release);
            let fd = self.page.as_ref().and_then(OwnFd::checked);
            connection::say(&Fact::Page { version: PAGE_VERSION }, fd);
        }
        let taken = |slot| self.knobs.iter().any(|knob| knob.fact.slot == slot);
        (0..SLOTS).find(|slot| !taken(*slot)).ok_or("The process has as many knobs as it can have.")
    }

    fn show(&mut self, mut fact: KnobFact) -> u32 {
        self.generation = self.generation.wrapping_add(1);
        fact.generation = self.generation;
        let none = RequestNumber::none(fact.generation);
        if fact.available {
            // What is still asked of the slot's former knob bears another generation.
            if let Some(page) = page() {
                page.answer(fact.slot, none, Answer::Own, fact.value);
            }
        } else {
            fact.slot = SLOTS.saturating_add(fact.generation);
            let shown = || self.knobs.iter().filter(|knob| !knob.fact.available);
            let oldest = shown().next().map(|knob| knob.fact.slot);
            if let Some(oldest) = oldest.filter(|_| shown().count() >= SHOWN) {
                self.gone(oldest);
            }
        }
        let slot = fact.slot;
        connection::say(&Fact::Knob(fact.clone()), None);
        self.knobs.push(Knob { fact, taken: none, answered: (none, Answer::Own) });
        slot
    }

    fn gone(&mut self, slot: u32) {
        let shown = self.knobs.len();
        self.knobs.retain(|knob| knob.fact.slot != slot);
        if self.knobs.len() < shown {
            connection::say(&Fact::KnobGone { slot }, None);
        }
    }
}

impl Knob {
    fn is(&mut self, value: u64, min: u64, max: u64) {
        if (min, max) != (self.fact.min, self.fact.max) {
            (self.fact.min, self.fact.max) = (min, max);
            connection::say(&Fact::Knob(self.fact.clone()), None);
        }
        if value != self.fact.value {
            let (number, answer) = self.answered;
            // What is to come, comes all the same.
            let answer = if answer == Answer::Pending { answer } else { Answer::Own };
            self.stands(number, answer, value);
        }
    }

    fn answer(&mut self, answer: Answer, value: u64, reason: &str) {
        if !self.taken.is_some() {
            return;
        }
        // The words go first, so that they are there when the page says that there is an answer.
        let had_reason = !std::mem::replace(&mut self.fact.reason, reason.into()).is_empty();
        self.fact.answered = self.taken.word();
        self.fact.value = value;
        if had_reason || !reason.is_empty() {
            connection::say(&Fact::Knob(self.fact.clone()), None);
        }
        self.stands(self.taken, answer, value);
    }

    fn stands(&mut self, number: RequestNumber, answer: Answer, value: u64) {
        self.fact.value = value;
        self.answered = (number, answer);
        if let Some(page) = page() {
            page.answer(self.fact.slot, number, answer, value);
        }
    }
}
