"""What do rules do to one position, exactly? Prints acceptance against divergence for a pair of rows."""

import torch

from cactus_decoding import audit

generator = torch.Generator().manual_seed(0)
target_probs = torch.randn(1000, generator=generator, dtype=torch.float64).mul(3).softmax(-1)
draft_probs = (target_probs.log() + torch.randn(1000, generator=generator, dtype=torch.float64)).softmax(-1)

print(f"{'rule':28}{'acceptance':>11}{'KL (nats)':>11}{'TV':>8}{'largest ratio':>15}")
for rule in (
    "lossless",
    "cactus:delta=0.01",
    "cactus:delta=0.01,solver=exact",
    "cactus:delta=1.0",
    "clamped:width=0.5",
    "clamped:width=2.0",
    "ensemble:weight=0.5",
    "lenience:lenience=0.5",
    "typical",
    "top_k:k=20",
):
    result = audit(rule, target_probs, draft_probs)
    ratio = result.max_log_ratio.exp()
    print(f"{rule:32}{result.acceptance:7.3f}{result.kl:11.4f}{result.tv:8.3f}{ratio:15.1f}")
