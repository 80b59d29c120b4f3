"""`cactus show`: what a learned importance says."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cactus_decoding.cli.options import option

if TYPE_CHECKING:
    from cactus_decoding.core.policy.importance import Importance
    from cactus_decoding.core.policy.vocabulary import Vocabulary

EXAMPLES = (
    "[bold]Examples[/bold]\n\ncactus show importance.safetensors\n\ncactus show importance.safetensors --top 50 --json"
)
SIDES = {"target": "the target may write", "draft": "the draft may write"}


def show(
    file: Annotated[str, typer.Argument(
        help="A file of cactus learn-importance, or a bundled draft's name.", metavar="FILE")],
    top: Annotated[int, option("How many tokens to name at each end.", "N", min=1)] = 15,
    tokenizer: Annotated[str | None, option(
        "Whose tokenizer knows what the tokens say.", "MODEL", shown="the target that the file names")] = None,
    as_json: Annotated[bool, option("Write one JSON object to stdout, and nothing else.", flag="--json")] = False,
) -> None:  # fmt: skip
    """Show a learned importance: its training, how well it tells positions apart, and the tokens that matter to it."""
    from cactus_decoding.core.files.writing import as_json as to_json
    from cactus_decoding.core.policy.importance import read_importance

    importance = read_importance(file)
    vocabulary = _vocabulary(importance, tokenizer)
    tokens = {side: _ends(importance, vocabulary, side, top) for side in SIDES}
    found = {
        "target": importance.about.get("target"),
        "draft": importance.about.get("draft"),
        "about": dict(importance.about),
        "vocabulary": {"tokens": len(importance.target_weights), "fingerprint": importance.vocabulary},
        "intercept": importance.intercept,
        "tokens": tokens,
    }
    if as_json:
        typer.echo(to_json(found))
        return
    console = Console(highlight=False)
    for line in _lines(importance.about):
        console.print(line, soft_wrap=True)
    for side, what in SIDES.items():
        console.print(_token_table(tokens[side], what))


def _vocabulary(importance: Importance, tokenizer: str | None) -> Vocabulary:
    """Return the tokens' texts; raise `ValueError` for a tokenizer with another vocabulary."""
    from cactus_decoding import zoo
    from cactus_decoding.core.models.loading import check_model_name, load_tokenizer, only_cached
    from cactus_decoding.core.policy.vocabulary import Vocabulary

    name = tokenizer or importance.about.get("target")
    if not isinstance(name, str):
        raise ValueError("the file does not say whose tokens these are: give --tokenizer")
    if name != "bundled":
        check_model_name("target", name, ["bundled"])
    model = zoo.path("target") if name == "bundled" else name
    loaded = load_tokenizer("target", model, local=only_cached("target", model))
    vocabulary = Vocabulary.of(loaded, len(importance.target_weights))
    importance.fit(vocabulary)
    return vocabulary


def _ends(importance: Importance, vocabulary: Vocabulary, side: str, top: int) -> dict[str, list[dict[str, Any]]]:
    weights = getattr(importance, f"{side}_weights")
    order = weights.argsort(descending=True, stable=True).tolist()

    def described(token: int) -> dict[str, Any]:
        return {"token_id": token, "text": vocabulary.texts[token], "weight": weights[token].item()}

    return {"most": [described(i) for i in order[:top]], "least": [described(i) for i in order[: -top - 1 : -1]]}


def _lines(about: Any) -> list[str]:
    """Return what the file was trained on, for people, as far as it says."""
    from cactus_decoding.core.files.jsonl import number_of

    said = [f"[bold]{name}[/bold]: {about[name]}" for name in ("target", "draft", "task") if name in about]
    fit = about.get("fit")
    if isinstance(fit, dict) and fit.keys() >= {"auc", "positions", "problems", "worse"}:
        value, low, high = (number_of(end) for end in fit["auc"])
        ends = "too few for an interval" if math.isnan(low) else f"95 %: {low:.3f} to {high:.3f}"
        said += [
            f"[bold]trained on[/bold]: {fit['positions']} rejected proposals in {fit['problems']} problems, of which "
            f"keeping the proposal spoils {100 * fit['worse']:.1f} % of the continuations",
            f"[bold]ROC AUC[/bold] on problems that it was not fitted to: {value:.3f} ({ends})",
        ]
    return said


def _token_table(ends: dict[str, list[dict[str, Any]]], what: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, title_justify="left", title=f"Where {what} …")
    for heading in ("important", "harmless"):
        table.add_column(heading)
        table.add_column("weight", justify="right")
    for most, least in zip(ends["most"], ends["least"], strict=True):
        cells = [(escape(repr(each["text"])), f"{each['weight']:+.2f}") for each in (most, least)]
        table.add_row(*cells[0], *cells[1])
    return table
