"""Whatever is wrong with an argument, public functions refuse it by its name, as a TypeError or a ValueError."""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from numbers import Real
from typing import Any

import numpy as np
import pytest
import torch
from annotated_types import Ge, Gt, Le, Lt
from hypothesis import given
from hypothesis import strategies as st
from support.loop_runs import begin
from support.tables import all_of, groups_of
from support.tiny_models import tiny_llama

from cactus_decoding import (
    RULES,
    Budget,
    ConfidenceStop,
    Drafter,
    FixedLength,
    NgramDrafter,
    Proposal,
    Request,
    SamplingParams,
    audit,
    parse_rule,
    verify,
    verify_block,
)
from cactus_decoding.core.declared import fields_of
from cactus_decoding.core.drafting.registry import as_draft_length
from cactus_decoding.core.rules import as_rule
from cactus_decoding.core.sampling.rows import SparseProbs
from cactus_decoding.engines.transformers.cached_model import CachedModel
from cactus_decoding.engines.transformers.early_exit import EarlyExit
from cactus_decoding.lab.tracing import PositionRows, what_if

BATCH, PROPOSALS, VOCABULARY = 2, 3, 4
HUGE = 10**400
NAN, INF = math.nan, math.inf


def refused(call: Callable[[], Any], name: str) -> str:
    """Return the message with which a call is refused; it must be of a documented type and name the argument."""
    with pytest.raises((TypeError, ValueError)) as caught:
        call()
    assert type(caught.value) in (TypeError, ValueError), caught.value
    message = str(caught.value)
    assert any(word in message for word in name.split("|")), f"{name} is not named: {message}"
    assert "object" not in message or "0x" not in message or len(message) < 400
    assert len(message) < 600
    return message


# --- tensors ---


def rows(*shape: int) -> torch.Tensor:
    return torch.full((*shape, VOCABULARY), 1 / VOCABULARY)


def given_to_verify() -> dict[str, Any]:
    return {
        "target_probs": rows(BATCH, PROPOSALS + 1),
        "draft_probs": rows(BATCH, PROPOSALS),
        "draft_token_ids": torch.zeros(BATCH, PROPOSALS, dtype=torch.long),
        "generator": torch.Generator().manual_seed(0),
        "num_draft_tokens": torch.full((BATCH,), PROPOSALS),
    }


