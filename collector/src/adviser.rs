//! How fast each part of the job can go and what would make it faster, made anew now and then.

use crate::cached::{Reading, expect_cache};
use crate::procfs;
use crate::profiles::profiles;
use crate::usage::{job_cpus, node_state};
use stallscope_control::{NodeState, Profile, Profiles, advise, expect, rates};
use stallscope_model::{
    Advice, BatchService, Budgets, CachePeriod, CacheSummary, Expected, Knob, LoaderEpochs, LoaderFacts,
    RankSummary, Rates, RunSummary, StepLedger,
};
use stallscope_store::{Error, Recording};
use std::collections::BTreeMap;

/// A look at a rank simulates it a few thousand steps, which takes up to some tenths of a second of the collector's CPU.
/// So the first comes soon, and each next one after twice the time, up to the longest. (`tune` and `what-if` make theirs
/// from the recording, whenever they are asked.)
const SOON_NS: u64 = 10_000_000_000;
const LONGEST_NS: u64 = 160_000_000_000;
/// CPU time of a main thread that says enough about the threads beside it: clock ticks are 10 ms.
const ENOUGH_CPU_NS: u64 = 500_000_000;
/// Ranks in one look, in turns.
const RANKS: usize = 1;
/// The same at the end, when nobody looks again and the caller waits for the job's exit code.
const LAST_RANKS: usize = 4;
/// The same when somebody asks.
const ASKED_RANKS: usize = 16;

/// What would help a run within `budgets`, from its recording, best first.
///
/// # Errors
/// When the file is damaged.
pub fn advice(recording: &Recording, summary: &RunSummary, budgets: &Budgets) -> Result<Vec<Advice>, Error> {
    // What was free then nobody knows: half of the machine's is taken to be.
    let half = summary.host.memory_bytes / 2;
    let node = NodeState { cpus: summary.cpus(), ..NodeState::default() };
    let with_memory = NodeState { memory_available_bytes: half, ..node.clone() };
    let profiles = profiles(recording, summary)?;
    let mut all: Vec<Advice> = Vec::new();
    for (place, profile) in profiles.training().into_iter().take(ASKED_RANKS).enumerate() {
        let mut expected = expect(profile, &summary.knobs, budgets, &node);
        if place == 0 {
            let reading = Reading::of(summary);
            expected.extend(expect_cache(profile, &reading, &summary.knobs, budgets, &with_memory));
        }
        all.extend(advise(&expected, &summary.knobs));
    }
    all.sort_by(|a, b| b.gain.value.total_cmp(&a.gain.value));
    Ok(all)
}

/// What is around the profiles when ranks are looked at.
#[derive(Debug, Default)]
pub(crate) struct Around {
    /// Their pids.
    pub(crate) trainers: Vec<u32>,
    pub(crate) ranks: Vec<RankSummary>,
    pub(crate) caches: Vec<CacheSummary>,
    pub(crate) epochs: Vec<LoaderEpochs>,
}

/// What the last look at a rank found.
#[derive(Clone, Debug)]
struct RankAdvice {
    rates: Rates,
    expected: Vec<Expected>,
    advice: Vec<Advice>,
}

#[derive(Debug)]
pub(crate) struct Adviser {
    profiles: Profiles,
    by_rank: BTreeMap<u32, RankAdvice>,
    /// CPU time of a rank's trainer, of all its threads and of the main one, when its first steps were seen.
    clocks: BTreeMap<u32, (u32, [u64; 2])>,
    counting: bool,
    /// The rank that was looked at last.
    turn: u32,
    next_ns: u64,
    pause_ns: u64,
}

impl Adviser {
    /// `cpus` that the job may use; 0 when unknown.
    pub(crate) fn new(cpus: f64) -> Adviser {
        Adviser {
            profiles: Profiles::new(cpus),
            by_rank: BTreeMap::new(),
            clocks: BTreeMap::new(),
            counting: false,
            turn: u32::MAX,
            next_ns: 0,
            pause_ns: SOON_NS,
        }
    }

    pub(crate) fn loader(&mut self, rank: u32, facts: &LoaderFacts) {
        self.profiles.loader(rank, facts);
    }

    pub(crate) fn step(&mut self, step: &StepLedger) {
        self.profiles.step(step);
    }

    pub(crate) fn service(&mut self, service: &BatchService) {
        self.profiles.service(service);
    }

    pub(crate) fn cache(&mut self, period: &CachePeriod) {
        self.profiles.cache(period);
    }

    /// Knobs as they stand, once a second; looks at the next ranks when it is time.
    pub(crate) fn second(&mut self, now_ns: u64, knobs: &[Knob], around: impl FnOnce() -> Around) {
        knobs.iter().for_each(|knob| self.profiles.knob(knob));
        if !self.counting && self.profiles.training().iter().any(|profile| profile.steps() > 0) {
            self.counting = true;
            self.count_threads(&around().ranks);
        } else if now_ns >= self.next_ns {
            let looked = self.look(RANKS, knobs, around);
            // Each rank once before the pauses grow.
            if looked && self.by_rank.len() == self.profiles.training().len() {
                self.pause_ns = (2 * self.pause_ns).min(LONGEST_NS);
            }
            self.next_ns = now_ns + self.pause_ns;
        }
    }

    /// The job is over.
    pub(crate) fn last(&mut self, knobs: &[Knob], around: impl FnOnce() -> Around) {
        self.look(LAST_RANKS, knobs, around);
    }

