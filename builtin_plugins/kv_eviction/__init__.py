"""Eviction policies of the prefix cache."""
