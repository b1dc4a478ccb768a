//! What is refused before the kernel is asked, in words.

#[path = "../../tests/support/skipped.rs"]
mod skipped;

use std::os::unix::process::CommandExt;
use std::process::Command;

use stallscope_ebpf::{Error, Kernel, Options};

#[test]
fn a_ring_of_an_impossible_size_is_named() {
    for ring_bytes in [0, 1024, 5000] {
        let refused = Kernel::load(&Options { ring_bytes, ..Options::default() });
        assert!(matches!(refused, Err(Error::RingSize(size)) if size == ring_bytes));
    }
}

#[test]
fn without_privilege_the_way_out_is_named() {
    let mut trace = std::env::current_exe().unwrap();
    trace.pop();
    trace.pop();
    trace.push("examples/trace");
    // As nobody when this is root, else as the user who runs this.
    let mut command = Command::new(&trace);
    // SAFETY: takes nothing and cannot fail.
    if unsafe { libc::geteuid() } == 0 {
        command.uid(65534).gid(65534);
    }
    match command.arg("1").output() {
        Ok(output) => {
            let error = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success() && error.contains("run this with sudo"), "{error}");
        }
        Err(error) => {
            skipped::skipped(format_args!("nobody may run {}: {error}", trace.display()));
        }
    }
}
