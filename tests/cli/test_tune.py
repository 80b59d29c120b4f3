"""`cactus tune`: the line to type, the profile that other commands read, and mistakes in one sentence."""

from __future__ import annotations

import json
import shlex
import time
from pathlib import Path

import pytest
from support.tuning import pretend

from cactus_decoding.cli.profiles import Chosen, with_profile
from cactus_decoding.core.drafting import measuring
from cactus_decoding.lab.tuning import profile, tuning
from cactus_decoding.lab.tuning.profile import Profile

FEW = ("--max-new-tokens", "12", "--threads", "1", "--seed", "1")


def cheap(width: int, threads: int) -> float:
    """Passes over several tokens cost hardly more than one over one."""
    return 0.1 * (1 + 0.01 * width)


def dear(width: int, threads: int) -> float:
    """They cost as much as so many passes."""
    return 0.1 * width


@pytest.fixture(autouse=True)
def _little_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "FEWEST_ANSWERS", 1)
    monkeypatch.setattr(tuning, "FEWEST_TOKENS", 1)
    monkeypatch.setattr("cactus_decoding.cli.tune.NUM_PROMPTS", 6)  # an interval takes as many


def test_it_ends_with_a_line_that_can_be_typed_and_a_profile(succeed, tmp_path, monkeypatch):
    pretend(monkeypatch, cheap, draft=0.002)
    path = tmp_path / "profile.json"
    given = ("bundled", "bundled:worded", "bundled:draft", "--rule", "clamped:width=1", *FEW, "--output", str(path))
    out, err = succeed("tune", *given)
    assert "Answering: 6/6" in err
    assert "bundled:draft: 2.0 ms per proposal with 1 thread; acceptance: 0." in out
    kept = json.loads(path.read_text())
    best = kept["recommended"]
    assert best["num_speculative_tokens"] > 1
    assert best["draft"].startswith("bundled:")
    fastest = max(kept["forecasts"], key=lambda each: each["tokens_per_second"] * (each["rule"] != "lossless"))
    assert (fastest["draft"], fastest["num_speculative_tokens"]) == (best["draft"], best["num_speculative_tokens"])
    assert kept["prompts"] == 6
    assert kept["drafts"][0]["acceptance"].keys() == {"lossless", "clamped:width=1.0"}
    assert "commit" in kept["provenance"]
    typed = shlex.split(out.splitlines()[1].removeprefix("Type: "))
    assert typed[:2] == ["cactus", "generate"]
    assert typed[typed.index("--rule") :][:2] == ["--rule", "clamped:width=1.0"]
    _, err = succeed("generate", "Finn has 22 nuts.", *typed[3:], "--json", "--max-new-tokens", "3")
    out, err = succeed("generate", "Finn has 22 nuts.", "--profile", str(path), "--json", "--max-new-tokens", "3")
    asked = json.loads(out)["arguments"]
    assert (asked["draft"], asked["num_speculative_tokens"]) == (best["draft"], best["num_speculative_tokens"])
    assert asked["rule"] == "lossless"  # a profile says what is fast, never what may be relaxed


