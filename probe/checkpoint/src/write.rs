//! Writes a snapshot's image: hashed, compared with the last checkpoint, in large writes past the page cache.

use crate::arena::lock;
use crate::error::{Doing, Error, Result};
use crate::files::Files;
use crate::image::{CHUNK_BYTES, Layout};
use crate::manifest::{Chunk, Digest, StoredFile};
use crate::pace::Pace;
use crate::reuse::{Base, Fate, Reuse};
use crate::shard::Shard;
use crate::turns::Turns;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::thread;

/// Writes in flight: what keeps a disk busy.
const WRITES: usize = 4;

/// Threads, each with a chunk: as many as write are ahead with hashing. Disks, virtual ones most of all, end writes in
/// bunches. With a thread a write all of them then hashed while the disk had nothing to do: that cost a tenth of the
/// bandwidth.
const THREADS: usize = 2 * WRITES;

/// What an image became on disk.
#[derive(Debug)]
pub(crate) struct Written {
    pub(crate) files: Vec<StoredFile>,
    pub(crate) chunks: Vec<Chunk>,
    pub(crate) written_bytes: u64,
    pub(crate) reused_bytes: u64,
}

/// Where and how an image is written.
#[derive(Debug)]
pub(crate) struct Writing<'a> {
    pub(crate) files: &'a dyn Files,
    pub(crate) dir: &'a Path,
    pub(crate) rank: u32,
    /// How many verified checkpoints are kept; all where `None`.
    pub(crate) keep: Option<usize>,
    pub(crate) base: Option<&'a Base>,
    pub(crate) pace: &'a Pace,
    pub(crate) stop: &'a AtomicBool,
}

/// Both checksums, a piece at a time that fits a core's cache, so that memory is read once.
pub(crate) fn sums(bytes: &[u8]) -> (u32, Digest) {
    let (mut crc32c, mut blake3) = (0, blake3::Hasher::new());
    for piece in bytes.chunks(128 << 10) {
        crc32c = crc32c::crc32c_append(crc32c, piece);
        blake3.update(piece);
    }
    (crc32c, Digest(blake3.finalize()))
}

impl Writing<'_> {
    /// Writes and syncs. `image` reaches to the next block beyond the layout's bytes.
    pub(crate) fn image(&self, layout: &Layout, image: &[u8]) -> Result<Written> {
        let reuse = Reuse::new(self.base, (layout.bytes, CHUNK_BYTES), self.files, self.dir, self.keep);
        let name = |kind| self.dir.join(format!("{kind}-{}.chunks", self.rank));
        let shard = Shard::new(self.files, layout, name("shard"), false);
        let still = Shard::new(self.files, layout, name("still"), true);
        let fates: Vec<OnceLock<(Fate, u32, Digest)>> =
            layout.still.iter().map(|_| OnceLock::new()).collect();
        let next = AtomicUsize::new(0);
        let failed: Mutex<Option<Error>> = Mutex::new(None);
        // Threads beyond the cores would hash no faster and only crowd out the job's.
        let cores = thread::available_parallelism().map_or(2, |cores| cores.get().min(WRITES));
        let (hashing, writing) = (Turns::new(cores), Turns::new(WRITES));

        let write_chunks = || -> Result<()> {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(fate) = fates.get(at) else { return Ok(()) };
                if self.stop.load(Ordering::Relaxed) {
                    return Err(Error::Refused("the save was given up".into()));
                }
                let begin = at * CHUNK_BYTES as usize;
                let end = (begin + CHUNK_BYTES as usize).min(layout.bytes as usize);
                let bytes = &image[begin..end];
                let turn = hashing.take();
                let (crc32c, blake3) = sums(bytes);
                drop(turn);
                let decided = reuse.fate(at, &blake3, layout.still[at]);
                let to = match decided {
                    Fate::Changed => Some(&shard),
                    Fate::Still => Some(&still),
                    Fate::Linked(_) => None,
                };
                if let Some(to) = to {
                    self.pace.let_through(bytes.len() as u64);
                    let _turn = writing.take();
                    match to.write(at, image) {
                        // Space that is held for chunks which went to the other file may be all that is missing.
                        Err(error) if error.is_full() => {
                            shard.give_back();
                            still.give_back();
                            to.write(at, image)?;
                        }
                        other => other?,
                    }
                }
                let _ = fate.set((decided, crc32c, blake3));
            }
        };
        let work = || {
            if let Err(error) = write_chunks() {
                next.store(fates.len(), Ordering::Relaxed);
                lock(&failed).get_or_insert(error);
            }
        };
        thread::scope(|scope| {
            let more = THREADS.min(fates.len()).saturating_sub(1);
            for _ in 0..more {
                // One thread less where there is none to be had.
                let _ = thread::Builder::new().name("ckpt-write".into()).spawn_scoped(scope, work);
            }
            work();
        });
        if let Some(error) = lock(&failed).take() {
            return Err(error);
        }
        self.finish(layout, &reuse, fates, [shard, still])
    }

    fn finish(
        &self,
        layout: &Layout,
        reuse: &Reuse<'_>,
        fates: Vec<OnceLock<(Fate, u32, Digest)>>,
        made: [Shard<'_>; 2],
    ) -> Result<Written> {
        let mut written =
            Written { files: Vec::new(), chunks: Vec::new(), written_bytes: 0, reused_bytes: 0 };
        let linked = reuse.linked();
        let [shard_at, still_at] = made.each_ref().map(|shard| {
            shard.is_there().then(|| {
                let name = shard.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
                written.files.push(StoredFile { name, stored_bytes: 0, linked: false });
                written.files.len() - 1
            })
        });
        let first_linked = written.files.len();
        written.files.extend(linked.iter().map(|(_, file)| file.clone()));
        for (at, fate) in fates.into_iter().enumerate() {
            let (fate, crc32c, blake3) =
                fate.into_inner().expect("no thread failed, so every chunk was handled");
            let bytes = CHUNK_BYTES.min(layout.bytes - at as u64 * CHUNK_BYTES);
            let file = match fate {
                Fate::Changed => shard_at,
                Fate::Still => still_at,
                Fate::Linked(file) => {
                    linked.iter().position(|(of_base, _)| *of_base == file).map(|at| at + first_linked)
                }
            };
            let file = file.expect("a chunk's file is there before the chunk");
            if file < first_linked {
                written.files[file].stored_bytes += bytes;
                written.written_bytes += bytes;
            } else {
                written.reused_bytes += bytes;
            }
            written.chunks.push(Chunk { file: file as u32, crc32c, blake3 });
        }
        for shard in &made {
            shard.finish()?;
        }
        // One file with every byte is a safetensors file, and says so.
        if let ([only], Some(_)) = (&mut written.files[..], shard_at) {
            let name = format!("shard-{}.safetensors", self.rank);
            let path = self.dir.join(&name);
            self.files.rename(&self.dir.join(&only.name), &path).doing("rename to", &path)?;
            only.name = name;
        }
        Ok(written)
    }
}
