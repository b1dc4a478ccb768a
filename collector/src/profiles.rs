//! A recording, or a running job's, as the profiles that the model of the job is made of.

use stallscope_control::Profiles;
use stallscope_model::{Act, RunSummary};
use stallscope_store::{Error, Recording, StepFilter};

/// Older steps are not read where the last ones are enough.
const LATE_NS: u64 = 600_000_000_000;

/// The latest steps at the setting that the knobs have now (or had at the end), and how batches were made.
///
/// # Errors
/// When the file is damaged.
pub fn profiles(recording: &Recording, summary: &RunSummary) -> Result<Profiles, Error> {
    let mut profiles = Profiles::new(summary.cpus());
    for rank in &summary.ranks {
        rank.facts.loaders.iter().for_each(|loader| profiles.loader(rank.facts.rank, loader));
    }
    summary.knobs.iter().for_each(|knob| profiles.knob(knob));
    for rates in &summary.rates {
        rates.trainer_threads.into_iter().for_each(|threads| profiles.trainer_threads(rates.rank, threads));
    }
    let turned_ns =
        recording.audit(0)?.iter().filter(|event| event.act == Act::Applied).map(|event| event.time_ns).max();
    let end_ns = recording.anchors()?.last().map_or(0, |anchor| anchor.monotonic_ns);
    let late_ns = end_ns.saturating_sub(LATE_NS).max(turned_ns.unwrap_or(0));
    feed(recording, &mut profiles, late_ns)?;
    if profiles.training().iter().all(|profile| profile.steps() == 0) && late_ns > turned_ns.unwrap_or(0) {
        feed(recording, &mut profiles, turned_ns.unwrap_or(0))?;
    }
    recording.cache_periods_from(late_ns)?.iter().for_each(|period| profiles.cache(period));
    recording.batch_services()?.iter().for_each(|service| profiles.service(service));
    Ok(profiles)
}

/// Rows that many steps were merged into tell of no single one.
fn feed(recording: &Recording, profiles: &mut Profiles, after_ns: u64) -> Result<(), Error> {
    for row in recording.steps(&StepFilter { after_ns: Some(after_ns), ..StepFilter::default() })? {
        let row = row?;
        if row.merged <= 1 && row.step.start_ns >= after_ns {
            profiles.step(&row.step);
        }
    }
    Ok(())
}
