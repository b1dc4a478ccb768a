//! Who turns a job's knobs: people who ask for it, and the controller that one of them may have begun.

mod own_rule;
mod running;

use crate::asked::{Asked, Following};
use crate::engine::Engine;
use crate::knobs::{EARLIER, Place};
use crate::registration::NodeLink;
use crate::reporting::Reporting;
use crate::{holding, host};
use own_rule::OwnRules;
use running::{Running, request};
use stallscope_control::{Action, Outcome};
use stallscope_model::{Act, AuditEvent, Budgets, Knob, KnobRequest, KnobState, TuneMode};
use stallscope_wire::{Reply, Request};
use std::collections::BTreeSet;
use tokio::sync::oneshot;

/// The name under which a controller asks.
const CONTROLLER: &str = "controller";
/// How long a request waits for the job's answer; a later answer is in the audit.
const ANSWER_NS: u64 = 1_000_000_000;
/// Knobs that may be asked for at once.
const REQUESTS: usize = 256;
/// More requests at once are not answered when the job does, but at once.
const WAITING: usize = 256;

/// The job's owner.
#[derive(Clone, Debug)]
pub(crate) struct Owner {
    pub(crate) uid: u32,
    pub(crate) name: String,
    pub(crate) job: String,
}

/// The asking client, by the kernel's word.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) connection: u64,
    pub(crate) uid: u32,
}

/// The knobs of one job, as far as they are turned from outside.
#[derive(Debug)]
pub(crate) struct Control {
    owner: Owner,
    running: Option<Running>,
    following: Following,
    waiting: Vec<Waiting>,
    /// Numbers the next decision.
    decisions: u64,
    /// Knobs found to have been asked for a value by an earlier collector, which the audit has.
    found: BTreeSet<(Place, String)>,
    own_rules: OwnRules,
    /// To the node's service, where the job introduced itself.
    reporting: Option<Reporting>,
}

/// A client that waits for the job's answer.
#[derive(Debug)]
struct Waiting {
    places: Vec<Place>,
    until_ns: u64,
    reply: oneshot::Sender<Reply>,
}

impl Control {
    pub(crate) fn new(owner: Owner) -> Control {
        Control {
            owner,
            running: None,
            following: Following::default(),
            waiting: Vec::new(),
            decisions: 0,
            found: BTreeSet::new(),
            own_rules: OwnRules::default(),
            reporting: None,
        }
    }

    /// What is done to the job is the node's service's concern, too.
    pub(crate) fn report_to(&mut self, link: NodeLink) {
        self.reporting = Some(Reporting::new(link));
    }

    /// What became of its user's recordings, for the node's service.
    pub(crate) fn of_recordings(&mut self, sentence: String) {
        if let Some(reporting) = &mut self.reporting {
            reporting.of_recordings(sentence);
        }
    }

    /// Answers a request of a viewer's, at once or when the job has.
    pub(crate) fn asked(
        &mut self,
        engine: &mut Engine,
        request: Request,
        peer: Peer,
        reply: oneshot::Sender<Reply>,
    ) {
        let answer = match request {
            Request::Summary => Reply::Summary(Box::new(engine.summary())),
            Request::Audit { from } => Reply::Audit(engine.audit.page(from)),
            Request::Watch(_) => Reply::Error("only the node's collector watches processes".into()),
            Request::Set(_) | Request::Tune { .. } | Request::Stop if !self.may_turn(peer) => {
                Reply::Error(self.refusal(peer))
            }
            Request::Set(requests) => match self.set(engine, &requests, peer) {
                Ok(places) => {
                    self.answer_later(engine, places, reply);
                    return;
                }
                Err(sentence) => Reply::Error(sentence),
            },
            Request::Tune { mode, budgets, rule } => {
                let by = match rule {
                    Some(rule) => format!("rule {rule} of the node, as {}", self.name_of(peer)),
                    None => self.name_of(peer),
                };
                match self.begin(engine, mode, budgets, by, Some(peer.connection)) {
                    Ok(from) => {
                        if let Some(running) = self.running.as_mut() {
                            running.is_of_node = rule.is_some();
                        }
                        Reply::Tuning { from }
                    }
                    Err(sentence) => Reply::Error(sentence),
                }
            }
            Request::Stop if self.leads(peer.connection) => {
                let places = self.stop(engine);
                self.answer_later(engine, places, reply);
                return;
            }
            Request::Stop => Reply::Error("there is no controller that this connection began".into()),
        };
        // A caller that hung up meanwhile needs no answer.
        let _ = reply.send(answer);
    }

