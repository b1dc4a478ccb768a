//! This process's lane. All writers hold Python's interpreter lock; the lock here is for interpreters without one
//! and is never waited for.

use stallscope_abi::lane::Record;
use stallscope_ring::Writer;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, TryLockError};

static LANE: Mutex<Option<Writer>> = Mutex::new(None);
/// Records lost to contention, not yet counted in the lane.
static CONTENDED: AtomicU64 = AtomicU64::new(0);

/// Writes `record`; drops and counts it when the lane is full, and just drops it while there is no lane.
#[inline]
pub(crate) fn push(record: &Record) {
    match LANE.try_lock() {
        Ok(mut lane) => {
            let Some(writer) = lane.as_mut() else { return };
            if CONTENDED.load(Ordering::Relaxed) != 0 {
                for _ in 0..CONTENDED.swap(0, Ordering::Relaxed) {
                    writer.count_dropped();
                }
            }
            writer.push(record);
        }
        Err(TryLockError::WouldBlock) => {
            CONTENDED.fetch_add(1, Ordering::Relaxed);
        }
        Err(TryLockError::Poisoned(_)) => {}
    }
}

/// From now on records go to `writer`.
pub(crate) fn set(writer: Writer) {
    if let Ok(mut lane) = LANE.try_lock() {
        *lane = Some(writer);
    }
}

/// In a forked child: the lane is the parent's.
pub(crate) fn forget() {
    if let Ok(mut lane) = LANE.try_lock() {
        *lane = None;
    }
}
