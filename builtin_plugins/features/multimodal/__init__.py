"""Multimodal: prompts with images."""
