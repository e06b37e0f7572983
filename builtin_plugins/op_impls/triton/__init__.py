"""Triton ops for GPUs, from `core_kernels.triton`."""
