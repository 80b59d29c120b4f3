"""The command line: what goes to stdout and stderr, exit codes, and one sentence for every mistake."""

from __future__ import annotations

import io
import json
import os
import pty
import random
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from transformers import AutoTokenizer

from cactus_decoding import RULES, Fate, Metrics, generate, load_pair, parse_rule, zoo
from cactus_decoding.cli import main
from cactus_decoding.cli.display import styles, write
from cactus_decoding.cli.train_bundled import train_roles
from cactus_decoding.evaluation.score import Score
from cactus_decoding.files.provenance import commit, provenance
from cactus_decoding.generation.detokenizer import IncrementalDetokenizer, TextPart
from cactus_decoding.rules.guarantees import GUARANTEES
from cactus_decoding.training.bundled import Recipe, train_bundled
from cactus_decoding.training.floors import PairScores, check_floors, evaluate_pair
from cactus_decoding.training.language_model import TrainingPlan

COMMANDS = (
    "generate",
    "trace",
    "play",
    "demo",
    "serve",
    "rules",
    "eval",
    "frontier",
    "calibrate",
    "report",
    "train-bundled",
    "check-bundled",
)
QUESTION = "Tom has 4 pens and buys 2 boxes of 6 pens. How many pens does he have now?"
PROMPT = f"Question: {QUESTION}\nAnswer:"
SHORT = ("--seed", "3", "--max-new-tokens", "12")
TINY = {
    role: Recipe(
        width=64,
        layers=1,
        mlp_width=32,
        plans=(
            TrainingPlan(steps=4, batch_size=4, warmup=2, seed=seed, emphasis=2.0, emphasis_after=1, drills_after=2),
            TrainingPlan(steps=3, batch_size=4, warmup=1, seed=seed + 2, long=True),
        ),
    )
    for seed, role in enumerate(("target", "draft"))
}


pytestmark = pytest.mark.usefixtures("settings_of_the_libraries")


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(zoo.path("target"))


def process(*arguments: str, **options) -> subprocess.Popen:
    command = [sys.executable, "-c", "import sys; from cactus_decoding.cli import main; sys.exit(main())", *arguments]
    return subprocess.Popen(command, **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options)


# --- help, version, rules ---


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command(run, command):
    code, out, err = run(command, "--help")
    assert (code, err) == (0, "")
    assert f"Usage: cactus {command}" in out


def test_help_lists_the_commands_also_without_arguments(run):
    for arguments in ((), ("--help",), ("-h",)):
        code, out, _ = run(*arguments)
        assert code == 0
        assert all(command in out for command in COMMANDS)


def test_version(run):
    assert run("--version") == (0, "cactus-decoding 0.1.0\n", "")


def test_rules_are_all_there(run):
    assert {parse_rule(spelling).name for spelling in GUARANTEES} == set(RULES)
    code, out, _ = run("rules")
    assert code == 0
    assert all(spelling in out for spelling in GUARANTEES)


