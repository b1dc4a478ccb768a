//! Findings, like a linter's: one sentence, the figures behind it, what may be done, and what is at stake.

mod own_reading;
mod short_of_cpu;
mod straggler;
mod unexplained;

use self::own_reading::{of_loop, of_main_thread};
use self::short_of_cpu::{batches_take_what_is_short, short_of_cpu};
use self::straggler::straggler_rank;
pub(crate) use self::straggler::{straggler, straggles};
use self::unexplained::unexplained;
pub(crate) use self::unexplained::{MUCH_UNKNOWN, by_threads, may_wait_for_own_reader};
use crate::consult::{consult, if_judged, remedy};
use crate::reread::{WAITS_ARE_OVER, last_read, only_at_first, reread};
use crate::summary::Figures;
use crate::uneven::uneven_workers;
use crate::verdict::{self, FEWEST_STEPS, LONG_NS, has_enough_steps};
use crate::words::{by_cache, count};
use stallscope_model::RemedyKind::{
    Cache, CheaperSamples, FasterStorage, MoreCores, MorePrefetch, MoreWorkers, Other,
};
use stallscope_model::{
    CacheUses, Cause, Diagnosis, LoaderFacts, RankSummary, Remedy, WorkerLoad, are_spare,
};
use stallscope_units::{
    bytes_per_second, duration_in_words, duration_of, memory, memory_to_hold, percent_in_words,
};
use std::collections::{HashMap, HashSet};

/// Less of the time than this is not worth a finding.
pub(crate) const WORTH: f64 = 0.05;

/// Every finding, by what is at stake.
pub(crate) fn all(figures: &Figures<'_>) -> Vec<Diagnosis> {
    let mut found: Vec<Diagnosis> = Vec::new();
    if has_enough_steps(&figures.total) {
        let lints = [
            fetch_bound,
            prep_bound,
            starved,
            transfer_bound,
            checkpoint_stall,
            straggler_rank,
            peer,
            preempted,
            uneven_workers,
            unexplained,
            no_data_stall,
        ];
        found.extend(lints.iter().filter_map(|lint| lint(figures)));
    } else if figures.total.steps > 0 {
        found.push(too_few_steps(figures));
    } else {
        found.extend(verdict::bounds(&figures.main_threads).into_iter().filter_map(|(bound, share)| {
            match bound {
                "fetch-bound" => Some(of_main_thread(figures, share)),
                "short of CPU" => Some(short_of_cpu::of_main_thread(figures, share)),
                _ => None,
            }
        }));
    }
    found.extend(stolen(figures));
    found.extend(disagreement(figures));
    found.extend(evidence_missing(figures));
    found.sort_by(|a, b| b.share.total_cmp(&a.share));
    consult(&mut found, figures.expected, are_spare(figures.spare_cpus, f64::from(figures.cpus)));
    // What the first line of the report names is explained first, also where it is the sum of several smaller parts.
    let leading = verdict::leading_causes(figures);
    found.sort_by_key(|diagnosis| !diagnosis.cause.is_some_and(|cause| leading.contains(&cause)));
    found
}

fn diagnosis(
    name: &str,
    cause: Cause,
    share: f64,
    finding: String,
    evidence: String,
    remedies: Vec<Remedy>,
) -> Diagnosis {
    let (name, cause) = (name.to_owned(), Some(cause));
    Diagnosis { name, finding, evidence, cause, share, remedies, ..Diagnosis::default() }
}

/// What only people can judge.
pub(crate) fn other(sentence: impl Into<String>) -> Vec<Remedy> {
    vec![remedy(Other, sentence)]
}

fn of_time(figures: &Figures<'_>, share: f64) -> String {
    let part_ns = (figures.total.wall_ns as f64 * share) as u64;
    let exposed = figures.exposed();
    let device = match figures.total.hidden_ns {
        Some(_) => format!("; the device ran dry in {} of the waits", percent_in_words(exposed)),
        None => String::new(),
    };
    format!("{} of {} steps{device}", duration_of(part_ns, figures.total.wall_ns), figures.total.steps)
}

/// Those that the time of interest was spent with: workers of an evaluation are no setting of training.
fn loaders<'a>(figures: &'a Figures<'_>) -> impl Iterator<Item = &'a LoaderFacts> {
    figures.ranks.iter().flat_map(|rank| {
        let used = Used::of(rank, figures);
        rank.facts.loaders.iter().filter(move |facts| used.has(facts.loader))
    })
}

