//! The lines and frames of all sockets: what decodes is encoded and decoded to the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stallscope_abi::kernel::{Record, TaskSlot};
use stallscope_ring::{Fact, Greeting};
use stallscope_wire::frame::{Splitter, Tag, Tick};
use stallscope_wire::{Hello, JobSays, NodeHello, NodeReply, Reply, Request};

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, rest)) = bytes.split_first() else { return };
    match kind % 6 {
        0 => {
            drop(stallscope_wire::decode::<Hello>(rest).map(Hello::accept));
            drop(stallscope_wire::decode::<NodeHello>(rest));
            drop(stallscope_wire::decode::<JobSays>(rest));
        }
        1 => {
            if let Ok(request) = stallscope_wire::decode::<Request>(rest) {
                let _ = stallscope_wire::decode::<Request>(&stallscope_wire::encode(&request));
            }
        }
        2 => {
            drop(stallscope_wire::decode::<Reply>(rest));
            drop(stallscope_wire::decode::<NodeReply>(rest));
        }
        3 => drop(serde_json::from_slice::<Greeting>(rest)),
        4 => drop(serde_json::from_slice::<Fact>(rest)),
        _ => {
            // In pieces, as they arrive.
            let mut splitter = Splitter::default();
            for piece in rest.chunks(usize::from(*kind) + 1) {
                let fed = splitter.feed(piece, |tag, payload| match tag {
                    Tag::Record => drop(Record::parse(payload)),
                    Tag::Slot => drop(TaskSlot::parse(payload)),
                    Tag::Tick => drop(stallscope_wire::decode::<Tick>(payload)),
                    _ => {}
                });
                if fed.is_err() {
                    return;
                }
            }
        }
    }
});
