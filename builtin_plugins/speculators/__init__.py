"""Speculators: methods that propose draft tokens for speculative decoding."""
