//! Which checkpoints were read back whole, as a file in each says.

use crate::checkpoint::Checkpoint;
use crate::files::Folder;
use crate::manifest::Digest;
use std::io::Read;

/// Holds the hash of the manifest whose checkpoint was read back whole.
pub(super) const VERIFIED: &str = "verified";
/// More are not of it.
const MARK_BYTES: u64 = 100;

pub(super) fn is_marked_verified(folder: &Folder, digest: &Digest) -> bool {
    let mut text = String::new();
    let read = folder.open_plain(VERIFIED, false);
    let read = read.and_then(|file| file.take(MARK_BYTES).read_to_string(&mut text));
    read.is_ok() && text.trim() == digest.hex()
}

/// Notes that a checkpoint was read back whole. No harm when that fails or is lost: it will be read once more.
pub fn mark_verified(checkpoint: &Checkpoint) {
    if !is_marked_verified(&checkpoint.folder, &checkpoint.digest) {
        let _ = checkpoint.folder.put_small(VERIFIED, format!("{}\n", checkpoint.digest.hex()).as_bytes());
    }
}
