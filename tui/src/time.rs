//! The part of the run that is shown: its newest end, or a moment in the past that a replay moves on. Pure.

const SECOND_NS: u64 = 1_000_000_000;
const MINUTE_NS: u64 = 60 * SECOND_NS;

/// Spans that can be shown, besides the whole run.
const SPANS_NS: [u64; 9] = [
    10 * SECOND_NS,
    30 * SECOND_NS,
    2 * MINUTE_NS,
    10 * MINUTE_NS,
    30 * MINUTE_NS,
    120 * MINUTE_NS,
    480 * MINUTE_NS,
    1440 * MINUTE_NS,
    5760 * MINUTE_NS,
];
const FASTEST: f64 = 4096.0;
const SLOWEST: f64 = 0.125;

/// The first and the newest moment of a run, and whether it goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extent {
    pub begin_ns: u64,
    pub end_ns: u64,
    pub running: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Time {
    /// End of the time shown; `None` follows the newest.
    pub at_ns: Option<u64>,
    /// Index of [`SPANS_NS`]; `None` is the whole run.
    span: Option<usize>,
    /// Whether a replay moves `at_ns` on.
    pub playing: bool,
    /// Speed of a replay over that of the run.
    pub speed: f64,
}

impl Default for Time {
    fn default() -> Time {
        Time { at_ns: None, span: None, playing: false, speed: 1.0 }
    }
}

impl Time {
    /// Length of the time shown; `None` is the whole run.
    pub(crate) fn span_ns(&self) -> Option<u64> {
        self.span.map(|place| SPANS_NS[place])
    }

    pub(crate) fn pause(&mut self, extent: Extent) {
        match (self.at_ns, self.playing) {
            (_, true) => self.playing = false,
            (None, _) if extent.running => self.at_ns = Some(extent.end_ns),
            (Some(_), _) if extent.running => *self = Time { at_ns: None, ..*self },
            // Pausing a replay at its end starts it again.
            (None, _) => *self = Time { at_ns: Some(extent.begin_ns), playing: true, ..*self },
            (Some(at_ns), _) if at_ns >= extent.end_ns => {
                *self = Time { at_ns: Some(extent.begin_ns), playing: true, ..*self };
            }
            (Some(_), _) => self.playing = true,
        }
    }

    /// Moves the time shown by a quarter of its length.
    pub(crate) fn seek(&mut self, forth: bool, extent: Extent) {
        let all_ns = extent.end_ns.saturating_sub(extent.begin_ns);
        let by_ns = (self.span_ns().unwrap_or(all_ns).min(all_ns) / 4).max(SECOND_NS);
        let at_ns = self.at_ns.unwrap_or(extent.end_ns);
        if forth {
            self.go_to(at_ns.saturating_add(by_ns), extent);
        } else {
            self.go_to(at_ns.saturating_sub(by_ns).max(extent.begin_ns), extent);
        }
    }

    /// Ends the time shown at `at_ns`, or follows the newest when `at_ns` is later than that.
    pub(crate) fn go_to(&mut self, at_ns: u64, extent: Extent) {
        self.at_ns = (at_ns < extent.end_ns).then_some(at_ns.max(extent.begin_ns));
        self.playing &= self.at_ns.is_some();
    }

    /// Shows at most two minutes around a moment, in which a single step is visible.
    pub(crate) fn look_at(&mut self, at_ns: u64, extent: Extent) {
        let near = SPANS_NS.iter().position(|span_ns| *span_ns == 2 * MINUTE_NS);
        self.span = match self.span {
            Some(span) => Some(span.min(near.unwrap_or(span))),
            None if extent.end_ns.saturating_sub(extent.begin_ns) <= 2 * MINUTE_NS => None,
            None => near,
        };
        let half_ns = self.span_ns().unwrap_or(0) / 2;
        self.playing = false;
        self.go_to(at_ns.saturating_add(half_ns), extent);
    }

