//! What to do where the job waits for a CPU: by whether its own processes use them up, or others do.

use super::{loaders, other, worker_setting};
use crate::consult::{if_judged, remedy};
use crate::summary::Figures;
use stallscope_model::RemedyKind::{CheaperSamples, FewerWorkers, MoreCores};
use stallscope_model::{Cause, Remedy};

/// Fewer workers, where there are some to spare.
fn fewer_workers(figures: &Figures<'_>) -> Remedy {
    let most = loaders(figures).map(|loader| loader.workers).max();
    match most.is_none_or(|workers| workers > 1) {
        true => remedy(FewerWorkers, format!("Ask for less CPU with a smaller {}", worker_setting(figures))),
        false => if_judged(FewerWorkers),
    }
}

/// Threads that a trainer of one thread keeps busy at most: Python, torch and the shim have some that do little.
const ONE_THREAD: f64 = 1.1;
/// Of the CPUs that are here, the part that the job itself has to use to be the one that is in its own way.
const OWN_DOING: f64 = 0.8;
/// Less than that is what waking up takes on CPUs that idle, too, so that nobody else has to hold them.
const SHORT: f64 = 0.1;

fn is_short(figures: &Figures<'_>) -> bool {
    figures.share(Cause::Starved) + figures.share(Cause::Preempted) >= SHORT
}

fn uses_them_up(figures: &Figures<'_>) -> bool {
    let cpus = f64::from(figures.cpus);
    cpus > 0.0 && figures.own_cores.is_some_and(|cores| cores >= OWN_DOING * cpus)
}

/// Short of CPU, and for the most part because of its own processes.
pub(super) fn is_in_its_own_way(figures: &Figures<'_>) -> bool {
    is_short(figures) && uses_them_up(figures)
}

pub(super) fn short_of_cpu(figures: &Figures<'_>) -> Vec<Remedy> {
    if !is_short(figures) {
        return vec![if_judged(MoreCores), if_judged(FewerWorkers)];
    }
    let cpus = f64::from(figures.cpus);
    let cores = figures.own_cores.filter(|_| cpus > 0.0);
    let mut remedies = if uses_them_up(figures) {
        let more = "Give the job more CPUs: its own processes use those that are here";
        vec![remedy(MoreCores, more), fewer_workers(figures), if_judged(CheaperSamples)]
    } else {
        let uses = match cores {
            Some(cores) => format!("the job uses {cores:.1} of the {cpus} while it trains, and "),
            None => "where its own processes do not use them up, ".to_owned(),
        };
        let own = format!(
            "Give the job CPUs of its own, or stop or move what else runs on them: {uses}other processes hold the rest, \
             or a limit of its cgroup or affinity keeps it from them"
        );
        vec![remedy(MoreCores, own), if_judged(FewerWorkers)]
    };
    let mut counted = figures.rates.iter().filter_map(|rates| rates.trainer_threads);
    if counted.any(|threads| threads > ONE_THREAD) {
        remedies.extend(other("Bound the trainer's threads (OMP_NUM_THREADS, torch.set_num_threads)"));
    }
    remedies
}
