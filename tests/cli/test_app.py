"""The application: help, exit codes, one sentence for every mistake, and what goes to stdout and stderr."""

from __future__ import annotations

import json
import os
import pty

import pytest
from support.command_line import process
from transformers import AutoTokenizer

from cactus_decoding import RULES, zoo
from cactus_decoding.cli import main

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
    "diagnose",
    "conform",
    "tune",
    "report",
    "train-draft",
    "learn-importance",
    "show",
)
QUESTION = "Tom has 4 pens and buys 2 boxes of 6 pens. How many pens does he have now?"
SHORT = ("--seed", "3", "--max-new-tokens", "12")

pytestmark = pytest.mark.usefixtures("settings_of_the_libraries")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command(run, command):
    code, out, err = run(command, "--help")
    assert (code, err) == (0, "")
    assert f"usage: cactus {command}" in out.lower()


def test_help_lists_the_commands_also_without_arguments(run):
    for arguments in ((), ("--help",), ("-h",)):
        code, out, _ = run(*arguments)
        assert code == 0
        assert all(command in out for command in COMMANDS)


def test_version(run):
    assert run("--version") == (0, "cactus-decoding 0.1.0\n", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["frob"],
            f"commands are {', '.join(COMMANDS)}",
        ),
        (["generate"], "Missing argument 'PROMPT' (see 'cactus generate --help')"),
        (["generate", "x", "--frob"], "--frob"),
        (["generate", "x", "--rule", "cactis"], f"known are {', '.join(RULES)}"),
        (["generate", "x", "--rule", "cactus"], "lacks delta; write for example 'cactus:delta=1'"),
        (["generate", "x", "--rule", "cactus:delta=-1"], "delta must be in [0, inf), but is -1.0"),
        (["generate", "x", "--top-p", "0"], "top_p must be in (0, 1], but is 0.0"),
        (["generate", "x", "--temperature", "nan"], "temperature must be in [0, inf), but is nan"),
        (["generate", "x", "--top-k", "-1"], "--top-k must be "),
        (["generate", "x", "--num-speculative-tokens", "many"], "unknown draft length 'many'"),
        (["generate", "x", "--num-speculative-tokens", "-1"], "num_speculative_tokens must be at least 0, but is -1"),
        (["generate", "x", "--max-new-tokens", "0"], "--max-new-tokens must be "),
        (["generate", "x", "--threads", "0"], "--threads must be "),
        (["generate", "x", "--stop", ""], "stop must be a sequence of strings that are not empty"),
        (["generate", " \n"], "the prompt must not be blank (with --raw it may)"),
        (["generate", "\udcff"], "the prompt must be UTF-8 text, but byte 0 is 0xff"),
        (["generate", "word " * 2000], "the prompt must be shorter than the target's 1024 positions"),
        (["generate", "x", "--target", "./missing"], "there is no folder './missing'"),
        (["generate", "x", "--target", "./missing", "--draft", "ngram"], "there is no folder './missing'"),
        (["generate", "x", "--draft", "/missing"], "cannot load the draft: there is no folder '/missing'"),
        (["demo", "--problems", "0"], "--problems must be "),
        (["demo", "--num-speculative-tokens", "0"], "num_speculative_tokens must be at least 1, but is 0"),
        (["demo", "--delta", "-1"], "delta must be in [0, inf), but is -1.0"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(run, arguments, message):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.startswith("cactus: ")
    assert err.count("\n") == 1


def test_a_damaged_model_is_a_mistake_too(run, tmp_path):
    model = tmp_path / "model"
    AutoTokenizer.from_pretrained(zoo.path("target")).save_pretrained(model)
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
    assert b" per step" in output
    assert b"\x1b[3;38;2;0;114;178m" in output or b"\x1b[1;38;2;204;121;167m" in output  # recovered or bonus


@pytest.mark.slow
def test_a_reader_who_leaves_early_is_no_error():
    run = process("rules")
    run.stdout.close()
    err = run.stderr.read()
    assert run.wait() == 1
    assert err == ""
    run.stderr.close()
