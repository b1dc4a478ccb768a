//! A Parquet or an Arrow file from elsewhere: its rows are packed or refused in a sentence, what is packed is whole, and nothing panics or takes
//! much memory.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stallscope_pack::{Columns, Disk, Notice, Options, Origin, Pack, pack, verify};
use std::cell::OnceCell;
use std::fs;

thread_local! {
    static FOLDER: OnceCell<tempfile::TempDir> = const { OnceCell::new() };
}

fuzz_target!(|bytes: &[u8]| {
    FOLDER.with(|made| {
        let root = made.get_or_init(|| tempfile::tempdir_in("/dev/shm").expect("a folder in memory")).path();
        let (path, dir) = (root.join("table"), root.join("pack"));
        let _ = fs::remove_dir_all(&dir);
        fs::write(&path, bytes).expect("a file in memory");
        let origin = Origin::Tables { paths: &[path], columns: Columns::default() };
        let mut sentences = 0;
        let packed = pack(origin, &dir, Options::default(), &Disk, &mut |notice| {
            sentences += u64::from(matches!(notice, Notice::Problem(_)));
        });
        let Ok(packed) = packed else { return };
        assert_eq!(packed.problems, sentences);
        let opened = Pack::open(&dir).expect("what was packed");
        assert_eq!(opened.snapshot().records() as u64, packed.files);
        assert!(verify(&dir, &mut |_, _| {}).expect("what was packed").faults.is_empty());
    });
});