    fn may_turn(&self, peer: Peer) -> bool {
        peer.uid == self.owner.uid || peer.uid == 0
    }

    fn refusal(&self, peer: Peer) -> String {
        let Owner { name, job, .. } = &self.owner;
        format!("the knobs of {job} are for {name} and root; you are {}", self.name_of(peer))
    }

    /// The owner's name is known: looking it up again could make the session wait for a directory service.
    fn name_of(&self, peer: Peer) -> String {
        if peer.uid == self.owner.uid { self.owner.name.clone() } else { host::user_name(peer.uid) }
    }

    /// Turns knobs in the name of a user; gives where they are.
    fn set(
        &mut self,
        engine: &mut Engine,
        requests: &[KnobRequest],
        peer: Peer,
    ) -> Result<Vec<Place>, String> {
        if requests.len() > REQUESTS {
            return Err(format!("{} knobs at once are too many; at most {REQUESTS}", requests.len()));
        }
        if requests.is_empty() {
            return Err("no knob was named; say NAME=VALUE, as in prefetch=32".into());
        }
        let by = self.name_of(peer);
        let before = engine.knobs.state();
        let resolved = engine.resolve(requests)?;
        let places = resolved.places();
        let decision = self.next_decision();
        let now_ns = host::now_ns();
        for asked in requests.iter().flat_map(|request| all_of(request, &places, &before, decision, &by)) {
            engine.audit(asked.line(Act::Request, now_ns, "asked for by hand"));
            self.following.follow(asked);
        }
        // If we are killed while the job changes, the recording has what was asked of it.
        engine.flush();
        engine.knobs.ask(&resolved, &by);
        Ok(places)
    }

    fn next_decision(&mut self) -> u64 {
        self.decisions += 1;
        self.decisions
    }

    fn answer_later(&mut self, engine: &Engine, places: Vec<Place>, reply: oneshot::Sender<Reply>) {
        let until_ns = host::now_ns() + ANSWER_NS;
        if self.waiting.len() < WAITING {
            self.waiting.push(Waiting { places, until_ns, reply });
        } else {
            let _ = reply.send(Reply::Knobs(engine.knobs.state()));
        }
    }

    /// Lets a controller work; gives the first line of the audit that is its own.
    ///
    /// # Errors
    /// One sentence: another one does, or the job's knobs are out of reach.
    pub(crate) fn begin(
        &mut self,
        engine: &mut Engine,
        mode: TuneMode,
        budgets: Budgets,
        by: String,
        connection: Option<u64>,
    ) -> Result<u64, String> {
        let job = &self.owner.job;
        if let Some(Running { by, mode, .. }) = &self.running {
            return Err(format!(
                "{job} is tuned by {by} already (mode {}); one controller at a time: end that one first",
                mode.name()
            ));
        }
        let has_knobs = || engine.knobs.state().iter().any(|knob| knob.name != holding::KNOB);
        if mode == TuneMode::Act && !engine.wants_shim && !has_knobs() {
            return Err(format!(
                "the knobs of {job} cannot be turned: it is watched from outside, without the shim; start it with `stallscope run`"
            ));
        }
        let from = engine.audit.next();
        engine.tuned(Some(mode));
        self.running = Some(Running::new(mode, budgets, by, connection));
        Ok(from)
    }

