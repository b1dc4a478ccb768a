//! What to do about the findings: the remedies of all of them as one list, without what the model of the job expects
//! nothing of, without repetition and without contradiction.

use crate::words::{self, by_cache, gain};
use stallscope_model::{Diagnosis, Either, Estimate, Expected, Remedy, RemedyKind, WORTHWHILE};
use stallscope_units::{bytes_per_second, memory};

/// A remedy with its sentence for when no model can judge it.
pub(crate) fn remedy(kind: RemedyKind, sentence: impl Into<String>) -> Remedy {
    Remedy { kind, sentence: sentence.into(), gain: None, comes_first: false }
}

/// One that is given only where the model of the job expects something of it.
pub(crate) fn if_judged(kind: RemedyKind) -> Remedy {
    remedy(kind, "")
}

/// Settles which of the remedies of `found`, which is sorted by share, are given, and says so in each one's advice. `cpus_are_spare`: of
/// those that the job could be given. What is expected of more of them is for such as nobody else wants.
pub(crate) fn consult(found: &mut [Diagnosis], expected: &[Expected], cpus_are_spare: bool) {
    let mut given: Vec<Remedy> = Vec::new();
    for diagnosis in found.iter_mut().filter(|diagnosis| !diagnosis.remedies.is_empty()) {
        let proposed = std::mem::take(&mut diagnosis.remedies);
        let (mut hopeless, mut undecided) = (Vec::new(), Vec::new());
        let mut repeated = false;
        for remedy in proposed {
            let kind = remedy.kind;
            let has_sentence = !remedy.sentence.is_empty();
            let remedy = match judged(remedy, expected, cpus_are_spare) {
                Ok(remedy) => remedy,
                Err(refused) => {
                    let (list, gain) = match refused {
                        Refused::Hopeless(gain) => (&mut hopeless, gain),
                        Refused::Undecided(gain) => (&mut undecided, gain),
                        Refused::Unjudged => continue,
                    };
                    list.extend(has_sentence.then(|| format!("{} {}", name(kind), words::gain(&gain))));
                    continue;
                }
            };
            if given.iter().any(|earlier| excludes(earlier, &remedy)) {
                repeated = true;
                continue;
            }
            given.push(remedy.clone());
            diagnosis.remedies.push(remedy);
        }
        diagnosis
            .remedies
            .sort_by(|a, b| b.comes_first.cmp(&a.comes_first).then(value(b).total_cmp(&value(a))));
        say_once(&mut diagnosis.remedies);
        let sentences: Vec<&str> = diagnosis.remedies.iter().map(|remedy| remedy.sentence.as_str()).collect();
        diagnosis.advice = match (sentences.is_empty(), repeated) {
            (false, _) => sentences.join(". "),
            (true, true) => String::new(),
            (true, false) => nothing(&hopeless, &undecided),
        };
    }
}

/// What more workers and more batches in advance both bring where storage is at its limit is named with the first of them.
fn say_once(remedies: &mut [Remedy]) {
    let tail = |sentence: &str| sentence.find(AT_LIMIT).map(|at| sentence[at..].to_owned());
    let Some(first) = remedies.iter().find_map(|remedy| tail(&remedy.sentence)) else { return };
    let repeated =
        remedies.iter_mut().filter(|remedy| tail(&remedy.sentence).as_ref() == Some(&first)).skip(1);
    for remedy in repeated {
        remedy.sentence.truncate(remedy.sentence.len() - first.len());
        remedy.sentence.push_str(", else nothing either");
    }
}

/// The best first; what cannot be judged keeps its place behind them.
fn value(remedy: &Remedy) -> f64 {
    remedy.gain.map_or(f64::NEG_INFINITY, |gain| gain.value)
}

/// The same again, or its opposite.
fn excludes(earlier: &Remedy, later: &Remedy) -> bool {
    use RemedyKind::{FewerWorkers, MoreWorkers, Other};
    match (earlier.kind, later.kind) {
        (Other, Other) => earlier.sentence == later.sentence,
        (MoreWorkers, FewerWorkers) | (FewerWorkers, MoreWorkers) => true,
        (earlier, later) => earlier == later,
    }
}

/// Why a remedy is not given, with what the model expects of it.
enum Refused {
    /// Given only where the model judges it, which it does not.
    Unjudged,
    Hopeless(Estimate),
    /// Its gain may be worth while, or nothing.
    Undecided(Estimate),
}

