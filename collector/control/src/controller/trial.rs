//! One trial: from the first request to what is kept or put back.

use super::guard::Probation;
use super::harm::Usual;
use super::pick::drain;
use super::probe::{self, Probe, Stage, Verdict, Why, plan};
use super::seed::{Kind, Proposal, seconds};
use super::shared::Beside;
use super::turn::{Move, Status, Turn, taken_by_another};
use super::{Address, BLIND_NS, Controller, STALE_NS, Work, audit};
use crate::Outcome;
use crate::stats::Gain;
use stallscope_model::{Act, Phase};

impl Controller {
    pub(super) fn try_out(&mut self, proposal: Proposal, saw: String, out: &mut Outcome) {
        let drain = drain(&self.job, &proposal);
        let aim = if proposal.kind == Kind::Release { probe::AIM / 2.0 } else { probe::AIM };
        let drains = [self.job.drain(), drain];
        let (since_ns, settle) = (self.since_ns, self.settle);
        let Some(plan) = plan(&self.job, since_ns, settle, drains, aim, proposal.clear) else { return };
        let usual = |rank: &u32| {
            let groups = self.job.ranks.get(rank)?.pace.since(since_ns, settle);
            Some((*rank, Usual::of(crate::window::newest(&groups, plan.enough[0]))?))
        };
        let mut turned: Vec<u32> = proposal.moves.iter().map(|turned| turned.rank).collect();
        turned.dedup();
        let usual = turned.iter().filter_map(usual).collect();
        self.restless = plan.restless.unwrap_or(self.restless);
        self.decisions += 1;
        let act = if proposal.kind == Kind::Release { Act::Release } else { Act::Request };
        out.audit.extend(audit::asked(act, self.decisions, self.now_ns, &proposal, &saw));
        let turn = Turn { moves: proposal.moves.clone(), asked_ns: self.now_ns };
        out.actions.extend(turn.actions(self.decisions));
        let (memory_bytes, own_bytes) = (self.job.memory_bytes(), self.job.own_bytes());
        self.work = Work::Probing(Box::new(Probe {
            decision: self.decisions,
            alpha: self.patience(&proposal).alpha(),
            settle: probe::settles(&proposal, drains),
            proposal,
            stage: Stage::Turning(turn),
            legs: vec![plan.before],
            allowance: (probe::DELTA / 2.0 - self.given_away).max(0.0),
            restless: self.restless,
            fewest: plan.fewest,
            enough: plan.enough,
            spent_ns: 0,
            own_bytes,
            most_own_bytes: own_bytes,
            most_memory_bytes: memory_bytes,
            stall_before: plan.stall,
            stall_with: plan.stall,
            stall_without: plan.stall,
            applied_logged: false,
            usual,
            cost_ns: 0.0,
            leg_cost_ns: 0.0,
            before: self.shared.before(self.since_ns, self.now_ns),
            beside: Beside::default(),
            waits_for_others: self.shared.looks(),
        }));
    }

