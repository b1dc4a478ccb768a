//! What is in the file.

use crate::runs::{HOSTILE, agree, hostile, page, recorded, report};
use crate::support;
use crate::support::recordings::two_hosts;
use proptest::prelude::*;
use sha2::{Digest, Sha256};
use stallscope_model::*;
use stallscope_reports::{Run, StepWalls};
use stallscope_store::{Rollup, RollupPeriod};

/// The texts between `before` and the next `after`.
fn between<'a>(page: &'a str, before: &str, after: &str) -> Vec<&'a str> {
    let rest = page.split(before).skip(1);
    rest.map(|rest| rest.split(after).next().unwrap_or_default()).collect()
}

#[test]
fn the_policy_lets_in_the_style_and_the_script_of_the_page_alone() {
    let page = page(&Run::of_summary(support::fetch_bound()));
    let policy = between(&page, "Content-Security-Policy\" content=\"", "\"")[0].replace("&#39;", "'");
    assert!(policy.starts_with("default-src 'none'; "), "{policy}");
    for (directive, element) in [("style-src", "<style>"), ("script-src", "<script>")] {
        let text = between(&page, element, "</")[0];
        let hash = base64(&Sha256::digest(text));
        assert!(
            policy.contains(&format!("{directive} 'sha256-{hash}'")),
            "{element} is sha256-{hash} now, not in {policy}"
        );
    }
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let bits = (0..3)
            .fold(0usize, |bits, place| bits << 8 | usize::from(three.get(place).copied().unwrap_or(0)));
        for place in 0..4 {
            let digit = DIGITS[bits >> (18 - 6 * place) & 63];
            text.push(if place <= three.len() { digit as char } else { '=' });
        }
    }
    text
}

#[test]
fn nothing_in_the_page_points_outside_it() {
    let page = page(&recorded(2).run);
    for word in ["http:", "https:", "//", " src=", "@import", "<iframe", "<object", "<base"] {
        let shown: Vec<&str> =
            page.lines().filter(|line| line.contains(word) && !line.starts_with("//")).collect();
        assert!(shown.is_empty(), "{word}: {shown:?}");
    }
    assert!(between(&page, "url(", ")").iter().all(|address| address.starts_with('#')));
    // An empty icon is there so that no browser asks the server for one.
    let inside = |address: &&str| address.starts_with('#') || *address == "data:,";
    assert!(between(&page, " href=\"", "\"").iter().all(inside));
}

/// Pointers and values of a page's figures.
fn figures(page: &str) -> Vec<(String, String)> {
    let cells = between(page, " data-value=\"", ">").into_iter().filter_map(|cell| {
        let (exact, rest) = cell.split_once('"')?;
        let source = rest.split_once("data-source=\"")?.1.trim_end_matches('"');
        Some((source.to_owned(), exact.to_owned()))
    });
    cells.collect()
}

#[test]
fn figures_are_those_of_the_json_report() {
    for ranks in [1, 3] {
        let recorded = recorded(ranks);
        let page = page(&recorded.run);
        let report = report(&recorded.run);
        let figures = figures(&page);
        assert!(figures.len() > 40, "{}", figures.len());
        agree(&figures, &report);
        let block = between(&page, "id=\"run\">", "</script>")[0];
        assert_eq!(serde_json::from_str::<serde_json::Value>(block).unwrap(), report);
    }
}

#[test]
fn caches_are_drawn_over_time_and_listed_by_loader() {
    let page = page(&recorded(2).run);
    let section = between(&page, "<section id=\"cache\"", "</section>")[0];
    assert!(section.contains("39% hits (8% prefetched)") && section.contains("5.0 of 6.0 MiB"), "{section}");
    for fill in ["reused", "prefetched", "substituted", "missed"] {
        assert!(section.contains(&format!("fill=\"url(#fill-{fill})\"")), "{fill} is not drawn");
        assert!(page.contains(&format!("<pattern id=\"fill-{fill}\"")), "{fill} has no pattern");
    }
    assert_eq!(
        section.matches("<th scope=\"row\"").count(),
        2 * 3,
        "two ranks in training, one in evaluation"
    );
}

