//! How fast each part of a rank can go by itself: DS-Analyzer's G, P, S and C (Mohan et al., VLDB 2021), but from the
//! running job alone. Theirs takes three runs: synthetic batches, cold cache, warm cache.

use crate::fit::{Fit, blocks, demands, reads_at_all, weight};
use crate::profile::{Profile, Step};
use crate::random::Random;
use stallscope_model::{BatchService, Estimate, Rates, is_data_bound};

const RESAMPLES: usize = 200;

/// The rates of one rank, as far as they can be determined, and sentences on what can't.
pub fn rates(profile: &Profile) -> Rates {
    let mut rates = Rates {
        rank: profile.rank,
        loader: profile.loader,
        workers: profile.workers,
        prefetch: profile.prefetch,
        steps: profile.steps.len() as u32,
        trainer_threads: profile.trainer_threads,
        ..Rates::default()
    };
    if let Some(why) = profile.too_little() {
        rates.unknown.push(why);
        return rates;
    }
    let random = &mut Random::new(u64::from(profile.rank) + 1);
    let steps: Vec<&Step> = profile.steps.iter().collect();
    let services: Vec<&BatchService> = profile.services.iter().collect();
    let samples = samples_a_batch(profile);
    rates.actual = per_second(&steps, random, |step| (step.samples, step.wall_ns));
    rates.compute = per_second(&steps, random, |step| (step.samples, step.wall_ns - step.exposed_ns()));
    let share = |of: fn(&Step) -> f64| {
        let sum = |of: fn(&Step) -> f64| steps.iter().map(|step| of(step)).sum::<f64>();
        sum(of) / sum(|step| step.wall_ns)
    };
    rates.data_bound = Some(is_data_bound(share(Step::exposed_ns), share(Step::compute_ns)));
    let hands = f64::from(profile.workers.max(1)) * samples;
    rates.prep = per_second(&services, random, |service| {
        let made_ns = (service.ready_ns - service.start_ns).saturating_sub(service.fetch_ns) as f64;
        (weight(service) * hands, weight(service) * made_ns)
    });
    if samples == 0.0 {
        rates
            .unknown
            .push("how many samples a batch has was not reported, so that no rate can be given".to_owned());
    }
    reading(profile, &services, samples, &mut rates, random);
    let Some(reached) = rates.actual else { return rates };
    for part in [&mut rates.prep, &mut rates.fetch, &mut rates.storage] {
        *part = part.map(|rate| at_least(&reached, &rate));
    }
    rates
}

/// What was reached every part has done.
fn at_least(reached: &Estimate, rate: &Estimate) -> Estimate {
    Estimate {
        value: rate.value.max(reached.value),
        low: rate.low.max(reached.low),
        high: rate.high.max(reached.high),
    }
}

fn reading(
    profile: &Profile,
    services: &[&BatchService],
    samples: f64,
    rates: &mut Rates,
    random: &mut Random,
) {
    let hands = f64::from(profile.workers.max(1)) * samples;
    if services.iter().any(|service| service.cpu_read_ns > 0) {
        rates.cache = per_second(services, random, |service| {
            (weight(service) * hands, weight(service) * service.cpu_read_ns as f64)
        });
    } else {
        rates.unknown.push(
            "C, the rate from memory, is not distinguished from preparation: it takes the kernel's evidence with syscall \
             hooks (`--syscalls`)"
                .to_owned(),
        );
    }
    if !reads_at_all(profile) {
        rates
            .unknown
            .push("S, the rate of storage, is not known: hardly anything is read from it".to_owned());
        return;
    }
    rates.fetch = per_second(services, random, |service| {
        (weight(service) * hands, weight(service) * service.fetch_ns as f64)
    });
    let fit = Fit::new(profile, random);
    if fit.is_unknown() {
        rates.unknown.push(match profile.workers {
            0 | 1 => "Whether storage has a limit or only a delay cannot be determined from one reader; a second worker \
                      for a few batches would show it, which `stallscope tune --act` tries where the budgets allow it"
                .to_owned(),
            workers => format!(
                "Whether storage has a limit or only a delay cannot be determined from {workers} workers that always do the \
                 same; one worker fewer for a few batches would show it, which `stallscope tune --act` tries where it can \
                 add none"
            ),
        });
        return;
    }
    rates.storage = storage(profile, &fit, random);
    if rates.storage.is_none() && fit.high < REACHED {
        rates.unknown.push(
            "S, the most that storage gives, was not reached: its readers don't hold each other up, so that more \
             workers read more"
                .to_owned(),
        );
    }
}

