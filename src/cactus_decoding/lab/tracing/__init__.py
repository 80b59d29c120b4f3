"""See what happened: every position of a response, what both models and the rule thought there, and what it cost."""

from cactus_decoding.lab.tracing.file import read_trace, to_json, write_trace, written
from cactus_decoding.lab.tracing.position_rows import PositionRows
from cactus_decoding.lab.tracing.response import TracedResponse, stream_trace, trace_response
from cactus_decoding.lab.tracing.trace import Trace, TracedNode, TracedPosition, TracedStep, TracedToken, TraceHeader
from cactus_decoding.lab.tracing.what_if import Consequences, what_if

__all__ = [
    "Consequences",
    "PositionRows",
    "Trace",
    "TraceHeader",
    "TracedNode",
    "TracedPosition",
    "TracedResponse",
    "TracedStep",
    "TracedToken",
    "read_trace",
    "stream_trace",
    "to_json",
    "trace_response",
    "what_if",
    "write_trace",
    "written",
]
