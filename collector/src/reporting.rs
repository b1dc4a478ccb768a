//! What a job's collector reports to the node's service: the lines of its audit, what was gained, and what is frozen. None of
//! it is waited for.

use crate::engine::Engine;
use crate::foreign_text::short;
use crate::gained::Gained;
use crate::host;
use crate::registration::NodeLink;
use stallscope_model::{Act, AuditEvent};
use stallscope_wire::{Frozen, JobReport};

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
    seconds: u32,
}

impl Reporting {
    pub(crate) fn new(link: NodeLink) -> Reporting {
        Reporting { link, counted: 0, next: 0, gained: Gained::default(), froze: String::new(), seconds: 0 }
    }

    /// Once a second. `frozen_until_ns`: nothing is tried before that.
    pub(crate) fn second(&mut self, engine: &Engine, frozen_until_ns: Option<u64>) {
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
        let mut is_due = self.seconds.is_multiple_of(PERIOD);
        while self.next < engine.audit.next() {
            for event in engine.audit.page(self.next) {
                // Each request has one answer that matters: kept, undone or refused.
                if event.act != Act::Applied {
                    let mut line = event.clone();
                    for sentence in [&mut line.saw, &mut line.why, &mut line.by, &mut line.knob] {
                        *sentence = short(sentence, SENTENCE);
                    }
                    if !self.link.report(self.report(Some(line), frozen_until_ns)) {
                        return;
                    }
                    is_due = false;
                }
                self.next = event.line + 1;
            }
        }
        if is_due {
            // One that is not taken is followed by a newer one.
            let _ = self.link.report(self.report(None, frozen_until_ns));
        }
    }

    fn report(&self, line: Option<AuditEvent>, frozen_until_ns: Option<u64>) -> JobReport {
        let left_ns = frozen_until_ns.map(|until_ns| until_ns.saturating_sub(host::now_ns()));
        let frozen = left_ns.filter(|left_ns| *left_ns > 0).map(|left_ns| Frozen {
            why: self.froze.clone(),
            left_s: left_ns / 1_000_000_000,
        });
        JobReport { line, saved_s: self.gained.saved_s(), faster: self.gained.faster(), frozen }
    }
}
