//! Everything that is known of a job at one moment.

use super::Engine;
use crate::{host, probes};
use stallscope_model::{
    EvidenceState, FileWait, JobFacts, Loss, MainThreads, Overhead, RankSummary, RunSummary,
};
use stallscope_store::Recorder;
use std::collections::BTreeMap;

impl Engine {
    fn shim_state(&self, ranks: &[RankSummary]) -> EvidenceState {
        let mut unavailable: Vec<&str> =
            ranks.iter().flat_map(|rank| rank.facts.unavailable.iter().map(String::as_str)).collect();
        unavailable.sort_unstable();
        unavailable.dedup();
        match (self.wants_shim, self.shims_seen, unavailable.is_empty()) {
            (false, ..) => EvidenceState::Off,
            (true, false, _) => EvidenceState::Missing(
                "no process of the job loaded it: is it Python with torch, and not started with -I or -S?"
                    .into(),
            ),
            (true, true, true) => EvidenceState::On,
            (true, true, false) => EvidenceState::Partial(unavailable.join("; ")),
        }
    }

    /// What the job has read from storage so far, in bytes.
    pub(crate) fn read_bytes(&self) -> u64 {
        self.ledger.read_bytes()
    }

    /// How long it has waited for each device so far.
    pub(crate) fn device_waits_ns(&self) -> BTreeMap<u32, u64> {
        self.files.device_waits_ns()
    }

    pub(crate) fn summary(&self) -> RunSummary {
        let (expected, rates) = (self.adviser.expected(), self.adviser.rates());
        let seen = self.ledger.summary_with(&expected, &rates);
        let (collector_cpu_ns, collector_rss_bytes) = host::own_cost();
        let mut losses = seen.losses;
        let mut kernel_lost = self.kernel_lost_before.clone();
        for (reason, count) in &self.kernel_lost {
            let lost = kernel_lost.entry(reason.clone()).or_default();
            *lost = lost.saturating_add(*count);
        }
        losses.extend(kernel_lost.into_iter().map(|(reason, count)| Loss { reason, count }));
        let lost = self.lanes.lost();
        losses.push(Loss { reason: "lane full".into(), count: lost.dropped });
        losses.push(Loss { reason: "lane not read to its end".into(), count: lost.unread });
        losses.push(Loss { reason: "lane damaged".into(), count: lost.damaged });
        losses.push(Loss { reason: "connection refused".into(), count: self.refused });
        losses.extend(self.recorder.iter().flat_map(Recorder::losses));
        losses.retain(|loss| loss.count > 0);
        let shim = self.shim_state(&seen.ranks);
        let files = self.files.waits();
        let mut verdict = seen.verdict;
        if seen.phases.is_empty() {
            verdict.sentence.extend(longest(&files, &seen.main_threads));
        }
        let mut diagnoses = seen.diagnoses;
        if let Some(hang) = self.watchdog.finding() {
            // One that lasts stands before all else.
            let at = if self.watchdog.is_hanging() { 0 } else { diagnoses.len() };
            diagnoses.insert(at, hang);
        }
        RunSummary {
            job: JobFacts { cpus: self.adviser.cpus(), ..self.job.clone() },
            host: self.host.clone(),
            probes: probes::all(&self.kernel, &self.programs, &shim, &seen.phases),
            shim,
            ranks: seen.ranks,
            phases: seen.phases,
            kernel: self.kernel.clone(),
            disagreement_share: seen.disagreement_share,
            losses,
            diagnoses,
            verdict,
            overhead: Overhead {
                collector_cpu_ns,
                start_cpu_ns: self.start_cpu_ns,
                collector_rss_bytes,
                kernel_cpu_ns: self.kernel_cpu_ns,
                records: self.records,
                wall_ns: host::now_ns().saturating_sub(self.begun_ns),
            },
            files,
            mounts: self.files.mount_waits(),
            knobs: self.knobs.state(),
            rates,
            advice: self.adviser.advice(),
            expected,
            tune: self.tune,
            acts: self.audit.acts(),
            caches: seen.caches,
            held: self.held.clone(),
            epochs: seen.epochs,
            main_threads: seen.main_threads,
            spare_cpus: seen.spare_cpus,
        }
    }
}

/// Without steps, which would tell what was waited for: the file that the job's tasks were blocked in longest, where main
/// threads were blocked in files for a hundredth of their time.
fn longest(files: &[FileWait], main: &MainThreads) -> Option<String> {
    let waited_ns = [main.files_ns, main.faults_ns, main.readers_ns].into_iter().fold(0, u64::saturating_add);
    let file = files.first().filter(|_| waited_ns > main.wall_ns / 100)?;
    Some(format!("; of its files the job waited longest for {}", file.path))
}
