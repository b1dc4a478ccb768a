//! The first line of a report.

use crate::diagnose::{MUCH_UNKNOWN, by_threads, may_wait_for_own_reader, straggler, straggles};
use crate::reread::last_read;
use crate::summary::Figures;
use crate::tally::Tally;
use crate::words::count;
use stallscope_model::{COMPUTE_BOUND_SHARE, Cause, MainThreads, Verdict, is_data_bound};
use stallscope_units::{duration_in_words, duration_of, percent_in_words};

/// With fewer steps there is no verdict.
pub(crate) const FEWEST_STEPS: u64 = 5;
/// Fewer that took so long are enough.
pub(crate) const LONG_NS: u64 = 20_000_000_000;
/// What a main thread is blocked in for less goes without saying.
const WORTH_NAMING: f64 = 0.005;
/// A process that is on a CPU, or ready for one, for less of the time than that trains nothing.
const WORKS: f64 = 0.001;
/// Of less time than that, as of a job that fails as it starts, nothing follows.
const FEWEST_NS: u64 = 1_000_000_000;

/// Whether so many steps say something about the job: those of a large model may be few in a minute.
pub(crate) fn has_enough_steps(total: &Tally) -> bool {
    total.steps >= FEWEST_STEPS || (total.steps >= 2 && total.wall_ns >= LONG_NS)
}

fn verdict(finding: &str, rest: &str) -> Verdict {
    Verdict { finding: finding.to_owned(), sentence: format!("{finding}: {rest}") }
}

pub(crate) fn of(figures: &Figures<'_>) -> Verdict {
    let steps = figures.total.steps;
    if steps == 0 {
        return without_steps(figures);
    }
    if !has_enough_steps(&figures.total) {
        let seen =
            format!("only {} seen, which says little about the job", count(steps, "step was", "steps were"));
        return match main_threads_did(&figures.main_threads) {
            Some(did) => verdict("too few steps", &format!("{seen}; {did}")),
            None => verdict("too few steps", &seen),
        };
    }
    let (leading, slow) = (leading(figures), straggler(figures));
    let stall = leading.filter(|most| most.is_stall(figures));
    if let (None, Some(slow)) = (stall, slow) {
        return verdict("straggler", &straggles(figures, slow));
    }
    let Some(most) = leading else {
        return no_stall(figures);
    };
    let share = most.named_share(figures);
    let part_ns = (figures.total.wall_ns as f64 * share) as u64;
    let about = duration_of(part_ns, figures.total.wall_ns);
    let on_rank = slow.map_or(String::new(), |slow| format!(" on rank {}", figures.ranks[slow].facts.rank));
    let what = most.what(figures);
    let few = match steps {
        ..FEWEST_STEPS => format!(" in only {}", count(steps, "step", "steps")),
        _ => String::new(),
    };
    let over = match most.causes {
        [Cause::Fetch] => last_read(figures.epochs).map_or(String::new(), |last| format!("; {last}")),
        _ => String::new(),
    };
    verdict(
        most.finding,
        &format!(
            "{} of {} {what}{on_rank}; about {about}{over}{few}",
            percent_in_words(share),
            figures.time()
        ),
    )
}

/// Causes that have one remedy, and so count together.
#[derive(Clone, Copy, Debug)]
struct Bottleneck {
    finding: &'static str,
    causes: &'static [Cause],
    share: f64,
}

const BOTTLENECKS: [(&str, &[Cause]); 7] = [
    ("fetch-bound", &[Cause::Fetch]),
    ("prep-bound", &[Cause::Prep]),
    ("short of CPU", &[Cause::Starved, Cause::Preempted]),
    ("transfer-bound", &[Cause::Transfer]),
    ("checkpoint-bound", &[Cause::Snapshot, Cause::Persist]),
    ("waiting for ranks", &[Cause::Peer]),
    ("unexplained", &[Cause::Unknown]),
];

/// A wait that is shorter than another one and sets the pace all the same is one of such a share.
const BEHIND_ANOTHER_WAIT: f64 = 0.1;

