"""The frontier: exact against enumeration, monotone where theory says so, and files that say what is wrong."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.recorded_rows import enumerated, enumerated_tokens, float64_rows, one_sparse_step, some_rows
from support.rules_under_test import SPELLINGS, Altered
from support.tiny_models import tiny_llama

from cactus_decoding import SamplingParams, load_pair, parse_rule, stream
from cactus_decoding.auditing import audit
from cactus_decoding.drafting.ngram import NgramDrafter
from cactus_decoding.evaluation.frontier.families import FAMILIES, parse_families
from cactus_decoding.evaluation.frontier.frontier import LOOSEST, Frontier, as_result, frontier
from cactus_decoding.evaluation.frontier.frontier_file import frontier_picture, read_frontier
from cactus_decoding.evaluation.frontier.recorded_rows import read_rows
from cactus_decoding.evaluation.frontier.recording import record
from cactus_decoding.evaluation.frontier.row_store import join, pack
from cactus_decoding.evaluation.reporting.pictures import STYLES, family_of
from cactus_decoding.files.provenance import provenance
from cactus_decoding.generation.pair import Pair
from cactus_decoding.zoo.word_problems import word_problems

EXACT = 1e-10
SAMPLED = tuple(text for text in SPELLINGS if not text.startswith("relaxed_greedy"))
PROMPT = next(iter(word_problems("validation", seed=0))).prompt


# --- exactness ---


@pytest.mark.parametrize("spelling", SAMPLED)
@pytest.mark.parametrize("rows", [some_rows(), one_sparse_step()], ids=["dense", "sparse"])
def test_every_number_is_that_of_enumeration(spelling, rows):
    rule = parse_rule(spelling)
    point = Frontier(rows, memory=20_000).measure(rule)  # so little that there are several chunks
    expected = enumerated(rule, rows)
    for name in ("acceptance", "kl", "tv"):
        assert getattr(point, name).value == pytest.approx(expected[name], abs=EXACT)
    assert point.max_log_ratio == pytest.approx(expected["max_log_ratio"], abs=1e-7)
    tokens = [each.value for each in point.tokens_per_step]
    assert tokens == pytest.approx(enumerated_tokens(rule, rows, len(tokens)), abs=EXACT)


def test_a_wrong_rule_is_told_apart_by_enumeration():
    rows = some_rows()
    wrong = Altered(parse_rule("cactus:delta=1"), acceptance_factor=0.9)
    point = Frontier(rows).measure(wrong)
    assert abs(point.acceptance.value - enumerated(wrong.right, rows)["acceptance"]) > 1e-3


def test_chunks_do_not_matter():
    for rows in (some_rows(), one_sparse_step()):
        one_by_one, at_once = (Frontier(rows, memory=memory).measure("cactus:delta=1") for memory in (1, 2**30))
        for name in ("acceptance", "kl", "tv"):
            assert getattr(one_by_one, name) == pytest.approx(getattr(at_once, name), abs=1e-14)


def test_lossless_costs_nothing_and_emits_as_many_tokens_as_the_textbook_says():
    rows = some_rows()
    point = Frontier(rows).measure("lossless")
    assert point.kl.value < 1e-12
    assert point.tv.value < 1e-12
    assert abs(point.max_log_ratio) < 1e-6
    overlap = torch.minimum(float64_rows(rows.target), float64_rows(rows.draft)).sum(-1)[rows.visited].mean()
    assert point.acceptance.value == pytest.approx(overlap.item(), abs=EXACT)


@pytest.mark.parametrize("rows", [some_rows(), one_sparse_step()], ids=["dense", "sparse"])
def test_nothing_accepts_more_than_the_limit(rows):
    measured = Frontier(rows)
    limit = measured.measure(LOOSEST)
    inside = torch.where(float64_rows(rows.target) > 0, float64_rows(rows.draft), 0.0).sum(-1)[rows.visited].mean()
    assert limit.acceptance.value == pytest.approx(inside.item(), abs=1e-9)
    for family in FAMILIES.values():
        assert measured.measure(family.spell(family.loose)).acceptance.value <= limit.acceptance.value + 1e-9


@pytest.mark.parametrize("name", ["cactus", "cactus_exact", "clamped", "clamped_max_kl", "ensemble", "lenience"])
def test_a_looser_knob_accepts_and_costs_more(name):
    family = FAMILIES[name]
    points = [Frontier(some_rows()).measure(family.spell(knob)) for knob in family.knobs(9)]
    for number in ("acceptance", "kl"):
        values = [getattr(point, number).value for point in points]
        assert all(later >= earlier - 1e-9 for earlier, later in pairwise(values))
    assert points[-1].acceptance.value > points[0].acceptance.value + 0.05


@pytest.mark.slow
def test_no_rule_beats_the_clamped_ratio_at_its_acceptance():
    # the optimum is over rules of one multiplier for all positions, so mean acceptance is compared with mean KL
    rows = some_rows()
    points = frontier(rows, list(FAMILIES.values()), points=3)
    measured = Frontier(rows)
    for point in points[2:]:
        low, high = 0.0, 500.0
        for _ in range(30):
            middle = (low + high) / 2
            less = measured.measure(f"clamped:width={middle!r}").acceptance.value < point.acceptance.value
            low, high = (middle, high) if less else (low, middle)
        assert measured.measure(f"clamped:width={low!r}").kl.value <= point.kl.value + 1e-5, point.rule


def test_families_cover_every_rule_that_samples_and_have_a_look_of_their_own():
    assert {family_of(family.spell(family.strict)) for family in FAMILIES.values()} == set(FAMILIES)
    assert set(FAMILIES) <= set(STYLES)
    looks = [(style.marker, style.colour, style.hollow) for style in STYLES.values()]
    assert len(set(looks)) == len(looks)
    assert len({style.marker for style in STYLES.values()}) == len(STYLES)
    with pytest.raises(ValueError, match="unknown rule family 'cactis'; known are cactus, cactus_exact"):
        parse_families(["cactis"])


# --- recording ---


@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(0.6, 20, 0.95)], ids=["plain", "truncated"])
def test_a_recording_holds_what_the_run_visited(sampling, tmp_path):
    pair = load_pair()
    rows = record(
        pair, [PROMPT] * 3, positions=10**6, num_speculative_tokens=5, sampling=sampling, max_new_tokens=40, seed=4
    )
    path = tmp_path / "rows.safetensors"
    rows.save(path)
    again = read_rows(path)
    assert again.target.sparse == again.draft.sparse == (sampling.top_k > 0)
    for kept in (rows, again):
        assert kept.problems == 3
        for store in (kept.target, kept.draft):
            assert float64_rows(store).sum(-1).allclose(torch.ones(len(store), dtype=torch.float64))
        # every proposal was drawn from its row
        drafted = kept.drafted.long().unsqueeze(1)
        assert bool((float64_rows(kept.draft).gather(1, drafted) > 0).all())
    assert torch.equal(rows.target.dense(3, 9), again.target.dense(3, 9))
    response = [
        step
        for number in range(3)
        for step in stream(pair, PROMPT, num_speculative_tokens=5, seed=4 + number, max_new_tokens=40, **vars(sampling))
    ]
    assert len(rows.problem) == len(response)
    for number, step in enumerate(response):
        mine = rows.step == number
        emitted, drafted = step.token_ids, rows.drafted[mine].tolist()
        kept = min(step.num_accepted, len(drafted))
        assert drafted[: min(kept, len(emitted))] == emitted[:kept]
        assert int(rows.visited[mine].sum()) == min(step.num_accepted + 1, len(drafted))


@pytest.mark.slow
def test_recorded_acceptance_is_what_a_run_shows():
    # A visited proposal that is not its step's last was accepted if the next one was visited. Outcome less chance is a
    # martingale difference within an interval of length 1, so by Hoeffding and Azuma the mean of n of them is beyond
    # 2.7 / sqrt(n) with probability below 1e-6. The chances of the loosest rule must fail.
    pair = load_pair()
    rows = record(pair, [PROMPT] * 8, positions=400, num_speculative_tokens=6, sampling=SamplingParams(), seed=0)
    inner = (rows.step[:-1] == rows.step[1:]) & rows.visited[:-1]
    accepted = rows.visited[1:][inner].double().mean().item()
    target, draft = (float64_rows(store)[:-1][inner] for store in (rows.target, rows.draft))
    most = 2.7 / math.sqrt(len(target))
    assert len(target) > 200
    assert abs(accepted - audit("lossless", target, draft).acceptance.mean().item()) < most
    assert abs(accepted - audit(LOOSEST, target, draft).acceptance.mean().item()) > most


def test_lookup_drafts_are_recorded_as_one_hot_rows():
    pair = load_pair()
    lookup = Pair(pair.target, NgramDrafter(), pair.tokenizer, bundled=True)
    rows = record(lookup, [PROMPT] * 2, positions=40, num_speculative_tokens=4, sampling=SamplingParams(), seed=1)
    assert rows.draft.sparse
    assert not rows.target.sparse
    assert torch.equal(rows.draft.dense(0, len(rows.draft)).argmax(-1), rows.drafted.long())
    point = Frontier(rows).measure("lossless")
    target = float64_rows(rows.target)
    drafted = target.gather(1, rows.drafted.long().unsqueeze(1)).squeeze(1)
    assert point.acceptance.value == pytest.approx(drafted[rows.visited].mean().item(), abs=EXACT)


@pytest.mark.slow
def test_recording_stops_where_it_should():
    pair = load_pair()
    arguments = {"num_speculative_tokens": 4, "sampling": SamplingParams()}
    assert 20 <= record(pair, [PROMPT] * 9, positions=20, **arguments).positions < 25
    few = record(pair, [PROMPT] * 9, positions=10**6, memory=2 * 1003 * 4 * 256, **arguments)
    assert 0 < len(few.target) < 600
    with pytest.raises(ValueError, match="the temperature must be above 0"):
        record(pair, [PROMPT], positions=20, num_speculative_tokens=4, sampling=SamplingParams(0))
    with pytest.raises(ValueError, match="the draft proposed nothing"):
        record(pair, [], positions=20, **arguments)


def test_stores_join_whatever_their_form():
    dense, sparse = torch.full((2, 8), 1 / 8), torch.eye(8)
    stores = [pack([dense], 8), pack([sparse], 8)]
    assert [store.sparse for store in stores] == [False, True]
    for parts in ([0, 0], [1, 1], [0, 1], [1, 0, 1]):
        joined = join([stores[i] for i in parts], 8)
        expected = torch.cat([(dense, sparse)[i] for i in parts])
        assert torch.equal(joined.dense(0, len(joined)), expected)
        assert torch.equal(joined.dense(1, 3), expected[1:3])


# --- files ---


def test_files_of_rows_say_what_is_wrong_with_them(tmp_path):
    path = tmp_path / "rows.safetensors"
    with pytest.raises(FileNotFoundError):
        read_rows(path)
    path.write_text("not rows")
    with pytest.raises(ValueError, match=r"rows\.safetensors: this is not a file of rows"):
        read_rows(path)
    save_file({"x": torch.zeros(1)}, path)
    with pytest.raises(ValueError, match="this is not a file of rows"):
        read_rows(path)
    save_file({"x": torch.zeros(1)}, path, {"cactus_rows": json.dumps({"schema": 9})})
    with pytest.raises(ValueError, match="schema is 9, but this version reads schema 1"):
        read_rows(path)
    some_rows().save(path)
    tensors = load_file(path)
    about = {"schema": 1, "vocabulary": 7, "settings": {}, "provenance": {}}
    save_file({name: t for name, t in tensors.items() if name != "step"}, path, {"cactus_rows": json.dumps(about)})
    with pytest.raises(ValueError, match="lacks 'step'"):
        read_rows(path)
    save_file(tensors | {"step": tensors["step"][1:].clone()}, path, {"cactus_rows": json.dumps(about)})
    with pytest.raises(ValueError, match="parts of different lengths"):
        read_rows(path)


def small_result() -> dict:
    rows = some_rows()
    return as_result(frontier(rows, list(FAMILIES.values()), points=3), rows, provenance({"seed": 0}))


def test_result_files_say_what_is_wrong_with_them(tmp_path):
    path = tmp_path / "frontier.json"
    result = small_result()
    path.write_text(json.dumps(result, allow_nan=False))
    assert read_frontier(path) == json.loads(json.dumps(result))
    for text, message in (
        ('{"kind":\n oops', "line 2: this is not JSON"),
        ("[1]", "this is not a result of cactus frontier"),
        (json.dumps(result | {"schema": 7}), "schema is 7"),
        (json.dumps({"kind": "frontier", "schema": 1}), "lacks settings, visited"),
        (json.dumps(result | {"points": [*result["points"], {"rule": 1}]}), "is not a point"),
        (json.dumps(result | {"points": result["points"][2:]}), "the first two points must be"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=message) as raised:
            read_frontier(path)
        assert "frontier.json" in str(raised.value)


@pytest.mark.slow
def test_the_picture_is_the_same_every_time_and_shows_every_family():
    result = small_result()
    picture = frontier_picture(result)
    assert picture == frontier_picture(result)
    assert picture.startswith("<?xml")
    for colour in {STYLES[name].colour for name in FAMILIES}:
        assert colour in picture


# --- command ---


@pytest.mark.slow
def test_the_command_records_once_and_computes_again(run, tmp_path):
    output, picture = tmp_path / "f.json", tmp_path / "f.svg"
    command = ["frontier", "--output", str(output), "--picture", str(picture), "--positions", "60", "--points", "2"]
    command += ["--family", "clamped", "--family", "top_k", "--num-speculative-tokens", "4", "--top-p", "0.95"]
    code, out, err = run(*command)
    assert code == 0, err
    assert "clamped:width=50.0" in out
    assert "Recording" in err
    first, drawn = json.loads(output.read_text()), picture.read_bytes()
    assert first["visited"] >= 60
    assert first["recorded"]["arguments"]["task"] == "word_problems:split=validation"
    assert {"commit", "versions", "machine"} <= set(first["provenance"])
    assert [len(point["tokens_per_step"]) for point in first["points"]] == [4] * len(first["points"])
    code, _, err = run(*command)
    assert code == 0
    assert "Recording" not in err
    assert json.loads(output.read_text())["points"] == first["points"]
    assert picture.read_bytes() == drawn
    before = output.read_bytes()
    code, out, err = run(*command, "--seed", "3")
    assert (code, out) == (2, "")
    assert "was recorded with seed=0, but 3 is asked for" in err
    assert output.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--output", "/missing/f.json"], "cannot write '/missing/f.json': its folder is missing"),
        (["--output", "f.json", "--rows", "f.json"], "outputs must be different files"),
        (["--output", "f.json", "--family", "cactis"], "unknown rule family 'cactis'"),
        (["--output", "f.json", "--task", "riddles"], "unknown task 'riddles'"),
        (["--output", "f.json", "--temperature", "0"], "the temperature must be above 0"),
        (["--output", "f.json", "--points", "1"], "'--points'"),
        (["--output", "f.json", "--target", "/missing", "--draft", "ngram"], "there is no folder '/missing'"),
    ],
)
def test_mistakes_are_found_before_any_work(run, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, out, err = run("frontier", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.startswith("cactus: ")
    assert list(tmp_path.iterdir()) == []


def test_models_in_float64_are_recorded_too():
    pair = load_pair()
    tiny = Pair(type(pair.target)(tiny_llama(0, 1003, positions=256)), NgramDrafter(), pair.tokenizer)
    rows = record(
        tiny, [PROMPT], positions=5, num_speculative_tokens=3, sampling=SamplingParams(), max_new_tokens=60, seed=0
    )
    assert rows.target.values.dtype == torch.float32
