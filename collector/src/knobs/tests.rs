//! A job's processes, played by pages and facts.

use super::*;
use proptest::prelude::*;
use stallscope_ring::{JobSide, SLOTS};

/// A process with two knobs, prefetch and workers, a loader.
struct Played {
    page: JobSide,
    fd: OwnedFd,
}

fn fact(slot: u32, name: &str, loader: Option<u16>) -> KnobFact {
    KnobFact {
        slot,
        generation: slot + 1,
        name: name.into(),
        unit: format!("{name} units"),
        loader,
        value: 4,
        initial: 4,
        min: 1,
        max: 64,
        available: true,
        ..KnobFact::default()
    }
}

impl Played {
    fn new() -> Played {
        let (page, fd) = JobSide::create().unwrap();
        for slot in 0..4 {
            page.answer(slot, RequestNumber::none(slot + 1), Answer::Own, 4);
        }
        Played { page, fd }
    }

    fn tell(&self, knobs: &mut Knobs, connection: u64, rank: u32) {
        knobs.process(connection, rank);
        knobs.arrived(connection, &self.fd).unwrap();
        for (slot, (name, loader)) in
            [("prefetch", 0), ("workers", 0), ("prefetch", 1), ("workers", 1)].into_iter().enumerate()
        {
            knobs.report(connection, fact(slot as u32, name, Some(loader)));
        }
    }

    fn answers(&self, slot: u32, answer: Answer, value: u64) {
        let (number, _) = self.page.request(slot);
        self.page.answer(slot, number, answer, value);
    }
}

fn job(ranks: u32) -> (Knobs, Vec<Played>) {
    let mut knobs = Knobs::default();
    let played: Vec<Played> = (0..ranks)
        .map(|rank| {
            let played = Played::new();
            played.tell(&mut knobs, u64::from(rank) + 10, rank);
            played
        })
        .collect();
    (knobs, played)
}

fn request(knob: &str, value: u64) -> KnobRequest {
    KnobRequest { knob: knob.into(), value, ..KnobRequest::default() }
}

/// Loader 0 trains, loader 1 evaluates.
fn set(knobs: &mut Knobs, requests: &[KnobRequest]) -> Result<Vec<Place>, String> {
    set_where(knobs, requests, &|_, loader| loader == 0)
}

fn set_where(
    knobs: &mut Knobs,
    requests: &[KnobRequest],
    trains: &dyn Fn(u32, u16) -> bool,
) -> Result<Vec<Place>, String> {
    let resolved = knobs.resolve(requests, trains)?;
    knobs.ask(&resolved, "mira");
    Ok(resolved.places())
}

fn the(knobs: &Knobs, rank: u32, loader: u16, name: &str) -> Knob {
    let state = knobs.state();
    state
        .into_iter()
        .find(|knob| (knob.rank, knob.loader, &*knob.name) == (rank, Some(loader), name))
        .unwrap()
}

#[test]
fn a_request_without_a_place_means_the_training_loader_of_every_rank() {
    let (mut knobs, played) = job(2);
    assert_eq!(set(&mut knobs, &[request("prefetch", 32)]), Ok(vec![(0, Some(0)), (1, Some(0))]));
    for job in &played {
        assert_eq!((job.page.request(0).1, job.page.request(2).1), (32, 0));
        assert_ne!(job.page.turned(), 0);
    }
    // Before any loader has trained, all are meant.
    let all = set_where(&mut knobs, &[request("prefetch", 30)], &|_, _| false).unwrap();
    assert_eq!(all.len(), 4);
}

#[test]
fn rank_and_loader_name_one_place() {
    let (mut knobs, played) = job(2);
    let one = KnobRequest { rank: Some(1), loader: Some(1), ..request("workers", 6) };
    assert_eq!(set(&mut knobs, &[one]), Ok(vec![(1, Some(1))]));
    assert_eq!((played[0].page.turned(), played[1].page.request(3).1), (0, 6));
}

