"""The harness's model class: registered, read from its arguments, and for generation alone."""

from __future__ import annotations

import pytest
from lm_eval.api.registry import get_model

from cactus_decoding import Cactus
from cactus_decoding.lab.evaluation.chat import tokenizer_of
from cactus_decoding.lab.evaluation.tasks.harness import CactusLM

pytestmark = [
    pytest.mark.usefixtures("settings_of_the_libraries"),
    # the harness and what it imports are not ours to mend
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"),
]


def test_the_model_class_is_registered_and_reads_model_args():
    assert get_model("cactus") is CactusLM
    model = CactusLM.create_from_arg_string("rule=cactus:delta=0.5,max_ratio=3.0,top_p=0.9,num_speculative_tokens=4")
    assert model._config.rule == str(Cactus(0.5, max_ratio=3.0))
    assert (model._config.request.sampling.top_p, model._config.num_speculative_tokens) == (0.9, 4)
    for arguments, problem in (
        ("speed=3", "'speed=3' is not argument=value"),
        ("seed=x", "seed must be of type int"),
        ("rule=magic", "unknown rule"),
    ):
        with pytest.raises(ValueError, match=problem):
            CactusLM.create_from_arg_string(arguments)


def test_scoring_is_refused():
    model = CactusLM.create_from_arg_string("")
    for score in (model.loglikelihood, model.loglikelihood_rolling):
        with pytest.raises(ValueError, match="which no acceptance rule changes"):
            score([])


def test_chats_are_written_by_the_target_s_template():
    model = CactusLM.create_from_arg_string("")
    said = [{"role": "user", "content": "How many?"}]
    tokenizer = tokenizer_of("bundled")
    assert model.apply_chat_template(said).text(tokenizer) == "Question: How many?\nAnswer:"
    begun = [*said, {"role": "assistant", "content": " So"}]
    asked = model.apply_chat_template(begun, add_generation_prompt=False)
    assert asked.text(tokenizer) == "Question: How many?\nAnswer: So"
    assert model.tokenizer_name == "bundled"
    with pytest.raises(ValueError, match="no place for a system message"):
        model.apply_chat_template([{"role": "system", "content": "Be brief."}, *said]).text(tokenizer)
