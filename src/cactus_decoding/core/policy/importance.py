"""Learned importance: how likely an answer gets worse where a position is relaxed, computed from both models' rows."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pydantic import PlainSerializer, PlainValidator
from pydantic_core.core_schema import CoreSchema, is_instance_schema

from cactus_decoding import zoo
from cactus_decoding.core.checks import check_number, short_repr
from cactus_decoding.core.declared import Model, Setting
from cactus_decoding.core.files.home import expanded
from cactus_decoding.core.files.writing import Format, read_tensors, write_tensors
from cactus_decoding.core.policy.vocabulary import Vocabulary

if TYPE_CHECKING:
    import torch
    from torch import Tensor

FORMAT = Format("cactus_importance", schema=1, described="that 'cactus learn-importance' writes")
LIMIT = 1e30  # of a weight's size
_TENSORS = ("target_weights", "draft_weights", "intercept")


class ImportanceWeights(NamedTuple):
    """The numbers a, b, ``[vocabulary]``, and c of an `Importance`, on one device and in one dtype."""

    target: Tensor
    draft: Tensor
    intercept: float

    def __call__(self, target_probs: Tensor, draft_probs: Tensor | None, draft_token_ids: Any) -> Tensor:
        import torch

        if draft_probs is None:
            of_draft = self.draft[torch.as_tensor(draft_token_ids, dtype=torch.long, device=self.draft.device)]
        else:
            of_draft = draft_probs.to(self.draft) @ self.draft
        return (target_probs @ self.target + of_draft + self.intercept).sigmoid()


@dataclass(frozen=True, eq=False)
class Importance:
    r"""How likely an answer gets worse if the drafted token is kept where the lossless test rejects it.

    With q the target's probabilities and p the draft's, both as tokens are sampled from them,

    .. math:: \text{importance} = \sigma\Big(\sum_x q(x)\, a(x) + \sum_x p(x)\, b(x) + c\Big)

    A deterministic draft has p = 1 for the token that it proposes.

    Sources: AutoJudge (arXiv 2504.20039), which trains on hidden states; design of this project.
    """

    target_weights: Tensor  # a, ``[vocabulary]``
    draft_weights: Tensor  # b, ``[vocabulary]``
    intercept: float  # c
    vocabulary: str  # fingerprint of the tokens that the weights belong to
    about: Mapping[str, Any] = field(default_factory=dict)  # its training data and quality, for JSON
    path: str | None = None  # the file that it was read from

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: object) -> CoreSchema:
        return is_instance_schema(cls)  # which does not ask for its fields, whose types need torch

    def __post_init__(self) -> None:
        from cactus_decoding.core.checks import check_floats

        for name in ("target_weights", "draft_weights"):
            weights = check_floats(name, getattr(self, name), "weights").float().cpu()
            # the sum over a row must be finite too; NaN fails this test as well
            if weights.ndim != 1 or not bool((weights.abs() <= LIMIT).all()):
                shape = list(weights.shape)
                raise ValueError(
                    f"{name} must be finite numbers up to ±{LIMIT:g}, one a token, but its shape is {shape}"
                )
            object.__setattr__(self, name, weights)
        if len(self.target_weights) != len(self.draft_weights):
            lengths = f"{len(self.target_weights)} and {len(self.draft_weights)}"
            raise ValueError(f"target_weights and draft_weights must have the same length, but have {lengths}")
        check_number("intercept", self.intercept, -LIMIT, LIMIT)

    def __call__(self, target_probs: Tensor, draft_probs: Tensor | None, draft_token_ids: Any) -> Tensor:
        """Return the importance of positions, ``[k]``, from both models' rows, ``[k, vocabulary]``."""
        return self.weights(target_probs.device, target_probs.dtype)(target_probs, draft_probs, draft_token_ids)

    def weights(self, device: torch.device, dtype: torch.dtype) -> ImportanceWeights:
        return _weights(self, device, dtype)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Importance) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    @cached_property
    def digest(self) -> str:
        parts = [self.target_weights.numpy().tobytes(), self.draft_weights.numpy().tobytes()]
        parts += [repr(float(self.intercept)).encode(), self.vocabulary.encode()]
        return hashlib.sha256(b"\0".join(parts)).hexdigest()

    def fit(self, vocabulary: Vocabulary) -> Importance:
        """Pad the weights with 0 for a model's rows without a token; raise `ValueError` for another vocabulary."""
        from torch.nn import functional

        if vocabulary.fingerprint != self.vocabulary:
            where = "the importance" if self.path is None else self.path
            trained = self.about.get("target", "another model")
            raise ValueError(
                f"{where} was trained on the vocabulary of {trained} ({len(self.target_weights)} tokens, fingerprint "
                f"{self.vocabulary[:12]}), but the target's has {len(vocabulary.texts)} tokens and the fingerprint "
                f"{vocabulary.fingerprint[:12]}"
            )
        missing = len(vocabulary.texts) - len(self.target_weights)
        if missing == 0:
            return self
        a, b = (functional.pad(weights, (0, missing)) for weights in (self.target_weights, self.draft_weights))
        return replace(self, target_weights=a, draft_weights=b)

    def save(self, path: str | Path) -> None:
        """Write a safetensors file, all or nothing, with everything but the numbers in its header."""
        import torch

        tensors = {
            "target_weights": self.target_weights,
            "draft_weights": self.draft_weights,
            "intercept": torch.tensor([self.intercept], dtype=torch.float64),
        }
        about = {"vocabulary": self.vocabulary, "about": dict(self.about)}
        write_tensors(expanded(path), FORMAT, tensors, about)


