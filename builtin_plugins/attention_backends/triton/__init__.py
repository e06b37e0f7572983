"""Attention over blocks on GPUs, in Triton."""