    /// Whether there was a rank to look at.
    fn look(&mut self, ranks: usize, knobs: &[Knob], around: impl FnOnce() -> Around) -> bool {
        let around = around();
        self.count_threads(&around.ranks);
        // At the end no process may be left to ask.
        job_cpus(&around.trainers).into_iter().for_each(|cpus| self.profiles.cores(cpus));
        let mut training: Vec<&Profile> = self.profiles.training();
        let lowest = training.first().map(|profile| profile.rank);
        let first = training.partition_point(|profile| profile.rank <= self.turn) % training.len().max(1);
        training.rotate_left(first);
        training.truncate(ranks);
        if training.is_empty() {
            return false;
        }
        let node = node_state(&around.trainers);
        let reading = Reading { ranks: &around.ranks, caches: &around.caches, epochs: &around.epochs };
        for profile in training {
            let mut expected = expect(profile, knobs, &Budgets::default(), &node);
            if lowest == Some(profile.rank) {
                expected.extend(expect_cache(profile, &reading, knobs, &Budgets::default(), &node));
            }
            let advice = advise(&expected, knobs);
            self.by_rank.insert(profile.rank, RankAdvice { rates: rates(profile), expected, advice });
            self.turn = profile.rank;
        }
        true
    }

    /// How many cores each trainer keeps busy while its main thread is on one, since it was first seen to train.
    fn count_threads(&mut self, ranks: &[RankSummary]) {
        for rank in ranks {
            let (number, pid) = (rank.facts.rank, rank.facts.pid);
            let Some(now) = procfs::cpu_ns(pid).zip(procfs::main_cpu_ns(pid)).map(|(all, main)| [all, main])
            else {
                continue;
            };
            let (of, before) = *self.clocks.entry(number).or_insert((pid, now));
            if of != pid {
                self.clocks.insert(number, (pid, now));
                continue;
            }
            let [all_ns, main_ns] = [now[0].saturating_sub(before[0]), now[1].saturating_sub(before[1])];
            if main_ns >= ENOUGH_CPU_NS {
                self.profiles.trainer_threads(number, all_ns as f64 / main_ns as f64);
            }
        }
    }

    /// CPUs that the job may use, by the last look at its trainers; `None` when unknown.
    pub(crate) fn cpus(&self) -> Option<f64> {
        Some(self.profiles.known_cores()).filter(|cores| cores.is_finite())
    }

    pub(crate) fn rates(&self) -> Vec<Rates> {
        self.by_rank.values().map(|rank| rank.rates.clone()).collect()
    }

    pub(crate) fn expected(&self) -> Vec<Expected> {
        self.by_rank.values().flat_map(|rank| rank.expected.clone()).collect()
    }

    /// Best first.
    pub(crate) fn advice(&self) -> Vec<Advice> {
        let mut advice: Vec<Advice> = self.by_rank.values().flat_map(|rank| rank.advice.clone()).collect();
        advice.sort_by(|a, b| b.gain.value.total_cmp(&a.gain.value));
        advice
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stallscope_model::{Cause, Causes, Phase};

    const MS: u64 = 1_000_000;

    /// A rank that waits for a worker most of the time.
    fn feed(adviser: &mut Adviser, rank: u32) {
        adviser.loader(rank, &LoaderFacts { workers: 1, prefetch_factor: Some(2), ..LoaderFacts::default() });
        for index in 0..100 {
            let (start_ns, end_ns) = (index * 40 * MS, (index + 1) * 40 * MS);
            let mut causes = Causes::default();
            causes[Cause::Compute] = 10 * MS;
            causes[Cause::Prep] = 30 * MS;
            adviser.step(&StepLedger {
                rank,
                loader: 0,
                phase: Phase::Training,
                index,
                part: false,
                start_ns,
                end_ns,
                causes,
                hidden_ns: None,
                producer: None,
                samples: 4,
                evidence: Default::default(),
            });
            adviser.service(&BatchService {
                rank,
                start_ns,
                ready_ns: end_ns,
                samples: 4,
                cpu_ns: 40 * MS,
                readers: 0.0,
                makers: 1.0,
                ..BatchService::default()
            });
        }
    }

    fn workers(rank: u32) -> Knob {
        Knob {
            rank,
            loader: Some(0),
            name: "workers".into(),
            value: 1,
            initial: 1,
            min: 1,
            max: 32,
            ..Knob::default()
        }
    }

    #[test]
    fn each_rank_has_its_turn() {
        let mut adviser = Adviser::new(64.0);
        let knobs: Vec<Knob> = (0..5).map(workers).collect();
        adviser.second(0, &knobs, Around::default);
        assert!(adviser.rates().is_empty());
        (0..5).for_each(|rank| feed(&mut adviser, rank));
        let mut seen = Vec::new();
        for look in 1..=5 {
            adviser.second(look * SOON_NS - 1, &knobs, Around::default);
            assert_eq!(adviser.cpus(), [Some(64.0), job_cpus(&[std::process::id()])][usize::from(look > 1)]);
            adviser.second(look * SOON_NS, &knobs, || Around {
                trainers: vec![std::process::id()],
                ..Around::default()
            });
            seen.push(adviser.rates().iter().map(|rates| rates.rank).collect::<Vec<_>>());
        }
        assert_eq!(seen, [vec![0], vec![0, 1], vec![0, 1, 2], vec![0, 1, 2, 3], vec![0, 1, 2, 3, 4]]);
        assert_eq!(adviser.pause_ns, 2 * SOON_NS, "every rank was looked at once");
        let advice = adviser.advice();
        assert!(advice.iter().all(|advice| advice.knob == "workers" && advice.to > 1), "{advice:?}");
        assert!(advice.windows(2).all(|pair| pair[0].gain.value >= pair[1].gain.value));
        assert!(!advice.is_empty());
    }
}
