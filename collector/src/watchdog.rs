//! Names, while it lasts, what a trainer that gets no batch any more waits for.
//!
//! A look costs a few reads of /proc for each process of the job, and happens only where a trainer has been silent for far
//! longer than ever before. Its main thread has to have slept all the while: a long computation is no hang. Once it is named, the
//! Python stack of the process that is held up is read, once.

mod blocked;
mod reading;
mod stack;

pub use self::reading::print_python_stack;

use self::blocked::{Doing, doing};
use self::reading::{Candidate, Readers, Reading, Stack};
use crate::procfs;
use stallscope_ledger::Silence;
use stallscope_model::{Diagnosis, PythonFrame, Remedy, RemedyKind};
use stallscope_units::duration_in_words;
use std::collections::BTreeMap;
use std::sync::mpsc;
use std::time::Duration;

/// What no job should wait for without anybody being asked.
const LEAST_NS: u64 = 60_000_000_000;
/// The main thread's sleep is looked at from half of that on.
pub(crate) const SUSPECT_NS: u64 = LEAST_NS / 2;
/// A main thread that ran for more than one part of so many was at work.
const ASLEEP: u64 = 10;
/// How long a look at its processes may take.
const LOOK: Duration = Duration::from_millis(500);
/// Processes whose state is named.
const MAX_NAMED: usize = 4;
/// Workers whose stack is read, one after the other, in search of the one that is in the midst of a batch.
const MOST_READ: usize = 16;
/// What shows the stack, to who may.
const PY_SPY: &str = "`py-spy dump --pid";
/// What a loader can do about it.
const TIMEOUT: &str = "DataLoader(timeout=SECONDS) has a job end with an error that names the worker, instead of waiting without end";

#[derive(Debug)]
pub(crate) struct Watchdog {
    /// Whose processes may be looked into.
    uid: u32,
    /// By the trainer's pid.
    suspects: BTreeMap<u32, Suspect>,
    /// The longest that is over, and how long it lasted.
    longest: Option<(u64, Diagnosis)>,
    readers: Readers,
    looks: Readers,
}

#[derive(Debug)]
struct Suspect {
    silence: Silence,
    looked_ns: u64,
    cpu_ns: u64,
    hang: Option<Hang>,
}

/// A silence that was named.
#[derive(Debug)]
struct Hang {
    /// What its processes were seen doing.
    evidence: String,
    /// The folder or the process to look at.
    advice: String,
    lasted_ns: u64,
    /// Whose stack may say more, the first of interest first; until they are being read.
    candidates: Vec<Candidate>,
    /// Until it is over.
    reading: Option<Reading>,
    stack: Vec<PythonFrame>,
}

/// A process of the job.
#[derive(Debug)]
struct Seen {
    name: String,
    pid: u32,
    doing: Doing,
}

/// What a look at the processes brings.
#[derive(Debug)]
struct Looked {
    evidence: String,
    advice: String,
    candidates: Vec<Candidate>,
}

impl Default for Watchdog {
    fn default() -> Watchdog {
        let uid = rustix::process::getuid().as_raw();
        Watchdog {
            uid,
            suspects: BTreeMap::new(),
            longest: None,
            readers: Readers::default(),
            looks: Readers::default(),
        }
    }
}

impl Watchdog {
    /// The job belongs to this user; what its other users' processes do is not looked into.
    pub(crate) fn owner(&mut self, uid: u32) {
        self.uid = uid;
    }

    /// Once a second. Returns the sentences that the person at the terminal should read: a hang once, and its end.
    pub(crate) fn look(&mut self, silences: Vec<Silence>, now_ns: u64) -> Vec<String> {
        self.look_with(silences, now_ns, procfs::main_cpu_ns)
    }

    fn look_with(
        &mut self,
        silences: Vec<Silence>,
        now_ns: u64,
        main_cpu_ns: impl Fn(u32) -> Option<u64>,
    ) -> Vec<String> {
        let mut sentences = Vec::new();
        let still = |suspect: &Suspect| {
            silences
                .iter()
                .any(|one| one.pid == suspect.silence.pid && one.since_ns == suspect.silence.since_ns)
        };
        let over: Vec<u32> =
            self.suspects.iter().filter(|(_, suspect)| !still(suspect)).map(|(pid, _)| *pid).collect();
        for pid in over {
            let ended = self.suspects.remove(&pid);
            sentences.extend(ended.and_then(|suspect| self.ended(&suspect)));
        }
        for silence in silences {
            let cpu_ns = main_cpu_ns(silence.pid);
            sentences.extend(cpu_ns.and_then(|cpu_ns| self.silent(silence, cpu_ns, now_ns)));
        }
        sentences
    }

