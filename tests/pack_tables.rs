//! `stallscope pack` on Parquet and Arrow files as users have them: named one by one, in folders, through links, killed and spoilt.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use crate::support::packs::is_done;
use crate::support::{Sandbox, text};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};

/// A folder `set` with these files of probe/pack/tests/tables.
fn set(name: &str, files: &[&str]) -> Sandbox {
    let sandbox = Sandbox::new(name);
    fs::create_dir_all(sandbox.path("set")).unwrap();
    for file in files {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("probe/pack/tests/tables").join(file);
        fs::copy(&from, sandbox.path("set").join(from.file_name().unwrap())).unwrap();
    }
    sandbox
}

const TRAIN: [&str; 2] = ["train-00000-of-00002.parquet", "train-00001-of-00002.parquet"];

fn picture(row: usize) -> Vec<u8> {
    [&[0xff, 0xd8, 0xff][..], &vec![row as u8; 50 + row]].concat()
}

fn name(row: usize) -> String {
    format!("train-{:05}-of-00002/{:010}.jpg", row / 10, row % 10)
}

/// A sentence that ends with these words, and the exit code of a run that failed.
fn is_refused(output: &Output, end: &str) {
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stdout));
    assert!(text(&output.stderr).trim_end().ends_with(end), "{}", text(&output.stderr));
}

fn in_plain_python(sandbox: &Sandbox, words: &[&str]) -> Output {
    let reader = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/read_pack.py");
    Command::new("python3").arg(&reader).args(words).current_dir(sandbox.path("")).output().unwrap()
}

#[test]
fn a_folder_of_parquet_files_is_packed_by_rows_and_read_by_all() {
    let sandbox = set("pack-tables", &TRAIN);
    // As Hugging Face's hub keeps files, and describes them.
    fs::write(sandbox.path("set/README.md"), "pictures").unwrap();
    fs::rename(sandbox.path("set").join(TRAIN[0]), sandbox.path("blob")).unwrap();
    symlink("../blob", sandbox.path("set").join(TRAIN[0])).unwrap();
    let output = sandbox.run(&["pack", "set", "-o", "set.pack"]);
    is_done(&output);
    assert!(text(&output.stdout).starts_with("20 files packed, 1.2 kB"), "{}", text(&output.stdout));
    let listed = sandbox.run(&["pack", "ls", "-l", "set.pack"]);
    let expected: Vec<String> =
        (0..20).map(|row| format!("{:>12} {:>6}  {}", 53 + row, row % 3, name(row))).collect();
    assert_eq!(text(&listed.stdout).lines().collect::<Vec<_>>(), expected);
    is_done(&sandbox.run(&["pack", "verify", "set.pack"]));
    is_done(&sandbox.run(&["pack", "extract", "set.pack", "-o", "out"]));
    is_done(&in_plain_python(&sandbox, &["set.pack", "plain"]));
    for row in 0..20 {
        for out in ["out", "plain"] {
            assert_eq!(fs::read(sandbox.path(out).join(name(row))).unwrap(), picture(row), "{out} {row}");
        }
    }
    let again = sandbox.run(&["pack", "set", "-o", "set.pack"]);
    assert!(text(&again.stdout).contains("; 20 were there already"), "{}", text(&again.stdout));
    // As they are, where somebody wants that.
    is_done(&sandbox.run(&["pack", "set", "-o", "files.pack", "--as-files"]));
    let listed = sandbox.run(&["pack", "ls", "files.pack"]);
    assert_eq!(text(&listed.stdout).lines().collect::<Vec<_>>(), [&["README.md"], &TRAIN[..]].concat());
}

