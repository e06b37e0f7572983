"""Speculative decoding: proposers of drafts, and what has them checked, counted and paced."""
