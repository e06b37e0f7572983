"""Attention by flash-attn."""