    fn silent(&mut self, silence: Silence, cpu_ns: u64, now_ns: u64) -> Option<String> {
        let suspect = self.suspects.entry(silence.pid).or_insert_with(|| Suspect {
            silence: silence.clone(),
            looked_ns: now_ns,
            cpu_ns,
            hang: None,
        });
        suspect.silence = silence;
        let silent_ns = now_ns.saturating_sub(suspect.silence.since_ns);
        if let Some(hang) = &mut suspect.hang {
            hang.lasted_ns = silent_ns;
            let reading = hang.reading.as_ref();
            let found = reading.and_then(|reading| reading.result(now_ns));
            let sentence = found.and_then(|found| hang.takes(found, !suspect.silence.workers.is_empty()));
            hang.read(&self.readers, self.uid, now_ns);
            return sentence.map(|sentence| format!("rank {}: {sentence}", suspect.silence.rank));
        }
        let watched_ns = now_ns.saturating_sub(suspect.looked_ns);
        if cpu_ns.saturating_sub(suspect.cpu_ns).saturating_mul(ASLEEP) > watched_ns {
            (suspect.looked_ns, suspect.cpu_ns) = (now_ns, cpu_ns);
            return None;
        }
        if silent_ns < LEAST_NS || watched_ns < LEAST_NS / 4 {
            return None;
        }
        let Looked { evidence, advice, candidates } = looked_at(&suspect.silence, self.uid, &self.looks);
        let sentence = format!("{}: {evidence}", finding(&suspect.silence, silent_ns, false));
        let (reading, stack) = (None, Vec::new());
        let mut hang = Hang { evidence, advice, lasted_ns: silent_ns, candidates, reading, stack };
        hang.read(&self.readers, self.uid, now_ns);
        suspect.hang = Some(hang);
        Some(sentence)
    }

    fn ended(&mut self, suspect: &Suspect) -> Option<String> {
        let hang = suspect.hang.as_ref()?;
        let found = hang.diagnosis(&suspect.silence, true);
        let sentence = found.finding.clone();
        if self.longest.as_ref().is_none_or(|(longest_ns, _)| *longest_ns < hang.lasted_ns) {
            self.longest = Some((hang.lasted_ns, found));
        }
        Some(sentence)
    }

    pub(crate) fn is_hanging(&self) -> bool {
        self.suspects.values().any(|suspect| suspect.hang.is_some())
    }

    /// The longest of those that last, else of those that are over.
    pub(crate) fn finding(&self) -> Option<Diagnosis> {
        let lasting =
            self.suspects.values().filter_map(|suspect| Some((suspect.hang.as_ref()?, &suspect.silence)));
        match lasting.max_by_key(|(hang, _)| hang.lasted_ns) {
            Some((hang, silence)) => Some(hang.diagnosis(silence, false)),
            None => self.longest.as_ref().map(|(_, found)| found.clone()),
        }
    }
}

impl Hang {
    /// Has the stack read, once, as soon as there is who reads it.
    fn read(&mut self, readers: &Readers, uid: u32, now_ns: u64) {
        if !self.candidates.is_empty() && readers.has_place() {
            self.reading = readers.start(std::mem::take(&mut self.candidates), uid, now_ns);
        }
    }

    /// A sentence on the stack that was read, if there was one.
    fn takes(&mut self, found: Option<Stack>, has_workers: bool) -> Option<String> {
        self.reading = None;
        let Stack { name, frames } = found?;
        let sentence = format!("{name} is in {}", stack::in_words(&frames));
        self.evidence = format!("{}; {sentence}", self.evidence);
        let asks_for_it = self.advice.starts_with(PY_SPY);
        if let Some(frame) = frames.iter().find(|frame| stack::is_users(frame)).filter(|_| asks_for_it) {
            let timeout = if has_workers { format!("; {TIMEOUT}") } else { String::new() };
            self.advice = format!("Look at what {frame} waits for{timeout}");
        }
        self.stack = frames;
        Some(sentence)
    }

    fn diagnosis(&self, silence: &Silence, over: bool) -> Diagnosis {
        let remedy =
            Remedy { kind: RemedyKind::Other, sentence: self.advice.clone(), gain: None, comes_first: false };
        Diagnosis {
            name: "hang".to_owned(),
            finding: finding(silence, self.lasted_ns, over),
            evidence: self.evidence.clone(),
            advice: self.advice.clone(),
            // While it lasts, nothing else is to be done first.
            remedies: if over { Vec::new() } else { vec![remedy] },
            stack: self.stack.clone(),
            ..Diagnosis::default()
        }
    }
}

