//! What the shim's moments tell of the order within the kernel's intervals.

use crate::stage::{self, Does, MS, TRAINER, WORKER, training};
use stallscope_abi::kernel::{self, Blocked};
use stallscope_abi::lane::{ClockAt, Sample};
use stallscope_model::Cause::*;
use stallscope_model::Phase::Training;

#[test]
fn what_leads_to_the_first_read_of_a_sample_is_reading() {
    const US: u64 = 1000;
    let mut stage = training();
    stage.does(TRAINER, 0, &[(110, Does::Cpu), (90, Does::In(Blocked::Pipe))]);
    let mut at_ns = 110 * MS;
    for (length_us, reads) in
        [(100, false), (9_900, true), (10_150, false), (19_850, true), (40_000, false), (10_000, true)]
    {
        let mut slice = stage::slice(WORKER, 0, 0, Does::Cpu);
        slice.start_ns = at_ns;
        at_ns += length_us * US;
        slice.header.time_ns = at_ns;
        if reads {
            // Its wake-up took a while.
            slice.times.blocked_ns[0] = (length_us - 50) * US;
            slice.times.runnable_ns = 50 * US;
        } else {
            slice.times.cpu_ns = length_us * US;
        }
        stage.ledger.kernel(&kernel::Record::Slice(slice));
    }
    // Of the CPU time before their reads 100 and 150 us went into these, and nothing of the 40 ms before the last one.
    for (begun_us, end_us) in [(110_000, 130_000), (130_000, 150_000), (150_000, 200_000)] {
        let sample = Sample { loader: 0, count: 1, start_ns: begun_us * US, batch: 0, read_ns: 0 };
        stage.lane(WORKER, sample.encode(end_us * US));
    }
    stage.batch(WORKER, 110, 200, 1);
    stage.wait(110, 200, 1);
    stage.finish(300);
    let causes = &stage.step(Training, 0).causes;
    let found = [Compute, Fetch, Prep, Starved].map(|cause| causes[cause] / US);
    assert_eq!(found, [10_000, 39_850, 50_000, 150]);
}

#[test]
fn an_interval_of_several_things_is_cut_where_the_clocks_were_read() {
    let mut stage = training();
    stage.does(TRAINER, 0, &[(120, Does::Cpu), (30, Does::In(Blocked::Pipe))]);
    let mut woken = stage::slice(TRAINER, 150, 170, Does::Cpu);
    (woken.times.runnable_ns, woken.times.cpu_ns) = (4 * MS, 16 * MS);
    stage.ledger.kernel(&kernel::Record::Slice(woken));
    stage.does(TRAINER, 170, &[(40, Does::Cpu)]);
    stage.does(WORKER, 100, &[(50, Does::Cpu), (60, Does::In(Blocked::Pipe))]);
    stage.batch(WORKER, 100, 150, 1);
    stage.batch(WORKER, 150, 155, 2);
    stage.clock(TRAINER, ClockAt::WaitExit, 100, (0, 0, 0));
    stage.clock(TRAINER, ClockAt::WaitEnter, 120, (20, 0, 20));
    stage.wait(120, 160, 1);
    stage.clock(TRAINER, ClockAt::WaitExit, 160, (26, 4, 26));
    stage.wait(200, 200, 2);
    stage.finish(300);
    // All of the time that it was ready for a CPU came before it had the batch.
    stage.expect(Training, 0, &[(Compute, 20), (Prep, 30), (Starved, 4), (Transfer, 6)]);
    stage.expect(Training, 1, &[(Compute, 40)]);
}
