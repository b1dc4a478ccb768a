//! Some threads that share the items of a batch.

use crate::decoder::Decoder;
use std::sync::{Mutex, PoisonError};

/// Decoders that are not in use, with their memory: fresh memory costs more than what is written to it.
#[derive(Debug, Default)]
pub struct Spare(Vec<Decoder>);

impl Spare {
    /// So many decoders, fresh ones where there are fewer.
    pub fn take(&mut self, count: usize) -> Vec<Decoder> {
        let mut taken = self.0.split_off(self.0.len().saturating_sub(count));
        taken.resize_with(count, Decoder::default);
        taken
    }

    /// Takes them back.
    pub fn put(&mut self, decoders: Vec<Decoder>) {
        self.0.extend(decoders);
    }
}

/// Does `work` for each item, in as many threads as there are decoders, this one among them; which has which item is as it comes.
/// They end before this returns, so that a process has none of them when it is forked.
pub fn in_threads<T: Send>(decoders: &mut [Decoder], items: Vec<T>, work: impl Fn(&mut Decoder, T) + Sync) {
    let Some((own, others)) = decoders.split_first_mut() else { return };
    let others = others.iter_mut().take(items.len().saturating_sub(1));
    let items = Mutex::new(items.into_iter());
    // The lock is held only while an item is taken, which does not panic.
    let next = || items.lock().unwrap_or_else(PoisonError::into_inner).next();
    let (next, work) = (&next, &work);
    std::thread::scope(|scope| {
        for decoder in others {
            let thread = std::thread::Builder::new().name("stallscope-jpeg".into());
            let started = thread.spawn_scoped(scope, move || {
                while let Some(item) = next() {
                    work(decoder, item);
                }
            });
            // Where no thread can be had, those that there are do all of it.
            if started.is_err() {
                break;
            }
        }
        while let Some(item) = next() {
            work(own, item);
        }
    });
}