# --- mistakes ---


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["frob"],
            f"commands are {', '.join(COMMANDS)}",
        ),
        (["generate"], "Missing argument 'PROMPT' (see 'cactus generate --help')"),
        (["generate", "x", "--frob"], "--frob"),
        (["generate", "x", "--rule", "cactis"], "known are lossless, cactus, ensemble, lenience, clamped"),
        (["generate", "x", "--rule", "cactus"], "lacks delta; write for example 'cactus:delta=1'"),
        (["generate", "x", "--rule", "cactus:delta=-1"], "delta must be in [0, inf), but is -1.0"),
        (["generate", "x", "--top-p", "0"], "top_p must be in (0, 1], but is 0.0"),
        (["generate", "x", "--temperature", "nan"], "temperature must be in [0, inf), but is nan"),
        (["generate", "x", "--top-k", "-1"], "'--top-k'"),
        (["generate", "x", "--num-speculative-tokens", "many"], "unknown draft length 'many'"),
        (["generate", "x", "--num-speculative-tokens", "-1"], "num_speculative_tokens must be at least 0, but is -1"),
        (["generate", "x", "--max-new-tokens", "0"], "'--max-new-tokens'"),
        (["generate", "x", "--threads", "0"], "'--threads'"),
        (["generate", "x", "--stop", ""], "stop must be a sequence of strings that are not empty"),
        (["generate", " \n"], "the prompt must not be blank (with --raw it may)"),
        (["generate", "\udcff"], "the prompt must be UTF-8 text, but byte 0 is 0xff"),
        (["generate", "word " * 2000], "the prompt must be shorter than the target's 1024 positions"),
        (["generate", "x", "--target", "./missing"], "a draft is missing for target './missing': give a model's path"),
        (["generate", "x", "--target", "./missing", "--draft", "ngram"], "there is no folder './missing'"),
        (["generate", "x", "--draft", "/missing"], "cannot load the draft: there is no folder '/missing'"),
        (["demo", "--problems", "0"], "'--problems'"),
        (["demo", "--delta", "-1"], "delta must be in [0, inf), but is -1.0"),
        (["train-bundled"], "'--output'"),
        (["train-bundled", "--output", "x", "--role", "teacher"], "is not one of 'target', 'draft', 'both'"),
        (["train-bundled", "--output", str(zoo.path("target").parent)], "exists; choose another output, or allow"),
        (["check-bundled", "--models", "/missing"], "there is no folder '/missing/target'"),
        (["check-bundled", "--json", "/missing/result.json"], "cannot write '/missing/result.json': its folder is"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(run, arguments, message):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.startswith("cactus: ")
    assert err.count("\n") == 1


def test_a_damaged_model_is_a_mistake_too(run, tmp_path, tokenizer):
    model = tmp_path / "model"
    tokenizer.save_pretrained(model)
    (model / "config.json").write_bytes((zoo.path("draft") / "config.json").read_bytes())
    (model / "model.safetensors").write_bytes((zoo.path("draft") / "model.safetensors").read_bytes()[:5000])
    code, _, err = run("generate", "x", "--target", str(model), "--draft", "ngram")
    assert code == 2
    assert err.startswith("cactus: cannot load the target")
    (model / "tokenizer.json").write_text("{}")
    code, _, err = run("generate", "x", "--target", str(model), "--draft", "ngram")
    assert (code, err.count("\n")) == (2, 1)


def test_where_an_error_was_raised_can_be_seen(monkeypatch):
    monkeypatch.setenv("CACTUS_TRACEBACK", "1")
    with pytest.raises(ValueError, match="unknown rule"):
        main(["generate", "x", "--rule", "frob"])


# --- generate ---


def test_json_is_what_python_returns(run):
    code, out, err = run("generate", QUESTION, *SHORT, "--rule", "cactus:delta=0.50", "--top-p", "0.9", "--json")
    result = json.loads(out)
    assert (code, err) == (0, "")
    expected = generate(load_pair(), PROMPT, rule="cactus:delta=0.5", top_p=0.9, seed=3, max_new_tokens=12)
    assert result["text"] == expected.text
    assert result["token_ids"] == expected.token_ids
    assert result["fates"] == expected.fates
    assert result["finish_reason"] == expected.finish_reason == "length"
    given = {"prompt": PROMPT, "rule": "cactus:delta=0.5", "seed": 3, "top_p": 0.9, "stop": [], "target": None}
    assert given.items() <= result["arguments"].items()
    counts = expected.metrics.as_dict()
    assert all(result["metrics"][name] == counts[name] for name in ("steps", "relaxed", "acceptance_length"))


def test_a_drawn_seed_is_told_and_repeats_the_text(run):
    first = json.loads(run("generate", QUESTION, "--json", "--max-new-tokens", "20")[1])
    seed = str(first["arguments"]["seed"])
    again = json.loads(run("generate", QUESTION, "--json", "--max-new-tokens", "20", "--seed", seed)[1])
    assert first["token_ids"] == again["token_ids"]


def test_only_the_text_goes_to_stdout(run):
    code, out, err = run("generate", QUESTION, "--seed", "5", "--stop", "\n", "--stop", "####")
    assert code == 0
    assert out == generate(load_pair(), PROMPT, seed=5, stop=["\n", "####"]).text + "\n"
    for name in ("acceptance_length", "acceptance_rate", "accepted_per_step", "relaxed tokens", "tokens per second"):
        assert name in err
    assert "\x1b" not in out + err


@pytest.mark.parametrize(
    ("given", "options", "prompt"),
    [
        (QUESTION, [], PROMPT),
        (f" {QUESTION}\n", [], PROMPT),
        (f"Question: {QUESTION}", [], PROMPT),
        (PROMPT, [], PROMPT),
        (PROMPT + " First,", [], PROMPT + " First,"),
        (QUESTION, ["--raw"], QUESTION),
        ("", ["--raw"], ""),
        (QUESTION, ["--target", str(zoo.path("target")), "--draft", "ngram"], QUESTION),
    ],
)
def test_questions_to_the_bundled_pair_are_wrapped(run, given, options, prompt):
    out = run("generate", given, *SHORT, "--json", *options)[1]
    assert json.loads(out)["arguments"]["prompt"] == prompt


def test_the_prompt_may_come_from_standard_input(run, monkeypatch):
    for given, options, prompt in ((QUESTION + "\n", [], PROMPT), ("Zoë\n", ["--raw"], "Zoë\n")):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given.encode())))
        assert json.loads(run("generate", "-", *SHORT, "--json", *options)[1])["arguments"]["prompt"] == prompt