    pub(super) fn go_on(&mut self, mut probe: Probe, elapsed_ns: u64, out: &mut Outcome) {
        probe.note_memory(&self.job);
        if let Stage::Turning(turn) = &probe.stage {
            let asked_ns = turn.asked_ns;
            match turn.status(&self.job, self.now_ns) {
                Status::Waiting(_) => self.work = Work::Probing(Box::new(probe)),
                Status::InForce => self.in_force(probe, asked_ns, out),
                Status::Refused(why) => self.refused(probe, why, out),
                Status::Taken(by) => self.lost(probe, &by, out),
                Status::Gone(why) => self.put_back(probe, why, out),
            }
            return;
        }
        let Stage::Measuring { since_ns, settles_ns } = probe.stage else { return };
        if let Some(by) = probe.proposal.moves.iter().find_map(|turned| taken_by_another(turned, &self.job)) {
            return self.lost(probe, &by, out);
        }
        if let Some(gone) = probe.proposal.moves.iter().find(|turned| turned.find(&self.job).is_none()) {
            let why = format!("rank {} or its knob {} is gone", gone.rank, gone.knob);
            return self.put_back(probe, why, out);
        }
        if let Some((topic, why)) = self.blind() {
            self.hold(topic, String::new(), why.clone(), out);
            let since = *self.blind_since_ns.get_or_insert(self.now_ns);
            if self.now_ns.saturating_sub(since) > BLIND_NS {
                self.blind_since_ns = None;
                return self.put_back(probe, why, out);
            }
            self.work = Work::Probing(Box::new(probe));
            return;
        }
        self.blind_since_ns = None;
        if !self.job.training().all(|rank| rank.phase == Some(Phase::Training)) {
            self.work = Work::Probing(Box::new(probe));
            return;
        }
        probe.spent_ns = probe.spent_ns.saturating_add(elapsed_ns.min(STALE_NS));
        let last_ns = self.job.training().map(|rank| rank.pace.last_end_ns()).max().unwrap_or(0);
        let silent_ns = self.now_ns.saturating_sub(last_ns.max(since_ns));
        if probe.is_silent(silent_ns, self.job.step_ns()) {
            self.give_up(&probe.proposal, 1.0);
            self.put_back(probe, format!("no step ended for {}", seconds(silent_ns as f64)), out);
            return self.rollback(out);
        }
        if let Some(why) = probe.harmed(&self.job, since_ns) {
            let gain = probe.so_far(&self.job, since_ns);
            return self.undo(probe, gain, format!("{}: {why}", audit::why(Why::Worse)), out);
        }
        let with = probe.is_with();
        if !self.look_beside(&mut probe.beside, with, since_ns) && probe.waits_for_others {
            self.work = Work::Probing(Box::new(probe));
            return;
        }
        // However long it takes to see what this job gains.
        if let Some(why) = probe.beside.taken().filter(|_| !with) {
            let gain = probe.so_far(&self.job, since_ns);
            self.shared.lose();
            return self.undo(probe, gain, why, out);
        }
        match probe.judge(&self.job, since_ns, settles_ns) {
            _ if probe.spent_ns > probe::LONGEST_PROBE_NS => {
                let why = "it took too long to see what it does".to_owned();
                self.undo(probe, None, why, out);
            }
            Verdict::Open => self.work = Work::Probing(Box::new(probe)),
            Verdict::Next => self.next_leg(probe, out),
            Verdict::Keep(gain) => self.keep(probe, gain, out),
            Verdict::Undo(gain, why) => {
                let verdict = format!("{}: {}", audit::why(why), audit::gain(gain));
                if why == Why::Vanished {
                    let now_ns = self.now_ns;
                    let step = probe.proposal.step();
                    self.patience(&probe.proposal).again(step, now_ns);
                    return self.end(probe, Some(gain), Act::Undo, verdict, &[], out);
                }
                self.undo(probe, Some(gain), verdict, out);
            }
        }
    }

    fn in_force(&mut self, mut probe: Probe, asked_ns: u64, out: &mut Outcome) {
        // Workers that leave first finish what they were given, which takes as long as all that was under way takes to
        // be trained on. It must not be waited for twice, at the pace of those that stay.
        let back = !probe.is_with();
        let settles_ns = if back { asked_ns } else { self.now_ns };
        self.supply.turned(self.now_ns);
        probe.stage = Stage::Measuring { since_ns: self.now_ns, settles_ns };
        probe.cost_ns += std::mem::take(&mut probe.leg_cost_ns);
        if !std::mem::replace(&mut probe.applied_logged, true) {
            let mut event = audit::about(Act::Applied, probe.decision, self.now_ns, &probe.proposal);
            event.why = format!(
                "{}; measured from here, without the {} batches that were under way",
                audit::moves(&probe.proposal),
                probe.settle[1]
            );
            out.audit.push(event);
        }
        self.work = Work::Probing(Box::new(probe));
    }

    fn next_leg(&mut self, mut probe: Probe, out: &mut Outcome) {
        let with = probe.is_with();
        let moves: Vec<Move> = probe
            .proposal
            .moves
            .iter()
            .map(|turned| if with { turned.clone() } else { turned.back() })
            .collect();
        let act = if probe.proposal.kind == Kind::Release && with { Act::Release } else { Act::Request };
        let mut event = audit::about(act, probe.decision, self.now_ns, &probe.proposal);
        if !with {
            std::mem::swap(&mut event.from, &mut event.to);
        }
        event.saw = audit::windows(&probe);
        event.why =
            if with { "once more with it, to be sure" } else { "back for a while, to see that it was this" }
                .to_owned();
        out.audit.push(event);
        let turn = Turn { moves, asked_ns: self.now_ns };
        out.actions.extend(turn.actions(probe.decision));
        probe.stage = Stage::Turning(turn);
        self.work = Work::Probing(Box::new(probe));
    }

