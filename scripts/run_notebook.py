"""Executes the documentation's notebook in a kernel of its own and keeps its outputs.

    python scripts/run_notebook.py             executes it and writes it back; half a minute
    python scripts/run_notebook.py --output X  writes it elsewhere

Needs nbclient and ipykernel (`pip install -e .[dev]`).
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from results import parse

from cactus_decoding.core.files.provenance import provenance
from cactus_decoding.core.files.writing import check_writable, write_atomically

NOTEBOOK = Path(__file__).resolve().parents[1] / "docs/notebooks/what_a_rule_costs.ipynb"
KEPT = ("kernelspec", "language_info")


def main() -> None:
    """Run all cells from the beginning, in an empty folder, and write; an error in one of them is an error here."""
    output = parse(__doc__, output=NOTEBOOK).output
    check_writable(output)
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        where = {"metadata": {"path": folder}}
        NotebookClient(notebook, timeout=600, kernel_name="python3", coalesce_streams=True, resources=where).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # times
        if cell.cell_type == "code":
            # progress bars of libraries are no results
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    notebook.metadata = {name: notebook.metadata[name] for name in KEPT if name in notebook.metadata}
    notebook.metadata["provenance"] = provenance({"notebook": NOTEBOOK.name})
    write_atomically(output, nbformat.writes(notebook) + "\n")


if __name__ == "__main__":
    main()
