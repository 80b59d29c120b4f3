"""The playground behind `cactus play`: a local page that shows what a rule does to an answer, token by token."""
