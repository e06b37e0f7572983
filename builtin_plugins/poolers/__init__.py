"""Poolers: what of hidden states stands for a prompt."""
