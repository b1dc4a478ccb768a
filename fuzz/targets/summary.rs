//! What a collector or a recording says of a run: every screen and table of it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stallscope_model::RunSummary;
use stallscope_reports::{Run, Style, advice, html, openmetrics, progress, text};
use std::io;

fuzz_target!(|bytes: &[u8]| {
    let Ok(summary) = serde_json::from_slice::<RunSummary>(bytes) else { return };
    for width in [20, 80, 200] {
        let style = Style { width, colour: width == 80, unicode: width != 20 };
        let _ = text::screen(&summary, None, &style);
        let _ = advice::page(&summary, Some("job"), &style);
        let _ = progress::line(&summary, width);
    }
    let _ = openmetrics::render(&summary);
    let _ = html::write(&Run::of_summary(summary), &mut io::sink());
});
