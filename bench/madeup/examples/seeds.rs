//! Writes what fuzzing begins with, one folder a target: `seeds FOLDER`.

use madeup::{Shape, record};
use serde_json::Value;
use stallscope_checkpoint::{Dtype, Options, Plan, Saver, Source, TensorSpec};
use stallscope_pack::{About, Chunk, Deleted, Id, build, chunk_compressed, chunk_of, seal_deleted};
use stallscope_store::Recording;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

fn main() {
    let into = PathBuf::from(std::env::args().nth(1).expect("the folder to write to"));
    let seed = |target: &str, name: &str, bytes: &[u8]| {
        fs::create_dir_all(into.join(target)).expect("a folder");
        fs::write(into.join(target).join(name), bytes).expect("a file");
    };
    let folder = tempfile::tempdir().expect("a folder");
    for (name, tuned) in [("plain", false), ("tuned", true)] {
        let shape = Shape {
            seconds: 3,
            ranks: if tuned { 2 } else { 1 },
            checkpoint_seconds: 1,
            tuned,
            ..Shape::default()
        };
        let path = record(&folder.path().join(name), &shape);
        seed("recording", name, &fs::read(&path).expect("a recording"));
        let summary = Recording::open(&path).and_then(|it| it.summary()).expect("its summary");
        seed("summary", name, &serde_json::to_vec(&summary).expect("JSON"));
    }
    lines(&seed);
    checkpoint(&folder.path().join("saved"), &seed);
    pack(&seed);
    tables(&seed);
    pictures(&seed);
}

