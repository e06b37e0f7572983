"""Kernels for CPUs (C++ with a plain C ABI) and GPUs (Triton).

Knows tensors; knows nothing of the engine.
"""
