"""That the server and `CactusLlama` count what the outcomes of their responses say."""

from dataclasses import replace

import pytest
from support.counted import CUTS, Told
from support.gguf_files import completions
from support.tables import all_of

from cactus_decoding.engines.llama_cpp.models.settings import parse_gguf
from cactus_decoding.engines.llama_cpp.pairs import load_gguf_pair
from cactus_decoding.zoo.word_problems import EXAMPLES

QUESTION = EXAMPLES[0].prompt


CHAINS = [{}, {"verification": "coupled"}, {"verification": "block"}]


@pytest.fixture(scope="module")
def served(gguf):
    file = parse_gguf(f"{gguf('target')}:cache=float32,context_size=512")
    return load_gguf_pair(file, f"{gguf('worded')}:cache=float32", kept_prompts=1)


@all_of("chain", CHAINS)
def test_sums_of_the_server_are_equal_wherever_a_stop_or_a_limit_falls(served, chain):
    ask, cut = completions(served, **{"rule": "clamped:width=2", "num_speculative_tokens": 5} | chain), 0
    for seed, given in enumerate(CUTS):
        told, same = Told(), {"prompt": QUESTION, "seed": seed, "n": 2, "acceptance_report": True} | given
        answered = ask(told, **same).whole()
        told.check(*answered["metrics"]["speculative_decoding"]["acceptance_report"])
        assert told.metrics.generated >= answered["usage"]["completion_tokens"]
        cut += told.cut
    assert cut > 0


def test_tokens_that_a_form_forces_are_accepted_by_position_and_not_by_the_rule(served):
    told, form = Told(), {"guided_regex": "Each of [0-9] friends gets [0-9] (stamps|pens)", "max_tokens": 60}
    same = {"prompt": QUESTION, "seed": 1, "acceptance_report": True} | form
    answered = completions(served, rule="clamped:width=2", num_speculative_tokens=5)(told, **same).whole()
    report = answered["metrics"]["speculative_decoding"]["acceptance_report"]
    assert sum(report["accepted_by_position"]) == report["accepted_tokens"] + told.metrics.forced
    assert sum(report["drafted_by_position"]) == told.metrics.drafted
    assert told.metrics.forced > 5


def test_sums_of_a_llama_are_those_of_its_steps_wherever_a_stop_or_a_limit_falls(made):
    told, cut = Told(), 0
    llama = made("worded", rule="clamped:width=2", num_speculative_tokens=5, on_step=lambda *step: told(*step))
    for seed, given in enumerate([*CUTS, *({"max_tokens": 50, "stop": each} for each in (" each", "get"))]):
        told = Told()
        llama.create_completion(QUESTION, seed=seed, temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, **given)
        told.check()
        assert replace(llama.metrics, seconds=0.0) == told.metrics
        cut += llama.usage["completion_tokens"] + 1 < told.metrics.generated  # which an end token alone cannot do
    assert cut > 0
