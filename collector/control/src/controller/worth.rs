//! Whether a change is worth trying now: nothing may cost the job more than it could make good.

use super::seed::{self, Kind, Need, Proposal, WORKERS, seconds};
use super::{Controller, audit};
use crate::ranks;
use stallscope_model::AuditEvent;

/// Of the training that was seen, what looking for gains may cost; a job that ends soon is not experimented on.
const MOST_COST: f64 = 0.01;
/// Steps until harm is seen.
const HARM_STEPS: f64 = 8.0;
/// A raise of which so much is expected need not be made good beforehand.
const EXPECTED: f64 = 0.1;
/// What a raise costs where workers take CPU from training, as a share.
const CROWDED: f64 = 0.15;

impl Controller {
    /// Whether so much training may be lost now.
    pub(super) fn affords(&self, cost_ns: f64) -> bool {
        self.cost_ns + cost_ns <= MOST_COST * self.trained_ns as f64
    }

    /// Training that may be lost now.
    pub(super) fn affordable_ns(&self) -> f64 {
        (MOST_COST * self.trained_ns as f64 - self.cost_ns).max(0.0)
    }

    /// Of a change that did not stay; the audit says so where it was put back.
    pub(super) fn count_cost(&mut self, cost_ns: f64, event: &mut AuditEvent) {
        if cost_ns > 0.0 {
            self.cost_ns += cost_ns;
            event.why += &format!("; it cost {} of training", seconds(cost_ns));
        }
    }

    /// Why it is not tried yet; `None`: it may be.
    pub(super) fn too_dear(&self, proposal: &Proposal) -> Option<String> {
        let cost_ns = HARM_STEPS * self.job.step_ns() * at_stake(proposal);
        (cost_ns > 0.0 && !self.affords(cost_ns)).then(|| {
            format!(
                "trying it may cost {}, and all that is tried may cost 1% of the {} of training that were seen",
                seconds(cost_ns),
                seconds(self.trained_ns as f64)
            )
        })
    }

    /// What was tried before and did not help is no longer clear.
    pub(super) fn untried(&self, knob: &'static str) -> bool {
        self.patience.get(&(knob, Kind::Raise)).is_none_or(|patience| patience.reach.is_none())
    }

    /// More workers where a few steps show that they are what training waits for: large waits, and by the law far too few
    /// workers. That they may not help all the same, where storage has a limit, costs nothing.
    pub(super) fn pick_clear(&self) -> Option<(Proposal, String)> {
        let absurd = crate::budget::Headroom::contradiction(&self.budgets).is_some();
        // Ranks that wait for one another hide from each other what they lack: it takes more steps to see it.
        if self.job.training().count() != 1
            || absurd
            || !self.untried(WORKERS)
            || !self.ready(WORKERS, Kind::Raise)
        {
            return None;
        }
        let needs: Vec<Need> =
            self.job.training().filter_map(|rank| Need::of(rank, self.since_ns, self.settle)).collect();
        let worst = needs.iter().max_by(|a, b| a.stall().total_cmp(&b.stall()))?;
        let figure = ranks::figure(&self.job.groups(self.since_ns, self.settle), u32::MAX)?;
        let made = |most: u64| {
            let limit = |step| self.limit(WORKERS, Kind::Raise, step).min(most);
            seed::more_workers(&self.job, &needs, limit).filter(|proposal| proposal.clear)
        };
        let mut proposal = self.shrink(made(u64::MAX)?, made).ok()?;
        self.foresee(&mut proposal);
        Some((proposal, audit::saw(worst, &figure)))
    }
}

/// By what share a step may take longer with it.
fn at_stake(proposal: &Proposal) -> f64 {
    let taken = proposal.moves.iter().filter(|turned| turned.to < turned.from);
    let taken = taken.map(|turned| turned.from as f64 / turned.to.max(1) as f64 - 1.0).fold(0.0, f64::max);
    match proposal.kind {
        Kind::Raise if proposal.predicted.value >= EXPECTED => 0.0,
        Kind::Raise => CROWDED,
        Kind::Ease | Kind::Shift | Kind::Release | Kind::Swap => taken,
    }
}
