"""What requests and servers may ask for, and what vLLM can follow."""

import re
from types import SimpleNamespace

import pytest
from support.engine_rules import GREEDY_SPELLINGS, SPELLINGS
from support.outside_module import outside_module
from support.tables import all_of

from cactus_decoding import RULES, Budget, Request, parse_rule
from cactus_decoding.core.policy.protection import Protection
from cactus_decoding.core.policy.relaxation import RelaxationPolicy, relaxation_policy
from cactus_decoding.core.policy.vocabulary import Vocabulary
from cactus_decoding.engines.vllm.extra_args import (
    REQUEST_KEYS,
    ServerConfig,
    asked_of,
    check_request_texts,
    is_lossless,
    request_of,
    worker_request,
)

FOREIGN = ("typical", "top_k", "token_cascade", "contrastive")
VARIANTS = (
    "fuzzy:threshold=0.1,closed=draw",
    "ears:tolerance=0.3,floor=0.01",
    "token_cascade:alpha=0.5,coupling=paper",
)
"""Of rules some of which do fit."""


def test_what_a_request_may_ask_for() -> None:
    default = Request("cactus:delta=1", 2.0)
    assert request_of(None) is None
    assert request_of({"other": 1, "thinking_budget": 5, "rule": "x"}, default) is default  # for somebody else
    assert is_lossless(request_of({"acceptance_rule": "lossless"}, default))
    assert request_of({"budget": 0.5}, default) == Request(default.rule, 0.5)
    assert request_of({"acceptance_rule": "clamped:width=1"}, default) == Request("clamped:width=1", Budget(nats=2.0))
    offered = {parse_rule(text).name for text in (*SPELLINGS, *GREEDY_SPELLINGS)}
    assert offered == {*RULES} - {*FOREIGN}  # and what was added since


@all_of("spelling", [*(RULES[name].presets[0].spelling for name in FOREIGN), *VARIANTS])
def test_a_rule_that_does_not_fit_the_step_is_refused_by_name_with_the_reason(spelling: str) -> None:
    said = f"acceptance_rule '{parse_rule(spelling)}' does not work in vLLM, whose own sampler cannot follow it; "
    with pytest.raises(ValueError, match=re.escape(f"{said}rules that do are lossless, cactus, ")):
        request_of({"acceptance_rule": spelling})


GREEDY, SAMPLED = "relaxed_greedy:margin=0.5,top=3", "cactus:delta=1"


def test_a_rule_holds_at_its_temperature_and_a_server_s_own_says_nothing_at_the_other() -> None:
    for spelling in GREEDY_SPELLINGS:
        asked = request_of({"acceptance_rule": spelling, "budget": 2, "lossless_tokens": 3}, greedy=True)
        assert (asked.rule, asked.budget, asked.sampling.temperature) == (parse_rule(spelling), Budget(nats=2.0), 0)
        assert request_of(asked_of(asked), greedy=True) == asked
        with pytest.raises(ValueError, match=r"is a rule for temperature 0 .*; set the temperature to 0"):
            request_of({"acceptance_rule": spelling}, greedy=False)
    for own, other, at in ((GREEDY, SAMPLED, True), (SAMPLED, GREEDY, False)):
        server = ServerConfig.of(config(additional_config={"acceptance_rule": own, "budget": 2.0, "protect": "digits"}))
        assert str(server.default.rule) == str(parse_rule(own))
        assert server.read(None, at)[0] == server.default
        assert is_lossless(server.read(None, not at)[0])
        assert is_lossless(server.read({"budget": 1.0}, not at)[0])  # what is lossless keeps every limit
        named = server.read({"acceptance_rule": other}, not at)[0]
        assert (named.rule, named.budget, named.policy) == (parse_rule(other), Budget(nats=2.0), server.default.policy)