#[test]
fn columns_are_named_where_it_is_not_clear() {
    let sandbox = set("pack-tables-columns", &["deltas.parquet"]);
    let path = sandbox.path("set/deltas.parquet").display().to_string();
    let refused = sandbox.run(&["pack", &path, "-o", "set.pack", "--column", "image"]);
    is_refused(
        &refused,
        "deltas.parquet has no column image of bytes or text; name one by --column: it has text (text), label (whole numbers)",
    );
    assert!(text(&refused.stderr).contains(&path));
    let refused = sandbox.run(&["pack", &path, "-o", "set.pack", "--label", "class"]);
    is_refused(
        &refused,
        "has no column class of whole numbers or text; name one by --label: it has text (text), label (whole numbers)",
    );
    assert!(!sandbox.path("set.pack").exists());
    let named = ["pack", &path, "-o", "set.pack", "--column", "text", "--label", "label", "--zstd"];
    // Rows that are null have a sentence, and so the exit code is 1.
    let packed = sandbox.run(&named);
    assert_eq!(packed.status.code(), Some(1));
    assert!(text(&packed.stdout).starts_with("51 files packed"), "{}", text(&packed.stdout));
    let refused = sandbox.run(&["pack", "set", "-o", "other.pack", "--by-shard"]);
    is_refused(&refused, "rows of tables have a folder for each file anyhow");
    fs::write(sandbox.path("set/picture.jpg"), "no table").unwrap();
    let refused = sandbox.run(&["pack", "set", "-o", "other.pack", "--column", "text"]);
    is_refused(&refused, "are for Parquet and Arrow files, or a folder of such alone, and set is none");
    let refused = sandbox.run(&["pack", &path, "set", "-o", "other.pack"]);
    is_refused(&refused, "set is a folder: pack one folder, or files, at a time");
}

#[test]
fn splits_are_not_mixed_and_are_added_by_name() {
    let sandbox = set("pack-tables-splits", &TRAIN);
    fs::rename(sandbox.path("set").join(TRAIN[1]), sandbox.path("set/test-00000-of-00001.parquet")).unwrap();
    let refused = sandbox.run(&["pack", "set", "-o", "set.pack"]);
    is_refused(
        &refused,
        "set has files of several sets or splits, as test-00000-of-00001.parquet and train-00000-of-00002.parquet: name the files of one",
    );
    let train = sandbox.path("set").join(TRAIN[0]).display().to_string();
    is_done(&sandbox.run(&["pack", &train, "-o", "set.pack"]));
    is_done(&sandbox.run(&["pack", "append", "set.pack", "set/test-00000-of-00001.parquet"]));
    let listed = text(&sandbox.run(&["pack", "ls", "set.pack"]).stdout).to_owned();
    assert_eq!(
        (listed.lines().count(), listed.lines().next()),
        (20, Some("test-00000-of-00001/0000000000.jpg"))
    );
    let inside = sandbox.run(&["pack", "set", "-o", "set/made.pack"]);
    is_refused(&inside, "name a folder outside of it");
}

#[test]
fn nothing_half_written_stays_of_a_file_that_is_cut() {
    let sandbox = set("pack-tables-cut", &TRAIN);
    let path = sandbox.path("set").join(TRAIN[1]);
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    let output = sandbox.run(&["pack", "set", "-o", "set.pack"]);
    assert_eq!(output.status.code(), Some(1));
    let sentence = "set/train-00001-of-00002.parquet is not packed: it is cut: its footer is not there";
    assert!(text(&output.stderr).contains(sentence), "{}", text(&output.stderr));
    is_done(&sandbox.run(&["pack", "verify", "set.pack"]));
    // Alone it makes no pack.
    let refused = sandbox.run(&["pack", &path.display().to_string(), "-o", "other.pack"]);
    is_refused(&refused, "train-00001-of-00002.parquet");
    assert!(!sandbox.path("other.pack").exists());
    // Once it is whole, its rows are added to the others.
    fs::write(&path, whole).unwrap();
    let output = sandbox.run(&["pack", "set", "-o", "set.pack"]);
    is_done(&output);
    assert!(text(&output.stdout).contains("10 files packed"), "{}", text(&output.stdout));
    assert!(text(&output.stdout).contains("; 10 were there already"), "{}", text(&output.stdout));
}

#[test]
fn there_may_be_more_files_than_a_shell_lets_be_open_at_first() {
    let sandbox = set("pack-tables-many", &TRAIN[..1]);
    for number in 1..100 {
        let copy = sandbox.path("set").join(format!("train-{number:05}-of-00002.parquet"));
        fs::copy(sandbox.path("set").join(TRAIN[0]), copy).unwrap();
    }
    let command = sandbox.stallscope(&["pack", "set", "-o", "set.pack"]);
    let mut limited = Command::new("sh");
    limited
        .args(["-c", "ulimit -Sn 64; exec \"$0\" \"$@\""])
        .arg(command.get_program())
        .args(command.get_args());
    let output = limited.current_dir(sandbox.path("")).output().unwrap();
    is_done(&output);
    assert!(text(&output.stdout).starts_with("1,000 files packed"), "{}", text(&output.stdout));
}
