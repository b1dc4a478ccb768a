//! Completions and man pages are what shells and `man` take.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use crate::support::{self, Sandbox, text};
use std::process::{Command, Stdio};

fn there(program: &str) -> bool {
    Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}

/// Whether `program` can be had; the test is counted as skipped when not.
fn can(test: &str, program: &str) -> bool {
    let can = there(program);
    if !can {
        support::skipped::skipped(format_args!("{test} needs {program}"));
    }
    can
}

#[test]
fn every_shell_gets_completions_that_it_can_read() {
    let sandbox = Sandbox::new("completions");
    for shell in ["bash", "zsh", "fish"] {
        let output = sandbox.run(&["completions", shell]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let script = text(&output.stdout);
        for word in ["attach", "completions", "metrics"] {
            assert!(script.contains(word), "{shell}: no {word}");
        }
        assert!(
            !script.contains("Write the man pages") && !script.contains("stallscope__man"),
            "{shell}: hidden verb"
        );
        let path = sandbox.path(shell);
        std::fs::write(&path, script).unwrap();
        if can("every_shell_gets_completions_that_it_can_read", shell) {
            let checked = Command::new(shell).arg("-n").arg(&path).output().unwrap();
            assert!(checked.status.success(), "{shell}: {}", text(&checked.stderr));
        }
    }
}

#[test]
fn bash_completes_verbs_and_options() {
    let sandbox = Sandbox::new("complete");
    std::fs::write(sandbox.path("stallscope.bash"), sandbox.run(&["completions", "bash"]).stdout).unwrap();
    let complete = |words: &str, last: usize| {
        let script = format!(
            "source stallscope.bash; COMP_WORDS=({words}); COMP_CWORD={last}; \
             _stallscope stallscope \"${{COMP_WORDS[{last}]}}\" \"${{COMP_WORDS[{last}-1]}}\"; echo \"${{COMPREPLY[@]}}\""
        );
        let output =
            Command::new("bash").args(["-c", &script]).current_dir(sandbox.path("")).output().unwrap();
        text(&output.stdout).trim().to_owned()
    };
    assert_eq!(complete("stallscope att", 1), "attach");
    assert_eq!(complete("stallscope run --metr", 2), "--metrics --metrics-token");
}

#[test]
fn every_verb_has_a_man_page_that_renders() {
    let sandbox = Sandbox::new("man");
    let output = sandbox.run(&["man", "pages"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let help = text(&sandbox.run(&["--help"]).stdout);
    let (_, verbs) = help.split_once("Commands:\n").unwrap();
    let verbs =
        verbs.lines().map_while(|line| line.strip_prefix("  ")).filter_map(|line| line.split(' ').next());
    let verbs: Vec<&str> = verbs.filter(|verb| !verb.is_empty() && *verb != "help").collect();
    assert!(verbs.contains(&"run") && verbs.contains(&"collect") && !verbs.contains(&"man"), "{verbs:?}");
    let names = verbs.iter().map(|verb| format!("stallscope-{verb}.1")).chain(["stallscope.1".to_owned()]);
    let groff = can("every_verb_has_a_man_page_that_renders", "groff");
    for name in names {
        let path = sandbox.path("pages").join(&name);
        assert!(std::fs::metadata(&path).unwrap_or_else(|error| panic!("{name}: {error}")).len() > 0);
        if groff {
            let rendered =
                Command::new("groff").args(["-man", "-Tutf8", "-ww", "-z"]).arg(&path).output().unwrap();
            assert!(rendered.status.success(), "{name}");
            assert_eq!(text(&rendered.stderr), "", "{name}");
        }
    }
    assert!(!sandbox.path("pages/stallscope-man.1").exists(), "a hidden verb has a page");
    let run = std::fs::read_to_string(sandbox.path("pages/stallscope-run.1")).unwrap();
    assert!(run.contains("SIGUSR1"), "pages tell as much as --help does");
    let unwritable = sandbox.run(&["man", "/proc/nowhere"]);
    assert_eq!(unwritable.status.code(), Some(1));
    assert!(text(&unwritable.stderr).starts_with("stallscope: cannot write man pages into /proc/nowhere"));
}
