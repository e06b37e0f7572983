"""Logits processors shipped with the engine; each file is a plugin that can be left out."""
