"""Triton kernels that multiply quantized weights on GPUs in their stored format."""
