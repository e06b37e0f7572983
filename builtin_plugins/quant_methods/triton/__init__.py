"""Numbers of few bits on GPUs, kept as they are stored and multiplied so by Triton."""
