"""What every engine owes a request: the tokens, counts and refusals of the package's own loop over the same models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from support.tables import all_of

from cactus_decoding import Metrics, Pair, Request, load_pair
from cactus_decoding.core.response import begin
from cactus_decoding.engines.llama_cpp import CactusLlama
from cactus_decoding.engines.llama_cpp.server.completion import Completion, prompts_of, read_completion
from cactus_decoding.engines.openai.keys import RULE_KEY
from cactus_decoding.engines.transformers.generate import speculative_generate
from cactus_decoding.zoo.word_problems import EXAMPLES

PROMPT = EXAMPLES[0].prompt
USUAL: dict[str, Any] = {"num_speculative_tokens": 4, "max_new_tokens": 60, "seed": 3, "temperature": 1.0}
CACTUS = {"rule": "cactus:delta=1"}
ASKED: dict[str, dict[str, Any]] = {
    "nothing": {},
    "a rule": CACTUS,
    "a rule that recovers otherwise": {"rule": "typical"},
    "a budget": {"rule": "clamped:width=2", "budget": 0.3},
    "a budget of nothing": CACTUS | {"budget": 0},
    "protection": CACTUS | {"protect": "digits"},
    "protection above a threshold": CACTUS | {"protect": "digits", "protect_threshold": 0.2},
    "a phase": CACTUS | {"lossless_tokens": 9},
    "marks": CACTUS | {"relax_within": ["\n", "="]},
    "few tokens": CACTUS | {"max_new_tokens": 7},
    "temperature 0": {"temperature": 0.0},
    "a rule for temperature 0": {"rule": "relaxed_greedy:margin=2", "temperature": 0.0},
}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a rule that is none": ({"rule": "cactis"}, "did you mean 'cactus'"),
    "a knob out of range": ({"rule": "cactus:delta=-1"}, "delta must be in"),
    "a negative budget": (CACTUS | {"budget": -1}, "budget|nats"),
    "a threshold alone": (CACTUS | {"protect_threshold": 0.1}, "protect"),
    "a negative phase": (CACTUS | {"lossless_tokens": -1}, "lossless_tokens must be at least 0, but is -1"),
    "equal marks": (CACTUS | {"relax_within": ["<a>", "<a>"]}, "relax_within must be two different texts"),
    "a rule for temperature 0": ({"rule": "relaxed_greedy:margin=1"}, "temperature 0"),
}
COUNTED = ("steps", "drafted", "accepted", "relaxed", "protected", "fell_back", "metered")
Answer = tuple[list[int], Metrics]


@dataclass(frozen=True)
class Engine:
    """Models, and how the engine answers with the same; ``first_alone``: its first step proposes nothing."""

    pair: Pair
    ask: Callable[[dict[str, Any]], Answer]
    first_alone: bool = True

    def expected(self, settings: dict[str, Any]) -> Answer:
        pair, request = self.pair, Request.from_dict(USUAL | settings)
        pair.forget()
        ids = pair.tokenizer(PROMPT).input_ids
        response = begin(pair, request, ids, first_alone=self.first_alone)
        for _ in response:
            pass
        return response.token_ids, response.metrics


def in_transformers(_: Any) -> Engine:
    pair = load_pair(dtype=torch.float32)

    def ask(settings: dict[str, Any]) -> Answer:
        given, metrics = USUAL | settings, Metrics()
        greedy = given.pop("temperature") == 0
        inputs = pair.tokenizer(PROMPT, return_tensors="pt", return_token_type_ids=False)
        ours = partial(speculative_generate, tokenizer=pair.tokenizer, assistant_model=pair.drafter.model)
        sampling = {"do_sample": False} if greedy else {"do_sample": True, "top_k": 0}
        output = pair.target.model.generate(**inputs, custom_generate=ours, metrics=metrics, **sampling, **given)
        return output[0, inputs.input_ids.shape[1] :].tolist(), metrics

    return Engine(pair, ask, first_alone=False)


def pair_of_files(gguf: Any) -> Pair:
    return load_pair(f"{gguf('target')}:cache=float32,context_size=512,threads=1", f"{gguf('worded')}:cache=float32")


def in_cactus_llama(gguf: Any) -> Engine:
    shape = {"n_ctx": 512, "n_threads": 1, "n_threads_batch": 1, "type_k": 0, "type_v": 0, "verbose": False}
    llama = CactusLlama(gguf("target"), draft=f"{gguf('worded')}:cache=float32", kept_prompts=0, **shape)

    def ask(settings: dict[str, Any]) -> Answer:
        given, outcomes = USUAL | settings, list[Any]()
        llama.on_step = lambda request, outcome: outcomes.append(outcome)
        sampling = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "max_tokens": given.pop("max_new_tokens")}
        llama.create_completion(PROMPT, **sampling, **given)
        return answer_of(outcomes)

    return Engine(pair_of_files(gguf), ask)


def behind_the_server(gguf: Any) -> Engine:
    pair = pair_of_files(gguf)

    def ask(settings: dict[str, Any]) -> Answer:
        given, outcomes = USUAL | settings, list[Any]()
        names = {"rule": RULE_KEY, "max_new_tokens": "max_tokens"}
        body = {"prompt": PROMPT} | {names.get(k, k): v for k, v in given.items()}
        asked = read_completion(body, {}, chat=False, pair=pair)
        pair.forget()
        Completion(pair, asked, prompts_of(pair, asked), "m", lambda _, outcome: outcomes.append(outcome)).whole()
        return answer_of(outcomes)

    return Engine(pair_of_files(gguf), ask)


def answer_of(outcomes: list[Any]) -> Answer:
    return [token for each in outcomes for token in each.token_ids], sum(map(Metrics.of, outcomes), Metrics())


ENGINES = {"transformers": in_transformers, "CactusLlama": in_cactus_llama, "the GGUF server": behind_the_server}


@pytest.fixture(scope="module", params=ENGINES)
def engine(request, gguf) -> Engine:
    return ENGINES[request.param](gguf)


@all_of("case", ASKED)
def test_answers_are_those_of_the_loop(engine: Engine, case: str) -> None:
    settings = ASKED[case]
    state = torch.get_rng_state()
    (tokens, metrics), (expected, counts) = engine.ask(settings), engine.expected(settings)
    assert tokens == expected
    assert {name: getattr(metrics, name) for name in COUNTED} == {name: getattr(counts, name) for name in COUNTED}
    assert metrics.nats == pytest.approx(counts.nats, abs=1e-6)
    assert torch.equal(torch.get_rng_state(), state), "a seed asks no other generator"
    if case == "nothing":
        assert engine.ask(settings | {"seed": 4})[0] != tokens


@all_of("case", REFUSED)
def test_what_it_does_not_answer_is_refused(engine: Engine, case: str) -> None:
    settings, said = REFUSED[case]
    with pytest.raises((TypeError, ValueError), match=said) as refused:
        engine.ask(settings)
    assert "\n" not in str(refused.value)
