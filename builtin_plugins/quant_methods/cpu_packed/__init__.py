"""Plain weights packed in the order of the C++ kernels."""
