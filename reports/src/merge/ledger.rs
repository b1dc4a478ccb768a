//! The ledger of a job whose ranks are in several recordings.

use super::called;
use super::skew::{self, Ends};
use crate::Error;
use crate::run::{Run, StepFile};
use stallscope_ledger::{About, JobSummary, Merged, OF_ONE_COLLECTOR};
use stallscope_model::{Diagnosis, EvidenceState, RunSummary};
use stallscope_store::{Recording, StepFilter, Steps};
use std::collections::HashSet;

/// Steps that one row may stand for: more is not what a recorder writes.
const MERGED_AT_MOST: u64 = 1 << 16;

/// Makes the job's phases, verdict and diagnoses from all steps. Says what had to be left out.
pub(super) fn make(summary: &mut RunSummary, runs: &[Run]) -> Result<Vec<String>, Error> {
    let mut merged = Merged::new(summary.ranks.iter().map(|rank| rank.facts.rank));
    let notes = feed(&mut merged, runs)?;
    let seen = |state: &EvidenceState| matches!(state, EvidenceState::On | EvidenceState::Partial(_));
    let about = About {
        disagreement_share: summary.disagreement_share,
        kernel_seen: seen(&summary.kernel),
        shim_seen: seen(&summary.shim),
        cpus: summary.cpus().ceil() as u32,
        memory_bytes: runs.iter().map(|run| run.summary.host.memory_bytes).min().unwrap_or(0),
        spare_cpus: summary.spare_cpus,
        caches: &summary.caches,
        epochs: &summary.epochs,
        expected: &summary.expected,
        rates: &summary.rates,
        main_threads: summary.main_threads,
    };
    let JobSummary { phases, diagnoses, verdict } = merged.conclude(&summary.ranks, &about);
    (summary.phases, summary.diagnoses, summary.verdict) = (phases, diagnoses, verdict);
    summary.diagnoses.extend(of_one_collector(runs));
    summary.diagnoses.sort_by(|one, other| other.share.total_cmp(&one.share));
    Ok(notes)
}

/// Reads all recordings side by side, each as far as the others, so that little has to be kept.
fn feed(merged: &mut Merged, runs: &[Run]) -> Result<Vec<String>, Error> {
    let mut notes = Vec::new();
    let files: Vec<(&Run, &StepFile)> =
        runs.iter().flat_map(|run| run.files.iter().map(move |file| (run, file))).collect();
    let recordings =
        files.iter().map(|(_, file)| Recording::open(&file.path)).collect::<Result<Vec<_>, _>>()?;
    let mut ends: Vec<Ends> = files.iter().map(|_| Ends::default()).collect();
    let mut readers = Vec::with_capacity(files.len());
    for (place, ((run, file), recording)) in files.into_iter().zip(&recordings).enumerate() {
        let ranks = run.summary.ranks.len().max(1) as u64;
        readers.push(Reader {
            place,
            run,
            file,
            steps: recording.steps(&StepFilter::default())?,
            ranks,
            delivered: 0,
        });
    }
    while let Some(place) =
        (0..readers.len()).min_by_key(|place| readers[*place].delivered / readers[*place].ranks)
    {
        let reader = &mut readers[place];
        match reader.steps.next() {
            Some(Ok(row)) => {
                let row = reader.file.on_the_wall(row);
                let count = row.merged.clamp(1, MERGED_AT_MOST);
                reader.delivered += count;
                ends[reader.place].add(&row.step, row.merged);
                merged.add(&row.step, count);
            }
            ended => {
                if let Some(Err(error)) = ended {
                    notes.push(format!("some steps are missing: {error}"));
                }
                reader.run.summary.ranks.iter().for_each(|rank| merged.end(rank.facts.rank));
                readers.swap_remove(place);
            }
        }
    }
    notes.extend(skew::notes(runs, &ends));
    Ok(notes)
}

struct Reader<'a> {
    /// Among all recordings.
    place: usize,
    run: &'a Run,
    file: &'a StepFile,
    steps: Steps<'a>,
    ranks: u64,
    delivered: u64,
}

/// Findings that cannot be made from steps alone, with the name of the host they are of; each once.
fn of_one_collector(runs: &[Run]) -> Vec<Diagnosis> {
    let mut taken: Vec<Diagnosis> = Vec::new();
    let mut known = HashSet::new();
    for run in runs {
        let whose = run.sources.first().map(called).unwrap_or_default();
        let own = run.summary.diagnoses.iter();
        for found in own.filter(|found| OF_ONE_COLLECTOR.contains(&found.name.as_str())) {
            let found = Diagnosis { finding: format!("{whose}: {}", found.finding), ..found.clone() };
            // Shares have no order of their own, and no digest.
            if known.insert(format!("{found:?}")) {
                taken.push(found);
            }
        }
    }
    taken
}
