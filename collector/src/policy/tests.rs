#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;
use proptest::prelude::*;

const GIB: u64 = 1 << 30;

fn policy(text: &str) -> Policy {
    Policy::parse(text).unwrap()
}

fn job(user: &str, cgroup: &str, label: &str) -> JobKnown {
    JobKnown { user: user.into(), cgroups: vec![cgroup.into()], label: label.into() }
}

const THREE: &str = r#"
[node]
memory_reserve = "8GiB"

[[jobs.rule]]
match = { user = "ml-*", cgroup = "kubepods*" }
mode = "act"
cache = { max = "25%", of = "node memory" }

[[jobs.rule]]
match = { label = "night?" }
mode = "advise"
cache = { max = "4GiB" }

[[jobs.rule]]
match = { user = "otto" }
mode = "off"
"#;

#[test]
fn the_first_rule_that_matches_counts() {
    let policy = policy(THREE);
    let allowed = |user, cgroup, label| {
        let allowed = policy.allows(&job(user, cgroup, label), 64 * GIB);
        (allowed.mode, allowed.rule, allowed.cache_bytes / GIB)
    };
    let pod = "/kubepods.slice/pod7";
    assert_eq!(allowed("ml-mira", pod, ""), (Mode::Act, Some(1), 16));
    assert_eq!(allowed("ml-mira", pod, "night1"), (Mode::Act, Some(1), 16));
    assert_eq!(allowed("ml-mira", "/user.slice", "night1"), (Mode::Advise, Some(2), 4));
    assert_eq!(allowed("ml-mira", "/user.slice", ""), (Mode::Observe, None, 0));
    assert_eq!(allowed("otto", pod, ""), (Mode::Off, Some(3), 0));
    assert_eq!(allowed("otto", pod, "nights"), (Mode::Advise, Some(2), 4), "an earlier rule is for it");
}

#[test]
fn a_floor_is_no_more_than_what_is_allowed() {
    let floor = |cache: &str| {
        let policy = policy(&format!("[[jobs.rule]]\nmode = \"act\"\ncache = {{ {cache} }}\n"));
        let allowed = policy.allows(&job("mira", "", ""), 64 * GIB);
        (allowed.cache_bytes >> 20, allowed.cache_floor_bytes >> 20)
    };
    assert_eq!(floor("max = \"16GiB\", min = \"1GiB\""), (16 << 10, 1 << 10));
    assert_eq!(floor("max = \"1GiB\", min = \"25%\""), (1 << 10, 1 << 10));
    assert_eq!(floor("max = \"16GiB\""), (16 << 10, 64), "a first cache");
    assert_eq!(floor("max = \"2MiB\""), (2, 2));
    let in_words = policy("[[jobs.rule]]\nmode = \"act\"\ncache = { max = \"16GiB\", min = \"1GiB\" }\n");
    let in_words = in_words.in_words(64 * GIB);
    assert!(in_words.contains("caches up to 16 GiB, of which 1.0 GiB are the job's own"), "{in_words}");
}

#[test]
fn what_saves_may_cost_is_a_share_of_training() {
    let policy = policy("[[jobs.rule]]\nmode = \"act\"\ncheckpoint_overhead = 0.02\n");
    assert_eq!(policy.allows(&job("mira", "", ""), GIB).checkpoint_ppm, 20_000);
    let in_words = policy.in_words(GIB);
    assert!(in_words.contains("caches stay as they are, saves up to 2% of training"), "{in_words}");
}

#[test]
fn added_workers_have_the_idle_cores_unless_the_rule_says_otherwise() {
    let cores = |key: &str| policy(&format!("[[jobs.rule]]\nmode = \"act\"\n{key}\n"));
    let all = |key| cores(key).allows(&job("mira", "", ""), GIB).all_cores;
    assert_eq!(["", "cores = \"idle\"", "cores = \"all\""].map(all), [false, false, true]);
    let in_words = cores("cores = \"all\"").in_words(GIB);
    assert!(in_words.contains("every job: act, caches stay as they are, workers on all cores"), "{in_words}");
}

#[test]
fn jobs_without_run_are_the_policys_where_a_rule_says_so_and_no_label_forbids_it() {
    let policy = policy("[[jobs.rule]]\nmatch = { user = \"m*\" }\nmode = \"act\"\nwithout_run = true\n");
    let comes = |user, label| policy.allows(&job(user, "", label), GIB).without_run;
    assert_eq!(["", "observe", "act", "off"].map(|label| comes("mira", label)), [true, true, true, false]);
    assert!(!comes("otto", ""));
    let in_words = policy.in_words(GIB);
    assert!(
        in_words.contains("caches stay as they are, also where it was not started with `run`"),
        "{in_words}"
    );
}

