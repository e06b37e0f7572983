"""Input processors: turn images of a request into tensors and placeholder tokens."""
