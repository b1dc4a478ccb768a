use super::{PLAIN, opened, press, read, screen};
use crate::app::{Action, App, Columns, Part, View};
use crate::key::Key;
use crate::read::Followed;
use crate::rows;
use crate::snapshot::{JobState, Update};
use crate::tests::sample;
use crate::ui::click;
use std::sync::Arc;

fn run() -> (tempfile::TempDir, App) {
    let dir = tempfile::tempdir().expect("a folder");
    let app = opened(&sample::four_ranks(dir.path()));
    (dir, app)
}

#[test]
fn the_cursor_begins_at_the_rank_that_the_others_wait_for() {
    let (_dir, mut app) = run();
    assert_eq!(rows::rank_at(&app), Some(2));
    press(&mut app, "j");
    assert_eq!(rows::rank_at(&app), Some(3));
    press(&mut app, "g");
    assert_eq!(rows::rank_at(&app), Some(0));
    press(&mut app, "G");
    assert_eq!(rows::rank_at(&app), Some(3));
}

#[test]
fn w_goes_to_the_worst_step_from_anywhere() {
    let (_dir, mut app) = run();
    press(&mut app, "7w");
    assert_eq!(app.view, View::Step);
    let all = rows::steps(&app);
    let at = all[rows::step_place(&app)];
    let longest = app.shown().and_then(|run| run.steps.as_ref()).expect("steps were read")[0].clone();
    assert_eq!((at.rank, at.start_ns), (longest.rank, longest.start_ns));
    let (text, _) = screen(&app, &PLAIN, 80, 24);
    assert!(text.contains("held up by"), "{text}");
}

#[test]
fn a_rank_opens_its_steps_alone() {
    let (_dir, mut app) = run();
    press(&mut app, "\n");
    assert_eq!(app.view, View::Step);
    assert!(!rows::steps(&app).is_empty());
    assert!(rows::steps(&app).iter().all(|step| step.rank == 2));
    app.on_key(Key::Esc);
    read(&mut app);
    assert!(rows::steps(&app).iter().any(|step| step.rank != 2));
}

#[test]
fn a_finding_opens_at_the_time_it_cost_most() {
    let (_dir, mut app) = run();
    press(&mut app, "6j\n");
    assert_eq!(app.view, View::Job);
    let run = app.shown().expect("it is read");
    let checkpoint = run
        .checkpoints
        .iter()
        .any(|event| event.end_ns > run.window.from_ns && event.start_ns < run.window.to_ns);
    assert!(checkpoint, "the time shown has a checkpoint in it: {:?}", app.message);
}

#[test]
fn the_audit_begins_at_its_newest_line_and_follows_it() {
    let (_dir, mut app) = run();
    press(&mut app, "5");
    let last = rows::audit(&app).len() - 1;
    assert_eq!(rows::audit_place(&app), last);
    press(&mut app, "kk");
    assert_eq!((rows::audit_place(&app), app.audit_at), (last - 2, Some(last as u64 - 2)));
    press(&mut app, "G");
    assert_eq!(app.audit_at, None, "what comes next is the newest then");
}

