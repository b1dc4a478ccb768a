//! A checkpoint from elsewhere, its seals right: nothing outside its folder is read or written, and nothing panics.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use stallscope_checkpoint::{Check, Checkpoint, Region, Store, StoredTensor, Target, Window};
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

/// Of a region larger ones are left alone.
const MOST_BYTES: u64 = 1 << 20;

/// The middle of a tensor, as where another number of ranks restores it: nothing is written beside what it is to fill.
fn region(checkpoint: &Checkpoint, rank: u32, tensor: &StoredTensor, window: &Window) {
    let sizes: Vec<u64> = tensor.spec.shape.iter().map(|size| size.div_ceil(2)).collect();
    let from: Vec<u64> = tensor.spec.shape.iter().zip(&sizes).map(|(size, half)| size - half).collect();
    let elements = sizes.iter().try_fold(1_u64, |elements, size| elements.checked_mul(*size));
    let bytes = elements.and_then(|elements| elements.checked_mul(tensor.spec.dtype.bytes()));
    let Some(bytes) = bytes.filter(|bytes| *bytes <= MOST_BYTES) else { return };
    let bytes = bytes as usize;
    let region = Region { from, to: vec![0; sizes.len()], into: sizes.clone(), sizes };
    let mut memory = vec![0xa5; bytes + 64];
    let target =
        Target { name: &tensor.spec.name, to: memory.as_mut_ptr(), bytes, region: Some(&region) };
    // SAFETY: one vector with that many bytes and more, which nobody else knows of.
    let _ = unsafe { checkpoint.read_targets(rank, &[target], window) };
    assert!(memory[bytes..].iter().all(|byte| *byte == 0xa5), "written behind a region");
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
            let window = Window::default();
            for part in checkpoint.parts.iter().take(4) {
                let _ = checkpoint.user_bytes(part.rank);
                for tensor in part.tensors.iter().take(8) {
                    region(&checkpoint, part.rank, tensor, &window);
                }
            }
            let names =
                checkpoint.parts.iter().flat_map(|part| &part.tensors).map(|tensor| &tensor.spec.name);
            for name in names.take(8) {
                let _ = checkpoint.read(0, name);
            }
            let _ = checkpoint.export(None, &out);
        }
        let _ = Store::open(&store).newest_verified(&|_, _, _| {}, &|| true);
        let _ = Store::open(&store).collect(1, false);
    });
});
