//! Writes packets as they come, so that a trace takes no more memory than its names.

use super::messages::*;
use prost::Message;
use std::collections::HashMap;
use std::io::{self, BufWriter, Write};

/// All packets are of one sequence: its names are valid throughout.
const SEQUENCE: u32 = 1;
const BUFFER_BYTES: usize = 1 << 20;

/// A trace that is being written.
pub(super) struct Trace<'a> {
    out: BufWriter<&'a mut dyn Write>,
    buffer: Vec<u8>,
    tracks: u64,
    categories: Names,
    events: Names,
    annotations: Names,
}

/// A track by its number in the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Track(u64);

/// Where a track is shown.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) under: Option<Track>,
    /// Among its siblings.
    pub(super) order: i32,
}

/// What a slice is called, and what kind of slice it is.
#[derive(Clone, Copy)]
pub(super) struct Label<'a> {
    pub(super) name: &'a str,
    pub(super) category: &'static str,
}

impl<'a> Trace<'a> {
    /// Begins a trace whose times are on the wall clock; `clocks` is one moment on that clock and others.
    pub(super) fn begin(out: &'a mut dyn Write, clocks: Vec<Clock>) -> io::Result<Self> {
        let mut trace = Trace {
            out: BufWriter::with_capacity(BUFFER_BYTES, out),
            buffer: Vec::new(),
            tracks: 0,
            categories: Names::default(),
            events: Names::default(),
            annotations: Names::default(),
        };
        let clock = BuiltinClock::Realtime;
        trace.packet(TracePacket {
            sequence_flags: Some(STATE_CLEARED),
            trace_packet_defaults: Some(TracePacketDefaults { timestamp_clock_id: clock as u32 }),
            data: Some(Data::ClockSnapshot(ClockSnapshot { clocks, primary_trace_clock: clock.into() })),
            ..TracePacket::default()
        })?;
        Ok(trace)
    }

    /// A track of slices, or one that only holds others.
    pub(super) fn track(&mut self, name: &str, place: Place) -> io::Result<Track> {
        self.describe(name, place, None)
    }

    /// A track of one value over time, in `unit`.
    pub(super) fn counter_track(&mut self, name: &str, unit: &str, place: Place) -> io::Result<Track> {
        self.describe(name, place, Some(CounterDescriptor { unit_name: unit.to_owned() }))
    }

    fn describe(
        &mut self,
        name: &str,
        place: Place,
        counter: Option<CounterDescriptor>,
    ) -> io::Result<Track> {
        self.tracks += 1;
        self.packet(TracePacket {
            data: Some(Data::TrackDescriptor(TrackDescriptor {
                uuid: self.tracks,
                name: stallscope_look::clean(name, true),
                parent_uuid: place.under.map(|track| track.0),
                counter,
                child_ordering: Some(ChildOrdering::Explicit.into()),
                sibling_order_rank: Some(place.order),
            })),
            ..TracePacket::default()
        })?;
        Ok(Track(self.tracks))
    }

    /// Begins a slice; those that begin before it ends are inside it.
    pub(super) fn open(
        &mut self,
        track: Track,
        at_ns: u64,
        label: Label<'_>,
        facts: &[(&'static str, u64)],
    ) -> io::Result<()> {
        self.named(EventType::SliceBegin, track, at_ns, label, facts)
    }

    fn named(
        &mut self,
        kind: EventType,
        track: Track,
        at_ns: u64,
        label: Label<'_>,
        facts: &[(&'static str, u64)],
    ) -> io::Result<()> {
        let mut new = InternedData::default();
        let event = TrackEvent {
            r#type: kind.into(),
            track_uuid: track.0,
            category_iids: vec![self.categories.number(label.category, &mut new.event_categories)],
            name_iid: Some(self.events.number(label.name, &mut new.event_names)),
            debug_annotations: facts
                .iter()
                .map(|(name, value)| DebugAnnotation {
                    name_iid: self.annotations.number(name, &mut new.debug_annotation_names),
                    uint_value: Some(*value),
                })
                .collect(),
            ..TrackEvent::default()
        };
        self.event(at_ns, event, (new != InternedData::default()).then_some(new))
    }

    /// Ends the slice that was begun last.
    pub(super) fn close(&mut self, track: Track, at_ns: u64) -> io::Result<()> {
        let event =
            TrackEvent { r#type: EventType::SliceEnd.into(), track_uuid: track.0, ..TrackEvent::default() };
        self.event(at_ns, event, None)
    }

    /// Something that took no time.
    pub(super) fn mark(
        &mut self,
        track: Track,
        at_ns: u64,
        label: Label<'_>,
        facts: &[(&'static str, u64)],
    ) -> io::Result<()> {
        self.named(EventType::Instant, track, at_ns, label, facts)
    }

    /// Sets the value of a counter track from `at_ns` on.
    pub(super) fn count(&mut self, track: Track, at_ns: u64, value: f64) -> io::Result<()> {
        let event = TrackEvent {
            r#type: EventType::Counter.into(),
            track_uuid: track.0,
            double_counter_value: Some(value),
            ..TrackEvent::default()
        };
        self.event(at_ns, event, None)
    }

    /// Writes what is left.
    pub(super) fn end(mut self) -> io::Result<()> {
        self.out.flush()
    }

    fn event(&mut self, at_ns: u64, event: TrackEvent, new: Option<InternedData>) -> io::Result<()> {
        self.packet(TracePacket {
            timestamp: Some(at_ns),
            interned_data: new,
            sequence_flags: Some(NEEDS_STATE),
            data: Some(Data::TrackEvent(event)),
            ..TracePacket::default()
        })
    }

    fn packet(&mut self, packet: TracePacket) -> io::Result<()> {
        let packet = TracePacket { trusted_packet_sequence_id: SEQUENCE, ..packet };
        self.buffer.clear();
        self.buffer.push(TRACE_PACKET_TAG);
        packet.encode_length_delimited(&mut self.buffer).map_err(io::Error::other)?;
        self.out.write_all(&self.buffer)
    }
}

/// Names that were written once and have a number since.
#[derive(Default)]
struct Names(HashMap<String, u64>);

impl Names {
    fn number(&mut self, name: &str, new: &mut Vec<Name>) -> u64 {
        if let Some(number) = self.0.get(name) {
            return *number;
        }
        let number = self.0.len() as u64 + 1;
        self.0.insert(name.to_owned(), number);
        new.push(Name { iid: number, name: stallscope_look::clean(name, true) });
        number
    }
}
