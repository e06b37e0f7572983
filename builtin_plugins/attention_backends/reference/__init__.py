"""Attention in readable torch: the oracle."""
