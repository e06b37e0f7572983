"""Jinja chat templates of checkpoints."""