#[test]
fn a_request_is_pending_until_the_job_answers() {
    let (mut knobs, played) = job(1);
    let places = set(&mut knobs, &[request("prefetch", 32)]).unwrap();
    let knob = the(&knobs, 0, 0, "prefetch");
    assert_eq!((knob.value, knob.requested, knob.state), (4, Some(32), KnobState::Pending));
    assert!(knob.reason.contains("looks at each batch"), "{}", knob.reason);
    assert!(!knobs.has_answered(&places));
    played[0].answers(0, Answer::Applied, 32);
    let knob = the(&knobs, 0, 0, "prefetch");
    assert_eq!((knob.value, knob.requested, knob.state), (32, Some(32), KnobState::Applied));
    assert_eq!((knob.set_by.as_str(), knob.reason.as_str(), knob.initial), ("mira", "", 4));
    assert!(knobs.has_answered(&places));
}

#[test]
fn a_refusal_waits_for_its_words_and_keeps_the_value() {
    let (mut knobs, played) = job(1);
    let places = set(&mut knobs, &[request("workers", 9)]).unwrap();
    played[0].answers(1, Answer::Refused, 4);
    assert!(!knobs.has_answered(&places), "its reason is still on the way");
    let number = played[0].page.request(1).0.word();
    let reason = "There is no memory for nine.";
    knobs.report(10, KnobFact { reason: reason.into(), answered: number, ..fact(1, "workers", Some(0)) });
    assert!(knobs.has_answered(&places));
    let knob = the(&knobs, 0, 0, "workers");
    assert_eq!((knob.value, knob.state, knob.reason.as_str()), (4, KnobState::Refused, reason));
    // The answer to an earlier request is none to the next one.
    set(&mut knobs, &[request("workers", 3)]).unwrap();
    played[0].answers(1, Answer::Applied, 3);
    assert_eq!(the(&knobs, 0, 0, "workers").reason, "");
}

#[test]
fn what_the_script_sets_afterwards_is_the_scripts() {
    let (mut knobs, played) = job(1);
    set(&mut knobs, &[request("prefetch", 32)]).unwrap();
    played[0].answers(0, Answer::Own, 8);
    let knob = the(&knobs, 0, 0, "prefetch");
    assert_eq!((knob.value, knob.requested, knob.set_by.as_str()), (8, None, ""));
    assert_eq!(knob.state, KnobState::Applied);
}

#[test]
fn all_are_asked_or_none() {
    let (mut knobs, played) = job(1);
    assert!(set(&mut knobs, &[request("prefetch", 8), request("workers", 65)]).is_err());
    assert_eq!(played[0].page.turned(), 0);
    assert!(knobs.state().iter().all(|knob| knob.requested.is_none()));
}

#[test]
fn what_cannot_be_is_answered_with_what_can() {
    let (mut knobs, _played) = job(2);
    let mut refused = |request: KnobRequest| set(&mut knobs, &[request]).unwrap_err();
    assert_eq!(
        refused(request("prefetch", 500)),
        "prefetch=500 is out of bounds: rank 0, loader 0 takes 1 to 64 prefetch units"
    );
    assert_eq!(refused(request("depth", 5)), "there is no knob depth; this job has prefetch and workers");
    assert_eq!(
        refused(KnobRequest { rank: Some(7), ..request("prefetch", 5) }),
        "rank 7 has no knob prefetch; it is there in rank 0 and 1"
    );
    assert_eq!(
        refused(KnobRequest { loader: Some(5), ..request("prefetch", 5) }),
        "loader 5 has no knob prefetch; it is there in loader 0 and 1"
    );
    let nothing = set(&mut Knobs::default(), &[request("prefetch", 5)]).unwrap_err();
    assert!(nothing.starts_with("this job shows no knobs"), "{nothing}");
}

