"""Tiny checkpoints of architectures without a class in transformers, laid out as published."""
