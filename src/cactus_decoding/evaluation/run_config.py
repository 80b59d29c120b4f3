"""A cell: one setting of everything that an evaluation varies; its seeds, and the grid that cells come from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace


@dataclass(frozen=True)
class Cell:
    """What one line of a result file is about.

    Attributes:
        task: name of the task.
        target: path or name of the verifying model, or ``bundled``.
        draft: the proposing model's likewise, ``ngram``, or ``early_exit:layers=3``.
        engine: what decodes.
        rule: spelling of the acceptance rule.
        budget_nats: the budget of each answer in nats; None without one.
        expected_tokens: over how many tokens the budget is spread; None where it is not.
        verification: ``token`` or ``block``.
        num_speculative_tokens: proposals per step, or the spelling of a draft length; 0 is the target alone.
        temperature: of the sampling, as are ``top_k``, ``top_p`` and ``min_p``.
        top_k: 0 keeps all.
        top_p: in (0, 1].
        min_p: in [0, 1].
        max_new_tokens: upper limit of an answer's length.
        problems: how many are answered.
        seed: with a problem's place it gives the seed of its answer.
    """

    task: str
    target: str
    draft: str
    engine: str = "transformers"
    rule: str = "lossless"
    budget_nats: float | None = None
    expected_tokens: int | None = None
    verification: str = "token"
    num_speculative_tokens: int | str = 6
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    max_new_tokens: int = 256
    problems: int = 0
    seed: int = 0

    def as_dict(self) -> dict[str, object]:
        """Return the fields, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Cell:
        """Return the cell of `as_dict`.

        Raises:
            ValueError: for a field that is missing or unknown.
        """
        names = {field.name for field in fields(cls)}
        if names != set(values):
            missing, unknown = sorted(names - set(values)), sorted(set(values) - names)
            raise ValueError(f"a cell must have the fields {sorted(names)}, but lacks {missing} and adds {unknown}")
        return cls(**values)  # type: ignore[arg-type]

    @property
    def key(self) -> str:
        """The cell as text: two cells are the same when their keys are."""
        return json.dumps(self.as_dict(), sort_keys=True)


def seed_of(seed: int, place: int) -> int:
    """Return the seed of a problem's answer, the same for every rule; in [0, 2**63).

    Hashed, because generators look at the low bits only and neighbouring seeds must not share answers.

    Example:
        >>> seed_of(0, 1) == seed_of(0, 1), seed_of(0, 1) == seed_of(1, 0)
        (True, False)
    """
    return int.from_bytes(hashlib.sha256(f"{seed} {place}".encode()).digest()[:8], "big") >> 1


def grid(
    base: Cell,
    *,
    tasks: Mapping[str, int],
    drafts: Sequence[str],
    rules: Sequence[str],
    lengths: Sequence[int | str],
    seeds: Sequence[int],
) -> Iterator[Cell]:
    """Yield every combination once, seeds outermost, so that whatever drifts with time strikes all rules alike.

    With no proposals every rule is plain sampling from the target, so that cell is made once, as lossless. The lossless
    rule spends nothing, so it gets no budget.

    Args:
        base: what all cells share.
        tasks: names, and how many problems each has.
        drafts: models that propose.
        rules: spellings.
        lengths: proposals per step.
        seeds: of the answers.

    Example:
        >>> cells = grid(Cell("", "bundled", ""), tasks={"word_problems": 5}, drafts=["ngram"],
        ...              rules=["lossless", "cactus:delta=1.0"], lengths=[0, 4], seeds=[0])
        >>> [(cell.rule, cell.num_speculative_tokens) for cell in cells]
        [('lossless', 0), ('lossless', 4), ('cactus:delta=1.0', 4)]
    """
    seen = set()
    for draft in drafts:
        for task, problems in tasks.items():
            for seed in seeds:
                for length in lengths:
                    for rule in rules:
                        cell = replace(
                            base,
                            task=task,
                            problems=problems,
                            draft=draft,
                            rule=rule,
                            num_speculative_tokens=length,
                            seed=seed,
                        )
                        if length == 0:
                            cell = replace(cell, rule="lossless", verification="token")
                        if cell.rule == "lossless":
                            cell = replace(cell, budget_nats=None, expected_tokens=None)
                        if cell not in seen:
                            seen.add(cell)
                            yield cell
