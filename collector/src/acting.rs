//! `tune --act`: a controller that lasts as long as its user wants it to.

use crate::signals::Signals;
use crate::viewer::{Connection, SOMETHING_ELSE};
use anyhow::{Result, bail};
use stallscope_model::{AuditEvent, Budgets, Knob, KnobState, TuneMode};
use stallscope_wire::{Reply, Request};
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::signal::unix::SignalKind;
use tokio::time::sleep;

/// How often the audit is looked at.
const LOOK: Duration = Duration::from_millis(250);
/// Of the audit, in one look.
const PAGES_A_LOOK: usize = 64;
/// A job that takes longer to undo what was not proven does so alone.
const PATIENCE: Duration = Duration::from_secs(5);

/// How it ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Acted {
    /// By the user (Ctrl-C, a closed terminal, `kill`): the knobs as they stay.
    ByUser(Vec<Knob>),
    /// The job has ended, or its collector was killed.
    JobEnded,
}

/// Lets a controller work on the job whose collector listens at `socket`, until Ctrl-C, SIGTERM, SIGHUP or the job's
/// end. `rule`: of the node's policy, where that is the reason. `show` gets the lines of the audit as they come.
///
/// # Errors
/// The collector refuses, in one sentence, or none listens there.
pub fn tune(
    socket: &Path,
    mode: TuneMode,
    budgets: Budgets,
    rule: Option<u32>,
    show: &mut dyn FnMut(&AuditEvent),
) -> Result<Acted> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut signals = Signals::new()?;
        let mut connection = Connection::open(socket)?;
        let Reply::Tuning { from } = connection.ask(&Request::Tune { mode, budgets, rule })? else {
            bail!(SOMETHING_ELSE)
        };
        let mut audit = Audit { connection, next: from };
        loop {
            tokio::select! {
                () = sleep(LOOK) => if audit.read(show).is_err() {
                    return Ok(Acted::JobEnded);
                },
                kind = signals.next() => if kind != SignalKind::user_defined1() {
                    return audit.stop(show);
                },
            }
        }
    })
}

/// The audit of a running job from a line on.
struct Audit {
    connection: Connection,
    next: u64,
}

impl Audit {
    fn read(&mut self, show: &mut dyn FnMut(&AuditEvent)) -> Result<()> {
        // What there is more of comes with the next look: a job's collector that had a further page each time would be read for ever.
        for _ in 0..PAGES_A_LOOK {
            let Reply::Audit(page) = self.connection.ask(&Request::Audit { from: self.next })? else {
                bail!(SOMETHING_ELSE)
            };
            let Some(last) = page.last() else { return Ok(()) };
            self.next = last.line + 1;
            page.iter().for_each(&mut *show);
        }
        Ok(())
    }

    /// Ends the controller; what it has not proven is undone before this returns.
    fn stop(mut self, show: &mut dyn FnMut(&AuditEvent)) -> Result<Acted> {
        let Ok(Reply::Knobs(mut knobs)) = self.connection.ask(&Request::Stop) else {
            return Ok(Acted::JobEnded);
        };
        let until = Instant::now() + PATIENCE;
        while knobs.iter().any(|knob| knob.state == KnobState::Pending) && Instant::now() < until {
            std::thread::sleep(LOOK);
            let Ok(Reply::Summary(summary)) = self.connection.ask(&Request::Summary) else {
                return Ok(Acted::JobEnded);
            };
            knobs = summary.knobs;
        }
        // What the job has answered is in the audit a moment later.
        std::thread::sleep(LOOK);
        // A job that ends in this moment has nothing more to say.
        let _ = self.read(show);
        Ok(Acted::ByUser(knobs))
    }
}
