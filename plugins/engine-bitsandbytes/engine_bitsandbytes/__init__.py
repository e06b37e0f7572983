"""Quantizes plain checkpoints while they load, by the bitsandbytes library."""
