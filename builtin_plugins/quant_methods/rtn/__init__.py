"""Round-to-nearest quantization on load."""
