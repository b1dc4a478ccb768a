//! What a user is shown of the jobs.

use super::{Desk, Job, Session};
use crate::policy::Mode;
use stallscope_wire::{NodeJob, NodeState};
use std::time::Instant;

impl Desk {
    /// What user `uid` may know: the pause of the node, and of the jobs, all or theirs.
    pub(in crate::node_service) fn shown_to(&self, uid: u32, now: Instant) -> NodeState {
        let shown = self.jobs.iter().filter(|(_, job)| uid == 0 || job.uid == uid);
        let shown = shown.filter(|(_, job)| job.allowed.mode != Mode::Off);
        let jobs = shown
            .map(|(id, job)| NodeJob {
                name: job.name.clone(),
                pid: job.pid(),
                user: job.known.user.clone(),
                place: super::place::of(&job.known.cgroups),
                mode: job.allowed.mode.name().into(),
                rule: job.allowed.rule,
                cache_bytes: self.granted(*id),
                state: self.state(job),
                paused: self.pauses.of_job(job.process).cloned(),
                frozen: job.reported.frozen(now),
                saved_s: job.reported.saved_s,
                faster: job.reported.faster,
            })
            .collect();
        NodeState { paused: self.pauses.of_node().cloned(), jobs }
    }

    fn state(&self, job: &Job) -> String {
        let pause = self.pauses.of_node().or_else(|| self.pauses.of_job(job.process));
        match pause {
            Some(paused) if job.wants_session().is_some() && job.process.is_some() => {
                format!("paused by {}; what is in force stays", paused.by)
            }
            _ => state(job),
        }
    }
}

fn state(job: &Job) -> String {
    match &job.session {
        _ if job.is_own => "its owner chose a mode with --tune; the policy leaves it alone".into(),
        _ if job.uid == 0 && job.allowed.mode >= Mode::Advise => {
            "left alone: jobs of root are not tuned by policy".into()
        }
        _ if job.is_unseen && job.allowed.mode >= Mode::Advise => {
            "not tuned: its process is not seen from here, as in a container or where /proc is mounted with hidepid".into()
        }
        _ if job.is_unseen => "left alone".into(),
        _ if job.is_watched => "observed by the kernel alone: the package stallscope is not in its Python".into(),
        _ if job.process.is_none() => "starting".into(),
        Session::Runs(_) if job.allowed.mode == Mode::Act => "tuned".into(),
        Session::Runs(_) => "advised".into(),
        Session::Ends(_) => "its session ends".into(),
        Session::StartsAgain(_) => "its session failed and starts again".into(),
        Session::Waits(_) => "its session begins after others of its user's".into(),
        Session::GivenUp(why) => why.clone(),
        Session::None => "left alone".into(),
    }
}
