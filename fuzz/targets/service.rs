//! The node's collector: callers, what they say, records and processes, in any order. Nobody is sent what is another user's,
//! and nothing is left behind when all are gone.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stallscope_collector::ServiceBench;

fuzz_target!(|bytes: &[u8]| ServiceBench::default().play(&bytes[..bytes.len().min(3000)]));