def test_a_worker_follows_rules_at_their_temperature() -> None:
    server = ServerConfig.of(config(additional_config={"acceptance_rule": GREEDY}))

    def of(asked: dict | None, temperature: float) -> str | None:
        found = worker_request(SimpleNamespace(temperature=temperature, extra_args=asked), server)
        return None if found is None else str(found.rule)

    assert of(None, 0.0) == GREEDY
    assert of(None, 0.7) is None
    assert of({"acceptance_rule": SAMPLED}, 0.7) == str(parse_rule(SAMPLED))
    assert of({"acceptance_rule": SAMPLED}, 0.0) is None  # the likeliest token only, as vLLM does
    assert of({"acceptance_rule": "mars:ratio=0.5"}, 0.0) == "mars:ratio=0.5"
    assert of({"acceptance_rule": "mars:ratio=0.5"}, 0.7) is None  # an exception would end the server
    assert of({"budget": 0.0}, 0.0) is None
    assert of({"budget": 0.0, "acceptance_report": True}, 0.0) == GREEDY


def test_an_unknown_rule_is_answered_with_those_that_are_offered() -> None:
    for any_pattern in (False, True):
        with pytest.raises(ValueError, match=r"unknown rule 'cactsu'.*; did you mean 'cactus'") as refusal:
            request_of({"acceptance_rule": "cactsu:delta=1"}, any_pattern=any_pattern)
        assert [name for name in RULES if f" {name}" in str(refusal.value)] == [n for n in RULES if n not in FOREIGN]


def test_no_request_imports_a_module(tmp_path, monkeypatch) -> None:
    module = outside_module(tmp_path, monkeypatch)
    config = ServerConfig(default=Request("cactus:delta=1"))
    for key in REQUEST_KEYS:
        for value in (module.spelling, [module.spelling], {"a": module.spelling}):
            with pytest.raises((TypeError, ValueError), match=key):
                config.read({key: value})
            worker_request(SimpleNamespace(temperature=1.0, extra_args={key: value}), config)
            assert not module.was_imported, key


RULE, CLAMPED = {"acceptance_rule": "cactus:delta=1"}, {"acceptance_rule": "clamped:width=1"}
MALFORMED = (
    ({"acceptance_rule": 3}, "must be a string"),
    ({"acceptance_rule": "cactus"}, "lacks delta"),
    ({"acceptance_rule": "cactus:delta=1", "budget": -1}, "budget must be in"),
    ({"acceptance_rule": "cactus:delta=1", "budget": True}, "budget must be a number"),
    ({"budget": 1}, "without acceptance_rule"),
    ({"acceptance_rules": "cactus:delta=1"}, "did you mean 'acceptance_rule'"),
    ({"acceptance_limit": 1}, "no key 'acceptance_limit'"),
    ({"acceptance_metrics": True}, "acceptance_metrics is a key of the server's"),
    ({"acceptance-rule": "cactus:delta=1"}, "no key 'acceptance-rule'; did you mean 'acceptance_rule'"),
    ({"acceptance_rule": "cactus:delta=1", "budgets": 1}, "did you mean 'budget'"),
    (CLAMPED | {"protect": ""}, "protect must be one of"),
    (CLAMPED | {"protect": "digit"}, "no regular expression of its own"),
    (CLAMPED | {"protect": "(a+)+$"}, "no regular expression of its own"),
    (CLAMPED | {"protect": "digits|"}, "no regular expression of its own"),
    (CLAMPED | {"protect": 5}, "protect must be a text"),
    (CLAMPED | {"protect": "none", "protect_threshold": 0.1}, "protect_threshold is that of a pattern in protect"),
    (CLAMPED | {"relax_within": [5, -6]}, "relax_within must be two different texts"),
    (CLAMPED | {"relax_within": [5, 1 << 40]}, "relax_within must be two different texts"),
    (CLAMPED | {"relax_within": "thinking"}, "the server knows no tokens around a thinking part"),
    (CLAMPED | {"relax_within": ["x" * 65, "</think>"]}, "at most 64 characters"),
    # vLLM's server has no lists of lists, so that only its Python interface can ask for them
    (CLAMPED | {"relax_within": [[5] * 65, [6]]}, "at most 64 characters or tokens"),
    ({"protect": "digits"}, "protect is given .'digits'. without acceptance_rule"),
    ({"lossless_tokens": 5}, "lossless_tokens is given .5. without acceptance_rule"),
)


