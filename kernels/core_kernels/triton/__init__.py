"""Kernels for GPUs in Triton, one file a subject: functions of tensors.

Knows no engine; only a GPU's plugins import it.
"""