/// Pictures of each kind, behind what is cut out of them.
fn pictures(seed: &dyn Fn(&str, &str, &[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../probe/decode/tests/pictures");
    for entry in folder.read_dir().expect("the pictures of a checkout") {
        let path = entry.expect("a picture").path();
        let name = path.file_stem().and_then(|name| name.to_str()).expect("a plain name").to_owned();
        let bytes = std::fs::read(&path).expect("a picture");
        for (number, head) in [[30, 60, 120, 90, 1, 0], [0, 0, 255, 255, 2, 9]].into_iter().enumerate() {
            seed("picture", &format!("{name}-{number}"), &[head.as_slice(), &bytes].concat());
        }
    }
}

/// What pyarrow writes.
fn tables(seed: &dyn Fn(&str, &str, &[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../probe/pack/tests/tables");
    for name in [
        "train-00000-of-00002.parquet",
        "deltas.parquet",
        "lengths.parquet",
        "dictionary.parquet",
        "words.arrow",
    ] {
        seed("tables", name, &fs::read(folder.join(name)).expect("a table of a checkout"));
    }
    let saved = folder.join("saved/data-00000-of-00001.arrow");
    seed("tables", "saved", &fs::read(saved).expect("a table of a checkout"));
}

/// A chunk, a snapshot and a list of deletions, as they are, under checksums that are made right, and in a folder; the first byte says which.
fn pack(seed: &dyn Fn(&str, &str, &[u8])) {
    let about = About { mtime_ns: 1, label: Some(0) };
    let records: [(&[u8], &[u8], About); 3] = [
        (b"cat/1.jpg", b"meow", about),
        (b"cat/deep/2.jpg", b"", about),
        (b"readme", b"text", About::default()),
    ];
    let bytes = chunk_of(Id::written(1, [2; 8]), Id([3; 16]), &records).expect("names that may be packed");
    let chunk = Chunk::read(bytes.as_slice(), Path::new("x.chunk")).expect("what was written");
    let snapshot = build(chunk.pack, &[chunk], &Deleted::default()).expect("few records");
    for (kind, of_chunk) in [(0, true), (2, true), (6, true), (1, false), (3, false)] {
        let whole = if of_chunk { &bytes } else { &snapshot };
        seed("pack", &format!("kind-{kind}"), &[&[kind], whole.as_slice()].concat());
    }
    // A compressed chunk; and its frame, behind how many bytes that has.
    let text = b"again and again; ".repeat(30);
    let bytes =
        chunk_compressed(Id::written(1, [2; 8]), Id([3; 16]), &[(b"cat/1.txt", &text, about)], Some(3))
            .expect("a name that may be packed");
    for kind in [2, 6] {
        seed("pack", &format!("compressed-{kind}"), &[&[kind], bytes.as_slice()].concat());
    }
    let chunk = Chunk::read(bytes.as_slice(), Path::new("x.chunk")).expect("what was written");
    let record = &chunk.records[0];
    let frame = &bytes[record.offset as usize..][..record.stored_bytes as usize];
    seed("pack", "frame", &[&[16], (text.len() as u16).to_le_bytes().as_slice(), frame].concat());
    // A list of deletions: the second of two records of the chunk that the target makes.
    let mut deleted = vec![0; 64];
    deleted[12] = 64;
    deleted[16..32].copy_from_slice(&[3; 16]);
    deleted[40] = 1;
    deleted.extend(Id::written(1, [2; 8]).0);
    deleted.extend([2, 0, 0, 0, 0b10]);
    seal_deleted(&mut deleted);
    Deleted::parse(&deleted, Path::new("deleted")).expect("a list of one chunk");
    for kind in [8, 10] {
        seed("pack", &format!("kind-{kind}"), &[&[kind], deleted.as_slice()].concat());
    }
}

fn lines(seed: &dyn Fn(&str, &str, &[u8])) {
    let frame = |kind: u8, line: &str| [&[kind], line.as_bytes()].concat();
    seed("wire", "hello", &frame(0, r#"{"stallscope":1,"role":"kernel","watch":1,"syscalls":true}"#));
    seed("wire", "request", &frame(1, r#"{"set":[{"name":"workers","rank":0,"value":4}]}"#));
    seed("wire", "tune", &frame(1, r#"{"tune":{"mode":"advise","budgets":{}}}"#));
    seed("wire", "reply", &frame(2, r#"{"error":"no"}"#));
    seed("wire", "frame", &[&[5, 6, 0, 0, 0, 3][..], br#"{}"#].concat());
    seed("trace", "two", b"epoch,id,bytes,score\n0,1,10,1\n1,1,10,0.5\n");
    seed(
        "pool",
        "claim",
        &[&[1][..], &24_u32.to_ne_bytes(), &[1, 0, 0, 0], &[9, 0, 0, 0, 1, 0, 0, 0], &[0; 16]].concat(),
    );
    // A process, its owner's connection and hello, a round, some work, a round, what was sent, the end.
    let deeds = [
        [0, 0, 16],
        [7, 0, 1],
        [10, 0, 1],
        [14, 0, 0],
        [4, 0, 0],
        [14, 0, 0],
        [13, 0, 0],
        [5, 0, 0],
        [14, 0, 0],
    ];
    seed("service", "watch", deeds.as_flattened());
    seed("lane", "header", &[1, 64, 0, 255, 255, 255, 255, 255, 255, 255, 255]);
    let mut evidence = vec![0x03, 48];
    evidence.extend(1_000_000_u64.to_le_bytes());
    evidence.extend([1, 0, 0, 0, 0, 0, 0, 0]);
    evidence.extend([0; 32]);
    evidence.extend([7, 1]);
    seed("evidence", "wait", &evidence.repeat(3));
}

/// One that was saved, its manifest and its rank's part as the target takes them.
fn checkpoint(into: &Path, seed: &dyn Fn(&str, &str, &[u8])) {
    let tensors = [("weight", 8192_usize), ("bias", 33)].map(|(name, bytes)| (name, vec![7_u8; bytes]));
    let spec = |(name, bytes): &(&str, Vec<u8>)| TensorSpec {
        name: (*name).into(),
        dtype: Dtype::U8,
        shape: vec![bytes.len() as u64],
    };
    let plan = Plan::of(tensors.iter().map(spec).collect(), &[]).expect("a plan");
    let sources: Vec<Source> = tensors.iter().map(|(_, bytes)| Source::Now(bytes.as_ptr())).collect();
    let saver = Saver::open(into, Options { keep: Some(1), ..Options::default() }).expect("a folder");
    // SAFETY: the vectors live and stay as they are until this returns, which is all that `Now` asks for.
    let snapshot = unsafe { saver.snapshot(&plan, &sources) }.expect("a snapshot");
    saver.persist(snapshot, saver.ticket(2), b"position 2".to_vec()).expect("a save");
    assert!(saver.wait(Duration::from_secs(60)), "a save ends");
    let content = |name: &str| {
        let bytes = fs::read(into.join("step-000000002").join(name)).expect("a file of the checkpoint");
        serde_json::from_slice::<Value>(&bytes).expect("JSON")["content"].to_string()
    };
    let both = format!("{}\n{}", content("manifest.json"), content("rank-0.json"));
    seed("checkpoint", "saved", both.as_bytes());
}
