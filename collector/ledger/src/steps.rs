//! Cuts a trainer's time into pieces that each belong to one phase.
//!
//! Where a loader hands over the batches of training, a step is from one batch to the next. Else it ends with a step of
//! the optimiser, or where the script says so. A loop without a loader counts as one more source of steps under the
//! number [`NO_LOADER`], so that both kinds may follow each other in one run.

use crate::handover::Handover;
use crate::unproven::{Began, Unproven};
use stallscope_abi::lane::wait_flags;
use stallscope_model::{Phase, StepLedger};
use std::collections::{BTreeMap, BTreeSet};

pub(crate) const NO_LOADER: u16 = StepLedger::NO_LOADER;

/// An interval of a trainer's time: its own part, and then the wait if one ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) phase: Phase,
    pub(crate) loader: u16,
    pub(crate) start_ns: u64,
    pub(crate) end_ns: u64,
    /// `None` where the piece ends for another reason: its iterator ended, or an evaluation began within it.
    pub(crate) wait: Option<Handover>,
    /// Samples of the batch that the trainer had in hand.
    pub(crate) samples: u32,
    /// See [`StepLedger::part`](stallscope_model::StepLedger).
    pub(crate) part: bool,
}

impl Piece {
    /// Where the own part ends and the wait begins.
    pub(crate) fn enter_ns(&self) -> u64 {
        self.wait.map_or(self.end_ns, |wait| wait.enter_ns.clamp(self.start_ns, self.end_ns))
    }
}

/// The phases of one trainer. Pieces follow each other without overlap.
///
/// An evaluation inside a training step cuts that step in two: its time belongs to the evaluation alone.
#[derive(Debug)]
pub(crate) struct Phases {
    /// End of the last piece.
    at_ns: u64,
    /// Loader and phase of the batch in hand.
    current: Option<(u16, Phase)>,
    /// Training loaders whose iterator handed over a batch and did not end; the last used one is last.
    iterating: Vec<u16>,
    /// Iterators of each loader that started and did not end. A loop that replaces its iterator starts the new
    /// one before the old one is dropped.
    live: BTreeMap<u16, u32>,
    /// Loaders of which a batch was followed by a step of the optimiser.
    trains: BTreeSet<u16>,
    /// A loader handed over a batch of training since the last step of the optimiser or the script.
    batch_since_step: bool,
    /// The script tells its steps, so that the optimiser's no longer count.
    by_script: bool,
    /// Steps of the optimiser show, so that a batch to train with is followed by one.
    stepped: bool,
    /// A pass from its first batch on, as long as nobody is known to train with it.
    unproven: Option<Unproven>,
    /// The loader of a pass that is known to be an evaluation, gradients or not.
    evaluated: Option<u16>,
    /// When each loader's last iterator was made.
    started: BTreeMap<u16, u64>,
    /// Steps of the optimiser so far, and how many there were at the last pass of each loader within another's epoch.
    steps: u64,
    steps_at_pass: BTreeMap<u16, u64>,
    /// The loader of training has just ended: the step of its last batch may follow, where the script fetches a batch ahead.
    last_step_due: bool,
    /// That step, as long as no further one shows that a loop without a loader goes on.
    late_step_ns: Option<u64>,
    /// The last step of the optimiser or the script since the batch in hand was handed over: training with it had ended.
    done_ns: Option<u64>,
    trained: bool,
    samples_in_hand: u32,
    /// The evaluation under way was handed a batch.
    evaluates: bool,
}

impl Phases {
    pub(crate) fn new(started_ns: u64) -> Phases {
        Phases {
            at_ns: started_ns,
            current: None,
            iterating: Vec::new(),
            live: BTreeMap::new(),
            trains: BTreeSet::new(),
            batch_since_step: false,
            by_script: false,
            stepped: false,
            unproven: None,
            evaluated: None,
            started: BTreeMap::new(),
            steps: 0,
            steps_at_pass: BTreeMap::new(),
            last_step_due: false,
            late_step_ns: None,
            done_ns: None,
            trained: false,
            samples_in_hand: 0,
            evaluates: false,
        }
    }

