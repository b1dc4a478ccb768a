//! What a job's collector reports to the node's service: the lines of its audit, what was gained, what is frozen, and what memory
//! for its caches is worth to it, and what it reads. None of it is waited for.

mod reading;

use crate::engine::Engine;
use crate::foreign_text::short;
use crate::gained::Gained;
use crate::host;
use crate::registration::NodeLink;
use reading::Reads;
use stallscope_control::CacheWants;
use stallscope_model::{Act, AuditEvent};
use stallscope_wire::{Beside, CacheAsk, Frozen, JobReport};

/// Longest sentence of a line, in characters: with all of it escaped a line has to fit into one of the protocol.
const SENTENCE: usize = 300;
/// Seconds between two reports without a line.
const PERIOD: u32 = 5;

#[derive(Debug)]
pub(crate) struct Reporting {
    link: NodeLink,
    /// The next line of the audit: to be counted, and to be reported. A service that is not there is reported to later.
    counted: u64,
    next: u64,
    gained: Gained,
    /// What the controller saw when it froze.
    froze: String,
    /// As last reported: what was granted, and what its caches hold.
    held: Option<(Option<u64>, u64)>,
    reads: Reads,
    seconds: u32,
    /// What became of its user's recordings, until it is reported.
    of_recordings: Option<String>,
}

/// Of the controller of a rule of the node's, if there is one.
#[derive(Debug, Default)]
pub(crate) struct Controlled {
    /// Nothing is tried before that.
    pub(crate) frozen_until_ns: Option<u64>,
    /// What its caches hold, and what more or less is worth; `None`: they are not the node's to raise.
    pub(crate) caches: Option<CacheWants>,
}

impl Reporting {
    pub(crate) fn new(link: NodeLink) -> Reporting {
        Reporting {
            link,
            counted: 0,
            next: 0,
            gained: Gained::default(),
            froze: String::new(),
            held: None,
            reads: Reads::default(),
            seconds: 0,
            of_recordings: None,
        }
    }

    /// What the job's caches may be raised to, as the service last granted it.
    pub(crate) fn granted_bytes(&self) -> Option<u64> {
        self.link.granted_bytes()
    }

    /// What other jobs read from the same storage, as the service last knew.
    pub(crate) fn beside(&self) -> Option<Beside> {
        self.link.beside()
    }

    /// What became of its user's recordings, in a sentence: with the next report.
    pub(crate) fn of_recordings(&mut self, sentence: String) {
        self.of_recordings = Some(short(&sentence, SENTENCE));
    }

    /// Once a second.
    pub(crate) fn second(&mut self, engine: &Engine, controlled: &Controlled) {
        self.gained.trained(engine.trained_ns());
        while self.counted < engine.audit.next() {
            for event in engine.audit.page(self.counted) {
                if event.act == Act::Freeze {
                    self.froze = short(&event.saw, SENTENCE);
                }
                self.gained.line(&event);
                self.counted = event.line + 1;
            }
        }
        self.seconds += 1;
        if self.seconds.is_multiple_of(PERIOD) {
            self.reads.look(host::now_ns(), engine.read_bytes(), engine.device_waits_ns());
        }
        // What is given back is others' as soon as it is known.
        let held = controlled.caches.as_ref().map(|caches| (self.granted_bytes(), caches.held_bytes));
        let is_due = self.seconds.is_multiple_of(PERIOD) || held != self.held;
        while self.next < engine.audit.next() {
            for event in engine.audit.page(self.next) {
                // Each request has one answer that matters: kept, undone or refused.
                if event.act != Act::Applied {
                    let mut line = event.clone();
                    for sentence in [&mut line.saw, &mut line.why, &mut line.by, &mut line.knob] {
                        *sentence = short(sentence, SENTENCE);
                    }
                    if !self.link.report(self.report(Some(line), controlled)) {
                        return;
                    }
                }
                self.next = event.line + 1;
            }
        }
        if is_due {
            // One that is not taken is followed by a newer one.
            if self.link.report(self.report(None, controlled)) {
                self.held = held;
                self.of_recordings = None;
            }
        }
    }

    fn report(&self, line: Option<AuditEvent>, controlled: &Controlled) -> JobReport {
        let left_ns = controlled.frozen_until_ns.map(|until_ns| until_ns.saturating_sub(host::now_ns()));
        let frozen = left_ns
            .filter(|left_ns| *left_ns > 0)
            .map(|left_ns| Frozen { why: self.froze.clone(), left_s: left_ns / 1_000_000_000 });
        let cache = controlled.caches.as_ref().filter(|_| line.is_none()).map(|caches| CacheAsk {
            granted_bytes: self.granted_bytes(),
            held_bytes: caches.held_bytes,
            benefit: caches.benefit.clone(),
        });
        let of_recordings = self.of_recordings.clone().filter(|_| line.is_none());
        JobReport {
            line,
            saved_s: self.gained.saved_s(),
            faster: self.gained.faster(),
            frozen,
            cache,
            of_recordings,
            reading: self.reads.of_late(),
        }
    }
}
