"""Attention through torch's fused kernels."""
