//! A rank's trainer: takes the batches in order, computes a little, and waits for the next beat.

use crate::lane::{Lane, compute_until, now_ns};
use crate::{Shape, Totals, myself};
use anyhow::{Context, Result, bail};
use stallscope_abi::lane::{Bye, ClockAt, IterEnd, IterStart, Wait, wait_flags};
use stallscope_ring::{Fact, LoaderFact, ProcessKind};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};
use std::time::Duration;

const COMPUTE_NS: u64 = 300_000;
const PREFETCH: u64 = 2;

pub(crate) fn run(shape: Shape, number: u32) -> Result<()> {
    let mut lane = Lane::open(shape, ProcessKind::Trainer, number)?;
    let mut workers = Workers::start(shape, number)?;
    workers.tell(&lane, shape)?;
    let interval_ns = (1e9 / shape.hz) as u64;
    let steps = (shape.seconds * shape.hz).ceil() as u64;
    let start_ns = now_ns();
    lane.push(&IterStart { loader: 0, epoch: 0, flags: wait_flags::FIRST }.encode(start_ns));
    for index in 0..(PREFETCH * u64::from(shape.workers)).min(steps) {
        workers.ask(index)?;
    }
    let first_beat_ns = start_ns + interval_ns * u64::from(number) / u64::from(shape.ranks);
    for index in 0..steps {
        let enter_ns = now_ns();
        lane.push_clock(ClockAt::WaitEnter, enter_ns);
        workers.wait_for(index)?;
        let time_ns = now_ns();
        let flags = if index == 0 { wait_flags::FIRST } else { 0 };
        let (worker, samples) = (workers.maker(index).id(), u64::from(shape.batch));
        let wait = Wait { loader: 0, worker, enter_ns, batch: index, samples, flags };
        lane.push(&wait.encode(time_ns));
        lane.push_clock(ClockAt::WaitExit, time_ns);
        let ahead = index + PREFETCH * u64::from(shape.workers);
        if ahead < steps {
            workers.ask(ahead)?;
        }
        compute_until(time_ns + COMPUTE_NS.min(interval_ns / 4));
        let beat_ns = first_beat_ns + interval_ns * (index + 1);
        std::thread::sleep(Duration::from_nanos(beat_ns.saturating_sub(now_ns())));
    }
    lane.push(&IterEnd { loader: 0, batches: steps, enter_ns: 0 }.encode(now_ns()));
    let mut totals = workers.stop()?;
    lane.push(&Bye {}.encode(now_ns()));
    totals.add(Totals { steps, ..lane.totals() });
    println!("{}", serde_json::to_string(&totals)?);
    Ok(())
}

struct Workers {
    children: Vec<Child>,
    results: BufReader<std::io::PipeReader>,
    ready: BTreeSet<u64>,
}

impl Workers {
    fn start(shape: Shape, rank: u32) -> Result<Workers> {
        let (results, shared) = std::io::pipe()?;
        let children = (0..shape.workers)
            .map(|number| {
                myself(shape, "worker", &[number, rank])
                    .stdin(Stdio::piped())
                    .stdout(shared.try_clone()?)
                    .spawn()
            })
            .collect::<std::io::Result<_>>()
            .context("cannot start a worker")?;
        Ok(Workers { children, results: BufReader::new(results), ready: BTreeSet::new() })
    }

    fn tell(&self, lane: &Lane, shape: Shape) -> Result<()> {
        lane.tell(&Fact::Loader(LoaderFact {
            workers: shape.workers,
            batch_size: Some(shape.batch),
            prefetch_factor: Some(PREFETCH as u32),
            start_method: "spawn".into(),
            dataset: "swarm".into(),
            ..LoaderFact::default()
        }))?;
        lane.tell(&Fact::Workers { loader: 0, pids: self.children.iter().map(Child::id).collect() })
    }

    fn maker(&self, index: u64) -> &Child {
        &self.children[index as usize % self.children.len()]
    }

    fn ask(&mut self, index: u64) -> Result<()> {
        let maker = index as usize % self.children.len();
        let indices = self.children[maker].stdin.as_mut().context("a worker has no input")?;
        Ok(indices.write_all(format!("{index}\n").as_bytes())?)
    }

    /// Batches that come too early are kept.
    fn wait_for(&mut self, index: u64) -> Result<()> {
        while !self.ready.remove(&index) {
            let line = self.line()?;
            let (_, made) = line.split_once(' ').context("a worker printed what is no batch")?;
            self.ready.insert(made.parse()?);
        }
        Ok(())
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.results.read_line(&mut line)? == 0 {
            bail!("the workers ended early");
        }
        Ok(line.trim_end().to_owned())
    }

    /// What they pushed, once they have ended.
    fn stop(mut self) -> Result<Totals> {
        let mut totals = Totals::default();
        for worker in &mut self.children {
            drop(worker.stdin.take());
        }
        for _ in 0..self.children.len() {
            totals.add(serde_json::from_str(&self.line()?)?);
        }
        for worker in &mut self.children {
            worker.wait()?;
        }
        Ok(totals)
    }
}
