//! What those are answered who call the service.

use super::peer::Peer;
use crate::containers::NOT_THE_NODES;
use crate::launching::ToLauncher;
use crate::node_service::book::Book;
use crate::node_service::desk::{Arrival, Asking, Desk, Turned};
use crate::node_service::found::{self, Root};
use crate::policy::JobKnown;
use crate::{host, procfs};
use stallscope_wire::{NodeClient, NodeHello, NodeReply, ShimHello};
use std::collections::HashMap;
use std::time::Instant;

pub(super) struct Answer {
    pub(super) job: Option<u64>,
    pub(super) reply: NodeReply,
    pub(super) orders: Vec<ToLauncher>,
}

impl From<NodeReply> for Answer {
    fn from(reply: NodeReply) -> Answer {
        Answer { job: None, reply, orders: Vec::new() }
    }
}

/// What user `uid` may know, who asks for nothing to be done.
pub(super) fn known_to(desk: &Desk, book: &Book, asks: &NodeClient, uid: u32) -> NodeReply {
    match asks {
        NodeClient::List => NodeReply::Node(desk.shown_to(uid, Instant::now())),
        NodeClient::Log { after } => NodeReply::Log(book.page(*after, uid)),
        _ => NodeReply::Error("that is no question".into()),
    }
}

/// A rule may be for this user or not: it calls again.
fn not_known_yet(uid: u32) -> Answer {
    let why = "the service that knows users' names (nsswitch.conf) has not answered; call again";
    NodeReply::Error(format!("there is no policy for user {uid} yet: {why}")).into()
}

/// Answers what a connection begins with.
pub(super) struct Reception<'a> {
    pub(super) desk: &'a mut Desk,
    pub(super) book: &'a mut Book,
    pub(super) own_uid: Option<u32>,
}

impl Reception<'_> {
    /// `user`: the login name of the one for whom `peer` speaks, where there is an answer to that.
    pub(super) fn answer(&mut self, hello: NodeHello, peer: Peer, user: Option<String>) -> Answer {
        let (owner, Peer { uid, pid, .. }) = (peer.speaks_for(&hello.client), peer);
        match hello.client {
            NodeClient::List | NodeClient::Log { .. } | NodeClient::Pause(_) | NodeClient::Resume(_)
                if peer.is_containers_root() =>
            {
                NodeReply::Error(NOT_THE_NODES.into()).into()
            }
            NodeClient::List | NodeClient::Log { .. } => {
                known_to(self.desk, self.book, &hello.client, uid).into()
            }
            NodeClient::Pause(whose) => self.turn(uid, user, |desk, by| desk.pause(&whose, by)),
            NodeClient::Resume(whose) => self.turn(uid, user, |desk, by| desk.resume(&whose, by)),
            NodeClient::Shim(_) if hello.stallscope != stallscope_ring::PROTOCOL_VERSION => {
                NodeReply::Error("this shim is of another version than the node's service".into()).into()
            }
            NodeClient::Shim(shim) => match user {
                Some(user) => self.answer_shim(shim, peer, user),
                None => not_known_yet(owner),
            },
            NodeClient::Job(job) => {
                let uid = owner;
                let Some(user) = user else { return not_known_yet(uid) };
                let process = job.pid.and_then(|pid| Some((pid, procfs::start_ticks(pid)?)));
                let has_shim = process.and_then(|process| self.desk.collector_of(uid, process));
                if job.pid.is_some() && has_shim.is_none() {
                    return NodeReply::Error("no collector was started for that process".into()).into();
                }
                let is_watched = has_shim == Some(false);
                let of = process.map(|(pid, _)| pid).or(pid);
                let cgroups = of.map_or_else(Vec::new, |pid| peer.cgroups(pid));
                let (id, first_cache_bytes) = self.desk.arrive(Arrival {
                    uid,
                    payer: self.book.payer(uid),
                    user,
                    cgroups,
                    job,
                    is_watched,
                });
                if let Some(process) = process {
                    self.desk.collected(id, uid, process);
                }
                let reply = NodeReply::Allowed { first_cache_bytes };
                Answer { job: Some(id), ..Answer::from(reply) }
            }
        }
    }

    fn answer_shim(&mut self, shim: ShimHello, peer: Peer, user: String) -> Answer {
        let (uid, process) = (peer.uid, peer.root(&shim));
        let known = process.map(|(pid, _)| JobKnown { user, cgroups: peer.cgroups(pid), label: shim.label });
        let (payer, now) = (self.book.payer(uid), Instant::now());
        let (mut first_cache_bytes, mut orders) = (0, Vec::new());
        let found = process.zip(known).filter(|(_, known)| self.desk.is_for_policy(uid, known));
        let comes = found.is_some();
        match found {
            Some((process, known)) if shim.trains => {
                orders = self.desk.introduced(uid, payer, process, known, now);
            }
            Some((process, known)) => {
                first_cache_bytes = self.desk.first_cache(payer, process, &known, now);
            }
            None => {}
        }
        Answer { orders, ..Answer::from(NodeReply::Shim { comes, first_cache_bytes }) }
    }

    /// `users`: their names, as far as there are answers; the others' jobs are found again.
    pub(super) fn found(
        &mut self,
        roots: &[Root],
        users: &HashMap<u32, String>,
        now: Instant,
    ) -> Vec<ToLauncher> {
        let known = self.desk.processes();
        let all: Vec<_> = roots.iter().map(|root| root.process).collect();
        self.desk.forget_all_but(&all);
        let mut orders = Vec::new();
        for Root { process, uid } in roots.iter().copied() {
            let Some(user) = users.get(&uid).filter(|_| !found::is_below(process.0, &known)) else {
                continue;
            };
            // Its label is in its environment, which its user's collector reads.
            let cgroups = procfs::cgroups(process.0);
            let known = JobKnown { user: user.clone(), cgroups, label: String::new() };
            orders.extend(self.desk.found(uid, self.book.payer(uid), process, known, now));
        }
        orders
    }

    fn turn(
        &mut self,
        uid: u32,
        user: Option<String>,
        how: impl FnOnce(&mut Desk, Asking<'_>) -> Turned,
    ) -> Answer {
        // Without an answer a pause goes on by the number.
        let name = user.unwrap_or_else(|| uid.to_string());
        let may_all = uid == 0 || self.own_uid == Some(uid);
        match how(
            self.desk,
            Asking { uid, payer: self.book.payer(uid), name: &name, may_all, wall_ns: host::wall_ns() },
        ) {
            Ok((done, orders)) => {
                // It is in force all the same.
                let reply = match self.book.keep(self.desk.pauses()) {
                    Ok(()) => NodeReply::Done(done),
                    Err(but) => NodeReply::Error(format!("{done}; but {but}")),
                };
                Answer { orders, ..Answer::from(reply) }
            }
            Err(sentence) => NodeReply::Error(sentence).into(),
        }
    }
}