#[test]
fn a_curve_is_drawn_with_the_present_size_and_has_its_table() {
    let page = page(&recorded(1).run);
    let section = between(&page, "<section id=\"cache\"", "</section>")[0];
    assert!(section.contains("What other sizes would miss"), "{section}");
    let chart = between(section, "aria-labelledby=\"curve-chart-0-t curve-chart-0-d\"", "</svg>")[0];
    assert_eq!(
        (chart.matches("class=\"curve\"").count(), chart.matches("class=\"curve-point\"").count()),
        (5, 5)
    );
    assert!(chart.contains("class=\"mark\"") && chart.contains("now 6.0 MiB: 75% missed"), "{chart}");
    // Who cannot see the chart hears it, and finds the figures in a table.
    assert!(chart.contains("6.0 MiB 75%") && chart.contains("The table below has the figures"), "{chart}");
    let table = section.rsplit("<table").next().unwrap();
    assert!(table.contains("<caption>What caches of other sizes would miss"), "{table}");
    assert_eq!(table.matches("<th scope=\"row\"").count(), 5);
    assert_eq!(table.matches(">now<").count(), 1);

    // One of several: each is drawn, and named.
    let page = crate::runs::page(&Run::of_summary(support::two_caches()));
    assert_eq!(page.matches("class=\"mark\"").count(), 2);
    assert!(page.contains("Of loader 0.") && page.contains("Of loader 1."));
    // Where nobody knows, the page says so.
    let page = crate::runs::page(&Run::of_summary(support::mixed()));
    assert!(page.contains("ranks of several jobs draw from one cache") && !page.contains("curve-chart"));
    // Of ranks that share a cache it is the job's, and drawn once.
    let page = crate::runs::page(&Run::of_summary(support::divided()));
    assert_eq!(page.matches("class=\"mark\"").count(), 1);
    assert!(!page.contains("Of rank") && !page.contains("Of loader"));
}

#[test]
fn names_are_shown_and_do_nothing() {
    let mut recorded = recorded(2);
    let plain = page(&recorded.run);
    hostile(&mut recorded.run);
    let page = page(&recorded.run);
    for word in ["<script", "</script", "<img", "<svg/", "</svg", "{{7"] {
        let (had, has) = (plain.matches(word).count(), page.matches(word).count());
        assert!(has <= had || word == "{{7", "{word}: {has} times");
    }
    assert!(!page.chars().any(|char| char != '\n' && char.is_control() || char == '\u{202e}'));
    let shown =
        page.matches("&lt;img src=x onerror=hacked=2&gt;").count() + page.matches("&#60;img src=x").count();
    assert!(shown > 20, "{shown}");
    assert_eq!(report(&recorded.run)["job"]["name"], HOSTILE);
}

#[test]
fn what_is_missing_is_reported() {
    let page = page(&Run::of_summary(RunSummary::default()));
    let sections = between(&page, "<section id=\"", "</section>");
    assert_eq!(sections.len(), 13);
    for section in sections {
        let id = section.split('"').next().unwrap();
        let says = ["class=\"remark\"", "class=\"facts\""].iter().any(|class| section.contains(class));
        assert!(says, "{id} is empty");
        assert!(!section.contains("class=\"plot\""), "{id} draws nothing");
    }
}

