"""One rule's answer within a run, traced."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from cactus_decoding.files.writing import plain
from cactus_decoding.generation.pair import Pair
from cactus_decoding.generation.request import Request
from cactus_decoding.sampling.params import LARGE_VOCABULARY
from cactus_decoding.tracing import TracedPosition, stream_trace, to_json, what_if
from cactus_decoding.tracing.codec import as_object, tree_to_json
from cactus_decoding.tracing.file import lines_of
from cactus_decoding.tracing.page import to_html
from cactus_decoding.types import AcceptanceRule

ROWS_BYTES = 256 * 2**20
"""Memory for one session's rows; positions behind it keep none, and cannot be asked about."""


class Session:
    """A response that grows step by step, and answers questions about its positions.

    Nothing else uses the caches of its models.

    Attributes:
        header: what was asked for, for JSON.
    """

    def __init__(self, pair: Pair, prompt: str, request: Request, *, max_rows_bytes: int = ROWS_BYTES) -> None:
        """Begin the response; raises `ValueError` for arguments that do not go together."""
        self._response = stream_trace(pair, prompt, request, keep_rows=True, max_rows_bytes=max_rows_bytes)
        self._positions: dict[int, TracedPosition] = {}
        self.header = plain(self._response.header.as_dict() | {"spending": str(request.spending)})

    @property
    def bytes(self) -> int:
        """Memory that the kept rows take."""
        return self._response.rows_bytes

    def step(self) -> dict[str, Any] | None:
        """Take a step and return its positions, its tree if it is one, and the metrics so far, or None at the end."""
        step = next(self._response, None)
        if step is None:
            return None
        self._positions.update((position.place, position) for position in step.positions)
        shown = [to_json(position) for position in step.positions]
        trees = {step.step: tree_to_json(step.tree)} if step.tree else {}
        return {"positions": shown, "trees": trees, "metrics": self._response.response.metrics.as_dict()}

    def end(self, *, stopped: bool = False) -> dict[str, Any]:
        """Return why the response ended, and its metrics."""
        trace = self._response.trace
        reason = "stopped" if stopped else trace.finish_reason
        return {"finish_reason": reason, "text": trace.text, "metrics": trace.metrics.as_dict()}

    def what_if(self, place: int, rule: AcceptanceRule | str) -> dict[str, Any]:
        """Return what a rule would have emitted at a position, and at what cost; of the recorded candidates.

        Raises:
            ValueError: for a place without rows: there is no token, or nothing was drafted, or memory ran out.
        """
        position = self._positions.get(place)
        if position is None:
            raise ValueError(f"the answer has no token {place} that can be asked about")
        if position.drafted_id is None:
            raise ValueError("nothing was drafted at this token: it is the target's own, whatever the rule")
        if position.rows is None:
            raise ValueError("this token cannot be asked about: the rows of those before it took all memory for them")
        done = as_object(what_if(position.rows, rule))
        ids = [candidate.token_id for candidate in position.candidates]
        return done | {name: row[ids].tolist() for name, row in done.items() if isinstance(row, Tensor)}

    def lines(self) -> str:
        """Return the trace as JSON Lines; with both models' rows, unless they are large."""
        trace = self._response.trace
        return "".join(lines_of(trace, rows=trace.header.vocabulary <= LARGE_VOCABULARY))

    def page(self) -> str:
        """Return the trace as a page that needs nothing else."""
        return to_html(self._response.trace)