    fn leads(&self, connection: u64) -> bool {
        self.running.as_ref().is_some_and(|running| running.connection == Some(connection))
    }

    /// Ends the controller, which puts back what it has not proven; gives what it turned for that.
    fn stop(&mut self, engine: &mut Engine) -> Vec<Place> {
        let Some(mut running) = self.running.take() else { return Vec::new() };
        let outcome = running.stop();
        let places = self.carry_out(engine, &mut running, outcome);
        engine.tuned(None);
        places
    }

    /// Writes into the audit what a controller has to say, and then does what it wants done.
    fn carry_out(&mut self, engine: &mut Engine, running: &mut Running, outcome: Outcome) -> Vec<Place> {
        let Outcome { actions, audit } = outcome;
        // The audit has had what the job took since it took it, knob by knob.
        for mut line in audit.into_iter().filter(|line| line.act != Act::Applied) {
            if line.decision > 0 {
                line.decision = running.decision(line.decision, || self.next_decision());
            } else if line.act == Act::Mode {
                line.by.clone_from(&running.by);
            }
            engine.audit(line);
        }
        if actions.is_empty() {
            return Vec::new();
        }
        // If we are killed while the job changes, the recording has what was asked of it.
        engine.flush();
        let (before, now_ns) = (engine.knobs.state(), host::now_ns());
        let mut turned = Vec::new();
        for action in actions {
            let decision = running.decision(action.decision, || self.next_decision());
            let request = request(&action);
            match engine.resolve(std::slice::from_ref(&request)) {
                Ok(resolved) => {
                    engine.knobs.ask(&resolved, CONTROLLER);
                    let places = resolved.places();
                    let asked = all_of(&request, &places, &before, decision, CONTROLLER);
                    asked.into_iter().for_each(|asked| self.following.follow(asked));
                    turned.extend(places);
                }
                Err(sentence) => engine.audit(AuditEvent {
                    time_ns: now_ns,
                    decision,
                    act: Act::Refused,
                    by: CONTROLLER.into(),
                    rank: Some(action.rank),
                    loader: action.loader,
                    knob: action.knob,
                    to: Some(action.value),
                    why: sentence,
                    ..AuditEvent::default()
                }),
            }
        }
        turned
    }

    /// A viewer is gone, and with it the controller that it began.
    pub(crate) fn viewer_gone(&mut self, engine: &mut Engine, connection: u64) {
        if self.leads(connection) {
            self.stop(engine);
        }
    }

    /// At each tick of the session: takes in what the job has answered.
    pub(crate) fn tick(&mut self, engine: &mut Engine) {
        let now_ns = host::now_ns();
        if !self.following.is_empty() {
            for line in self.following.answered(&engine.knobs.state(), now_ns) {
                // A controller at work tells itself what was refused to it.
                if self.running.is_none() || line.by != CONTROLLER || line.act == Act::Applied {
                    engine.audit(line);
                }
            }
        }
        let due =
            |waiting: &Waiting| now_ns >= waiting.until_ns || engine.knobs.has_answered(&waiting.places);
        let (due, still) = std::mem::take(&mut self.waiting).into_iter().partition(due);
        self.waiting = still;
        for waiting in due {
            let _: Result<(), Reply> = waiting.reply.send(Reply::Knobs(engine.knobs.state()));
        }
    }

    /// Once a second.
    pub(crate) fn second(&mut self, engine: &mut Engine) {
        self.tell_of_an_earlier_collector(engine);
        for line in self.own_rules.changed(&engine.knobs.state(), host::now_ns()) {
            engine.audit(line);
        }
        let granted_bytes = self.reporting.as_ref().and_then(Reporting::granted_bytes);
        let beside = self.reporting.as_ref().and_then(Reporting::beside);
        if let Some(mut running) = self.running.take() {
            if let Some(bytes) = granted_bytes {
                running.grant(bytes);
            }
            let outcome = running.observe(engine, beside);
            self.carry_out(engine, &mut running, outcome);
            self.running = Some(running);
        }
        if let Some(reporting) = &mut self.reporting {
            let controlled = self.running.as_mut().map(Running::controlled).unwrap_or_default();
            reporting.second(engine, &controlled);
        }
    }