    fn keep(&mut self, probe: Probe, gain: Gain, out: &mut Outcome) {
        self.learn(&probe);
        let release = probe.proposal.kind == Kind::Release;
        let mut event = audit::about(Act::Keep, probe.decision, self.now_ns, &probe.proposal);
        event.saw = audit::windows(&probe);
        event.measured = audit::measured(gain);
        event.why = if release {
            format!("the job is as fast without: {}", audit::gain(gain))
        } else {
            format!("the gain is proven: {}", audit::gain(gain))
        };
        out.audit.push(event);
        self.patience(&probe.proposal).keep(probe.proposal.step());
        if release {
            self.given_away += (-gain.value).max(0.0);
        } else {
            self.given_away = 0.0;
            // What a gain changed may let the other knob help now.
            for ((knob, kind), patience) in &mut self.patience {
                if *kind == Kind::Raise && *knob != probe.proposal.knob {
                    patience.forget();
                }
            }
            for turned in &probe.proposal.moves {
                if turned.knob == probe.proposal.knob && turned.to > turned.from {
                    let address = (turned.rank, turned.loader, turned.knob.clone());
                    self.too_few.insert(address, turned.from);
                }
            }
            self.waited_ns = self.now_ns;
            let looked = probe.waits_for_others || probe.beside.is_known();
            self.shared.keep(probe.decision, &probe.proposal, probe.before, looked);
            if probe.proposal.kind == Kind::Raise {
                self.raised.push(probe.proposal.clone());
                let deltas = probe.proposal.deltas();
                self.grown = match deltas.as_slice() {
                    [delta] if probe.own_bytes > 0 => Some((*delta, probe.own_bytes)),
                    _ => None,
                };
            }
            if let Some(before) = probe.legs.last() {
                self.probation = Some(Probation {
                    decision: probe.decision,
                    proposal: probe.proposal.clone(),
                    before: *before,
                    restless: self.restless,
                    stall_with: probe.stall_with,
                    window_steps: probe.fewest[1],
                    kept_ns: self.now_ns,
                });
            }
        }
        self.turn_to(probe.decision, probe.proposal.moves, out);
    }

    fn undo(&mut self, probe: Probe, gain: Option<Gain>, why: String, out: &mut Outcome) {
        self.learn(&probe);
        let jitter = self.random.unit();
        self.give_up(&probe.proposal, jitter);
        self.end(probe, gain, Act::Undo, why, &[], out);
    }

    /// Ends a probe that was not judged. What it took of memory is known all the same where it was in force for a window.
    pub(super) fn put_back(&mut self, probe: Probe, why: String, out: &mut Outcome) {
        if probe.legs.len() > 1 {
            self.learn(&probe);
        }
        self.end(probe, None, Act::Undo, why, &[], out);
    }

    fn refused(&mut self, probe: Probe, why: String, out: &mut Outcome) {
        let now_ns = self.now_ns;
        self.patience(&probe.proposal).leave_alone(now_ns);
        self.end(probe, None, Act::Refused, why, &[], out);
    }

    /// Somebody else turned the knob: theirs stays.
    fn lost(&mut self, probe: Probe, by: &str, out: &mut Outcome) {
        let theirs: Vec<Move> = probe
            .proposal
            .moves
            .iter()
            .filter(|turned| taken_by_another(turned, &self.job).is_some())
            .cloned()
            .collect();
        let values: Vec<(Address, u64)> = theirs
            .iter()
            .filter_map(|turned| {
                let knob = turned.find(&self.job)?;
                Some(((knob.rank, knob.loader, knob.name.clone()), knob.requested.unwrap_or(knob.value)))
            })
            .collect();
        self.end(
            probe,
            None,
            Act::Undo,
            format!("{by} turned the knob meanwhile: theirs stays, the trial is dropped"),
            &theirs,
            out,
        );
        for (address, value) in values {
            self.values.insert(address.clone(), value);
            self.leave_to(by, &address, value, out);
        }
    }

    fn end(
        &mut self,
        probe: Probe,
        gain: Option<Gain>,
        act: Act,
        why: String,
        except: &[Move],
        out: &mut Outcome,
    ) {
        let mut event = audit::about(act, probe.decision, self.now_ns, &probe.proposal);
        event.saw = audit::windows(&probe);
        event.measured = gain.and_then(audit::measured);
        event.why = why;
        self.count_cost(probe.cost_ns + probe.leg_cost_ns, &mut event);
        out.audit.push(event);
        let stays = |turned: &&Move| !except.contains(turned) && turned.find(&self.job).is_some();
        let moves: Vec<Move> = probe.proposal.moves.iter().filter(stays).map(Move::back).collect();
        self.turn_to(probe.decision, moves, out);
    }

    pub(super) fn learn(&mut self, probe: &Probe) {
        let deltas = probe.proposal.deltas();
        if let [delta] = deltas.as_slice()
            && probe.applied_logged
            && probe.own_bytes > 0
        {
            self.costs.learn(*delta, probe.most_own_bytes.saturating_sub(probe.own_bytes));
        }
    }
}
