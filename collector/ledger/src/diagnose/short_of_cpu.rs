//! What to do where the job waits for a CPU: by whether its own processes use them up, a quota keeps it from them, or others hold them.
//!
//! The model of the job knows what twice the CPUs would bring, and nothing of what the others' end would, nor of threads that
//! wait for one another by spinning: each remedy says of itself what is known of it.

use super::{diagnosis, loaders, other, worker_setting, workers};
use crate::consult::{if_judged, remedy};
use crate::summary::Figures;
use stallscope_model::RemedyKind::{CheaperSamples, FewerWorkers, MoreCores, Other};
use stallscope_model::{Cause, Diagnosis, Remedy};
use stallscope_units::{duration_in_words, percent_in_words};

/// Threads that a trainer of one thread keeps busy at most: Python, torch and the shim have some that do little.
const ONE_THREAD: f64 = 1.1;
/// Of the CPUs that are here, the part that the job itself has to use to be the one that is in its own way.
const OWN_DOING: f64 = 0.8;
/// Where it uses less of them, what others hold is worth as much as many a change of the job's own.
const NEARLY_ALL: f64 = 0.88;
/// Less than that is what waking up takes on CPUs that idle, too, so that nobody else has to hold them.
const SHORT: f64 = 0.1;

/// Where no step shows, as from outside of a loop without a loader, but what its main thread does.
pub(super) fn of_main_thread(figures: &Figures<'_>, share: f64) -> Diagnosis {
    let main = &figures.main_threads;
    let finding = format!(
        "the main thread is ready to run and gets no CPU for {} of {}",
        percent_in_words(share),
        duration_in_words(main.wall_ns)
    );
    // Of training nothing is known.
    let remedies = short_of_cpu(figures);
    diagnosis("preempted-trainer", Cause::Preempted, 0.0, finding, String::new(), remedies)
}

fn is_short(figures: &Figures<'_>) -> bool {
    lacking_share(figures) >= SHORT
}

/// Of the time, in which a CPU is lacking.
fn lacking_share(figures: &Figures<'_>) -> f64 {
    let main = &figures.main_threads;
    match figures.total.steps {
        0 => main.runnable_ns as f64 / main.wall_ns.max(1) as f64,
        _ => figures.share(Cause::Starved) + figures.share(Cause::Preempted),
    }
}

/// All that it may use: its quota allows no more, or it has the CPUs.
fn uses_them_up(figures: &Figures<'_>) -> bool {
    figures.wanted.are_held_back() || uses(figures, OWN_DOING)
}

/// Whether the job uses at least such a part of the CPUs that are here.
fn uses(figures: &Figures<'_>, part: f64) -> bool {
    let cpus = f64::from(figures.cpus);
    cpus > 0.0 && figures.own_cores.is_some_and(|cores| cores >= part * cpus)
}

/// Whether others hold more than half of the CPUs that the job may use, and most of its time is lost to that: nothing of its own is worth
/// as much.
fn others_have_most(figures: &Figures<'_>) -> bool {
    let lost = lacking_share(figures) >= 0.5 && !figures.storage_sets_the_pace;
    lost && figures.own_cores.is_some() && !uses(figures, 0.5)
}

/// Whether those who make batches use CPU time that training lacks: that of the job's own CPUs, or as much as half of what training
/// itself gets of those that others hold, too.
pub(super) fn batches_take_what_is_short(figures: &Figures<'_>) -> bool {
    let made_ns = workers(figures).map(|load| load.cpu_ns).fold(0, u64::saturating_add);
    let trained_ns = figures.total.causes[Cause::Compute].saturating_mul(figures.ranks.len().max(1) as u64);
    is_short(figures) && made_ns > 0 && (uses_them_up(figures) || made_ns >= trained_ns / 2)
}

