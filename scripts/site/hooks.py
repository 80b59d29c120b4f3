"""What the build adds to MkDocs: formulas as MathML, pages of rules, notebook and reference, result files."""

from __future__ import annotations

import re
from pathlib import Path

from command_page import command_page
from formulas import to_mathml
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from notebook_page import notebook_page
from reference_pages import names_page, reference_pages

from cactus_decoding.core.rules import RULES

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "docs" / "notebooks"
RESULTS = ROOT / "benchmarks" / "results"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the rules' pages into the navigation, after the one on choosing among them."""
    part = next(part["Rules"] for part in config.nav or [] if "Rules" in part)
    place = 1 + next(i for i, page in enumerate(part) if "rules/index.md" in page.values())
    part[place:place] = [{rule.title: f"rules/{name}.md"} for name, rule in RULES.items()]
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


def on_page_markdown(markdown: str, **_: object) -> str:
    """Let links that are right in the repository be right on the site too."""
    return re.sub(r"\]\(\.\./benchmarks/results/", "](benchmarks/results/", markdown)


def on_page_content(html: str, **_: object) -> str:
    """Turn the formulas of a page into MathML."""
    return to_mathml(html)
