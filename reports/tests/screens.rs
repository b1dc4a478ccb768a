//! The screens as they are seen; `cargo insta review` shows what a change does to them.

mod support;

use madeup::{Shape, record};
use stallscope_model::{Estimate, EvidenceState, Remedy, RemedyKind, RunSummary};
use stallscope_reports::{Run, Style, text};
use std::path::Path;
use support::PLAIN;

fn screen(summary: &RunSummary, style: &Style) -> String {
    text::screen(summary, Some(Path::new("/home/ada/runs/resnet.stall")), style)
}

#[test]
fn fetch_bound() {
    insta::assert_snapshot!(screen(&support::fetch_bound(), &PLAIN));
}

#[test]
fn tuned() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut run = Run::of_summary(support::tuned());
    run.audit = madeup::tuning::audit(0);
    insta::assert_snapshot!(text::report(&run, &PLAIN));
    // What a run ends with has its audit from the recording.
    let shape = Shape { seconds: 130, tuned: true, ..Shape::default() };
    let path = record(&folder.path().join("tuned.stall"), &shape);
    let turn = "workers 2 → 4 kept, +29% (+25% to +33%), expected +31%";
    assert!(text::screen(&support::tuned(), Some(&path), &Style { width: 120, ..PLAIN }).contains(turn));
}

#[test]
fn advice() {
    let mut summary = support::tuned();
    (summary.tune, summary.acts) = (None, [].into());
    insta::assert_snapshot!(screen(&summary, &Style { unicode: false, ..PLAIN }));
}

#[test]
fn compute_bound() {
    insta::assert_snapshot!(screen(&support::compute_bound(), &PLAIN));
}

#[test]
fn four_ranks_with_a_straggler() {
    insta::assert_snapshot!(screen(&support::straggler(4), &PLAIN));
}

#[test]
fn many_ranks() {
    insta::assert_snapshot!(screen(&support::straggler(64), &PLAIN));
}

#[test]
fn cached() {
    insta::assert_snapshot!(screen(&support::cached(), &PLAIN));
    let ascii = Style { width: 60, unicode: false, ..PLAIN };
    let text = screen(&support::cached(), &ascii);
    assert!(text.is_ascii() && text.contains("Cache  57% hits (12% prefetched, 1% late)"), "{text}");
}

#[test]
fn a_curve_is_shown_whole_at_any_width_and_of_each_loader() {
    let shown = |summary: &RunSummary, width: usize| {
        let text = screen(summary, &Style { width, ..PLAIN });
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    for width in [40, 80, 120] {
        let text = shown(&support::cached(), width);
        let all = "would miss with 512 MiB 92%, 1.0 GiB 83%, 2.0 GiB (now) 66%, 4.0 GiB 35%, 6.0 GiB 0%";
        assert!(text.contains(all), "{width}: {text}");
        let text = shown(&support::two_caches(), width);
        assert!(
            text.contains("loader 0 would miss with") && text.contains("loader 1 would miss with"),
            "{text}"
        );
        let text = shown(&support::divided(), width);
        assert!(
            text.contains(all) && text.matches("would miss with").count() == 1,
            "once for all ranks: {text}"
        );
        assert!(!text.contains("loader 0 would miss"), "{text}");
        let text = shown(&support::mixed(), width);
        assert!(
            text.contains("ranks of several jobs draw from one cache") && !text.contains("would miss with"),
            "{text}"
        );
    }
}

#[test]
fn two_loaders() {
    insta::assert_snapshot!(screen(&support::two_loaders(), &PLAIN));
}

#[test]
fn shim_only() {
    insta::assert_snapshot!(screen(&support::shim_only(), &PLAIN));
}

#[test]
fn what_the_shim_could_not_see_is_listed_once() {
    let mut summary = support::fetch_bound();
    let sentence = "A loader's knobs cannot be turned";
    summary.ranks[0].facts.unavailable = vec![sentence.into()];
    summary.shim = EvidenceState::Partial(sentence.into());
    let wide = Style { width: 120, ..PLAIN };
    assert_eq!(screen(&summary, &wide).matches(sentence).count(), 1);
}

#[test]
fn kernel_only() {
    insta::assert_snapshot!(screen(&support::kernel_only(), &PLAIN));
}

#[test]
fn no_steps() {
    insta::assert_snapshot!(screen(&support::no_steps(), &PLAIN));
}

#[test]
fn killed() {
    insta::assert_snapshot!(screen(&support::killed(), &PLAIN));
}

#[test]
fn long_names() {
    insta::assert_snapshot!(screen(&support::long_names(), &PLAIN));
}

#[test]
fn narrow() {
    insta::assert_snapshot!(screen(&support::straggler(4), &Style { width: 50, ..PLAIN }));
}

#[test]
fn wide_ascii() {
    insta::assert_snapshot!(screen(&support::fetch_bound(), &Style { width: 110, unicode: false, ..PLAIN }));
}

#[test]
fn colour() {
    insta::assert_snapshot!(screen(&support::fetch_bound(), &Style { colour: true, ..PLAIN }).escape_debug());
}

#[test]
fn nothing_known_yet() {
    insta::assert_snapshot!(text::screen(&RunSummary::default(), None, &PLAIN));
}

#[test]
fn a_first_remedy_of_another_finding_than_the_verdict_s_is_shown_with_that_finding() {
    let mut summary = support::fetch_bound();
    let gain = |value| Some(Estimate { value, low: value, high: value });
    let remedy = |sentence: &str, value| Remedy {
        kind: RemedyKind::Other,
        sentence: sentence.to_owned(),
        gain: gain(value),
        comes_first: false,
    };
    summary.diagnoses[0].remedies = vec![remedy("Pack the files", 0.2)];
    summary.diagnoses[1].remedies = vec![remedy("Decode smaller", 0.1)];
    let also = format!("and {} ({})", summary.diagnoses[1].finding, summary.diagnoses[1].name);
    let shown =
        |summary: &RunSummary| screen(summary, &PLAIN).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(!shown(&summary).contains(&also), "{}", shown(&summary));
    summary.diagnoses[1].remedies = vec![remedy("Decode smaller", 0.3)];
    assert!(shown(&summary).contains(&also), "{}", shown(&summary));
}