#[test]
fn a_knob_that_cannot_be_turned_says_why_and_does_not_hold_up_the_others() {
    let (mut knobs, _played) = job(2);
    let blind = KnobFact {
        available: false,
        reason: "The loader has no workers.".into(),
        ..fact(SLOTS + 1, "prefetch", Some(0))
    };
    knobs.process(30, 2);
    knobs.report(30, blind);
    let knob = the(&knobs, 2, 0, "prefetch");
    assert_eq!((knob.state, knob.reason.as_str()), (KnobState::Unavailable, "The loader has no workers."));
    assert_eq!(set(&mut knobs, &[request("prefetch", 5)]), Ok(vec![(0, Some(0)), (1, Some(0))]));
    let only = KnobRequest { rank: Some(2), ..request("prefetch", 5) };
    assert_eq!(
        set(&mut knobs, &[only]).unwrap_err(),
        "prefetch cannot be turned here: The loader has no workers."
    );
}

#[test]
fn a_knob_without_its_page_is_shown_and_cannot_be_turned() {
    let mut knobs = Knobs::default();
    knobs.process(1, 0);
    knobs.report(1, fact(0, "prefetch", Some(0)));
    assert_eq!(the(&knobs, 0, 0, "prefetch").state, KnobState::Unavailable);
    assert!(set(&mut knobs, &[request("prefetch", 5)]).is_err());
    // It may come after the words.
    knobs.arrived(1, &Played::new().fd).unwrap();
    assert_eq!(set(&mut knobs, &[request("prefetch", 5)]), Ok(vec![(0, Some(0))]));
}

#[test]
fn a_later_collector_continues_without_a_jump() {
    let (mut first, played) = job(1);
    set(&mut first, &[request("prefetch", 32), request("workers", 9)]).unwrap();
    played[0].answers(0, Answer::Applied, 32);
    played[0].answers(1, Answer::Refused, 4);
    let turned = played[0].page.turned();
    drop(first);

    let mut second = Knobs::default();
    played[0].tell(&mut second, 1, 0);
    let (prefetch, workers) = (the(&second, 0, 0, "prefetch"), the(&second, 0, 0, "workers"));
    assert_eq!((prefetch.value, prefetch.requested, prefetch.state), (32, Some(32), KnobState::Applied));
    assert_eq!((workers.value, workers.requested, workers.state), (4, Some(9), KnobState::Refused));
    assert_eq!(prefetch.set_by, EARLIER);
    assert_eq!(the(&second, 0, 1, "prefetch").requested, None);
    assert_eq!(played[0].page.turned(), turned, "nobody rang");

    set(&mut second, &[request("prefetch", 16)]).unwrap();
    played[0].answers(0, Answer::Applied, 16);
    let knob = the(&second, 0, 0, "prefetch");
    assert_eq!((knob.value, knob.requested, knob.set_by.as_str()), (16, Some(16), "mira"));
}

#[test]
fn a_request_that_a_killed_collector_could_not_announce_is_announced() {
    let (mut first, played) = job(1);
    set(&mut first, &[request("prefetch", 32)]).unwrap();
    let turned = played[0].page.turned();
    let mut second = Knobs::default();
    played[0].tell(&mut second, 1, 0);
    assert_ne!(played[0].page.turned(), turned);
    assert_eq!(the(&second, 0, 0, "prefetch").state, KnobState::Pending);
}

#[test]
fn a_collector_killed_within_a_request_has_asked_for_nothing() {
    let (mut first, played) = job(1);
    set(&mut first, &[request("prefetch", 32)]).unwrap();
    played[0].answers(0, Answer::Applied, 32);
    // The next request's value is there, its number is not.
    let mut page = CollectorSide::open(&played[0].fd).unwrap();
    page.ask(0, page.requested(0).0, 50);
    let mut second = Knobs::default();
    played[0].tell(&mut second, 1, 0);
    let knob = the(&second, 0, 0, "prefetch");
    assert_eq!((knob.value, knob.requested, knob.state), (32, Some(32), KnobState::Applied));
}

