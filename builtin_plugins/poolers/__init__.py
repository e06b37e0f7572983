"""Poolers: reduce a prompt's hidden states to its vectors."""
