//! What a reader sees of it.

use crate::browser::Browser;
use crate::runs::{Recorded, agree, hostile, page, recorded, report};
use serde_json::Value;
use stallscope_model::RunSummary;
use stallscope_reports::Run;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

struct Opened {
    browser: Browser,
    file: PathBuf,
    _folder: TempDir,
}

fn open(test: &str, run: &Run) -> Option<Opened> {
    let mut browser = Browser::start(test)?;
    let folder = TempDir::new().expect("a temporary folder");
    let file = folder.path().join("run.html");
    std::fs::write(&file, page(run)).expect("space on the disk for a page");
    browser.open(&file);
    Some(Opened { browser, file, _folder: folder })
}

impl Opened {
    /// Nothing was complained of, and nothing was asked for beside the page itself.
    fn is_quiet(&self) {
        let console = self.browser.console();
        assert!(console.is_empty(), "{console:#?}");
        assert_eq!(self.browser.requests(), [format!("file://{}", self.file.display())]);
    }
}

#[test]
fn the_page_shows_what_the_json_report_says() {
    let Recorded { ref run, .. } = recorded(3);
    let Some(mut opened) = open("the page shows what the JSON report says", run) else { return };
    let report = report(run);
    let shown = opened.browser.evaluate(
        "[...document.querySelectorAll('[data-source]')].map(cell => [cell.dataset.source, cell.dataset.value])",
    );
    let shown: Vec<(String, String)> = serde_json::from_value(shown).unwrap();
    assert!(shown.len() > 60, "{}", shown.len());
    agree(&shown, &report);
    let steps = opened.browser.evaluate(
        "[...document.querySelectorAll('#steps tbody tr')].reduce((sum, row) => sum + Number(row.cells[2].dataset.value), 0)",
    );
    let walls = report["step_walls"].as_array().expect("a list");
    assert_eq!(steps.as_u64(), Some(walls.iter().filter_map(|wall| wall["steps"].as_u64()).sum()));
    let block = opened.browser.evaluate("document.getElementById('run').textContent");
    assert_eq!(serde_json::from_str::<Value>(block.as_str().unwrap()).unwrap(), report);
    let sentence = opened.browser.evaluate("document.querySelector('h1').textContent");
    assert_eq!(sentence, report["verdict"]["sentence"]);
    opened.is_quiet();
}

#[test]
fn columns_are_sorted_by_their_figures() {
    let Recorded { ref run, .. } = recorded(4);
    let Some(mut opened) = open("columns are sorted by their figures", run) else { return };
    let click =
        "document.querySelector('#ranks table').tHead.rows[0].cells[5].querySelector('button').click()";
    let column = "[...document.querySelector('#ranks table').tBodies[0].rows].map(row => Number(row.cells[5].dataset.value))";
    let order = "document.querySelector('#ranks table').tHead.rows[0].cells[5].getAttribute('aria-sort')";
    let mut sorted: Vec<u64> = serde_json::from_value(opened.browser.evaluate(column)).unwrap();
    assert!(!sorted.is_sorted_by(|a, b| a >= b), "there is something to sort: {sorted:?}");
    sorted.sort();
    for wanted in ["descending", "ascending", "descending"] {
        opened.browser.evaluate(click);
        let mut seen: Vec<u64> = serde_json::from_value(opened.browser.evaluate(column)).unwrap();
        assert_eq!(opened.browser.evaluate(order), wanted);
        if wanted == "descending" {
            seen.reverse();
        }
        assert_eq!(seen, sorted);
    }
    opened.is_quiet();
}

#[test]
fn hostile_names_do_nothing() {
    let mut recorded = recorded(2);
    let run = &mut recorded.run;
    hostile(run);
    let Some(mut opened) = open("hostile names do nothing", run) else { return };
    let seen = opened.browser.evaluate(
        "[typeof hacked, document.images.length, document.scripts.length, document.querySelectorAll('main > section').length, \
         document.querySelector('h1').textContent.startsWith('</script><script>hacked=1')]",
    );
    assert_eq!(seen, serde_json::json!(["undefined", 0, 2, 13, true]));
    let name = opened.browser.evaluate("JSON.parse(document.getElementById('run').textContent).job.name");
    assert_eq!(name, crate::runs::HOSTILE);
    opened.is_quiet();
}

/// Elements that make the page wider than the window; tables may be, and are scrolled.
const OUTSIDE: &str = "[...document.body.querySelectorAll('*:not(.wide *)')] \
    .filter(element => document.documentElement.scrollWidth > innerWidth && \
        element.getBoundingClientRect().right > innerWidth) \
    .map(element => element.outerHTML.slice(0, 200))";

/// Texts that stand out from their ground by less than 4.5 to 1 (WCAG 2, AA).
const PALE: &str = include_str!("contrast.js");

#[test]
fn the_page_fits_and_can_be_read_everywhere() {
    let Recorded { ref run, .. } = recorded(3);
    for run in [run, &Run::of_summary(RunSummary::default())] {
        let Some(mut opened) = open("the page fits and can be read everywhere", run) else { return };
        for (width, scheme, media) in [
            (1200, "light", "screen"),
            (1200, "dark", "screen"),
            (400, "light", "screen"),
            (800, "dark", "print"),
        ] {
            opened.browser.view(width, scheme, media);
            let outside = opened.browser.evaluate(OUTSIDE);
            assert_eq!(outside, serde_json::json!([]), "{width} wide, {media}");
            let pale = opened.browser.evaluate(PALE);
            assert_eq!(pale, serde_json::json!([]), "{scheme}, {media}");
        }
        opened.is_quiet();
    }
}

#[test]
fn the_page_is_whole_without_its_script() {
    let Recorded { ref run, .. } = recorded(2);
    let Some(mut opened) = open("the page is whole without its script", run) else { return };
    let text = "document.querySelector('main').innerText";
    let with = opened.browser.evaluate(text);
    opened.browser.call("Emulation.setScriptExecutionDisabled", serde_json::json!({ "value": true }));
    let file = opened.file.clone();
    opened.browser.open(Path::new(&file));
    assert_eq!(opened.browser.evaluate(text), with);
}
