"""Triton kernels for GPUs, one module per subject.

Knows tensors; knows nothing of the engine. Imported by GPU plugins only.
"""
