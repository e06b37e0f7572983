"""Quantizes plain checkpoints on load with the bitsandbytes library."""
