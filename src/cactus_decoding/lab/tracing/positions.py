"""What a trace says of each position, read from outcomes: what the models and the rule thought, and what it cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from torch import Tensor

from cactus_decoding.core.models.tokenizers import UNFINISHED, IncrementalDetokenizer, Tokenizer
from cactus_decoding.core.policy.position import Position
from cactus_decoding.core.request import Request
from cactus_decoding.core.rules import Lossless
from cactus_decoding.core.schemes import VERIFICATIONS
from cactus_decoding.core.types import ROOT, Fate, Outcome, Visit
from cactus_decoding.lab.tracing.position_rows import PositionRows
from cactus_decoding.lab.tracing.trace import NodeFate, TracedNode, TracedPosition, TracedToken
from cactus_decoding.lab.tracing.what_if import consequences


def check_traced(request: Request) -> None:
    if request.scheme.lossy:
        raise ValueError(f"a trace says what each position costs, which under {request.verification} nobody knows")


class TokenNames:
    """The text of each token by itself, cached."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer, self._names = tokenizer, dict[int, str]()
        # some tokenizers drop a space at the start of a text, so every token is decoded after another one
        self._before = list(tokenizer("a", add_special_tokens=False).input_ids)[-1:]

    def __call__(self, token_id: int) -> str:
        if token_id not in self._names:
            self._names[token_id] = self._look_up(token_id)
        return self._names[token_id]

    def _look_up(self, token_id: int) -> str:
        before, both = (self._decode(ids) for ids in (self._before, [*self._before, token_id]))
        text = both.removeprefix(before)
        if text and UNFINISHED not in text:
            return text
        name = self._tokenizer.convert_ids_to_tokens(token_id) if token_id < len(self._tokenizer) else None
        return name if isinstance(name, str) and name else f"#{token_id}"

    def _decode(self, token_ids: list[int]) -> str:
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))


