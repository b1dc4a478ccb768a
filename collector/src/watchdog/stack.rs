//! The Python functions that the main thread of a process is in, from the process's memory: it is not stopped, and not traced.
//!
//! It hangs, so that what is read does not change meanwhile. What does is not believed but in so far as it can be read.

use crate::foreign_text::short;
use py_spy::config::LockingStrategy;
use py_spy::{Config, Pid, PythonSpy, StackTrace};
use stallscope_model::PythonFrame;

/// Kept of a stack, from the innermost on.
const FRAMES: usize = 64;
/// Of a file's path, and of a function's name with those of its classes.
const FILE: usize = 300;
const FUNCTION: usize = 120;
/// Of a sentence about them.
const SHOWN: usize = 3;

/// `None`: it is no Python that is known, or the kernel does not let this process read it.
pub(super) fn of_main_thread(pid: u32) -> Option<Vec<PythonFrame>> {
    let config = Config {
        blocking: LockingStrategy::NonBlocking,
        // Names of threads would be looked up in the program's own objects.
        collect_thread_names: false,
        // To shorten them it would look for files, and where the storage is that hangs.
        full_filenames: true,
        ..Config::default()
    };
    let mut spy = PythonSpy::new(Pid::try_from(pid).ok()?, &config).ok()?;
    let threads = spy.get_stack_traces().ok()?;
    let is_main = |thread: &&StackTrace| thread.os_thread_id == Some(u64::from(pid));
    // Before 3.11 no thread has its number there, and in a container another one. The last in that list is the first that was.
    let main = threads.iter().find(is_main).or(threads.last())?;
    let frame = |frame: &py_spy::Frame| PythonFrame {
        file: frame.filename.clone(),
        line: u32::try_from(frame.line).unwrap_or(0),
        function: frame.name.clone(),
    };
    kept(main.frames.iter().map(frame))
}

/// So much of it, and as clean, as may be shown. `None`: there is nothing.
pub(super) fn kept(frames: impl IntoIterator<Item = PythonFrame>) -> Option<Vec<PythonFrame>> {
    let mut kept = Vec::new();
    for frame in frames.into_iter().take(FRAMES) {
        let starts_worker = is_of_torch(&frame, "worker.py") && frame.function.ends_with("_worker_loop");
        let (file, function) = (short(&frame.file, FILE), short(&frame.function, FUNCTION));
        kept.push(PythonFrame { file, line: frame.line, function });
        if starts_worker {
            // What is around it is how a worker comes into being, and the script as far as the loop that it was forked in.
            break;
        }
    }
    (!kept.is_empty()).then_some(kept)
}

/// Whether a loader's worker is in the midst of a batch.
pub(super) fn makes_a_batch(frames: &[PythonFrame]) -> bool {
    frames.iter().any(|frame| is_of_torch(frame, "fetch.py"))
}

fn is_of_torch(frame: &PythonFrame, name: &str) -> bool {
    frame.file.strip_suffix(name).is_some_and(|folder| folder.ends_with("/torch/utils/data/_utils/"))
}

/// Neither a library's, nor the interpreter's, nor this program's.
pub(super) fn is_users(frame: &PythonFrame) -> bool {
    const OTHERS: [&str; 4] = ["/site-packages/", "/dist-packages/", "/lib/python3.", "/stallscope/_"];
    !frame.file.starts_with('<') && !OTHERS.iter().any(|folder| frame.file.contains(folder))
}

/// The innermost frames, and the innermost one of the user's code where they are all a library's.
pub(super) fn in_words(frames: &[PythonFrame]) -> String {
    let (inner, outer) = frames.split_at(frames.len().min(SHOWN));
    let mut words = inner.iter().map(PythonFrame::to_string).collect::<Vec<_>>().join(", ");
    let users = outer.iter().find(|frame| is_users(frame)).filter(|_| !inner.iter().any(is_users));
    if let Some(users) = users {
        words.push_str(&format!(", called from {users}"));
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TORCH: &str = "/env/lib/python3.11/site-packages/torch/utils/data/_utils";

    fn frame(file: &str, line: u32, function: &str) -> PythonFrame {
        PythonFrame { file: file.into(), line, function: function.into() }
    }

    #[test]
    fn of_a_worker_is_shown_what_it_does_and_not_how_it_began() {
        let frames = kept([
            frame("/home/a/load.py", 31, "Pictures.__getitem__"),
            frame(&format!("{TORCH}/fetch.py"), 54, "_MapDatasetFetcher.fetch"),
            frame(&format!("{TORCH}/worker.py"), 351, "_worker_loop"),
            frame("/usr/lib/python3.11/multiprocessing/process.py", 108, "BaseProcess.run"),
            frame("/home/a/train.py", 9, "<module>"),
        ]);
        let frames = frames.expect("frames");
        assert!(frames.len() == 3 && makes_a_batch(&frames));
        let words = "load.py:31 Pictures.__getitem__, fetch.py:54 _MapDatasetFetcher.fetch, worker.py:351 _worker_loop";
        assert_eq!(in_words(&frames), words);
        assert!(!makes_a_batch(&frames[2..]));
    }

    #[test]
    fn below_libraries_the_users_own_line_is_named() {
        let lib = "/usr/lib/python3.11";
        let frames = [
            frame(&format!("{lib}/threading.py"), 327, "Condition.wait"),
            frame(&format!("{lib}/threading.py"), 629, "Event.wait"),
            frame("/env/lib/python3.11/site-packages/fsspec/asyn.py", 95, "sync"),
            frame("/env/lib/python3.11/site-packages/fsspec/asyn.py", 118, "wrapper"),
            frame("<frozen runpy>", 88, "_run_code"),
            frame("/home/a/load.py", 7, "Remote.__getitem__"),
            frame("/home/a/train.py", 9, "<module>"),
        ];
        let words = in_words(&frames);
        let end = "asyn.py:95 sync, called from load.py:7 Remote.__getitem__";
        assert!(words.starts_with("threading.py:327 Condition.wait, ") && words.ends_with(end), "{words}");
        assert!(!in_words(&frames[..5]).contains("called from"));
    }

    proptest! {
        #[test]
        fn whatever_a_process_has_in_its_memory_is_kept_short_and_moves_no_cursor(
            file in "\\PC{0,20}|[\\x00-\\x1f]{1,400}", line in any::<u32>(), function in any::<String>(), times in 0_usize..200
        ) {
            let frames = kept(vec![frame(&file, line, &function); times]).unwrap_or_default();
            prop_assert!(frames.len() <= FRAMES && frames.is_empty() == (times == 0));
            for frame in &frames {
                prop_assert!(frame.file.chars().count() <= FILE && frame.function.chars().count() <= FUNCTION);
                prop_assert!(!frame.to_string().contains(char::is_control));
            }
            in_words(&frames);
        }
    }
}
