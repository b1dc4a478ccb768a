use super::{PLAIN, opened, press, screen};
use crate::app::{App, View};
use crate::command::Command;
use crate::render;
use crate::series::{Series, Sum};
use crate::snapshot::{JobRow, JobState, RunView, Update};
use crate::tests::sample;
use crate::theme::{Colours, Theme};
use proptest::prelude::*;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Color;
use stallscope_model::{Cause, Causes, CriticalPiece, Phase, StepDetail, StepLane};
use std::sync::Arc;

fn jobs() -> App {
    let mut causes = Causes::default();
    causes[Cause::Compute] = 40;
    causes[Cause::Fetch] = 60;
    let running = JobRow {
        name: "resnet".into(),
        pid: Some(4821),
        started_wall_ns: 3,
        took_ns: 180_000_000_000,
        ranks: 4,
        steps: 360,
        step_ns: 470_000_000,
        samples: 11_520,
        wall_ns: 169_000_000_000,
        causes,
        trend: vec![0.1, 0.2, 0.5, 0.6, 0.9, 1.0],
        verdict: "fetch-bound: 60% of training time waits for storage; about 101 of 169 seconds".into(),
        recording: "resnet.stall".into(),
        ..JobRow::default()
    };
    let old = JobRow {
        name: "yesterday.stall".into(),
        state: JobState::Killed,
        recording: "yesterday.stall".into(),
        verdict: "compute-bound: no data stall".into(),
        ..running.clone()
    };
    let broken = JobRow {
        name: "broken.stall".into(),
        state: JobState::Unreadable,
        recording: "broken.stall".into(),
        verdict: "broken.stall is damaged".into(),
        ..JobRow::default()
    };
    let mut app = App::new(None);
    app.on_update(Update::Jobs(Arc::new(vec![old, broken, running])));
    app
}

/// Each view of a run, by the key that shows it.
const VIEWS: [(char, &str); 7] = [
    ('2', "job"),
    ('3', "step"),
    ('4', "knobs"),
    ('5', "audit"),
    ('6', "diagnoses"),
    ('7', "health"),
    ('8', "help"),
];

#[test]
fn every_view_of_a_run() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut app = opened(&sample::four_ranks(dir.path()));
    for (key, name) in VIEWS {
        press(&mut app, &key.to_string());
        for (size, width, height) in [("80x24", 80, 24), ("200x60", 200, 60)] {
            let (text, _) = screen(&app, &PLAIN, width, height);
            let path = dir.path().display().to_string();
            insta::assert_snapshot!(format!("{name}-{size}"), text.replace(&path, "DIR"));
        }
    }
}

#[test]
fn a_cache_is_shown_with_its_hits_over_time() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut app = opened(&sample::cached(dir.path()));
    press(&mut app, "2");
    for (width, height) in [(80, 24), (80, 40), (200, 60)] {
        insta::assert_snapshot!(format!("cache-{width}x{height}"), screen(&app, &PLAIN, width, height).0);
    }
    let ascii = Theme { colours: Colours::None, unicode: false };
    let (text, _) = screen(&app, &ascii, 80, 40);
    assert!(text.is_ascii(), "{text}");
    insta::assert_snapshot!("cache-ascii", text);
    let (narrow, _) = screen(&app, &PLAIN, 40, 12);
    assert!(narrow.contains("cache  30% hits"), "{narrow}");
    press(&mut app, "4");
    insta::assert_snapshot!("cache-knobs-80x24", screen(&app, &PLAIN, 80, 24).0);
}

#[test]
fn what_is_held_of_a_jobs_files_is_shown() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut app = opened(&sample::held(dir.path()));
    press(&mut app, "2");
    for (width, seen) in [
        (40, "\nheld   6.0 of 8.0 GiB · 61,000 files\n"),
        (100, "\nheld   6.0 of 8.0 GiB · 61,000 files · 90,000 seen · 7.5 GB read for it\n"),
    ] {
        let (text, _) = screen(&app, &PLAIN, width, 24);
        assert!(text.contains(seen), "{text}");
    }
}

