"""C++ ops for CPUs, from `core_kernels`."""
