"""What a response may look like: JSON of a schema, a regular expression, or a grammar."""