def with_entry(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        changed = tensor.clone()
        changed[..., -1] = value
        return changed

    return change


NOT_FLOATS: dict[str, Callable[[Any], Any]] = {
    "none": lambda x: None,
    "number": lambda x: 1.0,
    "text": lambda x: "rows",
    "list": lambda x: x.tolist(),
    "array": lambda x: x.numpy(),
    "integers": lambda x: x.long(),
    "small integers": lambda x: x.to(torch.int8),
    "bools": lambda x: x.bool(),
    "complex": lambda x: x.to(torch.complex64),
    "float8": lambda x: x.to(torch.float8_e4m3fn),
    "uint16": lambda x: x.to(torch.uint16),
}
BAD_SHAPES: dict[str, Callable[[torch.Tensor], Any]] = {
    "scalar": lambda x: x.flatten()[0],
    "row": lambda x: x.flatten()[:VOCABULARY],
    "no vocabulary": lambda x: x[..., :0],
    "another batch": lambda x: x[:1],
    "another length": lambda x: x[:, :1],
    "another vocabulary": lambda x: torch.nn.functional.pad(x, (0, 1)),
    "a dimension more": lambda x: x.unsqueeze(0),
    "another device": lambda x: x.to("meta"),
}
BAD_ROWS: dict[str, Callable[[torch.Tensor], Any]] = {
    "nan": with_entry(NAN),
    "infinite": with_entry(INF),
    "negative": with_entry(-0.25),
    "too much": with_entry(0.75),
    "zeros": lambda x: x * 0,
}
BAD_IDS: dict[str, Callable[[torch.Tensor], Any]] = {
    "too large": lambda x: x + VOCABULARY,
    "negative": lambda x: x - 1,
    "huge": lambda x: x + 2**62,
    "floats": lambda x: x.float(),
    "bools": lambda x: x.bool(),
    "complex": lambda x: x.to(torch.complex64),
    "list": lambda x: x.tolist(),
    "none": lambda x: None,
    "number": lambda x: 0,
    "scalar": lambda x: x[0, 0],
    "another batch": lambda x: x[:1],
    "another length": lambda x: x[:, :1],
    "a dimension more": lambda x: x.unsqueeze(0),
    "uint16": lambda x: x.to(torch.uint16),
    "another device": lambda x: x.to("meta"),
}
BAD_COUNTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "too large": lambda x: x + 1,
    "negative": lambda x: x - 9,
    "one too few": lambda x: x[:1],
    "one too many": lambda x: torch.cat([x, x[:1]]),
    "scalar": lambda x: x[0],
    "matrix": lambda x: x.unsqueeze(0),
    "floats": lambda x: x.float(),
    "bools": lambda x: x.bool(),
    "list": lambda x: x.tolist(),
    "number": lambda x: 3,
    "empty": lambda x: x[:0],
}
BAD_GENERATORS: dict[str, Callable[[Any], Any]] = {
    "seed": lambda x: 3,
    "text": lambda x: "generator",
    "numpy's": lambda x: np.random.default_rng(0),
}
BAD_RULES: dict[str, Callable[[Any], Any]] = {
    "none": lambda x: None,
    "number": lambda x: 3,
    "class": lambda x: RULES["lossless"],
    "unknown": lambda x: "cactis",
    "empty": lambda x: "",
    "long": lambda x: "x" * 10_000,
    "tensor": lambda x: torch.zeros(2),
}
ANY_SHAPE = "target_probs|target_logits|draft_probs|draft_token_ids"


def cases(argument: str) -> list[tuple[str, str, Callable[[Any], Any]]]:
    """Return (names that the message may use, what is wrong, the change) for each way to get an argument wrong."""
    if argument == "rule":
        return [(argument, wrong, change) for wrong, change in BAD_RULES.items()]
    if argument == "generator":
        return [(argument, wrong, change) for wrong, change in BAD_GENERATORS.items()]
    if argument == "num_draft_tokens":
        return [(argument, wrong, change) for wrong, change in BAD_COUNTS.items()]
    if argument == "draft_token_ids":
        shapes = ("scalar", "another batch", "another length", "a dimension more", "another device")
        return [(ANY_SHAPE if wrong in shapes else argument, wrong, change) for wrong, change in BAD_IDS.items()]
    kinds = [(argument, wrong, change) for wrong, change in NOT_FLOATS.items()]
    if argument == "draft_probs":
        kinds = [one for one in kinds if one[1] != "none"]
    values = [(argument, wrong, change) for wrong, change in BAD_ROWS.items()] if argument != "target_logits" else []
    return [*kinds, *values, *((ANY_SHAPE, wrong, change) for wrong, change in BAD_SHAPES.items())]


def table(*arguments: str) -> Callable:
    """Give each argument, one after another, every wrong value that there is for it."""
    every = {name: [(name, named, change) for named, _, change in cases(name)] for name in arguments}
    return groups_of("argument, named, change", every)


VERIFY_ARGUMENTS = ("rule", "target_probs", "draft_probs", "draft_token_ids", "num_draft_tokens", "generator")


@pytest.mark.parametrize("function", [verify, verify_block])
@table(*VERIFY_ARGUMENTS)
def test_verification_refuses(function, argument: str, named: str, change: Callable) -> None:
    for single in (False, True):
        kept = given_to_verify() | {"rule": "lossless"}
        kept[argument] = change(kept[argument])
        if single:
            tensors = [key for key in kept if isinstance(kept[key], torch.Tensor) and kept[key].ndim > 0]
            if any(not len(kept[key]) for key in tensors) or argument == "num_draft_tokens":
                continue
            kept |= {key: kept[key][0] for key in tensors}
            if argument in ANY_SHAPE and named == ANY_SHAPE:
                continue  # what has one dimension too few or too many is another case without a batch
        refused(lambda given=kept: function(**given), named)


