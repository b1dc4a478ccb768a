"""Reads a Perfetto trace with Perfetto's own messages and prints what is in it as JSON. Usage: read_trace.py FILE"""

import json
import sys
from pathlib import Path

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import ClockSnapshot, Trace, TrackEvent

trace = Trace()
trace.ParseFromString(Path(sys.argv[1]).read_bytes())

# What Perfetto's messages do not know would have been kept aside.
size = trace.ByteSize()
trace.DiscardUnknownFields()
unknown = size - trace.ByteSize()

tracks, names, categories, notes = {}, {}, {}, {}
slices, values, open_slices = [], [], {}
for packet in trace.packet:
    for known, new in (
        (categories, packet.interned_data.event_categories),
        (names, packet.interned_data.event_names),
        (notes, packet.interned_data.debug_annotation_names),
    ):
        known.update((entry.iid, entry.name) for entry in new)
    if packet.HasField("track_descriptor"):
        track = packet.track_descriptor
        path = tracks[track.parent_uuid] + "/" + track.name if track.HasField("parent_uuid") else track.name
        tracks[track.uuid] = path
    if not packet.HasField("track_event"):
        continue
    event = packet.track_event
    path = tracks[event.track_uuid]
    if event.type == TrackEvent.TYPE_SLICE_BEGIN:
        facts = {notes[note.name_iid]: note.uint_value for note in event.debug_annotations}
        begun = [path, names[event.name_iid], categories[event.category_iids[0]], packet.timestamp, facts]
        open_slices.setdefault(event.track_uuid, []).append(begun)
    elif event.type == TrackEvent.TYPE_SLICE_END:
        begun = open_slices[event.track_uuid].pop()
        slices.append([*begun, packet.timestamp])
    elif event.type == TrackEvent.TYPE_COUNTER:
        values.append([path, packet.timestamp, event.double_counter_value])

snapshot = trace.packet[0].clock_snapshot
builtin = ClockSnapshot.Clock.BuiltinClocks
print(
    json.dumps(
        {
            "unknown_bytes": unknown,
            "primary_clock": snapshot.primary_trace_clock,
            "default_clock": trace.packet[0].trace_packet_defaults.timestamp_clock_id,
            "clocks": {builtin.Name(clock.clock_id): clock.timestamp for clock in snapshot.clocks},
            "slices": slices,
            "values": values,
            "open": sum(map(len, open_slices.values())),
        }
    )
)