@pytest.mark.parametrize(
    ("options", "warned"),
    [
        ([], True),
        (["--top-p", "0.95"], False),
        (["--top-k", "20"], False),
        (["--min-p", "0.1"], False),
        (["--temperature", "0"], False),
        (["--rule", "lossless"], False),
        (["--rule", "cactus:delta=1,max_ratio=10"], False),
    ],
)
def test_cactus_without_truncation_warns_in_one_line(run, options, warned):
    _, out, err = run("generate", QUESTION, *SHORT, "--json", "--rule", "cactus:delta=1", *options)
    assert json.loads(out)
    assert err.count("\n") == warned
    assert ("warning" in err) == warned


# --- from tokens to pieces ---


def shown(tokenizer, token_ids, stop=()):
    stream, fates = IncrementalDetokenizer(tokenizer, stop), list(Fate)
    groups = [stream.push(token, fates[i % len(fates)]) for i, token in enumerate(token_ids)]
    return [*groups, stream.finish()]


def test_a_character_of_several_tokens_is_shown_whole_and_once(tokenizer):
    ids = tokenizer("Zoë pays 12€ – 漢字 🌵!", add_special_tokens=False).input_ids
    pieces = [piece for group in shown(tokenizer, ids) for piece in group]
    assert "".join(piece.text for piece in pieces) == "Zoë pays 12€ – 漢字 🌵!"
    assert not any("�" in piece.text for piece in pieces)
    fate_of_the_last = list(Fate)[(len(ids) - 1) % len(Fate)]
    assert pieces[-1] == TextPart("!", fate_of_the_last)


def test_each_token_keeps_its_own_text(tokenizer):
    byte = {tokenizer.decode([token]): token for token in tokenizer.get_vocab().values()}
    a, b = byte["a"], byte["b"]
    first, second = tokenizer("é", add_special_tokens=False).input_ids
    groups = shown(tokenizer, [a, first, second, b, first, a])
    texts = [[piece.text for piece in group] for group in groups]
    assert texts == [["a"], [], ["é"], ["b"], [], ["�", "a"], []]
    assert groups[5][0].fate == Fate.ACCEPTED  # the stray byte is token 4, not the letter after it
    assert groups[5][1].fate == Fate.RELAXED


def test_pieces_add_up_to_the_text_whatever_the_tokens(tokenizer):
    rng = random.Random(0)
    for _ in range(50):
        ids = [rng.randrange(len(tokenizer)) if rng.random() < 0.5 else rng.randrange(3, 259) for _ in range(40)]
        text = "".join(piece.text for group in shown(tokenizer, ids) for piece in group)
        assert text == tokenizer.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("stop", ["= 24", "####", " boxes", "\n", "never", "4", "= 2 = 2"])
def test_what_a_stop_string_cuts_is_never_shown(tokenizer, stop):
    text = "In 2 boxes: 4 * 6 = 2 = 24.\n#### 24"
    token_ids, trimmed = [], text.partition(stop)[0]
    for token in tokenizer(text, add_special_tokens=False).input_ids:
        token_ids.append(token)
        if stop in tokenizer.decode(token_ids):
            break
    assert "".join(piece.text for group in shown(tokenizer, token_ids, [stop]) for piece in group) == trimmed


