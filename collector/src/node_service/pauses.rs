//! Which pauses there are: of the whole node, and of jobs. They outlast the service, and a job is the same one as long as its
//! process is.

use crate::procfs;
use serde::{Deserialize, Serialize};
use stallscope_wire::Paused;

/// Pauses of jobs that one user may have, root excepted, and all: a job that ended needs none.
const OF_A_USER: usize = 256;
const OF_ALL: usize = 4096;

/// Root of a job's process tree, and when that began, in ticks since the machine did.
pub(super) type Process = (u32, u64);

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Pauses {
    node: Option<Paused>,
    jobs: Vec<OfJob>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct OfJob {
    pid: u32,
    start_ticks: u64,
    paused: Paused,
    /// Who has the user's number: a subordinate one is its owner's.
    #[serde(default)]
    payer: u32,
}

impl Pauses {
    pub(super) fn of_node(&self) -> Option<&Paused> {
        self.node.as_ref()
    }

    pub(super) fn of_job(&self, process: Option<Process>) -> Option<&Paused> {
        let found = self.jobs.iter().find(|job| Some((job.pid, job.start_ticks)) == process);
        found.map(|job| &job.paused)
    }

    pub(super) fn is_paused(&self, process: Option<Process>) -> bool {
        self.node.is_some() || self.of_job(process).is_some()
    }

    pub(super) fn set_node(&mut self, paused: Option<Paused>) {
        self.node = paused;
    }

    /// # Errors
    /// There are too many, in a sentence.
    pub(super) fn pause_job(
        &mut self,
        (pid, start_ticks): Process,
        paused: Paused,
        payer: u32,
    ) -> Result<(), String> {
        let is_its = |job: &OfJob| (job.pid, job.start_ticks) == (pid, start_ticks);
        let of_user = self.jobs.iter().filter(|job| job.payer == payer).count();
        // And fewer than are left for others.
        let most = OF_A_USER.min(OF_ALL.saturating_sub(self.jobs.len()));
        if !self.jobs.iter().any(is_its) && paused.uid != 0 && of_user >= most {
            return Err(format!(
                "{of_user} jobs of {} are paused, and {most} may be: resume some, or have root pause the node",
                paused.by
            ));
        }
        self.jobs.retain(|job| !is_its(job));
        self.jobs.push(OfJob { pid, start_ticks, paused, payer });
        Ok(())
    }

    pub(super) fn resume_job(&mut self, (pid, start_ticks): Process) {
        self.jobs.retain(|job| (job.pid, job.start_ticks) != (pid, start_ticks));
    }

    /// Those of processes that have ended go.
    pub(super) fn forget_ended(&mut self) {
        self.jobs.retain(|job| procfs::start_ticks(job.pid) == Some(job.start_ticks));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by(uid: u32) -> Paused {
        Paused { by: format!("user {uid}"), uid, since_wall_ns: 7 }
    }

    #[test]
    fn a_pause_is_its_jobs_for_as_long_as_the_process_is_there() {
        let pid = std::process::id();
        let own = (pid, procfs::start_ticks(pid).unwrap_or_default());
        // The number is another process's by now.
        let earlier = (pid, own.1 - 1);
        let mut pauses = Pauses::default();
        pauses.pause_job(own, by(1), 1).expect("the first");
        pauses.pause_job(earlier, by(1), 1).expect("the second");
        assert!(
            pauses.is_paused(Some(earlier)) && !pauses.is_paused(Some((1, 1))) && !pauses.is_paused(None)
        );
        pauses.forget_ended();
        assert_eq!((pauses.of_job(Some(own)), pauses.of_job(Some(earlier))), (Some(&by(1)), None));
        pauses.resume_job(own);
        assert_eq!(pauses, Pauses::default());
        pauses.set_node(Some(by(0)));
        assert!(pauses.is_paused(None) && pauses.of_node().is_some());
    }

    #[test]
    fn one_user_does_not_take_all_places() {
        let mut pauses = Pauses::default();
        // Under numbers that are all theirs.
        let paused = (0..999).filter(|pid| pauses.pause_job((*pid, 1), by(7 + pid), 7).is_ok()).count();
        assert_eq!(paused, OF_A_USER);
        // One that is there may be made again, and others may go on.
        assert!(pauses.pause_job((0, 1), by(7), 7).is_ok() && pauses.pause_job((5000, 1), by(8), 8).is_ok());
        for user in 1000..1020 {
            (0..300).for_each(|one| drop(pauses.pause_job((user * 1000 + one, 1), by(user), user)));
        }
        assert!(pauses.jobs.len() < OF_ALL, "there are places for some more");
        assert!((10_000..20_000).all(|pid| pauses.pause_job((pid, 1), by(0), 0).is_ok()), "root may");
    }
}
