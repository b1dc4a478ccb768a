//! The kill switch: nothing of the node, or of a job, is changed until the pause is taken back. What is in force stays, what is
//! being tried is put back, and no session begins.

use super::{Desk, Session};
use crate::launching::ToLauncher;
use stallscope_wire::{NodeEvent, Paused, Whose};

/// A user who asks for a pause or takes one back, by the kernel's word.
#[derive(Clone, Copy, Debug)]
pub(in crate::node_service) struct Asking<'a> {
    pub(in crate::node_service) uid: u32,
    /// Whose share of what all users have together it takes of.
    pub(in crate::node_service) payer: u32,
    pub(in crate::node_service) name: &'a str,
    /// They are root, or the user that the service has to itself.
    pub(in crate::node_service) may_all: bool,
    /// Nanoseconds since 1970.
    pub(in crate::node_service) wall_ns: u64,
}

/// What is so now, in a sentence, and what the launcher is to do for it; or why not, in a sentence.
pub(in crate::node_service) type Turned = Result<(String, Vec<ToLauncher>), String>;

impl Desk {
    /// What is so now, in a sentence, and what the launcher is to do for it.
    ///
    /// # Errors
    /// The user may not, or there is no such job, in a sentence.
    pub(in crate::node_service) fn pause(&mut self, whose: &Whose, by: Asking<'_>) -> Turned {
        let paused = Paused { by: by.name.to_owned(), uid: by.uid, since_wall_ns: by.wall_ns };
        let stays = "what is in force stays, and nothing is changed until `stallscope node resume";
        let (about, done) = match &whose.job {
            None => {
                may_turn_the_node(by)?;
                self.pauses.set_node(Some(paused));
                (NodeEvent::default(), format!("the node is paused: {stays}`"))
            }
            Some(job) => {
                let id = self.named(job, by)?;
                let process = self.jobs[&id].process.filter(|_| !self.jobs[&id].is_own);
                let Some(process) = process else { return Err(self.nothing_to_pause(id)) };
                self.pauses.forget_ended();
                if let Some(theirs) = self.pauses.of_job(Some(process)).filter(|theirs| theirs.uid == 0)
                    && by.uid != 0
                {
                    return Ok((format!("{job} is paused by {} already", theirs.by), Vec::new()));
                }
                self.pauses.pause_job(process, paused, by.payer)?;
                (self.jobs[&id].event(), format!("{job} is paused: {stays} {job}`"))
            }
        };
        self.events.push(NodeEvent {
            act: "pause".into(),
            by: by.name.into(),
            by_uid: Some(by.uid),
            why: "nothing is changed; what is in force stays, what is being tried is put back".into(),
            ..about
        });
        Ok((done, self.end_the_paused()))
    }

    /// As [`Desk::pause`].
    ///
    /// # Errors
    /// The user may not, there is no such job, or nothing is paused.
    pub(in crate::node_service) fn resume(&mut self, whose: &Whose, by: Asking<'_>) -> Turned {
        let (about, done) = match &whose.job {
            None => {
                may_turn_the_node(by)?;
                if self.pauses.of_node().is_none() {
                    return Err("the node is not paused; `stallscope node` shows which jobs are".into());
                }
                self.pauses.set_node(None);
                (
                    NodeEvent::default(),
                    "the node is resumed; jobs with a pause of their own stay paused".into(),
                )
            }
            Some(job) => {
                let id = self.named(job, by)?;
                match self.pauses.of_job(self.jobs[&id].process) {
                    Some(own) if own.uid == 0 && by.uid != 0 => {
                        return Err(format!("{job} was paused by {}, who alone resumes it", own.by));
                    }
                    Some(_) => {}
                    None if self.pauses.of_node().is_some() => {
                        return Err(format!(
                            "{job} has no pause of its own: the whole node is paused, which root takes back with \
                             `stallscope node resume`"
                        ));
                    }
                    None => return Err(format!("{job} is not paused")),
                }
                if let Some(process) = self.jobs[&id].process {
                    self.pauses.resume_job(process);
                }
                let rest = match self.pauses.of_node() {
                    Some(_) => ", and stays paused with the whole node",
                    None => "",
                };
                (self.jobs[&id].event(), format!("{job} is resumed{rest}"))
            }
        };
        let by_uid = Some(by.uid);
        self.events.push(NodeEvent { act: "resume".into(), by: by.name.into(), by_uid, ..about });
        let ids: Vec<u64> = self.jobs.keys().copied().collect();
        let idle: Vec<u64> = ids.into_iter().filter(|id| self.jobs[id].session == Session::None).collect();
        Ok((done, idle.into_iter().flat_map(|id| self.begin(id)).collect()))
    }

