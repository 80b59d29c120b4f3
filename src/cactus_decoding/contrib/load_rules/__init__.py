"""Rules by load: their table, the times that it is chosen by, and the choice."""