    /// Training goes on with a batch of `loader` in hand: how a job is met that ran before we looked.
    pub(crate) fn under_way(at_ns: u64, loader: u16) -> Phases {
        let current = Some((loader, Phase::Training));
        Phases { current, iterating: vec![loader], trained: true, ..Phases::new(at_ns) }
    }

    /// Start of what was not given as a piece yet.
    pub(crate) fn horizon_ns(&self) -> u64 {
        self.unproven.as_ref().and_then(Unproven::start_ns).unwrap_or(self.at_ns)
    }

    /// The batch of the last piece was had a little later than it looked.
    pub(crate) fn went_on(&mut self, at_ns: u64) {
        self.at_ns = self.at_ns.max(at_ns);
    }

    /// In an epoch or an evaluation whose iterator has not ended.
    pub(crate) fn iterates(&self) -> bool {
        self.live.values().any(|live| *live > 0)
            || matches!(self.current, Some((loader, _)) if loader != NO_LOADER)
    }

    /// A batch was handed over. False when it tells of time that is accounted already.
    pub(crate) fn wait(&mut self, wait: Handover, pieces: &mut Vec<Piece>) -> bool {
        if wait.exit_ns <= self.at_ns {
            return false;
        }
        let loader = wait.loader;
        self.forget_late_step();
        if wait.has(wait_flags::NO_GRAD) || self.is_beside(loader) || self.evaluated == Some(loader) {
            if self.current != Some((loader, Phase::Evaluation)) {
                self.evaluate(loader, wait.enter_ns, pieces);
            }
            self.close(wait, Phase::Evaluation, !self.evaluates, pieces);
            self.evaluates = true;
            return true;
        }
        let leaves = wait.has(wait_flags::FIRST) && self.has_in_hand(loader);
        // An evaluation that was left without its iterator ending: what follows its last batch is its own.
        if let Some((evaluated, Phase::Evaluation)) = self.current {
            let made_ns = self.started.get(&loader).copied().filter(|_| leaves);
            let to_ns = made_ns.map_or(wait.enter_ns, |made_ns| made_ns.min(wait.enter_ns));
            self.cut(to_ns, (Phase::Evaluation, evaluated), !self.evaluates, pieces);
        }
        self.evaluated = None;
        let first = wait.has(wait_flags::FIRST) || !self.iterating.contains(&loader);
        match (&self.unproven, first) {
            (Some(unproven), true) if unproven.is_of(loader) || self.is_over(unproven) => {
                self.refute(pieces);
            }
            (Some(unproven), false) if self.stepped && self.is_over(unproven) => {
                let within = unproven.loader();
                self.settle_within(within, pieces);
            }
            // Where no optimiser shows, a second batch is all that tells.
            (_, false) if !self.stepped => self.prove(pieces),
            _ => {}
        }
        if leaves {
            self.leave(loader, wait.enter_ns, pieces);
        }
        let phase = match (self.trained, first) {
            (false, _) => Phase::Startup,
            (true, true) => Phase::Between,
            (true, false) => Phase::Training,
        };
        let doubtful = first
            && self.unproven.is_none()
            && (self.stepped || !self.trained)
            && !wait.has(wait_flags::FAILED);
        if doubtful && self.trained {
            self.unproven = Some(Unproven::new(loader, Some(self.begins(loader, wait.enter_ns))));
        }
        self.close(wait, phase, false, pieces);
        if self.evaluated == Some(loader) {
            return true;
        }
        if !wait.has(wait_flags::FAILED) {
            if doubtful && !self.trained {
                self.unproven = Some(Unproven::new(loader, None));
            }
            self.trained = true;
            (self.batch_since_step, self.done_ns) = (true, None);
            self.train_with(loader);
        }
        true
    }

    /// Whether a batch of `loader` is trained with, an evaluation within that step aside.
    fn has_in_hand(&self, loader: u16) -> bool {
        let in_hand = match self.current {
            Some((current, Phase::Training)) => Some(current),
            _ => self.iterating.last().copied(),
        };
        in_hand == Some(loader) && !self.unproven.as_ref().is_some_and(|unproven| unproven.is_of(loader))
    }