/// Of reading time that is waiting for a limit, where the limit counts as reached.
const REACHED: f64 = 0.5;

/// S; `None` where it is not known, or was not reached.
pub(crate) fn storage(profile: &Profile, fit: &Fit, random: &mut Random) -> Option<Estimate> {
    if fit.is_unknown() || fit.high < REACHED {
        return None;
    }
    let services: Vec<&BatchService> = profile.services.iter().collect();
    let samples = samples_a_batch(profile);
    // In turn, the one in their middle first: that one is of all batches as they were.
    let mut readings = fit.readings.iter().cycle().skip(fit.readings.len() / 2);
    estimate(services.len(), random, |drawn| {
        let Some(reading) = readings.next() else { return (0.0, 0.0) };
        drawn.iter().map(|one| services[*one]).fold((0.0, 0.0), |sum, service| {
            let (weight, alone_ns) = (weight(service), demands(service, reading).0);
            (sum.0 + weight * samples, sum.1 + weight * alone_ns)
        })
    })
}

/// What would be shown as nothing a second.
const LEAST_BYTES_PER_S: f64 = 0.005 * 1024.0 * 1024.0;

/// What storage gives all workers together while they wait for it: what a cache or memory has of the samples takes no time of it. `None`
/// where most batches' bytes were not counted, or nothing worth a figure was read.
pub(crate) fn bytes_per_s(profile: &Profile) -> Option<f64> {
    let (mut all, mut counted, mut bytes, mut busy_ns) = (0.0, 0.0, 0.0, 0.0);
    for service in &profile.services {
        let weight = weight(service);
        all += weight;
        if let Some(read) = service.read_bytes {
            counted += weight;
            bytes += weight * read as f64;
            // Those who read at once share what it gives.
            busy_ns += weight * service.fetch_ns as f64 / service.readers.max(1.0);
        }
    }
    let rate = (2.0 * counted > all && busy_ns > 0.0).then(|| bytes / busy_ns * 1e9);
    rate.filter(|rate| *rate >= LEAST_BYTES_PER_S)
}

/// Mean of a step's samples; of a batch's where steps don't tell.
pub(crate) fn samples_a_batch(profile: &Profile) -> f64 {
    let mean = |sum: f64, of: usize| if of == 0 { 0.0 } else { sum / of as f64 };
    let of_steps = mean(profile.steps.iter().map(|step| step.samples).sum(), profile.steps.len());
    if of_steps > 0.0 {
        return of_steps;
    }
    mean(profile.services.iter().map(|service| f64::from(service.samples)).sum(), profile.services.len())
}

/// Something over nanoseconds, both summed, with the interval of a block bootstrap.
pub(crate) fn per_second<T>(
    series: &[T],
    random: &mut Random,
    of: impl Fn(&T) -> (f64, f64),
) -> Option<Estimate> {
    estimate(series.len(), random, |drawn| {
        drawn.iter().fold((0.0, 0.0), |sum, at| {
            let (some, ns) = of(&series[*at]);
            (sum.0 + some, sum.1 + ns)
        })
    })
}