def test_where_nothing_pays_it_says_so(succeed, tmp_path, monkeypatch):
    pretend(monkeypatch, dear, draft=0.05)
    path = tmp_path / "profile.json"
    (tmp_path / "cache").write_text("a file where the folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    out, err = succeed("tune", "bundled", "bundled:draft", *FEW)
    assert err.count("cactus: note: the profile will not be kept: ") == 1
    assert "Kept in" not in out
    out, err = succeed("tune", "bundled", "bundled:draft", *FEW, "--output", str(path))
    assert out.splitlines()[0].startswith("Do not speculate here: at best ")
    assert json.loads(path.read_text())["recommended"]["num_speculative_tokens"] == 0
    out, err = succeed("generate", "Finn has 22 nuts.", "--profile", str(path), "--json", "--max-new-tokens", "3")
    assert json.loads(out)["metrics"]["drafted"] == 0


@pytest.mark.parametrize(("fewest", "times"), [(6, 1.0), (6, 2.0), (1, 2.0)])
def test_without_a_verdict_it_says_why_and_keeps_nothing(run, tmp_path, monkeypatch, fewest, times):
    """Eight tokens of one answer were called a reason not to speculate. Two equal passes may differ by 1.25 times."""
    pretend(monkeypatch, cheap, draft=0.002)
    monkeypatch.setattr(
        measuring, "time_runs", lambda model, widths, *_: [dict.fromkeys(widths, each) for each in (0.1, 0.1 * times)]
    )
    monkeypatch.setattr("cactus_decoding.cli.tune._prompts", lambda *_: ["Finn has 22 nuts.", "Ann has 3 pens."])
    monkeypatch.setattr(tuning, "FEWEST_ANSWERS", fewest)
    path = tmp_path / "profile.json"
    path.write_text("what was there before")
    code, out, _ = run("tune", "bundled", "bundled:draft", *FEW, "--output", str(path))
    assert (code, path.read_text()) == (1, "what was there before")
    first, *_, last = out.splitlines()
    if fewest == 6:
        where = "an idle machine" + "; this one is busy" * (times > 1)
        assert first.startswith("Too little was measured to tell: ")
        takes = "but it takes 6 answers with 1 tokens"
        assert first.endswith(f" tokens of 2 answers, {takes}; give it more time with --minutes, on {where}")
    else:
        assert first.startswith("The machine is too busy to tell: ")
    assert last == "No profile is kept"
    assert "Type: " not in out
    if fewest == 6:  # five prompts cannot be enough
        monkeypatch.undo()
        monkeypatch.setattr("cactus_decoding.cli.tune.NUM_PROMPTS", 5)
        code, out, err = run("tune", "bundled", "bundled:draft", *FEW)
        assert (code, out) == (2, "")
        assert "5 prompts with up to 12 tokens each are too few to tell: there must be " in err


def test_progress_counts_answers_that_were_given(succeed, tmp_path, monkeypatch):
    monkeypatch.setattr("cactus_decoding.cli.tune.NUM_PROMPTS", 3)
    pretend(monkeypatch, cheap, draft=0.002)
    read = tuning.record_answers

    def slow(*given, **named):
        clock.now += 1000
        return read(*given, **named)

    class clock:
        now = 0.0
        process_time = staticmethod(time.process_time)
        perf_counter = staticmethod(lambda: clock.now)

    monkeypatch.setattr(tuning, "time", clock)
    monkeypatch.setattr(tuning, "record_answers", slow)
    out, err = succeed("tune", "bundled", "bundled:draft", *FEW, "--output", str(tmp_path / "new.json"))
    assert "Answering: 1/3 the time is over" in err
    assert "Answering: 3/3" not in err
    assert " of 1 answer;" in out


def test_files_have_threads_of_their_own_and_our_prompts(succeed, refused, gguf, tmp_path, monkeypatch):
    pretend(monkeypatch, lambda width, threads: cheap(width, threads) / threads, draft=0.001)
    monkeypatch.setattr("cactus_decoding.lab.tuning.answers.thread_counts", lambda: [1, 2])
    monkeypatch.setattr(
        "cactus_decoding.core.drafting.measuring.PROMPTS", tuple(f"Ann has {n} pens." for n in range(2, 8))
    )
    target, draft = f"{gguf('target', 'q8_0')}:context_size=256", f"{gguf('worded', 'q8_0')}:context_size=256"
    out, err = succeed("tune", target, draft, "--max-new-tokens", "12", "--seed", "1")
    (path,) = (Path(line.split()[2].rstrip(":")) for line in out.splitlines() if line.startswith("Kept in"))
    kept = json.loads(path.read_text())
    assert kept["threads"] == kept["drafts"][0]["threads"] == 2
    assert f"--target {target} --draft {draft} --threads 2" in out.splitlines()[1]
    chosen = with_profile(path, Chosen(None, None, None, None))
    assert chosen == (target, draft, str(kept["recommended"]["num_speculative_tokens"]), 2)
    other = with_profile(path, Chosen(target.partition(":")[0], None, "3", 1))
    assert other == (target.partition(":")[0], draft, "3", 1)
    err = refused("generate", "Ann", "--profile", str(path), "--draft", "ngram")
    assert f"has --draft '{draft}', but 'ngram' is given: leave one out" in err


def test_an_interruption_says_what_is_kept(run, tmp_path, monkeypatch):
    pretend(monkeypatch, cheap, draft=0.002)

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(tuning, "record_answers", interrupted)
    code, out, err = run("tune", "bundled", "bundled:draft", *FEW, "--output", str(tmp_path / "new.json"))
    assert (code, out) == (130, "")
    assert err.splitlines()[-1].startswith("cactus: interrupted; pass times that were measured to the end are kept")
    assert not (tmp_path / "new.json").exists()


def test_a_profile_of_another_machine_is_refused_in_one_line(run, refused, tmp_path, monkeypatch):
    path = tmp_path / "profile.json"
    path.write_text(json.dumps({"recommended": Profile.of("bundled", "ngram", 3, 1).as_dict()}))
    for command in (["serve", "--engine", "vllm"], ["serve"]):
        assert "a profile is of this package's own loop" in refused(*command, "--profile", str(path))
    monkeypatch.setattr(profile, "machine_key", lambda: {"processor": "cpu Z80"})
    for command in (["generate", "Ann"], ["serve", "--engine", "llama-cpp"], ["play", "--no-browser"]):
        code, out, err = run(*command, "--profile", str(path))
        assert (code, out) == (2, "")
        assert "is of a machine with processor" in err
        assert err.count("\n") == 1