    /// An epoch of `loader` was left without its iterator ending, and another one gives a batch: the step that is in hand ended with
    /// the optimiser's, else as the new iterator was made. It counts where an evaluation lies between, too.
    fn leave(&mut self, loader: u16, enter_ns: u64, pieces: &mut Vec<Piece>) {
        let made_ns = self.started.get(&loader).copied();
        let ends = [self.done_ns, made_ns, Some(enter_ns)].into_iter().flatten();
        if let Some(end_ns) = ends.filter(|end_ns| (self.at_ns + 1..=enter_ns).contains(end_ns)).min() {
            self.cut(end_ns, (Phase::Training, loader), false, pieces);
        }
        self.iterating.retain(|other| *other != loader);
        self.current = None;
    }

    /// A step of the optimiser ended, or the script says that one of its steps did. It counts where no loader hands over
    /// the batches of training: none since the last such step, and none whose iterator is under way.
    pub(crate) fn step(&mut self, by_script: bool, time_ns: u64, pieces: &mut Vec<Piece>) {
        if self.by_script && !by_script {
            return;
        }
        let taken_over = by_script && !std::mem::replace(&mut self.by_script, by_script);
        self.steps += 1;
        self.done_ns = Some(time_ns);
        // From the script's first step on the optimiser's are no longer reported, and the script may report some alone.
        self.stepped = !by_script;
        self.prove(pieces);
        let gradients = |loader| self.is_beside(loader) || self.evaluated == Some(loader);
        if let Some((loader, Phase::Evaluation)) = self.current.filter(|(loader, _)| gradients(*loader)) {
            // What looked like an evaluation trains: the loop goes on with this loader.
            self.evaluated = None;
            self.trains.insert(loader);
            self.train_with(loader);
        }
        let batch_since_step = std::mem::take(&mut self.batch_since_step);
        self.trains.extend(self.iterating.iter().copied().filter(|loader| *loader != NO_LOADER));
        if batch_since_step || self.iterating.iter().any(|loader| *loader != NO_LOADER) {
            return;
        }
        if std::mem::take(&mut self.last_step_due) && !by_script {
            self.late_step_ns = Some(time_ns);
            return;
        }
        if let Some(late_ns) = self.late_step_ns.take() {
            self.step_without_loader(false, late_ns, pieces);
        }
        self.step_without_loader(taken_over, time_ns, pieces);
    }

    fn forget_late_step(&mut self) {
        (self.last_step_due, self.late_step_ns) = (false, None);
    }

    fn step_without_loader(&mut self, taken_over: bool, time_ns: u64, pieces: &mut Vec<Piece>) {
        let evaluated = self.current.filter(|(_, phase)| *phase == Phase::Evaluation);
        let phase = match (self.iterating.contains(&NO_LOADER), self.trained) {
            (true, false) if taken_over => Phase::Startup,
            (true, _) => Phase::Training,
            (false, true) => Phase::Between,
            (false, false) => Phase::Startup,
        };
        // One step alone may have been made to prepare the optimiser's state.
        self.trained |= phase == Phase::Training;
        match evaluated {
            // An evaluation that was left without its iterator ending: what follows its last batch is its own.
            Some((loader, phase)) => self.cut(time_ns, (phase, loader), !self.evaluates, pieces),
            // The first step that the script tells is what the optimiser's of the same turn left of it.
            None => self.cut(time_ns, (phase, NO_LOADER), taken_over && phase == Phase::Training, pieces),
        }
        self.train_with(NO_LOADER);
    }

    /// A pass of `loader` begins, whose first batch is waited for from `enter_ns` on.
    fn begins(&self, loader: u16, enter_ns: u64) -> Began {
        let at_ns = self.started.get(&loader).copied().unwrap_or(enter_ns);
        match self.background(loader) {
            (Phase::Training, outer) if outer != loader => {
                Began { at_ns, phase: Phase::Training, loader: outer }
            }
            _ => Began { at_ns, phase: Phase::Between, loader },
        }
    }

    /// A pass of `loader` ended within an epoch of another without a step. Where there is one for each step, its batches are a
    /// part of what is trained with.
    fn settle_within(&mut self, loader: u16, pieces: &mut Vec<Piece>) {
        let before = self.steps_at_pass.insert(loader, self.steps);
        match before {
            Some(before) if self.steps <= before + 1 => self.prove(pieces),
            _ => self.refute(pieces),
        }
    }

