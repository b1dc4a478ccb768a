//! Batches of which nobody knows yet whether they are trained with.
//!
//! A script may take a batch to look at its shape, or the first few for their statistics, before it begins to train or its next
//! epoch, and it may evaluate with gradients on. That shows afterwards alone: by a step of the optimiser, or by the next pass
//! without one.

use crate::steps::Piece;
use stallscope_model::Phase;

/// Pieces that wait for a step. So many batches without one are what somebody accumulates gradients over, or an evaluation.
const MAX_HELD: usize = 64;

/// What came from the first batch of a pass on, until a step of the optimiser or the next pass.
#[derive(Debug)]
pub(crate) struct Unproven {
    loader: u16,
    /// Where a pass after the first training began; before it, nothing is evaluated.
    began: Option<Began>,
    /// It was iterated to its end.
    exhausted: bool,
    held: Vec<Piece>,
}

/// When an iterator was made, and what the trainer was in then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Began {
    pub(crate) at_ns: u64,
    pub(crate) phase: Phase,
    pub(crate) loader: u16,
}

impl Unproven {
    pub(crate) fn new(loader: u16, began: Option<Began>) -> Unproven {
        Unproven { loader, began, exhausted: false, held: Vec::new() }
    }

    pub(crate) fn is_of(&self, loader: u16) -> bool {
        self.loader == loader
    }

    pub(crate) fn loader(&self) -> u16 {
        self.loader
    }

    /// There was training before the pass.
    pub(crate) fn trained(&self) -> bool {
        self.began.is_some()
    }

    pub(crate) fn start_ns(&self) -> Option<u64> {
        self.held.first().map(|piece| piece.start_ns)
    }

    pub(crate) fn exhausted(&mut self) {
        self.exhausted = true;
    }

    /// Keeps a piece back. True once it is too many.
    pub(crate) fn holds(&mut self, piece: Piece) -> bool {
        self.held.push(piece);
        self.held.len() >= MAX_HELD
    }

    /// Within the epoch of another loader, the first batch has no time between epochs before it either.
    pub(crate) fn proven(mut self) -> Vec<Piece> {
        if let (Some(Began { phase: Phase::Training, .. }), Some(first)) = (self.began, self.held.first_mut())
        {
            (first.phase, first.part) = (Phase::Training, true);
        }
        self.held
    }

    /// Not steps: nothing was trained with. Evaluation is what was iterated to its end, several batches of a loader that nobody
    /// trains with (`trains`: somebody does), and what was taken within an epoch of another.
    pub(crate) fn refuted(self, trains: bool) -> Vec<Piece> {
        let Some(began) = self.began else { return looked_at(self.held, Phase::Startup) };
        let batches = self.held.iter().filter(|piece| piece.wait.is_some()).count();
        if self.exhausted || (batches > 1 && !trains) || began.phase == Phase::Training {
            evaluated(self.held, began)
        } else {
            looked_at(self.held, Phase::Between)
        }
    }
}

fn looked_at(held: Vec<Piece>, phase: Phase) -> Vec<Piece> {
    let piece = |piece: Piece| match piece.phase {
        Phase::Training => Piece { phase, part: true, samples: 0, ..piece },
        _ => piece,
    };
    held.into_iter().map(piece).collect()
}

/// As an evaluation without gradients is cut: it begins with its iterator, and the step of training around it is in two parts.
fn evaluated(held: Vec<Piece>, began: Began) -> Vec<Piece> {
    let mut pieces = Vec::with_capacity(held.len() + 1);
    let mut held = held.into_iter();
    if let Some(first) = held.next() {
        let from_ns = began.at_ns.clamp(first.start_ns, first.enter_ns());
        let is_cut = from_ns > first.start_ns;
        if is_cut {
            let (phase, loader) = (began.phase, began.loader);
            let part = phase == Phase::Training;
            pieces.push(Piece { phase, loader, end_ns: from_ns, wait: None, part, ..first });
        }
        let samples = if is_cut { 0 } else { first.samples };
        pieces.push(Piece { phase: Phase::Evaluation, start_ns: from_ns, samples, part: true, ..first });
    }
    pieces.extend(held.map(|piece| match piece.phase {
        // What ends with the epoch around it is a part of that.
        Phase::Training if began.phase == Phase::Training && piece.loader == began.loader => piece,
        Phase::Training => Piece { phase: Phase::Evaluation, ..piece },
        // The first batch of one more loader that is evaluated beside it.
        Phase::Between if piece.wait.is_some() => Piece { phase: Phase::Evaluation, part: true, ..piece },
        _ => piece,
    }));
    pieces
}
