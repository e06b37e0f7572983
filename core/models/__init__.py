"""The model library: layers, model descriptions and ops that architectures are written with."""