    /// What has to outlast the service.
    pub(in crate::node_service) fn pauses(&self) -> &super::Pauses {
        &self.pauses
    }

    /// Sessions of what is paused end, and none is waited for any more.
    fn end_the_paused(&mut self) -> Vec<ToLauncher> {
        let mut orders = Vec::new();
        for job in self.jobs.values_mut().filter(|job| self.pauses.is_paused(job.process)) {
            match job.session {
                Session::Runs(id) => {
                    job.session = Session::Ends(id);
                    orders.push(ToLauncher::Stop { id });
                }
                Session::StartsAgain(_) | Session::Waits(_) => job.session = Session::None,
                Session::None | Session::Ends(_) | Session::GivenUp(_) => {}
            }
        }
        orders
    }

    /// The one job that the user means: a pid, a name, or the beginning of one name.
    fn named(&self, what: &str, by: Asking<'_>) -> Result<u64, String> {
        let known = || self.jobs.iter().filter(|(_, job)| by.may_all || job.uid == by.uid);
        let of = |is: &dyn Fn(&super::Job) -> bool| -> Vec<u64> {
            known().filter(|(_, job)| is(job)).map(|(id, _)| *id).collect()
        };
        let mut found =
            what.parse().map_or_else(|_| Vec::new(), |pid: u32| of(&|job| pid > 0 && job.pid() == pid));
        if found.is_empty() {
            found = of(&|job| job.name == what);
        }
        if found.is_empty() {
            found = of(&|job| job.name.starts_with(what));
        }
        match found[..] {
            [id] => Ok(id),
            [] => {
                Err(format!("no job of yours is called {what}; `stallscope node` lists those that there are"))
            }
            _ => {
                let pids: Vec<String> = found.iter().map(|id| self.jobs[id].pid().to_string()).collect();
                Err(format!("several jobs are called {what}; name one by its pid: {}", pids.join(", ")))
            }
        }
    }

    fn nothing_to_pause(&self, id: u64) -> String {
        let job = &self.jobs[&id];
        match job.is_own {
            true => {
                format!("{} is tuned by its owner, who chose that with --tune, and not by the node", job.name)
            }
            false if job.is_unseen => {
                format!("the process of {} is not seen from here, and so it is not tuned anyway", job.name)
            }
            false => format!("{} has not begun yet", job.name),
        }
    }
}

