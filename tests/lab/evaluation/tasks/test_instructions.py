"""IFEval's answers are judged by lm-evaluation-harness's checkers, and as the harness judges them."""

from __future__ import annotations

import builtins
import json

import pytest

from cactus_decoding.lab.evaluation.tasks.sources import parse_task

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::SyntaxWarning"
)

PROBLEMS = [
    ("Write about cats without commas.", ["punctuation:no_comma"], [{}]),
    ("Say it in quotes, in lower case.", ["startend:quotation", "change_case:english_lowercase"], [{}, {}]),
    ("At least 5 words, name a cat.", ["length_constraints:number_words", "keywords:existence"],
     [{"relation": "at least", "num_words": 5}, {"keywords": ["cat"]}]),
    ("At most 2 sentences.", ["length_constraints:number_sentences"], [{"relation": "less than", "num_sentences": 3}]),
    ("Highlight 1 part.", ["detectable_format:number_highlighted_sections"], [{"num_highlights": 1}]),
    ("Answer in JSON.", ["detectable_format:json_format"], [{}]),
    ("End with the end.", ["startend:end_checker"], [{"end_phrase": "the end"}]),
    ("Answer in German.", ["language:response_language"], [{"language": "de"}]),
]  # fmt: skip
ANSWERS = [
    "A cat sleeps, and then it eats.\nIt is a good life for a cat. *Truly* good. the end",
    '"the cat sat on the mat and looked at the birds"',
    'Sure! Here it is:\n{"animal": "cat"}',
    "Die Katze schläft den ganzen Tag auf dem Sofa und träumt von Mäusen.",
    "  ",
]


@pytest.fixture
def sentences(tmp_path, monkeypatch):
    """Stand in for NLTK's data, which is downloaded: how English sentences end, with nothing learned."""
    import nltk

    folder = tmp_path / "nltk_data" / "tokenizers" / "punkt_tab" / "english"
    folder.mkdir(parents=True)
    for name in ("abbrev_types.txt", "collocations.tab", "sent_starters.txt", "ortho_context.tab"):
        (folder / name).write_text("")
    monkeypatch.setattr(nltk.data, "path", [str(tmp_path / "nltk_data")])


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "ifeval.jsonl"
    lines = [
        {"key": 1000 + place, "prompt": prompt, "instruction_id_list": kinds, "kwargs": given}
        for place, (prompt, kinds, given) in enumerate(PROBLEMS)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.usefixtures("sentences")
def test_forty_answers_are_judged_as_the_harness_judges_them(path):
    seen = set()
    for score in ("strict", "loose"):
        task = parse_task(f"ifeval:path={path},score={score}", chat=True)
        task.judge.check()
        from lm_eval.tasks.ifeval.utils import process_results

        documents = [json.loads(line) for line in path.read_text().splitlines()]
        for document, problem in zip(documents, task.problems, strict=True):
            theirs = [process_results(document, [text])[f"prompt_level_{score}_acc"] for text in ANSWERS]
            assert [task.is_right(problem, text) for text in ANSWERS] == theirs
            seen |= {(score, *theirs)}
    assert len(seen) > 8, "the answers tell instructions and scores apart"


def test_problems_are_grouped_by_their_kind_of_instruction(path):
    task = parse_task(f"ifeval:path={path}", 3)
    assert [(each.id, each.group) for each in task.problems] == [
        ("1000", "punctuation"),
        ("1001", "several"),
        ("1002", "several"),
    ]


def test_what_is_missing_is_said_in_one_line(path, monkeypatch):
    import nltk

    task = parse_task(f"ifeval:path={path}")
    monkeypatch.setattr(nltk.data, "path", [])
    with pytest.raises(ValueError, match=r"run python -m nltk\.downloader punkt_tab"):
        task.judge.check()
    imported = builtins.__import__

    def importing(name, *rest, **more):
        if name == "langdetect":
            raise ModuleNotFoundError(name, name=name)
        return imported(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", importing)
    with pytest.raises(ValueError, match=r"IFEval is checked by lm-evaluation-harness: run .*ifeval"):
        task.judge.check()


@pytest.mark.usefixtures("sentences")
def test_malformed_lines_and_unknown_instructions_are_named(path):
    path.write_text(json.dumps({"prompt": "x", "instruction_id_list": ["a:b"], "kwargs": []}) + "\n")
    with pytest.raises(
        ValueError, match=r"line 1: 'instruction_id_list' and 'kwargs' must be lists of the same length"
    ):
        parse_task(f"ifeval:path={path}")
    path.write_text(json.dumps({"prompt": "x", "instruction_id_list": ["a:b"], "kwargs": [{}]}) + "\n")
    with pytest.raises(ValueError, match="has no instruction 'a:b'"):
        parse_task(f"ifeval:path={path}").judge.check()
