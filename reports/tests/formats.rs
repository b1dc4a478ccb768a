//! What csv, json and markdown say is what the summary says, whatever names are in it.

#![allow(clippy::unwrap_used, reason = "helpers of tests too")]

mod support;

use proptest::prelude::*;
use serde_json::Value;
use stallscope_model::*;
use stallscope_reports::{Folder, Run, csv, html, json, markdown, openmetrics, perfetto, tables, text};
use stallscope_units as units;
use std::collections::BTreeMap;
use std::path::Path;
use support::recordings::{Synthetic, two_hosts};
use support::schema::Schema;

fn two_host_run() -> (tempfile::TempDir, Run) {
    let folder = tempfile::tempdir().unwrap();
    let paths = two_hosts().map(|job| job.record(folder.path(), &format!("{}.stall", job.host)));
    let run = Run::open(&paths).unwrap();
    (folder, run)
}

fn as_json(run: &Run) -> Value {
    let mut bytes = Vec::new();
    json::write(run, &mut bytes).unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

fn as_markdown(run: &Run) -> String {
    let mut bytes = Vec::new();
    markdown::write(run, &mut bytes).unwrap();
    String::from_utf8(bytes).unwrap()
}

/// Rows of every table, by column.
fn as_csv(run: &Run, folder: &Path) -> BTreeMap<String, Vec<BTreeMap<String, String>>> {
    let written = csv::write(run, &Folder::make(folder).unwrap()).unwrap();
    assert_eq!(written.len(), tables::TABLES.len());
    let table = |path: &Path| {
        let mut reader = ::csv::Reader::from_path(path).unwrap();
        reader.deserialize().map(Result::unwrap).collect()
    };
    written.iter().map(|path| (path.file_stem().unwrap().to_str().unwrap().to_owned(), table(path))).collect()
}

fn number(row: &BTreeMap<String, String>, column: &str) -> u64 {
    row[column].parse().unwrap_or_else(|_| panic!("{column} is {:?}", row[column]))
}

#[test]
fn json_is_as_its_schema_says() {
    let schema = Schema::of_runs();
    let (_folder, run) = two_host_run();
    let document = as_json(&run);
    schema.check(&document).unwrap();
    for list in [
        "recordings",
        "slow_steps",
        "rollups",
        "step_walls",
        "checkpoints",
        "files",
        "probes",
        "knobs",
        "rates",
        "advice",
        "audit",
        "cache",
        "cache_periods",
    ] {
        assert!(!document[list].as_array().unwrap().is_empty(), "nothing of {list} was looked at");
    }
    let curve = as_json(&Run::of_summary(support::cached()));
    schema.check(&curve).unwrap();
    assert!(!curve["cache_curve"].as_array().unwrap().is_empty());
    let mut hung = support::cached();
    let frame = PythonFrame { file: "load.py".into(), line: 31, function: "get".into() };
    hung.diagnoses = vec![Diagnosis { stack: vec![frame], ..Diagnosis::default() }];
    schema.check(&as_json(&Run::of_summary(hung))).unwrap();
    schema.check(&as_json(&Run::of_summary(RunSummary::default()))).unwrap();
    let mut wrong = document.clone();
    wrong["phases"][0]["fetch_ms"] = 1.into();
    schema.check(&wrong).unwrap_err();
    wrong = document;
    wrong["job"].as_object_mut().unwrap().remove("name");
    schema.check(&wrong).unwrap_err();
}

#[test]
fn every_format_has_the_sums_of_the_summary() {
    let (folder, run) = two_host_run();
    let (document, tables) = (as_json(&run), as_csv(&run, &folder.path().join("csv")));
    let training =
        |phases: &[PhaseSummary]| phases.iter().find(|phase| phase.phase == Phase::Training).unwrap().clone();
    let job = training(&run.summary.phases);
    for (cause, ns) in job.causes.iter() {
        let column = format!("{}_ns", cause.name());
        let of_phase = |row: &&Value| row["phase"] == "training";
        let in_json = document["phases"].as_array().unwrap().iter().find(of_phase).unwrap();
        assert_eq!(in_json[&column], ns);
        let of_job = |row: &&BTreeMap<String, String>| row["rank"].is_empty() && row["phase"] == "training";
        assert_eq!(number(tables["phases"].iter().find(of_job).unwrap(), &column), ns);
    }
    for rank in &run.summary.ranks {
        let own = training(&rank.phases);
        let of_rank = |row: &&BTreeMap<String, String>| {
            number(row, "rank") == u64::from(rank.facts.rank) && row["phase"] == "training"
        };
        for table in ["steps", "rollups"] {
            for (cause, ns) in own.causes.iter() {
                let column = format!("{}_ns", cause.name());
                let sum: u64 = tables[table].iter().filter(of_rank).map(|row| number(row, &column)).sum();
                assert_eq!(sum, ns, "{column} of {table}");
            }
        }
        let merged: u64 = tables["steps"].iter().filter(of_rank).map(|row| number(row, "merged")).sum();
        assert_eq!(merged, own.steps);
        let walls = document["step_walls"].as_array().unwrap();
        let walls = walls.iter().filter(|walls| walls["rank"] == rank.facts.rank);
        assert_eq!(walls.map(|walls| walls["steps"].as_u64().unwrap()).sum::<u64>(), own.steps);
    }
    let run_row = &tables["run"][0];
    assert_eq!(number(run_row, "lost"), 6);
    assert_eq!(document["losses"][0]["count"], 6);
    assert_eq!(run_row["sentence"], document["verdict"]["sentence"].as_str().unwrap());
    assert_eq!(tables["checkpoints"].len(), document["checkpoints"].as_array().unwrap().len());
    let page = as_markdown(&run);
    for (cause, ns) in job.causes.iter().filter(|(_, ns)| *ns > 0) {
        let share = units::percent_exact(job.causes.share(cause));
        let (name, meaning) = (cause.name(), stallscope_look::meaning(cause));
        let row = format!("| {name} | {meaning} | {} | {share} |", units::duration(ns));
        assert!(page.contains(&row), "no {row} in\n{page}");
    }
    assert!(page.contains(&format!("| **all** |  | **{}** |", units::duration(job.wall_ns))), "{page}");
}

#[test]
fn caches_of_several_hosts_are_in_every_format() {
    let (folder, run) = two_host_run();
    let (document, tables) = (as_json(&run), as_csv(&run, &folder.path().join("csv")));
    let job = run.summary.cache().unwrap();
    // Four ranks on two hosts, of which each host keeps a data set of its own.
    assert_eq!((job.training.hits, job.training.draws()), (4 * 400, 4 * (640 + 640 + 20)));
    let state = job.state.unwrap();
    assert_eq!((state.kept_bytes, state.capacity_bytes, state.evictions), (2 * 600_000, 2 << 20, 2 * 3));
    for column in ["hits", "substitutions", "misses", "reuses", "prefetched", "late", "source_bytes"] {
        for phase in ["training", "evaluation"] {
            let of_phase = |row: &&BTreeMap<String, String>| row["phase"] == phase;
            let sum = |table: &str| -> u64 {
                tables[table].iter().filter(of_phase).map(|row| number(row, column)).sum()
            };
            assert_eq!(sum("cache"), sum("cache_periods"), "{column} in {phase}");
            let listed = document["cache"].as_array().unwrap().iter().filter(|row| row["phase"] == phase);
            assert_eq!(
                listed.map(|row| row[column].as_u64().unwrap()).sum::<u64>(),
                sum("cache"),
                "{column}"
            );
        }
    }
    let of_training = |row: &&BTreeMap<String, String>| row["phase"] == "training";
    let hits: u64 = tables["cache"].iter().filter(of_training).map(|row| number(row, "hits")).sum();
    assert_eq!(hits, job.training.hits, "substitutions and evaluation count for nothing");
    let begun: std::collections::BTreeSet<u64> = run.caches.iter().map(|period| period.start_ns).collect();
    assert_eq!(begun.len(), 2, "periods of both hosts begin together");
    let facts = "31% hits (4% prefetched, 1% late) · 2% substituted";
    let page = as_markdown(&run);
    let screen = text::report(&run, &support::PLAIN);
    for text in [&page, &screen] {
        assert!(text.contains(facts) && text.contains("1.1 of 2.0 MiB"), "{text}");
    }
    let found = "| 0 | 0 | training | 1,300 | 30.8% | 350 | 50 | 10 | 20 | 880 |";
    assert!(page.contains(found) && page.contains("| 0 | 0 | training | 400 kB | 880 kB |"), "{page}");
}

#[test]
fn the_screen_of_a_merged_run_lists_its_recordings() {
    let (_folder, run) = two_host_run();
    let screen = text::report(&run, &support::PLAIN);
    assert!(screen.contains("node1.stall") && screen.contains("node2.stall"), "{screen}");
    assert!(screen.contains("Note       the job's ledger was made from the steps"), "{screen}");
}

#[test]
fn markdown_reads_well() {
    let mut run = Run::of_summary(support::fetch_bound());
    run.notes.push("the clocks of resnet.stall were never read: its times are a guess".into());
    insta::assert_snapshot!(as_markdown(&run));
}

#[test]
fn a_tuned_run_reads_well_as_markdown() {
    let mut run = Run::of_summary(support::tuned());
    run.audit = madeup::tuning::audit(run.summary.job.started_wall_ns);
    insta::assert_snapshot!(as_markdown(&run));
}

#[test]
fn the_audit_of_several_hosts_is_in_the_order_of_time_and_no_decision_is_two() {
    let (_folder, run) = two_host_run();
    assert!(run.audit.is_sorted_by_key(|event| event.time_ns));
    assert!(run.audit.iter().zip(0..).all(|(event, line)| event.line == line));
    let ranks = |decision: u64| {
        let of_it = run.audit.iter().filter(move |event| event.decision == decision);
        of_it.filter_map(|event| event.rank).collect::<std::collections::BTreeSet<u32>>()
    };
    assert!(run.audit.iter().all(|event| ranks(event.decision).len() <= 1));
    let turned: std::collections::BTreeSet<u32> = run.audit.iter().filter_map(|event| event.rank).collect();
    assert_eq!(turned, [0, 2].into());
    let knobs: Vec<u32> = run.summary.knobs.iter().map(|knob| knob.rank).collect();
    assert_eq!(knobs, [0, 0, 1, 1, 2, 2, 3, 3]);
    let document = as_json(&run);
    let begun_ns = run.summary.job.started_wall_ns;
    assert_eq!(document["audit"][0]["time_wall_ns"], begun_ns + 600_000_000);
}

#[test]
fn every_table_and_column_is_documented() {
    let docs = include_str!("../../docs/reports.md");
    for table in tables::TABLES {
        let section = docs
            .split_once(&format!("\n### `{}`\n", table.name))
            .unwrap_or_else(|| panic!("{}", table.name))
            .1;
        let section = section.split("\n###").next().unwrap();
        let shared = "| the causes |";
        for column in table.columns() {
            let known = section.contains(&format!("`{}`", column.name))
                || Cause::ALL.iter().any(|cause| column.name == format!("{}_ns", cause.name()))
                    && section.contains(shared);
            assert!(known, "docs/reports.md does not tell column {} of table {}", column.name, table.name);
        }
    }
}

/// Names that would do harm somewhere.
fn hostile() -> impl Strategy<Value = String> {
    prop_oneof![
        "[-=+@|<>*_`#\\[\\]()!~&\"'\\\\/a-c0-9 \n\t]{0,24}",
        any::<String>(),
        prop::sample::select(vec![
            "=cmd|' /C calc'!A0",
            "<script>alert(1)</script>",
            "</details><img src=x onerror=alert(1)>",
            "| a | b |\n|--|--|",
            "[click](http://evil)",
            "@everyone #1 https://evil",
            "```\n# no",
            "\u{1b}[2J\u{202e}\u{7f}\u{9b}31m",
            "\\",
            "a\\|b",
        ])
        .prop_map(String::from),
    ]
}

fn hostile_run() -> impl Strategy<Value = Run> {
    (prop::collection::vec(hostile(), 24), any::<u64>(), any::<f64>()).prop_map(|(names, number, share)| {
        let mut names = names.into_iter().cycle();
        let mut name = move || names.next().unwrap();
        let mut summary = support::fetch_bound();
        summary.job.name = name();
        summary.job.command = vec![name(), name()];
        summary.job.user = name();
        summary.host =
            HostFacts { host: name(), kernel: name(), cpu_model: name(), gpus: vec![name()], ..summary.host };
        summary.verdict.sentence = name();
        summary.kernel = EvidenceState::Missing(name());
        summary.shim = EvidenceState::Partial(name());
        summary.disagreement_share = Some(share);
        summary.losses = vec![Loss { reason: name(), count: number }];
        summary.overhead.records = number;
        summary.diagnoses = vec![Diagnosis {
            name: name(),
            finding: name(),
            evidence: name(),
            advice: name(),
            cause: None,
            share,
            ..Diagnosis::default()
        }];
        summary.files = vec![FileWait { path: name(), mount: name(), wait_ns: number, waits: number }];
        summary.mounts = vec![MountWait { mount: name(), fs_type: name(), wait_ns: number, waits: number }];
        summary.probes = vec![Probe { name: name(), on: false, reason: name() }];
        let mut second = summary.ranks[0].clone();
        second.facts = RankFacts { rank: 1, host: name(), unavailable: vec![name()], ..second.facts };
        second.facts.loaders[0].dataset = name();
        summary.ranks.push(second);
        let mut run = Run::of_summary(summary);
        run.notes = vec![name()];
        support::tuning::put(&mut run, &mut name, number, share);
        run
    })
}

/// Panics where something in the page is more than text, code, tables, lists, quotes and what we fold.
fn check_markdown(page: &str) {
    use pulldown_cmark::{Event, Options, Parser, Tag};
    let options = Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH | Options::ENABLE_MATH;
    let (mut cells, mut columns) = (0, 0);
    for event in Parser::new_ext(page, options) {
        match event {
            Event::Html(html) | Event::InlineHtml(html) => {
                let ours = html.trim().replace("<details>", "").replace("</details>", "");
                let ours = ours.trim().replace("<summary>", "").replace("</summary>", "");
                assert!(!ours.contains(['<', '>']), "{html:?} in\n{page}");
            }
            Event::Start(tag) => match tag {
                Tag::Table(alignments) => columns = alignments.len(),
                Tag::TableHead | Tag::TableRow => cells = 0,
                Tag::TableCell => cells += 1,
                Tag::Paragraph
                | Tag::List(None)
                | Tag::Item
                | Tag::Strong
                | Tag::BlockQuote(_)
                | Tag::HtmlBlock => {}
                other => panic!("{other:?} in\n{page}"),
            },
            Event::End(pulldown_cmark::TagEnd::TableRow) => assert_eq!(cells, columns, "{page}"),
            Event::InlineMath(_) | Event::DisplayMath(_) | Event::Rule => panic!("{event:?} in\n{page}"),
            _ => {}
        }
    }
}

/// Panics where a line is neither a description nor a sample with quoted labels and a number.
fn check_openmetrics(text: &str) {
    let body = text.strip_suffix("# EOF\n").expect("it says where it ends");
    for line in body.lines().filter(|line| !line.starts_with("# ")) {
        let name = line.find(|char: char| !(char.is_ascii_alphanumeric() || char == '_')).expect("a value");
        let mut rest = &line[name..];
        if let Some(labels) = rest.strip_prefix('{') {
            rest = labels;
            loop {
                let (label, value) = rest.split_once("=\"").unwrap_or_else(|| panic!("{line}"));
                assert!(label.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{line}");
                let mut escaped = false;
                let end = value.find(|char| {
                    let ends = char == '"' && !escaped;
                    assert!(!escaped || ['\\', '"', 'n'].contains(&char), "{line}");
                    escaped = char == '\\' && !escaped;
                    ends
                });
                rest = &value[end.unwrap_or_else(|| panic!("{line}")) + 1..];
                match rest.strip_prefix(',') {
                    Some(more) => rest = more,
                    None => break,
                }
            }
            rest = rest.strip_prefix('}').unwrap_or_else(|| panic!("{line}"));
        }
        assert!(rest.strip_prefix(' ').is_some_and(|number| number.parse::<f64>().is_ok()), "{line}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn no_name_does_harm_in_any_format(run in hostile_run()) {
        let folder = tempfile::tempdir().unwrap();
        for (name, rows) in as_csv(&run, folder.path()) {
            for (column, cell) in rows.iter().flatten() {
                let numeric = cell.parse::<f64>().is_ok();
                prop_assert!(numeric || !cell.trim_start().starts_with(['=', '+', '-', '@']), "{name}.{column}: {cell:?}");
                prop_assert!(!cell.chars().any(char::is_control), "{name}.{column}: {cell:?}");
            }
        }
        let mut bytes = Vec::new();
        json::write(&run, &mut bytes).unwrap();
        let written = String::from_utf8(bytes).unwrap();
        prop_assert!(!written.chars().any(|char| char != '\n' && char.is_control()));
        let document: Value = serde_json::from_str(&written).unwrap();
        prop_assert_eq!(document["job"]["name"].as_str().unwrap(), &run.summary.job.name);
        Schema::of_runs().check(&document).map_err(TestCaseError::fail)?;
        let page = as_markdown(&run);
        prop_assert!(!page.chars().any(|char| char != '\n' && char.is_control()));
        check_markdown(&page);
        check_openmetrics(&openmetrics::render(&run.summary));
    }
}

/// Words that a redacted report must not have.
const SECRETS: [&str; 8] =
    ["qzhost", "qzuser", "qzscript", "qzdata", "qzfolder", "qzmount", "qzfile", "qzmodule"];

#[test]
fn redacted_reports_tell_nothing_in_any_format() {
    let folder = tempfile::tempdir().unwrap();
    let inside = folder.path().join("qzfolder");
    std::fs::create_dir(&inside).unwrap();
    let [first, second] = two_hosts().map(|job| Synthetic {
        name: "qzscript".into(),
        command: ["python", "/home/qzuser/qzscript.py", "--data=/mnt/qzdata", "qzdata_v2.tar"]
            .map(String::from)
            .into(),
        user: "qzuser".into(),
        host: format!("qz{}", job.host.replace("node", "host")),
        ..job
    });
    let paths = [first.record(&inside, "qzscript.stall"), second.record(&inside, "qzdata.stall")];
    let mut run = Run::open(&paths).unwrap();
    let summary = &mut run.summary;
    summary.files[0] =
        FileWait { path: "qzfile/a.jpg".into(), mount: "/mnt/qzmount".into(), ..summary.files[0].clone() };
    summary.mounts[0].mount = "/mnt/qzmount".into();
    summary.diagnoses[0].evidence =
        "on qzhost1 most of /mnt/qzmount/qzfile/a.jpg, by qzuser (qzdata_v2.tar)".into();
    let frame = PythonFrame {
        file: "/home/qzuser/qzmodule.py".into(),
        line: 31,
        function: "Pictures.__getitem__".into(),
    };
    summary.diagnoses[0].evidence.push_str(&format!("; worker 1 is in {frame}"));
    summary.diagnoses[0].stack = vec![frame];
    summary.diagnoses[0].advice = "keep '/mnt/qzdata' or qzfile/a.jpg nearer to qzhost2: 4.4 MiB/s".into();
    summary.kernel = EvidenceState::Missing("qzuser may not read /run/qzfolder".into());
    summary.probes[0] = Probe { name: "x".into(), on: false, reason: "qzhost1: /sys/qzdata".into() };
    summary.ranks[0].facts.unavailable = vec!["no hook in /home/qzuser/lib.py".into()];
    summary.knobs[0].set_by = "qzuser".into();
    summary.knobs[0].reason = "qzuser asked on qzhost1".into();
    summary.advice[0].why = "/mnt/qzdata is slow".into();
    summary.rates[0].unknown = vec!["how fast /mnt/qzdata is".into()];
    run.audit[0].by = "qzuser".into();
    run.audit[0].saw = "qzuser on qzhost2".into();
    run.audit[0].why = "as qzuser wanted in /home/qzuser".into();
    run.notes.push("qzscript.stall of qzhost2 is odd".into());
    run.redact();
    let mut written = as_markdown(&run) + &as_json(&run).to_string();
    written += &text::report(&run, &support::PLAIN);
    written += &openmetrics::render(&run.summary);
    let mut bytes = Vec::new();
    html::write(&run, &mut bytes).unwrap();
    perfetto::write(&run, &mut bytes).unwrap();
    written += &String::from_utf8_lossy(&bytes);
    for path in csv::write(&run, &Folder::make(&folder.path().join("out")).unwrap()).unwrap() {
        written += &std::fs::read_to_string(path).unwrap();
    }
    for secret in SECRETS {
        let at = written.find(secret).map(|at| &written[at.saturating_sub(60)..(at + 60).min(written.len())]);
        assert_eq!(at, None, "{secret} is shown");
    }
    assert!(written.contains("host-1") && written.contains("host-2") && written.contains("MiB/s"));
    assert!(written.contains("job"));
    let hidden = &run.summary.diagnoses[0];
    assert!(hidden.evidence.ends_with(&format!("is in {}", hidden.stack[0])), "{hidden:?}");
    let mount = &run.summary.mounts[0].mount;
    assert_eq!(&run.summary.files[0].mount, mount, "the same thing has the same word");
    // Steps are read from the same files all the same.
    let mut steps = 0;
    run.each_step(|_| {
        steps += 1;
        Ok(())
    })
    .unwrap();
    assert!(steps > 0);
}
