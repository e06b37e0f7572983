"""Scheduling policies: the order in which requests run."""
