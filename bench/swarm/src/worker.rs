//! A worker: takes an index from its standard input, makes the batch, and puts a line into its standard output.

use crate::Shape;
use crate::lane::{Lane, compute_until, now_ns};
use anyhow::Result;
use stallscope_abi::lane::{self, ClockAt};
use stallscope_ring::ProcessKind;
use std::fs::File;
use std::io::{BufRead, Write, stdin, stdout};
use std::os::unix::fs::FileExt;

const PREP_NS: u64 = 100_000;
const READ_BYTES: usize = 4096;

pub(crate) fn run(shape: Shape, number: u32, rank: u32) -> Result<()> {
    let mut lane = Lane::open(shape, ProcessKind::Worker, rank)?;
    let file = File::open("/proc/self/exe")?;
    for line in stdin().lock().lines() {
        let index: u64 = line?.parse()?;
        make(&mut lane, &file, shape, number, index)?;
        // One write: all workers of a rank share the pipe.
        stdout().write_all(format!("{number} {index}\n").as_bytes())?;
    }
    lane.push(&lane::Bye {}.encode(now_ns()));
    let totals = serde_json::to_string(&lane.totals())?;
    stdout().write_all(format!("{totals}\n").as_bytes())?;
    Ok(())
}

fn make(lane: &mut Lane, file: &File, shape: Shape, number: u32, index: u64) -> Result<()> {
    let taken_ns = now_ns();
    let cpu_before_ns = lane.push_clock(ClockAt::BatchStart, taken_ns);
    let mut bytes = [0; READ_BYTES];
    let mut begun_ns = taken_ns;
    let records = shape.batch.min(shape.records);
    for record in 0..records {
        let count = shape.batch * (record + 1) / records - shape.batch * record / records;
        for _ in 0..count {
            file.read_at(&mut bytes, 0)?;
        }
        let read_ns = now_ns() - begun_ns;
        let time_ns = now_ns();
        let sample = lane::Sample { loader: 0, count, start_ns: begun_ns, batch: index, read_ns };
        lane.push(&sample.encode(time_ns));
        begun_ns = time_ns;
    }
    compute_until(begun_ns + PREP_NS);
    let time_ns = now_ns();
    let cpu_ns = lane.push_clock(ClockAt::BatchReady, time_ns) - cpu_before_ns;
    let batch = lane::Batch {
        loader: 0,
        worker: number,
        start_ns: taken_ns,
        batch: index,
        collate_ns: begun_ns,
        cpu_ns,
    };
    lane.push(&batch.encode(time_ns));
    Ok(())
}