/// The remedy with what is expected of it.
fn judged(remedy: Remedy, expected: &[Expected], cpus_are_spare: bool) -> Result<Remedy, Refused> {
    // Of several ranks the one that gains most holds up the others.
    let of_kind = expected.iter().filter(|expected| expected.kind == remedy.kind);
    let Some(best) = of_kind.max_by(|a, b| a.certain().value.total_cmp(&b.certain().value)) else {
        return if remedy.sentence.is_empty() { Err(Refused::Unjudged) } else { Ok(unjudged(remedy)) };
    };
    if !best.is_worthwhile() && !best.may_be_worthwhile() {
        // Where a core is what is missing, and the model can't tell whether more of them help, it has not refuted that.
        let undecided = best.gain.high >= WORTHWHILE;
        if undecided && best.kind == RemedyKind::MoreCores && !remedy.sentence.is_empty() {
            return Ok(unjudged(remedy));
        }
        return Err(match undecided && best.gain.value >= WORTHWHILE {
            true => Refused::Undecided(best.gain),
            false => Refused::Hopeless(best.gain),
        });
    }
    if best.kind == RemedyKind::MoreCores && !cpus_are_spare {
        return if remedy.sentence.is_empty() { Err(Refused::Unjudged) } else { Ok(unjudged(remedy)) };
    }
    let whose = match is_of_loader(best.kind) && expected.iter().any(|other| other.loader != best.loader) {
        true => format!(" (of loader {} alone)", best.loader),
        false => String::new(),
    };
    let sentence = format!("{}{whose}: {}", action(best, &remedy.sentence), outcome(best));
    Ok(Remedy { kind: remedy.kind, sentence, gain: Some(best.certain()), ..remedy })
}

/// Whether it is done to a loader; what its gain is for the others is not in the expectation.
fn is_of_loader(kind: RemedyKind) -> bool {
    !matches!(kind, RemedyKind::FasterStorage | RemedyKind::MoreCores | RemedyKind::Other)
}

/// What CPUs bring depends on what the job's threads do with them, so that their sentences name what is not known; others' say
/// where they help.
fn unjudged(remedy: Remedy) -> Remedy {
    match remedy.kind {
        RemedyKind::MoreCores | RemedyKind::FewerWorkers => {
            let sentence = format!("{} (this run cannot tell how much that brings)", remedy.sentence);
            Remedy { sentence, ..remedy }
        }
        _ => remedy,
    }
}

/// torch takes a thread for each CPU that it may use, and those spin while they wait for one another.
const TWICE: &str = "twice the CPUs and no more threads than now (OMP_NUM_THREADS)";

fn action(expected: &Expected, unjudged: &str) -> String {
    let Expected { now, to, .. } = expected;
    match expected.kind {
        RemedyKind::MoreWorkers if *now == 0 => {
            format!("Set num_workers to {to}, so that batches are made while the trainer computes")
        }
        RemedyKind::MoreWorkers => format!("Raise num_workers from {now} to {to}"),
        RemedyKind::FewerWorkers => format!("Lower num_workers from {now} to {to}"),
        RemedyKind::MorePrefetch => {
            format!("Keep {to} batches in advance instead of {now} (prefetch_factor, for each worker)")
        }
        RemedyKind::Cache if *now == 0 => {
            format!(
                "Keep the data set in memory: {} reads it once",
                by_cache(&format!("{}MiB", to >> 20), expected.by_script)
            )
        }
        RemedyKind::Cache => format!("Give the cache {} instead of {}", memory(*to), memory(*now)),
        RemedyKind::FasterStorage => {
            "Make storage twice as fast: a local disk, the page cache, or small files packed \
                                      into large ones"
                .to_owned()
        }
        RemedyKind::MoreCores => format!("Give the job {TWICE}"),
        RemedyKind::CheaperSamples => {
            "Halve the CPU time of a sample: decode at the size that is needed, store decoded \
                                       or resized samples, or move augmentation to the device"
                .to_owned()
        }
        RemedyKind::Other => unjudged.to_owned(),
    }
}

const AT_LIMIT: &str = ", nothing ";

fn outcome(expected: &Expected) -> String {
    let Some(Either { if_slow, if_limited, bytes_per_s }) = expected.either else {
        // The model has the cache as it is once it is filled.
        let when = match (expected.kind, expected.now) {
            (RemedyKind::Cache, 0) => " from the second epoch on",
            (RemedyKind::Cache, _) => " once it is full",
            _ => "",
        };
        return format!("{} expected{when}", gain(&expected.gain));
    };
    let limit = bytes_per_s.map_or(String::new(), |rate| format!(" of {}", bytes_per_second(rate)));
    let slow = format!("{} if each read is merely slow", gain(&if_slow));
    let which = format!("if storage is at its limit{limit}; this run does not show which");
    match if_limited.value >= WORTHWHILE {
        true => format!("{slow}, {} {which}", gain(&if_limited)),
        false => format!("{slow}{AT_LIMIT}{which}"),
    }
}

/// Why there is nothing to do about a finding: what would not help, and of what the run cannot tell whether it would.
fn nothing(hopeless: &[String], undecided: &[String]) -> String {
    match undecided {
        [] if hopeless.is_empty() => String::new(),
        [] => format!("Nothing is expected to help here: {}", hopeless.join(", ")),
        _ => format!("This run cannot tell whether it would help to have {}", undecided.join(", or ")),
    }
}

fn name(kind: RemedyKind) -> &'static str {
    match kind {
        RemedyKind::MoreWorkers => "more workers",
        RemedyKind::FewerWorkers => "fewer workers",
        RemedyKind::MorePrefetch => "more batches in advance",
        RemedyKind::Cache => "a cache",
        RemedyKind::FasterStorage => "faster storage",
        RemedyKind::MoreCores => "more CPUs",
        RemedyKind::CheaperSamples => "cheaper samples",
        RemedyKind::Other => "anything else",
    }
}