def test_what_a_request_may_protect() -> None:
    asked = request_of({**RULE, "protect": "digits", "protect_threshold": 0.02, "lossless_tokens": 5})
    assert asked == Request("cactus:delta=1", policy=relaxation_policy("digits", 0.02, lossless_tokens=5))
    asked = request_of({**RULE, "protect": "json| digits |json", "relax_within": ["<think>", "</think>"]})
    assert asked.policy == relaxation_policy("digits|json", relax_within=("<think>", "</think>"))
    assert request_of({**RULE, "protect": None, "relax_within": None}) == Request("cactus:delta=1")


def test_each_key_that_a_request_leaves_out_is_the_server_s() -> None:
    given = {**RULE, "protect": r"^ ?\d", "protect_threshold": 0.2, "relax_within": ["<" * 65, ">"]}
    default = request_of(given, any_pattern=True)
    assert default.policy == relaxation_policy(r"^ ?\d", 0.2, relax_within=("<" * 65, ">"))
    assert request_of({"acceptance_rule": "clamped:width=1"}, default).policy == default.policy
    assert request_of({"protect": r"^ ?\d"}, default) == default  # its own pattern
    assert request_of({"protect": "json"}, default).policy.protection == Protection("json", 0.2)
    assert request_of({"protect_threshold": 0.5}, default).policy.protection == Protection(r"^ ?\d", 0.5)
    lifted = request_of({"protect": "none", "relax_within": "none"}, default)
    assert lifted == Request("cactus:delta=1")
    asked = request_of({"lossless_tokens": 7}, default)
    assert (asked.policy.phases.lossless_tokens, asked.rule) == (7, default.rule)
    assert request_of({"lossless_tokens": 0}, request_of({**RULE, "lossless_tokens": 9})) == Request("cactus:delta=1")
    without_rule = request_of({"acceptance_rule": "lossless", "protect": "digits"}, any_pattern=True)
    assert request_of(RULE, without_rule) == Request("cactus:delta=1", policy=relaxation_policy("digits"))
    for refused in ("json|^ ?\\d", "."):
        with pytest.raises(ValueError, match="no regular expression of its own"):
            request_of({"protect": refused}, default)


def test_a_thinking_part_is_where_the_server_s_reasoning_parser_says() -> None:
    reasoning = SimpleNamespace(reasoning_start_token_ids=[7], natural_reasoning_end_token_ids=[8, 9])
    server = ServerConfig.of(config(reasoning_config=reasoning, additional_config={"relax_within": "thinking", **RULE}))
    assert server.thinking == ((7,), (8, 9))
    assert server.default.policy.phases.relax_within == ((7,), (8, 9))
    within = {**RULE, "relax_within": "thinking"}
    asked = request_of(within, thinking=server.thinking)
    assert asked.policy == relaxation_policy(relax_within=[7, [8, 9]])
    assert worker_request(SimpleNamespace(temperature=1.0, extra_args=within), server) == asked
    assert request_of({"relax_within": "none"}, server.default) == Request("cactus:delta=1")
    for unknown in (None, SimpleNamespace(reasoning_start_token_ids=None, natural_reasoning_end_token_ids=None)):
        assert ServerConfig.of(config(reasoning_config=unknown)).thinking is None
    nobody_s = Request("cactus:delta=1", policy=relaxation_policy(relax_within=[7, 8]))
    check_request_texts(nobody_s, lambda: None)  # it looks at no texts


