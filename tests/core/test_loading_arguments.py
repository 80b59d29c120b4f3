"""What `load_pair` and `speculative_generate` are given wrongly is named, before anything is loaded or read."""

import pytest

from cactus_decoding import load_pair
from cactus_decoding.engines.transformers.generate import speculative_generate


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"device": "cuda:9"}, "device must be one that this machine has, but is 'cuda:9'"),
        ({"device": "gpu"}, "device must be"),
        ({"device": 3.5}, "device must be"),
        ({"dtype": "float33"}, "dtype must be 'auto' or one of floating point"),
        ({"dtype": "int8"}, "dtype must be"),
        ({"dtype": "Tensor"}, "dtype must be"),
    ],
    ids=str,
)
def test_devices_and_types_that_are_none(given, words):
    with pytest.raises(ValueError, match=words):
        load_pair(**given)


def test_metrics_must_be_metrics():
    pair = load_pair()
    inputs = pair.tokenizer("Question:", return_tensors="pt", return_token_type_ids=False)
    with pytest.raises(TypeError, match="metrics must be a Metrics"):
        pair.target.model.generate(
            **inputs,
            custom_generate=speculative_generate,
            assistant_model=pair.drafter.model,
            max_new_tokens=4,
            metrics={},
        )
