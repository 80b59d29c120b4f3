"""Decides on proposals: the only place where rules meet randomness."""
