"""What decoding is: requests, sessions, rules, policies, verification and drafting, for any engine."""