    /// Whether the pass that gave the batches has ended, or was left.
    fn is_over(&self, unproven: &Unproven) -> bool {
        !self.iterating.iter().any(|loader| unproven.is_of(*loader))
    }

    /// The batches are trained with, as far as is known.
    pub(crate) fn prove(&mut self, pieces: &mut Vec<Piece>) {
        pieces.extend(self.unproven.take().into_iter().flat_map(Unproven::proven));
    }

    /// A script did not train with the batches: what it did with them comes before its training, or between two passes, or is an
    /// evaluation.
    fn refute(&mut self, pieces: &mut Vec<Piece>) {
        let Some(unproven) = self.unproven.take() else { return };
        self.trained = unproven.trained();
        (self.batch_since_step, self.samples_in_hand) = (false, 0);
        let trains = self.trains.contains(&unproven.loader());
        pieces.extend(unproven.refuted(trains));
    }

    /// Something else than training comes: whether batches were trained with has to be known by now.
    fn settle(&mut self, pieces: &mut Vec<Piece>) {
        match &self.unproven {
            Some(unproven) if self.stepped && self.is_over(unproven) => self.refute(pieces),
            _ => self.prove(pieces),
        }
    }

    /// So many batches of a loader that nobody trains with, and no step: more of them are no other.
    fn goes_on_evaluating(&mut self, loader: u16, pieces: &mut Vec<Piece>) {
        let samples = self.samples_in_hand;
        self.refute(pieces);
        self.iterating.retain(|other| *other != loader);
        self.current = Some((loader, Phase::Evaluation));
        (self.evaluated, self.evaluates, self.samples_in_hand) = (Some(loader), true, samples);
    }

    fn train_with(&mut self, loader: u16) {
        // A loader that takes over from a loop without one ends that, and the other way round.
        self.iterating.retain(|other| *other != loader && (*other == NO_LOADER) == (loader == NO_LOADER));
        self.iterating.push(loader);
        self.current = Some((loader, Phase::Training));
    }

    /// Whether `loader` is one of those that a loop trains without: its batches are evaluated, gradients or not.
    fn is_beside(&self, loader: u16) -> bool {
        loader != NO_LOADER
            && self.trained
            && self.iterating.contains(&NO_LOADER)
            && !self.trains.contains(&loader)
    }

    /// A loader is iterated from the start.
    pub(crate) fn iter_start(&mut self, loader: u16, flags: u64, time_ns: u64, pieces: &mut Vec<Piece>) {
        let live = self.live.entry(loader).or_default();
        *live = live.saturating_add(1);
        self.started.insert(loader, time_ns);
        self.forget_late_step();
        if flags & wait_flags::NO_GRAD != 0 {
            self.evaluate(loader, time_ns, pieces);
        }
    }

    /// What the trainer was in goes on after the evaluation, if it was a step of training, and counts then.
    fn evaluate(&mut self, loader: u16, from_ns: u64, pieces: &mut Vec<Piece>) {
        self.settle(pieces);
        let (phase, before) = self.background(loader);
        let part = match phase {
            Phase::Evaluation => !self.evaluates,
            phase => phase == Phase::Training,
        };
        self.cut(from_ns, (phase, before), part, pieces);
        self.current = Some((loader, Phase::Evaluation));
        self.evaluates = false;
    }

