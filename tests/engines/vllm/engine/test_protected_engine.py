"""One real engine whose server protects by default: requests with other protections, rules and phases in one batch.

Each chi-square test rejects a right engine with probability 1e-6; their number is that of the kinds of requests, times
two prompts. vLLM's seed is fixed.
"""

import pytest
from engine_run import run_jobs
from second_tokens import follow, prompt_of, rows_after
from support.decisions import protected_mass
from transformers import AutoTokenizer

from cactus_decoding import zoo
from cactus_decoding.core.policy.vocabulary import Vocabulary
from cactus_decoding.engines.vllm.extra_args import protected_tokens

pytestmark = pytest.mark.engine

QUESTION = "Question: Ben reads 12 pages a day for 5 days. How many pages does he read?\nAnswer: "
OPENINGS = {"digit": f"{QUESTION}We start here: in these", "wording": f"{QUESTION}To begin"}
"""Behind them comes a token that is nearly certain, and then a digit, of which the draft proposes a wrong one, or
another wording than the draft's."""
CACTUS, CLAMPED, LOSSLESS = "cactus:delta=1", "clamped:width=1", "lossless"
DEFAULT = {"acceptance_rule": CACTUS, "protect": r"^ ?\d"}
KINDS: tuple[tuple[dict, str, str], ...] = (
    ({}, LOSSLESS, CACTUS),
    ({"acceptance_rule": LOSSLESS}, LOSSLESS, LOSSLESS),
    ({"protect": "none"}, CACTUS, CACTUS),
    ({"protect": "digits"}, LOSSLESS, CACTUS),
    ({"protect_threshold": 0.99}, CACTUS, CACTUS),
    ({"protect_threshold": 0.0001}, LOSSLESS, LOSSLESS),
    ({"acceptance_rule": CLAMPED}, LOSSLESS, CLAMPED),
    ({"acceptance_rule": CLAMPED, "protect": "negation"}, CLAMPED, CLAMPED),
    ({"acceptance_rule": CLAMPED, "protect": "json|negation"}, LOSSLESS, CLAMPED),
    ({"budget": 50.0}, LOSSLESS, CACTUS),
    ({"budget": 1e-4}, LOSSLESS, LOSSLESS),
    ({"protect": "none", "lossless_tokens": 1}, CACTUS, CACTUS),
    ({"protect": "none", "lossless_tokens": 2}, LOSSLESS, LOSSLESS),
    ({"protect": "none", "relax_within": ["Answer:", "####"]}, CACTUS, CACTUS),
    ({"protect": "none", "relax_within": ["####", "Answer:"]}, LOSSLESS, LOSSLESS),
    ({"protect": "none", "relax_within": [",", "####"]}, LOSSLESS, CACTUS),  # the first token of the wording is one
    ({"protect": "none", "relax_within": [14, 322]}, LOSSLESS, CACTUS),  # the same marks as token ids
    ({"protect": "none", "relax_within": [322, 14]}, LOSSLESS, LOSSLESS),
    ({"protect": "none", "relax_within": [[324, 28], [322]]}, CACTUS, CACTUS),
    ({"protect": "none", "relax_within": "thinking"}, LOSSLESS, CACTUS),
)
"""What requests ask for, and which rule judges their second token behind either opening."""
COPIES = 400


@pytest.fixture(scope="module")
def results() -> list[dict]:
    sampling = [
        {"temperature": 1.0, "max_tokens": 2, "ignore_eos": True, "extra_args": asked or None}
        for _ in range(COPIES)
        for asked, *_ in KINDS
    ]
    prompts = [prompt_of(text) for text in OPENINGS.values()]
    refused = {"temperature": 1.0, "max_tokens": 2, "extra_args": {"protect": r"\d"}}
    jobs = [
        {"prompts": prompts, "copies": len(sampling), "sampling": sampling * len(prompts)},
        {"prompts": prompts, "sampling": refused},
    ]
    reasoning = {"reasoning_start_str": ",", "reasoning_end_str": "####"}
    return run_jobs(jobs, additional_config=DEFAULT, reasoning_config=reasoning)


def test_the_openings_are_what_they_are_meant_to_be() -> None:
    words = Vocabulary.of(AutoTokenizer.from_pretrained(zoo.path("target")), 1003)
    for opening, pattern, least, most in (
        ("digit", r"^ ?\d", 0.9, 0.99),
        ("digit", "digits", 0.9, 0.99),
        ("digit", "negation", 0.0, 0.01),
        ("wording", r"^ ?\d", 0.0001, 0.01),
        ("wording", "json|negation", 0.0, 0.01),
    ):
        mass = protected_mass(rows_after(OPENINGS[opening])[1], protected_tokens(pattern, words))
        assert least <= mass <= most, (opening, pattern, mass)


@pytest.mark.parametrize("kind", range(len(KINDS)), ids=[str(asked) for asked, *_ in KINDS])
def test_requests_in_one_batch_follow_the_law_of_their_own_protection_and_no_other(kind: int, results) -> None:
    _, *rules = KINDS[kind]
    for place, (rule, opening) in enumerate(zip(rules, OPENINGS.values(), strict=True)):
        answers = results[0]["token_ids"][place * COPIES * len(KINDS) :][: COPIES * len(KINDS)][kind :: len(KINDS)]
        assert follow(answers, rule, opening), opening
        for other in {LOSSLESS, CACTUS} - {rule}:
            if rule != CLAMPED or other != CACTUS:
                assert not follow(answers, other, opening), (opening, other)


def test_a_regular_expression_of_a_request_s_own_is_refused(results: list[dict]) -> None:
    assert "no regular expression of its own" in results[1]["error"]
