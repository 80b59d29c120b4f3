"""Questions that help and messages use as examples."""

QUESTION = "Finn has 22 nuts. Sam owns 3 times as many nuts as Finn. How many nuts do they have together?"
ASK = f'cactus generate "{QUESTION}"'