#[test]
fn another_knob_in_the_same_slot_inherits_nothing() {
    let (mut knobs, played) = job(1);
    set(&mut knobs, &[request("prefetch", 32)]).unwrap();
    knobs.remove(10, 0);
    assert!(knobs.state().iter().all(|knob| knob.requested.is_none()));
    knobs.report(10, KnobFact { generation: 77, ..fact(0, "interval", None) });
    let knob = knobs.state().into_iter().find(|knob| knob.name == "interval").unwrap();
    assert_eq!((knob.value, knob.requested, knob.state), (4, None, KnobState::Applied));
    assert!(!played[0].page.request(0).0.same_knob(RequestNumber::none(77)));
}

#[test]
fn an_ended_process_leaves_its_knobs_as_they_stood_until_its_rank_is_back() {
    let (mut knobs, played) = job(2);
    set(&mut knobs, &[request("prefetch", 32)]).unwrap();
    played[0].answers(0, Answer::Applied, 32);
    knobs.gone(10);
    assert_eq!(the(&knobs, 0, 0, "prefetch").value, 32);
    let to_the_dead = KnobRequest { rank: Some(0), ..request("prefetch", 5) };
    assert!(set(&mut knobs, &[to_the_dead]).unwrap_err().contains("it is there in rank 1"));
    knobs.process(50, 0);
    knobs.report(50, fact(0, "interval", None));
    assert!(knobs.state().iter().all(|knob| knob.rank == 1 || knob.name == "interval"));
}

#[test]
fn more_knobs_than_anybody_has_still_fit_into_one_message() {
    let mut knobs = Knobs::default();
    for connection in 0..3 {
        knobs.process(connection, connection as u32);
        for slot in 0..1_000 {
            let (name, reason) = ("\u{1f}".repeat(5_000), "\u{10ffff}".repeat(5_000));
            let unit = name.clone();
            knobs.report(
                connection,
                KnobFact { slot, name, unit, reason, available: false, ..fact(0, "", None) },
            );
        }
        knobs.gone(connection);
    }
    let message = stallscope_wire::encode(&stallscope_wire::Reply::Knobs(knobs.state()));
    assert!(message.len() < stallscope_wire::LINE_LIMIT_BYTES, "{}", message.len());
}

proptest! {
    /// Whatever a process says and its page holds: no fault, bounded, and no request beyond the bounds it named.
    #[test]
    fn anything_may_be_reported(
        facts in proptest::collection::vec(
            (any::<u8>(), any::<u32>(), ".{0,20}", any::<bool>(), any::<u64>(), any::<u64>(), any::<u64>()), 0..40),
        pages in proptest::collection::vec((0..SLOTS, any::<u32>(), any::<u64>()), 0..40),
        value in any::<u64>(),
    ) {
        let played = Played::new();
        for (slot, generation, value) in pages {
            played.page.answer(slot, RequestNumber::none(generation).next(), Answer::Applied, value);
        }
        let mut knobs = Knobs::default();
        knobs.process(1, 0);
        knobs.arrived(1, &played.fd).unwrap();
        for (slot, generation, name, available, min, max, number) in facts {
            let fact = KnobFact {
                slot: u32::from(slot), generation, name, available, min, max, value: number,
                reason: "x".repeat(number as usize % 1000), ..KnobFact::default()
            };
            let asked = (slot < 64, fact.name.clone());
            knobs.report(1, fact);
            if set_where(&mut knobs, &[request(&asked.1, value)], &|_, _| true).is_ok() {
                let turned = knobs.state().into_iter().filter(|knob| knob.requested.is_some());
                for knob in turned.filter(|knob| knob.set_by == "mira") {
                    prop_assert!((knob.min..=knob.max).contains(&value) || knob.requested != Some(value));
                }
            }
        }
        prop_assert!(knobs.state().iter().all(|knob| knob.reason.chars().count() <= TEXT));
    }
}