#[test]
fn damaged_steps_leave_the_roll_ups() {
    let folder = tempfile::TempDir::new().expect("a temporary folder");
    let path = madeup::record(&folder.path().join("run.stall"), &madeup::Shape::default());
    let recording = rusqlite::Connection::open(&path).expect("a recording");
    assert!(recording.execute("UPDATE step SET phase = 'nonsense' WHERE id > 100", []).expect("rows") > 0);
    drop(recording);
    let run = Run::open(&[path]).expect("its summary is sound");
    let page = page(&run);
    assert!(page.contains("id=\"over-time-chart-t\""));
    assert!(
        !run.notes.is_empty() && run.notes.iter().all(|note| page.contains(note.split(':').next().unwrap()))
    );
}

#[test]
fn recordings_of_several_machines_make_one_page() {
    let folder = tempfile::TempDir::new().expect("a temporary folder");
    let [one, other] = two_hosts();
    let paths = [one.record(folder.path(), "one.stall"), other.record(folder.path(), "other.stall")];
    let run = Run::open(&paths).expect("recordings of one job");
    let page = page(&run);
    agree(&figures(&page), &report(&run));
    let ranks = between(&page, "<section id=\"ranks\"", "</section>")[0];
    assert!(run.hosts.len() > 1 && run.hosts.iter().all(|host| ranks.contains(&host.host)), "{ranks}");
}

#[test]
fn of_many_ranks_the_slowest_are_shown_and_all_are_summed() {
    let page = page(&Run::of_summary(support::straggler(10_000)));
    let ranks = between(&page, "<section id=\"ranks\"", "</section>")[0];
    assert!(ranks.contains("Rank 2 is the slowest"), "{}", &ranks[..400]);
    assert_eq!(ranks.matches("<th scope=\"row\"").count(), 33);
    assert!(ranks.contains("all 10,000"));
    let workers = between(&page, "<section id=\"workers\"", "</section>")[0];
    assert_eq!(workers.matches("<th scope=\"row\"").count(), 32);
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(u64::MAX), 0..100u64, 0..100_000_000_000u64, any::<u64>()]
}

fn any_detail() -> impl Strategy<Value = StepDetail> {
    let segment = (number(), number(), prop::sample::select(&Doing::ALL[..]));
    let piece = (number(), number(), prop::sample::select(&Cause::ALL[..]), 0..5usize);
    let lanes = prop::collection::vec(prop::collection::vec(segment, 0..4), 0..4);
    (number(), number(), lanes, prop::collection::vec(piece, 0..4)).prop_map(
        |(start_ns, end_ns, lanes, critical)| {
            let lane = |segments: Vec<(u64, u64, Doing)>| StepLane {
                pid: 7,
                role: "worker".into(),
                segments: segments
                    .into_iter()
                    .map(|(start_ns, end_ns, doing)| Segment { start_ns, end_ns, doing })
                    .collect(),
            };
            StepDetail {
                rank: 0,
                loader: 0,
                phase: Phase::Training,
                index: start_ns,
                start_ns,
                end_ns,
                lanes: lanes.into_iter().map(lane).collect(),
                critical: critical
                    .into_iter()
                    .map(|(start_ns, end_ns, cause, lane)| CriticalPiece { start_ns, end_ns, cause, lane })
                    .collect(),
            }
        },
    )
}

fn any_rollup() -> impl Strategy<Value = Rollup> {
    let numbers = [(); 16].map(|()| number());
    (numbers, prop::sample::select(&Phase::ALL[..])).prop_map(|(numbers, phase)| {
        let [start_ns, steps, samples, step_p50_ns, step_p95_ns, step_max_ns, causes @ ..] = numbers;
        Rollup {
            period: RollupPeriod::TenSeconds,
            start_ns,
            rank: 0,
            loader: 0,
            phase,
            steps,
            samples,
            causes: Causes(causes),
            step_p50_ns,
            step_p95_ns,
            step_max_ns,
        }
    })
}

fn any_checkpoint() -> impl Strategy<Value = CheckpointEvent> {
    (number(), number(), number(), any::<bool>()).prop_map(|(start_ns, end_ns, bytes, background)| {
        CheckpointEvent {
            rank: 0,
            start_ns,
            end_ns,
            saver: "torch.save".into(),
            cause: Cause::Persist,
            background,
            bytes,
        }
    })
}