/// What takes most of the time that the job's own work does not, if it is worth a word.
fn leading(figures: &Figures<'_>) -> Option<Bottleneck> {
    let data_bound = is_data_bound(figures.data_stall_share(), figures.share(Cause::Compute));
    let bottlenecks = BOTTLENECKS.map(|(finding, causes)| {
        let share = causes.iter().map(|cause| figures.share(*cause)).sum();
        Bottleneck { finding, causes, share }
    });
    let worth_a_word = |most: &Bottleneck| match most.causes[0] {
        Cause::Starved => data_bound || most.share >= 0.1,
        Cause::Snapshot => most.share >= 0.05,
        Cause::Peer => most.share >= 0.1,
        Cause::Unknown => most.share >= MUCH_UNKNOWN,
        _ => data_bound,
    };
    let worth: Vec<Bottleneck> = bottlenecks.into_iter().filter(worth_a_word).collect();
    let most = worth.iter().max_by(|a, b| a.share.total_cmp(&b.share)).copied()?;
    let storage =
        worth.iter().find(|other| other.causes == [Cause::Fetch] && other.share >= BEHIND_ANOTHER_WAIT);
    match most.causes[0] {
        Cause::Starved if figures.storage_sets_the_pace => storage.copied().or(Some(most)),
        _ => Some(most),
    }
}