@table("rule", "target_probs", "draft_probs")
def test_audits_refuse(argument: str, named: str, change: Callable) -> None:
    kept: dict[str, Any] = {"rule": "lossless", "target_probs": rows(2, 3), "draft_probs": rows(2, 3)}
    kept[argument] = change(kept[argument])
    if named == ANY_SHAPE and change is BAD_SHAPES["row"] and argument == "target_probs":
        assert kept[argument].shape != kept["draft_probs"].shape
    refused(lambda: audit(**kept), named)


@table("draft_token_ids")
def test_audits_of_deterministic_drafts_refuse(argument: str, named: str, change: Callable) -> None:
    ids = change(torch.zeros(2, 3, dtype=torch.long))
    if ids is None:
        refused(lambda: audit("lossless", rows(2, 3)), "draft_token_ids")
    else:
        refused(lambda: audit("lossless", rows(2, 3), draft_token_ids=ids), named)


@all_of("wrong", ["none", "number", "list", "integers", "bools", "complex", "float8", "uint16"])
def test_sampling_refuses(wrong: str) -> None:
    for sampling in (SamplingParams(), SamplingParams(0.5, top_k=2), SamplingParams(0)):
        logits = NOT_FLOATS[wrong](rows(2).log())
        refused(lambda sampling=sampling, logits=logits: sampling(logits), "logits")
        for shaped in (torch.tensor(1.0), torch.zeros(2, 0)):
            refused(lambda sampling=sampling, shaped=shaped: sampling(shaped), "logits")


def test_what_if_refuses() -> None:
    row = SparseProbs.keep(rows())
    refused(lambda: what_if(None, "lossless"), "rows")
    refused(lambda: what_if(PositionRows(9, row, row), "lossless"), "drafted_id")
    refused(lambda: what_if(PositionRows(-1, row), "lossless"), "drafted_id")
    refused(lambda: what_if(PositionRows(0, SparseProbs.keep(rows() * 2)), "lossless"), "target")
    refused(lambda: what_if(PositionRows(0, row, SparseProbs.keep(rows() * NAN)), "lossless"), "draft")
    refused(lambda: what_if(PositionRows(0, row, row), "cactis"), "rule")


# --- what autograd knows ---


@pytest.mark.parametrize("vocabulary", [VOCABULARY, 5000])
@pytest.mark.parametrize("rule", ["lossless", "cactus:delta=1", "clamped:width=1", "clamped:max_kl=0.1", "typical"])
def test_rows_that_require_grad_give_results_without_a_graph(vocabulary: int, rule: str) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, vocabulary, generator=generator, requires_grad=True)
    other = torch.randn(2, vocabulary, generator=generator, requires_grad=True)
    target, draft = logits.softmax(-1), other.softmax(-1)
    ids = draft.argmax(-1)
    results = [verify(rule, target, draft, ids, generator)]
    if not rule.startswith(("cactus", "typical")):
        results.append(verify_block(rule, target, draft, ids, generator))
    assert all(not part.requires_grad for result in results for part in result)
    audited = audit(rule, target[:-1], draft)
    assert all(not part.requires_grad for part in vars(audited).values())
    position = PositionRows(int(ids[0]), SparseProbs(vocabulary, target[0]), SparseProbs(vocabulary, draft[0]))
    assert not what_if(position, rule).emitted.requires_grad


def test_other_precisions_and_integers_mix() -> None:
    for kind in (torch.float16, torch.bfloat16, torch.float64):
        for integers in (torch.int32, torch.int16, torch.uint8):
            result = verify("lossless", rows(3).to(kind), rows(2), torch.zeros(2, dtype=integers))
            assert 0 <= int(result.num_accepted) <= 2