    /// An iterator is exhausted or was dropped; `entered_ns`: when the `next()` that found the end was entered, or `time_ns`.
    /// From then on workers are shut down: between epochs, or still in the evaluation.
    pub(crate) fn iter_end(&mut self, loader: u16, entered_ns: u64, time_ns: u64, pieces: &mut Vec<Piece>) {
        let live = self.live.entry(loader).or_default();
        *live = live.saturating_sub(1);
        let found = entered_ns < time_ns;
        // Another one is only left over where this one was iterated to its end.
        if *live > 0 && !found {
            return;
        }
        let mut entered_ns = entered_ns;
        if let Some(unproven) = self.unproven.as_mut().filter(|unproven| unproven.is_of(loader) && found) {
            unproven.exhausted();
            // An evaluation has its workers' end in it.
            entered_ns = if self.stepped && unproven.trained() { time_ns } else { entered_ns };
        }
        self.evaluated = self.evaluated.filter(|evaluated| *evaluated != loader);
        self.last_step_due = self.trains.contains(&loader) && self.iterating.contains(&loader);
        match self.current {
            Some((current, Phase::Evaluation)) if current == loader => {
                self.cut(time_ns, (Phase::Evaluation, loader), !self.evaluates, pieces);
                self.current = None;
            }
            Some((current, phase)) if current == loader => {
                self.cut(entered_ns, (phase, loader), false, pieces);
                self.current = None;
            }
            // Dropped with no batch in hand that is not trained with yet: a loop that takes a batch of each of two loaders is over.
            None if self.iterating.contains(&loader) && (found || self.done_ns.is_none()) => {
                self.cut(entered_ns, (Phase::Training, loader), false, pieces);
            }
            _ => {}
        }
        self.iterating.retain(|other| *other != loader);
        // A pass to its end is more than a look, where no optimiser shows.
        if !self.stepped && found {
            self.prove(pieces);
        }
    }

    /// The process has ended: what it did since its last iterator ended came after training, and a last checkpoint
    /// is in there. (The work on a batch that it still had in hand is so, too, from the optimiser's step on, or all of it
    /// where none shows where that ended.)
    pub(crate) fn end(&mut self, time_ns: u64, pieces: &mut Vec<Piece>) {
        self.settle(pieces);
        let background = self.background(self.iterating.last().copied().unwrap_or(0));
        if let ((Phase::Training, loader), Some(done_ns)) = (background, self.done_ns)
            && loader != NO_LOADER
        {
            self.cut(done_ns.min(time_ns), (Phase::Training, loader), false, pieces);
        }
        let (phase, loader) = match background {
            (Phase::Training | Phase::Between, loader) => (Phase::After, loader),
            other => other,
        };
        self.cut(time_ns, (phase, loader), phase == Phase::Evaluation && !self.evaluates, pieces);
        // An iterator that is dropped as the process leaves ends no step of training.
        self.current = None;
        self.iterating.clear();
    }

    /// Whether anything is known of the time up to now.
    pub(crate) fn begun(&self) -> bool {
        self.trained || self.current.is_some()
    }

    /// What the trainer is in while it waits for nothing.
    fn background(&self, next_loader: u16) -> (Phase, u16) {
        match (self.current, self.iterating.last()) {
            (Some((loader, phase)), _) => (phase, loader),
            (None, Some(outer)) => (Phase::Training, *outer),
            (None, None) if self.trained => (Phase::Between, next_loader),
            (None, None) => (Phase::Startup, next_loader),
        }
    }

    fn cut(&mut self, to_ns: u64, (phase, loader): (Phase, u16), part: bool, pieces: &mut Vec<Piece>) {
        if to_ns > self.at_ns {
            let samples = std::mem::take(&mut self.samples_in_hand);
            let (start_ns, end_ns) = (self.at_ns, to_ns);
            self.give(Piece { phase, loader, start_ns, end_ns, wait: None, samples, part }, pieces);
            self.at_ns = to_ns;
        }
    }

    fn close(&mut self, wait: Handover, phase: Phase, part: bool, pieces: &mut Vec<Piece>) {
        let samples = std::mem::replace(&mut self.samples_in_hand, wait.samples);
        let (start_ns, end_ns) = (self.at_ns, wait.exit_ns);
        let piece = Piece { phase, loader: wait.loader, start_ns, end_ns, wait: Some(wait), samples, part };
        self.give(piece, pieces);
        self.at_ns = end_ns;
    }

    fn give(&mut self, piece: Piece, pieces: &mut Vec<Piece>) {
        match &mut self.unproven {
            None => pieces.push(piece),
            Some(unproven) => {
                if !unproven.holds(piece) {
                    return;
                }
                let (loader, trained) = (unproven.loader(), unproven.trained());
                if self.stepped && trained && !self.trains.is_empty() && !self.trains.contains(&loader) {
                    self.goes_on_evaluating(loader, pieces);
                } else {
                    self.prove(pieces);
                }
            }
        }
    }
}
