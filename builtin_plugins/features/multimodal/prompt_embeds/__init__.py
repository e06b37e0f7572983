"""Prompts given as embeddings."""
