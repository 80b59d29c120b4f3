"""Learned importance: rejected tokens are put in, answers continued, and positions told apart by what comes of it."""
