"""Runs: one request each, and the grid that they come from."""

from __future__ import annotations

import json

import pytest
from support.result_files import config_of

from cactus_decoding import Budget, Request, SamplingParams
from cactus_decoding.core.drafting.registry import as_tree
from cactus_decoding.core.schemes import VERIFICATIONS
from cactus_decoding.lab.evaluation.chat import Chat
from cactus_decoding.lab.evaluation.run_config import RunConfig, grid, requests_of, seed_of

TASKS = {"word_problems": 5}


def runs(settings=None, engine="transformers", **changes):
    varied = {"rules": ["lossless"], "lengths": [4], "seeds": [0]} | changes
    of = {"tasks": varied.pop("tasks", TASKS), "drafts": varied.pop("drafts", ["bundled"])}
    return grid("bundled", engine, requests_of(engine, settings or {}, **varied), **of)


def test_runs_survive_the_way_through_json():
    request = Request("clamped:width=2.0", Budget(0.5, expected_tokens=40), sampling=SamplingParams(0.6, top_k=20),
                      num_speculative_tokens="auto", seed=3)  # fmt: skip
    run = RunConfig("sums", "large", "ngram", problems=7, request=request)
    shifted = RunConfig("", "", "", request=Request("cactus:delta=1.0", Budget(max_shift=0.1)))
    for each in (run, shifted):
        again = RunConfig.from_dict(json.loads(json.dumps(each.as_dict())))
        assert (again, hash(again)) == (each, hash(each))
    assert shifted.as_dict()["budget_nats"] == pytest.approx(0.02)
    assert run != run.asking(seed=4)
    # an unlimited budget is none, because the audit measures
    assert config_of(rule="cactus:delta=1.0", budget_nats=float("inf")) == config_of(rule="cactus:delta=1.0")
    label = config_of(rule="clamped:width=1.0", budget_nats=0.5, verification="block", num_speculative_tokens=4).label
    assert label == "clamped:width=1.0 ≤0.5 nats block ×4"
    values = config_of().as_dict()
    missing = {name.replace("problems", "problms"): value for name, value in values.items()}
    for wrong, said in (
        (missing, "lacks .'problems'. and adds .'problms'"),
        (values | {"top_q": 3}, r"lacks \[\] and adds .'top_q'"),
    ):
        with pytest.raises(ValueError, match=said):
            RunConfig.from_dict(wrong)


def test_trees_are_swept_beside_chains_that_are_verified_alike():
    lengths = [0, 4, as_tree("static=2.2")]
    found = {
        how: [run.label for run in runs({"verification": how}, lengths=lengths)]
        for how in VERIFICATIONS
        if how != "fly"
    }
    found["fly:window=3"] = [run.label for run in runs({"verification": "fly:window=3"}, lengths=lengths)]
    tree = "×tree:static=2.2"
    assert found == {
        "token": ["lossless ×0", "lossless ×4", f"lossless {tree}"],
        "block": ["lossless ×0", "lossless block ×4", f"lossless joint {tree}"],
        "joint": ["lossless ×0", "lossless block ×4", f"lossless joint {tree}"],
        "coupled": ["lossless coupled ×0", "lossless coupled ×4", f"lossless coupled {tree}"],
        "fly:window=3": ["lossless ×0", "fly:window=3 ×4", f"lossless {tree}"],
    }
    run = runs({"verification": "token"}, lengths=[as_tree("static=2.2,drawn=2")])[0]
    assert run.proposes_trees
    assert RunConfig.from_dict(json.loads(json.dumps(run.as_dict()))) == run


def test_every_answer_has_a_seed_of_its_own_that_all_rules_share():
    lossless, relaxed = runs(rules=["lossless", "cactus:delta=1.0"], seeds=[3])
    assert [run.request_at(5, ("\n",)).seed for run in (lossless, relaxed)] == [seed_of(3, 5)] * 2
    assert lossless.request_at(5, ("\n",)).stop == ("\n",)
    assert len({seed_of(seed, place) for seed in range(30) for place in range(30)}) == 900