/// Loaders of a rank that the time of interest was spent with.
pub(crate) struct Used {
    /// As it is not known which.
    all: bool,
    loaders: HashSet<u16>,
}

impl Used {
    pub(crate) fn of(rank: &RankSummary, figures: &Figures<'_>) -> Used {
        let of_phase = || rank.phases.iter().filter(|phase| phase.phase == figures.phase);
        Used {
            all: of_phase().all(|_| false) || of_phase().any(|phase| phase.loader.is_none()),
            loaders: of_phase().filter_map(|phase| phase.loader).collect(),
        }
    }

    pub(crate) fn has(&self, loader: u16) -> bool {
        self.all || self.loaders.contains(&loader)
    }
}

/// Those of these loaders, by rank; one that never handed a batch over may be anybody's.
fn workers_of<'a>(rank: &'a RankSummary, figures: &Figures<'_>) -> impl Iterator<Item = &'a WorkerLoad> {
    let used = Used::of(rank, figures);
    rank.workers.iter().filter(move |load| load.loader.is_none_or(|loader| used.has(loader)))
}

fn workers<'a>(figures: &'a Figures<'_>) -> impl Iterator<Item = &'a WorkerLoad> {
    figures.ranks.iter().flat_map(|rank| workers_of(rank, figures))
}

/// What would be shown as nothing a second.
const LEAST_BYTES_PER_S: f64 = 0.005 * 1024.0 * 1024.0;

/// All loaders make their batches in the trainer itself.
fn in_process(figures: &Figures<'_>) -> bool {
    let mut workers = loaders(figures).map(|loader| loader.workers).peekable();
    workers.peek().is_some() && workers.all(|workers| workers == 0)
}

fn worker_setting(figures: &Figures<'_>) -> String {
    let most = loaders(figures).map(|loader| loader.workers).max();
    most.map_or("num_workers".to_owned(), |workers| format!("num_workers (the script has {workers})"))
}

fn fetch_bound(figures: &Figures<'_>) -> Option<Diagnosis> {
    let share = figures.share(Cause::Fetch);
    let mut evidence = of_time(figures, share);
    let mut sum = WorkerLoad::default();
    workers(figures).for_each(|load| sum += load);
    let at_once = |rank: &RankSummary| rank.workers_at_once().min(workers_of(rank, figures).count() as u64);
    let number: u64 = figures.ranks.iter().map(at_once).sum();
    if number > 0 && sum.wall_ns > 0 {
        let reading = percent_in_words(sum.fetch_ns as f64 / sum.wall_ns as f64);
        evidence.push_str(&format!(
            "; {} spent {reading} of {} time reading",
            count(number, "worker", "workers"),
            if number == 1 { "its" } else { "their" }
        ));
        // On some file systems (FUSE) the kernel counts none of what its readers get.
        if sum.read_bytes as f64 / (sum.wall_ns as f64 / 1e9) >= LEAST_BYTES_PER_S {
            // Together would need to be at once, which workers of several loaders are not.
            evidence.push_str(&format!(
                ", {} from storage each",
                bytes_per_second(sum.read_bytes as f64 / (sum.wall_ns as f64 / 1e9))
            ));
        }
    }
    let (by_cache, to_cache) = in_memory(figures);
    let over = only_at_first(figures.epochs);
    evidence.push_str(&by_cache);
    evidence.extend(last_read(figures.epochs).into_iter().flat_map(|last| ["; ".to_owned(), last]));
    if over {
        evidence.push_str(WAITS_ARE_OVER);
    }
    let remedies = match figures.reads_itself {
        true => of_loop(&figures.own_reading),
        // What the model expects of them is for epochs that read.
        false if over => Vec::new(),
        false => of_loader(figures, to_cache),
    };
    let what = if figures.reads_itself { "data that the job reads without a loader" } else { "storage" };
    let finding = format!("{} of {} waits for {what}", percent_in_words(share), figures.time());
    let advice = if over { AFTER_FIRST } else { "" }.to_owned();
    let found = diagnosis("fetch-bound", Cause::Fetch, share, finding, evidence, remedies);
    (share >= WORTH).then_some(Diagnosis { advice, ..found })
}

