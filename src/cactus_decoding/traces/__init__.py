"""See what happened: every position of a response, what both models and the rule thought there, and what it cost."""

from cactus_decoding.traces.codec import to_json
from cactus_decoding.traces.file import TraceWriter, read_trace, write_trace, written
from cactus_decoding.traces.laws import Consequences, KeptRow, KeptRows, what_if
from cactus_decoding.traces.record import Candidate, Trace, TracedPosition, TracedStep, TraceHeader
from cactus_decoding.traces.response import Settings, TracedResponse, stream_trace, trace_response

__all__ = [
    "Candidate",
    "Consequences",
    "KeptRow",
    "KeptRows",
    "Settings",
    "Trace",
    "TraceHeader",
    "TraceWriter",
    "TracedPosition",
    "TracedResponse",
    "TracedStep",
    "read_trace",
    "stream_trace",
    "to_json",
    "trace_response",
    "what_if",
    "write_trace",
    "written",
]
