"""What a response may spend: the budget, which positions it admits, and the pace at which it is spent."""
