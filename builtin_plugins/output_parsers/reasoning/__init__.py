"""Reasoning syntax of the model families."""
