//! Batches of which nobody knows yet whether they are trained with.
//!
//! A script may take a batch to look at its shape, or the first few for their statistics, before it begins to train or its next
//! epoch. That shows afterwards alone: by a step of the optimiser, or by the next pass without one.

use crate::steps::Piece;
use stallscope_model::Phase;

/// Pieces that wait for a step. So many batches without one are what somebody accumulates gradients over.
const MAX_HELD: usize = 64;

/// What came after the first batch of a pass, until a step of the optimiser or the next pass.
#[derive(Debug)]
pub(crate) struct Unproven {
    loader: u16,
    /// There was training before the pass.
    trained: bool,
    held: Vec<Piece>,
}

impl Unproven {
    pub(crate) fn new(loader: u16, trained: bool) -> Unproven {
        Unproven { loader, trained, held: Vec::new() }
    }

    pub(crate) fn is_of(&self, loader: u16) -> bool {
        self.loader == loader
    }

    pub(crate) fn trained(&self) -> bool {
        self.trained
    }

    pub(crate) fn start_ns(&self) -> Option<u64> {
        self.held.first().map(|piece| piece.start_ns)
    }

    /// Keeps a piece back. True once it is too many.
    pub(crate) fn holds(&mut self, piece: Piece) -> bool {
        self.held.push(piece);
        self.held.len() >= MAX_HELD
    }

    pub(crate) fn proven(self) -> Vec<Piece> {
        self.held
    }

    /// Not steps, and nothing was trained with.
    pub(crate) fn refuted(self) -> impl Iterator<Item = Piece> {
        let phase = if self.trained { Phase::Between } else { Phase::Startup };
        self.held.into_iter().map(move |piece| match piece.phase {
            Phase::Training => Piece { phase, part: true, samples: 0, ..piece },
            _ => piece,
        })
    }
}
