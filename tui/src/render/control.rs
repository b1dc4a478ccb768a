//! What can be changed while the job runs, and what a controller did. None runs yet in this version: the views say so
//! and show what there is.

use super::{Page, scrolled};
use crate::app::{App, View};
use crate::snapshot::RunView;
use crate::text::{heading, ink, labelled, left, plain, right};
use crate::theme::Theme;
use ratatui::text::Line;
use stallscope_model::LoaderFacts;

pub(super) fn knobs(app: &App, run: &RunView, theme: &Theme, width: usize, height: usize) -> Page {
    let mut lines = vec![
        heading("Knobs", "what a job's loaders are set to", width, theme),
        Line::from(ink(
            format!(
                "{}{}{}  {}",
                left("RANK AND LOADER", 18, theme),
                left("KNOB", 20, theme),
                right("VALUE", 8, theme),
                "SET BY"
            ),
            theme.dim(),
        )),
    ];
    let mut any = false;
    for rank in &run.summary.ranks {
        for loader in &rank.facts.loaders {
            for (name, value) in values(loader) {
                any = true;
                lines.push(Line::from(vec![
                    plain(left(&format!("{} loader {}", rank.facts.rank, loader.loader), 18, theme)),
                    plain(left(name, 20, theme)),
                    ink(right(&value, 8, theme), theme.bold()),
                    ink("  the script", theme.dim()),
                ]));
            }
        }
    }
    if !any {
        let why = "no loader was seen from inside, so its settings are not known";
        lines.extend(labelled("  ", why, theme.dim(), width, theme));
    }
    lines.push(Line::default());
    let sentence = "no controller runs: this stallscope observes, and changes nothing in the job. What a controller \
        may set, within which bounds, and who set it last will stand here.";
    lines.extend(labelled("  ", sentence, theme.dim(), width, theme));
    scrolled(lines, app.line_at[View::Knobs as usize], height)
}

fn values(loader: &LoaderFacts) -> Vec<(&'static str, String)> {
    let mut values = vec![("num_workers", loader.workers.to_string())];
    values.extend(loader.prefetch_factor.map(|factor| ("prefetch_factor", factor.to_string())));
    values.extend(loader.batch_size.map(|size| ("batch_size", size.to_string())));
    values.push(("pin_memory", loader.pin_memory.to_string()));
    values.push(("persistent_workers", loader.persistent_workers.to_string()));
    values
}

pub(super) fn audit(theme: &Theme, width: usize) -> Page {
    let mut page = Page::default();
    page.push(heading("Audit", "every decision, what it should bring, and what came of it", width, theme));
    page.push(ink("WHEN      SAW                  CHANGED             EXPECTED  CAME OF IT", theme.dim()));
    page.push("");
    let sentence = "no controller runs: nothing was decided and nothing was changed. Findings and advice are in 6, \
        diagnoses; what follows from them is up to you.";
    page.lines.extend(labelled("  ", sentence, theme.dim(), width, theme));
    page
}
