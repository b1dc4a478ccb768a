//! The first line of a report.

use crate::diagnose::{straggler, straggles};
use crate::summary::Figures;
use crate::words::{count, part_of, percent, span};
use stallscope_model::{Cause, Verdict};

/// With fewer steps nothing is said about the job.
pub(crate) const FEWEST_STEPS: u64 = 5;
/// A job that computes for so much of its time is called after that, whatever it waits for in the rest.
const COMPUTE_BOUND: f64 = 0.75;

fn verdict(finding: &str, rest: &str) -> Verdict {
    Verdict { finding: finding.to_owned(), sentence: format!("{finding}: {rest}") }
}

pub(crate) fn of(figures: &Figures<'_>) -> Verdict {
    let steps = figures.total.steps;
    if steps == 0 {
        return without_steps(figures);
    }
    if steps < FEWEST_STEPS {
        return verdict(
            "too few steps",
            &format!("only {steps} were seen, which says nothing about the job"),
        );
    }
    let (leading, slow) = (leading(figures), straggler(figures));
    let stall = leading.filter(|cause| cause.is_data_stall() || cause.is_checkpoint_stall());
    if let (None, Some(slow)) = (stall, slow) {
        return verdict("straggler", &straggles(figures, slow));
    }
    let Some(cause) = leading else {
        return no_stall(figures);
    };
    let share = figures.share(cause);
    let part_ns = (figures.total.wall_ns as f64 * share) as u64;
    let about = part_of(part_ns, figures.total.wall_ns);
    let on_rank = slow.map_or(String::new(), |slow| format!(" on rank {}", figures.ranks[slow].facts.rank));
    let (finding, what) = phrase(figures, cause);
    verdict(finding, &format!("{} of {} {what}{on_rank}; about {about}", percent(share), figures.time()))
}

/// What takes most of the time that the job's own work does not, if it is worth a word.
fn leading(figures: &Figures<'_>) -> Option<Cause> {
    let data_bound = figures.data_stall_share() >= 0.1 && figures.share(Cause::Compute) < COMPUTE_BOUND;
    Cause::ALL
        .into_iter()
        .filter(|cause| match cause {
            Cause::Compute => false,
            Cause::Fetch | Cause::Prep | Cause::Starved | Cause::Transfer => data_bound,
            Cause::Snapshot | Cause::Persist => figures.share(*cause) >= 0.05,
            Cause::Peer | Cause::Preempted => figures.share(*cause) >= 0.1,
            Cause::Unknown => figures.share(*cause) >= 0.25,
        })
        .max_by(|a, b| figures.share(*a).total_cmp(&figures.share(*b)))
}

fn phrase(figures: &Figures<'_>, cause: Cause) -> (&'static str, &'static str) {
    let unseen_ns = figures.unexplained.unseen_ns();
    match cause {
        Cause::Fetch if figures.reads_itself => {
            ("fetch-bound", "waits for data that the loop reads by itself")
        }
        Cause::Unknown if 2 * unseen_ns > figures.total.causes[cause] => {
            ("unexplained", "is spent off the CPU, in what only the kernel's evidence tells (see doctor)")
        }
        Cause::Compute => ("compute-bound", "is the job's own work"),
        Cause::Fetch => ("fetch-bound", "waits for storage"),
        Cause::Prep => ("prep-bound", "waits for decoding, augmentation and collation"),
        Cause::Starved => ("starved", "waits for loader processes that get no CPU"),
        Cause::Transfer => ("transfer-bound", "waits for finished batches on their way to the trainer"),
        Cause::Preempted => ("short of CPU", "the trainer is ready to run and gets no CPU"),
        Cause::Snapshot => ("checkpoint-bound", "is blocked while checkpoints are copied"),
        Cause::Persist => ("checkpoint-bound", "is blocked while checkpoints are written"),
        Cause::Peer => ("waiting for ranks", "waits for other ranks"),
        Cause::Unknown => {
            ("unexplained", "is blocked in something that is neither data, checkpoint nor another rank")
        }
    }
}

fn no_stall(figures: &Figures<'_>) -> Verdict {
    let stall = percent(figures.data_stall_share());
    let compute = figures.share(Cause::Compute);
    let (finding, what) = if compute >= COMPUTE_BOUND {
        ("compute-bound", format!("{} of {} is the job's own work", percent(compute), figures.time()))
    } else {
        ("no data stall", format!("nothing takes a leading part of {}", figures.time()))
    };
    verdict(finding, &format!("{what}; it waits for data for {stall}"))
}

fn without_steps(figures: &Figures<'_>) -> Verdict {
    let sum = &figures.main_threads;
    let tell = match figures.shim_seen {
        true => {
            "; a loop that neither a DataLoader nor an optimiser of torch shows tells its steps by stallscope.step()"
        }
        false => "",
    };
    if sum.wall_ns == 0 && figures.processes == 0 {
        return verdict("not measured", "no training step and no process of the job was seen");
    }
    if sum.wall_ns == 0 {
        let seen = count(figures.processes as u64, "process was", "processes were");
        let rest = format!("{seen} seen, of which only the kernel's evidence tells what they do{tell}");
        return verdict("no training steps seen", &rest);
    }
    let share = |ns: u64| percent(ns as f64 / sum.wall_ns as f64);
    let rest = format!(
        "main threads were on a CPU for {}, blocked in storage or network for {}, without a CPU for {} of {}{tell}",
        share(sum.cpu_ns),
        share(sum.fetch_ns),
        share(sum.runnable_ns),
        span(sum.wall_ns)
    );
    verdict("no training steps seen", &rest)
}
