//! A report that may leave the house: without paths, hosts, users and command lines.

mod scrub;

use crate::Run;
use crate::run::name;
use scrub::Scrubber;
use stallscope_model::{EvidenceState, PythonFrame, RunSummary};
use std::collections::BTreeMap;
use std::path::PathBuf;

impl Run {
    /// Puts words like `host-1`, `path-2` and `mount-1` for every path, host, user and command line; the same word
    /// for the same thing throughout. In sentences too: what was written elsewhere in this run is replaced there,
    /// and so is whatever looks like a path. A job called like its script is called `job`.
    pub fn redact(&mut self) {
        let mut words = Words::default();
        for host in &mut self.hosts {
            words.hide("host", &mut host.host);
        }
        for source in &mut self.sources {
            words.hide("host", &mut source.host);
            let called = words.word("recording", &name(&source.path));
            words.hide_path(&source.path.to_string_lossy());
            source.path = PathBuf::from(called);
        }
        for user in self.audit.iter_mut().map(|event| &mut event.by) {
            words.hide_user(user);
        }
        facts_of(&mut self.summary, &mut words);
        // Sentences last, when everything is known that must not be in them.
        let mut scrubber = Scrubber::new(&words.by_secret);
        sentences_of(&mut self.summary, &mut scrubber);
        let texts = self.audit.iter_mut().flat_map(|event| [&mut event.saw, &mut event.why]);
        texts.chain(&mut self.notes).for_each(|text| scrubber.scrub(text));
    }
}

fn facts_of(summary: &mut RunSummary, words: &mut Words) {
    let several: Vec<&str> = summary.host.host.split(", ").collect();
    summary.host.host = several.iter().map(|host| words.word("host", host)).collect::<Vec<_>>().join(", ");
    for rank in &mut summary.ranks {
        words.hide("host", &mut rank.facts.host);
    }
    words.hide_user(&mut summary.job.user);
    for knob in &mut summary.knobs {
        words.hide_user(&mut knob.set_by);
    }
    for word in std::mem::take(&mut summary.job.command) {
        words.hide_argument(&word, &mut summary.job.name);
    }
    for mount in &mut summary.mounts {
        words.hide_mount(&mut mount.mount);
    }
    for file in &mut summary.files {
        words.hide_mount(&mut file.mount);
        words.hide("path", &mut file.path);
    }
    summary.diagnoses.iter_mut().flat_map(|found| &mut found.stack).for_each(|frame| words.hide_frame(frame));
}

fn sentences_of(summary: &mut RunSummary, scrubber: &mut Scrubber<'_>) {
    scrubber.scrub(&mut summary.job.name);
    scrubber.scrub(&mut summary.verdict.sentence);
    for state in [&mut summary.kernel, &mut summary.shim] {
        if let EvidenceState::Partial(why) | EvidenceState::Missing(why) = state {
            scrubber.scrub(why);
        }
    }
    let unavailable = summary.ranks.iter_mut().flat_map(|rank| &mut rank.facts.unavailable);
    let reasons = summary.probes.iter_mut().map(|probe| &mut probe.reason);
    let losses = summary.losses.iter_mut().map(|loss| &mut loss.reason);
    let found = summary.diagnoses.iter_mut().flat_map(|found| {
        let sentences = found.remedies.iter_mut().map(|remedy| &mut remedy.sentence);
        [&mut found.finding, &mut found.evidence, &mut found.advice].into_iter().chain(sentences)
    });
    let knobs = summary.knobs.iter_mut().map(|knob| &mut knob.reason);
    let rates = summary.rates.iter_mut().flat_map(|rates| &mut rates.unknown);
    let expected = summary.expected.iter_mut().map(|expected| &mut expected.why);
    let advice = summary.advice.iter_mut().map(|advice| &mut advice.why).chain(expected);
    let tuning = knobs.chain(rates).chain(advice);
    unavailable.chain(reasons).chain(losses).chain(found).chain(tuning).for_each(|text| scrubber.scrub(text));
}

/// What stands for what.
#[derive(Debug, Default)]
struct Words {
    by_secret: BTreeMap<String, String>,
    counts: BTreeMap<&'static str, usize>,
}

impl Words {
    /// The word for `secret`; nothing for nothing.
    fn word(&mut self, kind: &'static str, secret: &str) -> String {
        if secret.is_empty() {
            return String::new();
        }
        let counts = &mut self.counts;
        let make = || {
            let count = counts.entry(kind).or_default();
            *count += 1;
            format!("{kind}-{count}")
        };
        self.by_secret.entry(secret.to_owned()).or_insert_with(make).clone()
    }

    fn hide(&mut self, kind: &'static str, text: &mut String) {
        *text = self.word(kind, text);
    }

    /// Like the root of all paths, the one of all users is nobody; nor is the controller.
    fn hide_user(&mut self, user: &mut String) {
        if !matches!(user.as_str(), "root" | "controller") {
            self.hide("user", user);
        }
    }

    /// The root says nothing of anybody.
    fn hide_mount(&mut self, mount: &mut String) {
        if mount != "/" {
            self.hide("mount", mount);
        }
    }

    fn hide_path(&mut self, path: &str) {
        self.word("path", path);
    }

    /// Its file, also where a sentence has the name and the line of it alone. The interpreter's own have none.
    fn hide_frame(&mut self, frame: &mut PythonFrame) {
        if !frame.file.starts_with("<frozen ") && frame.file != "<string>" {
            let place = frame.place();
            self.hide("path", &mut frame.file);
            self.by_secret.entry(place).or_insert_with(|| frame.place());
        }
    }

    /// Remembers the parts of an argument that may occur elsewhere: it, its value, its file's name. A job called after
    /// it, as jobs are that were given no name, loses that name.
    fn hide_argument(&mut self, argument: &str, job: &mut String) {
        let value = argument.split_once('=').map_or(argument, |(_, value)| value);
        let file = value.rsplit('/').next().unwrap_or(value);
        let stem = file.rsplit_once('.').map_or(file, |(stem, _)| stem);
        if [stem, file, argument].contains(&job.as_str()) {
            *job = "job".to_owned();
        }
        for secret in [argument, value, file] {
            // Interpreters, options and numbers are words of our own sentences too.
            let identifying =
                secret.len() > 2 && secret.contains(['/', '.', '=', '@', '_']) || secret.len() > 12;
            if identifying && !secret.starts_with("--") && secret.parse::<f64>().is_err() {
                self.word("argument", secret);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_hidden_and_figures_are_not() {
        let (mut words, mut job) = (Words::default(), "my_train".to_owned());
        for argument in ["python", "src/my_train.py", "--lr=0.5", "--data=/x/y.tar", "."] {
            words.hide_argument(argument, &mut job);
        }
        let mut text = "python: my_train.py of src/my_train.py, 0.5 of 9.0 s, y.tar.".to_owned();
        Scrubber::new(&words.by_secret).scrub(&mut text);
        assert_eq!(job, "job");
        assert_eq!(text, "python: argument-2 of argument-1, 0.5 of 9.0 s, argument-4.");
    }
}
