"""Executors: run the workers of all ranks."""
