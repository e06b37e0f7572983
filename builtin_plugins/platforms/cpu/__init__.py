"""The CPU."""
