"""Tokenization, and generation from token ids to token ids."""
