//! What a save takes, for benchmarks: `persist DIR MB [changing]`. Each line on standard input has one made, and gives a
//! line of JSON; interleave it with whatever it is compared with. With `changing`, all but that part (0 to 1) of the bytes
//! stays as it was.

use serde_json::json;
use stallscope_checkpoint::{Dtype, Options, Plan, Saver, Source, TensorSpec};
use std::path::Path;
use std::time::{Duration, Instant};

const TENSORS: usize = 64;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, dir, mb, rest @ ..] = &arguments[..] else {
        return Err("usage: persist DIR MB [changing]".into());
    };
    let changing: f64 = rest.first().map_or(Ok(1.0), |part| part.parse())?;
    let each = mb.parse::<usize>()? * 1_000_000 / TENSORS / 8;
    let mut tensors: Vec<Vec<u64>> = (0..TENSORS).map(|at| vec![at as u64; each]).collect();
    let mut target = vec![vec![1_u64; each]; TENSORS];
    let still = ((1.0 - changing) * TENSORS as f64) as usize;
    let specs = (0..TENSORS).map(|at| TensorSpec {
        name: format!("tensor.{at}"),
        dtype: Dtype::U64,
        shape: vec![each as u64],
    });
    let plan = Plan::of(specs.collect(), &(0..still).collect::<Vec<_>>())?;
    let saver = Saver::open(Path::new(dir), Options { keep: Some(1), ..Options::default() })?;
    saver.prepare(&plan);
    let mut step = 0;
    for line in std::io::stdin().lines() {
        line?;
        step += 1;
        for tensor in &mut tensors[still..] {
            tensor.iter_mut().enumerate().for_each(|(at, value)| *value = step << 40 | at as u64);
        }
        // The limit: what the same threads copy between buffers that both are warm.
        let memcpy_ns = [1, 2].map(|threads| copy(&tensors, &mut target, threads));
        let sources: Vec<Source> = tensors.iter().map(|tensor| Source::Now(tensor.as_ptr().cast())).collect();
        let begun = Instant::now();
        // SAFETY: the vectors live and stay as they are until this returns.
        let snapshot = unsafe { saver.snapshot(&plan, &sources)? };
        let snapshot_ns = begun.elapsed().as_nanos() as u64;
        saver.persist(snapshot, saver.ticket(step), b"position".to_vec())?;
        let blocked_ns = begun.elapsed().as_nanos() as u64;
        saver.wait(Duration::MAX);
        let total_ns = begun.elapsed().as_nanos() as u64;
        let saved = saver.outcomes().pop().ok_or("no outcome")?.result?;
        while saver.working() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let settled_ns = begun.elapsed().as_nanos() as u64;
        println!(
            "{}",
            json!({
                "bytes": saved.image_bytes, "written_bytes": saved.written_bytes, "reused_bytes": saved.reused_bytes,
                "memcpy_1_thread_ns": memcpy_ns[0], "memcpy_2_threads_ns": memcpy_ns[1], "snapshot_ns": snapshot_ns,
                "blocked_ns": blocked_ns, "write_ns": saved.write_ns, "commit_ns": saved.commit_ns,
                "total_ns": total_ns, "read_back_ns": settled_ns - total_ns,
            })
        );
    }
    Ok(())
}

fn copy(from: &[Vec<u64>], to: &mut [Vec<u64>], threads: usize) -> u64 {
    let each = from.len().div_ceil(threads);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for (from, to) in from.chunks(each).zip(to.chunks_mut(each)) {
            scope.spawn(move || from.iter().zip(to).for_each(|(from, to)| to.copy_from_slice(from)));
        }
    });
    begun.elapsed().as_nanos() as u64
}
