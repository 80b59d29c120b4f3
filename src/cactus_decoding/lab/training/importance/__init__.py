"""Learned importance: emit rejected tokens, continue the answers, and learn at which positions they get worse."""