/// Instead of remedies, which would be for a run that ends with its first epoch.
const AFTER_FIRST: &str = "Nothing needs to change while memory keeps the data; a run that starts without it there waits in its first \
                           epoch again";

fn of_loader(figures: &Figures<'_>, to_cache: Option<String>) -> Vec<Remedy> {
    let more_workers = if in_process(figures) {
        "Set num_workers to 2 or more, so that reading goes on while the trainer computes".to_owned()
    } else {
        format!(
            "Keep more reads in flight with a larger {} or prefetch_factor: that helps where each read is merely slow, and \
             not where storage gives all it can",
            worker_setting(figures)
        )
    };
    let faster = "Keep the data on a local disk or in the page cache; where it is many small files, pack them into large ones";
    vec![
        to_cache.map_or(if_judged(Cache), |sentence| remedy(Cache, sentence)),
        remedy(FasterStorage, faster),
        remedy(MoreWorkers, more_workers),
        if_judged(MorePrefetch),
    ]
}

/// What a cache gives or would give: evidence for it, which begins with what parts it from the text before, and what to
/// do; nothing where nothing speaks for it.
fn in_memory(figures: &Figures<'_>) -> (String, Option<String>) {
    let mut uses = CacheUses::default();
    figures.caches.iter().for_each(|cache| uses += &cache.training);
    if let Some(hits) = uses.hit_share() {
        let evidence = format!("; the cache had {} of the samples", percent_in_words(hits));
        let mut missed: HashMap<u16, u64> = HashMap::new();
        for cache in figures.caches {
            let of_loader = missed.entry(cache.loader).or_default();
            *of_loader = of_loader.saturating_add(cache.training.misses);
        }
        let full = |cache: &&stallscope_model::CacheSummary| {
            // A miss that is kept since is a first read, which no larger cache saves.
            let misses = missed[&cache.loader];
            let state = cache.state.filter(|state| misses > state.kept_samples);
            state.is_some_and(|state| state.kept_bytes >= state.capacity_bytes - state.capacity_bytes / 20)
        };
        let advice = match figures.caches.iter().find(full).and_then(|cache| cache.state) {
            Some(state) if hits < 0.9 => Some(format!(
                "Give the cache more than its {}, which are full: cache.bytes is a knob",
                memory(state.capacity_bytes)
            )),
            _ => None,
        };
        return (evidence, advice);
    }
    let Some(found) = reread(figures.epochs, figures.ranks) else { return Default::default() };
    let evidence = format!("; each epoch reads the same {} from storage again", memory(found.bytes));
    // Half of it is the job's own.
    let fits = found.bytes.saturating_mul(2) <= figures.memory_bytes;
    let advice = fits.then(|| {
        format!(
            "Keep the data set in memory, where it fits: {} reads it once",
            by_cache(&memory_to_hold(found.bytes), false)
        )
    });
    (evidence, advice)
}

fn prep_bound(figures: &Figures<'_>) -> Option<Diagnosis> {
    let share = figures.share(Cause::Prep);
    let workers = loaders(figures).map(|loader| loader.workers).max();
    let more_workers = match workers {
        None if figures.reads_itself => remedy(
            Other,
            "Make batches in worker processes (a DataLoader with workers): threads share the interpreter's lock with the loop",
        ),
        Some(0) => remedy(
            MoreWorkers,
            "Set num_workers to 1 or more, so that batches are made while the trainer computes",
        ),
        // Decoding takes a core for each.
        Some(workers) if figures.cpus > 0 && workers >= figures.cpus => if_judged(MoreWorkers),
        _ if figures.cpus == 1 => if_judged(MoreWorkers),
        _ if figures.cpus == 0 => remedy(MoreWorkers, format!("Raise {}", worker_setting(figures))),
        _ => {
            remedy(MoreWorkers, format!("Raise {}: {} CPUs are here", worker_setting(figures), figures.cpus))
        }
    };
    let remedies = vec![
        more_workers,
        remedy(
            CheaperSamples,
            "Make a sample cheaper: decode at the size that is needed, store decoded or resized samples, or move \
             augmentation to the device",
        ),
        if_judged(MorePrefetch),
        if_judged(MoreCores),
    ];
    let finding = format!(
        "{} of {} waits for samples to be decoded, augmented and collated",
        percent_in_words(share),
        figures.time()
    );
    (share >= WORTH)
        .then(|| diagnosis("prep-bound", Cause::Prep, share, finding, of_time(figures, share), remedies))
}

