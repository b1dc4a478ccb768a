//! MinIO (CoorDL, VLDB 2021): what came first stays, nobody goes. The optimum where each sample is used once an epoch,
//! in an order that is new each time. Theirs counts samples; ours counts bytes.

use super::ranking::Ranking;
use super::{Policy, Use};

#[derive(Debug)]
pub(crate) struct MinIo {
    kept: Ranking<()>,
}

impl MinIo {
    pub(crate) fn new(capacity_bytes: u64) -> MinIo {
        MinIo { kept: Ranking::new(capacity_bytes) }
    }
}

impl Policy for MinIo {
    fn contains(&self, id: u32) -> bool {
        self.kept.contains(id)
    }

    fn used_bytes(&self) -> u64 {
        self.kept.used_bytes()
    }

    fn hit(&mut self, _: &Use) {}

    fn miss(&mut self, used: &Use, evicted: &mut Vec<u32>) -> bool {
        self.kept.admit(used.id, used.bytes, (), evicted)
    }

    fn forget(&mut self, id: u32) {
        self.kept.remove(id);
    }

    fn resize(&mut self, capacity_bytes: u64, evicted: &mut Vec<u32>) {
        self.kept.resize(capacity_bytes, evicted);
    }
}