#[test]
fn each_line_of_a_growing_audit_is_read_once() {
    let dir = tempfile::tempdir().expect("a folder");
    let (mut recorder, path) = sample::growing(dir.path(), 3);
    let mut app = opened(&path);
    let wanted = app.ask().run.expect("it is shown");
    let mut followed = Followed::open(&path).expect("a recording");
    let mut lines = |app: &mut App, least: usize| -> Vec<u64> {
        // The recorder writes in a thread of its own, so the lines may take a while to arrive.
        for _ in 0..2000 {
            if let Some(view) = followed.look(&wanted, false).expect("a recording") {
                app.on_update(Update::Run(Arc::new(view)));
            }
            if rows::audit_to_date(app).len() >= least {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        rows::audit_to_date(app).iter().map(|event| event.line).collect()
    };
    assert_eq!(lines(&mut app, 3), [0, 1, 2]);
    press(&mut app, "5k");
    assert_eq!(rows::audit_place(&app), 1);
    sample::more(&mut recorder, 3, 2);
    assert_eq!(lines(&mut app, 5), [0, 1, 2, 3, 4]);
    assert_eq!(rows::audit_place(&app), 1, "the cursor stays on its line");
    app.on_key(Key::Char('G'));
    sample::more(&mut recorder, 5, 1);
    assert_eq!(lines(&mut app, 6).len(), 6);
    assert_eq!(rows::audit_place(&app), 5, "the newest goes on being the newest");
}

#[test]
fn a_line_of_the_audit_is_shown_whole_and_opens_its_moment() {
    let (_dir, mut app) = run();
    press(&mut app, "5/undo\n");
    assert_eq!(rows::audit(&app).len(), 1);
    let (text, _) = screen(&app, &PLAIN, 80, 24);
    for fact in ["by controller", "decision 3", "131 samples/s before, 132 with it", "+1% (-2% to +3%)"] {
        assert!(text.contains(fact), "no {fact} in\n{text}");
    }
    press(&mut app, "\n");
    let run = app.shown().expect("it is read");
    let when =
        rows::audit_to_date(&app).iter().find(|event| event.decision == 3).expect("it was turned").time_ns;
    assert_eq!(app.view, View::Job);
    assert!(run.window.from_ns < when && when < run.window.to_ns, "{:?}", app.message);
}

#[test]
fn a_replay_shows_the_audit_up_to_its_moment() {
    let (_dir, mut app) = run();
    press(&mut app, "5");
    let all = rows::audit_to_date(&app).len();
    press(&mut app, "[[");
    assert!(rows::audit_to_date(&app).len() < all);
    let (text, _) = screen(&app, &PLAIN, 80, 24);
    assert!(!text.contains("drift"), "{text}");
    press(&mut app, "2");
    let (text, _) = screen(&app, &PLAIN, 120, 24);
    assert!(text.contains("tuning: rank 0: prefetch 4 → 16 being tried, expected +12% (0:01:30)"), "{text}");
}

#[test]
fn a_knob_says_why_it_cannot_be_turned_and_opens_its_audit() {
    let (_dir, mut app) = run();
    press(&mut app, "4/rank 3\nj");
    let (text, _) = screen(&app, &PLAIN, 80, 24);
    assert!(text.contains("multiprocessing context that cannot start"), "{text}");
    assert!(text.contains("Rates  rank 3; ") && text.contains("was never read by"), "{text}");
    press(&mut app, "\n");
    assert_eq!(app.view, View::Audit);
    assert!(rows::audit(&app).iter().all(|event| event.knob == "workers"));
    press(&mut app, "4/ and no other\n");
    assert!(screen(&app, &PLAIN, 80, 24).0.contains("no knob matches /rank 3 and no other"));
}

#[test]
fn knobs_of_a_running_job_are_turned_from_the_palette() {
    let (_dir, mut app) = run();
    let entered = |app: &mut App| app.on_key(Key::Enter);
    press(&mut app, ":set workers=4");
    assert_eq!(entered(&mut app), Some(Action::Redraw));
    assert!(app.message.as_ref().is_some_and(|message| message.contains("only a running job's knobs")));
    let mut running = app.shown().expect("it is read").clone();
    running.state = JobState::Running;
    let recording = running.recording.clone();
    app.on_update(Update::Run(Arc::new(running)));
    // The key without a value opens the palette, which asks for one.
    app.on_key(Key::Char('t'));
    "workers=4 --rank 2".chars().for_each(|char| drop(app.on_key(Key::Char(char))));
    let settings = "workers=4 --rank 2".to_owned();
    assert_eq!(entered(&mut app), Some(Action::Turn { recording, settings }));
    app.on_update(Update::Answer("rank 2 has no \u{1b}[2Jworkers".into()));
    let (text, _) = screen(&app, &PLAIN, 80, 24);
    assert!(text.contains("rank 2 has no") && !text.contains('\u{1b}'), "{text}");
}

#[test]
fn a_filter_is_seen_while_it_is_typed_and_taken_back_by_escape() {
    let (_dir, mut app) = run();
    press(&mut app, "/rank 3");
    assert_eq!(rows::ranks(&app).len(), 1);
    let (text, _) = screen(&app, &PLAIN, 80, 24);
    assert!(text.lines().last().is_some_and(|line| line.starts_with("/rank 3")), "{text}");
    app.on_key(Key::Esc);
    assert_eq!(rows::ranks(&app).len(), 4);
    press(&mut app, "/nothing like it\n");
    assert!(rows::ranks(&app).is_empty());
    assert!(screen(&app, &PLAIN, 80, 24).0.contains("no rank matches /nothing like it"));
}

#[test]
fn the_palette_does_what_keys_do() {
    let (_dir, mut app) = run();
    press(&mut app, ":hea\n");
    assert_eq!(app.view, View::Health);
    press(&mut app, ":no such thing\n");
    assert!(app.message.as_ref().is_some_and(|message| message.contains("no such thing")));
    press(&mut app, ":qu");
    assert_eq!(app.on_key(Key::Enter), Some(Action::Quit));
    let mut app = App::new(None);
    press(&mut app, ":");
    assert_eq!(app.on_key(Key::Ctrl('c')), Some(Action::Quit));
}

#[test]
fn sorting_columns_and_parts_go_round() {
    let (_dir, mut app) = run();
    press(&mut app, "s");
    assert_eq!(app.message.as_deref(), Some("by step time"));
    press(&mut app, "sss");
    assert_eq!(app.sorts[View::Job as usize].column, 0);
    press(&mut app, "S");
    assert_eq!(rows::ranks(&app)[0].rank, 3);
    press(&mut app, "cc");
    assert_eq!(app.columns, Columns::Times);
    press(&mut app, "pp");
    assert_eq!(app.part, Some(Part::Ranks));
    app.on_key(Key::Esc);
    assert_eq!((app.part, app.view), (None, View::Job));
}

#[test]
fn time_goes_back_forth_and_plays() {
    let (_dir, mut app) = run();
    let all = app.shown().expect("it is read").window.clone();
    press(&mut app, "+");
    let near = app.shown().expect("it is read").window.clone();
    assert!(near.to_ns - near.from_ns < all.to_ns - all.from_ns);
    press(&mut app, "[");
    assert!(app.shown().expect("it is read").window.to_ns < near.to_ns);
    press(&mut app, "$ ");
    assert!(app.time.playing, "a replay at its end begins anew");
    app.on_tick(20_000_000_000);
    read(&mut app);
    let (text, _) = screen(&app, &PLAIN, 80, 24);
    assert!(text.lines().next().is_some_and(|line| line.contains("▶ 0:00:20")), "{text}");
}

#[test]
fn a_click_chooses_and_a_second_one_opens() {
    let (_dir, mut app) = run();
    let (_, hits) = screen(&app, &PLAIN, 80, 24);
    let (line, _) = *hits.rows.iter().find(|(_, place)| *place == 1).expect("rank 1 is shown");
    click(&mut app, 3, line, &hits);
    assert_eq!((app.view, rows::rank_at(&app)), (View::Job, Some(1)));
    click(&mut app, 3, line, &hits);
    assert_eq!(app.view, View::Step);
    let (columns, _) = hits.tabs.iter().find(|(_, view)| *view == View::Health).expect("a tab").clone();
    click(&mut app, columns.start, 1, &hits);
    assert_eq!(app.view, View::Health);
}
