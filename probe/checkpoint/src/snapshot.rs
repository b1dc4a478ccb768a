//! The first phase: tensors copied out of a running job.

use crate::arena::{Arenas, Lent};
use crate::copy::{Batch, Copiers};
use crate::error::Result;
use crate::image::{BLOCK, Layout};
use crate::tensor::TensorSpec;
use std::sync::Arc;
use std::time::Instant;

/// Which tensors a job saves, and how they lie in the image: made once, used for every save.
#[derive(Clone, Debug)]
pub struct Plan(pub(crate) Arc<Layout>);

impl Plan {
    /// The plan for these tensors. `still` are the places of those that are not expected to change, frozen parameters
    /// say: they are kept apart on disk from the first save on, so that later ones link them. A wrong guess costs bytes,
    /// never correctness. Fails for a name given twice and for sizes that no memory has.
    pub fn of(specs: Vec<TensorSpec>, still: &[usize]) -> Result<Plan> {
        Layout::of(specs, still).map(|layout| Plan(Arc::new(layout)))
    }

    /// Whether the plan is for exactly these, in this order.
    pub fn is_of(&self, specs: &[TensorSpec]) -> bool {
        self.0.is_of(specs)
    }

    /// How many tensors.
    pub fn tensors(&self) -> usize {
        self.0.tensors.len()
    }

    /// Bytes of the image: header and tensors. An arena takes a 32nd more.
    pub fn bytes(&self) -> u64 {
        self.0.bytes
    }

    fn padded(&self) -> usize {
        self.0.bytes.next_multiple_of(BLOCK) as usize
    }
}

/// Where a tensor's bytes are: dense, in row-major order, as many as its spec says. May be null for none.
#[derive(Clone, Copy, Debug)]
pub enum Source {
    /// Copied before `snapshot` returns: what a forward pass changes, such as buffers.
    Now(*const u8),
    /// Copied until the fence: what nothing changes before the optimiser's step.
    Late(*const u8),
    /// Written by the caller to `Snapshot::place`, before it is persisted: what lies on a device.
    ByCaller,
}

/// Tensors as they were at one moment, in an arena that it holds until it is persisted or dropped.
#[derive(Debug)]
pub struct Snapshot {
    /// First, because fields are dropped in order and copiers write to the arena: its drop waits for them.
    late: Fence,
    pub(crate) plan: Plan,
    arena: Lent,
    waited_ns: u64,
    copied_ns: u64,
}

#[derive(Debug)]
struct Fence {
    batch: Arc<Batch>,
    pid: u32,
}

impl Drop for Fence {
    fn drop(&mut self) {
        // A forked child has neither the threads to wait for nor the arena to copy to.
        if self.pid == std::process::id() {
            self.batch.wait();
        }
    }
}

// SAFETY: the arena's pointer is to a mapping that belongs to this snapshot alone; `place`'s contract covers who else
// writes to it.
unsafe impl Send for Snapshot {}

impl Snapshot {
    /// # Safety
    /// As `Saver::snapshot`.
    pub(crate) unsafe fn take(
        plan: &Plan,
        sources: &[Source],
        arenas: &Arc<Arenas>,
        copiers: &Copiers,
    ) -> Result<Snapshot> {
        assert_eq!(sources.len(), plan.tensors(), "a source for each tensor of the plan");
        let begun = Instant::now();
        let arena = arenas.take(plan.padded())?;
        let waited_ns = begun.elapsed().as_nanos() as u64;
        let (mut now, mut late) = (Batch::default(), Batch::default());
        let layout = &plan.0;
        // SAFETY: the arena has at least `padded` bytes and is lent to nobody else. Header, tensors and padding are
        // disjoint ranges of it, which together are `padded` (`Layout::of`). The sources are good until the fence by
        // this function's contract; the layout's header is held by the plan beside the batches.
        unsafe {
            now.push(layout.header.as_ptr(), arena.start(), layout.header.len());
            arena.start().add(layout.bytes as usize).write_bytes(0, plan.padded() - layout.bytes as usize);
            for ((spec, begin), source) in layout.tensors.iter().zip(sources) {
                let (to, bytes) = (arena.start().add(*begin as usize), spec.bytes()? as usize);
                match source {
                    Source::Now(from) => now.push(*from, to, bytes),
                    Source::Late(from) => late.push(*from, to, bytes),
                    Source::ByCaller => {}
                }
            }
        }
        copiers.begin(now).wait();
        let late = Fence { batch: copiers.begin(late), pid: std::process::id() };
        let copied_ns = begun.elapsed().as_nanos() as u64 - waited_ns;
        Ok(Snapshot { late, plan: plan.clone(), arena, waited_ns, copied_ns })
    }

    /// Waits until all is copied, lending a hand. After it, the sources may be changed and freed. Nanoseconds waited.
    pub fn fence(&self) -> u64 {
        let begun = Instant::now();
        self.late.batch.wait();
        begun.elapsed().as_nanos() as u64
    }

    /// Whether the fence would not wait.
    pub fn copied(&self) -> bool {
        self.late.batch.done()
    }

    /// Where the bytes of a tensor lie in the arena, and how many: for those that are `Source::ByCaller`. Valid until the
    /// snapshot is persisted or dropped.
    pub fn place(&self, tensor: usize) -> (*mut u8, usize) {
        let (spec, begin) = &self.plan.0.tensors[tensor];
        let bytes = spec.bytes().unwrap_or_default() as usize;
        // SAFETY: the layout put the tensor inside the arena.
        (unsafe { self.arena.start().add(*begin as usize) }, bytes)
    }

    /// Start and length of the memory that it lies in, the same from save to save as long as the plan fits: for a driver
    /// that wants to pin it.
    pub fn memory(&self) -> (*mut u8, usize) {
        (self.arena.start(), self.arena.capacity())
    }

    /// How long it took to get an arena: an earlier save was draining, or memory was populated.
    pub fn waited_ns(&self) -> u64 {
        self.waited_ns
    }

    /// How long copying took before `snapshot` returned.
    pub fn copied_ns(&self) -> u64 {
        self.copied_ns
    }

    /// The image, to the end of its last block.
    pub(crate) fn image(&self) -> &[u8] {
        self.fence();
        // SAFETY: `padded` bytes were populated, and all are written: nothing copies after the fence, and callers may
        // write to `place` only before they persist, which is what calls this.
        unsafe { std::slice::from_raw_parts(self.arena.start(), self.plan.padded()) }
    }
}
