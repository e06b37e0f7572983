"""Pooling: embeddings, labels and scores of prompts instead of generated tokens."""
