"""Pooling: embeddings, labels and scores of prompts instead of tokens behind them."""
