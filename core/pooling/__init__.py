"""Pooling: what a model gives for a prompt instead of generating after it."""
