"""What the build adds to MkDocs: formulas as MathML, pages of rules, notebook and reference, result files, explanations
on hover, and addresses that pages had before."""

from __future__ import annotations

import base64
import json
import re
from html import unescape
from pathlib import Path
from textwrap import indent
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from reference_pages import command_page, names_page, reference_pages

from cactus_decoding.core.rules import RULES

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "docs" / "notebooks"
RESULTS = ROOT / "benchmarks" / "results"
HOVER = (ROOT / "scripts/site/hover.md").read_text(encoding="utf-8")
HOVER_P_AND_Q = (ROOT / "scripts/site/hover_p_and_q.md").read_text(encoding="utf-8")
WITH_P_AND_Q = ("rules/", "theory.md", "guarantees.md", "proofs.md", "seeds.md")
BOOSTS = {"reference/": 0.0005, "studies/": 0.5, "vocabulary": 4, "rules/": 1, "": 2}
"""Weights in the search, by the beginnings of pages: whoever searches wants to read about a word first."""
FOUND_BY = {
    "choosing_a_rule.md": ["Choosing a rule"],
    "laptop.md": ["GGUF files on a laptop"],
    "vllm.md": ["Relaxed acceptance in vLLM"],
    "hugging_face.md": ["Hugging Face"],
    "proposals.md": ["How many tokens to propose", "draft length"],
    "conformance.md": ["Is an engine lossless?"],
    "vocabulary.md": ["drafter", "verifier", "lossy", "nats", "total variation"],
}
"""What pages were called before, and words that they explain, for the search."""
FORMULA = re.compile(r'<div class="arithmatex">\\\[(.*?)\\\]</div>', re.DOTALL)
INTERVAL = re.compile(r"\d \([-−+]?[\d.]+ to [-−+]?[\d.]+\)")
MOVED = {
    "laptop_benchmarks": "performance/#gguf-files",
    "vllm_benchmarks": "performance/#vllm",
    "study": "studies/relaxing/",
    "studies/rules": "studies/relaxing/",
    "studies/real_pair": "studies/relaxing/",
    "relaxing_study": "studies/relaxing/",
    "training_study": "studies/training/",
    "trees_study": "studies/trees/",
    "constraints": "studies/constraints/",
    "planning": "studies/planning/",
}
REDIRECT = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Moved</title>
<meta http-equiv="refresh" content="0; url={up}{place}"></head>
<body>This page is now at <a href="{up}{place}">{place}</a>.</body></html>
"""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the rules' pages into the navigation, after the one about all of them."""
    reference = next(part["Reference"] for part in config.nav or [] if "Reference" in part)
    rules = next(part["Rules"] for part in reference if "Rules" in part)
    rules += [{rule.title: f"rules/{name}.md"} for name, rule in RULES.items()]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made from something else, and the benchmarks' result files."""
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        text = notebook_page(path.read_text(encoding="utf-8"))
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=text))
    reference = {"index": names_page(), "commands": command_page()} | reference_pages()
    for name, text in reference.items():
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    for path in sorted(RESULTS.glob("*.json")):
        files.append(File.generated(config, f"benchmarks/results/{path.name}", abs_src_path=str(path)))
    return files


def notebook_page(text: str) -> str:
    """Return the Markdown of a notebook in Jupyter's format 4."""
    parts = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
        elif source.strip():
            parts.append(f"```python\n{source}\n```")
            parts += [_shown(output) for output in cell["outputs"]]
    return "\n\n".join(parts) + "\n"


def _shown(output: dict[str, Any]) -> str:
    """Return an output: a picture as one file with the page, everything else as text."""
    data = output.get("data", {})
    if "image/svg+xml" in data:
        picture = base64.b64encode("".join(data["image/svg+xml"]).encode()).decode()
        return f"![the picture that this cell draws](data:image/svg+xml;base64,{picture})"
    lines = "".join(output.get("text", data.get("text/plain", ""))).rstrip("\n")
    return f"```text\n{lines}\n```"


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Let links that are right in the repository be right on the site too, and explain words on hover."""
    text = re.sub(r"\]\(\.\./benchmarks/results/", "](benchmarks/results/", markdown)
    place = page.file.src_uri
    if place == "rules/index.md":
        text = f"{text}\n\n{rule_details()}"
    page.meta["search"] = {"boost": next(boost for folder, boost in BOOSTS.items() if place.startswith(folder))}
    page.meta["tags"] = FOUND_BY.get(place, [])
    if place.startswith("reference/"):
        return text
    return "\n\n".join([text, HOVER, HOVER_P_AND_Q if place.startswith(WITH_P_AND_Q) else ""])


def rule_details() -> str:
    """Return every rule's page, folded away, for the page about all of them."""
    folded = []
    for name, rule in RULES.items():
        page = (ROOT / "docs" / "rules" / f"{name}.md").read_text(encoding="utf-8").partition("\n")[2]
        page = re.sub(r"^## (.*)$", r"**\1**", page, flags=re.MULTILINE).replace("](#", f"]({name}.md#")
        folded.append(f'??? note "{rule.title}"\n{indent(page.strip(), "    ")}')
    return "\n\n".join(["## Details of each rule { data-search-exclude }", *folded])


def on_page_content(html: str, **_: object) -> str:
    """Turn the formulas of a page into MathML, and keep each number beside its interval."""
    return INTERVAL.sub(lambda found: found[0].replace(" ", "&nbsp;"), to_mathml(html))


def to_mathml(html: str) -> str:
    """Replace the formulas that Markdown's arithmatex has marked; browsers draw MathML without scripts or fonts."""
    return FORMULA.sub(
        lambda found: f'<div class="formula">{convert(unescape(found[1]).strip(), display="block")}</div>', html
    )


def on_post_build(config: MkDocsConfig) -> None:
    """Lead from the addresses that pages had before to those that they have."""
    for name, place in MOVED.items():
        page = Path(config.site_dir) / name / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(REDIRECT.format(place=place, up="../" * len(Path(name).parts)), encoding="utf-8")
