"""Which drafts can be trained: models that share no weight with their target."""

from __future__ import annotations

import pytest
from support.tiny_pair import tiny_pair

from cactus_decoding import Pair, Request
from cactus_decoding.core.drafting.model import ModelDrafter
from cactus_decoding.engines.transformers.early_exit import EarlyExit
from cactus_decoding.lab.training.acceptance.material import draft_model
from cactus_decoding.lab.training.adaptation import DraftAdaptation
from cactus_decoding.lab.training.diagnosis.probe import record


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
