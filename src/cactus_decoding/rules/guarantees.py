"""What each rule guarantees at a position, in a sentence: shown wherever a rule is chosen."""

from __future__ import annotations

GUARANTEES = {
    "lossless": "Exact: emits the target's own distribution.",
    "cactus:delta=0.5": "Given the drafted token, KL(h‖target) ≤ delta while its lifted probability g ≤ 1/2; "
    "above that it can overspend, up to log(1 + 2·delta). Not a bound on what is emitted on average.",
    "cactus:delta=0.5,solver=exact": "Given the drafted token, KL(h‖target) ≤ delta, never overspent. "
    "Not a bound on what is emitted on average.",
    "ensemble:weight=0.2": "Total variation to the target ≤ weight × that of the draft to the target; KL is unbounded.",
    "lenience:lenience=0.5": "No accepted token is more than 1/lenience times as likely as under the target; "
    "nothing about the whole distribution.",
    "clamped:width=1.0": "Every token's ratio to its target probability stays within e^±width.",
    "clamped:max_kl=0.1": "KL(emitted‖target) ≤ max_kl at every position.",
    "typical": "None: what it accepts is distributed as the draft's.",
    "top_k:k=5": "None: what it accepts is distributed as the draft's.",
    "relaxed_greedy:margin=0.5,top=3": "For temperature 0: no token gives up more than margin nats of log-probability.",
}
"""A spelling of every rule, and what it guarantees per position."""