fn finding(silence: &Silence, lasted_ns: u64, over: bool) -> String {
    let longest = duration_in_words(silence.longest_ns);
    let (rank, lasted) = (silence.rank, duration_in_words(lasted_ns));
    match over {
        false => format!(
            "rank {rank} has got no batch for {lasted}, and never waited longer than {longest} before"
        ),
        true => format!("rank {rank} got no batch for {lasted}, then its training went on"),
    }
}

/// [`named`], by a thread of its own: where a process that hangs holds the lock of its memory, who reads that hangs too. `looks`: those
/// that have not come back, of which a job could have any number otherwise, in the control group of the node's service.
fn looked_at(silence: &Silence, uid: u32, looks: &Readers) -> Looked {
    let (send, receive) = mpsc::channel();
    let silence = silence.clone();
    let look = looks.has_place().then(|| looks.clone()).and_then(|counted| {
        let look = move || {
            let looked = named(&silence, uid);
            drop(counted);
            // Nobody listens any more where it took too long.
            let _ = send.send(looked);
        };
        std::thread::Builder::new().name("watchdog".into()).spawn(look).ok()
    });
    let found = look.and_then(|_| receive.recv_timeout(LOOK).ok());
    found.unwrap_or_else(|| {
        let evidence = "/proc does not tell what its processes do: something in the kernel hangs".to_owned();
        let advice = "Look into the kernel's log (`dmesg`) for hung tasks".to_owned();
        Looked { evidence, advice, candidates: Vec::new() }
    })
}

/// What the trainer and its workers do, those first that something outside of the job holds up; and what to do.
fn named(silence: &Silence, uid: u32) -> Looked {
    let seen = |name: String, pid: u32| Some(Seen { name, pid, doing: doing(pid, uid)? });
    let called = |number: Option<u32>, pid: u32| match number {
        Some(number) => format!("worker {number} (pid {pid})"),
        None => format!("process {pid}"),
    };
    let workers = silence.workers.iter();
    let mut workers: Vec<Seen> =
        workers.filter_map(|(number, pid)| seen(called(*number, *pid), *pid)).collect();
    workers.sort_by_key(|worker| !worker.doing.is_held_up());
    let trainer = seen(format!("the trainer (pid {})", silence.pid), silence.pid);
    let candidates = candidates(&workers, trainer.as_ref());
    let held_up = workers.iter().filter(|worker| worker.doing.is_held_up()).count();
    let trainer_first = trainer.as_ref().is_some_and(|trainer| trainer.doing.is_held_up());
    let shown = if held_up > 0 { held_up } else { workers.len() };
    let more = shown.saturating_sub(MAX_NAMED);
    let workers = workers.into_iter().take(shown.min(MAX_NAMED));
    let all: Vec<Seen> = match trainer_first {
        true => trainer.into_iter().chain(workers).collect(),
        false => workers.chain(trainer).collect(),
    };
    let mut words: Vec<String> = all.iter().map(|one| format!("{} {}", one.name, one.doing.words)).collect();
    if more > 0 {
        words.push(format!("and {more} more workers"));
    }
    if words.is_empty() {
        words.push("what its processes do cannot be seen from here".to_owned());
    }
    let pid = silence.workers.first().map_or(silence.pid, |(_, pid)| *pid);
    let advice = match all.iter().find_map(|one| one.doing.at.as_deref()) {
        Some(at) => format!("Look whether {at} still answers; {TIMEOUT}"),
        None => format!("{PY_SPY} {pid}` shows the line of Python that a process is in"),
    };
    Looked { evidence: words.join("; "), advice, candidates }
}

/// Whose stack is of interest: of those that something outside of the job holds up the first; else of the worker that is in the
/// midst of a batch, and where none is, of the trainer.
fn candidates(workers: &[Seen], trainer: Option<&Seen>) -> Vec<Candidate> {
    let candidate = |one: &Seen, in_any_case: bool| Candidate {
        name: one.name.clone(),
        pid: one.pid,
        in_any_case: in_any_case || one.doing.is_held_up(),
    };
    let is_held_up = |one: &&Seen| one.doing.is_held_up();
    let workers = workers.iter().map(|worker| candidate(worker, false));
    let first = trainer.filter(is_held_up).map(|trainer| candidate(trainer, true));
    let last = trainer.filter(|one| !is_held_up(one)).map(|trainer| candidate(trainer, true));
    first.into_iter().chain(workers.take(MOST_READ)).chain(last).collect()
}

