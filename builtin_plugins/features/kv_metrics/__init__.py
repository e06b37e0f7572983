"""Lifetime and reuse metrics of prefix cache blocks (`--kv-cache-metrics`)."""
