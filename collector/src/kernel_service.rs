//! The privileged half: loads the kernel programs and gives each caller the evidence of one process tree, if
//! the tree is theirs. Writes no file and keeps no history, so that little runs with privilege.
//!
//! One thread, no async: it sleeps [`ROUND`], drains the ring buffer, hands out, and sleeps again.

use crate::caller::{Caller, TOO_SLOW};
use crate::cpu_share::CpuShares;
use crate::descriptors::Alarm;
use crate::host::now_ns;
use crate::node;
use crate::watch_audit::WatchAudit;
use stallscope_abi::kernel::{Record, TaskSlot, bytes_of};
use stallscope_ebpf::{Identity, ProgramState as Program, Still};
use stallscope_model::NodeSummary;
use stallscope_wire::{Layer, ProgramState, frame, frame::Tag};
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

mod connections;
mod kernel_side;
mod losses;
mod serving;
mod trees;
mod watched;
pub(crate) use kernel_side::KernelSide;
pub(crate) use serving::Within;
pub use serving::{ServeOptions, Serving, serve};
use trees::Tree;
use watched::{Look, Watched};

/// How often callers get what there is; the ring buffer wakes us earlier when it fills. A session waits a second for the
/// evidence of a step.
const ROUND: Duration = Duration::from_millis(500);

/// How often callers are sent the files that were waited for.
const FILES_EVERY: Duration = Duration::from_secs(1);

pub(crate) struct Service<K> {
    pub(crate) kernel: K,
    pub(crate) callers: Vec<Caller>,
    watched: Watched,
    /// That are watched, by root.
    pub(crate) trees: HashMap<u32, Tree>,
    /// Roots that nobody watches any more, with who is charged for letting go of them.
    leaving: BTreeMap<u32, u32>,
    pub(crate) shares: CpuShares,
    /// Ready where others than this process call.
    alarm: Alarm,
    /// Where there is somebody to read it.
    pub(crate) audit: Option<WatchAudit>,
    syscalls_for_everyone: bool,
    confinement: Vec<Layer>,
    /// Taken from the kernel so far.
    records: u64,
    /// How many of the kernel side's were lost when it was last made up for that, and when it may be again.
    made_up_for: u64,
    pub(crate) make_up_again: Instant,
    a_root_ended: bool,
    /// Records that callers who are gone were too slow to take.
    dropped: u64,
    last_round: Instant,
    files_sent: Instant,
    /// There is something left to do for callers whose users have time left.
    behind: bool,
    /// For connections.
    pub(crate) places: usize,
    /// For all that waits to be read.
    pub(crate) backlog_bytes: usize,
    /// When callers are taken up again.
    accept_again: Instant,
    /// When something last came of each user who is charged.
    pub(crate) heard: HashMap<u32, Instant>,
}

impl<K: KernelSide> Service<K> {
    pub(crate) fn new(kernel: K, syscalls_for_everyone: bool) -> Service<K> {
        Service {
            kernel,
            callers: Vec::new(),
            watched: Watched::default(),
            trees: HashMap::new(),
            leaving: BTreeMap::new(),
            shares: CpuShares::default(),
            alarm: Alarm::default(),
            audit: None,
            syscalls_for_everyone,
            confinement: Vec::new(),
            records: 0,
            made_up_for: 0,
            make_up_again: Instant::now(),
            a_root_ended: false,
            dropped: 0,
            last_round: Instant::now(),
            files_sent: Instant::now(),
            behind: false,
            places: usize::MAX,
            backlog_bytes: connections::BACKLOG,
            accept_again: Instant::now(),
            heard: HashMap::new(),
        }
    }

    /// Sends what waits to be sent, after a round if one is due, and forgets who is gone.
    pub(crate) fn hand_out(&mut self, round_is_due: bool) {
        if round_is_due {
            self.last_round = Instant::now();
            self.share_backlogs();
            self.round();
        }
        let Service { callers, shares, .. } = self;
        for caller in callers {
            let begun = Instant::now();
            caller.flush();
            shares.took(caller.payer, begun.elapsed());
        }
        self.forget_gone();
    }

