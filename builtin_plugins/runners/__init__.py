"""Runners: generation and pooling, the second half of a step."""
