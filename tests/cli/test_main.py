"""The command's first moments: what it imports, and that Ctrl-C is quiet from then on."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time

import pytest
from support.command_line import process
from support.tables import all_of

from cactus_decoding import cli
from cactus_decoding.cli import app, main
from cactus_decoding.cli.help import commands_of

HEAVY = {"torch", "transformers", "numpy", "tokenizers"}


QUICK = [name for name in commands_of(app.app) if name not in ("eval", "train-draft")]
MAIN = "from cactus_decoding.cli import main; "
LATER = {"transformers", "scipy", "sklearn", "matplotlib", "lm_eval", "pandas", "sympy"}
MODULES = ("engines.llama_cpp.llama", "lab.tracing", "core.generate", "core.pair", "lab.evaluation.runs.runner",
           "lab.frontier.limits", "lab.reporting.pictures")  # fmt: skip


@all_of("code, heavy", [
    ("import cactus_decoding", HEAVY),
    (f"{MAIN}main(['--help']); main(['--version'])", HEAVY),
    (f"{MAIN}[main([command, '--help']) for command in {QUICK}]", {"torch", "transformers"}),
    ("import cactus_decoding.lab.training", {"torch"}),
    *((f"import cactus_decoding.{module}", LATER) for module in MODULES),
])  # fmt: skip
def test_what_needs_no_torch_or_transformers_does_not_wait_for_them(code, heavy):
    code += f"\nimport sys; print('imported:', sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.endswith("imported: []\n"), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("moment", [0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5])
def test_ctrl_c_at_any_moment_is_one_line(moment, times):
    # the prompt never comes, so however fast the machine is, the command is not done
    run = process("generate", "-", stdin=subprocess.PIPE, tell_start=True)
    assert run.stdout.read(1) == "."
    time.sleep(moment)
    for _ in range(times):
        run.send_signal(signal.SIGINT)
        time.sleep(0.002)
    out, err = run.communicate()
    assert (run.returncode, out, err) == (130, "", "cactus: interrupted\n")


def test_ctrl_c_while_python_ends_does_not_kill_it():
    late = "import os; Late = type('Late', (), {'__del__': lambda self, kill=os.kill, pid=os.getpid(): kill(pid, 2)})"
    # it is deleted when Python has taken the handlers of signals away
    code = f"{late}; late = Late(); import sys; from cactus_decoding.cli import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", code, "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_ctrl_c_is_quiet_at_work():
    run = process("demo", "--problems", "1000")
    run.stdout.readline()
    run.send_signal(signal.SIGINT)
    _, err = run.communicate()
    assert run.returncode == 130
    assert "Traceback" not in err
    assert err.endswith("cactus: interrupted\n")
    assert err.count("cactus: ") == 1


def test_main_leaves_the_handling_of_signals_as_it_was(run, monkeypatch):
    seen = []
    monkeypatch.setattr(app, "run", lambda arguments: seen.append(signal.getsignal(signal.SIGINT)) or 0)
    before = signal.getsignal(signal.SIGINT)
    assert main(["rules"]) == 0
    assert seen.pop() is cli._leave_imports
    assert signal.getsignal(signal.SIGINT) is before
    thread = threading.Thread(target=main, args=(["rules"],))  # where handlers cannot be set
    thread.start()
    thread.join()
    assert seen.pop() is before
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in the background
    try:
        main(["rules"])
        assert seen.pop() is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_interruption_outside_imports_is_an_exception_that_work_can_see(capfd, monkeypatch):
    def work(arguments):
        cli.raise_when_interrupted()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        raise KeyboardInterrupt

    monkeypatch.setattr(app, "run", work)
    assert main(["rules"]) == 130
    assert capfd.readouterr() == ("", "cactus: interrupted\n")
    with pytest.raises(KeyboardInterrupt):
        cli._leave_imports(signal.SIGINT, None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("closed", "code", "words"), [("<&-", 2, "standard input is closed"), (">&-", 0, ""), ("2>&-", 0, "")]
)
def test_streams_that_are_closed_are_no_reason_to_fail(closed, code, words):
    prompt = "-" if closed == "<&-" else "Question: 1 + 1?\nAnswer:"
    command = f"{sys.executable} -c 'from cactus_decoding.cli import main; import sys; sys.exit(main())' generate "
    done = subprocess.run(
        ["bash", "-c", f'{command} "$1" --max-new-tokens 2 {closed}', "bash", prompt], capture_output=True, text=True
    )
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
    assert words in done.stderr