#[cfg(fuzzing)]
pub(crate) fn read_any(text: &str) {
    blocked::read_any(text);
    reading::read_any(text);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host;

    const SECOND: u64 = 1_000_000_000;

    fn silence(since_ns: u64) -> Silence {
        let pid = std::process::id();
        Silence { rank: 0, pid, since_ns, longest_ns: SECOND, workers: vec![(Some(3), pid)] }
    }

    #[test]
    fn a_hang_is_named_once_and_its_end_too() {
        let mut watchdog = Watchdog::default();
        let begun = host::now_ns() - 200 * SECOND;
        let mut named = Vec::new();
        for second in 30..100 {
            named.extend(watchdog.look(vec![silence(begun)], begun + second * SECOND));
        }
        // It is no Python: nothing is added about a stack.
        assert_eq!(named.len(), 1, "{named:?}");
        let start = "rank 0 has got no batch for 60 seconds, and never waited longer than 1000 ms before: worker 3 (pid ";
        assert!(named[0].starts_with(start), "{named:?}");
        let finding = watchdog.finding().expect("a hang");
        assert!(finding.name == "hang" && finding.finding.contains("99 seconds"), "{finding:?}");
        let ended = watchdog.look(Vec::new(), begun + 101 * SECOND);
        assert_eq!(ended, ["rank 0 got no batch for 99 seconds, then its training went on"]);
        assert_eq!(watchdog.finding().expect("what was").finding, ended[0]);
        assert!(watchdog.look(Vec::new(), begun + 102 * SECOND).is_empty());
    }

    #[test]
    fn where_a_worker_is_in_python_is_a_part_of_the_evidence_and_of_what_to_do() {
        let frame = |file: &str, line, function: &str| PythonFrame {
            file: file.into(),
            line,
            function: function.into(),
        };
        let frames = vec![
            frame("/usr/lib/python3.11/ssl.py", 1166, "SSLSocket.read"),
            frame("/home/a/load.py", 31, "Pictures.__getitem__"),
        ];
        let hang = || Hang {
            evidence: "worker 3 (pid 9) waits in poll".into(),
            advice: format!("{PY_SPY} 9` shows the line of Python that a process is in"),
            lasted_ns: 60 * SECOND,
            candidates: Vec::new(),
            reading: None,
            stack: Vec::new(),
        };
        let is_in = "worker 3 (pid 9) is in ssl.py:1166 SSLSocket.read, load.py:31 Pictures.__getitem__";
        let mut read = hang();
        let sentence =
            read.takes(Some(Stack { name: "worker 3 (pid 9)".into(), frames: frames.clone() }), true);
        assert_eq!(sentence.as_deref(), Some(is_in));
        let found = read.diagnosis(&silence(0), false);
        assert_eq!(found.evidence, format!("worker 3 (pid 9) waits in poll; {is_in}"));
        assert!(
            found.advice.starts_with("Look at what load.py:31 Pictures.__getitem__ waits for; DataLoader("),
            "{found:?}"
        );
        assert_eq!(found.stack, frames);
        // Nothing could be read.
        let (mut unread, before) = (hang(), hang().diagnosis(&silence(0), false));
        assert_eq!(unread.takes(None, true), None);
        assert_eq!(unread.diagnosis(&silence(0), false), before);
    }

    #[test]
    fn one_that_computes_does_not_hang() {
        let mut watchdog = Watchdog::default();
        let begun = host::now_ns() - 200 * SECOND;
        for second in 30..100 {
            let busy = |_| Some(second * SECOND);
            assert!(watchdog.look_with(vec![silence(begun)], begun + second * SECOND, busy).is_empty());
        }
        assert!(watchdog.finding().is_none());
    }

    #[test]
    fn the_next_silence_is_another_one() {
        let mut watchdog = Watchdog::default();
        let begun = host::now_ns() - 200 * SECOND;
        watchdog.look(vec![silence(begun)], begun + 40 * SECOND);
        let next = begun + 45 * SECOND;
        // Half a minute into the second.
        assert!(watchdog.look(vec![silence(next)], next + 59 * SECOND).is_empty());
        assert!(watchdog.look(vec![silence(next)], next + 61 * SECOND).is_empty());
        assert_eq!(watchdog.look(vec![silence(next)], next + 75 * SECOND).len(), 1);
    }

    #[test]
    fn looks_that_do_not_come_back_are_few_and_no_further_one_is_waited_for() {
        let (looks, uid) = (Readers::default(), rustix::process::getuid().as_raw());
        let tells = || !looked_at(&silence(0), uid, &looks).evidence.starts_with("/proc does not tell");
        let mut held = Vec::new();
        while looks.has_place() {
            assert!(tells());
            held.push(looks.clone());
        }
        assert!(!tells() && held.len() == 4);
        held.pop();
        assert!(tells());
    }

    #[test]
    fn what_belongs_to_another_user_is_not_looked_into() {
        let looked = named(&silence(0), rustix::process::getuid().as_raw() + 1);
        assert_eq!(looked.evidence, "what its processes do cannot be seen from here");
        assert!(looked.candidates.is_empty());
    }
}