    fn programs(&self) -> Vec<ProgramState> {
        let state = |program: stallscope_ebpf::ProgramStatus| {
            let reason = match program.state {
                Program::Attached => String::new(),
                // Only what was asked for and is not there is worth a word.
                Program::Off => return None,
                Program::Missing(reason) => reason,
                Program::Broken(reason) => format!("broken: {reason}"),
            };
            Some(ProgramState { program: program.name.into(), attached: reason.is_empty(), reason })
        };
        self.kernel.programs().into_iter().filter_map(state).collect()
    }

    fn figures(&self) -> NodeSummary {
        let slow = self.dropped + self.callers.iter().map(|caller| caller.dropped).sum::<u64>();
        let losses = self.losses().into_iter().chain([(TOO_SLOW, slow)]);
        node::figures(&self.kernel, &self.callers, self.watched.len(), self.records, losses)
    }

    /// Hands on what was recorded since.
    fn drain(&mut self) {
        let Service { kernel, callers, watched, records, a_root_ended, .. } = self;
        let drained = kernel.drain(|bytes, of| {
            *records += 1;
            let Some(record) = Record::parse(bytes) else { return };
            let header = record.header();
            match &record {
                Record::TaskNew(new) => of.into_iter().for_each(|of| watched.begins(new, of)),
                Record::TaskExit(_) => {
                    watched.ends(header.slot);
                    *a_root_ended |= callers.iter().any(|caller| caller.roots.contains_key(&header.tid));
                }
                _ => {}
            }
            if let Some(of) = of {
                callers.iter_mut().for_each(|caller| caller.offer(&record, bytes, &of));
            }
        });
        // A slot that could not be handed back is one task fewer that can be tracked: counted as such later.
        drop(drained);
    }

    /// Puts together what there is for every caller.
    fn round(&mut self) {
        self.drain();
        self.make_up_for_losses();
        let Service { kernel, callers, watched, .. } = self;
        let now_ns = now_ns();
        let mut slots: Vec<(Identity, TaskSlot)> = Vec::new();
        let mut stills: Vec<(Identity, Still)> = Vec::new();
        let all_know = callers.iter().all(|caller| caller.roots.is_empty() || caller.knows_slots);
        watched.look(|slot, task| {
            let Some(of) = kernel.identity(slot) else { return Look::Unknown };
            let still = kernel.still(slot, now_ns).filter(|still| still.tid == task.tid);
            if let (true, Some(still), true) = (all_know, still, still == task.still) {
                stills.push((of, still));
                return Look::There;
            }
            task.still = still;
            let Some(copy) = kernel.slot(slot) else { return Look::Unknown };
            let look = task.look(&copy);
            if look == Look::There {
                slots.push((of, copy));
            }
            look
        });
        for (exit, of) in watched.lost_ends() {
            callers.iter_mut().for_each(|caller| caller.offer(&Record::TaskExit(exit), bytes_of(&exit), &of));
        }
        // The last waits of a job are sent while its collector still listens.
        if std::mem::take(&mut self.a_root_ended) || self.files_sent.elapsed() >= FILES_EVERY {
            self.files_sent = Instant::now();
            // Sums: what can't be read now is in the next ones.
            let waits = self.kernel.waits().unwrap_or_default();
            self.callers.iter_mut().for_each(|caller| caller.tell_waits(&waits));
        }
        let lost: HashMap<u32, _> =
            self.callers.iter().map(|caller| (caller.uid, self.losses_of(caller.uid))).collect();
        let run_time_ns = self.kernel.run_time().ok().map(|time| time.as_nanos() as u64).filter(|ns| *ns > 0);
        for caller in &mut self.callers {
            if let (Some(lost), false) = (lost.get(&caller.uid), caller.roots.is_empty()) {
                caller.present(&slots, &stills);
                let tick = frame::Tick { now_ns, lost: caller.lost(lost), run_time_ns };
                caller.push(Tag::Tick, &stallscope_wire::encode(&tick));
            }
        }
    }
}

#[cfg(test)]
mod tests;