def test_the_grid_makes_each_run_once():
    made = runs({"budget_nats": 0.5, "top_p": 0.9}, rules=["cactus:delta=1.0", "lossless"], lengths=[0, 4],
                drafts=["bundled", "ngram"], seeds=[1, 0])  # fmt: skip
    assert [(run.draft, run.seed) for run in made[::3]] == [("bundled", 1), ("bundled", 0), ("ngram", 1), ("ngram", 0)]
    assert [run.label for run in made[:3]] == ["lossless ×0", "cactus:delta=1.0 ≤0.5 nats ×4", "lossless ×4"]
    assert {run.request.sampling.top_p for run in made} == {0.9}


def test_every_rule_is_made_with_every_protection_and_lossless_once():
    made = runs({"protect_threshold": 0.05}, rules=["lossless", "clamped:width=3"], lengths=[0, 4],
                protect=[None, "digits"])  # fmt: skip
    assert [run.label for run in made] == [
        "lossless coupled ×0",
        "lossless coupled ×4",
        "clamped:width=3.0 coupled ×4",
        "clamped:width=3.0 protecting digits above 0.05 coupled ×4",
    ]
    assert [run.label for run in runs({"protect": "digits"}, rules=["cactus:delta=1.0"], lengths=[4])] == [
        "cactus:delta=1.0 protecting digits ×4"
    ]
    assert runs(rules=["lossless"], protect=["digits"]) == runs(rules=["lossless"])


def test_rules_share_their_random_numbers_where_they_can():
    def labels(*rules: str, engine: str = "transformers", lengths=(0, 4), **settings):
        return [run.label for run in runs(settings, engine, rules=rules, lengths=lengths)]

    alone, lossless = "lossless coupled ×0", "lossless coupled ×4"
    assert labels("lossless") == labels("lossless", temperature=0.5) == [alone, lossless]
    assert labels("lossless", "clamped:width=1.0") == [alone, lossless, "clamped:width=1.0 coupled ×4"]
    # where some cannot, lossless is there twice, so that each setting has its own to be compared with
    both = labels("lossless", "cactus:delta=1.0", "ensemble:weight=0.5")
    assert both == [alone, lossless, "lossless ×4", "cactus:delta=1.0 ×4", "ensemble:weight=0.5 coupled ×4"]
    by_token = ["lossless ×0", "lossless ×4", "clamped:width=1.0 ×4"]
    for settings in ({"verification": "token"}, {"temperature": 0}, {"engine": "vllm"}, {"engine": "server"}):
        assert labels("lossless", "clamped:width=1.0", **settings) == by_token
    assert labels("lossless", "cactus:delta=1.0") == ["lossless ×0", "lossless ×4", "cactus:delta=1.0 ×4"]
    # relaxed rules are coupled with fixed numbers of proposals only
    assert labels("lossless", lengths=["auto"]) == ["lossless coupled ×auto"]
    for length in ("auto", as_tree("best_first")):
        name = "auto" if length == "auto" else "tree:best_first"
        assert labels("lossless", "clamped:width=1.0", lengths=[4, length]) == [
            *("lossless ×4", "clamped:width=1.0 ×4"),
            *(f"lossless ×{name}", f"clamped:width=1.0 ×{name}"),
        ]
    assert labels("clamped:width=1.0", lengths=[as_tree("static=2.2")]) == [
        "clamped:width=1.0 coupled ×tree:static=2.2"
    ]


def test_what_does_not_go_together_is_refused_where_runs_are_made():
    relaxed = {"rules": ["clamped:width=1.0"]}
    assert runs({"verification": "block"}, **relaxed)
    with pytest.raises(ValueError, match="a fixed number of proposals"):
        runs({"verification": "block"}, lengths=["confidence"], **relaxed)
    with pytest.raises(ValueError, match="block verification"):
        runs({"verification": "block"}, rules=["cactus:delta=1.0"])
    assert runs({"verification": "block"}, rules=["cactus:delta=1.0"], lengths=[0])[0].rule == "lossless"


def test_a_chat_is_part_of_a_run_s_key_and_plain_text_has_the_key_that_it_had():
    plain, chat, system = (config_of(**more) for more in ({}, {"chat": True}, {"chat": True, "system": "Be brief."}))
    assert "chat" not in plain.key
    assert len({plain.key, chat.key, system.key}) == len({each.comparable for each in (plain, chat, system)}) == 3
    for config in (plain, chat, system):
        assert RunConfig.from_dict(json.loads(config.key)) == config
    assert system.chat == Chat("Be brief.")