#[test]
fn a_label_lowers_and_raises_nothing() {
    let policy = policy(THREE);
    let mode = |user, label| policy.allows(&job(user, "kubepods/a", label), 64 * GIB).mode;
    assert_eq!(["off", "observe", "advise", "act"].map(|label| mode("ml-mira", label)), Mode::ALL);
    assert_eq!(mode("anna", "act"), Mode::Observe);
    assert_eq!(mode("otto", "act"), Mode::Off);
    let observed = policy.allows(&job("ml-mira", "kubepods/a", "observe"), 64 * GIB);
    assert_eq!(observed.cache_bytes, 0);
}

#[test]
fn no_cache_is_allowed_what_is_reserved() {
    let policy = policy(THREE);
    let allowed = |gib| policy.allows(&job("ml-mira", "kubepods", ""), gib * GIB).cache_bytes;
    assert_eq!(allowed(10), 2 * GIB, "of 10 GiB 8 are reserved");
    assert_eq!(allowed(4), 0);
}

#[test]
fn nothing_is_allowed_by_an_empty_file() {
    let policy = policy("");
    assert_eq!(policy, Policy::default());
    assert_eq!(policy.allows(&job("mira", "", "act"), 64 * GIB), Allowed::default());
    assert_eq!(Allowed::default().mode, Mode::Observe);
}

#[test]
fn what_was_understood_is_a_line_each() {
    assert_eq!(
        policy(THREE).in_words(64 * GIB),
        "1. user ml-*, cgroup kubepods*: act, caches up to 25% of the node's memory (16 GiB)\n\
         2. label night?: advise, caches up to 4.0 GiB\n\
         3. user otto: off\n\
         every other job: observe\n\
         8.0 GiB of the node's 64 GiB of memory are given to no cache\n"
    );
    let recorded = "[recordings]\ndir = \"/data/runs\"\nkeep = \"36h\"\nmax = \"2GiB\"\n";
    assert!(
        policy(recorded).in_words(GIB).ends_with(
            "\njobs not started with `run` are recorded in /data/runs/UID, each user's for 36 h and up to 2.0 GiB\n"
        ),
        "{}",
        policy(recorded).in_words(GIB)
    );
    let exported =
        "[export]\nprometheus = \"9402\"\nprometheus_token = \"/etc/t\"\notlp = \"http://collector:4318/\"\n";
    assert!(
        policy(exported).in_words(GIB).ends_with(
            "\nthe jobs are shown to Prometheus at http://127.0.0.1:9402/metrics, to who shows the token in /etc/t\n\
             the jobs and the audit are pushed to http://collector:4318, by OTLP\n"
        ),
        "{}",
        policy(exported).in_words(GIB)
    );
    assert_eq!(
        policy("[[jobs.rule]]\nmode = \"act\"\n").in_words(GIB),
        "1. every job: act, caches stay as they are\nevery other job: observe\nno memory is reserved\n"
    );
}

#[test]
fn an_error_names_line_and_key() {
    let why = |text: &str| Policy::parse(text).unwrap_err().to_string();
    for (text, parts) in [
        ("[node]\nmemory_reserve = \"much\"\n", &["line 2, node.memory_reserve: ", "say a size as 8GiB"][..]),
        ("[node]\n\nreserve = \"8GiB\"\n", &["line 3, ", "unknown field `reserve`", "memory_reserve"]),
        ("[job]\n", &["line 1", "unknown field `job`"]),
        ("[[jobs.rule]]\nmode = \"fast\"\n", &["line 2, jobs.rule[0].mode: ", "\"fast\" is no mode"]),
        ("[[jobs.rule]]\nmatch = { user = \"a\" }\n", &["line 1, jobs.rule[0]", "missing field `mode`"]),
        ("[[jobs.rule]]\nmode = \"act\"\nmatch = { usr = \"a\" }\n", &["line 3, ", "unknown field `usr`"]),
        ("[[jobs.rule]]\nmode = \"act\"\nmatch = { user = \"\" }\n", &["line 3, ", "user: an empty text"]),
        ("[[jobs.rule]]\nmode = \"act\"\ncache = { max = \"125%\" }\n", &["line 3, ", "max: say a share"]),
        (
            "[[jobs.rule]]\nmode = \"act\"\ncache = { max = \"8\", of = \"job\" }\n",
            &["line 3, ", "node memory"],
        ),
        ("[[jobs.rule]]\nmode = 3\n", &["line 2, jobs.rule[0].mode: ", "expected a string"]),
        ("[[jobs.rule]]\nmode = \"act\"\ncheckpoint_overhead = 2.0\n", &["line 3, ", "say 0.02 for 2%"]),
        ("[recordings]\ndir = \"here\"\n", &["line 2, recordings.dir: ", "say the whole path"]),
        ("[recordings]\nkeep = \"14d\"\n", &["line 1, recordings", "missing field `dir`"]),
        ("[recordings]\ndir = \"/d\"\nkeep = \"0s\"\n", &["line 3, recordings.keep: ", "say a time as 14d"]),
        ("[recordings]\ndir = \"/d\"\nmax = \"much\"\n", &["line 3, recordings.max: ", "say a size"]),
        ("[export]\nprometheus = \"here\"\n", &["line 2, export.prometheus: ", "say a port (9400"]),
        ("[export]\notlp = \"collector:4318\"\n", &["line 2, export.otlp: ", "http://HOST:PORT"]),
        ("[export]\notlp = \"https://collector\"\n", &["line 2, export.otlp: ", "nothing is encrypted here"]),
        ("[export]\nprometheus_token = \"/t\"\n", &["export", "prometheus_token is for prometheus"]),
        ("[export]\nloki = \"/t\"\n", &["line 2, ", "unknown field `loki`"]),
        ("[node\n", &["line 1: "]),
        ("[node]\nmemory_reserve = \"1GiB\"\nmemory_reserve = \"2GiB\"\n", &["line 3"]),
    ] {
        let why = why(text);
        assert!(parts.iter().all(|part| why.contains(part)), "{text}{why}");
        assert!(!why.contains('\n'), "one sentence: {why}");
    }
}

