"""Which drafts can be trained: models that share no weight with their target."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys

import pytest
import torch
from support.expected_steps import expected_steps
from support.tiny_pair import tiny_pair

from cactus_decoding import Pair, Request
from cactus_decoding.core.drafting.model import ModelDrafter
from cactus_decoding.engines.transformers.skip import EarlyExit
from cactus_decoding.lab import training
from cactus_decoding.lab.evaluation.score import steps_taken
from cactus_decoding.lab.training.acceptance.material import draft_model
from cactus_decoding.lab.training.adaptation import DraftAdaptation
from cactus_decoding.lab.training.probe import record


def test_a_draft_in_which_the_targets_weights_are_is_refused_wherever_it_would_be_trained() -> None:
    whole = tiny_pair()
    assert draft_model(whole) is whole.drafter.model
    early = Pair(whole.target, EarlyExit(1).drafter(whole.target.model), whole.tokenizer)
    whole.drafter.model.lm_head.weight = whole.target.model.lm_head.weight
    itself = Pair(whole.target, ModelDrafter(whole.target.model), whole.tokenizer)
    for pair in (early, whole, itself):
        for use in (draft_model, DraftAdaptation, lambda pair: record(pair, ["Tom has"], Request(seed=0))):
            with pytest.raises(ValueError, match="has weights of its own, but this one's are the target's"):
                use(pair)


EXACT = 1e-12


@pytest.mark.parametrize("k", [0, 1, 2, 3, 6])
def test_steps_are_those_of_an_enumeration(k: int) -> None:
    generator = torch.Generator().manual_seed(k)
    texts = [torch.rand(n, generator=generator, dtype=torch.float64) for n in (1, 2, 5, 8, 3)]
    problem = torch.cat([torch.full((len(text),), number) for number, text in enumerate(texts)])
    found = steps_taken(torch.cat(texts), problem, k).tolist()
    assert found == pytest.approx([expected_steps(text.tolist(), k) for text in texts], abs=EXACT)


def test_without_proposals_every_token_takes_a_step() -> None:
    assert steps_taken(torch.ones(7), torch.zeros(7, dtype=torch.long), 0).tolist() == [7.0]


def test_steps_that_stop_at_the_first_rejection_only_are_told_apart() -> None:
    # the wrong variant: a step's tokens without the chance that the next one begins inside it
    chances = torch.tensor([0.9, 0.1, 0.9, 0.1], dtype=torch.float64)
    wrong = 4 / float((1 + chances + chances * chances.roll(-1)).mean())
    assert abs(float(steps_taken(chances, torch.zeros(4, dtype=torch.long), 2)[0]) - wrong) > 0.05


def test_names_are_imported_from_where_type_checkers_see_them() -> None:
    tree = ast.parse(inspect.getsource(training))
    [block] = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {alias.name: node.module for node in block.body for alias in node.names}
    assert {name: f"cactus_decoding.lab.training.{home}" for name, home in training._NAMES.items()} == seen
    for name, home in seen.items():
        assert getattr(training, name).__module__ == home
    with pytest.raises(AttributeError, match="has no attribute 'frob'"):
        training.frob  # noqa: B018


def test_importing_the_package_imports_no_torch() -> None:
    code = "import sys, cactus_decoding.lab.training; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