/// The causes that the verdict names; none where it names no part of the time.
pub(crate) fn leading_causes(figures: &Figures<'_>) -> &'static [Cause] {
    let enough = has_enough_steps(&figures.total);
    let leading =
        leading(figures).filter(|most| enough && (most.is_stall(figures) || straggler(figures).is_none()));
    leading.map_or(&[], |most| most.causes)
}

impl Bottleneck {
    /// Most of it is a wait for data or for checkpoints.
    fn is_stall(&self, figures: &Figures<'_>) -> bool {
        let stalls = self.causes.iter().filter(|cause| cause.is_data_stall() || cause.is_checkpoint_stall());
        stalls.map(|cause| figures.share(*cause)).sum::<f64>() >= self.share / 2.0
    }

    /// Those that would be shown as nothing are not worth a word.
    fn named(&self, figures: &Figures<'_>) -> Vec<Cause> {
        let alone = self.causes.len() == 1;
        self.causes.iter().filter(|cause| alone || figures.share(**cause) >= 0.01).copied().collect()
    }

    /// Of what [`Bottleneck::what`] names.
    fn named_share(&self, figures: &Figures<'_>) -> f64 {
        match *self.named(figures) {
            [] => self.share,
            ref named => named.iter().map(|cause| figures.share(*cause)).sum(),
        }
    }

    fn what(&self, figures: &Figures<'_>) -> String {
        match *self.named(figures) {
            [Cause::Starved, Cause::Preempted] => format!(
                "waits for a CPU: {} while batches are made and handed over, {} as the trainer gets none",
                percent_in_words(figures.share(Cause::Starved)),
                percent_in_words(figures.share(Cause::Preempted))
            ),
            [Cause::Snapshot, Cause::Persist] => {
                "is blocked while checkpoints are copied and written".to_owned()
            }
            [cause, ..] => phrase(figures, cause).to_owned(),
            [] => phrase(figures, self.causes[0]).to_owned(),
        }
    }
}

fn phrase(figures: &Figures<'_>, cause: Cause) -> &'static str {
    let unseen_ns = figures.unexplained.unseen_ns();
    match cause {
        Cause::Fetch if figures.reads_itself => "waits for data that the job reads without a loader",
        Cause::Unknown if 2 * unseen_ns > figures.total.causes[cause] => {
            "is spent off the CPU, in what only the kernel's evidence tells (see doctor)"
        }
        Cause::Unknown if may_wait_for_own_reader(figures) => {
            "is blocked in locks, perhaps until a thread or a process of its own has read"
        }
        Cause::Compute => "is the job's own work",
        Cause::Fetch => "waits for storage",
        Cause::Prep => "waits for decoding, augmentation and collation",
        Cause::Starved => "waits while those that make its batches and hand them over get no CPU",
        Cause::Transfer => "waits for finished batches on their way to the trainer",
        Cause::Preempted => "the trainer is ready to run and gets no CPU",
        Cause::Snapshot => "is blocked while checkpoints are copied",
        Cause::Persist => "is blocked while checkpoints are written",
        Cause::Peer => "waits for other ranks",
        Cause::Unknown => "is blocked in something that is neither data, checkpoint nor another rank",
    }
}

fn no_stall(figures: &Figures<'_>) -> Verdict {
    let stall = percent_in_words(figures.data_stall_share());
    let compute = figures.share(Cause::Compute);
    let (finding, what) = if compute >= COMPUTE_BOUND_SHARE {
        (
            "compute-bound",
            format!("{} of {} is the job's own work", percent_in_words(compute), figures.time()),
        )
    } else {
        ("no data stall", format!("nothing takes a leading part of {}", figures.time()))
    };
    let more = match by_threads(figures) {
        Some(part) => {
            format!(
                ", and sleeps for {} until threads of its own are done, which may be making its batches",
                percent_in_words(part)
            )
        }
        None => String::new(),
    };
    verdict(finding, &format!("{what}; it waits for data for {stall}{more}"))
}

fn without_steps(figures: &Figures<'_>) -> Verdict {
    let sum = &figures.main_threads;
    let has_begun = figures.ranks.iter().any(|rank| !rank.phases.is_empty());
    let tell = match (figures.shim_seen, figures.attached) {
        // The first step or batch ends the start-up.
        (true, _) if has_begun => {
            "; training had hardly begun, or its loop has to tell its steps by stallscope.step()"
        }
        (true, _) => {
            "; a loop that neither a DataLoader nor an optimiser of torch shows tells its steps by stallscope.step()"
        }
        (false, true) => "; from outside only those of a DataLoader with workers show",
        (false, false) => "",
    };
    if sum.wall_ns == 0 && figures.processes == 0 {
        return verdict("not measured", "no training step and no process of the job was seen");
    }
    let Some(rest) = main_threads_did(sum) else {
        let seen = count(figures.processes as u64, "process was", "processes were");
        let rest = format!("{seen} seen, of which only the kernel's evidence tells what they do{tell}");
        return verdict("no training steps seen", &rest);
    };
    match bound(sum) {
        Some((finding, _)) => verdict(finding, &format!("{rest}; no training steps were seen{tell}")),
        None => verdict("no training steps seen", &format!("{rest}{tell}")),
    }
}

/// What they did with their time; `None` where nobody saw.
fn main_threads_did(sum: &MainThreads) -> Option<String> {
    if sum.wall_ns == 0 {
        return None;
    }
    let share = |ns: u64| ns as f64 / sum.wall_ns as f64;
    let mut blocked = sum.blocked().to_vec();
    blocked.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
    let blocked: String = blocked
        .into_iter()
        .filter(|(_, ns)| share(*ns) >= WORTH_NAMING)
        .map(|(what, ns)| format!(", blocked in {what} for {}", percent_in_words(share(ns))))
        .collect();
    Some(format!(
        "{} on a CPU for {}, without one for {}{blocked} of {}",
        count(sum.count.into(), "main thread was", "main threads were"),
        percent_in_words(share(sum.cpu_ns)),
        percent_in_words(share(sum.runnable_ns)),
        duration_in_words(sum.wall_ns)
    ))
}

/// What takes most of the main threads' time, and which share of it; `None` where that says nothing of training, as a lock or
/// a sleep.
fn bound(sum: &MainThreads) -> Option<(&'static str, f64)> {
    bounds(sum).into_iter().next()
}

/// The same with what else takes enough of it for advice, by share.
pub(crate) fn bounds(sum: &MainThreads) -> Vec<(&'static str, f64)> {
    let share = |ns: u64| ns as f64 / sum.wall_ns as f64;
    let (compute, short, writes) = (share(sum.cpu_ns), share(sum.runnable_ns), share(sum.writes_ns));
    if compute + short < WORKS || sum.wall_ns < FEWEST_NS {
        return Vec::new();
    }
    // Among several ranks a socket may as well be another rank's.
    let data =
        share(if sum.count > 1 { sum.files_ns + sum.faults_ns + sum.readers_ns } else { sum.data_ns() });
    let found = [
        ("fetch-bound", data, is_data_bound(data, compute)),
        ("short of CPU", short, short >= 0.1),
        ("checkpoint-bound", writes, writes >= 0.05),
    ];
    let worth = found.into_iter().filter(|(.., worth)| *worth);
    let mut bounds: Vec<(&'static str, f64)> = worth.map(|(finding, part, _)| (finding, part)).collect();
    bounds.sort_by(|a, b| b.1.total_cmp(&a.1));
    // It may have slept for the most part, and read a little.
    if bounds.first().is_none_or(|(_, most)| *most < (1.0 - compute) / 2.0) {
        bounds.clear();
        bounds.extend((compute >= COMPUTE_BOUND_SHARE).then_some(("compute-bound", compute)));
    }
    bounds
}
