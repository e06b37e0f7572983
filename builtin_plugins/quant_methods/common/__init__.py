"""Ways of storing weights that several tools share, with the names of tensors as parameters."""
