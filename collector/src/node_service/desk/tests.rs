#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;
use proptest::prelude::*;
use stallscope_model::{Act, AuditEvent, Estimate, TuneMode};
use stallscope_wire::{CacheAsk, Frozen};

pub(super) const GIB: u64 = 1 << 30;
pub(super) const MIRA: u32 = 4242;
pub(super) const OTTO: u32 = 4343;

pub(super) fn desk(policy: &str) -> Desk {
    let mut desk = Desk::new(Policy::parse(policy).unwrap(), 64 * GIB, Pauses::default());
    desk.shares.open();
    desk
}

pub(super) fn of(uid: u32, label: &str) -> Arrival {
    let user = if uid == MIRA { "mira" } else { "otto" };
    let job = JobHello { name: "train".into(), label: label.into(), ..JobHello::default() };
    Arrival {
        uid,
        payer: uid,
        user: user.into(),
        cgroups: vec!["/user.slice".into()],
        job,
        is_watched: false,
    }
}

pub(super) const MIRAS: &str =
    "[[jobs.rule]]\nmatch = { user = \"mira\" }\nmode = \"act\"\ncache = { max = \"16GiB\" }\n";

/// The number of the one session that is started.
pub(super) fn started(orders: &[ToLauncher]) -> u64 {
    match orders {
        [ToLauncher::Start(start)] => start.id,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_session_is_started_for_those_alone_that_the_policy_names() {
    let mut desk = desk(MIRAS);
    let (mira, first_bytes) = desk.arrive(of(MIRA, ""));
    assert_eq!(first_bytes, 64 << 20);
    let start = Start {
        id: 1,
        uid: MIRA,
        pid: 70,
        start_ticks: 9,
        acts: true,
        all_cores: false,
        rule: 1,
        cache_bytes: 16 * GIB,
        checkpoint_ppm: 0,
    };
    assert_eq!(desk.started(mira, 70, 9), [ToLauncher::Start(start)]);
    let (otto, first_bytes) = desk.arrive(of(OTTO, "act"));
    assert_eq!((desk.started(otto, 80, 9), first_bytes), (vec![], 0));
    let (lowered, first_bytes) = desk.arrive(of(MIRA, "observe"));
    assert_eq!((desk.started(lowered, 90, 9), first_bytes), (vec![], 0));
    let (advised, _) = desk.arrive(of(MIRA, "advise"));
    assert!(matches!(desk.started(advised, 91, 9)[..], [ToLauncher::Start(Start { acts: false, .. })]));
    let mut own = of(MIRA, "");
    own.job.own_mode = Some(TuneMode::Observe);
    let (own, first_bytes) = desk.arrive(own);
    assert_eq!((desk.started(own, 92, 9), first_bytes), (vec![], 0));
    assert_eq!(desk.gone(mira), [ToLauncher::Stop { id: 1 }]);
    assert_eq!(desk.gone(otto), []);
}

#[test]
fn what_is_too_little_for_a_first_cache_begins_none() {
    let first_bytes = |most: &str| {
        let rule = format!("[[jobs.rule]]\nmode = \"act\"\ncache = {{ max = \"{most}\" }}\n");
        desk(&rule).arrive(of(MIRA, "")).1
    };
    assert_eq!(["3MiB", "4MiB", "1GiB"].map(first_bytes), [0, 4 << 20, 4 << 20]);
}

#[test]
fn jobs_of_root_are_left_alone() {
    let mut desk = desk("[[jobs.rule]]\nmode = \"act\"\ncache = { max = \"1GiB\" }\n");
    let (root, first_bytes) = desk.arrive(of(0, ""));
    assert_eq!((desk.started(root, 92, 9), first_bytes), (vec![], 0));
    assert!(
        desk.shown_to(0, Instant::now()).jobs[0].state.starts_with("left alone: "),
        "{:?}",
        desk.shown_to(0, Instant::now())
    );
}

#[test]
fn a_user_sees_their_own_and_root_all_but_what_is_off() {
    let mut desk = desk(&format!("{MIRAS}[[jobs.rule]]\nmatch = {{ label = \"secret\" }}\nmode = \"off\"\n"));
    desk.arrive(of(MIRA, ""));
    desk.arrive(of(OTTO, ""));
    desk.arrive(of(OTTO, "secret"));
    assert_eq!([MIRA, OTTO, 0].map(|uid| desk.shown_to(uid, Instant::now()).jobs.len()), [1, 1, 2]);
}

#[test]
fn a_session_that_fails_is_started_again_a_few_times() {
    let mut desk = desk(MIRAS);
    let (job, _) = desk.arrive(of(MIRA, ""));
    let (mut session, mut now) = (started(&desk.started(job, 70, 9)), Instant::now());
    for pause_s in [2, 4, 8] {
        assert_eq!(desk.ended(session, 1, now), []);
        assert_eq!(desk.tick(now + Duration::from_secs(pause_s - 1)), []);
        now += Duration::from_secs(pause_s);
        session = started(&desk.tick(now));
    }
    assert_eq!(desk.ended(session, 1, now), []);
    assert_eq!(desk.tick(now + Duration::from_secs(3600)), []);
    assert!(
        desk.shown_to(0, Instant::now()).jobs[0].state.contains("ended 4 times"),
        "{:?}",
        desk.shown_to(0, Instant::now())
    );
}

#[test]
fn one_that_fails_after_it_ran_well_is_tried_as_often_again() {
    let mut desk = desk(MIRAS);
    let (job, _) = desk.arrive(of(MIRA, ""));
    let (mut session, mut now) = (started(&desk.started(job, 70, 9)), Instant::now());
    for _ in 0..20 {
        now += RAN_WELL + FIRST_PAUSE;
        assert_eq!(desk.ended(session, 1, now), []);
        now += FIRST_PAUSE;
        session = started(&desk.tick(now));
    }
}

#[test]
fn a_job_that_does_not_begin_keeps_nothing_from_others() {
    let mut desk = desk(MIRAS);
    let (waits, _) = desk.arrive(of(MIRA, ""));
    let now = Instant::now();
    desk.tick(now + BEGINS_WITHIN - Duration::from_secs(10));
    assert_eq!(desk.shares.granted(waits), Some(16 * GIB));
    desk.tick(now + BEGINS_WITHIN + Duration::from_secs(10));
    assert_eq!(desk.shares.granted(waits), None);
    let begun = desk.started(waits, 70, 9);
    assert!(matches!(begun[..], [ToLauncher::Start(Start { cache_bytes, .. })] if cache_bytes == 16 * GIB));
}

#[test]
fn a_session_that_its_user_ended_stays_ended() {
    let mut desk = desk(MIRAS);
    let (job, _) = desk.arrive(of(MIRA, ""));
    let (session, now) = (started(&desk.started(job, 70, 9)), Instant::now());
    assert_eq!(desk.ended(session, i32::from(SessionEnd::Stopped.code()), now), []);
    assert_eq!(desk.tick(now + Duration::from_secs(3600)), []);
    assert!(desk.shown_to(0, Instant::now()).jobs[0].state.contains("its user ended"));
}

#[test]
fn another_policy_ends_sessions_and_starts_their_successors() {
    let mut desk = desk(MIRAS);
    let (job, _) = desk.arrive(of(MIRA, ""));
    let session = started(&desk.started(job, 70, 9));
    assert_eq!(desk.reload(Policy::parse(MIRAS).unwrap()), [], "the same");
    let advise = Policy::parse("[[jobs.rule]]\nmode = \"advise\"\n").unwrap();
    assert_eq!(desk.reload(advise), [ToLauncher::Stop { id: session }]);
    // The successor waits for the end: one controller at a time.
    let stopped = i32::from(SessionEnd::Stopped.code());
    let next = desk.ended(session, stopped, Instant::now());
    assert!(matches!(next[..], [ToLauncher::Start(Start { acts: false, cache_bytes: 0, .. })]), "{next:?}");
    assert_eq!(desk.reload(Policy::default()), [ToLauncher::Stop { id: started(&next) }]);
    assert_eq!(desk.ended(started(&next), stopped, Instant::now()), []);
    assert_eq!(started(&desk.reload(Policy::parse(MIRAS).unwrap())), 3);
}

#[test]
fn what_a_job_reports_is_shown_of_it_and_stands_in_the_audit() {
    let mut desk = desk(MIRAS);
    let (job, _) = desk.arrive(of(MIRA, ""));
    desk.started(job, 70, 9);
    let now = Instant::now();
    let line = AuditEvent {
        act: Act::Keep,
        by: "root\u{1b}[2J".into(),
        knob: "workers".into(),
        measured: Some(Estimate { value: 0.5, low: 0.4, high: 0.6 }),
        ..AuditEvent::default()
    };
    let frozen = Some(Frozen { why: "three had to be undone".into(), left_s: 60 });
    let report = JobReport { line: Some(line), saved_s: 30.0, faster: 0.5, frozen, ..JobReport::default() };
    desk.reported(job, &report, Duration::from_secs(100), now);
    let shown = &desk.shown_to(MIRA, now).jobs[0];
    assert_eq!((shown.saved_s, shown.faster), (30.0, 0.5));
    assert!(shown.frozen.as_ref().unwrap().ends_with("three had to be undone"), "{shown:?}");
    assert_eq!(desk.shown_to(MIRA, now + Duration::from_secs(61)).jobs[0].frozen, None);
    desk.gone(job);
    // Of a job that is gone nothing more is heard.
    desk.reported(job, &report, Duration::from_secs(100), now);
    let events = desk.take_events();
    let acts: Vec<(&str, &str, u32)> =
        events.iter().map(|event| (event.act.as_str(), event.by.as_str(), event.uid)).collect();
    assert_eq!(
        acts,
        [("session", "the service", MIRA), ("keep", "root?[2J", MIRA), ("ended", "the service", MIRA)]
    );
    assert!(events[2].why.contains("saved 30"), "{:?}", events[2]);
}

#[test]
fn memory_of_a_job_that_ends_is_granted_to_others_at_the_next_second() {
    let mut desk = desk("[[jobs.rule]]\nmode = \"act\"\ncache = { max = \"48GiB\", min = \"8GiB\" }\n");
    let (first, _) = desk.arrive(of(MIRA, ""));
    let (second, _) = desk.arrive(of(OTTO, ""));
    let now = Instant::now();
    desk.tick(now);
    assert_eq!(desk.take_grants(), [(first, 48 * GIB), (second, 16 * GIB)]);
    assert_eq!(desk.take_grants(), []);
    let ask = |granted_bytes, saved| JobReport {
        cache: Some(CacheAsk { granted_bytes, held_bytes: 0, benefit: vec![(48 * GIB, saved)] }),
        ..JobReport::default()
    };
    let age = Duration::from_secs(100);
    desk.reported(first, &ask(None, 0.1), age, now);
    desk.reported(second, &ask(None, 0.5), age, now);
    desk.tick(now);
    assert_eq!(desk.take_grants(), [(first, 16 * GIB)], "the other's once this one gave it back");
    desk.reported(first, &ask(Some(16 * GIB), 0.1), age, now);
    desk.tick(now);
    assert_eq!(desk.take_grants(), [(second, 48 * GIB)]);
    desk.gone(second);
    desk.tick(now);
    assert_eq!(desk.take_grants(), [(first, 48 * GIB)]);
    // What it may have is no reason to end its session, and a policy that allows less is obeyed.
    desk.started(first, 70, 9);
    let less = "[[jobs.rule]]\nmode = \"act\"\ncache = { max = \"4GiB\" }\n";
    assert_eq!(desk.reload(Policy::parse(less).unwrap()), []);
    desk.tick(now);
    assert_eq!(desk.take_grants(), [(first, 4 * GIB)]);
    let events = desk.take_events();
    let last = events.last().unwrap();
    assert_eq!(
        (last.act.as_str(), last.from, last.to),
        ("grant", Some(48 * GIB), Some(4 * GIB)),
        "{events:?}"
    );
}

#[test]
fn a_service_that_was_restarted_grants_what_the_one_before_had() {
    let policy = "[[jobs.rule]]\nmode = \"act\"\ncache = { max = \"48GiB\", min = \"8GiB\" }\n";
    let mut desk = Desk::new(Policy::parse(policy).unwrap(), 64 * GIB, Pauses::default());
    let mut back = of(MIRA, "");
    back.job.granted_bytes = Some(40 * GIB);
    let (new, _) = desk.arrive(of(OTTO, ""));
    let (back, _) = desk.arrive(back);
    let begun = desk.started(back, 70, 9);
    assert!(matches!(begun[..], [ToLauncher::Start(Start { cache_bytes, .. })] if cache_bytes == 40 * GIB));
    let now = Instant::now();
    desk.tick(now);
    assert_eq!(desk.take_grants(), []);
    desk.tick(now + RETURN_WITHIN);
    assert_eq!(desk.take_grants(), [(new, 24 * GIB), (back, 40 * GIB)]);
}

#[test]
fn a_policy_without_caches_is_heard_of_by_a_session_that_runs() {
    let mut desk = desk(MIRAS);
    let (mira, _) = desk.arrive(of(MIRA, ""));
    desk.started(mira, 70, 9);
    let now = Instant::now();
    desk.tick(now);
    assert_eq!(desk.take_grants(), [(mira, 16 * GIB)]);
    let without = "[[jobs.rule]]\nmatch = { user = \"mira\" }\nmode = \"act\"\n\
                   [[jobs.rule]]\nmode = \"act\"\ncache = { max = \"64GiB\" }\n";
    assert_eq!(desk.reload(Policy::parse(without).unwrap()), [], "the same session");
    desk.tick(now);
    assert_eq!(desk.take_grants(), [(mira, 0)]);
    // It has not given that back yet.
    let (otto, _) = desk.arrive(of(OTTO, ""));
    assert_eq!(desk.shares.granted(otto), Some(48 * GIB));
    let gave_back = CacheAsk { granted_bytes: Some(0), ..CacheAsk::default() };
    let report = JobReport { cache: Some(gave_back), ..JobReport::default() };
    desk.reported(mira, &report, Duration::from_secs(100), now);
    desk.tick(now);
    assert_eq!(desk.shares.granted(otto), Some(64 * GIB));
    // A session that begins where nothing is granted hears of that, too: its job may know a grant of an earlier service.
    let (again, _) = desk.arrive(of(MIRA, ""));
    desk.take_grants();
    desk.started(again, 71, 9);
    assert_eq!(desk.take_grants(), [(again, 0)]);
}

#[test]
fn what_a_job_keeps_that_is_tuned_no_more_is_granted_to_nobody() {
    let mut desk = desk(MIRAS);
    let (mira, _) = desk.arrive(of(MIRA, ""));
    desk.started(mira, 70, 9);
    let observe = "[[jobs.rule]]\nmatch = { user = \"mira\" }\nmode = \"observe\"\n\
                   [[jobs.rule]]\nmode = \"act\"\ncache = { max = \"64GiB\" }\n";
    desk.reload(Policy::parse(observe).unwrap());
    let (otto, _) = desk.arrive(of(OTTO, ""));
    assert_eq!(desk.granted(otto), 48 * GIB, "its values stay in force");
    desk.reload(Policy::parse(MIRAS).unwrap());
    assert_eq!(desk.granted(mira), 16 * GIB);
    desk.reload(Policy::parse(observe).unwrap());
    desk.gone(mira);
    let (other, _) = desk.arrive(of(OTTO, ""));
    assert_eq!(desk.granted(other), 16 * GIB);
}

#[test]
fn a_session_that_fails_is_in_the_audit() {
    let mut desk = desk(MIRAS);
    let (job, _) = desk.arrive(of(MIRA, ""));
    let session = started(&desk.started(job, 70, 9));
    desk.ended(session, 1, Instant::now());
    let whys: Vec<String> = desk.take_events().into_iter().map(|event| event.why).collect();
    assert_eq!(
        whys,
        ["a session begins by rule 1: act, caches up to 16 GiB", "its session ended and starts again in 2 s"]
    );
}

proptest! {
    /// In any order of arrivals, ends and reloads, and however many ask.
    #[test]
    fn caches_are_never_granted_more_than_there_is(moves in proptest::collection::vec((0..3_u8, 0..40_u64), 0..80)) {
        let reserve = "[node]\nmemory_reserve = \"8GiB\"\n";
        let mut desk = desk(&format!("{reserve}{MIRAS}[[jobs.rule]]\nmode = \"act\"\ncache = {{ max = \"40%\" }}\n"));
        for (what, which) in moves {
            match what {
                0 => drop(desk.gone(which)),
                1 => {
                    desk.tick(Instant::now());
                    desk.arrive(of(if which % 2 == 0 { MIRA } else { OTTO }, ""));
                }
                _ => drop(desk.reload(Policy::parse(&format!("{reserve}{MIRAS}")).unwrap())),
            }
            let sum: u64 = desk.jobs.keys().filter_map(|id| desk.shares.granted(*id)).sum();
            prop_assert!(sum <= 56 * GIB, "{} GiB", sum / GIB);
        }
    }
}
