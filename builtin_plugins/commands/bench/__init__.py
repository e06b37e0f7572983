"""`engine bench`: benchmarks."""