@all_of("asked, said", MALFORMED)
def test_what_it_may_not(asked: dict, said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        request_of(asked)


@all_of("wrong", ["", "(", "digits|("])
def test_a_server_s_own_pattern_must_be_one(wrong: str) -> None:
    with pytest.raises(ValueError, match="protect must be one of"):
        ServerConfig.of(config(additional_config={**RULE, "protect": wrong}))


def test_the_keys_of_a_request_ask_for_it() -> None:
    policy = relaxation_policy("digits|json", 0.25, lossless_tokens=3, relax_within=["<a>", "</a>"])
    for request in (Request("clamped:width=1", 2.0, policy=policy), Request("cactus:delta=1"), Request("lossless")):
        assert request_of(asked_of(request)) == request


def test_texts_are_looked_at_where_somebody_asks_and_must_fit() -> None:
    def never() -> Vocabulary:
        raise AssertionError("nobody asked for it")

    def asking(policy: RelaxationPolicy) -> Request:
        return Request("cactus:delta=1", policy=policy)

    check_request_texts(None, never)
    check_request_texts(asking(relaxation_policy(lossless_tokens=5)), never)
    check_request_texts(Request("lossless", policy=relaxation_policy("digits")), never)
    marks = relaxation_policy(relax_within=["<a>", "</a>"])
    for policy, key in ((relaxation_policy("digits"), "protect"), (marks, "relax_within")):
        with pytest.raises(ValueError, match=f"{key} needs a tokenizer"):
            check_request_texts(asking(policy), lambda: None)
    words = Vocabulary((" cat", " 3"))
    check_request_texts(asking(relaxation_policy("digits")), lambda: words)
    with pytest.raises(ValueError, match="matches none of the 2 tokens"):
        check_request_texts(asking(relaxation_policy("negation")), lambda: words)


def test_a_worker_takes_no_notice_of_what_makes_no_difference_or_is_wrong() -> None:
    def of(asked: dict, temperature: float = 1.0) -> Request | None:
        return worker_request(SimpleNamespace(temperature=temperature, extra_args=asked), ServerConfig())

    assert of({"acceptance_rule": "cactus:delta=1"}) == Request("cactus:delta=1")
    assert of({"acceptance_rule": "cactus:delta=1"}, temperature=0.0) is None
    for asked in ({"acceptance_rule": "lossless"}, {"acceptance_rule": "cactus:delta=1", "budget": 0}, {}, None):
        assert of(asked) is None
    for asked in ({"acceptance_rule": "cactus:delta=x"}, {**RULE, "budget": "much"}, {**RULE, "protect": "(a+)+$"}):
        assert of(asked) is None  # an exception would end the server


def config(**changes: object) -> SimpleNamespace:
    speculative = SimpleNamespace(rejection_sample_method="standard", num_speculative_tokens=4)
    return SimpleNamespace(**({"speculative_config": speculative, "additional_config": {}} | changes))


def test_what_a_server_can_follow() -> None:
    asked = Request("cactus:delta=1")
    ServerConfig.of(config()).check(asked)
    for changes, said in (
        ({"speculative_config": None}, "without --speculative-config"),
        *(
            (
                {
                    "speculative_config": SimpleNamespace(
                        rejection_sample_method=method, num_speculative_tokens=5, **more
                    )
                },
                f"'{method}'",
            )
            for method in ("block", "fly", "synthetic")
            for more in ({}, {"num_speculative_tokens_per_batch_size": [(1, 4, 5), (5, 64, 2)]})
        ),
        ({"watermark_config": object()}, "watermarks"),
    ):
        with pytest.raises(ValueError, match=said):
            ServerConfig.of(config(**changes)).check(asked)
        ServerConfig.of(config(**changes)).check(Request("lossless"))
        with pytest.raises(ValueError, match=said):
            ServerConfig.of(config(**changes, additional_config={"acceptance_rule": "cactus:delta=1"}))
    with pytest.raises(TypeError, match="acceptance_metrics must be true or false"):
        ServerConfig.of(config(additional_config={"acceptance_metrics": "yes"}))
    with pytest.raises(ValueError, match="audit_fraction must be in"):
        ServerConfig.of(config(additional_config={"audit_fraction": 2}))
    with pytest.raises(ValueError, match="a key of a request"):
        ServerConfig.of(config(additional_config={"acceptance_report": True}))
    with pytest.raises(ValueError, match="acceptance_report needs a draft"):
        ServerConfig.of(config(speculative_config=None)).read({"acceptance_report": True})
    with pytest.raises(ValueError, match="did you mean 'audit_fraction'"):
        ServerConfig.of(config(additional_config={"audit_fractions": 1}))


def test_how_many_proposals_a_request_has_verified_is_at_most_the_server_s_number() -> None:
    server = ServerConfig.of(config())
    for number in (0, 1, 4):
        assert server.read({"num_speculative_tokens": number}) == (None, False)
        assert server.read({"num_speculative_tokens": number} | RULE)[0] == Request("cactus:delta=1")
    for wrong, said in ((5, "between 0 and 4, but is 5"), (-1, "between 0 and 4, but is -1"), ("2", "an integer")):
        for rule in ({}, RULE):
            with pytest.raises((TypeError, ValueError), match=f"num_speculative_tokens must be {said}"):
                server.read({"num_speculative_tokens": wrong} | rule)
    without = ServerConfig.of(config(speculative_config=None))
    assert without.read({"num_speculative_tokens": 0}) == (None, False)
    with pytest.raises(ValueError, match="between 0 and 0, but is 1"):
        without.read({"num_speculative_tokens": 1})
    with pytest.raises(ValueError, match="num_speculative_tokens is a key of a request"):
        ServerConfig.of(config(additional_config={"num_speculative_tokens": 2}))
    with pytest.raises(ValueError, match="did you mean 'num_speculative_tokens'"):
        server.read({"num_speculative_token": 2})
    closed = ServerConfig.of(config(additional_config={"client_rules": False}))
    assert closed.read({"num_speculative_tokens": 2}) == (None, False)


def test_a_seed_gives_one_text_where_a_request_asks_for_it_and_the_server_can() -> None:
    def couples(server: SimpleNamespace | None = None, **changes: object) -> bool:
        given = {"temperature": 1.0, "seed": 5, "extra_args": {"verification": "coupled"}} | changes
        return ServerConfig.of(server or config()).couples(SimpleNamespace(**given))

    def asking(**further: object) -> dict:
        return {"verification": "coupled"} | further

    assert couples()
    assert couples(config(speculative_config=None))
    assert couples(config(additional_config={"client_rules": False}))
    assert couples(extra_args=asking(acceptance_rule="lossless", num_speculative_tokens=2))
    for changes in ({"temperature": 0.0}, {"extra_args": None}, {"extra_args": {"verification": "token"}}):
        assert not couples(**changes)
    for changes, said in (
        ({"seed": None}, "needs a seed"),
        ({"seed": -3}, "seed must be between 0 and"),
        ({"extra_args": asking(acceptance_rule="clamped:width=1")}, "for lossless requests in vLLM, but acceptance_ru"),
        ({"extra_args": {"verification": "block"}}, "verification must be 'token' or 'coupled' in vLLM, but is 'block"),
        ({"extra_args": {"verification": 1}}, "verification must be 'token' or 'coupled' in vLLM, but is 1"),
        ({"server": config(additional_config=RULE)}, "ask for 'lossless'"),
        ({"server": config(use_v2_model_runner=True)}, "VLLM_USE_V2_MODEL_RUNNER=0"),
        ({"server": config(scheduler_config=SimpleNamespace(async_scheduling=True))}, "--no-async-scheduling"),
        (
            {
                "server": config(
                    speculative_config=SimpleNamespace(rejection_sample_method="block", num_speculative_tokens=2)
                )
            },
            "'block'",
        ),
    ):
        with pytest.raises(ValueError, match=said):
            couples(**changes)


def test_a_server_may_keep_the_choice_to_itself() -> None:
    own = {"acceptance_rule": "clamped:width=1", "budget": 0.5, "protect": "digits"}
    server = ServerConfig.of(config(additional_config=own | {"client_rules": False}))
    reported = {"acceptance_report": True, "other": 1, "budget": None}
    assert server.read(reported) == (server.default, True)
    assert is_lossless(server.read({"acceptance_rule": "lossless"})[0])
    for asked in ({"acceptance_rule": "clamped:width=1"}, {"budget": 0.1}, {"protect": "none"}, {"lossless_tokens": 0}):
        with pytest.raises(ValueError, match=rf"^{'|'.join(asked)} is not for requests here: .* client_rules false"):
            server.read({"acceptance_rule": "lossless"} | asked)
        assert worker_request(SimpleNamespace(temperature=1.0, extra_args=asked), server) is None
        ServerConfig.of(config(additional_config=own)).read(asked)
    with pytest.raises(ValueError, match="client_rules is a key of the server's"):
        server.read({"client_rules": True})
    with pytest.raises(TypeError, match="client_rules must be true or false"):
        ServerConfig.of(config(additional_config={"client_rules": "no"}))
