"""Prompts of models with an encoder."""