#[test]
fn the_miss_ratio_curve_is_shown_as_far_as_columns_reach() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut app = opened(&sample::with_curve(dir.path()));
    press(&mut app, "2");
    for (width, seen) in [
        (40, "\nmisses 2.0 GiB now 66% · 4.0 GiB 35%\n"),
        (80, "\nmisses 512 MiB 92% · 1.0 GiB 83% · 2.0 GiB now 66% · 4.0 GiB 35% · 6.0 GiB 0%\n"),
        (120, "\nmisses 512 MiB 92% · 1.0 GiB 83% · 2.0 GiB now 66% · 4.0 GiB 35% · 6.0 GiB 0%\n"),
    ] {
        let (text, _) = screen(&app, &PLAIN, width, 24);
        assert!(text.contains(seen), "{text}");
    }
    insta::assert_snapshot!("curve-120x40", screen(&app, &PLAIN, 120, 40).0);
    let ascii = Theme { colours: Colours::None, unicode: false };
    assert!(screen(&app, &ascii, 40, 24).0.contains("\nmisses 2.0 GiB now 66% - 4.0 GiB 35%\n"));
    assert!(!screen(&app, &PLAIN, 40, 12).0.contains("misses"), "a small screen has other things to show");
}

#[test]
fn a_cache_shows_what_it_gave_in_the_time_shown() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut app = opened(&sample::cached(dir.path()));
    press(&mut app, "2");
    let line = |app: &App| {
        let (text, _) = screen(app, &PLAIN, 80, 24);
        text.lines().find(|line| line.starts_with("cache")).expect("a line of the cache").to_owned()
    };
    let whole = line(&app);
    press(&mut app, "+++");
    let newest = line(&app);
    assert!(whole.contains("30% hits") && newest.contains("59% hits"), "{whole}\n{newest}");
    press(&mut app, "0");
    let (text, _) = screen(&app, &PLAIN, 80, 24);
    assert!(text.contains("cache  0% hits"), "nothing was there in the first epoch: {text}");
}

#[test]
fn every_view_of_a_run_without_steps() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut app = opened(&sample::no_steps(dir.path()));
    let mut all = String::new();
    for (key, name) in VIEWS.iter().take(6) {
        press(&mut app, &key.to_string());
        let path = dir.path().display().to_string();
        all.push_str(&format!("--- {name}\n{}", screen(&app, &PLAIN, 80, 24).0.replace(&path, "DIR")));
    }
    insta::assert_snapshot!(all);
}

#[test]
fn every_view_of_a_run_that_is_lost() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = sample::four_ranks(dir.path());
    let lost =
        Update::Lost { recording: path.clone(), reason: "resnet.stall cannot be read: no such file".into() };
    let mut never = App::new(Some(path.clone()));
    never.on_update(lost.clone());
    let mut app = opened(&path);
    app.on_update(lost);
    let mut all = String::new();
    for view in View::ALL.into_iter().skip(1).take(6) {
        (never.view, app.view) = (view, view);
        let (text, _) = screen(&never, &PLAIN, 80, 24);
        assert!(text.contains("no such file") && text.contains("1 shows all jobs"), "{text}");
        let (text, _) = screen(&app, &PLAIN, 80, 24);
        assert!(text.contains("lost") && text.contains("not read any more"), "{text}");
        all.push_str(text.lines().next().unwrap_or_default());
        all.push('\n');
    }
    insta::assert_snapshot!(all);
}

#[test]
fn all_jobs() {
    let mut app = jobs();
    insta::assert_snapshot!("jobs-80x24", screen(&app, &PLAIN, 80, 24).0);
    insta::assert_snapshot!("jobs-200x60", screen(&app, &PLAIN, 200, 60).0);
    press(&mut app, "/yes\n");
    let (text, _) = screen(&app, &PLAIN, 80, 24);
    assert!(text.contains("yesterday") && !text.contains("resnet"), "{text}");
    app.on_update(Update::Jobs(Arc::default()));
    insta::assert_snapshot!("jobs-empty", screen(&app, &PLAIN, 80, 24).0);
    insta::assert_snapshot!("jobs-loading", screen(&App::new(None), &PLAIN, 80, 24).0);
}

#[test]
fn a_terminal_that_is_too_small_says_so() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut app = opened(&sample::four_ranks(dir.path()));
    for view in View::ALL {
        app.view = view;
        assert_eq!(screen(&app, &PLAIN, 50, 3).0.trim_end(), "stallscope needs 40 x 10; this is 50 x 3");
        assert_eq!(screen(&app, &PLAIN, 5, 1).0.trim_end(), "stal…");
    }
}

#[test]
fn without_utf8_all_is_ascii() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut app = opened(&sample::four_ranks(dir.path()));
    let theme = Theme { colours: Colours::Sixteen, unicode: false };
    for (key, name) in VIEWS {
        press(&mut app, &key.to_string());
        let (text, _) = screen(&app, &theme, 120, 40);
        assert!(text.is_ascii(), "{name}: {text}");
    }
    let (text, _) = screen(&jobs(), &theme, 120, 40);
    assert!(text.is_ascii(), "{text}");
    press(&mut app, "2");
    insta::assert_snapshot!("job-ascii", screen(&app, &theme, 80, 24).0);
}