    /// What somebody asked for whose audit is not this one.
    fn tell_of_an_earlier_collector(&mut self, engine: &mut Engine) {
        let found = engine.knobs.state().into_iter().filter(|knob| knob.set_by == EARLIER);
        for knob in found {
            let place = ((knob.rank, knob.loader), knob.name.clone());
            if !self.found.insert(place) {
                continue;
            }
            engine.audit(AuditEvent {
                time_ns: host::now_ns(),
                act: Act::Mode,
                by: knob.set_by,
                rank: Some(knob.rank),
                loader: knob.loader,
                from: Some(knob.initial),
                to: knob.requested,
                saw: format!(
                    "{} {} in force, {} asked for",
                    knob.name,
                    knob.value,
                    knob.requested.unwrap_or(0)
                ),
                why: "an earlier collector had asked for it; it stays as it is until somebody turns it"
                    .into(),
                knob: knob.name,
                ..AuditEvent::default()
            });
        }
    }

    /// Of a job that is over nothing can be undone.
    fn end_controller(&mut self, engine: &mut Engine, job_is_over: bool) {
        if !job_is_over {
            self.stop(engine);
        } else if let Some(mut running) = self.running.take() {
            for action in running.stop().actions {
                let decision = running.decision(action.decision, || self.next_decision());
                engine.audit(unproven(&action, decision, &running.by));
            }
            engine.audit(AuditEvent {
                time_ns: host::now_ns(),
                act: Act::Mode,
                by: running.by,
                why: "the job ended, and the controller with it".into(),
                ..AuditEvent::default()
            });
            engine.tuned(None);
        }
    }

    /// The job is over, or is left.
    pub(crate) fn end(&mut self, engine: &mut Engine, job_is_over: bool) {
        self.end_controller(engine, job_is_over);
        let why = if job_is_over {
            "the job ended before it took effect"
        } else {
            "the collector left before it took effect"
        };
        let now_ns = host::now_ns();
        for line in self.following.answered(&engine.knobs.state(), now_ns) {
            engine.audit(line);
        }
        for line in self.following.give_up(why, now_ns) {
            engine.audit(line);
        }
        for waiting in std::mem::take(&mut self.waiting) {
            let _ = waiting.reply.send(Reply::Error(format!("{} has ended", self.owner.job)));
        }
    }
}

/// In which midst a job that is over was.
fn unproven(action: &Action, decision: u64, by: &str) -> AuditEvent {
    AuditEvent {
        time_ns: host::now_ns(),
        decision,
        act: Act::Mode,
        by: by.to_owned(),
        rank: Some(action.rank),
        loader: action.loader,
        knob: action.knob.clone(),
        why: "the job ended before the gain was proven; there was nothing left to undo".into(),
        ..AuditEvent::default()
    }
}

/// The knobs that a request was for, as they stood before.
fn all_of(request: &KnobRequest, places: &[Place], before: &[Knob], decision: u64, by: &str) -> Vec<Asked> {
    let meant = before.iter().filter(|knob| {
        knob.name == request.knob
            && knob.state != KnobState::Unavailable
            && places.contains(&(knob.rank, knob.loader))
            && request.rank.is_none_or(|rank| rank == knob.rank)
            && (request.loader.is_none() || request.loader == knob.loader)
    });
    meant
        .map(|knob| Asked {
            decision,
            by: by.to_owned(),
            rank: knob.rank,
            loader: knob.loader,
            knob: knob.name.clone(),
            from: knob.value,
            to: request.value,
            waits_for: String::new(),
        })
        .collect()
}
