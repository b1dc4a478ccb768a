//! One worker fewer for a few batches, where observation alone does not show whether storage is at a limit.
//!
//! Workers that always read side by side show what they get together, and not whether one less would leave more for
//! the others (a limit) or not (a delay). A raise shows the same and may gain, so that this is done only where no
//! raise is possible or due. It can only cost, so that its cost is bounded before it begins.

use super::seed::{Kind, Need, STALL, WORKERS, seconds, turned};
use super::turn::{Move, Status, Turn, taken_by_another};
use super::{Controller, Work, audit};
use crate::Outcome;
use crate::budget::Headroom;
use crate::fit::{Fit, reads_at_all};
use crate::profile::{MIN_SERVICES, Profile};
use crate::random::Random;
use crate::rates;
use crate::window::Sums;
use stallscope_model::{Act, Estimate, Phase};

/// Not more often.
const EVERY_NS: u64 = 1_800_000_000_000;
/// Whether it is worth while is asked so often.
const ASK_NS: u64 = 10_000_000_000;
/// Training time that it may cost, at most, were all of the work done by the workers; and never more than all looks may
/// ([`Controller::affords`]).
const MOST_LOST_NS: f64 = 15e9;
/// And how long it may take. Whatever else happens, it is over then.
const LONGEST_NS: u64 = 60_000_000_000;
/// Of more workers one is so small a part that what it changes is lost in how batches differ.
const MOST_WORKERS: u64 = 8;
/// Batches at one worker fewer: so many should suffice, by workers squared (what is seen is one part in so many, and its error
/// falls with the root of the batches).
const FEWEST: u64 = 16;
const MOST: u64 = 64;

/// Under way.
#[derive(Clone, Debug)]
pub(crate) struct StorageTest {
    decision: u64,
    turned: Move,
    stage: Stage,
    /// Steps that are looked at before it ends without an answer.
    steps: u32,
    /// Of a step before.
    step_ns: f64,
    /// Training time that it may cost, as the audit says: when it has, it ends.
    most_ns: f64,
    /// What it has cost so far.
    cost_ns: f64,
}

/// What a look takes and how it is explained.
struct Plan {
    turned: Move,
    steps: u32,
    step_ns: f64,
    most_ns: f64,
    /// Of the pace, meanwhile.
    lost_share: f64,
    saw: String,
}

#[derive(Clone, Debug)]
enum Stage {
    Turning(Turn),
    /// One worker fewer since.
    Looking(u64),
}

impl Controller {
    /// Takes a worker away for a while, where that is worth while now.
    pub(super) fn test_storage(&mut self, out: &mut Outcome) {
        // What is over its budget already is not to be given anything back.
        let short = self
            .headroom
            .pressed(&self.job)
            .map(|pressed| pressed.why)
            .or_else(|| self.headroom.exceeded(&self.job));
        let short = short.or_else(|| Headroom::contradiction(&self.headroom.budgets));
        if self.now_ns < self.storage_test_ns || self.probation.is_some() || short.is_some() {
            return;
        }
        self.storage_test_ns = self.now_ns.saturating_add(ASK_NS);
        let Some(Plan { turned, steps, step_ns, most_ns, lost_share: lost, saw }) =
            self.worth_a_storage_test()
        else {
            return;
        };
        self.storage_test_ns = self.now_ns.saturating_add(EVERY_NS);
        self.decisions += 1;
        let mut event = audit::line(Act::Request, self.decisions, self.now_ns);
        audit::of(&mut event, &turned);
        event.saw = saw;
        event.predicted = Some(Estimate { value: -lost, low: -lost, high: 0.0 });
        event.why = format!(
            "one worker fewer for about {steps} batches shows whether storage has a limit or only a delay; then it comes \
             back, and as soon as it has cost {} of training",
            seconds(most_ns)
        );
        out.audit.push(event);
        let turn = Turn { moves: vec![turned.clone()], asked_ns: self.now_ns };
        out.actions.extend(turn.actions(self.decisions));
        let (decision, stage) = (self.decisions, Stage::Turning(turn));
        let test = StorageTest { decision, turned, stage, steps, step_ns, most_ns, cost_ns: 0.0 };
        self.work = Work::TestingStorage(Box::new(test));
    }

    fn worth_a_storage_test(&self) -> Option<Plan> {
        let needs = self.job.training().filter_map(|rank| Need::of(rank, self.since_ns, self.settle));
        let need = needs.max_by(|a, b| a.stall().total_cmp(&b.stall()))?;
        let reads = need.sums.fetch_ns > need.sums.stall_ns / 2.0;
        let workers = need.workers.filter(|workers| (2..=MOST_WORKERS).contains(workers))?;
        if need.stall() <= STALL || !reads || !self.cannot_tell(need.rank) {
            return None;
        }
        let rank = self.job.ranks.get(&need.rank)?;
        let turned = turned(rank, WORKERS, workers - 1).filter(|turned| turned.to == workers - 1)?;
        let fewer =
            (2 * workers * workers).clamp(FEWEST, MOST) + need.prefetch.unwrap_or(2 * workers).min(MOST);
        // All work is the workers': a step takes n / (n - 1) as long.
        let (steps, step_ns) = (fewer as u32, need.sums.step_ns());
        let most_ns = fewer as f64 * step_ns / (workers - 1) as f64;
        let all_ns = fewer as f64 * step_ns + most_ns;
        if most_ns > MOST_LOST_NS || all_ns > LONGEST_NS as f64 || !self.affords(most_ns) {
            return None;
        }
        let saw = format!(
            "{} workers that always read side by side, and training that waits {} of its time for what they read",
            workers,
            stallscope_units::percent_in_words(need.stall())
        );
        Some(Plan { turned, steps, step_ns, most_ns, lost_share: 1.0 / workers as f64, saw })
    }

