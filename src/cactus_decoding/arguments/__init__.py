"""What users pass in: checks of values, and the text spelling of rules, drafters and draft lengths."""