@lru_cache(maxsize=8)  # they are as long as a vocabulary, and asked for at every visited position
def _weights(importance: Importance, device: torch.device, dtype: torch.dtype) -> ImportanceWeights:
    a, b = (each.to(device, dtype) for each in (importance.target_weights, importance.draft_weights))
    return ImportanceWeights(a, b, importance.intercept)


def read_importance(path: str | Path) -> Importance:
    """Read a file of `Importance.save`; ``bundled:worded`` is the importance that was learned with that draft."""
    if not isinstance(path, (str, Path)):
        raise TypeError(f"importance must be a file's path or an Importance, but is {short_repr(path)}")
    file = zoo.importance_path(path) or expanded(path)
    if not file.is_file():
        raise FileNotFoundError(2, "there is no such file", str(path))
    found = os.stat(file)
    return _read(str(path), str(file), found.st_mtime_ns, found.st_size)


@lru_cache(maxsize=8)
def _read(name: str, path: str, _changed: int, _size: int) -> Importance:
    tensors, about = read_tensors(path, FORMAT, name)
    wrong = f"{name}: this is not a file {FORMAT.described}"
    if missing := [key for key in _TENSORS if key not in tensors]:
        raise ValueError(f"{wrong}: it lacks {', '.join(missing)}")
    if not isinstance(about.get("vocabulary"), str) or not isinstance(about.get("about"), dict):
        raise ValueError(f"{wrong}: its header lacks the vocabulary, or what it was trained on")
    intercept = tensors["intercept"]
    if intercept.numel() != 1:
        raise ValueError(f"{wrong}: the intercept must be one number, but its shape is {list(intercept.shape)}")
    a, b = tensors["target_weights"], tensors["draft_weights"]
    try:
        return Importance(a, b, float(intercept), about["vocabulary"], about["about"], name)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{wrong}: {error}") from None


def _importance(importance: str | Path | Importance) -> str | Importance:
    if isinstance(importance, Path):
        importance = str(importance)
    if isinstance(importance, str) and not importance:
        raise ValueError("importance must be a file's path, but is empty")
    if not isinstance(importance, (str, Importance)):
        raise TypeError(f"importance must be a file's path or an Importance, but is {short_repr(importance)}")
    return importance


def _path(importance: str | Importance) -> str:
    path = importance if isinstance(importance, str) else importance.path
    if path is None:
        raise ValueError("a request's plain values name the file of its importance, but this one is in no file")
    return path


class ImportanceLimit(Model):
    """How important a position may be and still be relaxed, or by how much importance reduces the relaxation.

    Importance depends on both models' rows, which are fixed once the tokens before a position are, and never on the
    drafted token. So a limited rule still has its relaxed target, and every guarantee of the rule and of a budget
    holds.

    Sources: AutoJudge (arXiv 2504.20039) for the limit; DIVERSED (arXiv 2604.07622), an ensemble whose weight is
    learned for each position, for the scale.
    """

    importance: Annotated[
        str | Importance,
        PlainValidator(_importance),
        PlainSerializer(_path),
        Setting(
            "Learned importance of positions, a file of 'cactus learn-importance': important ones are "
            "judged losslessly.",
            metavar="FILE",
        ),
    ]
    max_importance: Annotated[
        float,
        Setting(
            "The greatest importance at which a position may be relaxed.",
            ge=0,
            le=1,
            metavar="P",
            shown="0.2, or 1 where it scales",
            from_clients=True,
        ),
    ] = None  # type: ignore[assignment]  # which becomes a number
    scale: Annotated[
        bool,
        Setting(
            "Multiply the knob of the rule by 1 - importance at each position (for cactus, clamped, "
            "ensemble, relaxed_greedy).",
            flat="importance_scale",
        ),
    ] = False

    def model_post_init(self, context: object) -> None:
        if self.max_importance is None:
            object.__setattr__(self, "max_importance", 1.0 if self.scale else 0.2)

    def __str__(self) -> str:
        said = [f"importance ≤ {self.max_importance:g}"] if self.max_importance < 1 or not self.scale else []
        return " ".join([*said, *(["scaled by importance"] if self.scale else [])])

    @property
    def path(self) -> str:
        return _path(self.importance)

    def fit(self, vocabulary: Vocabulary) -> Importance:
        if not isinstance(self.importance, str):
            return self.importance.fit(vocabulary)

        return read_importance(self.importance).fit(vocabulary)
