"""Metric sinks."""
