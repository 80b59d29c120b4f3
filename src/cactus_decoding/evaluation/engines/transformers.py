"""Answers by the package's own loop over Hugging Face models."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from cactus_decoding.budgets.budget import Budget
from cactus_decoding.drafting.lengths import FixedLength, as_draft_length
from cactus_decoding.drafting.model import ModelDrafter
from cactus_decoding.evaluation.engines.auditing import AuditingVerifier
from cactus_decoding.evaluation.engines.engine import Answer, Audited, Problem
from cactus_decoding.evaluation.run_config import Cell
from cactus_decoding.generation.generate import stream
from cactus_decoding.generation.pair import Pair, load_pair
from cactus_decoding.models.cached import check_fits
from cactus_decoding.rules import parse_rule
from cactus_decoding.sampling.params import SamplingParams
from cactus_decoding.types import DraftLength, Verifier
from cactus_decoding.verification.verifiers import make_verifier

BUNDLED = "bundled"


class TransformersEngine:
    """One pair, one response at a time.

    Args:
        pair: the models.
        audited: whether answers carry their exact costs.
    """

    def __init__(self, pair: Pair, *, audited: bool = True) -> None:
        """Keep the models, and run them once: the first passes of a process are slow."""
        self._pair, self._audited = pair, audited
        self._lengths: dict[Cell, DraftLength] = {}
        for _ in stream(pair, "Question:", num_speculative_tokens=2, max_new_tokens=8, seed=0):
            pass

    @classmethod
    def load(cls, target: str, draft: str, *, audited: bool = True) -> TransformersEngine:
        """Load the models; raise `ValueError` where they cannot be."""
        names = (None if name == BUNDLED else name for name in (target, draft))
        return cls(load_pair(*names), audited=audited)

    @property
    def pair(self) -> Pair:
        """The models."""
        return self._pair

    def check(self, cell: Cell) -> None:
        """Raise `ValueError` for rules, budgets and ways to verify that do not go together."""
        length = self._length_of(cell)
        sampling = SamplingParams(cell.temperature, cell.top_k, cell.top_p, cell.min_p)
        make_verifier(
            parse_rule(cell.rule),
            lambda logits, _: sampling(logits),
            lambda logits, _: sampling(logits),
            greedy=cell.temperature == 0,
            budget=_budget(cell),
            verification=cell.verification,
            fixed_blocks=isinstance(self._pair.drafter, ModelDrafter) and isinstance(length, FixedLength),
        )

    def check_prompt(self, cell: Cell, problem: Problem) -> None:
        """Raise `ValueError` for an empty prompt, or one that leaves no room in a context window."""
        length, most = len(self._pair.tokenizer(problem.prompt).input_ids), self._length_of(cell).most
        try:
            if length == 0:
                raise ValueError("the prompt must have at least one token, but has none")
            check_fits("target", self._pair.target.max_length, length, most)
            if most:
                check_fits("draft", self._pair.draft_window, length, most)
        except ValueError as error:
            raise ValueError(f"task {cell.task}, problem {problem.id!r}: {error}") from None

    def answer(self, cell: Cell, prompt: str, stop: tuple[str, ...], seed: int) -> Answer:
        """Answer one prompt, as if it were the first: what an earlier answer left cached would cut this one's time."""
        reset = getattr(self._pair.drafter, "reset", None)
        if reset is not None:
            reset()
        auditors: list[AuditingVerifier] = []
        response = stream(
            self._pair,
            prompt,
            rule=cell.rule,
            budget=_budget(cell),
            verification=cell.verification,
            num_speculative_tokens=self._length_of(cell),
            max_new_tokens=cell.max_new_tokens,
            temperature=cell.temperature,
            top_k=cell.top_k,
            top_p=cell.top_p,
            min_p=cell.min_p,
            stop=stop,
            seed=seed,
            observe=partial(self._observe, cell, auditors) if self._audited else None,
        )
        for _ in response:
            pass
        metrics, audited = response.metrics, None
        if auditors:
            (auditor,) = auditors
            metrics = replace(metrics, seconds=metrics.seconds - auditor.seconds)
            audited = Audited(auditor.positions, auditor.nats, auditor.tv, auditor.max_log_ratio)
        return Answer(response.text, response.finish_reason or "length", metrics, audited)

    def close(self) -> None:
        """Do nothing: all that this engine holds are Python objects."""

    def _length_of(self, cell: Cell) -> DraftLength:
        """Return a cell's draft length; one that learns does so within its cell."""
        if cell not in self._lengths:
            self._lengths[cell] = as_draft_length(cell.num_speculative_tokens)
        return self._lengths[cell]

    def _observe(self, cell: Cell, auditors: list[AuditingVerifier], verifier: Verifier) -> AuditingVerifier:
        sampling = SamplingParams(cell.temperature, cell.top_k, cell.top_p, cell.min_p)
        pace = None
        if cell.budget_nats is not None and cell.expected_tokens is not None:
            pace = cell.budget_nats, cell.expected_tokens
        rule = parse_rule(cell.rule)
        auditors.append(AuditingVerifier(verifier, rule, lambda logits, _: sampling(logits), pace))
        return auditors[0]


def _budget(cell: Cell) -> Budget | None:
    if cell.budget_nats is None:
        return None
    return Budget(nats=cell.budget_nats, expected_tokens=cell.expected_tokens)
