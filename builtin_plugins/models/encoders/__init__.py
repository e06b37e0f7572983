"""Encoders: bidirectional models for embeddings and scores."""
