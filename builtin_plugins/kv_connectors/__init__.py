"""Blocks of the KV cache beyond the device: host memory, disk, and whatever plugins bring."""
