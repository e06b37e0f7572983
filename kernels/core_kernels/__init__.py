"""Op implementations for CPUs: C++ behind a plain C ABI.

Knows tensors; knows nothing of the engine.
"""
