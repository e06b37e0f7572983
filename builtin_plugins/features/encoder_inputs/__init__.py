"""Encoder inputs: prompts of encoder-decoder models."""