fn any_period([start_ns, worker, wall_ns, fetch_ns, cpu_ns, idle_ns]: [u64; 6]) -> WorkerPeriod {
    let load = WorkerLoad { wall_ns, fetch_ns, cpu_ns, idle_ns, ..WorkerLoad::default() };
    WorkerPeriod { start_ns, rank: 0, loader: 0, worker: worker as u32, load }
}

fn any_cache([start_ns, hits, substitutions, misses, prefetched, bytes]: [u64; 6]) -> CachePeriod {
    let uses =
        CacheUses { hits, substitutions, misses, prefetched, source_bytes: bytes, ..CacheUses::default() };
    let state = CacheState { kept_bytes: bytes, capacity_bytes: hits, ..CacheState::default() };
    CachePeriod { start_ns, rank: 0, loader: 0, phase: Phase::Training, uses, state: Some(state) }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn no_figure_breaks_a_page(
        rollups in prop::collection::vec(any_rollup(), 0..6),
        details in prop::collection::vec(any_detail(), 0..4),
        checkpoints in prop::collection::vec(any_checkpoint(), 0..4),
        walls in prop::collection::vec((number(), number(), number()), 0..6),
        workers in prop::collection::vec([(); 6].map(|()| number()), 0..8),
        causes in [(); 10].map(|()| number()),
        mut caches in prop::collection::vec([(); 6].map(|()| number()).prop_map(any_cache), 0..6),
        numbers in [(); 12].map(|()| number()),
    ) {
        let mut summary = support::straggler(3);
        let [started, ended, steps, wall_ns, hidden_ns, p50, bytes, count, waits, fetch, cpu, memory] = numbers;
        (summary.job.started_wall_ns, summary.job.ended_wall_ns) = (started, Some(ended));
        summary.host.memory_bytes = memory;
        let ranks = summary.ranks.iter_mut().flat_map(|rank| &mut rank.phases);
        for phase in ranks.chain(&mut summary.phases) {
            (phase.steps, phase.wall_ns, phase.causes) = (steps, wall_ns, Causes(causes));
            (phase.hidden_ns, phase.step_p50_ns) = (Some(hidden_ns), p50);
        }
        let load = &mut summary.ranks[0].workers[0];
        (load.fetch_ns, load.cpu_ns, load.wall_ns, load.read_bytes) = (fetch, cpu, wall_ns, bytes);
        summary.ranks[0].checkpoints = Checkpoints { count, bytes, blocked_ns: fetch, background_ns: cpu, ..Checkpoints::default() };
        summary.files = vec![FileWait { wait_ns: fetch, waits, ..FileWait::default() }];
        summary.mounts = vec![MountWait { wait_ns: fetch, waits, ..MountWait::default() }];
        summary.losses = vec![Loss { reason: "lane full".into(), count }];
        caches.sort_by_key(|period| period.start_ns);
        summary.caches = CacheSummary::of_periods(&caches);
        for cache in &mut summary.caches {
            cache.curve.push(CachePoint { capacity_bytes: count, uses: waits, misses: fetch });
            cache.curve.push(CachePoint { capacity_bytes: bytes, uses: steps, misses: memory });
        }
        let mut run = Run::of_summary(summary);
        run.caches = caches;
        (run.rollups, run.details, run.checkpoints) = (rollups, details, checkpoints);
        run.workers = workers.into_iter().map(any_period).collect();
        let bucket = |(low_ns, high_ns, steps)| StepWalls { rank: 0, low_ns, high_ns, steps };
        run.step_walls = walls.into_iter().map(bucket).collect();
        let page = page(&run);
        prop_assert!(!page.contains("NaN") && !page.contains("inf%"));
        prop_assert!(page.ends_with("</html>\n"));
    }
}