fn starved(figures: &Figures<'_>) -> Option<Diagnosis> {
    let share = figures.share(Cause::Starved);
    let finding = format!(
        "{} of {} waits while those that make its batches and hand them over are ready to run and get no CPU",
        percent_in_words(share),
        figures.time()
    );
    (share >= WORTH).then(|| {
        let evidence = of_time(figures, share);
        diagnosis("starved-workers", Cause::Starved, share, finding, evidence, short_of_cpu(figures))
    })
}

fn transfer_bound(figures: &Figures<'_>) -> Option<Diagnosis> {
    let share = figures.share(Cause::Transfer);
    let mut evidence = of_time(figures, share);
    let behind = figures.transfer_behind_fault_share;
    let mut remedies = other(
        "Return fewer and larger tensors in a batch (each crosses on its own), or try \
         torch.multiprocessing.set_sharing_strategy('file_system')",
    );
    if behind >= 0.25 {
        evidence.push_str(&format!(
            "; for {} of it the worker was in page faults of its next batch",
            percent_in_words(behind)
        ));
        remedies.extend(other(
            "Read with pread, or warm the file: a page fault in a memory-mapped file holds the worker's interpreter lock",
        ));
    }
    let finding = format!(
        "{} of {} waits for finished batches on their way to the trainer",
        percent_in_words(share),
        figures.time()
    );
    (share >= WORTH).then(|| diagnosis("transfer-bound", Cause::Transfer, share, finding, evidence, remedies))
}

fn checkpoint_stall(figures: &Figures<'_>) -> Option<Diagnosis> {
    let share = figures.share(Cause::Snapshot) + figures.share(Cause::Persist);
    let sums = |of: fn(&stallscope_model::Checkpoints) -> u64| -> u64 {
        figures.ranks.iter().map(|rank| of(&rank.checkpoints)).fold(0, u64::saturating_add)
    };
    let (number, blocked_ns) = (sums(|c| c.count.saturating_sub(c.in_background)), sums(|c| c.blocked_ns));
    let mut evidence = of_time(figures, share);
    if number > 0 {
        evidence.push_str(&format!(
            "; {} blocked the trainer for {} each",
            count(number, "checkpoint", "checkpoints"),
            duration_in_words(blocked_ns / number)
        ));
    }
    let finding = format!("{} of {} is blocked by checkpoints", percent_in_words(share), figures.time());
    let advice = "Save less often, or in the background: torch.distributed.checkpoint.async_save, or copy the state into \
                  buffers that are kept and write it from another process";
    let cause = if figures.share(Cause::Snapshot) > figures.share(Cause::Persist) {
        Cause::Snapshot
    } else {
        Cause::Persist
    };
    (share >= 0.02).then(|| diagnosis("checkpoint-stall", cause, share, finding, evidence, other(advice)))
}

fn peer(figures: &Figures<'_>) -> Option<Diagnosis> {
    let share = figures.share(Cause::Peer);
    if share < WORTH || straggler(figures).is_some() {
        return None;
    }
    let finding = format!("{} of {} waits for other ranks", percent_in_words(share), figures.time());
    let advice = "Balance the work of a step over the ranks, and profile the ranks on other hosts: no rank seen here is the \
                  slow one all the time";
    Some(diagnosis("peer-wait", Cause::Peer, share, finding, of_time(figures, share), other(advice)))
}

fn preempted(figures: &Figures<'_>) -> Option<Diagnosis> {
    let share = figures.share(Cause::Preempted);
    let finding = format!(
        "for {} of {} the trainer is ready to run and gets no CPU",
        percent_in_words(share),
        figures.time()
    );
    (share >= WORTH).then(|| {
        let evidence = of_time(figures, share);
        diagnosis("preempted-trainer", Cause::Preempted, share, finding, evidence, short_of_cpu(figures))
    })
}

