//! The slowest steps as timelines: what trainer and worker did, and which of it held the step up.

use super::axis::{self, Span};
use super::clock;
use super::fill::Fill;
use super::section::{Block, Chart, Legend, Section};
use super::svg::{Anchor, Svg};
use crate::run::Run;
use crate::text::{causes_in_words, stalls};
use stallscope_model::{Cause, Causes, CriticalPiece, Doing, Phase, StepDetail, StepLane};
use stallscope_units as units;

/// Steps shown; one is rarely the whole story, and ten are none.
const SHOWN: usize = 5;
/// Lanes shown of a step; it has a trainer and a worker.
const LANES: usize = 8;
/// Nothing narrower than this share of the width can be seen.
const VISIBLE: f64 = 0.0002;

const LANE: f64 = 16.0;
const PITCH: f64 = 26.0;
const TOP: f64 = 4.0;

pub(super) fn section(run: &Run) -> Section {
    let of = |training: bool| {
        run.details
            .iter()
            .filter(move |step| (step.phase == Phase::Training) == training && !step.lanes.is_empty())
    };
    let steps: Vec<&StepDetail> = match of(true).next() {
        Some(_) => of(true).take(SHOWN).collect(),
        None => of(false).take(SHOWN).collect(),
    };
    let mut blocks = Vec::new();
    for (place, step) in steps.iter().enumerate() {
        blocks.push(Block::Heading(heading(step)));
        blocks.push(Block::Chart(chart(place, step)));
    }
    let lead = match steps.len() {
        0 => {
            let missing = "Not shown: no single step was kept. Recordings have them of runs with kernel evidence \
                           or the loader shim, from format 2 on.";
            blocks.push(Block::Note(missing.to_owned()));
            String::new()
        }
        _ => "What the trainer did, and the worker that made its batch. The line below a lane is the critical path: \
              what the step went by at that moment."
            .to_owned(),
    };
    Section { id: "worst-steps", heading: "Slowest steps", lead, blocks }
}

fn heading(step: &StepDetail) -> String {
    let took = units::duration(step.end_ns.saturating_sub(step.start_ns));
    let most = match stalls(&causes(step)).first() {
        Some((cause, share)) => format!(", {} {}", cause.name(), units::percent(*share)),
        None => String::new(),
    };
    let phase =
        if step.phase == Phase::Training { String::new() } else { format!(", {}", step.phase.name()) };
    format!("{took}: rank {}, step {} at {}{phase}{most}", step.rank, step.index, clock::time(step.start_ns))
}

fn chart(place: usize, step: &StepDetail) -> Chart {
    let drawing = Drawing { span: span(step), lanes: &step.lanes[..step.lanes.len().min(LANES)] };
    let critical_y = drawing.lane_y(drawing.lanes.len());
    let bottom = critical_y + LANE + 4.0;
    let title = format!("Timeline of step {} of rank {}", step.index, step.rank);
    let names: Vec<String> = drawing.lanes.iter().map(name).collect();
    let critical = causes_in_words(&causes(step));
    let desc = format!("Lanes of {}, and the critical path: {critical}.", names.join(", "));
    let mut svg = Svg::new(&format!("step-{place}"), bottom + 22.0, &title, &desc);
    axis::elapsed(&mut svg, drawing.span, step.start_ns, 0.0, bottom);
    let did = drawing.lanes(&mut svg);
    svg.text(0.0, -8.0, critical_y + LANE - 4.0, Anchor::End, "name marked", "critical path");
    let went_by = drawing.critical_path(&mut svg, &step.critical, critical_y);
    if drawing.span.start_ns < step.start_ns {
        let x = drawing.span.at(step.start_ns);
        svg.line((x, 0.0), (x, bottom), "mark");
    }
    let legends = vec![Legend { name: "Lanes", fills: did }, Legend { name: "Path", fills: went_by }];
    Chart { svg: svg.finish(), legends, margin: "names", caption: String::new() }
}

struct Drawing<'a> {
    span: Span,
    lanes: &'a [StepLane],
}

impl Drawing<'_> {
    fn lane_y(&self, lane: usize) -> f64 {
        TOP + lane as f64 * PITCH
    }

    /// Draws what each task did; what that was, each once.
    fn lanes(&self, svg: &mut Svg) -> Vec<Fill> {
        let mut seen = [false; Doing::ALL.len()];
        for (nth, lane) in self.lanes.iter().enumerate() {
            let (y, name) = (self.lane_y(nth), name(lane));
            svg.text(0.0, -8.0, y + LANE - 4.0, Anchor::End, "name", &name);
            for segment in &lane.segments {
                if let Some((x, width)) = self.visible(segment.start_ns, segment.end_ns) {
                    let took = units::duration(segment.end_ns - segment.start_ns);
                    let hint = format!("{name}: {} for {took}", segment.doing.name());
                    svg.rect(x, y, width, LANE, Fill::Doing(segment.doing), &hint);
                    seen[segment.doing as usize] = true;
                }
            }
        }
        Doing::ALL.into_iter().filter(|doing| seen[*doing as usize]).map(Fill::Doing).collect()
    }

    /// Draws what the step went by, below all lanes and as a line below the lane that it was; the causes, each once.
    fn critical_path(&self, svg: &mut Svg, pieces: &[CriticalPiece], y: f64) -> Vec<Fill> {
        let mut seen = [false; Cause::COUNT];
        for piece in pieces {
            if let Some((x, width)) = self.visible(piece.start_ns, piece.end_ns) {
                let took = units::duration(piece.end_ns - piece.start_ns);
                let hint = format!("{} for {took}", piece.cause.name());
                svg.rect(x, y, width, LANE, Fill::Cause(piece.cause), &hint);
                if piece.lane < self.lanes.len() {
                    svg.plain_rect(x, self.lane_y(piece.lane) + LANE + 2.0, width, 3.0, "critical", "");
                }
                seen[piece.cause as usize] = true;
            }
        }
        Cause::ALL.into_iter().filter(|cause| seen[*cause as usize]).map(Fill::Cause).collect()
    }

    fn visible(&self, start_ns: u64, end_ns: u64) -> Option<(f64, f64)> {
        self.span.part(start_ns, end_ns).filter(|(_, width)| *width >= VISIBLE)
    }
}

/// "worker 4821"; a foreign role is cut to the length of a word.
fn name(lane: &StepLane) -> String {
    let role: String = lane.role.chars().take(10).collect();
    format!("{role} {}", lane.pid)
}

/// From where the step's batch was begun, but not more than once the step's length before it.
fn span(step: &StepDetail) -> Span {
    let whole = Span::new(step.start_ns, step.end_ns);
    let earliest = step.lanes.iter().flat_map(|lane| &lane.segments).map(|segment| segment.start_ns).min();
    let limit_ns = step.start_ns.saturating_sub(whole.length_ns());
    Span::new(earliest.unwrap_or(step.start_ns).clamp(limit_ns, step.start_ns), whole.end_ns)
}

/// The critical path summed by cause.
fn causes(step: &StepDetail) -> Causes {
    let mut causes = Causes::default();
    for piece in &step.critical {
        let sum = &mut causes[piece.cause];
        *sum = sum.saturating_add(piece.end_ns.saturating_sub(piece.start_ns));
    }
    causes
}
