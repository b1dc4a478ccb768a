//! What a job's collector reports of its job, as far as it is believed: it counts for that job alone, and is as long as it may be.

use crate::foreign_text::short;
use stallscope_model::AuditEvent;
use stallscope_units::duration;
use stallscope_wire::{JobReport, NodeEvent};
use std::time::{Duration, Instant};

/// Characters of a sentence, and of a name.
const SENTENCE: usize = 300;
const NAME: usize = 60;
/// Nothing makes a job faster by more than this share.
const FASTEST: f64 = 99.0;
/// No controller freezes for longer.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// As last reported.
#[derive(Debug, Default)]
pub(super) struct Reported {
    pub(super) saved_s: f64,
    pub(super) faster: f64,
    frozen: Option<(String, Instant)>,
}

impl Reported {
    /// `age`: of the job, which saved no more than it could have in that time.
    pub(super) fn take(&mut self, report: &JobReport, age: Duration, now: Instant) {
        let within = |value: f64, most: f64| if value.is_finite() { value.clamp(0.0, most) } else { 0.0 };
        self.saved_s = within(report.saved_s, FASTEST * age.as_secs_f64());
        self.faster = within(report.faster, FASTEST);
        self.frozen = report.frozen.as_ref().map(|frozen| {
            (short(&frozen.why, SENTENCE), now + Duration::from_secs(frozen.left_s).min(LONGEST))
        });
    }

    /// "for 43 min: three changes had to be taken back"
    pub(super) fn frozen(&self, now: Instant) -> Option<String> {
        let (why, until) = self.frozen.as_ref()?;
        let left = until.saturating_duration_since(now);
        let why = if why.is_empty() { String::new() } else { format!(": {why}") };
        (!left.is_zero()).then(|| format!("for {}{why}", duration(left.as_secs() * 1_000_000_000)))
    }

    /// "proven changes saved 1.4 h"
    pub(super) fn in_words(&self) -> Option<String> {
        let saved_ns = (self.saved_s * 1e9) as u64;
        (self.saved_s >= 1.0).then(|| format!("proven changes saved {}", duration(saved_ns)))
    }
}

/// A line of the job's audit, for the node's.
pub(super) fn line(event: &AuditEvent, about: NodeEvent) -> NodeEvent {
    NodeEvent {
        act: event.act.name().into(),
        by: short(&event.by, NAME),
        decision: event.decision,
        rank: event.rank,
        knob: short(&event.knob, NAME),
        from: event.from,
        to: event.to,
        predicted: event.predicted,
        measured: event.measured,
        saw: short(&event.saw, SENTENCE),
        why: short(&event.why, SENTENCE),
        ..about
    }
}

/// What became of the recordings of the job's user.
pub(super) fn of_recordings(sentence: &str, about: NodeEvent) -> NodeEvent {
    NodeEvent { act: "recordings".into(), why: short(sentence, SENTENCE), ..about }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stallscope_model::Act;
    use stallscope_wire::Frozen;

    #[test]
    fn a_job_is_believed_as_far_as_it_can_be_true() {
        let (mut reported, now) = (Reported::default(), Instant::now());
        let mut take = |saved_s, faster, left_s| {
            let frozen = Some(Frozen { why: "a\u{1b}[2Jb".repeat(999), left_s });
            let report = JobReport { saved_s, faster, frozen, ..JobReport::default() };
            reported.take(&report, Duration::from_secs(10), now);
            (reported.saved_s, reported.faster, reported.frozen(now))
        };
        let (saved_s, faster, frozen) = take(5.0, 0.5, 60);
        assert_eq!((saved_s, faster), (5.0, 0.5));
        let frozen = frozen.expect("it is");
        assert!(
            frozen.starts_with("for 1") && frozen.contains(" min: a?[2Jb") && frozen.len() < 400,
            "{frozen}"
        );
        assert_eq!(take(1e300, f64::INFINITY, u64::MAX).0, 990.0);
        let (saved_s, faster, frozen) = take(f64::NAN, -3.0, 0);
        assert_eq!((saved_s, faster, frozen), (0.0, 0.0, None));
    }

    #[test]
    fn no_line_of_a_job_is_longer_than_the_audit_takes() {
        let text = "\u{1}\"\u{10ffff}".repeat(9999);
        let event = AuditEvent {
            act: Act::Keep,
            by: text.clone(),
            knob: text.clone(),
            saw: text.clone(),
            why: text,
            ..AuditEvent::default()
        };
        let line = line(&event, NodeEvent { job: "train".into(), ..NodeEvent::default() });
        assert!(stallscope_wire::encode(&line).len() < 4096);
        assert_eq!((line.job.as_str(), line.act.as_str()), ("train", "keep"));
    }
}
