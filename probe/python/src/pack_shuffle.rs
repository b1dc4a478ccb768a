//! Orders of a pack's samples for Python: a thin layer over `stallscope_pack`.

use crate::pack::{PackImages, PackReader, raised};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use stallscope_pack::{Classes, Epoch, Layout, Plan, Recipe, Share, Shelf};
use std::sync::Arc;

/// What has no class is a class of its own.
const NO_CLASS: u32 = u32::MAX;

/// The orders of a data set: of a pack's pictures, or of all of its files. A recipe is (seed, lanes, window).
#[pyclass(frozen, module = "stallscope._native")]
#[derive(Debug)]
pub(crate) struct PackShuffle {
    pack: Py<PackReader>,
    images: Option<Py<PackImages>>,
    layout: Layout,
    classes: Classes,
    /// How many bytes the ring of chunks has.
    memory_bytes: u64,
    shelf: Arc<Shelf>,
}

fn recipe((seed, lanes, window): (u64, usize, usize)) -> Recipe {
    Recipe { seed, lanes, window }
}

impl PackShuffle {
    fn sample_of(&self, record: u32) -> usize {
        let images = self.images.as_ref().map(|images| &images.get().images);
        // All records of the layout are pictures where there are any.
        images.map_or(Some(record as usize), |images| images.of_record(record as usize)).unwrap_or_default()
    }
}

#[pymethods]
impl PackShuffle {
    /// `labels`: a class for each sample, in place of those of the pack.
    #[new]
    #[pyo3(signature = (pack, images, labels, memory_bytes))]
    fn new(
        py: Python<'_>,
        pack: Py<PackReader>,
        images: Option<Py<PackImages>>,
        labels: Option<Vec<u32>>,
        memory_bytes: u64,
    ) -> PyResult<PackShuffle> {
        let own = pack.get().pack.clone();
        let pictures = images.as_ref().map(|images| &images.get().images);
        let samples = pictures.map_or(own.snapshot().records(), |pictures| pictures.count());
        if labels.as_ref().is_some_and(|labels| labels.len() != samples) {
            return Err(PyValueError::new_err("not one label for each sample"));
        }
        let (layout, classes) = py
            .detach(|| {
                let record = |sample| match pictures {
                    Some(pictures) => pictures.at(sample).map_or(0, |(record, _)| record),
                    None => sample,
                };
                let layout = Layout::of(&own, (0..samples).map(record))?;
                let class_of = |record: u32| {
                    let sample = match pictures {
                        Some(pictures) => pictures.of_record(record as usize)?,
                        None => record as usize,
                    };
                    match (&labels, pictures) {
                        (Some(labels), _) => labels.get(sample).copied(),
                        (None, Some(pictures)) => pictures.at(sample).map(|(_, class)| class as u32),
                        (None, None) => own.snapshot().entry(sample).ok()?.label,
                    }
                };
                let classes = Classes::of(&layout, |record| class_of(record).unwrap_or(NO_CLASS));
                Ok((layout, classes))
            })
            .map_err(|error| raised(py, &error))?;
        // More would stay empty.
        let memory_bytes = memory_bytes.min(layout.bytes_of(layout.chunks()));
        let shelf = Arc::new(Shelf::new(&own, memory_bytes).map_err(|error| raised(py, &error))?);
        Ok(PackShuffle { pack, images, layout, classes, memory_bytes, shelf })
    }

    /// From now on the data set's samples are taken from what is read for this order. Before workers are forked.
    fn put_on(&self) {
        self.pack.get().put_on(self.shelf.clone());
    }

    /// How many samples, chunks and classes there are, and the bytes of all samples.
    fn facts(&self) -> (usize, usize, usize, u64) {
        (self.layout.samples(), self.layout.chunks(), self.classes.count(), self.layout.bytes())
    }

    /// How many bytes are in memory at most with so many chunks drawn from at a time.
    fn bytes_of(&self, window: usize) -> u64 {
        self.layout.bytes_of(window)
    }

    /// The design effect of an order on average, for a batch of all ranks.
    fn predicted(&self, py: Python<'_>, lanes: usize, window: usize, batch: usize) -> f64 {
        py.detach(|| self.classes.predicted(&self.layout, lanes, window, batch))
    }

    /// The fewest chunks of a lane with at most this design effect; None if no number of them is enough.
    fn fewest(&self, py: Python<'_>, lanes: usize, batch: usize, most: f64) -> Option<usize> {
        py.detach(|| self.classes.fewest(&self.layout, lanes, batch, most))
    }

    /// The design effect of an epoch, over so many batches of all ranks.
    fn measured(&self, py: Python<'_>, of: (u64, usize, usize), epoch: u64, batch: usize) -> (f64, usize) {
        py.detach(|| self.classes.measured(&self.layout, recipe(of), epoch, batch))
    }

    /// The samples of a rank behind the first `start` of all ranks, of which the first `skip` are not used; and reads
    /// their chunks from now on.
    #[pyo3(signature = (of, epoch, rank, world, batch, start, skip))]
    #[allow(clippy::too_many_arguments, reason = "as Python's callers have them")]
    fn begin(
        &self,
        py: Python<'_>,
        of: (u64, usize, usize),
        epoch: u64,
        rank: usize,
        world: usize,
        batch: usize,
        start: usize,
        skip: usize,
    ) -> PyResult<Vec<usize>> {
        self.put_on();
        let pack = self.pack.get();
        py.detach(|| {
            let mut order = Epoch::new(&self.layout, recipe(of), epoch);
            let places = order.places(Share { rank, world, batch, start });
            let plan = Plan::of(&order, &places, skip, self.memory_bytes, &pack.pack)?;
            self.shelf.begin(pack.pack.clone(), plan)?;
            Ok(places.into_iter().map(|place| self.sample_of(self.layout.record(place))).collect())
        })
        .map_err(|error| raised(py, &error))
    }

    /// So many of the rank's samples, counted as `begin` gave them, are used.
    fn reached(&self, sample: u64) {
        self.shelf.reached(sample);
    }

    /// Ends reading, and gives the memory back once no worker has it.
    fn end(&self, py: Python<'_>) {
        self.pack.get().take_off(&self.shelf);
        py.detach(|| self.shelf.stop());
    }

    /// How many parts of chunks were read so far.
    fn read(&self) -> u64 {
        self.shelf.read()
    }
}
