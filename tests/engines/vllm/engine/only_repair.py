"""A plug-in for vLLM that repairs the fault of its CPU sampler as ours does, and does nothing else.

It makes stock answers at temperature 1 what they are meant to be, so that ours can be compared with them.
"""

import os
from pathlib import Path

NAME = "only_repair"


def register() -> None:
    """Replace the function below which vLLM 0.32 loses temperatures (vLLM issue 55005)."""
    from vllm.v1.sample import rejection_sampler

    from cactus_decoding.engines.vllm.patches import expand_batch_to_tokens, replace

    replace(rejection_sampler, "expand_batch_to_tokens", lambda stock: expand_batch_to_tokens)


def environment(folder: Path) -> dict[str, str]:
    """Return what makes vLLM find this plug-in and no other; its entry point goes to a folder."""
    installed = folder / f"{NAME}-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text(f"[vllm.general_plugins]\n{NAME} = {NAME}:register\n")
    found = [str(folder), str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"VLLM_PLUGINS": NAME, "PYTHONPATH": os.pathsep.join(found)}
