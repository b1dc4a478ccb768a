//! The second phase: a snapshot on its way to disk, and the order in which it gets there (docs/checkpoints.md).

use crate::checkpoint::{Check, Checkpoint, open_part};
use crate::error::{Doing, Error, Result};
use crate::files::{Folder, open_plain, put, write_small};
use crate::image::CHUNK_BYTES;
use crate::manifest::{Digest, Listed, MANIFEST, Manifest, Part, StoredTensor, StoredUser, part_name, seal};
use crate::names::Ticket;
use crate::reuse::Base;
use crate::saver::{Outcome, Saved, Shared};
use crate::snapshot::Snapshot;
use crate::store::{LATEST, Store, mark_verified, remove};
use crate::write::Writing;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A save that was asked for.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) snapshot: Snapshot,
    pub(crate) ticket: Ticket,
    pub(crate) user: Vec<u8>,
    pub(crate) metrics: BTreeMap<String, f64>,
    /// Whether this process still has the right to save into the folder.
    pub(crate) locked: Result<()>,
}

/// How often ranks look for each other's files.
const LOOK: Duration = Duration::from_millis(10);

/// Longest reason that is read of another rank's failure, in bytes.
const MOST_REASON: u64 = 4096;

/// Writes one save after the other.
#[derive(Debug)]
pub(crate) struct Persist<'a> {
    shared: &'a Shared,
    /// The newest checkpoint known to be committed.
    base: Option<Base>,
    /// A part of this rank that becomes the base when rank 0 has committed it.
    awaiting: Option<Base>,
    /// Saves given up whose folders could not be removed: a rank that had not heard of it wrote there still.
    given_up: Vec<Ticket>,
}

