//! Tensors of a checkpoint, or parts of them, read into memory that is there already.

use crate::arena::lock;
use crate::checkpoint::{Check, Checkpoint};
use crate::error::{Error, Result};
use crate::manifest::{Part, StoredTensor};
use crate::tensor::{TensorSpec, short};
use std::collections::VecDeque;
use std::sync::Mutex;

/// Bytes of chunks that a window holds at most.
const KEPT_BYTES: usize = 64 << 20;
/// Most chunks that are read before they are asked for.
const MOST_AHEAD: usize = 8;

/// A box of a tensor's elements, and where it goes in a dense, row-major target of another shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// Where it begins in the tensor, by dimension.
    pub from: Vec<u64>,
    /// Its sizes, by dimension.
    pub sizes: Vec<u64>,
    /// The target's sizes.
    pub into: Vec<u64>,
    /// Where it begins in the target.
    pub to: Vec<u64>,
}

/// Memory for a tensor, or for a region of it.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// The tensor's.
    pub name: &'a str,
    /// First byte of the target.
    pub to: *mut u8,
    /// The target's size.
    pub bytes: usize,
    /// What of the tensor goes where; none for all of it.
    pub region: Option<&'a Region>,
}

/// What was read and checked and may be asked for next. Tensors that are read one by one share chunks, and the checksum
/// is of a whole chunk: without it a chunk would be read again for each small tensor in it. Holds 64 MiB at most.
#[derive(Debug, Default)]
pub struct Window(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    /// Rank, number and bytes of chunks, oldest first.
    chunks: VecDeque<(u32, usize, Vec<u8>)>,
    /// The chunk after those read last, and how many were read ahead of what was asked for.
    next: (u32, usize),
    ahead: usize,
}

impl Kept {
    fn find(&self, rank: u32, chunk: usize) -> Option<&[u8]> {
        let of = |kept: &&(u32, usize, Vec<u8>)| (kept.0, kept.1) == (rank, chunk);
        self.chunks.iter().find(of).map(|kept| &*kept.2)
    }

    fn keep(&mut self, rank: u32, chunk: usize, bytes: &[u8]) {
        let mut held: usize = self.chunks.iter().map(|kept| kept.2.len()).sum();
        while held + bytes.len() > KEPT_BYTES {
            let Some(oldest) = self.chunks.pop_front() else { break };
            held -= oldest.2.len();
        }
        self.chunks.push_back((rank, chunk, bytes.to_vec()));
    }

    /// `missing`, which are in order, and what most likely follows: more and more of it while chunks are asked for one after the
    /// other, and nothing where they are not, as by a rank that needs a part of each tensor.
    fn with_ahead(&mut self, rank: u32, mut missing: Vec<usize>, chunks: usize) -> Vec<usize> {
        let (Some(&first), Some(&last)) = (missing.first(), missing.last()) else { return missing };
        self.ahead = if (rank, first) == self.next { (2 * self.ahead).clamp(1, MOST_AHEAD) } else { 0 };
        let end = if missing.len() < MOST_AHEAD { (last + 1 + self.ahead).min(chunks) } else { last + 1 };
        missing.extend((last + 1..end).filter(|chunk| self.find(rank, *chunk).is_none()));
        self.next = (rank, end);
        missing
    }
}

/// Bytes of an image that are wanted, and where they go.
struct Run {
    begin: u64,
    end: u64,
    to: *mut u8,
}

// SAFETY: the pointer is used for copies into ranges that are disjoint from run to run, as the contract of
// `Checkpoint::read_targets` allows from any thread for as long as that runs.
unsafe impl Sync for Run {}

impl Checkpoint {
    /// Reads whole tensors of a rank: name, memory, bytes.
    ///
    /// # Errors
    /// As `read_targets`.
    ///
    /// # Safety
    /// As `read_targets`.
    pub unsafe fn read_into(&self, rank: u32, targets: &[(&str, *mut u8, usize)]) -> Result<()> {
        let target = |&(name, to, bytes)| Target { name, to, bytes, region: None };
        let targets: Vec<Target<'_>> = targets.iter().map(target).collect();
        // SAFETY: passed on.
        unsafe { self.read_targets(rank, &targets, &Window::default()) }
    }

