"""Rules from outside the package: a class by its importable path, or one that an installed package registers."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, is_dataclass
from importlib import import_module
from operator import attrgetter
from typing import Annotated

import torch
from torch import Tensor

from cactus_decoding.core.checks import short_repr, suggestion
from cactus_decoding.core.declared import Setting
from cactus_decoding.core.rules import RULES
from cactus_decoding.core.rules.base import GROUP, GreedyRule, RowRule, Rule, registered_rules
from cactus_decoding.core.spelling import fill, may_import
from cactus_decoding.core.types import Verdict

_ROUNDING = 1e-6  # of the sum of a row
# classes by the paths that this process's own settings have named: clients may ask for these paths only
_named: dict[str, type[Rule]] = {}


def outside_rule(text: str, path: str, rest: str, *, importing: bool) -> Rule:
    """Return a checked rule of a class that is not the package's.

    ``path`` is ``module:Class`` or a name of the entry-point group, ``rest`` the parameters, ``text`` the whole
    spelling for errors. Unless ``importing``, this process must have named a path before.
    """
    rule = fill(path, outside_class(path, importing=importing), rest, text)
    _check_judges(rule, path)
    return rule


def outside_class(path: str, *, importing: bool = True) -> type[Rule]:
    if path in _named:
        return _named[path]
    if point := next((each for each in registered_rules() if each.name == path), None):
        return _checked_class(path, _from(point.load, path))
    if not (importing and may_import()):
        raise ValueError(
            f"rule {short_repr(path)} is not taken from here: a rule that is named by a path must be named where the "
            f"program is started, or registered as an entry point of {GROUP!r}"
        )
    return _named.setdefault(path, _checked_class(path, _load(path)))


def respelled(described: type[Rule], text: str) -> str:
    """Return the usual spelling of a rule from one that its class gives under its own name."""
    return str(fill(described.name, described, text.partition(":")[2], text))


def _load(path: str) -> object:
    module, _, name = path.partition(":")
    found = _from(lambda: import_module(module), path)
    try:
        return attrgetter(name)(found)
    except AttributeError:
        classes = {each: value for each, value in vars(found).items() if isinstance(value, type)}
        rules = [each for each, value in classes.items() if issubclass(value, Rule) and not inspect.isabstract(value)]
        listed = f"; its rules are {', '.join(rules)}" if rules else ""
        raise ValueError(f"rule {path!r}: {module} has no {name!r}{listed}{suggestion(name, rules)}") from None


def _from(load: object, path: str) -> object:
    try:
        return load()  # type: ignore[operator]
    except Exception as error:  # importing a module may raise anything
        close = suggestion(path.partition(":")[0], RULES)
        raise ValueError(f"rule {path!r} cannot be imported: {type(error).__name__}: {error}{close}") from error


def _checked_class(path: str, found: object) -> type[Rule]:
    wrong = None
    if not isinstance(found, type) or not issubclass(found, Rule):
        wrong = short_repr(found)
    elif inspect.isabstract(found):
        wrong = f"a class without {', '.join(sorted(found.__abstractmethods__))}"
    elif not is_dataclass(found):
        wrong = "no dataclass"
    if wrong is not None:
        raise ValueError(f"rule {path!r} must be a frozen dataclass derived from cactus_decoding.Rule, but is {wrong}")
    return found


def _rows() -> Iterator[tuple[Tensor, Tensor | None]]:
    target = torch.tensor([[0.5, 0.3, 0.2, 0.0], [0.04, 0.0, 0.06, 0.9]], dtype=torch.float64)
    yield from ((target, target.roll(1, -1)), (target, None))


def _check_judges(rule: Rule, path: str) -> None:
    """Raise `ValueError` unless a rule gives two numbers for every token of small rows, the same ones twice.

    A rule for temperature 0 is given rows from before truncation, so only others must exclude what the target does.
    """
    token_ids = torch.arange(4).expand(2, 4)
    for target, draft in _rows():
        try:
            judged = [Verdict(*rule.judge(target, draft, token_ids)) for _ in range(2)]
            (h, s, start), again = (
                [torch.as_tensor(target if each is None else each) for each in one] for one in judged
            )
        except Exception as error:  # code from outside may raise anything
            raise ValueError(f"rule {path!r} cannot judge: {type(error).__name__}: {error}") from error
        for name, number in (("relaxed_prob", h), ("residual_scale", s)):
            if number.shape != token_ids.shape:
                given = f"{name} of shape {list(number.shape)} for token_ids of {list(token_ids.shape)}"
                raise ValueError(f"rule {path!r} must judge every token, but returns {given}")
            if not bool((number >= 0).all()):  # also catches NaN
                bad = number[~(number >= 0)][0].item()
                raise ValueError(f"rule {path!r} must return numbers of at least 0, but {name} has {bad}")
        if not all(map(torch.equal, (h, s, start), again)):
            raise ValueError(f"rule {path!r} must be deterministic, but judges the same rows differently")
        if not isinstance(rule, GreedyRule) and bool((excluded := h[target == 0]).any()):
            raise ValueError(
                f"rule {path!r} must return a relaxed_prob of 0 for tokens of target probability 0, which top-k, top-p "
                f"or min-p exclude, but has {excluded[excluded > 0][0].item():g}"
            )
        if isinstance(rule, RowRule) and draft is not None:
            wrong = rule.relaxed_target(target, draft).sum(-1) - 1
            if bool((wrong.abs() > _ROUNDING).any()):
                total = 1 + wrong[wrong.abs().argmax()].item()
                raise ValueError(f"rule {path!r} must return a relaxed target that sums to 1, but it sums to {total:g}")


@dataclass(frozen=True)
class RecordedRule(Rule):
    """A rule of a file whose class is not at hand: it keeps its spelling and refuses to judge."""

    spelling: Annotated[str, Setting("what the file says")]

    name = "recorded"

    def __str__(self) -> str:
        return self.spelling

    def judge(self, target_probs: Tensor, draft_probs: Tensor | None, token_ids: Tensor) -> Verdict:
        raise ValueError(f"rule {self.spelling!r} is from outside the package, and a file does not import it")