pub(super) fn short_of_cpu(figures: &Figures<'_>) -> Vec<Remedy> {
    if !is_short(figures) {
        return vec![if_judged(MoreCores), if_judged(FewerWorkers)];
    }
    let mut remedies = if uses_them_up(figures) {
        let more = match figures.wanted.are_held_back() {
            true => raise_the_quota(figures),
            false => "Give the job more CPUs: its own processes use those that are here".to_owned(),
        };
        let mut remedies = vec![remedy(MoreCores, more), fewer_workers(figures), if_judged(CheaperSamples)];
        if !figures.wanted.are_held_back() && !uses(figures, NEARLY_ALL) {
            remedies.extend(other(without_the_others(figures)));
        }
        remedies
    } else {
        let mut remedies = vec![if_judged(MoreCores), if_judged(FewerWorkers)];
        remedies.extend(batches_take_what_is_short(figures).then(|| if_judged(CheaperSamples)));
        let others = remedy(Other, without_the_others(figures));
        remedies.push(Remedy { comes_first: others_have_most(figures), ..others });
        remedies
    };
    if figures.wanted.are_far_too_many(figures.cpus) {
        let remedy = remedy(Other, far_too_many_threads(figures));
        remedies.insert(0, Remedy { comes_first: true, ..remedy });
    } else if figures.trainer_threads.is_some_and(|threads| threads > ONE_THREAD) {
        // Beside others it is the user's own to change, and brought three times the steps where keeping those off was out of reach.
        let at = if uses_them_up(figures) { remedies.len() } else { 0 };
        let bounded = remedy(Other, fewer_threads(figures));
        let comes_first = remedies.iter().any(|remedy| remedy.comes_first);
        remedies.insert(at, Remedy { comes_first, ..bounded });
    }
    remedies
}

fn raise_the_quota(figures: &Figures<'_>) -> String {
    format!(
        "Give the job more CPUs by a larger quota of its control group (cpu.max; limits.cpu in Kubernetes, --cpus of docker, \
         CPUQuota= of systemd): it used its quota up in {} of the periods, and waited for the next",
        percent_in_words(figures.wanted.quota_used_up_share)
    )
}

fn without_the_others(figures: &Figures<'_>) -> String {
    let uses = match figures.own_cores.filter(|_| figures.cpus > 0) {
        Some(cores) => {
            let when = if figures.total.steps > 0 { "while it trains" } else { "while it is watched" };
            format!("the job uses {cores:.1} of the {} {when}, and ", figures.cpus)
        }
        None => "where its own processes do not use them up, ".to_owned(),
    };
    let much = match figures.trainer_threads {
        _ if figures.storage_sets_the_pace => ", and little as long as storage gives no more",
        Some(..=ONE_THREAD) => "",
        _ => ": where the trainer's threads wait for one another it can be much",
    };
    format!(
        "Keep other work off the job's CPUs (stop it, move it, or give the job CPUs of its own): {uses}other processes hold the rest. How \
         much that brings is not estimated{much}"
    )
}

/// Fewer workers, where there are some to spare and training does not wait for what those of now make.
fn fewer_workers(figures: &Figures<'_>) -> Remedy {
    let most = loaders(figures).map(|loader| loader.workers).max();
    let waits_for_them = figures.share(Cause::Starved) > figures.share(Cause::Preempted);
    if waits_for_them || most.is_some_and(|workers| workers <= 1) {
        return if_judged(FewerWorkers);
    }
    let smaller = format!(
        "Ask for less CPU with a smaller {}, as long as training does not wait for batches then, which slows it down",
        worker_setting(figures)
    );
    remedy(FewerWorkers, smaller)
}

/// Each process has a pool of its own, of as many threads as its machine has CPUs or its script says.
fn far_too_many_threads(figures: &Figures<'_>) -> String {
    let cpus = figures.cpus;
    let each = (f64::from(cpus) / figures.wanted.main_threads.max(1.0)).floor().max(1.0);
    format!(
        "First give each process fewer threads (OMP_NUM_THREADS={each:.0}, or torch.set_num_threads): of the job's own, {:.0} want a CPU \
         at once, and it has {cpus}; threads that share a computation all wait for the one that has no CPU",
        figures.wanted.threads
    )
}

/// With others on the CPUs, threads that have one wait for those that have none; alone on them, they do the work.
fn fewer_threads(figures: &Figures<'_>) -> String {
    if uses_them_up(figures) && !figures.wanted.are_held_back() {
        return format!(
            "Bound the trainer's threads (OMP_NUM_THREADS, torch.set_num_threads) only where they are more than the {} CPUs, \
             or wait for one another most of the time: the job has its CPUs to itself, and taking away threads that compute \
             slows it down (this run does not show which)",
            figures.cpus
        );
    }
    let gets = figures.own_cores.map_or(1.0, |cores| cores.floor().max(1.0));
    format!(
        "Bound the trainer's threads to about the CPUs that the job gets (OMP_NUM_THREADS={gets:.0}, or \
         torch.set_num_threads): of threads that share a computation all wait for the one that has no CPU. How much that \
         brings is not estimated"
    )
}