fn estimate(
    length: usize,
    random: &mut Random,
    mut sums: impl FnMut(&[usize]) -> (f64, f64),
) -> Option<Estimate> {
    let mut rate = |drawn: &[usize]| {
        let (some, ns) = sums(drawn);
        if some > 0.0 && ns > 0.0 { Some(some / ns * 1e9) } else { None }
    };
    let value = rate(&(0..length).collect::<Vec<_>>())?;
    let mut drawn: Vec<f64> = (0..RESAMPLES).filter_map(|_| rate(&blocks(length, length, random))).collect();
    drawn.sort_by(f64::total_cmp);
    let at = |share: f64| drawn.get((drawn.len().saturating_sub(1) as f64 * share).round() as usize).copied();
    Some(Estimate { value, low: at(0.025)?.min(value), high: at(0.975)?.max(value) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fit::Reading;
    use crate::profile::Profiles;
    use stallscope_model::LoaderFacts;

    /// Of many batches the slow ones are reported each, and of the others one in nine.
    #[test]
    fn storage_is_as_fast_as_all_batches_say_not_those_that_were_reported() {
        let mut profiles = Profiles::new(2.0);
        profiles.loader(0, &LoaderFacts { workers: 2, ..LoaderFacts::default() });
        for (nth, (fetch_ms, weight)) in [(10, 9.0), (100, 1.0)].repeat(50).into_iter().enumerate() {
            let start_ns = nth as u64 * 1_000_000_000;
            let fetch_ns = fetch_ms * 1_000_000;
            let (ready_ns, samples) = (start_ns + fetch_ns, 19);
            let readers = 1.0;
            profiles.service(&BatchService {
                start_ns,
                ready_ns,
                samples,
                fetch_ns,
                weight,
                readers,
                ..BatchService::default()
            });
        }
        let reading = Reading { shared: 1.0, limited: false, batch_ns: 0.0 };
        let fit = Fit { low: 1.0, high: 1.0, readings: vec![reading] };
        let storage = storage(profiles.training()[0], &fit, &mut Random::new(1));
        // 19 samples in 19 ms.
        assert!(storage.is_some_and(|storage| (storage.value - 1000.0).abs() < 1.0), "{storage:?}");
    }

    /// The figure was that of the reading which leaves most to latency: twice what storage gave.
    #[test]
    fn storage_is_as_fast_as_the_middle_of_what_may_be() {
        let mut profiles = Profiles::new(2.0);
        profiles.loader(0, &LoaderFacts { workers: 2, ..LoaderFacts::default() });
        for nth in 0..100 {
            let (start_ns, fetch_ns) = (nth * 1_000_000_000, 10_000_000);
            let (ready_ns, samples) = (start_ns + fetch_ns, 10);
            let service = BatchService {
                start_ns,
                ready_ns,
                samples,
                fetch_ns,
                readers: 1.0,
                ..BatchService::default()
            };
            profiles.service(&service);
        }
        let readings =
            [0.6, 0.8, 1.0].map(|shared| Reading { shared, limited: false, batch_ns: 0.0 }).to_vec();
        let fit = Fit { low: 0.6, high: 1.0, readings };
        let storage =
            storage(profiles.training()[0], &fit, &mut Random::new(1)).expect("storage is read from");
        // 10 samples in 6, 8 or 10 ms.
        let near = |value: f64, wanted: f64| (value - wanted).abs() < 1.0;
        let found = (storage.low, storage.value, storage.high);
        assert!(near(found.0, 1000.0) && near(found.1, 1250.0) && near(found.2, 10_000.0 / 6.0), "{found:?}");
    }

    /// Batches of two workers of which each takes 200 ms to read a MiB beside the other's, but for those that are `other`.
    fn read(other: &BatchService, others: usize) -> Option<f64> {
        let mut profiles = Profiles::new(2.0);
        profiles.loader(0, &LoaderFacts { workers: 2, ..LoaderFacts::default() });
        for nth in 0..40 {
            let start_ns = nth as u64 * 1_000_000_000;
            let (ready_ns, fetch_ns) = (start_ns + 300_000_000, 200_000_000);
            let read =
                BatchService { fetch_ns, read_bytes: Some(1 << 20), readers: 2.0, ..BatchService::default() };
            let one = if nth % 4 < others { other.clone() } else { read };
            profiles.service(&BatchService { start_ns, ready_ns, samples: 4, ..one });
        }
        bytes_per_s(profiles.training()[0]).map(|rate| rate / f64::from(1 << 20))
    }

    /// A limit of 0.07 MB/s was named of storage that counted next to nothing, and one of 0.45 MB/s with cached samples in it.
    #[test]
    fn a_limit_is_of_bytes_that_storage_counted_over_the_time_in_which_it_gave_them() {
        let near = |rate: Option<f64>| rate.is_some_and(|rate| (rate - 10.0).abs() < 0.01);
        let cached = BatchService { read_bytes: Some(0), ..BatchService::default() };
        assert!(near(read(&cached, 0)), "{:?}", read(&cached, 0));
        assert!(near(read(&cached, 3)), "{:?}", read(&cached, 3));
        let uncounted = BatchService { fetch_ns: 200_000_000, readers: 2.0, ..BatchService::default() };
        assert!(near(read(&uncounted, 1)), "{:?}", read(&uncounted, 1));
        assert_eq!(read(&uncounted, 3), None);
    }
}
