"""Orders in which requests run."""