fn no_data_stall(figures: &Figures<'_>) -> Option<Diagnosis> {
    let share = figures.data_stall_share();
    // The shim alone sees no read of a loop without a loader: that is among what nobody saw.
    if figures.reads_itself && share + figures.unseen_share() >= WORTH {
        return None;
    }
    let may_be_data = figures.unexplained.unseen_ns() > 0 || may_wait_for_own_reader(figures);
    let seen = figures.share(Cause::Unknown) < MUCH_UNKNOWN || !may_be_data;
    let unless = match by_threads(figures) {
        Some(part) => {
            format!(
                ", and {} for threads of the job's own, which may be making its batches",
                percent_in_words(part)
            )
        }
        None => String::new(),
    };
    (share < WORTH && seen).then(|| Diagnosis {
        name: "no-data-stall".to_owned(),
        finding: format!("data keeps up: {} of {} waits for it{unless}", percent_in_words(share), figures.time()),
        evidence: of_time(figures, share),
        advice: if !unless.is_empty() {
            "Where these threads make the batches, make them in worker processes (a DataLoader with workers), or with less \
             work; else a faster loader would not make this job faster"
        } else if batches_take_what_is_short(figures) {
            "Making batches sooner would not make this job faster; making them with less CPU would, where training shares their CPUs"
        } else {
            "A faster loader would not make this job faster"
        }
        .to_owned(),
        share,
        ..Diagnosis::default()
    })
}

fn too_few_steps(figures: &Figures<'_>) -> Diagnosis {
    let long = duration_in_words(LONG_NS);
    Diagnosis {
        name: "too-few-steps".to_owned(),
        finding: format!("only {} seen", count(figures.total.steps, "step was", "steps were")),
        evidence: format!("a finding needs {FEWEST_STEPS}, or two that take {long} together"),
        advice: "Let the job run longer".to_owned(),
        ..Diagnosis::default()
    }
}

/// Less than that is the host's own housekeeping.
const STOLEN: f64 = 0.02;

fn stolen(figures: &Figures<'_>) -> Option<Diagnosis> {
    let share = Some(figures.stolen_share).filter(|share| *share >= STOLEN)?;
    Some(Diagnosis {
        name: "stolen-cpu".to_owned(),
        finding: format!("the host of this virtual machine gave {} of its CPU time to others", percent_in_words(share)),
        evidence: "`steal` of /proc/stat; it is in the figures as what the job did, or waited for, when it was taken".to_owned(),
        advice: "Use a machine whose CPUs are its own, or ask those who run the host".to_owned(),
        share,
        ..Diagnosis::default()
    })
}

fn disagreement(figures: &Figures<'_>) -> Option<Diagnosis> {
    let share = figures.disagreement_share.filter(|share| *share >= WORTH)?;
    Some(Diagnosis {
        name: "evidence-disagrees".to_owned(),
        finding: format!(
            "kernel and shim differ by {} of {} on one cause",
            percent_in_words(share),
            figures.time()
        ),
        evidence: "the figures shown use the kernel's account between the shim's boundaries".to_owned(),
        advice: "Trust the sum of stalls more than their split, and report the case".to_owned(),
        ..Diagnosis::default()
    })
}

fn evidence_missing(figures: &Figures<'_>) -> Option<Diagnosis> {
    let missing = |finding: &str, advice: &str, evidence: String| Diagnosis {
        name: "evidence-missing".to_owned(),
        finding: finding.to_owned(),
        evidence,
        advice: advice.to_owned(),
        ..Diagnosis::default()
    };
    let hooks: Vec<&str> =
        figures.ranks.iter().flat_map(|rank| rank.facts.unavailable.iter().map(String::as_str)).collect();
    if !figures.shim_seen && !figures.kernel_seen && !figures.attached {
        return Some(missing(
            "neither a shim inside the job nor the kernel reported anything",
            "Run Python with torch, without -I, -S and --no-shim, or `sudo stallscope collect` beside the job",
            String::new(),
        ));
    }
    if !figures.shim_seen {
        return Some(missing(
            "no shim reported from inside the job, so evaluation is not distinguished from training, nor a checkpoint from other \
             files that the main thread writes",
            match figures.attached {
                true => "Start the job with `stallscope run`",
                false => "Run Python with torch, without -I, -S and --no-shim",
            },
            "kernel evidence only".to_owned(),
        ));
    }
    if !hooks.is_empty() {
        return Some(missing("the shim could not do everything in this job", "", hooks.join("; ")));
    }
    (!figures.kernel_seen).then(|| {
        missing(
            "no kernel evidence, so what blocked a process is not named",
            "Run `sudo stallscope collect` beside the job",
            "the shim's clocks only".to_owned(),
        )
    })
}
