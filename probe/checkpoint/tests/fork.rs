//! Loader workers are forked from a job that saves, at any moment: they may drop what they inherit, and the job saves on.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod support;

use stallscope_checkpoint::{Saver, Source};
use std::mem::ManuallyDrop;
use support::{Job, MIB, newest, one};

#[test]
fn a_forked_worker_drops_what_it_inherits_and_harms_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut saver = ManuallyDrop::new(Saver::open(dir.path(), one(2)).unwrap());
    let mut job = Job::new(&[9 * MIB, 100]);
    let plan = job.plan();
    for step in 1..=10 {
        job.train_all(step);
        let sources: Vec<Source> =
            job.tensors.iter().map(|(_, bytes)| Source::Late(bytes.as_ptr())).collect();
        // SAFETY: the vectors stay as they are until `persist` has waited for the fence, which `wait` below awaits.
        let mut snapshot = ManuallyDrop::new(unsafe { saver.snapshot(&plan, &sources).unwrap() });
        // SAFETY: the child only drops, which is what is tested, and ends without returning to the test's harness.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: each is dropped once in this process, which then ends.
            unsafe {
                // A hang must end, and fail.
                libc::alarm(20);
                ManuallyDrop::drop(&mut snapshot);
                ManuallyDrop::drop(&mut saver);
                libc::_exit(0);
            }
        }
        assert!(child > 0);
        saver.persist(ManuallyDrop::into_inner(snapshot), saver.ticket(step), Vec::new()).unwrap();
        let mut status = 0;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "the worker ended by {status:#x}");
        assert!(saver.wait(std::time::Duration::from_secs(120)));
        for outcome in saver.outcomes() {
            outcome.result.unwrap();
        }
    }
    drop(ManuallyDrop::into_inner(saver));
    assert!(job.is_in(&newest(dir.path()).checkpoint.unwrap()));
}