fn may_turn_the_node(by: Asking<'_>) -> Result<(), String> {
    match by.may_all {
        true => Ok(()),
        false => {
            Err(format!("the node is paused and resumed by root; you are {}: name a job of yours", by.name))
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::super::tests::{MIRA, MIRAS, OTTO, desk, of, started};
    use super::*;
    use crate::launching::SessionEnd;
    use std::time::{Duration, Instant};

    fn asks(uid: u32) -> Asking<'static> {
        let name = if uid == 0 { "root" } else { "somebody" };
        Asking { uid, payer: uid, name, may_all: uid == 0, wall_ns: 5 }
    }

    fn job(name: &str) -> Whose {
        Whose { job: Some(name.into()) }
    }

    const NODE: Whose = Whose { job: None };

    #[test]
    fn a_pause_of_the_node_ends_all_sessions_and_lets_none_begin() {
        let mut desk = desk(MIRAS);
        let (first, _) = desk.arrive(of(MIRA, ""));
        let session = started(&desk.started(first, 70, 9));
        let refused = desk.pause(&NODE, asks(MIRA)).unwrap_err();
        assert!(refused.contains("by root"), "{refused}");
        assert_eq!(desk.pause(&NODE, asks(0)).unwrap().1, [ToLauncher::Stop { id: session }]);
        assert_eq!(desk.ended(session, i32::from(SessionEnd::Stopped.code()), Instant::now()), []);
        let (later, first_bytes) = desk.arrive(of(MIRA, ""));
        assert_eq!((desk.started(later, 71, 9), first_bytes), (vec![], 0));
        assert_eq!(desk.reload(crate::policy::Policy::parse(MIRAS).unwrap()), []);
        assert_eq!(desk.tick(Instant::now() + Duration::from_secs(3600)), []);
        let shown = desk.shown_to(MIRA, Instant::now());
        assert_eq!(shown.paused.unwrap().by, "root");
        assert!(shown.jobs.iter().all(|job| job.state.starts_with("paused by root")), "{:?}", shown.jobs);
        // After a restart of the service nothing begins either.
        let mut successor = Desk { pauses: desk.pauses().clone(), ..super::super::tests::desk(MIRAS) };
        let (again, first_bytes) = successor.arrive(of(MIRA, ""));
        assert_eq!((successor.started(again, 70, 9), first_bytes), (vec![], 0));

        let (_, orders) = desk.resume(&NODE, asks(0)).unwrap();
        assert_eq!(orders.len(), 2, "{orders:?}");
        assert!(desk.resume(&NODE, asks(0)).is_err());
        let acts: Vec<String> = desk.take_events().into_iter().map(|event| event.act).collect();
        assert_eq!(acts, ["session", "pause", "policy", "resume", "session", "session"]);
    }

    #[test]
    fn after_a_restart_in_a_pause_of_the_node_jobs_have_what_they_had() {
        use super::super::tests::GIB;
        let policy = "[[jobs.rule]]\nmode = \"act\"\ncache = { max = \"48GiB\", min = \"1GiB\" }\n";
        let mut desk = desk(policy);
        desk.pause(&NODE, asks(0)).unwrap();
        let pauses = desk.pauses().clone();
        let mut desk = Desk::new(crate::policy::Policy::parse(policy).unwrap(), 64 * GIB, pauses);
        let back = [(MIRA, 70, 16), (OTTO, 71, 40)].map(|(uid, pid, had)| {
            let mut back = of(uid, "");
            back.job.granted_bytes = Some(had * GIB);
            let (id, first_bytes) = desk.arrive(back);
            assert_eq!((first_bytes, desk.started(id, pid, 9)), (0, vec![]));
            id
        });
        desk.tick(Instant::now() + Duration::from_secs(3600));
        desk.resume(&NODE, asks(0)).unwrap();
        assert!(desk.granted(back[1]) >= 40 * GIB, "{} GiB", desk.granted(back[1]) / GIB);
    }

    #[test]
    fn a_job_is_paused_by_its_owner_and_by_root_alone() {
        let mut desk = desk(MIRAS);
        let pid = std::process::id();
        let ticks = crate::procfs::start_ticks(pid).unwrap();
        let (id, _) = desk.arrive(of(MIRA, ""));
        assert!(desk.pause(&job("train"), asks(MIRA)).unwrap_err().contains("has not begun"));
        let session = started(&desk.started(id, pid, ticks));
        assert!(desk.pause(&job("train"), asks(OTTO)).unwrap_err().contains("no job of yours"));
        assert!(desk.resume(&job("train"), asks(MIRA)).unwrap_err().contains("is not paused"));
        let (done, orders) = desk.pause(&job("tr"), asks(MIRA)).unwrap();
        assert_eq!(orders, [ToLauncher::Stop { id: session }], "{done}");
        assert_eq!(desk.ended(session, i32::from(SessionEnd::Stopped.code()), Instant::now()), []);
        // Root's pause of the same job stays until root takes it back.
        desk.pause(&job(&pid.to_string()), asks(0)).unwrap();
        assert!(desk.resume(&job("train"), asks(MIRA)).unwrap_err().contains("root, who alone"));
        assert_eq!(desk.pause(&job("train"), asks(MIRA)).unwrap().1, []);
        assert!(matches!(desk.resume(&job("train"), asks(0)).unwrap().1[..], [ToLauncher::Start(_)]));
        let (other, _) = desk.arrive(of(MIRA, ""));
        desk.started(other, 71, 9);
        assert!(desk.pause(&job("train"), asks(MIRA)).unwrap_err().contains("by its pid"));
    }
}
