"""The application: help, exit codes, one sentence for every mistake, and what goes to stdout and stderr."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import socket
import sys
from contextlib import suppress

import pytest
from rich.console import Console
from support.command_line import process
from support.patience import PATIENCE
from transformers import AutoTokenizer

from cactus_decoding import RULES, Fate, parse_rule, zoo
from cactus_decoding.cli import main
from cactus_decoding.cli.app import app
from cactus_decoding.cli.display import styles, write
from cactus_decoding.cli.help import commands_of
from cactus_decoding.cli.play import PORT, _listen
from cactus_decoding.core.models.tokenizers import DecodedPart
from cactus_decoding.core.rules.base import GreedyRule
from cactus_decoding.engines.openai.serving import listen
from cactus_decoding.lab.tuning.profile import Profile

QUESTION = "Tom has 4 pens and buys 2 boxes of 6 pens. How many pens does he have now?"
SHORT = ("--seed", "3", "--max-new-tokens", "12")

pytestmark = pytest.mark.usefixtures("settings_of_the_libraries")


def test_help_lists_the_commands_also_without_arguments(run, succeed):
    for arguments in ((), ("--help",), ("-h",)):
        out, _ = succeed(*arguments)
        assert all(command in out for command in commands_of(app))
    assert run("--version") == (0, "cactus-decoding 0.1.0\n", "")


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


def test_rules_are_all_there(succeed):
    spellings = [preset.spelling for rule in RULES.values() for preset in rule.presets]
    assert {parse_rule(spelling).name for spelling in spellings} == set(RULES)
    out, _ = succeed("rules")
    assert all(spelling in out for spelling in spellings)
    accepting = ", ".join(name for name, rule in RULES.items() if issubclass(rule, GreedyRule))
    assert f"all but {' and '.join(accepting.rsplit(', ', 1))} accept only" in " ".join(out.split())


def test_every_fate_has_a_look_of_its_own_and_controls_do_nothing():
    for colours in ("truecolor", "256", "standard"):
        file = io.StringIO()
        console = Console(file=file, force_terminal=True, color_system=colours, _environ={})
        look = styles(console)
        for fate in Fate:
            write(console, [DecodedPart("x", fate)], look)
        assert len(set(file.getvalue().split("x"))) == len(Fate) + 1
    cues = {style.rpartition(" ")[0] for style in look.values()}
    assert len(cues) == len(Fate)  # they differ without colours, too
    write(console, [DecodedPart("\x1b[2J\x07\x9b\n", Fate.BONUS)], look)
    assert "\x1b[2J" not in file.getvalue()
    assert "␛[2J␇." in file.getvalue()


CACTUS = "cactus_decoding.lab.conformance:CactusEngine"


@pytest.mark.slow
def test_this_package_conforms(succeed, tmp_path):
    """It fails by chance with probability 0.001 at most; seeds are fixed."""
    file = tmp_path / "found.json"
    out, err = succeed("conform", CACTUS, "--samples", "3", "--output", str(file))
    assert "right  temperature 1, ngram draft" in err
    assert " is right in " in out.partition("\n")[0]
    assert "A right engine is called wrong with probability 0.001 at most" in out
    found = json.loads(file.read_text())
    assert found["report"]["right"]
    assert found["provenance"]["arguments"]["samples"] == 3
    assert all(each["sampling"]["draft"] for each in found["report"]["findings"])


def test_how_to_install_it_is_one_line(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "cactus_conform.command", None)
    code, out, err = run("conform", "cactus")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "needs cactus-conform: run " in err
    assert err.rstrip().endswith("packages/conform")


def test_the_usual_port_gives_way_where_nobody_asked_for_it(refused):
    taken = None
    with suppress(ValueError):  # where it is taken already, so be it
        taken = listen("127.0.0.1", PORT)
    with _listen(listen, "127.0.0.1", None) as other:
        assert other.getsockname()[1] != PORT
    assert f"cannot listen on 127.0.0.1:{PORT}" in refused("play", "--no-browser", "--port", str(PORT))
    if taken is not None:
        taken.close()


@pytest.mark.slow
def test_the_command_serves_until_it_is_interrupted(tmp_path):
    profile = tmp_path / "profile.json"
    profile.write_text(json.dumps({"recommended": Profile.of("bundled", "bundled:draft", 3, 1).as_dict()}))
    with process("play", "--no-browser", "--port", "0", "--profile", str(profile)) as running:
        assert running.stdout is not None
        line = running.stdout.readline()
        assert line.startswith("cactus play: http://127.0.0.1:")
        address = line.split()[2]
        with socket.create_connection(("127.0.0.1", int(address.rsplit(":", 1)[1].strip("/")))) as connection:
            connection.sendall(b"GET /api/form HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            head, _, body = connection.makefile("rb").read().partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 OK")
            form = json.loads(body)
            assert form["start"]["num_speculative_tokens"] == "3"
            assert form["pair"] == {"target": "bundled", "draft": "bundled:draft"}
        running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 130
    assert "Traceback" not in err
