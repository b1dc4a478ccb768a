//! What it takes of the CPU to get at a sample's bytes, as far as that shows without syscall hooks.

use crate::attribute::View;
use crate::timeline::{Activity, scale};
use stallscope_abi::kernel::Blocked;

/// As long as the gaps between reads that count as reading (`BURST_GAP_NS` in ebpf/programs/account.h).
const OPENING_NS: u64 = 200_000;

/// CPU time that went into the first read of a sample before that blocked: from the sample's beginning it opened a file
/// and asked for its bytes. Nothing else has been in the way of decoding it, of which there was nothing yet.
pub(crate) fn opening(producer: &View<'_>, a_ns: u64, b_ns: u64) -> u64 {
    if producer.kernel.is_none() {
        return 0;
    }
    let mut sum_ns = 0;
    // The interval before, if it ended on a CPU: with what a read sleeps in, the thread leaves that.
    let mut before: Option<(u64, Activity)> = None;
    producer.each(a_ns, b_ns, |from_ns, to_ns, activity| {
        let last = before.take();
        let Some(activity) = activity else { return };
        let times = &activity.times;
        let span_ns = to_ns - from_ns;
        if times.cpu_ns + times.runnable_ns == span_ns && times.cpu_read_ns == 0 {
            before = Some((from_ns, *activity));
        } else if let Some((start_ns, ran)) = last
            && sleeps_in_reads(activity)
            && let Some(begun_ns) = producer.shim.sample_begun(from_ns)
            && from_ns - begun_ns <= OPENING_NS
        {
            let opening_ns = from_ns - begun_ns.max(start_ns);
            sum_ns += scale(opening_ns, ran.times.cpu_ns, from_ns - start_ns);
        }
    });
    sum_ns
}

/// Whether what the task slept in, if anything, was reads. An interval that follows one on a CPU begins with its sleep.
fn sleeps_in_reads(activity: &Activity) -> bool {
    let slept_ns: u64 = activity.times.blocked_ns.iter().sum();
    let read_ns: u64 =
        [Blocked::FileRead, Blocked::Fault, Blocked::Net].iter().map(|kind| activity.of(*kind)).sum();
    slept_ns > 0 && slept_ns == read_ns
}
