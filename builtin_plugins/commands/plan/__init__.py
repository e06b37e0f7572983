"""`engine plan`: estimates the memory of a model."""
