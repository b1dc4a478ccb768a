//! Nothing is attached while nobody watches. Alone in its file, as it counts the links of this process.

#[cfg(test)]
#[path = "job/support.rs"]
#[allow(dead_code, reason = "the other tests use the rest")]
mod support;

use std::fs;

use stallscope_abi::kernel::state;
use stallscope_ebpf::{Options, ProgramState};
use support::{Workload, kernel};

/// Links between programs and hooks that this process holds.
#[cfg(test)]
fn links() -> usize {
    fs::read_dir("/proc/self/fdinfo")
        .unwrap()
        .filter_map(|entry| fs::read_to_string(entry.unwrap().path()).ok())
        .filter(|info| info.contains("link_type:"))
        .count()
}

#[test]
fn attached_only_while_somebody_watches() {
    let Some(mut kernel) = kernel(&Options::default()) else { return };
    assert_eq!(links(), 0, "loading attaches nothing");
    assert!(kernel.programs().iter().all(|program| program.state == ProgramState::Off));

    let (mut first, mut second) = (Workload::spawn(&["sleep"]), Workload::spawn(&["sleep"]));
    let slot = kernel.watch(first.pid()).unwrap()[0].header.slot;
    assert_eq!(links(), 6);
    kernel.set_syscalls(true).unwrap();
    assert_eq!(links(), 8);
    kernel.watch(second.pid()).unwrap();
    kernel.unwatch(first.pid()).unwrap();
    assert_eq!(kernel.slot(slot).unwrap().state, state::FREE);
    assert_eq!(links(), 8, "somebody still watches");
    kernel.set_syscalls(false).unwrap();
    assert_eq!(links(), 6);
    kernel.unwatch(second.pid()).unwrap();
    assert_eq!(links(), 0);

    let again = kernel.watch(first.pid()).unwrap();
    assert_ne!(kernel.slot(again[0].header.slot).unwrap().state, state::EXITED, "it can be watched again");
    kernel.unwatch(first.pid()).unwrap();
    drop(kernel);
    assert_eq!(links(), 0);
    for workload in [&mut first, &mut second] {
        workload.begin();
    }
    first.wait();
    second.wait();
}