class PositionReader:
    """Reads the positions of one response, and the trees of its steps, from its outcomes in order.

    Positions are the accepted ones, that of the first rejection, and the bonus token's. Candidates are the
    ``top_candidates`` likeliest tokens under the target and under the draft. Positions keep both models' rows until
    the next would exceed ``max_rows_bytes``.
    """

    def __init__(
        self, tokenizer: Tokenizer, request: Request, *, top_candidates: int = 5, max_rows_bytes: float = 0
    ) -> None:
        check_traced(request)
        self._name = TokenNames(tokenizer)
        self._text: IncrementalDetokenizer[Fate] = IncrementalDetokenizer(tokenizer)
        self._request, self._top = request, top_candidates
        self._max_rows_bytes, self.rows_bytes = max_rows_bytes, 0
        self._steps, self._positions, self._spent = 0, 0, 0.0

    def read(self, outcome: Outcome) -> tuple[TracedPosition, ...]:
        token_ids = outcome.all_token_ids
        weight, positions = 1.0, list[TracedPosition]()
        for i, (token_id, fate) in enumerate(zip(token_ids, outcome.all_fates, strict=True)):
            position = TracedPosition(
                place=self._positions + i,
                step=self._steps,
                emitted=i < outcome.num_emitted,
                token_id=token_id,
                token=self._name(token_id),
                text=self._text_of(outcome, i),
                fate=fate,
                rule=str(Lossless()),
            )
            if i < len(outcome.visits):
                position = self._judged(position, outcome.visits[i], weight)
                weight = position.acceptance_prob or 0.0
            else:  # drawn from the target's own row
                node = outcome.path[-1] if outcome.path else ROOT
                row = outcome.rows.target_after(node).double().cpu()
                untempered = outcome.rows.untempered_after(node).cpu()
                candidates = self._candidates([token_id], untempered, row, row, None, None)
                position = replace(position, budget_left=self._budget_left(), candidates=candidates)
            positions.append(position)
        self._steps, self._positions = self._steps + 1, self._positions + len(positions)
        return tuple(positions)

    def read_tree(self, outcome: Outcome, positions: Sequence[TracedPosition]) -> tuple[TracedNode, ...]:
        proposal = outcome.proposal
        if not proposal.branches:
            return ()
        judged: dict[int, tuple[TracedPosition | None, NodeFate | None]] = {}
        for visit, position in zip(outcome.visits, positions, strict=False):
            judged[visit.node] = position, "rejected"
        for node, position in zip(outcome.path, positions, strict=False):
            judged[node] = position, cast(NodeFate, str(position.fate))
        nodes = []
        for node, token_id in enumerate(proposal.token_ids):
            parent = proposal.parents[node]
            draft, (judged_at, fate) = proposal.row_after(parent), judged.get(node, (None, None))
            nodes.append(
                TracedNode(
                    token_id=token_id,
                    token=self._name(token_id),
                    parent=parent,
                    drawn=proposal.drawn[node],
                    draft_prob=None if draft is None else draft[token_id].item(),
                    fate=fate,
                    rule=None if judged_at is None else judged_at.rule,
                    nats=None if judged_at is None else judged_at.emitted_nats,
                )
            )
        return tuple(nodes)

    def _text_of(self, outcome: Outcome, i: int) -> str:
        if i >= outcome.num_emitted:
            return ""
        parts = self._text.push(outcome.all_token_ids[i], outcome.all_fates[i])
        if outcome.finish_reason is not None and i == outcome.num_emitted - 1:
            parts += self._text.finish()
        return "".join(part.text for part in parts)

    def _judged(self, traced: TracedPosition, visit: Visit, weight: float) -> TracedPosition:
        """Add what is known where there was a proposal; ``weight`` is that of those before it, judged jointly."""
        position = Position(visit.rows, visit.rows.proposal.parents[visit.node])
        seen = consequences(position, visit.token_id, visit.rule)
        nats = seen.emitted_nats if visit.nats is None else visit.nats  # as it was charged, to the last bit
        self._spent += nats
        draft_prob, how = seen.draft[visit.token_id].item(), self._request.verification
        acceptance_prob: float | None = seen.acceptance_prob
        if how != "token" and visit.rows.proposal.branches:
            acceptance_prob = None
        elif VERIFICATIONS[how].judges_steps:
            acceptance_prob = min(weight * seen.relaxed[visit.token_id].item() / (draft_prob or 1.0), 1.0)
        drafted = [visit.token_id, traced.token_id]
        return replace(
            traced,
            rule=seen.rule,
            drafted_id=visit.token_id,
            drafted=self._name(visit.token_id),
            draft_prob=draft_prob,
            relaxed_prob=seen.relaxed_prob,
            residual_scale=seen.residual_scale,
            acceptance_prob=acceptance_prob,
            acceptance=seen.acceptance if how == "token" else None,
            conditional_nats=None if math.isnan(seen.conditional_nats) else seen.conditional_nats,
            emitted_nats=nats,
            tv=seen.tv,
            max_log_ratio=max(seen.max_log_ratio, 0.0),
            fell_back=visit.fell_back,
            protected=visit.protected,
            budget_left=self._budget_left(),
            candidates=self._candidates(
                drafted, position.untempered, position.row.dense().double(), seen.emitted, seen.draft, seen.relaxed
            ),
            rows=self._kept(position, visit.token_id),
        )

    def _kept(self, position: Position, token_id: int) -> PositionRows | None:
        """Return the rows if there is room for them; after the first that does not fit none are kept."""
        if not self._max_rows_bytes:
            return None
        rows = PositionRows.keep(position, token_id, untempered=self._request.sampling.temperature == 0)
        if self.rows_bytes + rows.nbytes > self._max_rows_bytes:
            self._max_rows_bytes = 0
            return None
        self.rows_bytes += rows.nbytes
        return rows

    def _budget_left(self) -> float | None:
        budget = self._request.budget
        return None if budget is None else max(budget.limit - self._spent, 0.0)

    def _candidates(
        self,
        always: list[int],
        untempered: Tensor,
        target: Tensor,
        emitted: Tensor,
        draft: Tensor | None,
        relaxed: Tensor | None,
    ) -> tuple[TracedToken, ...]:
        """Describe the likeliest tokens and those in ``always``, the target's likeliest first."""
        chosen, untempered = dict.fromkeys(always), untempered.double().cpu()
        for row in (untempered, draft):
            if row is not None:
                top = row.topk(min(self._top, len(row)))
                pairs = zip(top.indices.tolist(), top.values.tolist(), strict=True)
                chosen |= dict.fromkeys(token_id for token_id, probability in pairs if probability > 0)
        in_order = sorted(chosen, key=lambda token_id: (-untempered[token_id].item(), token_id))
        return tuple(
            TracedToken(
                token_id=token_id,
                token=self._name(token_id),
                untempered=untempered[token_id].item(),
                target=target[token_id].item(),
                draft=None if draft is None else draft[token_id].item(),
                relaxed=None if relaxed is None else relaxed[token_id].item(),
                emitted=emitted[token_id].item(),
            )
            for token_id in in_order
        )