/// Prose is behind "# ", what may be switched on behind "#".
fn with_examples(text: &str) -> String {
    let on = |line: &str| {
        line.strip_prefix('#').filter(|rest| !rest.is_empty() && !rest.starts_with(' ')).map(str::to_owned)
    };
    text.lines().map(|line| on(line).unwrap_or_else(|| line.to_owned()) + "\n").collect()
}

#[test]
fn the_file_that_ships_has_each_key_with_its_default() {
    let shipped = include_str!("../../../contrib/stallscope.toml");
    assert_eq!(policy(shipped), Policy::default(), "as it ships it changes nothing");
    let all = with_examples(shipped);
    let examples = policy(&all);
    assert!(examples.rules.len() >= 2 && examples.rules.iter().any(|rule| rule.cache.is_some()), "{all}");
    for key in [
        "memory_reserve",
        "match",
        "user",
        "cgroup",
        "label",
        "mode",
        "cache",
        "max",
        "min",
        "of",
        "checkpoint_overhead",
        "cores",
        "without_run",
        "dir",
        "keep",
        "prometheus",
        "prometheus_token",
        "otlp",
    ] {
        assert!(all.contains(&format!("{key} =")), "no {key} in contrib/stallscope.toml");
    }
    // The defaults that its comments name.
    let bare = policy("[[jobs.rule]]\nmode = \"act\"\n");
    assert_eq!((bare.rules[0].cache, bare.reserve_bytes, bare.rules[0].without_run), (None, 0, false));
    assert!(!bare.rules[0].all_cores);
    assert!(bare.rules[0].matches(&job("", "", "")));
    assert_eq!((&bare.recordings, &bare.export), (&None, &Export::default()));
    let recorded = policy("[recordings]\ndir = \"/d\"\n").recordings.unwrap().retention;
    assert_eq!((recorded.keep.as_secs(), recorded.most_bytes), (14 * 86_400, 20 * GIB));
    let defaults = [
        "Default: every job",
        "Default: caches stay as they are",
        "Default: \"0\"",
        "Default: false",
        "Default: \"14d\" and \"20GiB\"",
        "Default: nothing is exported",
    ];
    for default in defaults {
        assert!(shipped.contains(default), "{default}");
    }
}

proptest! {
    #[test]
    fn any_text_is_a_policy_or_one_sentence(text in ".{0,200}") {
        if let Err(why) = Policy::parse(&text) {
            prop_assert!(why.to_string().starts_with("line ") && !why.to_string().contains('\n'));
        }
    }

    #[test]
    fn no_label_allows_more_than_none_unless_a_rule_names_it(label in "[a-z]{0,8}", user in "[a-z-]{0,8}") {
        let policy = policy("[[jobs.rule]]\nmatch = { user = \"m*\" }\nmode = \"act\"\ncache = { max = \"1GiB\" }\n");
        let (with, without) = (
            policy.allows(&job(&user, "", &label), 64 * GIB),
            policy.allows(&job(&user, "", ""), 64 * GIB),
        );
        prop_assert!(with.mode <= without.mode && with.cache_bytes <= without.cache_bytes);
    }
}
