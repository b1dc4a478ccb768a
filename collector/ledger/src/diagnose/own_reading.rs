//! Data that the main thread waits for by itself.

use super::{diagnosis, other};
use crate::consult::remedy;
use crate::summary::Figures;
use stallscope_model::RemedyKind::FasterStorage;
use stallscope_model::{Cause, Diagnosis, MainThreads, Remedy};
use stallscope_units::{duration_in_words, percent_in_words};

/// Where no step shows, as from outside of a loop without a loader, but what its main thread does.
pub(super) fn of_main_thread(figures: &Figures<'_>, share: f64) -> Diagnosis {
    let main = &figures.main_threads;
    let finding = format!(
        "the main thread waits for data for {} of {}",
        percent_in_words(share),
        duration_in_words(main.wall_ns)
    );
    // Of training nothing is known.
    diagnosis("fetch-bound", Cause::Fetch, 0.0, finding, String::new(), of_loop(main))
}

/// What a loop that reads by itself may do, by what its main thread is blocked in: a read or a socket lets the other
/// threads run meanwhile, a page fault does not, and takes no size either. What answers at a socket or a pipe may be a
/// process of the job's own, such as a simulated environment, to which reading elsewhere gives nothing. Nothing judges
/// these, so that each says under which condition it helps, and what can make reads slower comes after what cannot.
pub(super) fn of_loop(main: &MainThreads) -> Vec<Remedy> {
    let much = |ns: u64| ns > 0 && ns.saturating_mul(4) >= main.data_ns();
    let (faults, files, readers) = (much(main.faults_ns), much(main.files_ns), much(main.readers_ns));
    let answers = much(main.sockets_ns.saturating_add(main.pipes_ns));
    let mut remedies = Vec::new();
    if readers {
        remedies.extend(other(
            "Let the threads that read begin more batches in advance, or read in more threads: that helps where each read is \
             merely slow, and not where storage gives all it can",
        ));
    }
    if faults {
        remedies.extend(other(
            "Make the next batch in another process (a DataLoader with workers) while this one is trained with: a thread \
             helps only where what copies from the map gives up the interpreter's lock, which a page fault holds",
        ));
    }
    if faults {
        remedies.extend(other(
            "Where it takes a few KiB at a time from random places of a memory-mapped file, turn reading ahead off with \
             madvise(MADV_RANDOM) (of a numpy.memmap: array._mmap.madvise(mmap.MADV_RANDOM)); what is longer then takes a \
             read for every page and is slower: read that with one call, such as numpy.fromfile(path, offset=, count=)",
        ));
    }
    if answers {
        remedies.extend(other(
            "Where processes of its own answer (simulated environments, preprocessing), request their next answers before \
             training with these, or divide their work over more processes while CPUs are idle",
        ));
    }
    if answers && !faults && !files && !readers {
        remedies.extend(other(
            "Where a server answers, request the next batch in a thread or a worker process while this one is trained with",
        ));
    } else if !faults && !readers {
        remedies.extend(other(
            "Read the next batch in a thread or a worker process while this one is trained with",
        ));
    }
    if files {
        remedies.extend(other("Where reads are small and follow one another, read files in larger pieces"));
    }
    if faults || files || readers {
        remedies.push(remedy(
            FasterStorage,
            "Keep the files that it waits for on a local disk, or in the page cache where they fit",
        ));
    }
    remedies
}
