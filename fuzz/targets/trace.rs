//! A recorded trace of uses: read, and written as it was read.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stallscope_cache::Trace;

fuzz_target!(|bytes: &[u8]| {
    let Ok(trace) = Trace::read(bytes) else { return };
    let mut written = Vec::new();
    trace.write(&mut written).expect("memory");
    let again = Trace::read(&written[..]).expect("what was written");
    assert_eq!(again.uses.len(), trace.uses.len());
    let _ = (trace.samples(), trace.dataset_bytes());
});