impl<'a> Persist<'a> {
    pub(crate) fn new(shared: &'a Shared, base: Option<Base>) -> Persist<'a> {
        Persist { shared, base, awaiting: None, given_up: Vec::new() }
    }

    fn is_coordinator(&self) -> bool {
        self.shared.options.rank == 0
    }

    pub(crate) fn save(&mut self, task: Task) {
        let ticket = task.ticket.clone();
        let dir = self.shared.dir.join(&ticket.name);
        // What panics would take the thread with it, and all later saves: it is reported as what it is, a failed save.
        let saving = std::panic::AssertUnwindSafe(|| {
            let mut task = task;
            std::mem::replace(&mut task.locked, Ok(()))?;
            self.adopt();
            self.remove_given_up();
            self.find_folder(&dir)?;
            let saved = self.try_save(task, &dir);
            if let Err(error) = &saved {
                self.give_up(&ticket, &dir, error);
            }
            saved
        });
        let result = std::panic::catch_unwind(saving)
            .unwrap_or_else(|_| Err(Error::Refused("saving failed by an error in stallscope itself".into())));
        let committed = result.as_ref().is_ok_and(|saved| saved.committed);
        self.shared.tell(Outcome { ticket: ticket.clone(), result }, true);
        if committed {
            self.shared.alive();
            self.look_after(&ticket, &dir);
        }
    }

    /// Nobody waits for the rest of a save that failed: rank 0 takes its folder away, another rank says why there.
    fn give_up(&mut self, ticket: &Ticket, dir: &Path, error: &Error) {
        if self.is_coordinator() {
            self.given_up.push(ticket.clone());
            self.remove_given_up();
        } else {
            let reason = dir.join(failed_name(self.shared.options.rank));
            let _ = write_small(&*self.shared.files, &reason, error.to_string().as_bytes());
        }
    }

    fn try_save(&mut self, task: Task, dir: &Path) -> Result<Saved> {
        let begun = Instant::now();
        let (part, digest) = self.write_part(&task, dir)?;
        let write_ns = begun.elapsed().as_nanos() as u64;
        // The arena is free again while the others are waited for.
        let Task { ticket, snapshot, metrics, .. } = task;
        drop(snapshot);
        let mut saved = Saved {
            committed: false,
            image_bytes: part.image_bytes,
            written_bytes: part.written_bytes,
            reused_bytes: part.reused_bytes,
            write_ns,
            commit_ns: 0,
        };
        if !self.is_coordinator() {
            self.awaiting = Some(Base { dir: dir.to_owned(), part });
            return Ok(saved);
        }
        let parts = self.all_parts(&ticket, dir, &part, digest)?;
        self.commit(&ticket, dir, parts, metrics)?;
        self.base = Some(Base { dir: dir.to_owned(), part });
        saved.committed = true;
        saved.commit_ns = begun.elapsed().as_nanos() as u64 - write_ns;
        Ok(saved)
    }

    fn remove_given_up(&mut self) {
        let Shared { files, dir, .. } = self.shared;
        self.given_up.retain(|ticket| {
            let is_it = |found: Option<&Listed>| found.is_none_or(|found| found.save == ticket.save);
            remove(&**files, &dir.join(&ticket.name), &is_it).is_err()
        });
    }

    /// Makes the folder, which is nobody else's then; or waits for rank 0 to have made it.
    fn find_folder(&self, dir: &Path) -> Result<()> {
        if self.is_coordinator() {
            return self.shared.files.create_dir(dir).doing("make", dir);
        }
        self.wait_for(dir, || Ok(dir.is_dir().then_some(())))
    }

    fn adopt(&mut self) {
        if let Some(base) = self.awaiting.take_if(|base| base.dir.join(MANIFEST).exists()) {
            self.base = Some(base);
        }
    }

    fn write_part(&self, task: &Task, dir: &Path) -> Result<(Part, Digest)> {
        let Shared { files, options, .. } = self.shared;
        let layout = &task.snapshot.plan.0;
        let writing = Writing {
            files: &**files,
            dir,
            rank: options.rank,
            keep: options.keep,
            base: self.base.as_ref(),
            pace: &self.shared.pace,
            stop: &self.shared.stop,
        };
        // Beside the chunks, what has a sync of its own costs nothing.
        let (written, user) = thread::scope(|scope| {
            let beside = thread::Builder::new().name("ckpt-user".into());
            let beside = beside.spawn_scoped(scope, || self.write_beside(task, dir));
            let written = writing.image(layout, task.snapshot.image());
            let user = match beside {
                Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                // No thread is to be had.
                Err(_) => self.write_beside(task, dir),
            };
            (written, user)
        });
        let written = written?;
        let user = match user {
            // Space that was held for chunks is given back by now.
            Err(error) if error.is_full() => self.write_beside(task, dir)?,
            other => other?,
        };
        let tensor = |(spec, offset): &(_, u64)| StoredTensor { spec: Clone::clone(spec), offset: *offset };
        let part = Part {
            save: task.ticket.save.clone(),
            step: task.ticket.step,
            rank: options.rank,
            world: options.world,
            tensors: layout.tensors.iter().map(tensor).collect(),
            image_bytes: layout.bytes,
            chunk_bytes: CHUNK_BYTES,
            files: written.files,
            chunks: written.chunks,
            user,
            written_bytes: written.written_bytes,
            reused_bytes: written.reused_bytes,
        };
        let (bytes, digest) = seal(&part);
        // Names of shards before the part that names them.
        files.sync_dir(dir).doing("sync", dir)?;
        put(&**files, dir, &part_name(options.rank), &bytes)?;
        Ok((part, digest))
    }

    fn write_beside(&self, task: &Task, dir: &Path) -> Result<Option<StoredUser>> {
        let Shared { files, options, dir: root, .. } = self.shared;
        if self.is_coordinator() {
            // The folder's own name must be durable before what makes it a checkpoint.
            files.sync_dir(root).doing("sync", root)?;
        }
        if task.user.is_empty() {
            return Ok(None);
        }
        let file = format!("user-{}.bin", options.rank);
        let path = dir.join(&file);
        if let Err(error) = write_small(&**files, &path, &task.user).doing("write", &path) {
            // It is tried once more where the disk was full.
            let _ = files.remove_file(&path);
            return Err(error);
        }
        Ok(Some(StoredUser { file, bytes: task.user.len() as u64, blake3: Digest::of(&task.user) }))
    }

    /// The parts of all ranks, once they are there and sound.
    fn all_parts(&self, ticket: &Ticket, dir: &Path, own: &Part, digest: Digest) -> Result<Parts> {
        let mut parts = Parts { digests: vec![digest], image_bytes: own.image_bytes, ..Parts::default() };
        (parts.written_bytes, parts.reused_bytes) = (own.written_bytes, own.reused_bytes);
        for rank in 1..self.shared.options.world {
            let (part, digest) = self.wait_for(&dir.join(part_name(rank)), || {
                let failed = dir.join(failed_name(rank));
                if failed.exists() {
                    let mut why = String::new();
                    let _ = open_plain(&failed, false)
                        .and_then(|file| file.take(MOST_REASON).read_to_string(&mut why));
                    return Err(Error::Refused(format!("rank {rank} could not save its part: {why}")));
                }
                match Folder::reach(dir).doing("open", dir).and_then(|folder| open_part(&folder, rank)) {
                    Err(error) if error.is_not_found() => Ok(None),
                    other => other.map(Some),
                }
            })?;
            let of_this =
                (&part.save, part.step, part.world) == (&ticket.save, ticket.step, self.shared.options.world);
            if !of_this {
                return Err(Error::Refused(format!("rank {rank} saved something else than {}", ticket.name)));
            }
            parts.digests.push(digest);
            parts.image_bytes += part.image_bytes;
            parts.written_bytes += part.written_bytes;
            parts.reused_bytes += part.reused_bytes;
        }
        Ok(parts)
    }

    /// Polls until there is something; what is waited for is named where it does not come.
    fn wait_for<T>(&self, path: &Path, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
        let begun = Instant::now();
        loop {
            if let Some(found) = look()? {
                return Ok(found);
            }
            let patience = self.shared.options.patience;
            if self.shared.stop.load(Ordering::Relaxed) || begun.elapsed() > patience {
                return Err(Error::Refused(format!(
                    "{} did not appear within {} s; is that folder shared by all ranks, and do all of them run?",
                    path.display(),
                    patience.as_secs()
                )));
            }
            thread::sleep(LOOK);
        }
    }

    fn commit(
        &self,
        ticket: &Ticket,
        dir: &Path,
        parts: Parts,
        metrics: BTreeMap<String, f64>,
    ) -> Result<()> {
        let Shared { files, dir: root, .. } = self.shared;
        let manifest = Manifest {
            save: ticket.save.clone(),
            step: ticket.step,
            sequence: ticket.sequence,
            saved_wall_ns: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64,
            tool: concat!("stallscope ", env!("CARGO_PKG_VERSION")).into(),
            parts: parts.digests,
            image_bytes: parts.image_bytes,
            written_bytes: parts.written_bytes,
            reused_bytes: parts.reused_bytes,
            run: self.shared.run(),
            metrics,
            retain: self.shared.options.retain.clone(),
        };
        put(&**files, dir, MANIFEST, &seal(&manifest).0)?;
        // From here on it is saved. A `latest` that can't be moved costs those that read that file, not the checkpoint.
        let _ = put(&**files, root, LATEST, format!("{}\n", ticket.name).as_bytes());
        Ok(())
    }

    /// After the commit: reads it back, and collects what that makes dispensable.
    fn look_after(&mut self, ticket: &Ticket, dir: &Path) {
        let store = Store::open(&self.shared.dir);
        let read_back = Checkpoint::open(dir).and_then(|checkpoint| {
            checkpoint.verify_paced(Check::Crc, Some(&self.shared.pace), &|_, _| {})?;
            mark_verified(&checkpoint);
            Ok(())
        });
        let kept = read_back.and_then(|()| match self.shared.options.keep {
            Some(keep) => {
                let Shared { files, options, .. } = self.shared;
                store.collect_run(&**files, &self.shared.run(), keep, &options.retain).map(drop)
            }
            None => Ok(()),
        });
        let Err(error) = kept else { return };
        if error.is_damage() {
            // The next save's unchanged chunks must not rest on it.
            self.base = None;
            let _ = store.quarantine(&ticket.name, &error.to_string());
        }
        self.shared.tell(Outcome { ticket: ticket.clone(), result: Err(error) }, false);
    }
}

#[derive(Debug, Default)]
struct Parts {
    digests: Vec<Digest>,
    image_bytes: u64,
    written_bytes: u64,
    reused_bytes: u64,
}

fn failed_name(rank: u32) -> PathBuf {
    format!("failed-{rank}.txt").into()
}
