"""What rules cost and how to make them cheaper: evaluation, tuning, training and traces."""
