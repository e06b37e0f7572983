"""Encoders: models whose tokens see both sides, for embeddings and scores."""
