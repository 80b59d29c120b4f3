"""What answers a prompt under a run's settings."""