    fn tested(&self, rank: u32) -> Option<&Profile> {
        self.profiles.training().into_iter().find(|profile| profile.rank == rank)
    }

    fn cannot_tell(&self, rank: u32) -> bool {
        self.tested(rank).is_some_and(|profile| {
            let fit = || Fit::new(profile, &mut Random::new(u64::from(rank) + 1));
            profile.services() >= MIN_SERVICES && reads_at_all(profile) && fit().is_unknown()
        })
    }

    pub(super) fn go_on_testing_storage(&mut self, mut test: StorageTest, drifted: bool, out: &mut Outcome) {
        if let Some(by) = taken_by_another(&test.turned, &self.job) {
            return self.lose_storage_test(test, &by, out);
        }
        match &test.stage {
            Stage::Turning(turn) => match turn.status(&self.job, self.now_ns) {
                Status::Waiting(_) => {}
                Status::InForce => {
                    let mut event = audit::line(Act::Applied, test.decision, self.now_ns);
                    audit::of(&mut event, &test.turned);
                    out.audit.push(event);
                    test.stage = Stage::Looking(self.now_ns);
                }
                Status::Refused(why) => {
                    self.patience.entry((WORKERS, Kind::Release)).or_default().leave_alone(self.now_ns);
                    return self.end_storage_test(test, Act::Refused, String::new(), why, out);
                }
                Status::Taken(by) => return self.lose_storage_test(test, &by, out),
                Status::Gone(why) => return self.end_storage_test(test, Act::Undo, String::new(), why, out),
            },
            Stage::Looking(since_ns) => {
                let (since_ns, rank) = (*since_ns, test.turned.rank);
                let mut seen = 0;
                if let Some(looked) = self.job.ranks.get(&rank) {
                    let sums = Sums::of(&looked.pace.since(since_ns, 0));
                    seen = sums.steps as u32;
                    // The step under way counts as soon as it takes longer than one did.
                    let open_ns =
                        looked.seen_until_ns.saturating_sub(looked.pace.last_end_ns().max(since_ns));
                    let more_ns = (open_ns as f64 - test.step_ns).max(0.0);
                    test.cost_ns = (sums.wall_ns - sums.steps * test.step_ns).max(0.0) + more_ns;
                }
                let over = seen >= test.steps
                    || test.cost_ns >= test.most_ns
                    || self.now_ns.saturating_sub(since_ns) > LONGEST_NS
                    || self.headroom.pressed(&self.job).is_some()
                    || self.blind().is_some()
                    || !self.job.training().all(|rank| rank.phase == Some(Phase::Training));
                let is_known = u64::from(seen) >= FEWEST / 2 && !self.cannot_tell(rank);
                if is_known || over || drifted {
                    let saw = format!(
                        "{seen} steps in {} with one worker fewer",
                        seconds(self.now_ns.saturating_sub(since_ns) as f64)
                    );
                    let why = format!("the worker comes back. {}", self.finding(rank, is_known));
                    return self.end_storage_test(test, Act::Undo, saw, why, out);
                }
            }
        }
        self.work = Work::TestingStorage(Box::new(test));
    }

    /// What is known now, in a sentence.
    fn finding(&self, rank: u32, is_known: bool) -> String {
        let Some(profile) = self.tested(rank).filter(|_| is_known) else {
            return "What storage gives is still not known".to_owned();
        };
        let random = &mut Random::new(u64::from(rank) + 1);
        let fit = Fit::new(profile, random);
        match rates::storage(profile, &fit, random) {
            Some(most) => format!(
                "Storage gives at most {:.0} samples/s ({:.0} to {:.0}) to rank {rank}, however many workers read",
                most.value, most.low, most.high
            ),
            None if fit.high < 0.5 => {
                "Reads hardly hold each other up, so that more workers would read more".to_owned()
            }
            None => format!(
                "{:.0}% to {:.0}% of reading is waiting for a limit of storage that all workers share",
                100.0 * fit.low,
                100.0 * fit.high
            ),
        }
    }

    fn lose_storage_test(&mut self, test: StorageTest, by: &str, out: &mut Outcome) {
        let turned = &test.turned;
        let mut event = audit::line(Act::Undo, test.decision, self.now_ns);
        audit::of(&mut event, turned);
        event.why = format!("{by} turned the knob meanwhile: theirs stays");
        self.count_cost(test.cost_ns, &mut event);
        out.audit.push(event);
        if let Some(knob) = turned.find(&self.job) {
            let (address, value) =
                ((knob.rank, knob.loader, knob.name.clone()), knob.requested.unwrap_or(knob.value));
            self.values.insert(address.clone(), value);
            self.leave_to(by, &address, value, out);
        }
        self.settings_changed();
    }

    pub(super) fn end_storage_test(
        &mut self,
        test: StorageTest,
        act: Act,
        saw: String,
        why: String,
        out: &mut Outcome,
    ) {
        let mut event = audit::line(act, test.decision, self.now_ns);
        audit::of(&mut event, &test.turned);
        (event.saw, event.why) = (saw, why);
        self.count_cost(test.cost_ns, &mut event);
        out.audit.push(event);
        let there = test.turned.find(&self.job).is_some();
        let moves = if there { vec![test.turned.back()] } else { Vec::new() };
        self.turn_to(test.decision, moves, out);
    }
}