# --- knobs ---

OBJECTS: dict[str, Callable[[Any], Any]] = {rule.name: rule for rule in RULES.values()} | {
    "sampling": SamplingParams,
    "budget": Budget,
    "confidence": ConfidenceStop,
    "ngram": NgramDrafter,
    "early_exit": EarlyExit,
}
NO_NUMBERS = [
    None,
    "1",
    b"1",
    True,
    np.True_,
    [1],
    (1,),
    {},
    1j,
    np.array([0.5]),
    torch.tensor(0.5),
    Decimal(1),
    object(),
]
OUT_OF_RANGE = [NAN, -INF, -1, -0.5, np.float32("nan"), Fraction(-1, 3), -HUGE, np.float64(-1)]
NUMPYS = [np.int64(1), np.int32(1), np.uint8(1), np.float64(1), np.float32(1), np.float16(1), Fraction(1)]


def beside(of: str, knob: Any) -> dict[str, Any]:
    """Return values for what else must be given next to a knob."""
    if of == "budget" and knob.name in ("expected_tokens", "max_relaxed"):
        return {"nats": 1}
    return {each.name: 1 for each in fields_of(OBJECTS[of]) if each.required}


KNOBS = [(name, each) for name, made in OBJECTS.items() for each in fields_of(made)]


def message_of(call: Callable[[], Any]) -> str | None:
    """Return the message of a documented error, or None where nothing is refused; other errors are let through."""
    try:
        call()
    except (TypeError, ValueError) as error:
        return str(error) if type(error) in (TypeError, ValueError) else f"an undocumented {type(error)}"
    return None


def outcome(of: str, knob: Any, value: Any) -> Any:
    """Return what is made with a value, or the message that refuses it."""
    made: list[Any] = []
    message = message_of(lambda: made.append(OBJECTS[of](**(beside(of, knob) | {knob.name: value}))))
    return made[0] if message is None else message


def check_knobs(value: Any) -> None:
    """Check of every knob that a value is refused by name, or allowed by the limits and held as one of Python's own."""
    for of, knob in KNOBS:
        found = outcome(of, knob, value)
        if isinstance(found, str):
            assert knob.name in found or "give either" in found
            assert len(found) < 600
            continue
        held = getattr(found, knob.name)
        assert type(held) in (int, float, str, type(None))
        # of a fraction, a float16, or a temperature by which float32 cannot divide
        assert held == value or held == float(value) or knob.name == "temperature"
        if held is None or isinstance(held, str):
            assert knob.optional if held is None else held in knob.choices
        else:
            assert isinstance(value, Real)
            assert not isinstance(value, bool)
            for end, holds in ((Ge, operator.ge), (Gt, operator.gt), (Le, operator.le), (Lt, operator.lt)):
                assert knob.limit(end) is None or holds(held, knob.limit(end))


@all_of("value", [*NO_NUMBERS, *OUT_OF_RANGE, *NUMPYS, HUGE, 10**5000])
def test_knobs_take_what_they_say_and_refuse_the_rest_by_name(value: Any) -> None:
    check_knobs(value)


@given(st.one_of(st.floats(), st.integers(), st.text(), st.none(), st.booleans(), st.binary(), st.fractions()))
def test_whatever_is_given_to_a_knob_it_is_taken_or_refused_by_name(value: Any) -> None:
    check_knobs(value)


@all_of("of, knob", KNOBS)
def test_no_knob_is_negative_or_no_number_but_where_it_says_so(of: str, knob: Any) -> None:
    lowest = knob.limit(Ge)
    for wrong in OUT_OF_RANGE:
        if lowest is None or lowest >= 0 or not lowest <= wrong < 0:  # few may be negative
            refused(lambda wrong=wrong: OBJECTS[of](**(beside(of, knob) | {knob.name: wrong})), knob.name)


