"""What determines a rule's behaviour at a position: both models' rows, in memory and in files."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import PlainValidator
from torch import Tensor

from cactus_decoding.core.checks import check_integer, check_probabilities
from cactus_decoding.core.files.jsonl import STRICT
from cactus_decoding.core.policy.position import Position
from cactus_decoding.core.sampling.rows import SparseProbs
from cactus_decoding.core.types import ROOT, Proposal, StepRows

_KINDS_OF_NUMBERS = {"float32": "<f4", "float64": "<f8", "int32": "<i4"}


def _row_to_json(row: SparseProbs) -> dict[str, Any]:
    """Return bytes in base64, so that every bit survives."""
    token_ids = None if row.token_ids is None else _to_text(row.token_ids)
    dtype = str(row.probs.dtype).removeprefix("torch.")
    return {"vocabulary": row.vocabulary, "dtype": dtype, "values": _to_text(row.probs), "token_ids": token_ids}


def _row_from_json(value: Any) -> SparseProbs:
    try:
        values, vocabulary = _from_text(value["values"], value["dtype"]), int(value["vocabulary"])
        token_ids = None if value["token_ids"] is None else _from_text(value["token_ids"], "int32")
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the row is damaged ({error})") from None
    if len(values) != (vocabulary if token_ids is None else len(token_ids)):
        raise ValueError("the row is damaged (the length is wrong)")
    if token_ids is not None and len(token_ids) and not 0 <= int(token_ids.min()) <= int(token_ids.max()) < vocabulary:
        raise ValueError("the row is damaged (a token is out of range)")
    return SparseProbs(vocabulary, values, token_ids)


def _to_text(tensor: Tensor) -> str:
    array = tensor.numpy()
    return base64.b64encode(array.astype(array.dtype.newbyteorder("<")).tobytes()).decode()


def _from_text(text: str, dtype: str) -> Tensor:
    array = np.frombuffer(base64.b64decode(text, validate=True), dtype=_KINDS_OF_NUMBERS[dtype])
    return torch.from_numpy(array.astype(array.dtype.newbyteorder("=")))


Row = Annotated[SparseProbs, PlainValidator(_row_from_json)]


@dataclass(frozen=True, eq=False)
class PositionRows:
    """All that determines a rule's behaviour at one position."""

    drafted_id: int  # the drafted token n
    target: Row  # the row q that is sampled from
    draft: Row | None = None  # the row p; None if the choice was deterministic
    untempered: Row | None = None  # before temperature, kept at temperature 0, for `RelaxedGreedy`
    # in a tree, the tokens proposed here in any case; n was drawn from the draft's row without them, or is one of them
    fixed_token_ids: tuple[int, ...] = ()
    drawn: bool = True  # whether any token was drawn here, beside the fixed ones

    __pydantic_config__ = STRICT

    @classmethod
    def keep(cls, position: Position, token_id: int, *, untempered: bool) -> PositionRows:
        """Keep the rows of a position at which a token was judged, if asked with the row before temperature."""
        beside = {"fixed_token_ids": tuple(position.fixed_token_ids.tolist()), "drawn": position.is_drawn}
        rows = [position.row.dense(), position.draft_row, position.untempered if untempered else None]
        target, draft, before = (None if row is None else SparseProbs.keep(row) for row in rows)
        assert target is not None
        return cls(token_id, target, draft, before, **({} if position.is_plain else beside))  # type: ignore[arg-type]

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON; chains have no fixed tokens, and do not mention them."""
        kept = {"target": self.target, "draft": self.draft, "untempered": self.untempered}
        fixed = {"fixed_token_ids": list(self.fixed_token_ids), "drawn": self.drawn} if self.fixed_token_ids else {}
        rows = {name: None if row is None else _row_to_json(row) for name, row in kept.items()}
        return {"drafted_id": self.drafted_id} | rows | fixed

    @property
    def nbytes(self) -> int:
        return sum(row.nbytes for row in (self.target, self.draft, self.untempered) if row is not None)

    def position(self) -> Position:
        """Return the position; if n is a fixed token, any other stands for the drawn one."""
        target = check_probabilities("rows.target", self.target.dense())[None]
        token = check_integer("rows.drafted_id", self.drafted_id, 0, target.shape[-1] - 1)
        draft = None if self.draft is None else check_probabilities("rows.draft", self.draft.dense())
        fixed = list(self.fixed_token_ids)
        left = None if draft is None else (draft > 0).index_fill(0, torch.tensor(fixed, dtype=torch.long), 0)
        drawn = self.drawn and left is not None and bool(left.any())
        if drawn and token in fixed:
            token = next(each for each in range(target.shape[-1]) if each not in fixed)
        other = [] if token in fixed else [token]
        token_ids, flags = [*fixed, *other], [False for _ in fixed] + [drawn for _ in other]
        proposal = Proposal(token_ids, None if draft is None else draft[None], [ROOT] * len(token_ids), flags)
        before = target if self.untempered is None else self.untempered.dense()[None]
        return Position(StepRows(target, token_ids, proposal, lambda *_: target, lambda *_: before), ROOT)


def check_tokens(rows: PositionRows | None) -> PositionRows | None:
    """Raise `ValueError` where rows from a file name tokens beyond their vocabulary."""
    tokens = () if rows is None else (rows.drafted_id, *rows.fixed_token_ids)
    if rows is not None and not all(0 <= token < rows.target.vocabulary for token in tokens):
        raise ValueError(f"tokens must be below {rows.target.vocabulary}, but are {tokens}")
    return rows
