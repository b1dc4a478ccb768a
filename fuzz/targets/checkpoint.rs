//! A checkpoint from elsewhere, its seals right: nothing outside its folder is read or written, and nothing panics.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use stallscope_checkpoint::{Check, Checkpoint, Store};
use std::cell::OnceCell;
use std::fs;
use std::path::Path;

thread_local! {
    static FOLDER: OnceCell<tempfile::TempDir> = const { OnceCell::new() };
}

/// Seals `content` as a save does and says by what its hash is known.
fn seal(path: &Path, content: &str) -> String {
    let hash = blake3::hash(content.as_bytes()).to_hex().to_string();
    let _ = fs::write(path, format!("{{\"format\":1,\"blake3\":\"{hash}\",\"content\":{content}}}"));
    hash
}

/// The manifest's content, a line, and that of a rank's part; else bytes that are written as they are.
fn place(dir: &Path, bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (manifest, part) = text.split_once('\n').unwrap_or((&text, "{}"));
    let hash = seal(&dir.join("rank-0.json"), part);
    match serde_json::from_str::<Value>(manifest) {
        Ok(mut content) => {
            if let Some(known) = content.get_mut("parts").and_then(|parts| parts.get_mut(0)) {
                *known = hash.into();
            }
            seal(&dir.join("manifest.json"), &content.to_string());
        }
        Err(_) => drop(fs::write(dir.join("manifest.json"), bytes)),
    }
}

fuzz_target!(|bytes: &[u8]| {
    FOLDER.with(|folder| {
        let root =
            folder.get_or_init(|| tempfile::tempdir_in("/dev/shm").expect("a folder in memory")).path();
        let (store, out) = (root.join("store"), root.join("out"));
        let _ = (fs::remove_dir_all(&store), fs::remove_dir_all(&out));
        let dir = store.join("step-000000002");
        fs::create_dir_all(&dir).expect("a folder in memory");
        for name in ["shard-0.safetensors", "user-0.bin"] {
            let _ = fs::write(dir.join(name), vec![7; 8192]);
        }
        place(&dir, bytes);
        let _ = Store::open(&store).list();
        if let Ok(checkpoint) = Checkpoint::open(&dir) {
            let _ = checkpoint.verify(Check::Full, &|_, _| {});
            let _ = checkpoint.user(0);
            let names =
                checkpoint.parts.iter().flat_map(|part| &part.tensors).map(|tensor| &tensor.spec.name);
            for name in names.take(8) {
                let _ = checkpoint.read(0, name);
            }
            let _ = checkpoint.export(None, &out);
        }
        let _ = Store::open(&store).newest_verified(&|_, _, _| {});
        let _ = Store::open(&store).collect(1, false);
    });
});