    /// A rank's tensor as bytes.
    pub fn read(&self, rank: u32, name: &str) -> Result<Vec<u8>> {
        let bytes = self.tensor(rank, name).map_or(Ok(0), |tensor| tensor.spec.bytes())?;
        let mut target = vec![0; bytes as usize];
        // SAFETY: one vector of that many bytes, which nobody else knows of.
        unsafe { self.read_into(rank, &[(name, target.as_mut_ptr(), target.len())])? };
        Ok(target)
    }

    /// Reads tensors of a rank, or regions of them, into memory, in parallel; each byte is checked (by CRC) before it gets
    /// there, and only chunks are read that hold what is wanted, or follow where one is read after the other. Beside the
    /// targets it takes the window's memory and a chunk a thread, whatever the tensors' sizes. An error leaves some of
    /// the targets written.
    ///
    /// # Errors
    /// An unknown name, a target of another size than the tensor, or a region that is in none; damage.
    ///
    /// # Safety
    /// Each pointer is writable for its number of bytes, nothing else touches them until this returns, and no two of
    /// them overlap.
    pub unsafe fn read_targets(&self, rank: u32, targets: &[Target<'_>], window: &Window) -> Result<()> {
        let part = self.part(rank)?;
        let runs = self.runs(part, targets)?;
        let touching = |begin: u64, end: u64| {
            let first = runs.partition_point(|run| run.end <= begin);
            runs[first..].iter().take_while(move |run| run.begin < end)
        };
        // How many bytes of the chunk were wanted.
        let copy = |chunk: usize, bytes: &[u8]| -> u64 {
            let chunk_begin = chunk as u64 * part.chunk_bytes;
            let chunk_end = chunk_begin + bytes.len() as u64;
            let mut copied = 0;
            for run in touching(chunk_begin, chunk_end) {
                let (begin, end) = (run.begin.max(chunk_begin), run.end.min(chunk_end));
                let from = &bytes[(begin - chunk_begin) as usize..(end - chunk_begin) as usize];
                // SAFETY: `begin - run.begin` and the length stay within the run, and a run within its target (`runs`);
                // what different chunks and different runs are copied to is disjoint, so no two threads write the same
                // byte.
                unsafe {
                    run.to
                        .add((begin - run.begin) as usize)
                        .copy_from_nonoverlapping(from.as_ptr(), from.len())
                };
                copied += end - begin;
            }
            copied
        };
        let mut needed: Vec<usize> = Vec::new();
        for run in &runs {
            let first = (run.begin / part.chunk_bytes) as usize;
            let after = run.end.div_ceil(part.chunk_bytes) as usize;
            needed.extend(first.max(needed.last().map_or(0, |last| last + 1))..after);
        }
        let mut kept = lock(&window.0);
        needed.retain(|chunk| {
            let Some(bytes) = kept.find(rank, *chunk) else { return true };
            copy(*chunk, bytes);
            false
        });
        let reads = kept.with_ahead(rank, needed, part.chunks.len());
        drop(kept);
        self.chunks(part, None, Check::Crc, false, &reads, &|chunk, bytes| {
            if copy(chunk, bytes) < bytes.len() as u64 {
                lock(&window.0).keep(rank, chunk, bytes);
            }
        })
    }

    /// In the image's order, none of them empty, and no two of them of the same bytes.
    fn runs(&self, part: &Part, targets: &[Target<'_>]) -> Result<Vec<Run>> {
        let refused = |why: String| Error::Refused(format!("{} {why}", self.name()));
        let mut runs = Vec::new();
        for target in targets {
            let Some(tensor) = self.tensor(part.rank, target.name) else {
                let name = short(target.name);
                return Err(refused(format!("has no tensor {name:?} of rank {}", part.rank)));
            };
            let name = short(target.name);
            match target.region {
                None => {
                    let has = tensor.spec.bytes()?;
                    if has != target.bytes as u64 {
                        let asked = target.bytes;
                        return Err(refused(format!(
                            "has {has} bytes of tensor {name:?} and {asked} are asked for"
                        )));
                    }
                    runs.push(Run { begin: tensor.offset, end: tensor.offset + has, to: target.to });
                }
                Some(region) if region.fits(&tensor.spec, target.bytes) => {
                    region.push_runs(tensor, target.to, &mut runs);
                }
                Some(_) => {
                    return Err(refused(format!("has no such region of tensor {name:?} as is asked for")));
                }
            }
        }
        runs.retain(|run| run.begin < run.end);
        runs.sort_by_key(|run| run.begin);
        // Tensors may overlap in a manifest made by an enemy; the search for what touches a chunk wants ends in order too.
        if runs.windows(2).any(|two| two[0].end > two[1].begin) {
            return Err(Error::damaged(self.dir(), "two of its tensors lie at the same place"));
        }
        Ok(runs)
    }
}

impl Region {
    /// Whether it lies within the tensor, and within a target of that many bytes.
    fn fits(&self, spec: &TensorSpec, bytes: usize) -> bool {
        let into = TensorSpec { name: String::new(), dtype: spec.dtype, shape: self.into.clone() };
        let within = |begin: &[u64], shape: &[u64]| {
            begin.len() == shape.len()
                && self.sizes.len() == shape.len()
                && (begin.iter().zip(&self.sizes).zip(shape))
                    .all(|((begin, size), all)| begin.checked_add(*size).is_some_and(|end| end <= *all))
        };
        within(&self.from, &spec.shape)
            && within(&self.to, &self.into)
            && into.bytes().is_ok_and(|all| all == bytes as u64)
    }

    /// Its longest ranges that lie without gaps in both. It has to fit.
    fn push_runs(&self, tensor: &StoredTensor, to: *mut u8, runs: &mut Vec<Run>) {
        if self.sizes.contains(&0) {
            return;
        }
        let shape = &tensor.spec.shape;
        let (in_tensor, in_target) =
            (strides(shape, tensor.spec.dtype.bytes()), strides(&self.into, tensor.spec.dtype.bytes()));
        // From this dimension on elements follow each other in both.
        let inner = (0..shape.len())
            .rev()
            .find(|&d| self.sizes[d] != shape[d] || self.sizes[d] != self.into[d])
            .unwrap_or(0);
        let run_bytes = match self.sizes.get(inner) {
            Some(size) => size * in_tensor[inner],
            None => tensor.spec.dtype.bytes(),
        };
        let place = |begin: &[u64], strides: &[u64]| -> u64 {
            begin.iter().zip(strides).map(|(begin, stride)| begin * stride).sum()
        };
        let (mut from, mut at) = (tensor.offset + place(&self.from, &in_tensor), place(&self.to, &in_target));
        let mut index = vec![0; inner];
        loop {
            // SAFETY: the region lies within the target (`fits`), so that the run of elements that begins here does.
            runs.push(Run { begin: from, end: from + run_bytes, to: unsafe { to.add(at as usize) } });
            // The next index of the outer dimensions: the last one counts fastest.
            let Some(d) = (0..inner).rev().find(|&d| index[d] + 1 < self.sizes[d]) else { return };
            for wrapped in d + 1..inner {
                from -= index[wrapped] * in_tensor[wrapped];
                at -= index[wrapped] * in_target[wrapped];
                index[wrapped] = 0;
            }
            index[d] += 1;
            from += in_tensor[d];
            at += in_target[d];
        }
    }
}

/// Bytes from an element to the next, by dimension, in dense row-major order. Zero sizes make them zero, where nothing is read.
fn strides(shape: &[u64], element_bytes: u64) -> Vec<u64> {
    let mut strides = vec![element_bytes; shape.len()];
    for d in (1..shape.len()).rev() {
        strides[d - 1] = strides[d].saturating_mul(shape[d]);
    }
    strides
}

#[cfg(test)]
mod tests;