def test_every_fate_has_a_look_of_its_own_and_controls_do_nothing():
    for colours in ("truecolor", "256", "standard"):
        file = io.StringIO()
        console = Console(file=file, force_terminal=True, color_system=colours, _environ={})
        look = styles(console)
        for fate in Fate:
            write(console, [TextPart("x", fate)], look)
        assert len(set(file.getvalue().split("x"))) == len(Fate) + 1
    cues = {style.rpartition(" ")[0] for style in look.values()}
    assert len(cues) == len(Fate)  # they differ without colours, too
    write(console, [TextPart("\x1b[2J\x07\x9b\n", Fate.BONUS)], look)
    assert "\x1b[2J" not in file.getvalue()
    assert "␛[2J␇." in file.getvalue()


# --- demo and check-bundled ---


def test_demo_ends_with_one_table_of_three_rows(run):
    code, out, err = run("demo", "--problems", "2", "--seed", "1")
    assert code == 0
    for name in ("plain sampling", "lossless speculation", "Cactus, delta=0.5"):
        assert len([line for line in out.splitlines() if line.startswith(f" {name}") and "/2 " in line]) == 1
    assert out.startswith("Question: ")
    assert "\x1b" not in out + err
    assert "Answering: 6/6" in err


def test_demo_texts_depend_on_the_seed_only(run):
    arguments = ("demo", "--problems", "1", "--json", "--delta", "0.1", "--delta", "2")
    first, again = (json.loads(run(*arguments)[1]) for _ in range(2))
    assert [row["texts"] for row in first["rows"]] == [row["texts"] for row in again["rows"]]
    assert [row["rule"] for row in first["rows"]] == ["lossless", "lossless", "cactus:delta=0.1", "cactus:delta=2.0"]
    assert first["arguments"]["seed"] == 0
    other = json.loads(run(*arguments, "--seed", "1")[1])
    assert [row["texts"] for row in first["rows"]] != [row["texts"] for row in other["rows"]]


def test_check_bundled_writes_a_result_and_fails_where_a_floor_is_missed(run, tmp_path):
    for role in ("target", "draft"):  # a draft as good as its target misses the second floor
        (tmp_path / role).symlink_to(zoo.path("draft"))
    file = tmp_path / "check.json"
    code, out, _ = run("check-bundled", "--models", str(tmp_path), "--problems", "2", "--json", str(file))
    assert code == 1
    assert "missed" in out
    result = json.loads(file.read_text())
    assert {floor["name"] for floor in result["floors"] if not floor["met"]} >= {"target − draft accuracy"}
    assert result["scores"]["target"]["right"] == result["scores"]["draft"]["right"]
    assert result["provenance"]["arguments"]["problems"] == 2
    assert result["provenance"]["versions"]["torch"] == torch.__version__


def test_floors():
    metrics = Metrics(steps=10, drafted=60, accepted=30)
    good = PairScores(Score(90, 100), Score(65, 100), Score(90, 100, metrics))
    assert all(floor.met for floor in check_floors(good))
    for bad in (
        replace(good, target=Score(89, 100), draft=Score(10, 100)),
        replace(good, draft=Score(66, 100)),
        replace(good, lossless=Score(90, 100, Metrics(steps=10, drafted=60, accepted=14))),
        replace(good, lossless=Score(90, 100, Metrics(steps=10, drafted=60, accepted=41))),
    ):
        assert sum(not floor.met for floor in check_floors(bad)) == 1
    with pytest.raises(ValueError, match="problems must not be empty"):
        evaluate_pair(load_pair(), load_pair(), [])


def test_provenance():
    record = provenance({"seed": 1})
    assert set(record) == {"arguments", "commit", "versions", "machine", "date"}
    assert json.loads(json.dumps(record)) == record
    assert commit() is None or len(commit().removesuffix("-dirty")) == 40


# --- training ---


@pytest.fixture
def work(tmp_path, tokenizer):
    tokenizer.save_pretrained(tmp_path / "work" / "tokenizer")
    return tmp_path / "work"


