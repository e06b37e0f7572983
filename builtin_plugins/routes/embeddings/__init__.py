"""Embeddings, classification, scores and rankings."""