@all_of("of, knob", KNOBS)
def test_knobs_take_the_numbers_of_numpy(of: str, knob: Any) -> None:
    for value in NUMPYS:
        if not knob.choices and (knob.kind is float or isinstance(value, np.integer)):
            assert outcome(of, knob, value) == outcome(of, knob, 1)
            assert not isinstance(outcome(of, knob, 1), str)


@given(st.text(max_size=40))
def test_whatever_is_spelled_it_is_taken_or_refused(text: str) -> None:
    for parse, name in ((parse_rule, "rule"), (as_rule, "rule"), (as_draft_length, "num_speculative_tokens")):
        message = message_of(lambda parse=parse: parse(text))
        assert message is None or name in message or repr(text)[1:9] in message or text.strip()[:9] in message


MAKING: list[tuple[Callable, str]] = [
    (lambda wrong: FixedLength(wrong), "num_speculative_tokens"),
    (lambda wrong: Request(num_speculative_tokens=wrong if wrong is not None else "none"), "num_speculative_tokens"),
    (lambda wrong: Request(budget=wrong if wrong is not None else "none"), "budget"),
    (lambda wrong: Request(sampling=wrong), "sampling"),
    (lambda wrong: Request(rule=wrong), "rule"),
    (lambda wrong: Request(verification=wrong), "verification"),
    (lambda wrong: Request(stop=wrong or [""] if isinstance(wrong, dict) else wrong), "stop"),
    (lambda wrong: Budget(nats=1, expected_tokens=wrong if wrong is not None else "none"), "expected_tokens"),
]


@all_of("make, name", MAKING)
def test_requests_and_lengths_refuse(make: Callable, name: str) -> None:
    for wrong in [*NO_NUMBERS, NAN, -INF, -1, -HUGE, Fraction(-1, 3)]:
        if name == "num_speculative_tokens" and wrong == "1" and type(make(2)) is Request:
            continue  # a spelling
        refused(lambda wrong=wrong: make(wrong), name)


def test_requests_take_the_numbers_of_numpy() -> None:
    numbers = {"max_new_tokens": np.int64(9), "seed": np.uint32(7), "num_speculative_tokens": np.int16(3)}
    numbers |= {"temperature": np.float32(0.5), "top_k": np.int64(4), "budget": np.float64(0.25)}
    request = Request.from_dict(numbers | {"rule": "cactus:delta=1"})
    assert request == Request.from_dict(
        {name: value.item() for name, value in numbers.items()} | {"rule": request.rule}
    )
    assert all(type(value).__module__ == "builtins" for value in request.as_dict().values())


# --- drafters ---


class Proposes(Drafter):
    """Proposes what it is told to."""

    def __init__(self, proposal: Proposal) -> None:
        self.proposal = proposal

    def propose(self, token_ids, limit, to_probs, generator):
        return self.proposal


@pytest.mark.parametrize(
    ("proposal", "message"),
    [
        (Proposal([8], None), r"tokens in \[0, 8\), but they range over 8 to 8"),
        (Proposal([1, -1], None), r"tokens in \[0, 8\), but they range over -1 to 1"),
        (Proposal([1] * 9, None), "at most the 4 tokens"),
        (Proposal([1, 2], torch.full((1, 8), 0.125)), r"probs must be \[2, 8\].*\[1, 8\]"),
        (Proposal([1], torch.full((1, 9), 1 / 9)), r"probs must be \[1, 8\].*\[1, 9\]"),
    ],
)
def test_what_a_drafter_must_not_propose_is_refused(proposal: Proposal, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        next(begin(CachedModel(tiny_llama(0)), Proposes(proposal)))


def test_every_argument_of_a_verification_has_its_table() -> None:
    assert {*inspect.signature(verify).parameters} - {"validate"} == {*VERIFY_ARGUMENTS}
    assert {*inspect.signature(verify_block).parameters} - {"validate"} == {*VERIFY_ARGUMENTS}
