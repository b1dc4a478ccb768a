//! What the job's processes leave behind. As the first process of a container `run` becomes the parent of these, and who waits for none
//! of them keeps each one's number, and its place among the processes that the container may have, until the job ends.

use rustix::process::{Pid, WaitOptions, waitpid};
use tokio::process::Child;

/// Those that this process has started itself are waited for where they were, and are left alone.
#[derive(Debug)]
pub(crate) struct Orphans {
    /// Of before the job, after which this thread starts none; `None`: nobody's orphans come here.
    own: Option<Vec<i32>>,
}

impl Orphans {
    /// To be asked for before the job is started, by the thread that starts it.
    pub(crate) fn expect() -> Orphans {
        Orphans { own: rustix::process::getpid().is_init().then(children) }
    }

    /// Takes note of the ends of those that have ended. Of the job's end who waits for it hears.
    pub(crate) fn reap(&self, job: &Child) {
        let Some(own) = &self.own else { return };
        // Once its end was heard of, another process may have its number.
        let job = job.id().map(|pid| pid as i32);
        let others = children().into_iter().filter(|pid| !own.contains(pid) && Some(*pid) != job);
        for pid in others.filter_map(Pid::from_raw) {
            let _ = waitpid(Some(pid), WaitOptions::NOHANG);
        }
    }
}

/// Those of this process's first thread, to which orphans come. What another thread has started is among that one's.
fn children() -> Vec<i32> {
    let pid = std::process::id();
    let listed = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    listed.split_ascii_whitespace().filter_map(|number| number.parse().ok()).collect()
}
