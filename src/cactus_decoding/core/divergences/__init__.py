"""Pure mathematics: f-divergences, how far they let one token be lifted, and the clamp of a likelihood ratio."""