def weights(folder):
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize("last_step", [3, 6], ids=["first plan", "second plan"])
def test_an_interrupted_training_resumes_to_the_same_weights(work, tmp_path, capsys, last_step):
    train_roles(tmp_path / "whole", work, ["draft"], TINY, force=False)

    def interrupt(step, loss):
        if step == last_step:
            raise KeyboardInterrupt

    again = tmp_path / "again"
    for checkpoint in work.glob("*.pt"):
        checkpoint.unlink()
    with pytest.raises(KeyboardInterrupt):
        train_bundled(again, work, "draft", interrupt, recipes=TINY, seconds_between_checkpoints=0)
    assert not again.exists()
    capsys.readouterr()
    train_roles(again, work, ["draft"], TINY, force=False)
    assert f"draft: resumed after step {last_step - 1}" in capsys.readouterr().err
    expected, found = weights(tmp_path / "whole" / "draft"), weights(again / "draft")
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    train_roles(again, work, ["draft"], TINY, force=True)
    assert "draft: the training had been finished before" in capsys.readouterr().err


def test_a_model_is_replaced_as_a_whole_or_not_at_all(work, tmp_path):
    output = tmp_path / "output"
    (output / "draft").mkdir(parents=True)
    (output / "draft" / "precious").touch()
    with pytest.raises(ValueError, match="exists; choose another output"):
        train_roles(output, work, ["target", "draft"], TINY, force=False)
    assert not (output / "target").exists()

    def fail(step, loss):
        raise RuntimeError("no more power")

    with pytest.raises(RuntimeError, match="no more power"):
        train_bundled(output, work, "draft", fail, recipes=TINY, overwrite=True)
    assert (output / "draft" / "precious").exists()
    train_roles(output, work, ["draft"], TINY, force=True)
    assert not (output / "draft" / "precious").exists()
    assert [path.name for path in output.iterdir()] == ["draft"]


def test_checkpoints_that_do_not_fit_are_refused(work, tmp_path):
    train_roles(tmp_path, work, ["draft"], TINY, force=False)
    longer = {"draft": replace(TINY["draft"], plans=(replace(TINY["draft"].plans[0], steps=6),))}
    with pytest.raises(ValueError, match="is of another training plan"):
        train_roles(tmp_path, work, ["draft"], longer, force=True)
    wider = {"draft": replace(TINY["draft"], mlp_width=48)}
    with pytest.raises(ValueError, match="damaged or of another model"):
        train_roles(tmp_path, work, ["draft"], wider, force=True)
    (work / "draft-1.pt").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="damaged or of another model"):
        train_roles(tmp_path, work, ["draft"], TINY, force=True)
    with pytest.raises(ValueError, match="role must be one of target, draft, but is 'teacher'"):
        train_bundled(tmp_path, work, "teacher", print, recipes=TINY)


# --- as a process of its own ---


@pytest.mark.slow
def test_a_process_separates_stdout_from_stderr():
    run = process("generate", QUESTION, *SHORT, "--rule", "cactus:delta=1", "--json")
    out, err = run.communicate()
    assert run.returncode == 0
    assert json.loads(out)["arguments"]["seed"] == 3
    assert err.startswith("cactus: warning: ")
    assert err.count("\n") == 1


@pytest.mark.slow
def test_a_mistake_in_a_process():
    run = process("generate", QUESTION, "--rule", "frob")
    out, err = run.communicate()
    assert (run.returncode, out) == (2, "")
    known = ", ".join(RULES)
    assert err == f"cactus: unknown rule 'frob' in 'frob'; known are {known}\n"


@pytest.mark.slow
def test_a_terminal_shows_colours():
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
    run = process("generate", QUESTION, "--seed", "3", stdout=theirs, stderr=theirs, text=False, env=environment)
    os.close(theirs)
    output = b""
    while True:
        try:
            chunk = os.read(ours, 4096)
        except OSError:  # how Linux says that the other end is closed
            break
        if not chunk:
            break
        output += chunk
    os.close(ours)
    assert run.wait() == 0
    assert b"38;2;0;158;115m" in output  # accepted
    assert b"acceptance_length" in output
    assert b"\x1b[3;38;2;0;114;178m" in output or b"\x1b[1;38;2;204;121;167m" in output  # recovered or bonus


@pytest.mark.slow
def test_ctrl_c_is_quiet():
    run = process("demo", "--problems", "1000")
    run.stdout.readline()
    run.send_signal(signal.SIGINT)
    _, err = run.communicate()
    assert run.returncode == 130
    assert "Traceback" not in err


@pytest.mark.slow
def test_a_reader_who_leaves_early_is_no_error():
    run = process("rules")
    run.stdout.close()
    err = run.stderr.read()
    assert run.wait() == 1
    assert err == ""
    run.stderr.close()
