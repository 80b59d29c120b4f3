"""What may be given to vLLM's engine by an evaluation, and what its steps are counted as."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from cactus_decoding import Metrics
from cactus_decoding.engines.vllm.offline import StepCounts, keep_stdout_clean, parse_engine_arguments


def test_engine_arguments_are_a_json_object() -> None:
    assert parse_engine_arguments(None) == {}
    assert parse_engine_arguments('{"dtype": "float32"}') == {"dtype": "float32"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is no JSON"),
        ("[1]", "must be a JSON object"),
        ('{"model": "x", "max_num_seqs": 2}', "may not hold max_num_seqs, model"),
    ],
)
def test_others_are_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_engine_arguments(text)


def test_steps_are_counted_once_they_bring_forth_tokens() -> None:
    counts = StepCounts()

    def record(drafted: int | None, accepted: int, generated: int) -> None:
        drafts = None if drafted is None else SimpleNamespace(num_draft_tokens=drafted, num_accepted_tokens=accepted)
        counts.record(SimpleNamespace(spec_decoding_stats=drafts), SimpleNamespace(num_generation_tokens=generated))

    counts.record(None, None)
    record(None, 0, 0)  # part of a prompt
    record(None, 0, 1)  # the rest of it
    record(4, 4, 5)
    record(4, 1, 2)
    assert counts.take() == Metrics(steps=3, drafted=8, accepted=5, recovered=1, bonus=2)
    assert counts.take() == Metrics()


def test_a_user_s_own_log_settings_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    monkeypatch.setenv("VLLM_LOGGING_STREAM", "")  # so that it is put back afterwards
    del os.environ["VLLM_LOGGING_STREAM"]
    keep_stdout_clean()
    assert (os.environ["VLLM_LOGGING_LEVEL"], os.environ["VLLM_LOGGING_STREAM"]) == ("DEBUG", "ext://sys.stderr")
