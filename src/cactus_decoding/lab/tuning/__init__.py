"""What speculation brings on this machine: passes that are timed, answers that are looked at, and what follows."""
