//! Decodes a Perfetto trace into what a viewer shows, with messages declared here, and holds it to the format's rules.

#![allow(clippy::unwrap_used, reason = "a trace that is not as it has to be fails the test")]

use prost::Message;
use std::collections::{BTreeMap, HashMap};

#[derive(Clone, PartialEq, Message)]
struct Decoded {
    #[prost(message, repeated, tag = "1")]
    packet: Vec<Packet>,
}

#[derive(Clone, PartialEq, Message)]
struct Packet {
    #[prost(message, optional, tag = "6")]
    clock_snapshot: Option<Clocks>,
    #[prost(uint64, optional, tag = "8")]
    timestamp: Option<u64>,
    #[prost(uint32, optional, tag = "10")]
    sequence: Option<u32>,
    #[prost(message, optional, tag = "11")]
    event: Option<Event>,
    #[prost(message, optional, tag = "12")]
    interned: Option<Interned>,
    #[prost(uint32, optional, tag = "13")]
    flags: Option<u32>,
    #[prost(message, optional, tag = "59")]
    defaults: Option<Defaults>,
    #[prost(message, optional, tag = "60")]
    track: Option<Descriptor>,
}

#[derive(Clone, PartialEq, Message)]
struct Defaults {
    #[prost(uint32, optional, tag = "58")]
    clock: Option<u32>,
}

#[derive(Clone, PartialEq, Message)]
struct Clocks {
    #[prost(message, repeated, tag = "1")]
    clocks: Vec<Clock>,
    #[prost(uint32, optional, tag = "2")]
    primary: Option<u32>,
}

#[derive(Clone, PartialEq, Message)]
struct Clock {
    #[prost(uint32, optional, tag = "1")]
    id: Option<u32>,
    #[prost(uint64, optional, tag = "2")]
    timestamp: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
struct Interned {
    #[prost(message, repeated, tag = "1")]
    categories: Vec<Name>,
    #[prost(message, repeated, tag = "2")]
    events: Vec<Name>,
    #[prost(message, repeated, tag = "3")]
    annotations: Vec<Name>,
}

#[derive(Clone, PartialEq, Message)]
struct Name {
    #[prost(uint64, optional, tag = "1")]
    iid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    name: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct Descriptor {
    #[prost(uint64, optional, tag = "1")]
    uuid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    name: Option<String>,
    #[prost(uint64, optional, tag = "5")]
    parent: Option<u64>,
    #[prost(message, optional, tag = "8")]
    counter: Option<Counter>,
}

#[derive(Clone, PartialEq, Message)]
struct Counter {
    #[prost(string, optional, tag = "6")]
    unit: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct Event {
    #[prost(uint64, repeated, packed = "false", tag = "3")]
    categories: Vec<u64>,
    #[prost(message, repeated, tag = "4")]
    annotations: Vec<Annotation>,
    #[prost(uint32, optional, tag = "9")]
    kind: Option<u32>,
    #[prost(uint64, optional, tag = "10")]
    name: Option<u64>,
    #[prost(uint64, optional, tag = "11")]
    track: Option<u64>,
    #[prost(double, optional, tag = "44")]
    value: Option<f64>,
}

#[derive(Clone, PartialEq, Message)]
struct Annotation {
    #[prost(uint64, optional, tag = "1")]
    name: Option<u64>,
    #[prost(uint64, optional, tag = "3")]
    value: Option<u64>,
}

/// A slice as a viewer shows it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Slice {
    pub(crate) name: String,
    pub(crate) category: String,
    pub(crate) start_ns: u64,
    pub(crate) end_ns: u64,
    pub(crate) depth: usize,
    pub(crate) facts: BTreeMap<String, u64>,
}

/// A trace as a viewer shows it: by the track's path of names.
#[derive(Debug, Default)]
pub(crate) struct Shown {
    pub(crate) slices: BTreeMap<String, Vec<Slice>>,
    pub(crate) values: BTreeMap<String, Vec<(u64, f64)>>,
    pub(crate) clocks: Vec<(u32, u64)>,
}

pub(crate) fn show(bytes: &[u8]) -> Shown {
    let trace = Decoded::decode(bytes).expect("the trace is a message");
    let mut shown = Shown::default();
    let mut paths: HashMap<u64, String> = HashMap::new();
    let [mut categories, mut events, mut annotations] = [const { BTreeMap::<u64, String>::new() }; 3];
    let mut open: HashMap<u64, Vec<Slice>> = HashMap::new();
    for (place, packet) in trace.packet.iter().enumerate() {
        assert_eq!(packet.sequence, Some(1));
        assert_eq!(place == 0, packet.flags == Some(1), "names are interned anew at the beginning alone");
        if place == 0 {
            let clocks = packet.clock_snapshot.as_ref().expect("clocks come first");
            assert_eq!((clocks.primary, packet.defaults.as_ref().unwrap().clock), (Some(1), Some(1)));
            shown.clocks =
                clocks.clocks.iter().map(|clock| (clock.id.unwrap(), clock.timestamp.unwrap())).collect();
        }
        if let Some(new) = &packet.interned {
            let kinds = [
                (&mut categories, &new.categories),
                (&mut events, &new.events),
                (&mut annotations, &new.annotations),
            ];
            for (known, names) in kinds {
                for name in names {
                    let before = known.insert(name.iid.unwrap(), name.name.clone().unwrap());
                    assert_eq!(before, None, "a name's number is given once");
                }
            }
        }
        if let Some(track) = &packet.track {
            let name = track.name.clone().unwrap();
            let path = track.parent.map_or(name.clone(), |parent| format!("{}/{name}", paths[&parent]));
            assert_eq!(paths.insert(track.uuid.unwrap(), path), None, "a track's number is given once");
        }
        let Some(event) = &packet.event else { continue };
        let (at_ns, track) = (packet.timestamp.unwrap(), event.track.unwrap());
        let path = paths[&track].clone();
        let stack = open.entry(track).or_default();
        match event.kind {
            Some(kind @ (1 | 3)) => {
                let slice = Slice {
                    name: events[&event.name.unwrap()].clone(),
                    category: categories[&event.categories[0]].clone(),
                    start_ns: at_ns,
                    end_ns: at_ns,
                    depth: stack.len(),
                    facts: event
                        .annotations
                        .iter()
                        .map(|fact| (annotations[&fact.name.unwrap()].clone(), fact.value.unwrap()))
                        .collect(),
                };
                match kind {
                    1 => stack.push(slice),
                    // An instant is as a slice of no length.
                    _ => shown.slices.entry(path).or_default().push(slice),
                }
            }
            Some(2) => {
                let slice = Slice { end_ns: at_ns, ..stack.pop().expect("a slice that ends has begun") };
                let around = stack.last().map_or(0, |around| around.start_ns);
                assert!(around <= slice.start_ns && slice.start_ns <= at_ns, "{slice:?}");
                shown.slices.entry(path).or_default().push(slice);
            }
            Some(4) => shown.values.entry(path).or_default().push((at_ns, event.value.unwrap())),
            other => panic!("event of kind {other:?}"),
        }
    }
    assert!(open.values().all(Vec::is_empty), "every slice ends");
    for slices in shown.slices.values_mut() {
        slices.sort_by_key(|slice| (slice.start_ns, slice.depth));
    }
    shown
}
