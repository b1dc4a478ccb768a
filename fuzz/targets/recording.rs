//! A recording from elsewhere: opened, reported in every form, and taken for a model of its job.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stallscope_reports::{Run, Style, html, json, perfetto, text};
use std::cell::OnceCell;
use std::io;

thread_local! {
    static FOLDER: OnceCell<tempfile::TempDir> = const { OnceCell::new() };
}

fuzz_target!(|bytes: &[u8]| {
    FOLDER.with(|folder| {
        let folder = folder.get_or_init(|| tempfile::tempdir_in("/dev/shm").expect("a folder in memory"));
        let path = folder.path().join("x.stall");
        std::fs::write(&path, bytes).expect("a file in memory");
        let Ok(run) = Run::open(std::slice::from_ref(&path)) else { return };
        let _ = text::report(&run, &Style { width: 80, colour: true, unicode: true });
        let _ = html::write(&run, &mut io::sink());
        let _ = json::write(&run, &mut io::sink());
        let _ = perfetto::write(&run, &mut io::sink());
        #[cfg(feature = "collector")]
        if let Ok(profiles) = stallscope_store::Recording::open(&path)
            .and_then(|it| stallscope_collector::profiles(&it, &run.summary))
        {
            let _ = profiles.training();
        }
    });
});
