//! The audit of a session: numbered, recorded, and kept at hand for those who ask.

use stallscope_model::{Act, AuditEvent};
use stallscope_store::Recorder;
use std::collections::{BTreeMap, VecDeque};

/// Lines at hand; older ones are in the recording.
const KEPT: usize = 4096;
/// Lines in an answer: it has to fit into one line of the protocol.
const A_PAGE: usize = 40;
/// Longest sentence of a line, in characters.
const SENTENCE: usize = 600;

#[derive(Debug, Default)]
pub(crate) struct Audit {
    lines: VecDeque<AuditEvent>,
    next: u64,
    acts: BTreeMap<Act, u64>,
}

impl Audit {
    pub(crate) fn add(&mut self, mut event: AuditEvent, recorder: Option<&mut Recorder>) {
        for sentence in [&mut event.saw, &mut event.why, &mut event.by, &mut event.knob] {
            if let Some((end, _)) = sentence.char_indices().nth(SENTENCE) {
                sentence.truncate(end);
            }
        }
        event.line = match recorder {
            Some(recorder) => recorder.audit(event.clone()),
            None => self.next,
        };
        self.next = event.line + 1;
        *self.acts.entry(event.act).or_default() += 1;
        if self.lines.len() == KEPT {
            self.lines.pop_front();
        }
        self.lines.push_back(event);
    }

    /// Number of the next line.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Lines so far, by what they say.
    pub(crate) fn acts(&self) -> BTreeMap<Act, u64> {
        self.acts.clone()
    }

    /// The first lines from `from` on, a page of them.
    pub(crate) fn page(&self, from: u64) -> Vec<AuditEvent> {
        self.lines.iter().filter(|event| event.line >= from).take(A_PAGE).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_numbered_counted_and_given_in_pages() {
        let mut audit = Audit::default();
        for at in 0..5_000 {
            let act = if at % 2 == 0 { Act::Hold } else { Act::Keep };
            audit.add(
                AuditEvent {
                    act,
                    why: "\u{1}".repeat(2_000),
                    saw: "é".repeat(2_000),
                    ..AuditEvent::default()
                },
                None,
            );
        }
        assert_eq!((audit.next(), audit.acts()[&Act::Keep]), (5_000, 2_500));
        let page = audit.page(4_990);
        assert_eq!((page.len(), page[0].line), (10, 4_990));
        assert_eq!(page[0].why.chars().count(), SENTENCE);
        // The oldest are in the recording alone.
        assert_eq!(audit.page(0)[0].line, 5_000 - KEPT as u64);
        assert!(stallscope_wire::encode(&audit.page(0)).len() < stallscope_wire::LINE_LIMIT_BYTES);
        assert!(audit.page(5_000).is_empty());
    }
}