    pub(crate) fn zoom(&mut self, closer: bool, extent: Extent) {
        let all_ns = extent.end_ns.saturating_sub(extent.begin_ns);
        let shown_ns = self.span_ns().unwrap_or(all_ns).min(all_ns);
        self.span = if closer {
            SPANS_NS.iter().rposition(|span_ns| *span_ns < shown_ns).or(Some(0))
        } else {
            SPANS_NS.iter().position(|span_ns| *span_ns > shown_ns).filter(|place| SPANS_NS[*place] < all_ns)
        };
    }

    /// Shows the last minutes of a run that has gone on for longer.
    pub(crate) fn recent(&mut self) {
        self.span = SPANS_NS.iter().position(|span_ns| *span_ns == 10 * MINUTE_NS);
    }

    pub(crate) fn faster(&mut self) {
        self.speed = (self.speed * 2.0).min(FASTEST);
    }

    pub(crate) fn slower(&mut self) {
        self.speed = (self.speed / 2.0).max(SLOWEST);
    }

    /// Moves a replay on by the time passed.
    pub(crate) fn pass(&mut self, passed_ns: u64, extent: Extent) {
        if let (true, Some(at_ns)) = (self.playing, self.at_ns) {
            self.go_to(at_ns.saturating_add((passed_ns as f64 * self.speed) as u64), extent);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPLAY: Extent = Extent { begin_ns: 100 * SECOND_NS, end_ns: 700 * SECOND_NS, running: false };
    const LIVE: Extent = Extent { running: true, ..REPLAY };

    #[test]
    fn a_replay_plays_from_its_beginning_to_its_end() {
        let mut time = Time::default();
        time.pause(REPLAY);
        assert_eq!((time.at_ns, time.playing), (Some(REPLAY.begin_ns), true));
        time.faster();
        time.pass(SECOND_NS, REPLAY);
        assert_eq!(time.at_ns, Some(102 * SECOND_NS));
        time.pause(REPLAY);
        time.pass(SECOND_NS, REPLAY);
        assert_eq!((time.at_ns, time.playing), (Some(102 * SECOND_NS), false));
        time.pause(REPLAY);
        time.pass(1000 * SECOND_NS, REPLAY);
        assert_eq!((time.at_ns, time.playing), (None, false), "it stops at its end");
    }

    #[test]
    fn a_paused_live_view_goes_on_from_the_newest() {
        let mut time = Time::default();
        time.pause(LIVE);
        assert_eq!(time.at_ns, Some(LIVE.end_ns));
        let later = Extent { end_ns: 900 * SECOND_NS, ..LIVE };
        time.pause(later);
        assert_eq!(time.at_ns, None);
    }

    #[test]
    fn seeking_stays_within_the_run() {
        let mut time = Time::default();
        for _ in 0..20 {
            time.seek(false, REPLAY);
        }
        assert_eq!(time.at_ns, Some(REPLAY.begin_ns));
        for _ in 0..20 {
            time.seek(true, REPLAY);
        }
        assert_eq!(time.at_ns, None);
    }

    #[test]
    fn zooming_ends_at_all_and_at_ten_seconds() {
        let mut time = Time::default();
        time.zoom(true, REPLAY);
        assert_eq!(time.span_ns(), Some(2 * MINUTE_NS));
        for _ in 0..9 {
            time.zoom(true, REPLAY);
        }
        assert_eq!(time.span_ns(), Some(10 * SECOND_NS));
        for _ in 0..9 {
            time.zoom(false, REPLAY);
        }
        assert_eq!(time.span_ns(), None);
    }

    #[test]
    fn a_moment_is_looked_at_from_near() {
        let mut time = Time::default();
        time.look_at(300 * SECOND_NS, REPLAY);
        assert_eq!(time.span_ns(), Some(2 * MINUTE_NS));
        assert_eq!(time.at_ns, Some(360 * SECOND_NS));
    }
}