#[test]
fn ten_thousand_ranks_have_a_line_each() {
    let mut series = Series::new(10);
    let mut causes = Causes::default();
    causes[Cause::Fetch] = 7;
    for rank in 0..10_000 {
        series.add(5, rank, &Sum::of(Phase::Training, &causes, 1, 32, 7));
    }
    let run = RunView { window: series.window(0, 10), end_ns: 10, ..RunView::default() };
    let mut app = App::new(Some(run.recording.clone()));
    app.on_update(Update::Run(Arc::new(run)));
    app.execute(Command::Last);
    let (text, _) = screen(&app, &PLAIN, 80, 24);
    assert!(text.contains("10000, none slower") && text.contains("\n  9999 "), "{text}");
}

/// As much as a foreign recording may say of a step. Were each cell of each lane looked for in all pieces, this would take hours.
#[test]
fn a_step_of_a_hundred_thousand_lanes_and_pieces_is_drawn() {
    let many = 0..100_000;
    let lane = |pid| StepLane { pid, role: "worker".into(), segments: Vec::new() };
    let piece = |at: u32| {
        let start_ns = u64::from(at);
        CriticalPiece { start_ns, end_ns: start_ns + 1, cause: Cause::Fetch, lane: at as usize }
    };
    let step = StepDetail {
        rank: 0,
        loader: 0,
        phase: Phase::Training,
        index: 7,
        start_ns: 0,
        end_ns: 100_000,
        lanes: many.clone().map(lane).collect(),
        critical: many.map(piece).collect(),
    };
    let window = Series::new(10).window(0, 100_000);
    let steps = Some(Arc::new(vec![step]));
    let run = RunView { window, steps, end_ns: 100_000, ..RunView::default() };
    let mut app = App::new(Some(run.recording.clone()));
    app.on_update(Update::Run(Arc::new(run)));
    app.execute(Command::Step);
    let (text, _) = screen(&app, &PLAIN, 80, 40);
    assert!(text.contains("\nworker 3\n") && text.contains("Kept in full"), "{text}");
}

#[test]
fn no_background_is_set_and_without_colours_none_is() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut app = opened(&sample::four_ranks(dir.path()));
    for (key, name) in VIEWS {
        press(&mut app, &key.to_string());
        for colours in [Colours::None, Colours::Sixteen, Colours::Millions] {
            let area = Rect::new(0, 0, 120, 40);
            let mut buffer = Buffer::empty(area);
            render::frame(&app, &Theme { colours, unicode: true }, area, &mut buffer);
            assert!(buffer.content.iter().all(|cell| cell.bg == Color::Reset), "{name}");
            let plain = buffer.content.iter().all(|cell| cell.fg == Color::Reset);
            assert!(plain || colours != Colours::None, "{name}");
            // White or black letters would be lost on one of the two backgrounds.
            let lost = |color: Color| matches!(color, Color::White | Color::Black | Color::Gray);
            assert!(!buffer.content.iter().any(|cell| lost(cell.fg)), "{name}");
        }
    }
}

#[test]
fn foreign_names_do_not_steer_the_terminal() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut app = opened(&sample::hostile(dir.path()));
    for (key, name) in VIEWS {
        press(&mut app, &key.to_string());
        for (width, height) in [(80, 24), (200, 60)] {
            let (text, _) = screen(&app, &PLAIN, width, height);
            let steers =
                |char: char| (char.is_control() && char != '\n') || ('\u{202a}'..='\u{202e}').contains(&char);
            assert!(!text.chars().any(steers), "{name}: {text:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_size_and_any_keys_are_drawn(
        keys in "[1-8jkgGsScp/a:q <>+w0$h l\n-]{0,24}", width in 1u16..220, height in 1u16..70, unicode in any::<bool>(),
    ) {
        thread_local! {
            static RUN: (tempfile::TempDir, std::path::PathBuf) = {
                let dir = tempfile::tempdir().expect("a folder");
                let path = sample::four_ranks(dir.path());
                (dir, path)
            };
        }
        let mut app = RUN.with(|(_, path)| opened(path));
        press(&mut app, &keys);
        screen(&app, &Theme { colours: Colours::Millions, unicode }, width, height);
    }
}
