"""A rule of one's own works everywhere: in verify, in the audit, and in generate."""

from dataclasses import dataclass

import torch

from cactus_decoding import LiftRule, audit, generate, load_pair


@dataclass(frozen=True)
class Doubled(LiftRule):
    """Lift the drafted token to twice its probability, but never above one half (or its own probability)."""

    name = "doubled"

    def lift(self, q):
        return (2 * q).clamp(max=0.5)


row = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
draft = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
print("emitted:", audit(Doubled(), row, draft).output_probs.tolist())

question = "Finn has 22 nuts. Sam owns 3 times as many nuts as Finn. How many nuts do they have together?"
prompt = f"Question: {question}\nAnswer:"
response = generate(load_pair(), prompt, rule=Doubled(), seed=0)
print(response.text, response.metrics.acceptance_length)
